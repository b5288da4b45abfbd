"""Kernels of ops that PyTorch runs one by one, besides what their sizes say: the order in which
tensors lie, and what threads of a row wait for.

A loop goes in the order of its result (`TensorIterator` of PyTorch). A tensor of the same size
whose fastest dimension is another one (patches of an image, turned into words; channels last beside
channels first) is read number by number, each from a sector of its own. Norms and softmax read
rows: they copy such a tensor first (`contiguous` in aten/src/ATen/native/cuda/layer_norm_kernel.cu
and SoftMax.cu). Inductor's orders avoid both.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hybridperf.ops import Copy, Elementwise, Fused, Gather, Norm, OpCall
from hybridperf.ops.embedding import uniform_unique_rows
from hybridperf.ops.images import ImageNorm, ImagePool
from hybridperf.workloads.programs.torch.calls import NAMES, Tensor, TorchCall
from hybridperf.workloads.programs.torch.loops import channels_last, loop

# What a number costs that is read across the order in which it lies: of the bandwidth a share, as
# whole steps of timm's models on an RTX 3090 and 4090 have it, and no less than the instructions
# that wait for it: copies and sums of a ViT in inference on an H100 and an H200 take 50 us for 9.7
# million numbers
_CROSSED_SHARE, _CROSSED_INSTRUCTIONS = 0.69, 110.0
_LINE = 32  # numbers from one to the next, from where on sectors are not shared
_COPIES = (
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "_softmax", "_log_softmax",
)  # fmt: skip
_LARGE = 65536  # numbers; smaller tensors stay in the caches


def in_stored_order(call: TorchCall, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """An op's kernels with what the order of its tensors adds."""
    kind = call.kind.rpartition("::")[2].rstrip("_")
    if kind in _COPIES:
        x = max(call.read, key=lambda one: one.elements, default=None)
        turned = [one for one in call.read if x and one.shape == x.shape and not _in_order(one)]
        copies = [
            OpCall(op) for one in turned for op in _across(one, 0.0, (0.0, 0.0), [one])
        ]  # fmt: skip
        return (*copies, *calls)
    if len(calls) != 1 or not isinstance(calls[0].op, Elementwise | Fused | Copy):
        return calls
    if not call.written or getattr(calls[0].op, "loop", "elementwise") != "elementwise":
        return calls
    result = call.written[0]
    crossed = [one for one in call.read if _crossed(one, result)]
    if not crossed:
        return calls
    work, n = calls[0].op.work(), result.elements
    in_order = float(work.bytes) - result.bytes - sum(one.bytes for one in crossed)
    each = float(work.flops) / n, float(work.transcendentals) / n
    return tuple(map(OpCall, _across(result, in_order, each, crossed)))


def _across(
    result: Tensor, in_order_bytes: float, each: tuple[float, float], crossed: list[Tensor]
) -> tuple[Fused, ...]:
    """A loop that reads some tensors across their order."""
    read = in_order_bytes + sum(one.bytes for one in crossed) / _CROSSED_SHARE
    waits = _CROSSED_INSTRUCTIONS * sum(one.elements for one in crossed)
    (made,) = loop(result, max(read, 0.0), *each, instructions=waits)
    return (replace(made, dtype="fp32"),)  # bytes are counted: on lanes of single precision


# Instructions of a thread block that norms a row, most of them spent waiting for its sums: of the
# row, and of each number; of the kernel that sums gradients of scale and shift over rows the same.
# H100 and H200 take equally long. Fitted to kernels of 28 steps (`calibration/measured`), each
# program left out: a forward pass is 12 % off, the gradients' sums 26 % (by bytes 35 and 45 %).
_ROW, _SUMMED_ROW = (27_000.0, 25.0), (17_000.0, 67.0)
# Bags of lookups (aten/src/ATen/native/cuda/EmbeddingBag.cu): 8,192 warps at once, of 32 numbers
# of a bag each, add its rows one after the other: instructions of a wave, of each row in it; bytes
# of rows that are looked up, and of different ones. Fitted to 260 single ops of an H100 and an
# H200, 14 % off (widths left out 16, lengths of bags 15, the other GPU 17 %); by the bytes of
# different rows alone they were 2.6 times too quick
_WARPS, _WAVE, _ADDED_ROW, _MOVED, _DIFFERENT = 8192.0, 31e6, 3.1e6, 2.15, 0.32


def _bags(call: TorchCall, of: Gather) -> OpCall:
    """Bags of lookups as PyTorch's own kernel sums them."""
    cols, rows, each = float(of.cols), float(of.rows), float(of.element_bytes)
    bags = max(call.made.elements / cols, 1.0)
    different = float(uniform_unique_rows(rows, of.vocab))
    waves = 1.0 + bags * math.ceil(cols / 32) / _WARPS
    moved = _MOVED * (rows + bags) + _DIFFERENT * (different + bags)
    return OpCall(Fused(
        "fp32", elements=bags * cols, flops=rows * cols, transcendentals=0.0,
        bytes_read=(moved - bags) * cols * each, bytes_written=bags * cols * each,
        instructions=waves * (_WAVE + _ADDED_ROW * rows / bags),
    ))  # fmt: skip


def on_images(call: TorchCall, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """Kernels of batch norms and pools as PyTorch has them by themselves; Inductor makes loops."""
    kind = call.kind.rpartition("::")[2]
    backward = kind.endswith("backward")
    x = call.tensor(1 if backward and kind != "cudnn_batch_norm_backward" else 0)
    if not calls or x is None or len(x.shape) < 3:
        return calls
    if "batch_norm" in kind:
        known = "no_training" in kind or call.value(5) is False
        step = "bwd" if backward else "eval" if known else "train"
        planes = float(not channels_last(x))
        pixels = float(math.prod(x.shape[2:]))
        batch, channels = float(x.shape[0]), float(x.shape[1])
        return (OpCall(ImageNorm(x.dtype, batch, channels, pixels, planes, step)),)
    pooled = calls[0].op
    if kind not in NAMES["rules"]["pool"] or not isinstance(pooled, Fused):
        return calls
    other = call.made if not backward else call.single(0)[0]
    made, read = (x, other) if backward else (other, x)
    n, taken = float(made.elements), float(read.elements)
    marks = float(other.elements) if _MARKED.search(kind) else 0.0
    window = float(pooled.summed) or 1.0
    return (OpCall(ImagePool(x.dtype, n, taken, window, marks, float(backward))),)


_MARKED = re.compile("indices|adaptive_max")  # maxima, which remember where they were found


def is_bag(call: TorchCall) -> bool:
    """Whether a call looks up sums of a table's rows."""
    return "embedding_bag" in call.kind and "backward" not in call.kind


def by_rows(call: TorchCall, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """Kernels of layer norms and bags with the instructions of their rows."""
    kind = call.kind.rpartition("::")[2]
    if is_bag(call) and len(calls) == 1 and isinstance(calls[0].op, Gather) and call.written:
        return (_bags(call, calls[0].op),)
    backward = kind == "native_layer_norm_backward"
    if not calls or not (kind == "native_layer_norm" or backward):
        return calls
    last = calls[-1].op
    if isinstance(last, Norm):
        rows, n = float(last.rows), float(last.rows) * float(last.cols)
        work = last.work()
        last = Fused(last.dtype, elements=n, flops=float(work.flops), transcendentals=rows,
                     bytes_read=float(work.bytes) - n * last.element_bytes,
                     bytes_written=n * last.element_bytes)  # fmt: skip
    elif isinstance(last, Fused) and backward:
        rows, n = float(last.summed), float(last.elements)
    else:
        return calls
    of_row, of_number = _SUMMED_ROW if backward else _ROW
    instructions = rows * of_row + n * of_number
    return *calls[:-1], OpCall(replace(last, dtype="fp32", instructions=instructions))


def _crossed(one: Tensor, result: Tensor) -> bool:
    """Whether a loop in the order of `result` jumps from each number of `one` to the next."""
    if one.shape != result.shape or not one.strides or result.elements < _LARGE:
        return False
    wide = [at for at, size in enumerate(result.shape) if size > 1]
    if not wide or len(result.strides) != len(result.shape):
        return False
    fastest = min(wide, key=lambda at: result.strides[at])
    stride = one.strides[fastest]
    return stride >= _LINE and min(one.strides[at] for at in wide) == 1


def _in_order(one: Tensor) -> bool:
    """Whether a tensor lies row by row, or nothing tells."""
    if not one.strides or one.elements < _LARGE:
        return True
    expected = 1
    for size, stride in zip(reversed(one.shape), reversed(one.strides), strict=True):
        if size > 1 and stride != expected:
            return stride < _LINE
        expected *= size
    return True
