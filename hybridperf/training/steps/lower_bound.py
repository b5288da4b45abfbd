"""The lower bound of a step: its products, with recomputation, at the datasheet's peak, evenly on
all devices.

    seconds = FLOPs / (devices x peak)

Fused attention skips what a causal mask hides, so half of it counts. Where products of layers
multiply in a narrower format than other ops, the faster of both peaks is taken of all.
"""

from __future__ import annotations

import functools

from hybridperf.hardware import DeviceSpec
from hybridperf.training.steps.peaks import peak_flops_per_s
from hybridperf.workloads.transformer.config import TransformerConfig


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
