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
from hybridperf.io import unknown
from hybridperf.io.namespace import Array

_KIND_BY_WORD = {  # the first word found in a system's `intra_link` decides
    "bridge": "nvlink_bridge",
    "nvlink": "nvlink",
    "pcie": "pcie",
    "shared memory": "shared_memory",
}
_BRIDGED = 2  # accelerators that an NVLink bridge joins


def canonical_collective(name: str) -> str:
    """Our name of a collective; `InputError` for one we do not know."""
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    found = ALIASES.get(plain, plain)
    if found not in COLLECTIVES:
        known = [*COLLECTIVES, *ALIASES]
        raise unknown("collective", name, known, f"known are {', '.join(COLLECTIVES)}")
    return found


def shares(
    names: np.ndarray, ranks_per_node: np.ndarray, nodes: np.ndarray, system: SystemSpec
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(share of bytes through a rank's link, through a node's network, ranks that share it) [N].

    `names` [N] are canonical. The first is as if all went over the system's `intra_link`: `detour`
    times the bytes where the host's bus is slower.
    """
    inside, across = np.empty(len(names)), np.empty(len(names))
    talking = np.array(ranks_per_node, np.float64)
    for name in dict.fromkeys(names):
        at, kind = names == name, COLLECTIVES[name]
        inside[at] = kind.inside(ranks_per_node[at], nodes[at])
        across[at] = kind.across(ranks_per_node[at], nodes[at])
        if kind.one_rank_across:
            talking[at] = 1.0
    return inside * detour(system, ranks_per_node), across, talking


def detour(system: SystemSpec, ranks_per_node: np.ndarray) -> np.ndarray:
    """[N] how many times longer a byte is on its way inside a node than over its `intra_link`."""
    bridged = link_of(system) == "nvlink_bridge"
    longer = max(system.intra_bytes_per_s / system.host_link_bytes_per_s, 1.0) if bridged else 1.0
    return np.where(np.asarray(ranks_per_node) > _BRIDGED, longer, 1.0)


def steps(names: np.ndarray, ranks_per_node: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Steps [N, 4], see `Collective.steps`; `names` [N] are canonical."""
    out = np.empty((len(names), 4))
    for name in dict.fromkeys(names):
        at = names == name
        out[at] = COLLECTIVES[name].steps(ranks_per_node[at], nodes[at])
    return out


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
