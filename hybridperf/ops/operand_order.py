"""Products and convolutions whose operands do not lie as kernels for tensor cores read them.

Products in 16 bits whose rows do not begin at multiples of 16 bytes: what loads operands for the
tensor cores cannot take such rows whole, and kernels of earlier generations run instead.

    rows of 2 bytes    an odd number of them: loaded number by number
    rows of 4 bytes    a multiple of 2 or 4 numbers: loaded asynchronously, in small parts

Such a product takes as long as its arithmetic at a rate of theirs beside what an aligned one takes.
On Hopper the rates are those of 31 and of 49 products that an H200 ran (`calibration/measured`,
"layer"), within 18 and 14 % in the median; small products lose a factor of two, large ones of three
and eight. Blackwell is assumed to run old kernels as Hopper does, per multiprocessor and cycle. On
all other devices the belief that nanoGPT's step gives: 25 % of it came from a vocabulary of 50304
in place of 50257 on an A100 (its author, 2023), whose head is about a fifth of the step, (0.2 +
0.25) / 0.2 = 2.3 times; the head's own rate is taken as four fifths of the peak.

    images plane by plane    are turned before a convolution (`nchwToNhwcKernel` in a trace), and
                             its result after, unless its kernel is one pixel or it has groups;
                             `images.py` has its own turns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.io.namespace import Array, floats
from hybridperf.ops.base import Op
from hybridperf.ops.convolution import Convolution
from hybridperf.ops.gemm import Product
from hybridperf.ops.roofline import Work

_WHOLE = 8  # numbers of 16 bits that are 16 bytes
_SEEN = (9, 0)  # compute capability: from here on as it was seen there
_BELIEVED_SHARE = 0.8 / 1.3  # of the peak
_CYCLES = 132 * 1.98e9  # multiprocessors x clock of the H200
# flops of a multiprocessor and cycle, by kernel
ROWS: Mapping[str, float] = {
    "rows of 2 bytes": 115e12 / _CYCLES,
    "rows of 4 bytes": 270e12 / _CYCLES,
}
# of the peak where sums of 32 bits halve it: such rows take 1 / 0.55 of the arithmetic's time in
# whole steps of timm's MLP-Mixers, of 49 tokens, on an RTX 3090 and 4090
_HALF_RATE_SHARE = 1 / (1 / 0.55 - 1)
_TURNING_SHARE = 0.75  # of the memory's bandwidth: as loops reach it
# standard deviations of logs: as products of the H200 scatter, and as the belief is wide
_SEEN_WIDTH, _BELIEVED_WIDTH = 0.25, 0.35


def row_kernel(op: Op, tokens: str) -> str:
    """Which kernel multiplies rows as they lie; empty: the usual one. No row has the dimension
    `tokens`.
    """
    if not isinstance(op, Product) or DTYPE_BYTES[op.dtype] != DTYPE_BYTES["fp16"]:
        return ""
    widths = [float(getattr(op, name)) for name in ("m", "n", "k") if name != tokens]
    if not any(width % _WHOLE for width in widths):
        return ""
    return "rows of 2 bytes" if any(width % 2 for width in widths) else "rows of 4 bytes"


def is_channels_first(op: Convolution, strides: Sequence[int]) -> bool:
    """Whether a convolution's images lie plane by plane, by their dimensions' strides in elements;
    where these are not known (empty), they do not.
    """
    return len(strides) > 3 and strides[1] != 1 and float(op.c_in) > 1


def turning_seconds(op: Convolution, memory_bytes_per_s: Array) -> Array:
    """Seconds in which a convolution's images are turned, beside kernels measured without; 0 where
    they lie pixel by pixel already.
    """
    if DTYPE_BYTES[op.dtype] != DTYPE_BYTES["fp16"]:
        return 0.0
    dense = (floats(op.groups) == 1) & (floats(op.kh * op.filled().kw) > 1)
    turned = dense & (floats(op.channels_first) > 0)
    return turned * 2.0 * op.work().bytes / (_TURNING_SHARE * memory_bytes_per_s)


def order_seconds(
    kernel: str, work: Work, device: DeviceSpec, peak_flops_per_s: Array, xp: Any = np
) -> Array:
    """Seconds of a product beside those of the same one on rows that begin well.

    Args:
        kernel: of `ROWS`.
        work: of the op.
        device: that runs it.
        peak_flops_per_s: of its matrix units, in the op's numbers.
        xp: NumPy, or JAX where anything is traced.
    """
    share = _BELIEVED_SHARE if device.fp32_sums_rate == 1.0 else _HALF_RATE_SHARE
    rate = share * peak_flops_per_s
    if _is_seen(device):
        cycles_per_s = float(device.multiprocessors or 0) * float(device.clock_hz or 0)
        rate = xp.minimum(ROWS[kernel] * cycles_per_s, rate)
    return work.flops / rate


def order_belief(device: DeviceSpec) -> tuple[float, str]:
    """(how wide what `order_seconds` adds makes the log of a product's seconds, what was assumed of
    its rows).
    """
    seen = _is_seen(device)
    source = "by what an H200 took of such" if seen else "believed from a step of nanoGPT"
    remark = f"rows of a product do not begin at multiples of 16 bytes: {source}"
    return _SEEN_WIDTH if seen else _BELIEVED_WIDTH, remark


def _is_seen(device: DeviceSpec) -> bool:
    known = device.multiprocessors is not None and device.clock_hz is not None
    return known and (device.compute_capability or (0, 0)) >= _SEEN
