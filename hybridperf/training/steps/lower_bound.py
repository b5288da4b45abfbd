"""The least time of a step: its products, what recomputing repeats among them, at the datasheet's
peak, evenly on all devices.

    least seconds = FLOPs / (devices x peak)

Fused attention skips what a causal mask hides, so half of it counts. Where products of layers
multiply in a narrower format than what is around them, the faster of both peaks is taken of all.
"""

from __future__ import annotations

import functools

from hybridperf.hardware import DeviceSpec
from hybridperf.training.steps.peaks import peak_flops_per_s
from hybridperf.workloads.transformer.config import TransformerConfig


def lower_bound_s(config: TransformerConfig, device: DeviceSpec) -> float:
    """Seconds that a step on such devices takes at least; 0 where the device has no peak in its
    formats.
    """
    peak = max(peak_flops_per_s(device, config.dtype, quant) or 0.0 for quant in ("", config.quant))
    return _flops(config) / (config.layout.ranks * peak) if peak else 0.0


@functools.lru_cache(65536)
def _flops(config: TransformerConfig) -> float:
    layout, shape = config.layout, config.shape
    return shape.hardware_flops(
        float(layout.global_batch * shape.seq), layout.recompute, causal=config.attention == "fused"
    )
