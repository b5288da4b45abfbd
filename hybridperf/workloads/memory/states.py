"""Bytes per parameter of what a step keeps between iterations (Rajbhandari et al., ZeRO,
1910.02054).

Mixed precision with Adam: 2 of weights, 2 of gradients, 12 of the optimizer (an fp32 copy of the
weights, two moments), 16 in all; each part is divided over d data ranks from its ZeRO stage on:
optimizer from 1, gradients from 2, weights from 3.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io import unknown
from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.transformer.counts import MOMENTS

_FP32_BYTES = 4.0
_MIN_WEIGHT_BYTES = 2.0  # fp8 recipes keep weights in 16 bits and cast them as they are used


class ModelStates(NamedTuple):
    """Bytes per parameter."""

    weight: float
    gradient: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self)


def model_states(
    dtype: str = "bf16", optimizer: str = "adam", grad_bytes: float | None = None
) -> ModelStates:
    """States of training in a dtype; `grad_bytes` None: as the weights, 4 where added in fp32."""
    if optimizer not in MOMENTS:
        raise unknown("optimizer", optimizer, MOMENTS, f"known are {', '.join(MOMENTS)}")
    weight = max(element_bytes(dtype), _MIN_WEIGHT_BYTES)
    master = _FP32_BYTES if weight < _FP32_BYTES else 0.0
    gradient = weight if grad_bytes is None else grad_bytes
    return ModelStates(weight, gradient, master + _FP32_BYTES * MOMENTS[optimizer])


def sharded_bytes(
    parameters: Array, states: ModelStates, zero: Array, shards: Array
) -> tuple[Array, Array, Array]:
    """Bytes of (weights, gradients, optimizer) on a rank, over `shards` from their stage on."""
    xp = array_module(parameters, zero, shards)
    weights, gradients, optimizer = (
        parameters * each / xp.where(zero >= stage, shards, 1)
        for each, stage in zip(states, (3, 2, 1), strict=True)
    )
    return weights, gradients, optimizer


def element_bytes(dtype: str) -> float:
    """Bytes of an activation: fp8 and fp4 recipes keep 16-bit ones."""
    return max(DTYPE_BYTES[canonical_dtype(dtype)], 2.0)
