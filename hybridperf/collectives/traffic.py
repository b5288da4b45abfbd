"""Who sends how much in a table of collectives: bytes through each link, steps, and bus factors.

A collective runs over n = g N ranks, g on each of N nodes. What its `bytes` S means and how it
divides them stands in its file of `algorithms/`. Bus bandwidth is S / t times the bus factor
(NVIDIA/nccl-tests, doc/PERFORMANCE.md).

A bridge joins two accelerators: a ring through more ranks of such a node is as slow as the host's
bus between its pairs.

Everything here takes numbers, NumPy or JAX arrays.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType

import jax
import numpy as np

from hybridperf.collectives.algorithms import ALIASES, COLLECTIVES
from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError, unknown
from hybridperf.io.namespace import Array

# The first word found in a system's `intra_link` decides. Fabrics of accelerators' own (Infinity
# Fabric, ICI, NeuronLink) are priced as NVLink is, the only one whose collectives taught the prior;
# Ethernet inside a node is none.
_KIND_BY_WORD = {
    "bridge": "nvlink_bridge", "nvlink": "nvlink", "pcie": "pcie", "shared memory": "shared_memory",
    "roce": "other", "ethernet": "other",
}  # fmt: skip
_BRIDGED = 2  # accelerators that an NVLink bridge joins


def canonical_collective(name: str) -> str:
    """Our name of a collective; `InputError` for one we do not know."""
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    found = ALIASES.get(plain, plain)
    if found not in COLLECTIVES:
        known = [*COLLECTIVES, *ALIASES]
        raise unknown("collective", name, known, f"known are {', '.join(COLLECTIVES)}")
    return found


def sent(
    names: np.ndarray, ranks_per_node: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(share of bytes through a rank's link, through a node's network, ranks that share it [N];
    steps [N, 4], see `Collective.steps`). `names` [N] are canonical.
    """
    (inside, across, talking), steps = np.empty((3, len(names))), np.empty((len(names), 4))
    for name in dict.fromkeys(names):
        at, kind = names == name, COLLECTIVES[name]
        place = ranks_per_node[at], nodes[at]
        inside[at], across[at], steps[at] = (
            kind.inside(*place),
            kind.across(*place),
            kind.steps(*place),
        )
        talking[at] = 1.0 if kind.one_rank_across else ranks_per_node[at]
    return inside, across, talking, steps


def unavoidable(names: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """[N] share of the bytes of `sent` that no algorithm, nor a switch that reduces, avoids.

    A rank of an all-reduce sends and receives its buffer once at least; a ring does so
    2 (n - 1) / n times (Patarasu and Yuan, JPDC 2009).
    """
    return np.where(names == "all_reduce", ranks / np.maximum(2 * (ranks - 1), 1), 1.0)


def by_host(system: SystemSpec, ranks_per_node: np.ndarray) -> np.ndarray:
    """[N] 1 where ranks of a node meet over the host's bus, too, else 0."""
    bridged = link_of(system) == "nvlink_bridge"
    return np.where((np.asarray(ranks_per_node) > _BRIDGED) & bridged, 1.0, 0.0)


def nodes_of(ranks: int, ranks_per_node: int) -> int:
    """How many nodes; `InputError` where ranks do not divide into them."""
    if ranks_per_node < 1 or ranks % ranks_per_node:
        raise InputError(
            f"{ranks} ranks do not divide into nodes of {ranks_per_node}; mend ranks_per_node"
            " or the matrix"
        )
    return ranks // ranks_per_node


def pair_traffic(
    bytes_: Array, ranks_per_node: int, xp: ModuleType = np
) -> tuple[Array, Array, Array]:
    """(bytes through the busiest rank's link, the busiest node's network, ranks that share it) of
    an all-to-all with `bytes_` [n, n] from rank to rank.

    Rank i sends `bytes_[i, j]` to rank j; the diagonal stays at home. n = g N ranks stand node by
    node, g on each of N nodes. One rank alone reaches only its share of the node's network:

        inside   = max over ranks of max(sent, received) within the node
        across   = max over nodes of max(sent, received) to and from other nodes
        talking  = across / (the same of the busiest rank)

    Raises:
        InputError: ranks do not divide into nodes.
    """
    n, g = len(bytes_), ranks_per_node
    nodes_of(n, g)
    node = np.arange(n) // g
    together, alone = node[:, None] == node, np.eye(n, dtype=bool)
    within, beyond = xp.where(together & ~alone, bytes_, 0), xp.where(together, 0, bytes_)
    inside = xp.maximum(within.sum(1).max(), within.sum(0).max())
    sent, received = beyond.sum(1), beyond.sum(0)
    of_rank = xp.maximum(sent.max(), received.max())
    across = xp.maximum(sent.reshape(-1, g).sum(1).max(), received.reshape(-1, g).sum(1).max())
    talking = xp.where(of_rank > 0, across, g) / xp.where(of_rank > 0, of_rank, 1)
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
    """Rates per direction, and what sending takes; leaves may be replaced or carry a trailing batch
    axis.
    """

    intra_bytes_per_s: Array  # [] of one rank to the others of its node
    rank_bytes_per_s: Array  # [] of one rank to other nodes when it talks alone
    node_bytes_per_s: Array  # [] of a whole node to other nodes
    host_link_bytes_per_s: Array  # [] of one rank to its host: what joins bridged pairs
    link_latency_s: Array  # [] all seconds of the closed form but those of bytes grow by it

    @staticmethod
    def of(system: SystemSpec) -> Links:
        """A rank reaches its own share of its node's network cards, and at least one whole card."""
        node = system.node_bytes_per_s
        alone = max(system.nic_bytes_per_s, node / system.accelerators_per_node)
        rates = (system.intra_bytes_per_s, min(alone, node), node, system.host_link_bytes_per_s)
        return Links(*map(np.float64, (*rates, system.latency_s)))

    def inside_rate(self, by_host: Array, xp: ModuleType = np) -> Array:
        """Bytes/s of a rank to the others of its node [N]."""
        slower = xp.minimum(self.intra_bytes_per_s, self.host_link_bytes_per_s)
        return xp.where(by_host > 0, slower, self.intra_bytes_per_s)

    def seconds(
        self, inside_bytes: Array, across_bytes: Array, talking: Array, by_host: Array = 0.0,
        xp: ModuleType = np,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Seconds inside nodes and across [N] each; `talking` ranks of a node share its network."""
        across = xp.minimum(self.node_bytes_per_s, self.rank_bytes_per_s * talking)
        return inside_bytes / self.inside_rate(by_host, xp), across_bytes / across


def link_of(system: SystemSpec) -> str:
    """What kind of link joins the accelerators of a node."""
    return _kind_said(system) or "nvlink"


def is_own_fabric(system: SystemSpec) -> bool:
    """Whether a node's links are of a kind of which no system taught the prior."""
    return not _kind_said(system)


def _kind_said(system: SystemSpec) -> str:
    text = system.intra_link.lower().replace("no nvlink", "")
    return next((kind for word, kind in _KIND_BY_WORD.items() if word in text), "")
