"""Bytes on each rank of a training step by what they hold; does it fit, and by how much."""

from hybridperf.workloads.memory.activations import (
    MEMORY_PRIORS,
    LayerActivations,
    MemoryKnobs,
    layer_activations,
)
from hybridperf.workloads.memory.use import (
    USABLE,
    MemoryUse,
    ModelStates,
    chance_fits,
    in_flight,
    memory,
    memory_of,
    model_states,
    sharded_bytes,
)

__all__ = [
    "MEMORY_PRIORS", "USABLE", "LayerActivations", "MemoryKnobs", "MemoryUse", "ModelStates",
    "chance_fits", "in_flight", "layer_activations", "memory", "memory_of", "model_states",
    "sharded_bytes",
]  # fmt: skip
