"""Bytes that a served model takes on each GPU, and how many tokens its cache holds beside them.

    cache = (usable share of the memory - weights - workspace) / bytes of a token

A token of latent attention is one vector for all heads, whole on each tensor-parallel GPU; layers
with a window keep that many tokens and no more, scans a state of fixed size per sequence.
"""

from __future__ import annotations

import dataclasses

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.workloads.serving.deployment import Deployment, weight_bytes
from hybridperf.workloads.transformer.counts import LayerKind

# of a GPU's memory: 0.9 is vLLM's --gpu-memory-utilization and near it in the others; where weights
# leave little room people raise it. With 0.9 published deployments would not have started
USABLE = 0.93
WORKSPACE_BYTES = 3e9  # activations, CUDA graphs, communicators: assumed, 2 to 6 GB are told
_STATE_BYTES = 4.0


@dataclasses.dataclass(frozen=True)
class ServingMemory:
    """Of the fullest GPU."""

    weights: float
    token: float  # bytes of the cache for each token of a sequence
    sequence: float  # and for each sequence, however long

    def cached_tokens(self, memory_bytes: float) -> float:
        """Tokens that the cache of an attention rank holds; below zero: the weights do not fit."""
        free = USABLE * memory_bytes - self.weights - WORKSPACE_BYTES
        return free / max(self.token, 1e-9)

    def sequences(self, memory_bytes: float, tokens: float) -> float:
        """Sequences of so many tokens that an attention rank holds."""
        free = USABLE * memory_bytes - self.weights - WORKSPACE_BYTES
        return max(free, 0.0) / (self.token * tokens + self.sequence)

    def needed(self, sequences: float, tokens: float) -> float:
        """Bytes with so many sequences of so many tokens on an attention rank."""
        cache = sequences * (self.token * tokens + self.sequence)
        return self.weights + WORKSPACE_BYTES + cache


def serving_memory(served: Deployment) -> ServingMemory:
    """Of one engine, by its shape and how it is shared out."""
    shape = served.shape
    layers = sum(kind.count * _weights(served, kind) for kind in shape.layer_kinds) / served.pp
    outer = (shape.embedding_parameters + shape.head_parameters) / served.tp * DTYPE_BYTES["bf16"]
    weights = layers + (outer if served.pp == 1 else outer / 2)
    token = sequence = 0.0
    for kind in shape.layer_kinds:
        each, state = _kept(served, kind)
        if kind.mixer == "window":
            sequence += kind.count * each * shape.window
        else:
            token += kind.count * each
        sequence += kind.count * state
    if served.drafted:
        token *= (shape.layers + 1) / shape.layers
        weights += _weights(served, shape.layer_kinds[-1])
    return ServingMemory(weights, token / served.pp, sequence / served.pp)


def _weights(served: Deployment, kind: LayerKind) -> float:
    own, tp = kind.parameters, served.tp
    attention, mlp = weight_bytes(served.of_attention()), weight_bytes(served.quant)
    kv = own.kv / min(tp, served.shape.key_heads)
    dense = (own.heads / tp + kv) * attention + own.whole * DTYPE_BYTES["bf16"]
    dense += own.ffn / tp * (attention if kind.experts else mlp)
    experts = (own.experts + own.experts_whole) / served.expert_ranks
    return dense + experts * weight_bytes(served.of_experts())


def _kept(served: Deployment, kind: LayerKind) -> tuple[float, float]:
    """(bytes of a token, of a sequence) in a layer's cache."""
    shape, each = served.shape, DTYPE_BYTES[served.kv_dtype]
    if kind.mixer == "mlp":
        return 0.0, 0.0
    if kind.mixer == "scan" and shape.scan is not None:
        scan = shape.scan
        return 0.0, scan.heads / served.tp * scan.head_dim * scan.state * _STATE_BYTES
    if shape.latent is not None:
        latent = shape.latent
        return (latent.kv_rank + latent.rotary_dim + latent.index_dim) * each, 0.0
    return 2.0 * max(shape.key_heads / served.tp, 1.0) * shape.dim * each, 0.0
