"""Which op an HLO instruction is, by its dimensions; fusions by what they loop over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import hybridperf.ops as ops
from hybridperf.workloads.programs.jax import hlo_cost
from hybridperf.workloads.programs.jax.fusion_loops import demanded, loop_shape, strided_reads
from hybridperf.workloads.programs.jax.hlo import Computation, Instruction, Shape
from hybridperf.workloads.programs.jax.hlo_cost import Costs, Count


def standalone(
    costs: Costs, instruction: Instruction, operands: list[Shape], within: Computation
) -> ops.Op:
    """The op of an instruction that stands alone."""
    opcode, out = instruction.opcode, instruction.shape
    elements = float(max(out.elements, 1))
    dtype = out.dtype
    if opcode == "dot":
        return _gemm(instruction, operands)
    if opcode == "convolution":
        return convolution(instruction, operands)
    if opcode in ("copy", "transpose"):
        return _copy(instruction, operands[0])
    if opcode in ("concatenate", "pad", "slice", "dynamic-slice", "reverse"):
        return ops.Copy(dtype, rows=1.0, cols=elements)
    if opcode == "dynamic-update-slice":
        return ops.Copy(dtype, rows=1.0, cols=float(max(operands[1].elements, 1)))
    if opcode == "gather":
        return _gather(instruction, operands[0])
    if opcode == "scatter":
        return _scatter(instruction, operands)
    if opcode == "sort":
        along = instruction.dims("dimensions")
        cols = operands[0].dims[along[0]] if along else operands[0].dims[-1]
        rows = operands[0].elements / max(cols, 1)
        return ops.Sort(operands[0].dtype, rows=float(rows), cols=float(cols))
    if opcode in ("rng", "rng-bit-generator"):
        last = instruction.shapes[-1]
        return ops.Random(last.dtype, rows=1.0, cols=float(max(last.elements, 1)))
    count = costs.instruction(instruction, within)
    moved = sum(shape.bytes for shape in operands)
    loop = "elementwise"
    if opcode == "reduce":
        loop, elements = "reduction", operands[0].elements
    elif opcode in ("reduce-window", "select-and-scatter"):
        padded = "padded_" if "pad=" in instruction.attributes else ""
        loop, elements = f"{padded}window_reduction", out.elements * _window(instruction)
    return _fused(dtype, elements, count, moved, instruction.bytes, loop=loop)


def windowed(
    costs: Costs, instruction: Instruction, operands: list[Shape], within: Computation
) -> list[ops.Op]:
    """The op of a pooling, of its gradient, or of a running sum written as a window."""
    source = operands[0]
    if instruction.opcode == "reduce-window" and _is_running(instruction, source):
        cols = float(max(hlo_cost.window_sizes(instruction)))
        return [ops.Cumulative(source.dtype, rows=max(source.elements / cols, 1.0), cols=cols)]
    return [standalone(costs, instruction, operands, within)]


def fusion(costs: Costs, instruction: Instruction, fused: Computation) -> list[ops.Op]:
    """The op (or ops) of a fusion, by the most characteristic instruction in it."""
    inside = fused.by_name
    by_opcode: dict[str, list[Instruction]] = {}
    for i in fused.instructions:
        by_opcode.setdefault(i.opcode, []).append(i)
    # arithmetic that a fusion's result needs: loops compute nothing that a later slice drops
    need = demanded(fused)
    counts = (
        costs.instruction(i, fused) * min(need.get(i.name, 0.0) / max(i.shape.elements, 1), 1.0)
        for i in fused.instructions
        if i.shapes
    )
    count, read = sum(counts, Count()), sum(bytes_read(fused))
    dtype, elements = instruction.shape.dtype, float(instruction.shape.elements)

    def operands(i: Instruction) -> list[Shape]:
        return [inside[name].shape for name in i.operands]

    library = instruction.word("kind") == "kCustom"
    if "scatter" in by_opcode:
        return [_scatter(i, operands(i)) for i in by_opcode["scatter"]]
    if library and "dot" in by_opcode:
        products = [_gemm(i, operands(i)) for i in by_opcode["dot"]]
        return [*products, *_surroundings(costs, instruction, fused, by_opcode["dot"])]
    if library and "convolution" in by_opcode:
        return [convolution(i, operands(i)) for i in by_opcode["convolution"]]
    if "gather" in by_opcode:
        pooled = float("reduce" in by_opcode)
        looked_up = [_gather(i, operands(i)[0], pooled) for i in by_opcode["gather"]]
        return [*looked_up, *_surroundings(costs, instruction, fused, by_opcode["gather"])]
    reads, span = (0.0, 0.0) if library else strided_reads(fused)
    loop = "elementwise"
    if "dot" in by_opcode:  # a matrix-vector product written out as a loop
        loop = "reduction"
        elements = max(math.prod(hlo_cost.dot_sizes(i, operands(i)[0])) for i in by_opcode["dot"])
    elif "reduce-window" in by_opcode:
        windows = by_opcode["reduce-window"]
        if any(_is_running(i, operands(i)[0]) for i in windows):
            sizes = [float(max(i.shape.elements, 1)) for i in windows]
            return [ops.Cumulative(dtype, rows=1.0, cols=size) for size in sizes]
        loop = "library_reduction" if library else "window_reduction"
        if not (library or reads) and any("pad=" in i.attributes for i in windows):
            # along the fast dimension every element is checked against the edge
            loop = "padded_window_reduction"
        elements = max(i.shape.elements * _window(i) for i in windows)
    elif "reduce" in by_opcode:
        loop = "library_reduction" if library else "reduction"
        elements = max(operands(i)[0].elements for i in by_opcode["reduce"])
    elif fused.root.opcode == "dynamic-update-slice":  # in place: only the slice is written
        elements = float(operands(fused.root)[1].elements)
    reductions = (*by_opcode.get("reduce", ()), *by_opcode.get("reduce-window", ()))
    if any(len(i.shapes) > 1 for i in reductions):
        loop = "joint_reduction"
    # maximum or minimum: several instructions, for NaN
    roots = (costs.module.called(i, "to_apply").root.opcode for i in reductions)
    compared = any(opcode in ("maximum", "minimum", "select") for opcode in roots)
    columns = {
        "strided_reads": float(reads), "strided_bytes": float(span), "compared": float(compared),
        **loop_shape(fused),
    }  # fmt: skip
    written = bytes_written(fused)
    return [_fused(dtype, elements, count, read, written, loop=loop, **columns)]


def bytes_read(fused: Computation) -> list[float]:
    """Bytes a fusion reads of each parameter: what its result needs, of slices what they pick."""
    need = demanded(fused)
    parameters = sorted((int(i.literal), i) for i in fused.instructions if i.opcode == "parameter")
    return [need.get(one.name, 0.0) * one.shape.element_bytes for _, one in parameters]


def bytes_written(fused: Computation) -> float:
    """Bytes of a fusion's results; of what it updates in place only the slice."""
    inside = fused.by_name
    written = 0.0
    root = fused.root
    for result in [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]:
        made = result
        while made.opcode == "bitcast":
            made = inside[made.operands[0]]
        in_place = made.opcode == "dynamic-update-slice"
        written += inside[made.operands[1]].bytes if in_place else result.bytes
    return written


def _surroundings(
    costs: Costs, instruction: Instruction, fused: Computation, main: list[Instruction]
) -> list[ops.Op]:
    """What a fusion computes with the results of its `main` instructions, as a loop of its own.

    One flop per element of these results (a bias, a sum of gathered rows) comes with the main op.
    """
    inside = fused.by_name
    # what main instructions read: indices, and a table that is never computed as a whole
    before: set[str] = set()
    pending = [name for i in main for name in i.operands]
    while pending:
        name = pending.pop()
        if name not in before:
            before.add(name)
            pending += inside[name].operands
    named = before | {i.name for i in main}
    after = [i for i in fused.instructions if i.name not in named]
    count = sum((costs.instruction(i, fused) for i in after), Count())
    results = sum(i.shape.elements for i in main)
    if not count.transcendentals and count.flops <= results:
        return []
    loop = "reduction" if any(i.opcode == "reduce" for i in after) else "elementwise"
    read, dtype = sum(i.bytes for i in main), instruction.shape.dtype
    return [_fused(dtype, results, count, read, instruction.bytes, loop=loop)]


def _gemm(instruction: Instruction, operands: list[Shape]) -> ops.Op:
    lhs, rhs = operands[:2]
    batch, m, n, k = (float(max(size, 1)) for size in hlo_cost.dot_sizes(instruction, lhs))
    a = instruction.dims("lhs_contracting_dims"), instruction.dims("lhs_batch_dims")
    b = instruction.dims("rhs_contracting_dims"), instruction.dims("rhs_batch_dims")
    matrices = min(m, n, k) > 1
    flags: dict[str, Any] = {
        "transposed_a": float(_contracts_outside(lhs, *a) and matrices),
        "transposed_b": float(not _contracts_outside(rhs, *b) and matrices),
    }
    if batch == 1:
        return ops.Gemm(lhs.dtype, m=m, n=n, k=k, **flags)
    return ops.BatchedGemm(lhs.dtype, batch=batch, m=m, n=n, k=k, **flags)


def _contracts_outside(operand: Shape, contracted: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether the contracted dimension is the slow one of a stored matrix."""
    fastest = next((d for d in operand.layout if operand.dims[d] > 1 and d not in batch), None)
    return fastest is not None and fastest not in contracted


def convolution(
    instruction: Instruction, operands: list[Shape], direction: str = "fwd"
) -> ops.Convolution:
    """The op of a convolution; `direction`: which pass of a convolution that goes forward it is.

    Gradients come as convolutions of their own: of weights, images are the batch and the result's
    gradient is the kernel; of inputs, the result's gradient is the image.
    """
    s = hlo_cost.convolution_sizes(instruction, operands[0], operands[1])
    image, kernel, out = s.image, s.kernel, s.out
    batch, c_in, c_out, groups = s.batch, s.c_in, s.c_out, s.groups
    if direction == "bwd_params":
        split = int(instruction.word("batch_group_count") or 1)
        kernel, out = out, kernel
        batch, c_in, groups = c_in, batch * split, max(split, groups)
    elif direction == "bwd_inputs":
        image, out = out, image
        c_in, c_out = c_out, c_in
    h_in, w_in = _two(image)  # one dimension is as high as long; a third is folded into the width
    kh, kw = _two(kernel)
    h_out, w_out = _two(out)
    return ops.Convolution(
        operands[0].dtype, batch=float(batch), c_in=float(c_in), c_out=float(c_out),
        h_in=h_in, w_in=w_in, h_out=h_out, w_out=w_out, kh=kh, kw=kw, groups=float(groups),
        taps=math.prod(s.valid) / (h_out * w_out), direction=direction,
    )  # fmt: skip


def _two(sizes: list[int]) -> tuple[float, float]:
    return float(sizes[0]), float(math.prod(sizes[1:]))


def _copy(instruction: Instruction, source: Shape) -> ops.Op:
    """A copy that keeps the order of elements, or a transpose."""
    out = instruction.shape
    elements = float(max(out.elements, 1))
    fastest = next((dim for dim in out.layout if out.dims[dim] > 1), 0)
    kept = instruction.opcode == "copy"
    permutation = range(len(out.dims)) if kept else instruction.dims("dimensions")
    stride = source.strides()[permutation[fastest]] if out.dims else 1
    if stride <= 1:
        return ops.Copy(out.dtype, rows=1.0, cols=elements)
    rows, cols = float(out.dims[fastest]), float(stride)
    return ops.Transpose(out.dtype, rows=rows, cols=cols, batch=max(elements / (rows * cols), 1.0))


def _gather(instruction: Instruction, table: Shape, pooled: float = 0.0) -> ops.Op:
    cols = float(max(_together(table, instruction.dims("slice_sizes") or (1,)), 1))
    rows = max(instruction.shape.elements / cols, 1.0)
    vocab = max(table.elements / cols, 1.0)
    return ops.Gather(table.dtype, rows=rows, cols=cols, vocab=vocab, pooled=pooled)


def _together(table: Shape, sizes: Sequence[int]) -> int:
    """Elements of a slice that lie together: of one that is indexed along its fastest dimension,
    as an interaction's pairs are, no more than one.
    """
    run = 1
    for dim in table.layout:
        run *= sizes[dim] if dim < len(sizes) else 1
        if dim >= len(sizes) or sizes[dim] != table.dims[dim]:
            break
    return run


def _scatter(instruction: Instruction, operands: list[Shape]) -> ops.Op:
    table, updates = operands[0], operands[-1]
    windows, indexed = instruction.dims("update_window_dims"), set[int]()
    for word in ("inserted_window_dims", "input_batching_dims"):
        indexed |= set(instruction.dims(word))
    sizes = [1] * len(table.dims)
    whole = (dim for dim in range(len(sizes)) if dim not in indexed)
    for dim, window in zip(whole, windows, strict=False):
        sizes[dim] = updates.dims[window]
    cols = float(max(_together(table, sizes), 1))
    rows = max(updates.elements / cols, 1.0)
    return ops.ScatterAdd(table.dtype, rows=rows, cols=cols, vocab=max(table.elements / cols, 1.0))


def _fused(
    dtype: str, elements: float, count: Count, read: float, written: float, **more: Any
) -> ops.Fused:
    return ops.Fused(
        dtype, elements=float(max(elements, 1)), flops=float(count.flops),
        transcendentals=float(count.transcendentals), bytes_read=float(read),
        bytes_written=float(max(written, 1)), **more,
    )  # fmt: skip


def _is_running(window: Instruction, source: Shape) -> bool:
    """A window as long as the dimension it slides along: a cumulative sum."""
    sizes = zip(hlo_cost.window_sizes(window), source.dims, strict=False)
    whole = any(size > 1 and size == extent for size, extent in sizes)
    return window.shape.dims == source.dims and whole


def _window(instruction: Instruction) -> int:
    return math.prod(hlo_cost.window_sizes(instruction))
