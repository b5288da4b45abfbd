"""The links of a system: datasheet rates inside a node and between nodes."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import jax
import numpy as np

from hybridperf.hardware import SystemSpec
from hybridperf.io.namespace import Array

_KIND_BY_WORD = {  # the first word found in a system's `intra_link` decides
    "bridge": "nvlink_bridge",
    "nvlink": "nvlink",
    "pcie": "pcie",
    "shared memory": "shared_memory",
}


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
