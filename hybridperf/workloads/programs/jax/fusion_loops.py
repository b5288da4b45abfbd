"""Which operands a fused loop reads with a stride.

A CPU runs a loop fusion over its result in memory order and computes each element from whatever it
needs. An operand whose neighbours along the loop lie far apart (a transpose inside the fusion, a
reduction over a slow dimension) costs a cache line per element, and the line's other elements are
needed only after all faster loops have run once more: the memory spanned meanwhile must stay cached
for the line to be still there.

To find such operands, one step of every loop, innermost first, is followed backwards from the
result to each parameter: through elementwise instructions unchanged, through transposes and
broadcasts by their dimension lists, through bitcasts by its distance in memory. Each parameter then
knows how many bytes it moves per step of each loop.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from hybridperf.ops.movement import CACHE_LINE_BYTES
from hybridperf.workloads.programs.jax.hlo import TABLES, Computation, Instruction, Shape
from hybridperf.workloads.programs.jax.hlo_cost import ARITHMETIC, TRANSCENDENTAL, window_sizes

_Move = tuple[int, int]  # (dimension, elements stepped along it)


@dataclasses.dataclass(frozen=True)
class _Loop:
    """One loop of the nest."""

    extent: int  # steps
    # what one step moves: (instruction, move there, elements it is read for)
    starts: tuple[tuple[Instruction, _Move, float], ...]


def strided_reads(fused: Computation) -> tuple[float, float]:
    """(reads that take a cache line each, bytes spanned until those lines' neighbours are read)."""
    by_name = fused.by_name
    loops, reads = _loops(fused), dict[str, float]()
    # bytes that each parameter moves per step of each loop, innermost first
    strides = [_strides(loop, by_name, reads) for loop in loops]
    total, span = 0.0, 0.0
    for parameter in (one for one in fused.instructions if one.opcode == "parameter"):
        steps = [of_loop.get(parameter.name, 0.0) for of_loop in strides]
        moving = [pair for pair in zip(steps, loops, strict=True) if pair[0] > 0]
        if not moving or moving[0][0] < CACHE_LINE_BYTES:
            continue
        total += reads.get(parameter.name, 0.0)
        far = itertools.takewhile(lambda pair: pair[0] >= CACHE_LINE_BYTES, moving)
        covered = sum(((loop.extent - 1) * stride for stride, loop in far), CACHE_LINE_BYTES)
        span += min(covered, parameter.bytes)
    return total, span


def loop_shape(fused: Computation) -> dict[str, float]:
    """Columns of a fused op: steps along its fastest dimension, and what it sums over."""
    loops, summing = _loops(fused), _summing(fused)
    if summing is None:
        return {"inner": float(loops[0].extent) if loops else 1.0}
    source = fused.by_name[summing.operands[0]].shape
    along = _summing_loops(summing, fused)
    fastest = next((d for d in source.layout if source.dims[d] > 1), None)
    inner = float(loops[len(along)].extent) if len(loops) > len(along) else 1.0
    summed = float(math.prod(loop.extent for loop in along))
    moves = (move for loop in along for _, move, _ in loop.starts[:1])
    summed_inner = float(any(move[0] == fastest for move in moves))
    return {"inner": inner, "summed": summed, "summed_inner": summed_inner}


def demanded(fused: Computation) -> dict[str, float]:
    """How many elements of each instruction the result needs: slices leave the rest out."""
    by_name = fused.by_name
    root = fused.root
    need = {root.name: float(root.shape.elements if root.shapes else 0)}
    for instruction in reversed(fused.instructions):  # users stand behind what they use
        if instruction.name not in need:
            continue
        for at, name in enumerate(instruction.operands):
            operand = by_name[name]
            wanted = float(operand.shape.elements if operand.shapes else 0)
            if instruction.opcode in _PARTIAL:
                picked = _picked(instruction, at, operand.shape, need[instruction.name])
                wanted = min(wanted, picked)
            need[name] = min(float(operand.shape.elements), max(need.get(name, 0.0), wanted))
    return need


_SUMMING = ("reduce", "dot", "reduce-window")

_PARTIAL = ARITHMETIC | TRANSCENDENTAL | frozenset(TABLES["of_opcodes"]["partial"])


def _picked(instruction: Instruction, at: int, operand: Shape, need: float) -> float:
    """Elements of operand `at` that `need` elements of an instruction's result ask for, at most."""
    if instruction.opcode == "concatenate":
        return need * operand.elements / max(instruction.shape.elements, 1)
    if instruction.opcode == "dynamic-update-slice" and at == 0:
        return 0.0  # updated in place
    return need


def _summing(fused: Computation) -> Instruction | None:
    """The instruction that sums in a fusion, if one does."""
    return next((i for i in fused.instructions if i.opcode in _SUMMING), None)


def _loops(fused: Computation) -> list[_Loop]:
    """The loop nest, innermost first: what a reduction sums over, then the result's dimensions."""
    summing, root = _summing(fused), fused.root
    loops = _summing_loops(summing, fused) if summing else []
    result = fused.by_name[root.operands[0]] if root.opcode == "tuple" else root
    elements = float(result.shape.elements)
    loops += [
        _Loop(result.shape.dims[dim], ((result, (dim, 1), elements),))
        for dim in result.shape.layout
        if result.shape.dims[dim] > 1
    ]
    return loops


def _summing_loops(reduction: Instruction, fused: Computation) -> list[_Loop]:
    operands = [fused.by_name[name] for name in reduction.operands]
    source, out_elements = operands[0], float(reduction.shape.elements)
    layout, dims = source.shape.layout, source.shape.dims
    if reduction.opcode == "reduce":
        summed = reduction.dims("dimensions")
        return [
            _Loop(dims[d], ((source, (d, 1), float(source.shape.elements)),))
            for d in layout
            if d in summed and dims[d] > 1
        ]
    if reduction.opcode == "reduce-window":
        sizes = window_sizes(reduction)
        reads = out_elements * math.prod(sizes)
        return [_Loop(sizes[d], ((source, (d, 1), reads),)) for d in layout if sizes[d] > 1]
    lhs, rhs = reduction.dims("lhs_contracting_dims"), reduction.dims("rhs_contracting_dims")
    reads = out_elements * math.prod(dims[d] for d in lhs)
    return [
        _Loop(dims[d], ((source, (d, 1), reads), (operands[1], (rhs[lhs.index(d)], 1), reads)))
        for d in layout
        if d in lhs and dims[d] > 1
    ]


def _strides(
    loop: _Loop, by_name: dict[str, Instruction], reads: dict[str, float]
) -> dict[str, float]:
    """Bytes each parameter moves in a step of a loop; `reads` collects its reads in all."""
    found: dict[str, float] = {}
    seen: set[tuple[str, _Move | None]] = set()

    def follow(instruction: Instruction, move: _Move | None, elements: float) -> None:
        if (instruction.name, move) in seen:
            return
        seen.add((instruction.name, move))
        if instruction.opcode == "parameter":
            shape = instruction.shape
            if move is not None and shape.dims:
                stride = shape.strides()[move[0]] * move[1] * shape.element_bytes
                found[instruction.name] = max(found.get(instruction.name, 0.0), stride)
            reads[instruction.name] = max(reads.get(instruction.name, 0.0), elements)
            return
        for at, name in enumerate(instruction.operands):
            operand = by_name[name]
            follow(operand, *_through(instruction, at, operand.shape, move, elements))

    for start, move, elements in loop.starts:
        follow(start, move, elements)
    return found


def _through(
    instruction: Instruction, at: int, operand: Shape, move: _Move | None, elements: float
) -> tuple[_Move | None, float]:
    """The same loop step seen from operand number `at`, and how many elements are read of it."""
    opcode = instruction.opcode
    if opcode == "concatenate":  # each operand is read for its own share of the result only
        share = operand.elements / max(instruction.shape.elements, 1)
        return move, elements * share
    if move is None:
        return None, elements
    dim, _ = move
    if opcode == "broadcast":
        dims = instruction.dims("dimensions")
        return ((dims.index(dim), move[1]) if dim in dims else None), elements
    if opcode == "transpose":
        return (instruction.dims("dimensions")[dim], move[1]), elements
    if opcode in ("bitcast", "reshape"):
        return _same_distance(instruction.shape, operand, move), elements
    if opcode == "reduce":
        if at > 0 or not operand.dims:
            return None, elements
        kept = [d for d in range(len(operand.dims)) if d not in instruction.dims("dimensions")]
        return ((kept[dim], move[1]) if dim < len(kept) else None), float(operand.elements)
    if opcode == "reduce-window":
        return (move if operand.dims else None), elements
    if opcode == "dot":
        return None, elements
    if opcode in ("pad", "slice", "dynamic-slice") and at == 0:
        share = min(operand.elements / max(instruction.shape.elements, 1), 1.0)
        return move, elements * share if opcode == "pad" else elements
    if len(operand.dims) != len(instruction.shape.dims):
        return None, elements  # scalars, index lists: nothing that moves with the loop
    return move, elements


def _same_distance(view: Shape, operand: Shape, move: _Move) -> _Move | None:
    """The operand's dimension along which a bitcast's step covers the same distance."""
    distance = view.strides()[move[0]] * move[1]
    best = None
    for dim, stride in enumerate(operand.strides()):
        if operand.dims[dim] > 1 and stride <= distance and (best is None or stride > best[1]):
            best = (dim, stride)
    return None if best is None else (best[0], max(distance // best[1], 1))
