"""Bytes on each rank of a training step: weights, gradients, optimizer, activations, buffers; does it fit, and by how much."""

import sys
from types import ModuleType
from typing import Any

from hybridperf.memory.activations import LayerActivations, layer_activations
from hybridperf.memory.in_flight import in_flight
from hybridperf.memory.knobs import MEMORY_PRIORS, MemoryKnobs
from hybridperf.memory.states import ModelStates, model_states, sharded_bytes
from hybridperf.memory.use import MemoryUse, memory

__all__ = [
    "MEMORY_PRIORS", "LayerActivations", "MemoryKnobs", "MemoryUse", "ModelStates", "in_flight", "layer_activations", "memory",
    "model_states", "sharded_bytes",
]  # fmt: skip


class _Room(ModuleType):
    """Called, the room is its main function: `hp.memory(shape, layout)`, though `import hybridperf.memory` names the room so."""

    def __call__(self, *arguments: Any, **named: Any) -> MemoryUse:
        return memory(*arguments, **named)


sys.modules[__name__].__class__ = _Room
