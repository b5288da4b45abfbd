"""Which fused attention a framework trains with. Tables of measured attention are of the fastest
kernels that serve prompts today; a framework of an earlier year runs an earlier generation, on the
same device up to three times slower.

    flash1    FlashAttention 1 and its Triton port (2022 to mid 2023): 25 to 40 % of an A100's peak,
              and half of flash2's rate
    flash2    FlashAttention 2 (mid 2023 on, PyTorch's own): 50 to 73 % of an A100's peak, 35 % of
              an H100's
    sdpa      what PyTorch's scaled_dot_product_attention runs: cuDNN's kernels on Hopper, which are
              priced by a law of their own (`measured_seconds`), FlashAttention 2 on what is older

Shares are those of forward and backward together on long sequences, as their authors publish them
(Dao, FlashAttention-2, 2023; Shah et al., FlashAttention-3, 2024); of a range the geometric mean.
None was fitted to measured steps. What depends on sizes is the op model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.ops.attention import EncoderAttention, PrefillAttention
from hybridperf.ops.base import Op, OpCall

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
KERNELS = ("", *SHARES)  # empty: the op model's own

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


def measured_seconds(kernel: str, op: Op, device: DeviceSpec) -> float | None:
    """Seconds of a forward pass of a kernel that we measured; None where its law is not known."""
    if not isinstance(op, PrefillAttention | EncoderAttention):
        return None
    if kernel != "sdpa" or device.arch != _HOPPER:
        return None
    windowed = float(getattr(op, "window", 0.0)) > 0
    if windowed or device.clock_hz is None or device.multiprocessors is None:
        return None
    queries = float(np.asarray(op.q_len))
    keys = float(np.asarray(getattr(op, "kv_len", 0.0))) or queries
    rows, cols = (math.ceil(n / _CUDNN_TILE) for n in (queries, keys))
    tiles = float(rows * cols)
    if getattr(op, "causal", False):  # of the last queries, as many keys before them as there are
        rows = min(rows, cols)
        tiles -= rows * (rows - 1) / 2
    scores = float(np.asarray(op.batch * op.heads)) * tiles * _CUDNN_TILE**2
    score_s = _CUDNN_SCORE_S * max(1.0, float(np.asarray(op.head_dim)) / _CUDNN_HEAD_DIM)
    own = _CUDNN_CYCLES / (device.multiprocessors * device.clock_hz)
    arithmetic_s = float(np.asarray(op.work().flops)) / device.peak(op.dtype, "matrix")
    return _CUDNN_LEAST_S + max(scores * score_s * own, arithmetic_s)


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
    """Seconds of a kernel, forward and backward, over those of `seconds`; 1 where unpublished."""
    share = published_share(kernel, arch)
    if share is None:
        return 1.0
    attention = PrefillAttention(dtype, 1.0, _LONG_SEQUENCE, _HEADS, _HEAD_DIM)
    once = OpCall(attention, issued_apart=True)
    flops = (1 + _BACKWARD_FLOPS) * float(once.op.work().flops)
    return flops / (share * device.peak(dtype, "matrix")) / (seconds(once) * (1 + BACKWARD))
