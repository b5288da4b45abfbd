"""A JAX function -> Workload: compile it, read the optimized HLO, name each instruction's op.

(For a GPU that is not here it is lowered and not compiled: `gpu_program.py`.) What is priced is
what XLA will run: fusions, layout copies and library calls of the backend it was compiled for,
which is recorded and must match the device (a CPU's fusions are not a GPU's). One entry
computation is one chain of ops in XLA's own schedule:

    call, [fresh memory], instruction, instruction, ...

Collectives are priced as the model's links carry them; ranks meet in them where all ranks' programs
are given. While loops count their body times the trip count that XLA found. A CPU
calls the ops of a body back to back, 10 to 20 ns each (or has compiled a small loop into one
kernel): they pay no launch floor. Of a conditional the costlier branch is taken, and a note says
so. An instruction nobody knows is an error that names it, unless the caller lists its opcode (or
custom-call target) in `ignore`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device
from hybridperf.io import InputError, first_line, read_json
from hybridperf.model.calls import Call as Row
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import Allocation, Call, Gather, LoopTrip, OpCall, ScatterAdd
from hybridperf.workloads.own import check_call
from hybridperf.workloads.programs.in_program import in_turn
from hybridperf.workloads.programs.jax import hlo_collectives, hlo_ops
from hybridperf.workloads.programs.jax.hlo import (
    ENDLESS,
    TABLES,
    Computation,
    Instruction,
    Module,
    parse,
)
from hybridperf.workloads.programs.jax.hlo_cost import KNOWN, Costs, Count
from hybridperf.workloads.programs.jax.lowered import jitted, lower_program, sentences
from hybridperf.workloads.programs.reuse import (
    FRESH_BLOCK_BYTES,
    CpuStep,
    Touch,
    in_loop,
    rounded,
    with_reuse,
)

PROGRAM_SCHEMA_VERSION = 1

_FREE = frozenset(TABLES["of_opcodes"]["free"])
# XLA's CPU backend compiles the loops of such a call into one kernel
_SMALL_CALL = 'xla_cpu_small_call="true"'


def from_jax(
    fn: Callable, *args: Any, donate_argnums: int | tuple[int, ...] = (),
    ignore: Collection[str] = (), name: str | None = None, device: str | os.PathLike | None = None,
    gpus_per_node: int = 8,
) -> Workload:  # fmt: skip
    """A step of a JAX program, on this machine or on a GPU that is not here.

    Without `device` the function is compiled for JAX's default backend, and what XLA will run is
    read from its optimised program. With a GPU as `device` it is lowered for that, not compiled:
    kernels are what XLA's rules make of it (`gpu_fusion.py`; thirteen steps that real GPUs ran are
    19.9 % off in the mean, claim `programs`). Nothing runs either way.

    Args:
        fn: a function; where it is already jitted, its settings are kept.
        args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
        donate_argnums: arguments that the training loop donates; an updated table that is not
            donated is copied whole, which the prediction shows.
        ignore: HLO opcodes or custom-call targets to leave out.
        name: name of the workload; None: the function's.
        device: a GPU by its name or file, as `hp.load_device` takes it; None: this machine.
        gpus_per_node: of a program for many GPUs (`jax.shard_map`), which count from 0.

    Raises:
        InputError: when the program has an operation that cannot be priced, which is named (on a
            GPU with its line); a program that the compiler has yet to divide among GPUs; a device
            that is unknown or no GPU.
    """
    spec = None if device is None else load_device(device)
    if spec is None or spec.id == load_device("here").id:
        content = compile_program(fn, *args, donate_argnums=donate_argnums, name=name)
    else:
        content = lower_program(fn, *args, device=spec, donate_argnums=donate_argnums, name=name)
    return from_program(content, ignore=ignore, gpus_per_node=gpus_per_node)


def compile_program(
    fn: Callable, *args: Any, donate_argnums: int | tuple[int, ...] = (), name: str | None = None
) -> dict[str, Any]:
    """`program` of `fn(*args)`: all that runs the caller's own code."""
    check_call(fn, args, {})
    with sentences("this machine"):
        lowered = jitted(fn, donate_argnums).lower(*args)
    return program(lowered.compile(), name or str(getattr(fn, "__name__", "step")))


def program(compiled: Any, name: str) -> dict[str, Any]:
    """A compiled JAX function as plain data, all that a prediction needs of it.

    `write_json(path, "program", PROGRAM_SCHEMA_VERSION, ...)` of `hybridperf.io` keeps it for
    another machine.
    """
    import jax

    memory, backend = compiled.memory_analysis(), jax.default_backend()
    temporary, result = 0, 0
    if memory is not None:
        # one arena for temporaries; results that are not a donated argument's memory
        temporary = int(memory.temp_size_in_bytes)
        result = int(memory.output_size_in_bytes - memory.alias_size_in_bytes)
    return {
        "name": name, "backend": {"cuda": "gpu", "rocm": "gpu"}.get(backend, backend),
        "temporary_bytes": temporary, "result_bytes": result, "hlo": compiled.as_text() or "",
    }  # fmt: skip


def from_program(
    content: Mapping[str, Any], *, ignore: Collection[str] = (), gpus_per_node: int = 8
) -> Workload:
    """Workload of what `program` or `lower_program` made."""
    if "device" in content:
        # a program of this machine does without what it imports
        from hybridperf.workloads.programs.jax.gpu_program import from_lowered

        return from_lowered(content, ignore=ignore, gpus_per_node=gpus_per_node)
    chain = read_program(content, ignore=ignore)
    graph, rows = in_turn(chain.nodes)
    return Workload(
        name=content["name"], graph=graph, calls=tuple(rows), backend=content["backend"],
        flops=chain.count.flops, transcendentals=chain.count.transcendentals, notes=chain.notes,
    )  # fmt: skip


def load_program(path: str | os.PathLike, *, ignore: Collection[str] = ()) -> Workload:
    """The workload of a JAX program that was saved to a file by `hybridperf`.

    Args:
        path: the file.
        ignore: HLO opcodes or custom-call targets to leave out.

    Raises:
        InputError: when the file is damaged, or has an operation that cannot be priced.
    """
    content = load_content(path)
    try:
        return from_program(content, ignore=ignore)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{path} is damaged ({why}); write the program again") from error


def load_content(path: str | os.PathLike) -> dict[str, Any]:
    """What a program file holds, as `program` made it."""
    content = read_json(path, "program", PROGRAM_SCHEMA_VERSION)
    for field in ("name", "backend", "temporary_bytes", "result_bytes", "hlo"):
        if field not in content:
            why = f"it has no field {field!r}"
            raise InputError(f"{path} is damaged: {why}; write the program again")
    return content


@dataclasses.dataclass(frozen=True)
class OpChain:
    """One program as read: what it runs, one after the other, as (label, row)."""

    nodes: tuple[tuple[str, Row], ...]
    count: Count
    notes: tuple[str, ...]

    @property
    def collectives(self) -> list[tuple[str, CollectiveCall]]:
        """Those of its nodes that are collectives."""
        return [(label, call) for label, call in self.nodes if isinstance(call, CollectiveCall)]


def read_program(content: Mapping[str, Any], *, ignore: Collection[str] = ()) -> OpChain:
    """What a program that `program` made runs."""
    text, backend = content["hlo"], content["backend"]
    blocks = [float(content["temporary_bytes"]), float(content["result_bytes"])]
    module = parse(text)
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
    reader = _HloReader(module, ignored, backend, hlo_collectives.partitions(text))
    steps = reader.read(module.entry, 1.0)
    if reader.unknown:
        named = ", ".join(f"{target} ({name})" for target, name in sorted(reader.unknown.items()))
        raise InputError(
            f"cannot price {len(reader.unknown)} kind(s) of instruction: {named};"
            " leave them out with ignore=... (`--ignore` on the command line)"
        )
    steps = with_reuse(steps, blocks[0])
    parameters = sum(i.opcode == "parameter" for i in module.entry.instructions)
    buffers = parameters + len(module.entry.root.shapes)
    leading = [CpuStep("call", Call("fp32", buffers=float(buffers)))]
    fresh_bytes = sum(block for block in blocks if block >= FRESH_BLOCK_BYTES)
    if fresh_bytes > 0 and backend == "cpu":
        leading.append(CpuStep("fresh memory", Allocation("fp32", bytes=fresh_bytes)))
    nodes: list[tuple[str, Row]] = []
    for step in [*leading, *steps]:
        if isinstance(step.op, CollectiveCall):
            nodes += [(step.name, step.op)] * round(step.times)
        else:
            reuse_bytes = rounded(step.reuse_bytes)
            nodes.append((step.name, OpCall(step.op, step.times, reuse_bytes, step.inlined)))
    return OpChain(tuple(nodes), reader.count, tuple(reader.notes))


class _HloReader:
    """Walks computations in schedule order; collects steps, arithmetic, notes, what is unknown."""

    def __init__(self, module: Module, ignore: frozenset[str], backend: str | None, ranks: int):
        self.module = module
        self.ranks = ranks
        self.ignore = ignore
        self.backend = backend
        self.costs = Costs(module)
        self.count = Count()
        self.notes: list[str] = []
        self.unknown: dict[str, str] = {}
        self.views: dict[str, str] = {}  # result updated in place -> the buffer it lives in

    def read(self, computation: Computation, times: float) -> list[CpuStep]:
        """Steps of one computation executed `times` times in a row."""
        steps: list[CpuStep] = []
        costless = _FREE | (hlo_collectives.HALVES_DONE - self.ignore)
        for instruction in computation.instructions:
            opcode = instruction.opcode
            target = instruction.word("custom_call_target") if opcode == "custom-call" else opcode
            if opcode in costless:
                continue
            if target in self.ignore:
                self.notes.append(f"ignored {target} ({instruction.name})")
            elif opcode == "while":
                steps += self._while(instruction, times)
            elif opcode == "call":
                called = self.read(self.module.called(instruction, "to_apply"), times)
                if _SMALL_CALL in instruction.attributes:
                    # compiled whole: a loop in it is a jump, and nothing is launched
                    own = (step for step in called if not isinstance(step.op, LoopTrip))
                    called = [dataclasses.replace(step, inlined=True) for step in own]
                steps += called
            elif opcode == "conditional":
                steps += self._conditional(instruction, times)
            elif opcode in hlo_collectives.OPCODES:
                steps += self._collective(instruction, computation, times)
            elif opcode not in KNOWN or opcode == "custom-call":
                # a library routine: nothing tells what it costs
                self.unknown.setdefault(target, instruction.name)
            elif unknown := self._unknown_inside(instruction):
                self.unknown.setdefault(unknown.opcode, unknown.name)
            else:
                self.count += self.costs.instruction(instruction, computation) * times
                steps += self._priced(instruction, computation, times)
        return steps

    def _unknown_inside(self, instruction: Instruction) -> Instruction | None:
        """The first unknown instruction of a fusion, unless ignored: it would count as no work."""
        if instruction.opcode != "fusion":
            return None
        fused = self.module.called(instruction, "calls").instructions
        unknown = (one for one in fused if one.opcode not in KNOWN | self.ignore)
        return next(unknown, None) or next(filter(None, map(self._unknown_inside, fused)), None)

    def _while(self, instruction: Instruction, times: float) -> list[CpuStep]:
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', instruction.attributes)
        if not found and ENDLESS in self.ignore:
            self.notes.append(f"ignored {ENDLESS} ({instruction.name})")
            return []
        if not found:
            self.unknown.setdefault(ENDLESS, instruction.name)
            return []
        per_loop = int(found.group(1))
        trips = times * per_loop
        body = self.read(self.module.called(instruction, "body"), trips)
        condition = self.read(self.module.called(instruction, "condition"), trips)
        if not per_loop:
            return []
        inside = in_loop([*condition, *body], trips)
        if self.backend == "cpu":
            inside = [dataclasses.replace(step, inlined=True) for step in inside]
        return [CpuStep(instruction.name, LoopTrip("int32", trips=float(per_loop)), times), *inside]

    def _conditional(self, instruction: Instruction, times: float) -> list[CpuStep]:
        before = self.count
        branches = []
        for computation in self.module.branches(instruction):
            self.count = Count()
            branch = self.read(computation, times)
            moved = sum(
                touch.bytes * step.times for step in branch for touch in (*step.reads, *step.writes)
            )
            cost = self.count.flops + self.count.transcendentals + moved
            branches.append((cost, self.count, branch, computation.name))
        _, count, branch, name = max(branches, key=lambda b: b[0])
        self.count = before + count
        self.notes.append(
            f"{instruction.name}: priced its costlier branch {name}, by counts of flops and bytes"
        )
        return branch

    def _collective(
        self, instruction: Instruction, computation: Computation, times: float
    ) -> list[CpuStep]:
        """Its calls; what it reads and writes was touched, whoever wrote it."""
        operands = [computation.by_name[name] for name in instruction.operands]
        shapes = [o.shape for o in operands]
        calls = hlo_collectives.collective_calls(instruction, shapes, self.ranks, self.backend)
        reads = tuple(self._whole(operand, computation.by_name) for operand in operands)
        writes = tuple(
            Touch(f"{instruction.name}{at}", shape.bytes, shape.bytes)
            for at, shape in enumerate(instruction.shapes)
        )
        first = [CpuStep(instruction.name, call, times, reads, writes) for call in calls[:1]]
        return first + [CpuStep(instruction.name, call, times) for call in calls[1:]]

    def _priced(
        self, instruction: Instruction, computation: Computation, times: float
    ) -> list[CpuStep]:
        within = computation.by_name
        operands = [within[name] for name in instruction.operands]
        reads, writes = self._touches(instruction, operands, within)
        if instruction.opcode == "fusion":
            ops = hlo_ops.fusion(self.costs, instruction, self.module.called(instruction, "calls"))
        else:
            shapes = [operand.shape for operand in operands]
            ops = [hlo_ops.standalone(self.costs, instruction, shapes, computation)]
        steps = []
        for op in ops:
            table = None
            if isinstance(op, Gather | ScatterAdd):
                row_bytes = op.cols * op.element_bytes
                table_bytes = float(op.vocab * row_bytes)
                looked_up = min(operands, key=lambda o: abs(o.bytes - table_bytes))
                table = (self._buffer(looked_up, within), table_bytes)
                if isinstance(op, ScatterAdd):
                    # in place: only the rows that the updates name are read and written
                    touched = Touch(table[0], min(op.rows * row_bytes, table[1]), table[1])
                    reads = (*(read for read in reads if read.buffer != table[0]), touched)
                    writes = (touched,)
                    self.views[instruction.name] = table[0]
            steps.append(CpuStep(instruction.name, op, times, reads, writes, table))
        return steps

    def _touches(
        self, instruction: Instruction, operands: list[Instruction], within: dict[str, Instruction]
    ) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
        """What one execution reads and writes: of slices and updates in place only the slice."""
        reads = [self._whole(operand, within) for operand in operands]
        written = instruction.bytes
        if instruction.opcode == "fusion":
            fused = self.module.called(instruction, "calls")
            used = zip(reads, hlo_ops.bytes_read(fused), strict=True)
            reads = [read._replace(bytes=size) for read, size in used]
            return tuple(reads), (Touch(instruction.name, hlo_ops.bytes_written(fused), written),)
        if instruction.opcode in ("slice", "dynamic-slice"):
            reads[0] = reads[0]._replace(bytes=written)
        pairs = zip(reads, operands, strict=True)
        kept = tuple(read for read, operand in pairs if operand.opcode != "constant")
        if instruction.opcode == "dynamic-update-slice":
            self.views[instruction.name] = reads[0].buffer
            others = tuple(read for read in kept if read.buffer != reads[0].buffer)
            return others, (reads[0]._replace(bytes=reads[1].bytes),)
        return kept, (Touch(instruction.name, written, written),)

    def _whole(self, instruction: Instruction, within: dict[str, Instruction]) -> Touch:
        return Touch(self._buffer(instruction, within), instruction.bytes, instruction.bytes)

    def _buffer(self, instruction: Instruction, within: dict[str, Instruction]) -> str:
        """Name of the memory a result lives in: views and in-place updates share their source's."""
        views = ("bitcast", "reshape", "get-tuple-element")
        while instruction.opcode in views and instruction.operands:
            source = within[instruction.operands[0]]
            if instruction.opcode == "get-tuple-element" and source.opcode != "tuple":
                return f"{source.name}{instruction.word('index')}"
            instruction = source
        return self.views.get(instruction.name, instruction.name)
