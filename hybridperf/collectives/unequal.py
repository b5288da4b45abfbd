"""All-to-all where every pair of ranks has its own bytes: what the busiest link carries, priced as
the equal sizes that keep it as busy.

Rank i sends `bytes_[i, j]` to rank j; the diagonal stays at home. n = g N ranks stand node by node,
g on each of N nodes.

    inside   = max over ranks of max(sent, received) within the node
    across   = max over nodes of max(sent, received) to and from other nodes
    talking  = across / (the same of the busiest rank): so many ranks share the node's network,
             since one alone reaches only its share

The closed form (see `form`) knows bytes by x + y alone, their seconds on the links, so there is one
plain all-to-all of S bytes per rank, equal sizes, that takes as long. What the model learned about
that one is what it says of this one: equal sizes get the plain form's time exactly, and more bytes
between any two ranks never take less.

Rules by name: "pairs" is the above. "lin" is that of Lin et al. (owensgroup/ml_perf_model): with
V_r = (bytes of rank r) / n the busiest rank moves M = max_r max(sum V - V_r, V_r (n - 1)), whoever
the receiver and wherever it stands. It knows row sums only, diagonal included, and no nodes. M
leaves out what stays at home, so S = M n / (n - 1) here; their pipeline hands M itself to a curve
that takes (n - 1) / n of it once more, a quarter too little on four ranks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.collectives import form
from hybridperf.collectives.curves import LOG2_BYTES
from hybridperf.collectives.links import Links
from hybridperf.collectives.model import CollectiveModel, CollectiveTable
from hybridperf.collectives.traffic import COLLECTIVES
from hybridperf.io import InputError, unknown
from hybridperf.io.namespace import fresh_views

_IMPLEMENTATION = ("lib", "lib_version", "variant", "dtype", "in_place")


def pair_traffic(bytes_: Any, ranks_per_node: int, xp: ModuleType = np) -> tuple[Any, Any, Any]:
    """(bytes through the busiest rank's link inside its node, through the busiest node's network,
    ranks that share it), from [n, n].
    """
    n, g = len(bytes_), ranks_per_node
    node = np.arange(n) // g
    together, alone = node[:, None] == node, np.eye(n, dtype=bool)
    within, beyond = xp.where(together & ~alone, bytes_, 0), xp.where(together, 0, bytes_)
    inside = xp.maximum(within.sum(1).max(), within.sum(0).max())
    sent, received = beyond.sum(1), beyond.sum(0)
    of_rank = xp.maximum(sent.max(), received.max())
    across = xp.maximum(sent.reshape(-1, g).sum(1).max(), received.reshape(-1, g).sum(1).max())
    talking = xp.where(of_rank > 0, across, g) / xp.where(of_rank > 0, of_rank, 1)
    return inside, across, talking


def lin_traffic(bytes_: Any, ranks_per_node: int, xp: ModuleType = np) -> tuple[Any, Any, Any]:
    """The same of equal sizes whose ranks move as many bytes as the busiest one by Lin's rule."""
    n, g = len(bytes_), ranks_per_node
    each = bytes_.sum(1) / n
    moved = xp.maximum((each.sum() - each).max(), each.max() * (n - 1))
    message, kind = moved * n / (n - 1), COLLECTIVES["alltoall"]
    return message * kind.inside(g, n // g), message * kind.across(g, n // g), g


RULES: dict[str, Callable[[Any, int, ModuleType], tuple[Any, Any, Any]]] = {
    "pairs": pair_traffic,
    "lin": lin_traffic,
}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["theta", "log_s", "links"],
    meta_fields=["ranks_per_node", "nodes"]
)  # fmt: skip
@dataclasses.dataclass(frozen=True)
class AllToAll:
    """What a model says of one implementation's all-to-all at one scale, as arrays: for jit, vmap
    and gradients in the bytes.
    """

    theta: Any  # [K] logs of the form's knobs
    # [G] log of seconds of equal sizes at 2^LOG2_BYTES per rank; None: the closed form alone
    log_s: Any
    links: Links  # the calibrated ones
    ranks_per_node: int
    nodes: int

    @staticmethod
    def of(
        model: CollectiveModel, ranks: int, ranks_per_node: int, **implementation: Any
    ) -> AllToAll:
        """`implementation`: `lib, lib_version, variant, dtype, in_place` as in a table, where
        known.
        """
        for name in implementation:
            if name not in _IMPLEMENTATION:
                raise unknown(
                    "column",
                    name,
                    _IMPLEMENTATION,
                    f"an all-to-all is told by {', '.join(_IMPLEMENTATION)}",
                )
        if ranks_per_node < 1 or ranks % ranks_per_node:
            raise InputError(
                f"{ranks} ranks do not divide into nodes of {ranks_per_node}; mend ranks_per_node"
                " or the matrix"
            )
        nodes = ranks // ranks_per_node
        row = {"collective": "alltoall", "n_gpus": ranks, "n_nodes": nodes, **implementation}
        table = model.table(pd.DataFrame({"bytes": 2.0**LOG2_BYTES}).assign(**row))
        found = AllToAll(table.theta[0], None, model.links(), ranks_per_node, nodes)
        if model.adapted is None:
            return found
        work = found._work(table.inside_bytes, table.across_bytes, table.talking, found.links, np)
        return dataclasses.replace(
            found, log_s=np.log(form.seconds(found.theta, work)) + table.correction
        )

    def seconds(
        self, bytes_: Any, rule: str = "pairs", links: Links | None = None, xp: ModuleType = jnp
    ) -> Any:
        """Seconds [] for `bytes_` [n, n]; `links`: other rates than the calibrated ones, under the
        correction that belongs to those.
        """
        if rule not in RULES:
            raise unknown("rule", rule, RULES, f"known are {', '.join(RULES)}")
        return self.of_traffic(*RULES[rule](bytes_, self.ranks_per_node, xp), links, xp)

    def of_traffic(
        self,
        inside: Any,
        across: Any,
        talking: Any,
        links: Links | None = None,
        xp: ModuleType = jnp,
    ) -> Any:
        """Seconds [...] of what `pair_traffic` counts, [...] each."""
        traffic = inside, across, talking
        calibrated, learned = self._calibrated(traffic, xp)
        if links is None:
            return learned
        return form.seconds(fresh_views(self.theta), self._work(*traffic, links, xp), xp) * (
            learned / calibrated
        )

    def table(self, bytes_: np.ndarray, rule: str = "pairs") -> CollectiveTable:
        """The all-to-all of `bytes_` [n, n] as a row of a table of collectives [1]."""
        traffic = RULES[rule](bytes_, self.ranks_per_node, np)
        calibrated, learned = self._calibrated(traffic, np)
        inside, across, talking, g, nodes = (
            np.full(1, float(one)) for one in (*traffic, self.ranks_per_node, self.nodes)
        )
        return CollectiveTable(
            inside,
            across,
            talking,
            g,
            nodes,
            np.asarray(self.theta)[None],
            np.full(1, np.log(learned / calibrated)),
        )

    def _calibrated(self, traffic: tuple[Any, Any, Any], xp: ModuleType) -> tuple[Any, Any]:
        """Seconds on the calibrated links: by the closed form, and as learned."""
        theta, log_s, log2_bytes = fresh_views((self.theta, self.log_s, LOG2_BYTES))
        calibrated = form.seconds(theta, work := self._work(*traffic, self.links, xp), xp)
        if log_s is None:
            return calibrated, calibrated
        plain, g, nodes = COLLECTIVES["alltoall"], self.ranks_per_node, self.nodes
        of_a_byte = self._work(plain.inside(g, nodes), plain.across(g, nodes), g, self.links, xp)
        message = form.carried_seconds(theta, work, xp) / form.carried_seconds(theta, of_a_byte, xp)
        octaves = xp.log2(xp.maximum(message, 1.0))
        beyond = xp.maximum(octaves - log2_bytes[-1], 0.0)
        return calibrated, xp.exp(xp.interp(octaves, log2_bytes, log_s) + np.log(2.0) * beyond)

    def _work(self, inside: Any, across: Any, talking: Any, links: Links, xp: ModuleType) -> Any:
        seconds = links.seconds(inside, across, talking, xp)
        scale = xp.broadcast_to(
            xp.asarray([self.ranks_per_node, self.nodes], seconds.dtype), seconds.shape
        )
        return xp.concatenate([seconds, scale], -1)


def alltoall_seconds(
    model: CollectiveModel,
    bytes_: Any,
    ranks_per_node: int,
    rule: str = "pairs",
    **implementation: Any,
) -> float:
    """Seconds of an all-to-all of `bytes_` [n, n] by a calibrated model; `InputError` for a matrix
    that is none. See `AllToAll` for JAX.
    """
    try:
        matrix = np.asarray(bytes_, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected a matrix of bytes in numbers, rank by rank ({error}); mend it"
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        raise InputError(
            f"expected bytes [n, n] between n >= 2 ranks, got {list(matrix.shape)}; give one row"
            " and one column per rank"
        )
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        i, j = np.argwhere(~(np.isfinite(matrix) & (matrix >= 0)))[0]
        raise InputError(
            f"expected bytes of zero or more, got {matrix[i, j]:g} from rank {i} to rank {j}; mend"
            " the matrix"
        )
    if not matrix[~np.eye(len(matrix), dtype=bool)].any():
        raise InputError(
            "no rank sends a byte to another, expected a message; give bytes off the diagonal"
        )
    return float(
        AllToAll.of(model, len(matrix), ranks_per_node, **implementation).seconds(
            matrix, rule, xp=np
        )
    )
