"""What `torch.compile` makes of a captured program: loops that follow one another in one kernel.

Inductor (torch/_inductor/scheduler.py) makes every elementwise op, cast, copy, norm, softmax,
lookup of rows and sum a loop, and fuses a loop into one that it reads from where both run over
equally many elements, or one sums what the other makes. Products, convolutions, attention and
whatever has an order of its own (sorts, scatters) stay kernels of their libraries. Here:

    an op joins the loop that made one of its inputs, if it runs in the same pass over as many
    elements, or over as many as sums of that loop are, and nothing outside of it lies between
    bytes read     = tensors of others, each once
    bytes written  = tensors that others read, the backward pass included

What the backward pass reads of the forward pass is written, as in an eager step: Inductor computes
some of it again instead, which saves memory more than time. The optimizer is not compiled.
"""

from __future__ import annotations

import dataclasses
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
from hybridperf.workloads.torch.calls import Tensor
from hybridperf.workloads.torch.record import OPTIMIZER, CapturedOp

_LOOPS = (Elementwise, Fused, Copy, Gather, Norm, RmsNorm, Reduction, Softmax)

PricedOp = tuple[CapturedOp, tuple[OpCall, ...]]


@dataclasses.dataclass(eq=False)
class _Kernel:
    """Ops of one kernel."""

    ops: list[PricedOp]
    phase: str
    elements: int  # over which it loops; 0: no loop that is compiled
    readers: dict[_Kernel, None] = dataclasses.field(default_factory=dict)  # of what it makes
    sums: set[int] = dataclasses.field(default_factory=set)  # how many it makes of them


def fused(ops: Sequence[PricedOp]) -> list[PricedOp]:
    """Kernels of a compiled step; each stands for its last op."""
    writer: dict[int, _Kernel] = {}  # of each storage
    kernels: list[_Kernel] = []
    for op, calls in ops:
        made_by = [writer[one.storage] for one in op.call.read if one.storage in writer]
        size = _elements(op, calls)
        joined = next((one for one in reversed(made_by) if _joins(one, op, size, made_by)), None)
        if joined is None:
            joined = _Kernel([], op.phase, size)
            kernels.append(joined)
        joined.ops.append((op, calls))
        if size and isinstance(calls[0].op, Reduction):
            joined.sums |= {one.elements for one in op.call.written}
        for one in made_by:
            if one is not joined:
                one.readers[joined] = None
        writer |= {one.storage: joined for one in _written(op) if one.storage}
    # where the last op of a kernel stood
    place = {id(op): at for at, (op, _) in enumerate(ops)}
    kernels.sort(key=lambda one: place[id(one.ops[-1][0])])
    needed = _read_by_others(kernels)
    return [_one(kernel, needed) for kernel in kernels]


def _elements(op: CapturedOp, calls: tuple[OpCall, ...]) -> int:
    """Over how many elements an op loops; 0 of what is no loop that is compiled."""
    if op.phase == OPTIMIZER or len(calls) != 1 or not isinstance(calls[0].op, _LOOPS):
        return 0
    return max((one.elements for one in _looped(op, calls[0])), default=0)


def _looped(op: CapturedOp, call: OpCall) -> list[Tensor]:
    """Tensors of the size of the loop: of a lookup only what it makes, its table is not read."""
    return op.call.written if isinstance(call.op, Gather) else [*op.call.read, *op.call.written]


def _joins(kernel: _Kernel, op: CapturedOp, size: int, made_by: list[_Kernel]) -> bool:
    alike = size == kernel.elements or size in kernel.sums
    others = {one for one in made_by if one is not kernel}
    return bool(size and alike) and kernel.phase == op.phase and not _waits(others, kernel)


def _waits(others: set[_Kernel], kernel: _Kernel) -> bool:
    """Whether any of some kernels waits for another, through any between: the newest of its readers
    are followed first, since who asks is new, too.
    """
    seen, ahead = {kernel}, [kernel] if others else []
    while ahead:
        for one in ahead.pop().readers:
            if one in others:
                return True
            if one not in seen:
                seen.add(one)
                ahead.append(one)
    return False


def _written(op: CapturedOp) -> list[Tensor]:
    in_place = op.call.kind.endswith("_") and not op.call.kind.endswith("__")
    return [*op.call.written, *op.call.read[: int(in_place)]]


def _read_by_others(kernels: Sequence[_Kernel]) -> dict[int, set[int]]:
    """By storage, which kernels read it."""
    found: dict[int, set[int]] = {}
    for kernel in kernels:
        for op, _ in kernel.ops:
            for one in op.call.read:
                found.setdefault(one.storage, set()).add(id(kernel))
    return found


def _one(kernel: _Kernel, needed: dict[int, set[int]]) -> PricedOp:
    """A kernel as its last op with what all of it reads, computes and writes."""
    last, calls = kernel.ops[-1]
    if len(kernel.ops) == 1:
        return last, calls
    made = {one.storage: one for op, _ in kernel.ops for one in _written(op)}
    read: dict[int, float] = {}
    for op, (call,) in kernel.ops:
        for one in op.call.read:
            if one.storage not in made:
                table = isinstance(call.op, Gather) and one is op.call.read[0]
                moved = op.call.made.bytes if table else one.bytes
                read[one.storage] = max(read.get(one.storage, 0.0), moved)
    others = {id(kernel)}
    written = [
        one.bytes for storage, one in made.items()
        if not storage or needed.get(storage, set()) - others or storage not in needed
    ]  # fmt: skip
    works = [call.op.work() for _, (call,) in kernel.ops]
    loop = Fused(
        last.call.made.dtype, elements=float(kernel.elements),
        flops=float(sum(work.flops for work in works)),
        transcendentals=float(sum(work.transcendentals for work in works)),
        bytes_read=float(sum(read.values())), bytes_written=float(sum(written)),
    )  # fmt: skip
    return last, (OpCall(loop),)
