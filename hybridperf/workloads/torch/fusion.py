"""What `torch.compile` makes of a captured program: loops that follow one another in one kernel.

Inductor (torch/_inductor/scheduler.py) fuses as `workloads/fusion.py` has it: an op joins the loop
that made one of its inputs in the same pass.

What the backward pass reads of the forward pass is written, as in an eager step: Inductor computes
some of it again instead, which saves memory more than time. The optimizer is not compiled.

Few channels with many numbers each are summed in parts, so that all multiprocessors work: each pass
of a batch norm has two kernels more, of the parts and of their sums (`Reduction.num_splits` in
torch/_inductor/ir.py; a ResNet-50 on an H100 had 2.5 forward and 2.9 backward).
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridperf.ops import (
    Copy,
    Elementwise,
    Fused,
    Gather,
    Norm,
    OpCall,
    Reduction,
    RmsNorm,
    Softmax,
)
from hybridperf.workloads.fusion import Kernel, Piece, as_one, joined, readers_of
from hybridperf.workloads.torch.calls import Tensor
from hybridperf.workloads.torch.record import OPTIMIZER, CapturedOp

_LOOPS = (Elementwise, Fused, Copy, Gather, Norm, RmsNorm, Reduction, Softmax)

_OF_PARTS = OpCall(Reduction("fp32", rows=512.0, cols=64.0))  # a launch more than anything

PricedOp = tuple[CapturedOp, tuple[OpCall, ...]]


def fused(ops: Sequence[PricedOp]) -> list[PricedOp]:
    """Kernels of a compiled step; each stands for its last op."""
    kernels = joined([_piece(op, calls) for op, calls in ops])
    needed = readers_of(kernels)
    return [_one(kernel, needed) for kernel in kernels]


def _piece(op: CapturedOp, calls: tuple[OpCall, ...]) -> Piece:
    size = _elements(op, calls)
    summed = bool(size) and isinstance(calls[0].op, Reduction)
    tensors = op.call.read or op.call.written
    return Piece(
        op, calls, _read(op, calls), {one.storage: one.bytes for one in _written(op)},
        (op.call.written or tensors)[0].dtype if tensors else "fp32", size, op.phase,
        frozenset(one.elements for one in op.call.written) if summed else frozenset(),
    )  # fmt: skip


def _elements(op: CapturedOp, calls: tuple[OpCall, ...]) -> int:
    """Over how many elements an op loops; 0 of what is no loop that is compiled."""
    if op.phase == OPTIMIZER or len(calls) != 1 or not isinstance(calls[0].op, _LOOPS):
        return 0
    return max((one.elements for one in _looped(op, calls[0])), default=0)


def _looped(op: CapturedOp, call: OpCall) -> list[Tensor]:
    """Tensors of the size of the loop: of a lookup only what it makes, its table is not read."""
    return op.call.written if isinstance(call.op, Gather) else [*op.call.read, *op.call.written]


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
    summed = (_OF_PARTS,) * (2 * sum(map(_in_parts, kernel.pieces)))
    if len(kernel.pieces) == 1:
        return op, calls + summed
    written = (
        size for one, size in kernel.written.items()
        if not one or needed.get(one, set()) - {kernel} or one not in needed
    )  # fmt: skip
    return op, (as_one(kernel, sum(kernel.read.values()), sum(written)), *summed)


def _in_parts(piece: Piece) -> bool:
    """Whether a piece sums over all images of a batch."""
    kind = piece.what.call.kind
    return "batch_norm" in kind and (isinstance(piece.calls[0].op, Norm) or "backward" in kind)
