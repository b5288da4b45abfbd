"""The links of a system as formulas read them: rates of the datasheet,
inside a node and out of it.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import numpy as np

from hybridperf.hardware import SystemSpec


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["intra_bytes_per_s", "rank_bytes_per_s", "node_bytes_per_s"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Links:
    """Rates per direction. Leaves may be replaced (a made-up fabric) or carry a trailing batch
    axis.
    """

    intra_bytes_per_s: Any  # [] of one rank to the others of its node
    rank_bytes_per_s: Any  # [] of one rank to other nodes when it talks alone
    node_bytes_per_s: Any  # [] of a whole node to other nodes

    @staticmethod
    def of(system: SystemSpec) -> Links:
        """A rank reaches its own share of its node's network cards, and at least one whole card."""
        alone = max(system.nic_bytes_per_s, system.node_bytes_per_s / system.accelerators_per_node)
        return Links(
            *map(
                np.float64,
                (
                    system.intra_bytes_per_s,
                    min(alone, system.node_bytes_per_s),
                    system.node_bytes_per_s,
                ),
            )
        )

    def seconds(
        self, inside_bytes: Any, across_bytes: Any, talking: Any, xp: ModuleType = np
    ) -> Any:
        """[N, 2] seconds inside nodes and across them; `talking`: ranks of a node that share its
        network.
        """
        rate = xp.minimum(self.node_bytes_per_s, self.rank_bytes_per_s * talking)
        return xp.stack([inside_bytes / self.intra_bytes_per_s, across_bytes / rate], -1)


def link_of(system: SystemSpec) -> str:
    """What kind of link joins the accelerators of a node."""
    text = system.intra_link.lower().replace("no nvlink", "")
    for word, kind in (
        ("bridge", "nvlink_bridge"),
        ("nvlink", "nvlink"),
        ("pcie", "pcie"),
        ("shared memory", "shared_memory"),
    ):
        if word in text:
            return kind
    return "other"
