"""All-to-all where every pair of ranks has its own bytes: the busiest link decides.

Rank i sends `bytes_[i, j]` to rank j; the diagonal stays at home. n = g N ranks stand node by node,
g on each of N nodes.

    inside   = max over ranks of max(sent, received) within the node
    across   = max over nodes of max(sent, received) to and from other nodes
    talking  = across / (the same of the busiest rank): so many ranks share the node's network,
             since one alone reaches only its share

The closed form (see `form`) knows bytes by x + y alone, their seconds on the links, so there is one
plain all-to-all of S bytes per rank, equal sizes, that takes as long. What the model learned about
that one is applied to this one: equal sizes get exactly the time of the plain form, and more bytes
between any two ranks never take less.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives import form
from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.curves import LOG2_BYTES
from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.table import CollectiveTable
from hybridperf.collectives.traffic import Links
from hybridperf.io import InputError, unknown
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array, fresh_views

_IMPLEMENTATION = ("lib", "lib_version", "variant", "dtype", "in_place")


def pair_traffic(
    bytes_: Array, ranks_per_node: int, xp: ModuleType = np
) -> tuple[Array, Array, Array]:
    """(bytes through the busiest rank's link, the busiest node's network, ranks that share it).

    `bytes_` [n, n] from rank to rank.
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AllToAll:
    """One implementation's all-to-all at one scale, as arrays for jit, vmap and gradients."""

    theta: Array  # [K] logs of the form's knobs
    # [G] log of seconds of equal sizes at 2^LOG2_BYTES per rank; None: the closed form alone
    log_s: Array | None
    links: Links  # the calibrated ones
    ranks_per_node: int = dataclasses.field(metadata={"static": True})
    nodes: int = dataclasses.field(metadata={"static": True})

    @staticmethod
    def of(
        model: CollectiveModel, ranks: int, ranks_per_node: int, **implementation: Any
    ) -> AllToAll:
        """The all-to-all of a model among `ranks`.

        Args:
            model: calibrated collectives.
            ranks: how many take part.
            ranks_per_node: of them on each node; divides `ranks`.
            implementation: `lib, lib_version, variant, dtype, in_place` as in tables, where known.

        Raises:
            InputError: ranks that do not divide into nodes, or another word.
        """
        for name in implementation:
            if name not in _IMPLEMENTATION:
                known = f"an all-to-all is told by {', '.join(_IMPLEMENTATION)}"
                raise unknown("column", name, _IMPLEMENTATION, known)
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
        work = found._work(table.inside_bytes, table.across_bytes, table.talking, np)
        log_s = np.log(form.seconds(found.theta, work)) + table.correction
        return dataclasses.replace(found, log_s=log_s)

    def seconds(self, bytes_: Array, xp: ModuleType = jnp) -> Array:
        """Seconds [] for `bytes_` [n, n]."""
        return self.of_traffic(*pair_traffic(bytes_, self.ranks_per_node, xp), xp)

    def of_traffic(
        self, inside: Array, across: Array, talking: Array, xp: ModuleType = jnp
    ) -> Array:
        """Seconds [...] of what `pair_traffic` counts, [...] each."""
        return self._calibrated((inside, across, talking), xp)[1]

    def table(self, bytes_: np.ndarray) -> CollectiveTable:
        """The all-to-all of `bytes_` [n, n] as a row of a table of collectives [1]."""
        traffic = pair_traffic(bytes_, self.ranks_per_node, np)
        calibrated, learned = self._calibrated(traffic, np)
        inside, across, talking, g, nodes = (
            np.full(1, float(one)) for one in (*traffic, self.ranks_per_node, self.nodes)
        )
        theta, correction = np.asarray(self.theta)[None], np.full(1, np.log(learned / calibrated))
        steps = np.array([self._scale[2:]])
        return CollectiveTable(inside, across, talking, g, nodes, steps, theta, correction)

    def _calibrated(
        self, traffic: tuple[Array, Array, Array], xp: ModuleType
    ) -> tuple[Array, Array]:
        """Seconds by the closed form, and as learned."""
        theta, log_s, log2_bytes = fresh_views((self.theta, self.log_s, LOG2_BYTES))
        work = self._work(*traffic, xp)
        part = form.parts(theta, work, xp)
        calibrated = part.total
        if log_s is None:
            return calibrated, calibrated
        plain, g, nodes = COLLECTIVES["alltoall"], self.ranks_per_node, self.nodes
        of_a_byte = self._work(plain.inside(g, nodes), plain.across(g, nodes), g, xp)
        message = part.carried / form.parts(theta, of_a_byte, xp).carried
        octaves = xp.log2(xp.maximum(message, 1.0))
        beyond = xp.maximum(octaves - log2_bytes[-1], 0.0)
        return calibrated, xp.exp(xp.interp(octaves, log2_bytes, log_s) + np.log(2.0) * beyond)

    def _work(self, inside: Array, across: Array, talking: Array, xp: ModuleType) -> Array:
        seconds = self.links.seconds(inside, across, talking, xp)
        scale = xp.asarray(self._scale, seconds.dtype)
        scale = xp.broadcast_to(scale, (*seconds.shape[:-1], len(scale)))
        return xp.concatenate([seconds, scale], -1)

    @functools.cached_property
    def _scale(self) -> tuple[float, ...]:
        """Ranks per node, nodes and steps, as the form reads them behind the seconds."""
        g, nodes = self.ranks_per_node, self.nodes
        return g, nodes, *map(float, COLLECTIVES["alltoall"].steps(g, nodes))
