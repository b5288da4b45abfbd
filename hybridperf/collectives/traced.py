"""Single collectives whose sizes vary, by the same price (`price`) as rows and calls: compiled,
mapped and differentiated in bytes and in every number of the links.

Ranks and nodes are structure. A curve of what was learned is straight in log seconds over log bytes
from one quarter of an octave to the next and level where the library falls into another algorithm;
at its corners a gradient is that of one side.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hybridperf.collectives.model import IMPLEMENTATION, CollectiveModel
from hybridperf.collectives.price import CollectiveTable, price
from hybridperf.collectives.rows import checked
from hybridperf.collectives.traffic import Links, nodes_of, pair_traffic
from hybridperf.io import InputError, unknown
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array, fresh_views


def of_a_byte(
    model: CollectiveModel, collective: str, *, n_gpus: int, n_nodes: int = 1, **words: str
) -> CollectiveTable:
    """One collective of one byte: a table of one row, `sized` or `carrying` more.

    Args:
        model: the system and what was learned of its collectives.
        collective: its name, as in tables ("all_reduce").
        n_gpus: ranks in all, 2 or more.
        n_nodes: nodes that they are spread over evenly.
        words: `lib, lib_version, variant, dtype, in_place` as in tables, where known; one that is
            empty is assumed as there.

    Raises:
        InputError: when the collective or a word is unknown, or ranks do not divide into nodes.
    """
    for word in words:
        if word not in IMPLEMENTATION:
            told_by = f"collectives are told by {', '.join(IMPLEMENTATION)}"
            raise unknown("column", word, IMPLEMENTATION, told_by)
    row = {"collective": collective, "bytes": 1.0, "n_gpus": n_gpus, "n_nodes": n_nodes, **words}
    good, problem, _ = checked(pd.DataFrame([row]), model.system)
    if problem[0]:
        raise InputError(str(problem[0]))
    return model.kinds(good)[0].table


@dataclasses.dataclass(frozen=True)
class CollectivePricer:
    """Seconds of one collective on a fixed group of ranks, differentiable in bytes and links."""

    per_byte: CollectiveTable  # one row

    @staticmethod
    def of(model: CollectiveModel, collective: str, **place: Any) -> CollectivePricer:
        """A pricer of one collective on one system; arguments as of `of_a_byte`."""
        return CollectivePricer(of_a_byte(model, collective, **place))

    def __call__(self, links: Links, bytes: ArrayLike) -> Array:  # named as in tables
        """Seconds of the collective with a message of so many bytes per rank."""
        table, links = fresh_views((self.per_byte, links))
        # an integer where a float was would compile again
        return _of_bytes(table, links, jnp.array(bytes, jnp.result_type(float)))


@jax.jit
def _of_bytes(per_byte: CollectiveTable, links: Links, bytes_: Array) -> Array:
    return price(per_byte.sized(bytes_), links, jnp).seconds[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AllToAll:
    """One implementation's all-to-all at one scale, where every pair of ranks may have its own
    bytes: the busiest link decides. As arrays for jit, vmap and gradients.
    """

    per_byte: CollectiveTable  # one row
    links: Links  # the calibrated ones
    ranks_per_node: int = dataclasses.field(metadata={"static": True})

    @staticmethod
    def of(model: CollectiveModel, ranks: int, ranks_per_node: int, **words: str) -> AllToAll:
        """The all-to-all of a model among `ranks`, `ranks_per_node` of them on each node.

        Raises:
            InputError: ranks that do not divide into nodes, or another word than `of_a_byte` takes.
        """
        nodes = nodes_of(ranks, ranks_per_node)
        table = of_a_byte(model, "alltoall", n_gpus=ranks, n_nodes=nodes, **words)
        return AllToAll(table, model.links(), ranks_per_node)

    def seconds(self, bytes_: Array, xp: ModuleType = jnp) -> Array:
        """Seconds [] for `bytes_` [n, n]."""
        return self.of_traffic(*pair_traffic(bytes_, self.ranks_per_node, xp), xp)

    def of_traffic(
        self, inside: Array, across: Array, talking: Array, xp: ModuleType = jnp
    ) -> Array:
        """Seconds [...] of what `pair_traffic` counts, [...] each."""
        table, links = fresh_views((self.per_byte, self.links))
        some = [xp.reshape(one, -1) for one in xp.broadcast_arrays(inside, across, talking)]
        found = price(table.carrying(*some, links, xp), links, xp).seconds
        return xp.reshape(found, xp.shape(inside))
