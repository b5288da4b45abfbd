"""Which fused attention a framework trains with. Tables of measured attention are of the fastest
kernels that serve prompts today; a framework of an earlier year runs an earlier generation, on the
same device up to three times slower.

Their shares of the peak stand in `attention_kernels.toml`, and those that go by cycles of scores
(`scores.py`). What depends on sizes is the op model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hybridperf.hardware import DeviceSpec
from hybridperf.io import shipped_toml
from hybridperf.ops.attention import PrefillAttention
from hybridperf.ops.base import Op, OpCall
from hybridperf.ops.scores import goes_by_scores

_SHIPPED = shipped_toml("hybridperf.ops", "attention_kernels.toml")
# of the matrix units' peak, by kernel and architecture
SHARES: Mapping[str, Mapping[str, float]] = {
    name: {arch: math.sqrt(low * high) for arch, (low, high) in kernel["share"].items()}
    for name, kernel in _SHIPPED["kernels"].items()
}
WIDEST_HEADS: Mapping[str, int] = {  # head sizes that a kernel takes at most
    name: kernel["widest"] for name, kernel in _SHIPPED["kernels"].items() if "widest" in kernel
}
# architectures on which a kernel's forward pass goes by cycles of scores (`scores.py`)
LAWS: Mapping[str, Sequence[str]] = {
    name: kernel.get("law", ()) for name, kernel in _SHIPPED["kernels"].items()
}


def published_share(kernel: str, arch: str) -> float | None:
    """Share of the peak that a kernel reaches on an architecture; None where unpublished."""
    return SHARES.get(kernel, {}).get(arch)


def has_law(kernel: str, op: Op, device: DeviceSpec) -> bool:
    """Whether a kernel's forward pass goes by cycles of scores on a device."""
    known = device.clock_hz is not None and device.multiprocessors is not None
    return device.arch in LAWS.get(kernel, ()) and known and goes_by_scores(op)


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
