"""The peak that MFU is a share of, of the number format in which products of layers multiply; the
lower bound of a step.

An fp8 or fp4 recipe multiplies narrow what it keeps in 16 bits between ops (`ops/quantise.py`), so
its activations' dtype does not say which peak counts.

The lower bound of a step: its products, with recomputation, at the datasheet's peak, evenly on all
devices: seconds = FLOPs / (devices x peak). Fused attention skips what a causal mask hides, so half
of it counts. Where products of layers multiply in a narrower format than other ops, the faster of
both peaks is taken of all.
"""

from __future__ import annotations

import functools

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.ops.quantise import SCHEMES
from hybridperf.workloads.transformer.config import TransformerConfig


def arithmetic(dtype: str, quant: str) -> str:
    """The format that products multiply in; `quant` "" where they do in the activations' dtype."""
    return (SCHEMES[quant].arithmetic if quant else "") or dtype


def peak_flops_per_s(device: DeviceSpec, dtype: str, quant: str) -> float | None:
    """Of a device's matrix units in that format; None where it has none of it."""
    try:
        return device.peak(arithmetic(dtype, quant), "matrix")
    except InputError:
        return None


def lower_bound_s(config: TransformerConfig, device: DeviceSpec) -> float:
    """Seconds below which no step on such devices can go; 0 where they have no such peak."""
    peak = max(peak_flops_per_s(device, config.dtype, quant) or 0.0 for quant in ("", config.quant))
    return _flops(config) / (config.layout.ranks * peak) if peak else 0.0


@functools.lru_cache(65536)
def _flops(config: TransformerConfig) -> float:
    layout, shape = config.layout, config.shape
    return shape.hardware_flops(
        float(layout.global_batch * shape.seq), layout.recompute, causal=config.attention == "fused"
    )
