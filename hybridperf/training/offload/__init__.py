"""Memory beyond the GPU's own: what may lie in CPU memory or on NVMe, and what fetching it costs a
step (ZeRO-Infinity, Rajbhandari et al. 2021).
"""

from hybridperf.training.offload.step import (
    KINDS,
    Movable,
    Offload,
    StageOffload,
    Tier,
    movable,
    node_tiers,
    offload,
    system_tiers,
)

__all__ = [
    "KINDS", "Movable", "Offload", "StageOffload", "Tier", "movable", "node_tiers", "offload",
    "system_tiers",
]  # fmt: skip
