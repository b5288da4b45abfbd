"""Which fused attention a framework trains with. Tables of measured attention are of the fastest
kernels that serve prompts today; a framework of an earlier year runs an earlier generation, on the
same device up to three times slower.

Their shares of the peak, and one law, stand in `attention_kernels.toml`. What depends on sizes is
the op model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io import shipped_toml
from hybridperf.io.namespace import Array, floats
from hybridperf.ops.attention import PrefillAttention
from hybridperf.ops.base import OpCall

_SHIPPED = shipped_toml("hybridperf.ops", "attention_kernels.toml")
# of the matrix units' peak, by kernel and architecture
SHARES: Mapping[str, Mapping[str, float]] = {
    name: {arch: math.sqrt(low * high) for arch, (low, high) in kernel["share"].items()}
    for name, kernel in _SHIPPED["kernels"].items()
}
WIDEST_HEADS: Mapping[str, int] = {  # head sizes that a kernel takes at most
    name: kernel["widest"] for name, kernel in _SHIPPED["kernels"].items() if "widest" in kernel
}
_WHOLE_SEQUENCES = ("prefill_attention", "encoder_attention")  # groups
LAW: Mapping[str, Any] = _SHIPPED["law"]  # of one kernel's forward pass, where it was seen


def published_share(kernel: str, arch: str) -> float | None:
    """Share of the peak that a kernel reaches on an architecture; None where unpublished."""
    return SHARES.get(kernel, {}).get(arch)


def has_law(kernel: str, group: str, device: DeviceSpec) -> bool:
    """Whether a kernel's forward pass has a measured law on a device, for ops of a group."""
    known = device.clock_hz is not None and device.multiprocessors is not None
    is_seen = (kernel, device.arch) == (LAW["kernel"], LAW["arch"])
    return is_seen and known and group in _WHOLE_SEQUENCES


def law_seconds(op: Any, device: DeviceSpec, peak_flops_per_s: Array, xp: Any = np) -> Array:
    """Seconds of a forward pass by the law (`has_law`); of one without a window."""
    queries = floats(op.q_len)
    keys = floats(getattr(op, "kv_len", 0.0))
    keys = xp.where(keys > 0, keys, queries)
    rows, cols = (xp.ceil(n / LAW["tile"]) for n in (queries, keys))
    # causal: of the last queries, as many keys before them as there are
    upper = xp.minimum(rows, cols)
    causal = floats(getattr(op, "causal", 0.0)) > 0
    tiles = rows * cols - xp.where(causal, upper * (upper - 1) / 2, 0.0)
    scores = op.batch * op.heads * tiles * LAW["tile"] ** 2
    score_s = LAW["score_s"] * xp.maximum(1.0, floats(op.head_dim) / LAW["head_dim"])
    seen = LAW["multiprocessors"] * LAW["clock_hz"]
    own = seen / ((device.multiprocessors or 1) * (device.clock_hz or 1.0))
    # a clock that is varied moves both
    faster = peak_flops_per_s / device.peak(op.dtype, "matrix")
    arithmetic_s = op.work().flops / peak_flops_per_s
    return LAW["least_s"] + xp.maximum(scores * score_s * own / faster, arithmetic_s)


# Backward over forward of fused attention: five products (scores again, and gradients of values,
# weights, queries, keys) where the forward has two, at a lower rate: FlashAttention 2 reaches up to
# 73 % of an A100 forward and 63 % backward (Dao 2023): 2.5 x 73 / 63
BACKWARD = 2.9
_BACKWARD_FLOPS = 2.5
# causal attention on which published shares are reached
_LONG_SEQUENCE, _HEADS, _HEAD_DIM = (16384.0, 16.0, 128.0)


def published_factor(
    kernel: str, dtype: str, arch: str, device: DeviceSpec, seconds: Callable[[OpCall], float]
) -> float:
    """Seconds of a kernel of published share, forward and backward, over those of `seconds`."""
    attention = PrefillAttention(dtype, 1.0, _LONG_SEQUENCE, _HEADS, _HEAD_DIM)
    once = OpCall(attention, issued_apart=True)
    flops = (1 + _BACKWARD_FLOPS) * float(once.op.work().flops)
    return (
        flops
        / (SHARES[kernel][arch] * device.peak(dtype, "matrix"))
        / (seconds(once) * (1 + BACKWARD))
    )
