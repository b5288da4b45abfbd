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

    channels first     a convolution's images are turned before (`nchwToNhwcKernel` in a trace), and
                       its result after, unless its kernel is one pixel or it has groups
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.io.namespace import Array
from hybridperf.ops.base import Op
from hybridperf.ops.convolution import Convolution
from hybridperf.ops.gemm import Product
from hybridperf.ops.roofline import Work

_WHOLE = 8  # numbers of 16 bits that are 16 bytes
_SEEN = ("Hopper", "Blackwell")
_BELIEVED_SHARE = 0.8 / 1.3  # of the peak
_CYCLES = 132 * 1.98e9  # multiprocessors x clock of the H200
# flops of a multiprocessor and cycle, by kernel
ROWS: Mapping[str, float] = {
    "rows of 2 bytes": 115e12 / _CYCLES,
    "rows of 4 bytes": 270e12 / _CYCLES,
}
CHANNELS_FIRST = "channels first"
KERNELS = (*ROWS, CHANNELS_FIRST)
_TURNING_SHARE = 0.75  # of the memory's bandwidth: as loops reach it
# standard deviations of logs: as products of the H200 scatter, and as the belief is wide
_SEEN_WIDTH, _BELIEVED_WIDTH = 0.25, 0.35


def row_kernel(op: Op, tokens: str) -> str:
    """Which kernel multiplies rows as they lie; empty: the usual one.

    `tokens`: the dimension, if any, that no row has.
    """
    if not isinstance(op, Product) or DTYPE_BYTES[op.dtype] != DTYPE_BYTES["fp16"]:
        return ""
    widths = [float(getattr(op, name)) for name in ("m", "n", "k") if name != tokens]
    if not any(width % _WHOLE for width in widths):
        return ""
    return "rows of 2 bytes" if any(width % 2 for width in widths) else "rows of 4 bytes"


def image_kernel(op: Convolution, strides: Sequence[int]) -> str:
    """Which kernel convolves images as they lie; empty: the usual one.

    `strides`: of the images, elements from one to the next of each dimension; empty: not known.
    """
    together = len(strides) < 4 or strides[1] == 1 or float(op.c_in) == 1
    pixels = float(op.kh) * (float(op.kw) or float(op.kh))
    if together or pixels == 1 or float(op.groups) > 1:
        return ""
    return CHANNELS_FIRST if DTYPE_BYTES[op.dtype] == DTYPE_BYTES["fp16"] else ""


def order_seconds(
    kernel: str, work: Work, device: DeviceSpec, peak_flops_per_s: Array,
    memory_bytes_per_s: Array, xp: Any = np,
) -> Array:  # fmt: skip
    """Seconds beside those of the same op on operands that lie well.

    Args:
        kernel: of `KERNELS`.
        work: of the op.
        device: that runs it.
        peak_flops_per_s: of its matrix units, in the op's numbers.
        memory_bytes_per_s: of its memory.
        xp: NumPy, or JAX where anything is traced.
    """
    if kernel == CHANNELS_FIRST:
        return 2 * work.bytes / (_TURNING_SHARE * memory_bytes_per_s)
    rate = _BELIEVED_SHARE * peak_flops_per_s
    if _is_seen(device):
        cycles_per_s = float(device.multiprocessors or 0) * float(device.clock_hz or 0)
        rate = xp.minimum(ROWS[kernel] * cycles_per_s, rate)
    return work.flops / rate


def order_width(kernel: str, device: DeviceSpec) -> float:
    """How wide what `order_seconds` adds makes the log of a product's seconds."""
    if kernel not in ROWS:
        return 0.0
    return _SEEN_WIDTH if _is_seen(device) else _BELIEVED_WIDTH


def order_remark(kernel: str, device: DeviceSpec) -> str:
    """What was assumed of a product's rows; empty of all other kernels."""
    if kernel not in ROWS:
        return ""
    source = (
        "by what an H200 took of such" if _is_seen(device) else "believed from a step of nanoGPT"
    )
    return f"rows of a product do not begin at multiples of 16 bytes: {source}"


def _is_seen(device: DeviceSpec) -> bool:
    known = device.multiprocessors is not None and device.clock_hz is not None
    return known and device.arch.startswith(_SEEN)
