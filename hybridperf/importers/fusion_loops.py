"""Which operands a fused loop reads with a stride.

A CPU runs a loop fusion over its result in memory order, and computes each element from whatever it needs. An operand whose neighbours
along the loop lie far apart (a transpose inside the fusion, a reduction over a slow dimension) costs a cache line per element. To find
them, one step of the innermost loop is followed backwards from the result to each parameter: through elementwise instructions
unchanged, through transposes and broadcasts by their dimension lists, through bitcasts by its distance in memory.
"""

from __future__ import annotations

import math

from hybridperf.importers.hlo import Computation, Instruction, Shape
from hybridperf.importers.hlo_cost import window_sizes
from hybridperf.ops.movement import CACHE_LINE_BYTES, strided_footprint_bytes

_Move = tuple[int, int] | None  # (dimension, elements stepped along it); None: the operand stays where it is


def strided_reads(fused: Computation) -> tuple[float, float]:
    """(element reads that take a cache line each, cache bytes that those lines occupy until their neighbours' turn)."""
    by_name = fused.by_name()
    jumps: dict[str, tuple[float, float, float]] = {}  # parameter: (stride in bytes, reads, reads in a row)
    seen: set[tuple[str, _Move]] = set()

    def follow(instruction: Instruction, move: _Move, reads: float, in_a_row: float) -> None:
        if move is None or (instruction.name, move) in seen:
            return
        seen.add((instruction.name, move))
        if instruction.opcode == "parameter":
            shape = instruction.shape
            stride = shape.strides()[move[0]] * move[1] * shape.element_bytes if shape.dims else 0.0
            if stride >= CACHE_LINE_BYTES and stride > jumps.get(instruction.name, (0.0, 0.0, 0.0))[0]:
                jumps[instruction.name] = (stride, reads, in_a_row)
            return
        for at, name in enumerate(instruction.operands):
            operand = by_name[name]
            step, more, row = _through(instruction, at, operand.shape, move, reads, in_a_row)
            follow(operand, step, more, row)

    for root in _results(fused, by_name):
        move, in_a_row = _innermost(root.shape)
        follow(root, move, float(root.shape.elements), in_a_row)
    total = sum(reads for _, reads, _ in jumps.values())
    footprint = sum(float(strided_footprint_bytes(in_a_row, stride)) for stride, _, in_a_row in jumps.values())
    return total, footprint


def _results(fused: Computation, by_name: dict[str, Instruction]) -> list[Instruction]:
    root = fused.root
    return [by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]


def _innermost(shape: Shape) -> tuple[_Move, float]:
    for dim in shape.layout:
        if shape.dims[dim] > 1:
            return (dim, 1), float(shape.dims[dim])
    return None, 1.0


def _through(
    instruction: Instruction, at: int, operand: Shape, move: tuple[int, int], reads: float, in_a_row: float
) -> tuple[_Move, float, float]:
    """The same loop step seen from operand number `at`: (its move, element reads, reads in a row)."""
    dim, step = move
    opcode = instruction.opcode
    if opcode == "broadcast":
        dims = instruction.dims("dimensions")
        return ((dims.index(dim), step) if dim in dims else None), reads, in_a_row
    if opcode == "transpose":
        return (instruction.dims("dimensions")[dim], step), reads, in_a_row
    if opcode in ("bitcast", "reshape"):
        return _same_distance(instruction.shape, operand, move), reads, in_a_row
    if opcode == "reduce":
        if at > 0 and not operand.dims:
            return None, reads, in_a_row
        inner = _minor(operand, instruction.dims("dimensions"))
        extent = float(operand.dims[inner]) if inner is not None else 1.0
        return ((inner, 1) if inner is not None else None), float(operand.elements), extent
    if opcode == "reduce-window":
        if not operand.dims:
            return None, reads, in_a_row
        sizes = window_sizes(instruction)
        inner = _minor(operand, tuple(d for d, size in enumerate(sizes) if size > 1))
        if inner is None:
            return move, reads, in_a_row
        return (inner, 1), float(instruction.shape.elements * math.prod(sizes)), float(sizes[inner])
    if opcode == "dot":
        inner = _minor(operand, instruction.dims(("lhs" if at == 0 else "rhs") + "_contracting_dims"))
        extent = float(operand.dims[inner]) if inner is not None else 1.0
        return ((inner, 1) if inner is not None else None), float(instruction.shape.elements) * extent, extent
    if opcode in ("gather", "dynamic-slice", "dynamic-update-slice", "pad") and at > 0 and not operand.dims:
        return None, reads, in_a_row
    if len(operand.dims) != len(instruction.shape.dims):
        return None, reads, in_a_row  # scalars, index lists: nothing that moves with the loop
    return move, reads, in_a_row


def _same_distance(view: Shape, operand: Shape, move: tuple[int, int]) -> _Move:
    """A bitcast keeps memory as it is: the operand's dimension along which the same distance is covered."""
    distance = view.strides()[move[0]] * move[1]
    best = None
    for dim, stride in enumerate(operand.strides()):
        if operand.dims[dim] > 1 and stride <= distance and (best is None or stride > best[1]):
            best = (dim, stride)
    return None if best is None else (best[0], max(distance // best[1], 1))


def _minor(shape: Shape, among: tuple[int, ...]) -> int | None:
    """The fastest varying of some dimensions."""
    return next((dim for dim in shape.layout if dim in among and shape.dims[dim] > 1), None)
