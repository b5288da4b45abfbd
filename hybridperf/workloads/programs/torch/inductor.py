"""Kernels and memory of a compiled step: what Inductor makes of captured ops.

Inductor (torch/_inductor/scheduler.py) fuses as `programs/fusion.py` has it: an op joins the loop
that made one of its inputs in the same pass. What the backward pass reads of the forward pass is
written, as in an eager step: Inductor computes some of it again instead, which saves memory more
than time. The optimizer is not compiled. Few channels with many numbers each are summed in parts,
so that all multiprocessors work (`reduction_split_factor` in torch/_inductor/choices.py): each pass
of a batch norm is a kernel of parts, one of their sums, and a loop that reads everything again (a
ResNet-50 on an H100 had 2.5 forward and 2.9 backward). So is that of a group norm, whose groups and
channels are summed apart (as a U-Net on an H200 had them).

Images lie pixel by pixel in all of a graph, or stay as they are (`decide_layout_opt` in
torch/_inductor/graph.py): pixel by pixel, unless convolutions in groups of several channels, or
such as make few channels of many, would lose by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridperf.ops import (
    Convolution,
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
from hybridperf.workloads.programs.fusion import Kernel, Piece, as_one, joined, readers_of
from hybridperf.workloads.programs.in_program import lives, most_alive_bytes
from hybridperf.workloads.programs.torch.calls import Tensor
from hybridperf.workloads.programs.torch.eager import by_rows, is_bag
from hybridperf.workloads.programs.torch.loops import resized
from hybridperf.workloads.programs.torch.record import BACKWARD, FORWARD, OPTIMIZER, CapturedOp

PricedOp = tuple[CapturedOp, tuple[OpCall, ...]]

_LOOPS = (Elementwise, Fused, Copy, Gather, Norm, RmsNorm, Reduction, Softmax)

# flops pixel by pixel over those plane by plane, as Inductor counts convolutions in inference; in a
# graph that trains one of them decides
_IN_GROUPS, _SMALL, _TO_FEWER, _USUAL = 1.358, 0.783, 0.725, 0.823
_SMALL_CHANNELS, _FEW_CONVOLUTIONS = 64, 300  # ops of a graph for each convolution
_OF_PARTS = OpCall(Reduction("fp32", rows=512.0, cols=64.0))  # a launch more than anything


def compiled(ops: Sequence[PricedOp], kept_bytes: float) -> tuple[list[PricedOp], float]:
    """(kernels of a compiled step, each standing for its last op; the most memory that it takes,
    where `kept_bytes` are there before it).
    """
    kernels = joined([piece for op, calls in ops for piece in _pieces(op, calls)])
    needed = readers_of(kernels)
    return [_one(kernel, needed) for kernel in kernels], kept_bytes + _alive_bytes(kernels, needed)


def stays_in_planes(ops: Sequence[PricedOp]) -> bool:
    """Whether Inductor leaves the images of a graph as they are, instead of pixel by pixel."""
    found = [
        (op, float(calls[0].op.work().flops))
        for op, calls in ops
        if op.phase == FORWARD and calls and isinstance(calls[0].op, Convolution)
    ]
    if len(ops) >= _FEW_CONVOLUTIONS * len(found):
        return True
    kinds = list[float]()
    for op, _ in found:
        c_out, c_in, kernel = op.call.single(1)[0].shape[:3]  # of a group
        small = c_out <= _SMALL_CHANNELS and c_in <= _SMALL_CHANNELS
        kinds.append(
            _IN_GROUPS if c_in > 1 and c_in < op.call.single(0)[0].shape[1]
            else _SMALL if small
            else _TO_FEWER if 2 * c_out <= c_in and kernel > 1 else _USUAL
        )  # fmt: skip
    if any(op.phase == BACKWARD for op, _ in ops):
        return not {_IN_GROUPS, _TO_FEWER}.isdisjoint(kinds) or {*kinds} == {_SMALL}
    flops = [flops for _, flops in found]
    return sum(kind * one for kind, one in zip(kinds, flops, strict=True)) > sum(flops)


def _alive_bytes(kernels: Sequence[Kernel], needed: dict[int, set[Kernel]]) -> float:
    """The most at once of what kernels write for others, alive until the last of them."""
    there, sizes, used = set[int](), dict[int, float](), list[set[int]]()
    for kernel in kernels:
        there |= kernel.read.keys() - sizes
        made = {
            one: max(size, sizes.get(one, 0.0)) for one, size in kernel.written.items()
            if one > 0 and one not in there and needed.get(one) != {kernel}
        }  # fmt: skip
        sizes |= made
        used.append((kernel.read.keys() & sizes) | made.keys())
    spans = ((sizes[one], *span) for one, span in lives(used).items())
    return most_alive_bytes(spans, len(kernels))


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
    looped = op.phase != OPTIMIZER and not is_bag(op.call)
    if looped and len(calls) == 1 and not calls[0].variant and isinstance(calls[0].op, _LOOPS):
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
