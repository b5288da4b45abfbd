"""Who sends how much in a collective: bytes through each link, and bus factors.

A collective runs over n = g N ranks, g on each of N nodes. `bytes` S means: all_reduce, broadcast,
reduce the buffer; all_gather the whole output; reduce_scatter the whole input; alltoall one rank's
send buffer; sendrecv the message. Levels are composed: reduce-scatter inside a node, all-reduce
across, all-gather inside, so an all-reduce moves 2 (g - 1) / g S through each rank's link and
2 (N - 1) / N S through each node's network (Thakur et al., "Optimization of Collective
Communication Operations in MPICH", 2005). Bus bandwidth is S / t times the bus factor
(NVIDIA/nccl-tests, doc/PERFORMANCE.md).

Everything here takes numbers, NumPy or JAX arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType

import jax
import numpy as np

from hybridperf.hardware import SystemSpec
from hybridperf.io import unknown
from hybridperf.io.namespace import Array

_KIND_BY_WORD = {  # the first word found in a system's `intra_link` decides
    "bridge": "nvlink_bridge",
    "nvlink": "nvlink",
    "pcie": "pcie",
    "shared memory": "shared_memory",
}


@dataclasses.dataclass(frozen=True)
class Collective:
    """How a collective divides its bytes S; n ranks in all, g per node, N nodes."""

    bus_factor: Callable[[Array], Array]  # of n
    inside: Callable[[Array, Array], Array]  # share of S through one rank's link, from (g, N)
    across: Callable[[Array, Array], Array]  # share of S through one node's network, from (g, N)
    # only one rank of a node talks to another node, so one rank's share of the network carries it
    one_rank_across: bool = False


def _ring(n: Array) -> Array:
    return (n - 1) / n


def _one_if_many(ranks: Array) -> Array:
    """1 where there is anyone to send to, 0 where not."""
    return 1.0 * (ranks > 1)


def _one(n: Array) -> Array:
    del n
    return 1.0


_HALF_ALL_REDUCE = Collective(_ring, lambda g, nodes: _ring(g), lambda g, nodes: _ring(nodes))
_WHOLE_BUFFER = Collective(
    _one, lambda g, nodes: _one_if_many(g), lambda g, nodes: _one_if_many(nodes)
)
COLLECTIVES = {
    "all_reduce": Collective(
        lambda n: 2 * _ring(n), lambda g, nodes: 2 * _ring(g), lambda g, nodes: 2 * _ring(nodes)
    ),
    "all_gather": _HALF_ALL_REDUCE,
    "reduce_scatter": _HALF_ALL_REDUCE,
    # S / n goes from each rank to each: g - 1 of its partners are in its node, and g ranks share
    # the network for the rest
    "alltoall": Collective(
        _ring, lambda g, nodes: (g - 1) / (g * nodes), lambda g, nodes: g * _ring(nodes)
    ),
    "broadcast": _WHOLE_BUFFER,
    "reduce": _WHOLE_BUFFER,
    "sendrecv": dataclasses.replace(_WHOLE_BUFFER, one_rank_across=True),
}
_ALIASES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "all_to_all": "alltoall", "a2a": "alltoall", "send_recv": "sendrecv", "p2p": "sendrecv",
    "bcast": "broadcast",
}  # fmt: skip


def canonical_collective(name: str) -> str:
    """Our name of a collective; `InputError` for one we do not know."""
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    found = _ALIASES.get(plain, plain)
    if found not in COLLECTIVES:
        known = [*COLLECTIVES, *_ALIASES]
        raise unknown("collective", name, known, f"known are {', '.join(COLLECTIVES)}")
    return found


def shares(
    names: np.ndarray, ranks_per_node: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(share of bytes through a rank's link, through a node's network, ranks that share it) [N].

    `names` [N] are canonical.
    """
    inside, across = np.empty(len(names)), np.empty(len(names))
    talking = np.array(ranks_per_node, np.float64)
    for name in dict.fromkeys(names):
        at, kind = names == name, COLLECTIVES[name]
        inside[at] = kind.inside(ranks_per_node[at], nodes[at])
        across[at] = kind.across(ranks_per_node[at], nodes[at])
        if kind.one_rank_across:
            talking[at] = 1.0
    return inside, across, talking


def bus_factor(collective: str, ranks: Array) -> Array:
    """Bus bandwidth over algorithm bandwidth S / t, e.g. 2 (n - 1) / n for an all-reduce."""
    return COLLECTIVES[canonical_collective(collective)].bus_factor(ranks)


def bus_bytes_per_s(collective: str, bytes: Array, ranks: Array, time_s: Array) -> Array:
    """Bus bandwidth of a measured or predicted time."""
    return bytes / time_s * bus_factor(collective, ranks)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Links:
    """Rates per direction; leaves may be replaced or carry a trailing batch axis."""

    intra_bytes_per_s: Array  # [] of one rank to the others of its node
    rank_bytes_per_s: Array  # [] of one rank to other nodes when it talks alone
    node_bytes_per_s: Array  # [] of a whole node to other nodes

    @staticmethod
    def of(system: SystemSpec) -> Links:
        """A rank reaches its own share of its node's network cards, and at least one whole card."""
        node = system.node_bytes_per_s
        alone = max(system.nic_bytes_per_s, node / system.accelerators_per_node)
        return Links(*map(np.float64, (system.intra_bytes_per_s, min(alone, node), node)))

    def seconds(
        self, inside_bytes: Array, across_bytes: Array, talking: Array, xp: ModuleType = np
    ) -> Array:
        """Seconds [N, 2] inside nodes and across; `talking` ranks of a node share its network."""
        rate = xp.minimum(self.node_bytes_per_s, self.rank_bytes_per_s * talking)
        return xp.stack([inside_bytes / self.intra_bytes_per_s, across_bytes / rate], -1)


def link_of(system: SystemSpec) -> str:
    """What kind of link joins the accelerators of a node."""
    text = system.intra_link.lower().replace("no nvlink", "")
    return next((kind for word, kind in _KIND_BY_WORD.items() if word in text), "other")
