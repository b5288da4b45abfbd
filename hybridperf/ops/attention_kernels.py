"""Which fused attention a framework trains with. Tables of measured attention are of the fastest
kernels that serve prompts today; a framework of an earlier year runs an earlier generation, on the
same device up to three times slower.

    flash1    FlashAttention 1 and its Triton port (2022 to mid 2023): 25 to 40 % of an A100's peak,
              and half of flash2's rate
    flash2    FlashAttention 2 (mid 2023 on, PyTorch's own): 50 to 73 % of an A100's peak, 35 % of
              an H100's
    sdpa      what PyTorch's scaled_dot_product_attention runs: cuDNN's kernels on Hopper, which are
              priced by a law of their own (`law_seconds`), FlashAttention 2 on what is older

Shares are those of forward and backward together on long sequences, as their authors publish them
(Dao, FlashAttention-2, 2023; Shah et al., FlashAttention-3, 2024); of a range the geometric mean.
None was fitted to measured steps. What depends on sizes is the op model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array, floats
from hybridperf.ops.attention import PrefillAttention
from hybridperf.ops.base import OpCall

_AMPERE, _HOPPER = "Ampere sm_80", "Hopper sm_90"
_FLASH_2_HOPPER = 0.35
_OVER_FLASH_1 = 2.0  # "around 2x speedup compared to FlashAttention"
# of the matrix units' peak, by kernel and architecture
_FLASH_2_AMPERE = math.sqrt(0.50 * 0.73)
SHARES: Mapping[str, Mapping[str, float]] = {
    "flash1": {_AMPERE: math.sqrt(0.25 * 0.40), _HOPPER: _FLASH_2_HOPPER / _OVER_FLASH_1},
    "flash2": {_AMPERE: _FLASH_2_AMPERE, _HOPPER: _FLASH_2_HOPPER},
    "sdpa": {_AMPERE: _FLASH_2_AMPERE},
}
# Head sizes that a kernel takes at most: "less than or equal to 128" (PyTorch 2.0's warning,
# aten/src/ATen/native/transformers/cuda/sdp_utils.h). Models of wider ones ran unfused, as Pythia
# 1B's settings, alone of theirs, have it (pythia-1b.yml of github.com/EleutherAI/pythia).
WIDEST_HEADS: Mapping[str, int] = {"flash1": 128}
_WHOLE_SEQUENCES = ("prefill_attention", "encoder_attention")  # groups

# cuDNN's forward kernels on an H200 (`calibration/measured`, an H100's are alike): seven shapes of
# PyTorch's steps with heads of 64 (23 to 358 us) and one of 8,192 tokens with heads of 128 lie
# within 14 % of a least time and so much per score of a tile of 128 x 128, at the boost clock;
# with dropout they take twice as long. Wider heads are fed by their products.
_CUDNN_LEAST_S, _CUDNN_SCORE_S, _CUDNN_TILE, _CUDNN_HEAD_DIM = 6e-6, 0.70e-12, 128.0, 128.0
BY_LAW = "attention by what cuDNN's kernels took on an H100 and an H200"
_CUDNN_CYCLES = 132 * 1.98e9  # multiprocessors x clock where that was seen


def published_share(kernel: str, arch: str) -> float | None:
    """Share of the peak that a kernel reaches on an architecture; None where unpublished."""
    return SHARES.get(kernel, {}).get(arch)


def has_law(kernel: str, group: str, device: DeviceSpec) -> bool:
    """Whether a kernel's forward pass has a measured law on a device, for ops of a group."""
    known = device.clock_hz is not None and device.multiprocessors is not None
    return kernel == "sdpa" and device.arch == _HOPPER and known and group in _WHOLE_SEQUENCES


def law_seconds(op: Any, device: DeviceSpec, peak_flops_per_s: Array, xp: Any = np) -> Array:
    """Seconds of a forward pass by the law (`has_law`); of one without a window."""
    queries = floats(op.q_len)
    keys = floats(getattr(op, "kv_len", 0.0))
    keys = xp.where(keys > 0, keys, queries)
    rows, cols = (xp.ceil(n / _CUDNN_TILE) for n in (queries, keys))
    # causal: of the last queries, as many keys before them as there are
    upper = xp.minimum(rows, cols)
    causal = floats(getattr(op, "causal", 0.0)) > 0
    tiles = rows * cols - xp.where(causal, upper * (upper - 1) / 2, 0.0)
    scores = op.batch * op.heads * tiles * _CUDNN_TILE**2
    score_s = _CUDNN_SCORE_S * xp.maximum(1.0, floats(op.head_dim) / _CUDNN_HEAD_DIM)
    own = _CUDNN_CYCLES / ((device.multiprocessors or 1) * (device.clock_hz or 1.0))
    # a clock that is varied moves both
    faster = peak_flops_per_s / device.peak(op.dtype, "matrix")
    arithmetic_s = op.work().flops / peak_flops_per_s
    return _CUDNN_LEAST_S + xp.maximum(scores * score_s * own / faster, arithmetic_s)


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
