"""Bytes on each rank of a training step: weights, gradients, optimizer, activations, buffers; does
it fit, and by how much.
"""

from hybridperf.workloads.memory.activations import LayerActivations, layer_activations
from hybridperf.workloads.memory.in_flight import in_flight
from hybridperf.workloads.memory.knobs import MEMORY_PRIORS, MemoryKnobs
from hybridperf.workloads.memory.states import ModelStates, model_states, sharded_bytes
from hybridperf.workloads.memory.use import MemoryUse, memory

__all__ = [
    "MEMORY_PRIORS", "LayerActivations", "MemoryKnobs", "MemoryUse", "ModelStates", "in_flight",
    "layer_activations", "memory", "model_states", "sharded_bytes",
]  # fmt: skip
