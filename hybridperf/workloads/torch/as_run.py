"""What a GPU and its host run of a captured program's ops: what fuses, in which order tensors lie,
and what a launch costs.

Compiled. Inductor (torch/_inductor/scheduler.py) fuses as `workloads/fusion.py` has it: an op joins
the loop that made one of its inputs in the same pass. What the backward pass reads of the forward
pass is written, as in an eager step: Inductor computes some of it again instead, which saves memory
more than time. The optimizer is not compiled. Few channels with many numbers each are summed in
parts, so that all multiprocessors work (`reduction_split_factor` in torch/_inductor/choices.py):
each pass of a batch norm is a kernel of parts, one of their sums, and a loop that reads everything
again (a ResNet-50 on an H100 had 2.5 forward and 2.9 backward). So is that of a group norm, whose
groups and channels are summed apart (as a U-Net on an H200 had them).

Eager. A loop goes in the order of its result (`TensorIterator` of PyTorch). A tensor of the same
size whose fastest dimension is another one (patches of an image, turned into words; channels last
beside channels first) is read number by number, each from a sector of its own. Norms and softmax
read rows: they copy such a tensor first (`contiguous` in
aten/src/ATen/native/cuda/layer_norm_kernel.cu and SoftMax.cu). Inductor's orders avoid both.

Launches, of 24 us on Hopper's hosts. Fitted to 32 eager steps of an H100 and an H200 that wait for
their host, and to what Python needs to issue 20 others, measured once each (`calibration/measured`;
logs, robust): 18 us for a loop, a copy or a reduction of either pass, 40 us for a product,
convolution, attention, norm or lookup's gradient, 52 us for each tensor that is updated (its
gradient is accumulated and let go, the optimizer's lists go over it), 2.3 ms for an optimizer's
step. Each program left out, the former are 16 % off, the latter 22 % (by a rate of each pass,
without updates: 22 % and 61 %). The steps of our own and those of published architectures give the
same two rates by themselves, 16 and 40, 19 and 41 us. Views and convolutions apart did not lessen
it further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hybridperf.model.calls import StepPlace
from hybridperf.ops import (
    Copy,
    Elementwise,
    Fused,
    Gather,
    Norm,
    Op,
    OpCall,
    Reduction,
    RmsNorm,
    Softmax,
)
from hybridperf.ops.embedding import uniform_unique_rows
from hybridperf.workloads.fusion import Kernel, Piece, as_one, joined, readers_of
from hybridperf.workloads.in_program import most_alive_bytes, role_of
from hybridperf.workloads.torch.calls import Tensor, TorchCall
from hybridperf.workloads.torch.loops import loop, resized
from hybridperf.workloads.torch.record import OPTIMIZER, CapturedOp

_LOOPS = (Elementwise, Fused, Copy, Gather, Norm, RmsNorm, Reduction, Softmax)

_OF_PARTS = OpCall(Reduction("fp32", rows=512.0, cols=64.0))  # a launch more than anything

PricedOp = tuple[CapturedOp, tuple[OpCall, ...]]


def fused(ops: Sequence[PricedOp]) -> list[PricedOp]:
    """Kernels of a compiled step; each stands for its last op."""
    kernels = _kernels(ops)
    needed = readers_of(kernels)
    return [_one(kernel, needed) for kernel in kernels]


def compiled_peak_bytes(ops: Sequence[PricedOp], kept_bytes: float) -> float:
    """The most memory that a compiled step takes: `kept_bytes` are there before it, and what a
    kernel writes for others is alive until the last of them.
    """
    kernels = _kernels(ops)
    needed, there, alive = readers_of(kernels), set[int](), dict[int, tuple[float, int, int]]()
    for at, kernel in enumerate(kernels):
        for one in kernel.read:
            if one in alive:
                size, first, _ = alive[one]
                alive[one] = size, first, at
            else:
                there.add(one)
        for one, size in kernel.written.items():
            if one > 0 and one not in there and needed.get(one) != {kernel}:
                most, first, _ = alive.get(one, (size, at, at))
                alive[one] = max(most, size), first, at
    return kept_bytes + most_alive_bytes(alive.values(), len(kernels))


def _kernels(ops: Sequence[PricedOp]) -> list[Kernel]:
    return joined([piece for op, calls in ops for piece in _pieces(op, calls)])


def _taken_apart(op: CapturedOp, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """An op's kernels, or the loops that Inductor makes of it (torch/_decomp/decompositions.py)."""
    kind = op.call.kind.removeprefix("aten::")
    if is_bag(op.call):  # which it calls as it is
        return by_rows(op.call, calls)
    if not kind.startswith("upsample_"):
        return calls
    made = resized(op.call._replace(kind=kind), by_channel=False)
    return tuple(one if isinstance(one, OpCall) else OpCall(one) for one in made)


def _pieces(op: CapturedOp, calls: tuple[OpCall, ...]) -> list[Piece]:
    """An op as Inductor makes loops of it: a norm that is summed in parts is two, of which the
    second waits for the sums of the first.
    """
    whole = _piece(op, _taken_apart(op, calls))
    if not (whole.elements and _in_parts(op, whole.calls[0].op)):
        return [whole]
    n, sums = float(whole.elements), {-op.call.made.storage: 0.0}
    reads = Fused(whole.dtype, elements=n, flops=2 * n, transcendentals=0.0,
                  bytes_read=sum(whole.read.values()), bytes_written=0.0)  # fmt: skip
    first = replace(whole, calls=(OpCall(reads),), written=sums, ends=True)
    return [first, replace(whole, read={**whole.read, **sums})]


def _piece(op: CapturedOp, calls: tuple[OpCall, ...]) -> Piece:
    size = 0  # elements over which it loops, if it is compiled
    compiled = op.phase != OPTIMIZER and not is_bag(op.call)
    if compiled and len(calls) == 1 and isinstance(calls[0].op, _LOOPS):
        # of a lookup only what it makes: its table is not read
        read = [] if isinstance(calls[0].op, Gather) else op.call.read
        size = max((one.elements for one in (*read, *op.call.written)), default=0)
    summed = bool(size) and isinstance(calls[0].op, Reduction)
    tensors = op.call.read or op.call.written
    return Piece(
        op, calls, _read(op, calls), {one.storage: one.bytes for one in _written(op)},
        (op.call.written or tensors)[0].dtype if tensors else "fp32", size, op.phase,
        frozenset(one.elements for one in op.call.written) if summed else frozenset(),
    )  # fmt: skip


def _read(op: CapturedOp, calls: tuple[OpCall, ...]) -> dict[int, float]:
    """Bytes of what an op reads, by storage; of a table that is looked up as many as are found."""
    looked_up = len(calls) == 1 and isinstance(calls[0].op, Gather)
    found: dict[int, float] = {}
    for at, one in enumerate(op.call.read):
        moved = op.call.made.bytes if looked_up and not at else one.bytes
        found[one.storage] = max(found.get(one.storage, 0.0), moved)
    return found


def _written(op: CapturedOp) -> list[Tensor]:
    in_place = op.call.kind.endswith("_") and not op.call.kind.endswith("__")
    return [*op.call.written, *op.call.read[: int(in_place)]]


def _one(kernel: Kernel, needed: dict[int, set[Kernel]]) -> PricedOp:
    """A kernel as its last op with what all of it reads, computes and writes."""
    op, calls = kernel.last.what, kernel.last.calls
    summed = (_OF_PARTS,) * sum(piece.ends for piece in kernel.pieces)
    if len(kernel.pieces) == 1:
        return op, calls + summed
    written = (
        size for one, size in kernel.written.items()
        if not one or needed.get(one, set()) - {kernel} or one not in needed
    )  # fmt: skip
    return op, (as_one(kernel, sum(kernel.read.values()), sum(written)), *summed)


def _in_parts(op: CapturedOp, loop: Op) -> bool:
    """Whether Inductor sums an op's numbers in kernels of their own: of a channel over all images
    of a batch, of groups of channels.
    """
    kind = op.call.kind
    return "group_norm" in kind or (
        "batch_norm" in kind and (isinstance(loop, Norm) or "backward" in kind)
    )


# Of the 32 bytes of a sector, what is moved for one number: neighbours find a part in the caches.
# Copies and sums of a ViT in inference on an H100 and an H200 take 50 us for 9.7 million numbers
_SECTOR_BYTES = 16.0
_LINE = 32  # numbers from one to the next, from where on sectors are not shared
_COPIES = ("native_layer_norm", "native_layer_norm_backward", "_softmax", "_log_softmax")
_LARGE = 65536  # numbers; smaller tensors stay in the caches


def in_stored_order(call: TorchCall, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """An op's kernels with what the order of its tensors adds."""
    kind = call.kind.rpartition("::")[2].rstrip("_")
    if kind in _COPIES:
        x = max(call.read, key=lambda one: one.elements, default=None)
        turned = [one for one in call.read if x and one.shape == x.shape and not _in_order(one)]
        copies = [
            OpCall(op) for one in turned
            for op in loop(one, one.bytes + _SECTOR_BYTES * one.elements, 0, 0)
        ]  # fmt: skip
        return (*copies, *calls)
    if len(calls) != 1 or not isinstance(calls[0].op, Elementwise | Fused | Copy):
        return calls
    if not call.written or getattr(calls[0].op, "loop", "elementwise") != "elementwise":
        return calls
    result = call.written[0]
    crossed = sum(_crossed(one, result) for one in call.read)
    if not crossed:
        return calls
    work, n = calls[0].op.work(), result.elements
    read_bytes = float(work.bytes) - result.bytes + crossed * _SECTOR_BYTES * n
    each = float(work.flops) / n, float(work.transcendentals) / n
    return tuple(OpCall(op) for op in loop(result, read_bytes, *each))


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


_LOOP, _LIBRARY = 0.75, 1.65
_LIBRARIES = ("norm", "rnn", "embedding_", "sort", "index_put")  # parts of names, besides products
_ANOTHER = 0.2  # a further kernel of the same op: 5 us, fitted with them
_COMPILED = 0.67  # a kernel that Inductor's code launches: 16.3 us in two prompts on an H200
_UPDATED, _OPTIMIZER = 2.15, 96.0  # a tensor that is updated; an optimizer's step


def launch_of(op: CapturedOp, kernel: OpCall, another: bool, compiled: bool) -> StepPlace:
    """The place of a launch: of an op's first kernel, or of another one of it."""
    named = any(one in op.call.kind for one in _LIBRARIES)
    library = named or role_of(kernel) in ("gemm", "attention")
    eager = _LIBRARY if library and op.phase != OPTIMIZER else _LOOP
    inductor = compiled and op.phase != OPTIMIZER
    own = _COMPILED if inductor else eager
    another &= not (inductor and isinstance(kernel.op, Reduction))  # which has its own launch
    return StepPlace("launch", (_ANOTHER if another else own) + _ANOTHER * (kernel.times - 1.0))


def launch_of_update(updated: int) -> StepPlace:
    """What a step's update of so many tensors takes its host besides. Steps follow one another:
    while a host is busy with an update, the GPU runs what was issued before, so that no kernel of
    the same step waits for it.
    """
    return StepPlace("launch", _OPTIMIZER + _UPDATED * updated)
