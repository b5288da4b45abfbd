"""Memory beyond the GPU's own: what may lie in CPU memory or on NVMe, and what fetching it costs a
step (ZeRO-Infinity's question).
"""

from hybridperf.training.offload.intensity import (
    activation_intensity,
    activation_working_bytes,
    checkpoint_bytes,
    efficiency,
    model_state_bytes,
    needed_bytes_per_s,
    optimizer_intensity,
    parameter_intensity,
    step_flops,
    weight_working_bytes,
)
from hybridperf.training.offload.movable import KINDS, Movable, movable
from hybridperf.training.offload.step import Offload, StageOffload, offload
from hybridperf.training.offload.tier import Tier, node_tiers, system_tiers

__all__ = [
    "KINDS", "Movable", "Offload", "StageOffload", "Tier", "activation_intensity",
    "activation_working_bytes", "checkpoint_bytes", "efficiency", "model_state_bytes", "movable",
    "needed_bytes_per_s", "node_tiers", "offload", "optimizer_intensity", "parameter_intensity",
    "step_flops", "system_tiers", "weight_working_bytes",
]  # fmt: skip
