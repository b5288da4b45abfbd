"""A JAX function -> Workload: compile it, read the optimized HLO, name each instruction's op.

What is priced is what XLA will run: fusions, layout copies and library calls of the backend it was compiled for, which is recorded and
must match the device (a CPU's fusions are not a GPU's). One entry computation is one chain of ops in XLA's own schedule:

    call, [fresh memory], instruction, instruction, ...

While loops count their body times the trip count that XLA found; of a conditional the costlier branch is taken, and a note says so.
An instruction nobody knows is an error that names it, unless the caller lists its opcode (or custom-call target) in `ignore`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hybridperf.graph import GraphBuilder
from hybridperf.importers.fusion_loops import demanded, strided_reads
from hybridperf.importers.hlo import NAME, Computation, Instruction, Module, Shape, parse
from hybridperf.importers.hlo_cost import KNOWN, Costs, Count, convolution_sizes, dot_sizes, window_sizes
from hybridperf.io import InputError, read_json
from hybridperf.ops import (
    Allocation,
    BatchedGemm,
    Call,
    Convolution,
    Copy,
    Cumulative,
    Fused,
    Gather,
    Gemm,
    LoopTrip,
    Op,
    Random,
    ScatterAdd,
    Sort,
    Transpose,
)  # fmt: skip
from hybridperf.workload import OpCall, Workload

# glibc serves larger blocks by fresh pages from the operating system at every call (its dynamic mmap threshold ends at 32 MiB);
# smaller ones come back from its own free lists, already touched.
FRESH_BLOCK_BYTES = 32 * 2**20
PROGRAM_SCHEMA_VERSION = 1

_FREE = frozenset(
    [
        "bitcast",
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "after-all",
        "optimization-barrier",
        "reshape",
        "rng-get-and-update-state",
    ]
)
_ENDLESS = "while with an unknown trip count"
_SORTING_CALLS = frozenset({"TopK", "topk"})
_GRAIN = 4  # reuse distances are kept to a quarter of a power of two, so that equal ops stay one row of the duration table


def from_jax(
    fn: Callable, *args: Any, donate_argnums: int | tuple[int, ...] = (), ignore: Collection[str] = (), name: str | None = None
) -> Workload:
    """Workload of `fn(*args)`, compiled for JAX' default backend. `args` may be arrays or `jax.ShapeDtypeStruct`s.

    A function that is already jitted keeps its own settings. Donate what the training loop donates: an updated table that is not
    donated is copied whole, and the prediction will say so.
    """
    import jax

    lower = fn.lower if hasattr(fn, "lower") else jax.jit(fn, donate_argnums=donate_argnums).lower
    return from_program(program(lower(*args).compile(), name or str(getattr(fn, "__name__", "step"))), ignore=ignore)


def program(compiled: Any, name: str) -> dict[str, Any]:
    """A compiled JAX function as plain data: `hlo` text, `backend`, and the bytes of `temporary` and `result` memory.

    What a prediction needs of it; `hybridperf.io.write_json(path, "program", PROGRAM_SCHEMA_VERSION, ...)` keeps it for another machine.
    """
    import jax

    memory = compiled.memory_analysis()
    return {
        "name": name,
        "backend": _device_kind(jax.default_backend()),
        # one arena for temporaries; results that are not a donated argument's memory
        "temporary_bytes": int(memory.temp_size_in_bytes) if memory is not None else 0,
        "result_bytes": int(memory.output_size_in_bytes - memory.alias_size_in_bytes) if memory is not None else 0,
        "hlo": compiled.as_text() or "",
    }


def from_program(content: Mapping[str, Any], *, ignore: Collection[str] = ()) -> Workload:
    """Workload of what `program` made."""
    blocks = [float(content["temporary_bytes"]), float(content["result_bytes"])]
    return from_hlo(
        content["hlo"],
        name=content["name"],
        backend=content["backend"],
        fresh_bytes=sum(block for block in blocks if block >= FRESH_BLOCK_BYTES),
        temporary_bytes=blocks[0],
        ignore=ignore,
    )


def load_program(path: str | os.PathLike, *, ignore: Collection[str] = ()) -> Workload:
    """Workload of a program file."""
    content = read_json(path, "program", PROGRAM_SCHEMA_VERSION)
    try:
        return from_program(content, ignore=ignore)
    except KeyError as error:
        raise InputError(f"{path} is damaged: it has no field {error}; write the program again") from error


def from_hlo(
    text: str,
    *,
    name: str = "program",
    backend: str | None = None,
    fresh_bytes: float = 0.0,
    temporary_bytes: float = 0.0,
    ignore: Collection[str] = (),
) -> Workload:
    """Workload of one optimized HLO module in text form."""
    module = parse(text)
    reader = _Reader(module, frozenset(ignore))
    steps = reader.read(module.entry, 1.0)
    reader.refuse_unknown()
    steps = _with_reuse(steps, temporary_bytes)
    buffers = sum(i.opcode == "parameter" for i in module.entry.instructions) + len(module.entry.root.shapes)
    leading = [_Step("call", Call("fp32", buffers=float(buffers)))]
    if fresh_bytes > 0 and backend == "cpu":
        leading.append(_Step("fresh memory", Allocation("fp32", bytes=float(fresh_bytes))))

    builder, calls = GraphBuilder(), []
    rows: dict[OpCall, int] = {}
    for step in [*leading, *steps]:
        call = OpCall(step.op, step.times, _grained(step.reuse_bytes))
        if call not in rows:
            rows[call] = len(rows) + 1
            calls.append(call)
        builder.op(rows[call], label=step.name)
    return Workload(
        name=name,
        graph=builder.build(),
        calls=tuple(calls),
        backend=backend,
        flops=reader.count.flops,
        transcendentals=reader.count.transcendentals,
        notes=tuple(reader.notes),
    )


@dataclasses.dataclass(frozen=True)
class _Step:
    """One priced instruction; `reads` and `writes` are (buffer, bytes), `table` the buffer and size of a table looked up at random."""

    name: str
    op: Op
    times: float = 1.0
    reads: tuple[tuple[str, float], ...] = ()
    writes: tuple[tuple[str, float], ...] = ()
    table: tuple[str, float] | None = None
    reuse_bytes: float | None = None


class _Reader:
    """Walks computations in schedule order and collects steps, arithmetic, notes and what it could not name."""

    def __init__(self, module: Module, ignore: frozenset[str]):
        self.module = module
        self.ignore = ignore
        self.costs = Costs(module)
        self.count = Count()
        self.notes: list[str] = []
        self.unknown: dict[str, str] = {}
        self.views: dict[str, str] = {}  # result updated in place -> the buffer it lives in

    def read(self, computation: Computation, times: float) -> list[_Step]:
        """Steps of one computation executed `times` times in a row."""
        within = computation.by_name()
        steps: list[_Step] = []
        for instruction in computation.instructions:
            opcode = instruction.opcode
            target = instruction.word("custom_call_target") if opcode == "custom-call" else opcode
            if opcode in _FREE:
                continue
            if target in self.ignore:
                self.notes.append(f"ignored {target} ({instruction.name})")
            elif opcode == "while":
                steps += self._while(instruction, times)
            elif opcode == "call":
                steps += self.read(self.module.called(instruction, "to_apply"), times)
            elif opcode == "conditional":
                steps += self._conditional(instruction, times)
            elif opcode not in KNOWN or (opcode == "custom-call" and target not in _SORTING_CALLS):
                self.unknown.setdefault(target, instruction.name)
            elif unknown := self._unknown_inside(instruction):
                self.unknown.setdefault(unknown.opcode, unknown.name)
            else:
                self.count += self.costs.instruction(instruction, computation) * times
                steps += self._priced(instruction, within, times)
        return steps

    def _unknown_inside(self, instruction: Instruction) -> Instruction | None:
        """The first instruction of a fusion that nobody knows, unless it is ignored: it would count as no work."""
        if instruction.opcode != "fusion":
            return None
        fused = self.module.called(instruction, "calls").instructions
        return next((i for i in fused if i.opcode not in KNOWN and i.opcode not in self.ignore), None) or next(
            (found for i in fused if (found := self._unknown_inside(i))), None
        )

    def refuse_unknown(self) -> None:
        if self.unknown:
            named = ", ".join(f"{target} ({name})" for target, name in sorted(self.unknown.items()))
            raise InputError(
                f"cannot price {len(self.unknown)} kind(s) of instruction: {named}; list them in ignore={{...}} to leave them out"
            )

    def _while(self, instruction: Instruction, times: float) -> list[_Step]:
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', instruction.attributes)
        if not found:
            if _ENDLESS in self.ignore:
                self.notes.append(f"ignored {_ENDLESS} ({instruction.name})")
            else:
                self.unknown.setdefault(_ENDLESS, instruction.name)
            return []
        per_loop = int(found.group(1))
        trips = times * per_loop
        body = self.read(self.module.called(instruction, "body"), trips)
        condition = self.read(self.module.called(instruction, "condition"), trips)
        if not per_loop:
            return []
        return [_Step(instruction.name, LoopTrip("int32", trips=float(per_loop)), times), *condition, *body]

    def _conditional(self, instruction: Instruction, times: float) -> list[_Step]:
        listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
        computations = [self.module.computations[name] for name in NAME.findall(listed.group(1))] if listed else [
            self.module.called(instruction, "true_computation"), self.module.called(instruction, "false_computation"),
        ]  # fmt: skip
        before = self.count
        branches = []
        for computation in computations:
            self.count = Count()
            branch = self.read(computation, times)
            moved = sum(size * step.times for step in branch for _, size in (*step.reads, *step.writes))
            branches.append((self.count.flops + self.count.transcendentals + moved, self.count, branch, computation.name))
        _, count, branch, name = max(branches, key=lambda b: b[0])
        self.count = before + count
        self.notes.append(f"{instruction.name}: priced its costlier branch {name}")
        return branch

    def _priced(self, instruction: Instruction, within: dict[str, Instruction], times: float) -> list[_Step]:
        operands = [within[name] for name in instruction.operands]
        reads = tuple((self._buffer(o, within), o.bytes) for o in operands if o.opcode != "constant")
        writes = ((instruction.name, instruction.bytes),)
        if instruction.opcode == "fusion":
            fused = self.module.called(instruction, "calls")
            used = bytes_read(fused)
            reads = tuple((self._buffer(o, within), used[at]) for at, o in enumerate(operands))
            ops = self._fusion(instruction, fused, sum(used))
        else:
            ops = [self._single(instruction, [o.shape for o in operands])]
        steps = []
        for op in ops:
            table = None
            if isinstance(op, Gather | ScatterAdd):
                row_bytes = op.cols * op.element_bytes
                largest = max(operands, key=lambda o: o.bytes)
                table = (self._buffer(largest, within), op.vocab * row_bytes)
                if isinstance(op, ScatterAdd):  # in place: only the rows that the updates name are read and written
                    touched = (table[0], min(op.rows * row_bytes, table[1]))
                    reads, writes = (*((b, n) for b, n in reads if b != table[0]), touched), (touched,)
                    self.views[instruction.name] = table[0]
            steps.append(_Step(instruction.name, op, times, reads, writes, table))
        return steps

    def _single(self, instruction: Instruction, operands: list[Shape]) -> Op:
        """The op of an instruction that stands alone."""
        opcode, out = instruction.opcode, instruction.shape
        elements = float(max(out.elements, 1))
        dtype = out.dtype
        if opcode == "dot":
            return _gemm(instruction, operands)
        if opcode == "convolution":
            return _convolution(instruction, operands)
        if opcode in ("copy", "transpose"):
            return _copy(instruction, operands[0])
        if opcode in ("concatenate", "pad", "slice", "dynamic-slice", "reverse"):
            return Copy(dtype, rows=1.0, cols=elements)
        if opcode == "dynamic-update-slice":
            return Copy(dtype, rows=1.0, cols=float(max(operands[1].elements, 1)))
        if opcode == "gather":
            return _gather(instruction, operands[0])
        if opcode == "scatter":
            return _scatter(instruction, operands)
        if opcode in ("sort", "custom-call"):
            along = instruction.dims("dimensions")
            cols = operands[0].dims[along[0]] if along else operands[0].dims[-1]
            return Sort(operands[0].dtype, rows=float(operands[0].elements / max(cols, 1)), cols=float(cols))
        if opcode in ("rng", "rng-bit-generator"):
            last = instruction.shapes[-1]
            return Random(last.dtype, rows=1.0, cols=float(max(last.elements, 1)))
        count = self.costs.instruction(instruction, self._holder(instruction))
        moved = sum(shape.bytes for shape in operands)
        if opcode in ("reduce", "reduce-window", "select-and-scatter"):
            padded = "padded_" if "pad=" in instruction.attributes else ""
            loop = "reduction" if opcode == "reduce" else f"{padded}window_reduction"
            inner = operands[0].elements if opcode == "reduce" else out.elements * math.prod(window_sizes(instruction))
            return _fused(dtype, inner, count, moved, instruction.bytes, loop=loop)
        return _fused(dtype, elements, count, moved, instruction.bytes)

    def _fusion(self, instruction: Instruction, fused: Computation, read: float) -> list[Op]:
        """The op (or ops) of a fusion, by the most characteristic instruction in it."""
        inside = fused.by_name()
        by_opcode: dict[str, list[Instruction]] = {}
        for i in fused.instructions:
            by_opcode.setdefault(i.opcode, []).append(i)
        count = self._needed(fused)
        dtype, written, elements = instruction.shape.dtype, instruction.bytes, float(instruction.shape.elements)

        def operands(i: Instruction) -> list[Shape]:
            return [inside[name].shape for name in i.operands]

        library = instruction.word("kind") == "kCustom"
        if "scatter" in by_opcode:
            return [_scatter(i, operands(i)) for i in by_opcode["scatter"]]
        if library and "dot" in by_opcode:
            return [*(_gemm(i, operands(i)) for i in by_opcode["dot"]), *self._around(instruction, fused, by_opcode["dot"])]
        if library and "convolution" in by_opcode:
            return [_convolution(i, operands(i)) for i in by_opcode["convolution"]]
        if "gather" in by_opcode:
            return [*(_gather(i, operands(i)[0]) for i in by_opcode["gather"]), *self._around(instruction, fused, by_opcode["gather"])]
        reads, span = (0.0, 0.0) if library else strided_reads(fused)
        loop = "elementwise"
        if "dot" in by_opcode:  # a matrix-vector product written out as a loop
            loop = "reduction"
            elements = max(math.prod(dot_sizes(i, operands(i)[0])) for i in by_opcode["dot"])
        elif "reduce-window" in by_opcode:
            windows = by_opcode["reduce-window"]
            if any(_is_running(i, operands(i)[0]) for i in windows):
                return [Cumulative(dtype, rows=1.0, cols=float(max(i.shape.elements, 1))) for i in windows]
            loop = "library_reduction" if library else "window_reduction"
            if not (library or reads) and any("pad=" in i.attributes for i in windows):
                loop = "padded_window_reduction"  # along the fast dimension every element is checked against the edge
            elements = max(i.shape.elements * math.prod(window_sizes(i)) for i in windows)
        elif "reduce" in by_opcode:
            loop = "library_reduction" if library else "reduction"
            elements = max(operands(i)[0].elements for i in by_opcode["reduce"])
        elif fused.root.opcode == "dynamic-update-slice":  # in place: only the slice is written
            update = operands(fused.root)[1]
            elements, written = float(update.elements), update.bytes
        return [
            _fused(
                dtype,
                elements,
                count,
                read,
                written,
                loop=loop,
                strided_reads=float(reads),
                strided_bytes=float(span),
            )
        ]

    def _around(self, instruction: Instruction, fused: Computation, main: list[Instruction]) -> list[Op]:
        """What a fusion computes with the results of its `main` instructions, as a loop of its own.

        One flop per element of these results (a bias, a sum of gathered rows) comes with the main op.
        """
        inside = fused.by_name()
        before: set[str] = set()  # what main instructions read: indices, and a table that is never computed as a whole
        pending = [name for i in main for name in i.operands]
        while pending:
            name = pending.pop()
            if name not in before:
                before.add(name)
                pending += inside[name].operands
        named = before | {i.name for i in main}
        after = [i for i in fused.instructions if i.name not in named]
        count = sum((self.costs.instruction(i, fused) for i in after), Count())
        results = sum(i.shape.elements for i in main)
        if not count.transcendentals and count.flops <= results:
            return []
        loop = "reduction" if any(i.opcode == "reduce" for i in after) else "elementwise"
        return [_fused(instruction.shape.dtype, results, count, sum(i.bytes for i in main), instruction.bytes, loop=loop)]

    def _needed(self, fused: Computation) -> Count:
        """Arithmetic of a fusion that its result needs: loops compute no element that a later slice drops."""
        need = demanded(fused)
        counts = (
            self.costs.instruction(i, fused) * min(need.get(i.name, 0.0) / max(i.shape.elements, 1), 1.0)
            for i in fused.instructions
            if i.shapes
        )
        return sum(counts, Count())

    def _buffer(self, instruction: Instruction, within: dict[str, Instruction]) -> str:
        """Name of the memory an instruction's result lives in: views and in-place updates share it with their source."""
        while instruction.opcode in ("bitcast", "reshape", "get-tuple-element") and instruction.operands:
            source = within[instruction.operands[0]]
            if instruction.opcode == "get-tuple-element" and source.opcode != "tuple":
                return f"{source.name}{instruction.word('index')}"
            instruction = source
        return self.views.get(instruction.name, instruction.name)

    def _holder(self, instruction: Instruction) -> Computation:
        return next(c for c in self.module.computations.values() if instruction in c.instructions)


def bytes_read(fused: Computation) -> list[float]:
    """Bytes a fusion reads of each parameter: what its result needs, so of a slice or gather only what they pick."""
    need = demanded(fused)
    parameters = sorted((int(i.literal), i) for i in fused.instructions if i.opcode == "parameter")
    return [need.get(parameter.name, 0.0) * parameter.shape.element_bytes for _, parameter in parameters]


def _gemm(instruction: Instruction, operands: list[Shape]) -> Op:
    lhs, rhs = operands[:2]
    batch, m, n, k = (float(max(size, 1)) for size in dot_sizes(instruction, lhs))
    stored = {
        "transposed_a": _contracts_outside(lhs, instruction.dims("lhs_contracting_dims"), instruction.dims("lhs_batch_dims")),
        "transposed_b": not _contracts_outside(rhs, instruction.dims("rhs_contracting_dims"), instruction.dims("rhs_batch_dims")),
    }
    flags = {name: float(flag and min(m, n, k) > 1) for name, flag in stored.items()}
    return Gemm(lhs.dtype, m=m, n=n, k=k, **flags) if batch == 1 else BatchedGemm(lhs.dtype, batch=batch, m=m, n=n, k=k, **flags)


def _contracts_outside(operand: Shape, contracted: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether the contracted dimension is the slow one of a stored matrix."""
    fastest = next((d for d in operand.layout if operand.dims[d] > 1 and d not in batch), None)
    return fastest is not None and fastest not in contracted


def _convolution(instruction: Instruction, operands: list[Shape]) -> Op:
    s = convolution_sizes(instruction, operands[0], operands[1])
    h_in, w_in = _two(s.image)  # one dimension is as high as long; a third is folded into the width
    kh, kw = _two(s.kernel)
    h_out, w_out = _two(s.out)
    return Convolution(
        operands[0].dtype,
        batch=float(s.batch),
        c_in=float(s.c_in),
        c_out=float(s.c_out),
        h_in=h_in,
        w_in=w_in,
        h_out=h_out,
        w_out=w_out,
        kh=kh,
        kw=kw,
        groups=float(s.groups),
        taps=math.prod(s.valid) / (h_out * w_out),
    )


def _two(sizes: list[int]) -> tuple[float, float]:
    return float(sizes[0]), float(math.prod(sizes[1:]))


def _copy(instruction: Instruction, source: Shape) -> Op:
    """A copy that keeps the order of elements, or a transpose."""
    out = instruction.shape
    elements = float(max(out.elements, 1))
    if instruction.opcode == "copy":
        fastest_out, source_strides = _fastest(out), source.strides()
        stride = source_strides[fastest_out] if out.dims else 1
    else:
        permutation = instruction.dims("dimensions")
        stride = source.strides()[permutation[_fastest(out)]] if out.dims else 1
    if stride <= 1:
        return Copy(out.dtype, rows=1.0, cols=elements)
    rows = float(out.dims[_fastest(out)])
    cols = float(stride)
    return Transpose(out.dtype, rows=rows, cols=cols, batch=max(elements / (rows * cols), 1.0))


def _gather(instruction: Instruction, table: Shape) -> Op:
    sizes = instruction.dims("slice_sizes") or (1,)
    cols = float(max(math.prod(sizes), 1))
    rows = max(instruction.shape.elements / cols, 1.0)
    return Gather(table.dtype, rows=rows, cols=cols, vocab=max(table.elements / cols, 1.0))


def _scatter(instruction: Instruction, operands: list[Shape]) -> Op:
    table, updates = operands[0], operands[-1]
    windows = instruction.dims("update_window_dims")
    cols = float(max(math.prod(updates.dims[d] for d in windows), 1))
    rows = max(updates.elements / cols, 1.0)
    return ScatterAdd(table.dtype, rows=rows, cols=cols, vocab=max(table.elements / cols, 1.0))


def _fused(dtype: str, elements: float, count: Count, read: float, written: float, **more: Any) -> Fused:
    return Fused(
        dtype,
        elements=float(max(elements, 1)),
        flops=float(count.flops),
        transcendentals=float(count.transcendentals),
        bytes_read=float(read),
        bytes_written=float(max(written, 1)),
        **more,
    )


def _is_running(window: Instruction, source: Shape) -> bool:
    """A window as long as the dimension it slides along, one element at a time: a cumulative sum."""
    return window.shape.dims == source.dims and any(
        size > 1 and size == extent for size, extent in zip(window_sizes(window), source.dims, strict=False)
    )


def _fastest(shape: Shape) -> int:
    return next((dim for dim in shape.layout if shape.dims[dim] > 1), 0)


def _with_reuse(steps: Iterable[_Step], temporary_bytes: float) -> list[_Step]:
    """Give each step the mean distance (in the log, weighted by bytes) to the last touch of what it reads and writes.

    A program runs again and again, so what it has not touched yet was last touched one whole pass ago. Results land in the arena of
    temporaries, whose places are used over and over: their distance is the arena's size.
    """
    steps = list(steps)
    moved = [sum(size for _, size in (*s.reads, *s.writes)) for s in steps]
    footprint: dict[str, float] = {}
    for step in steps:
        for buffer, size in (*step.reads, *step.writes):
            footprint[buffer] = max(footprint.get(buffer, 0.0), size)
    made: set[str] = set()
    outside: set[str] = set()  # what a pass reads before it writes it
    for step in steps:
        outside |= {buffer for buffer, _ in step.reads} - made
        made |= {buffer for buffer, _ in step.writes}
    tables = dict(step.table for step in steps if step.table and step.table[0] in outside)
    pass_bytes = min(sum(moved), sum(footprint[b] for b in outside) + max(temporary_bytes, 1.0))
    clock, placed = 0.0, []
    last: dict[str, float] = {}
    for step, size in zip(steps, moved, strict=True):
        if step.table and step.table[0] in tables:
            # rows of a table come back after many passes, when about all of every table has been touched
            step = dataclasses.replace(step, reuse_bytes=max(sum(tables.values()), pass_bytes))
        else:
            distances = [(min(clock - last[b], pass_bytes) if b in last else pass_bytes, n) for b, n in step.reads]
            distances += [(min(max(temporary_bytes, n), pass_bytes), n) for _, n in step.writes]
            weight = sum(n for _, n in distances)
            if weight > 0:
                mean = math.exp(sum(n * math.log(max(d, size, 1.0)) for d, n in distances) / weight)
                step = dataclasses.replace(step, reuse_bytes=mean)
        placed.append(step)
        clock += size
        last |= {buffer: clock for buffer, _ in (*step.reads, *step.writes)}
    return placed


def _grained(reuse_bytes: float | None) -> float | None:
    return None if reuse_bytes is None else 2.0 ** (round(math.log2(max(reuse_bytes, 1.0)) * _GRAIN) / _GRAIN)


def _device_kind(backend: str) -> str:
    return {"cuda": "gpu", "rocm": "gpu"}.get(backend, backend)
