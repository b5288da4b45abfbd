"""Programs of `families` as measurable cases: how many copies, how many sets of arguments, which
row they become.

One call runs several independent copies of the op, so that the call's own cost stays small beside
it, and rotates through sets of arguments, so that data comes from where a training step would find
it: some cases keep everything in the nearest caches, some spread over 96 MB, the largest in-place
updates over half a gigabyte. What a copy became is read from the compiled program by the same
importer that will later read a training step, so calibration and prediction mean the same by "an
op". A program that did not compile to one op (another version of XLA fuses differently) is a row
with an `error` that says so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.io import unknown
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import uniform_unique_rows
from hybridperf_calibration.microbench.families import FAMILIES
from hybridperf_calibration.microbench.library import Library, library
from hybridperf_calibration.microbench.op_programs import FLOAT_BYTES, Family, OpProgram
from hybridperf_calibration.microbench.op_programs import points as sobol_points
from hybridperf_calibration.microbench.timer import Budget, Case, dispatch_case, time_case

_CALL_BYTES = 4e6  # copies are added until a call moves about this much
_MOST_COPIES = 12
# of one call together: below what the allocator hands back to the operating system
_RESULT_BYTES = 24e6
# bytes that the sets of arguments take up together; zero: two sets, however small
_SPREADS = (0.0, 16e6, 96e6, 250e6)
_LARGEST_SPREAD_BYTES = 2e9
_COLD_TABLE_BYTES = 5e7
_SHARED_BYTES = 4e8  # of the tables of one call together
_TABLES = (2, 10, 5)  # that a call looks up, in turn: a model has several
_MOST_ARRAYS = 256  # of all sets together: placing each costs 0.1 to 0.2 ms
_NUMBERS = 2**20  # distinct random numbers
_INDEX_SETS = 400  # batches of indices that rotate over one table, at most
_MAIN_SHARE = 0.8  # of a program's work that its main op must have
_ALLOCATION_MB = (40, 64, 96, 160)
_CALL_BUFFERS = (2, 8, 24, 64, 128, 256)


def op_cases(
    setting: str, only: Sequence[str] = (), of: str = "jax", seed: int = 0, kind: str = "cpu"
) -> list[Case]:
    """Ops of a library, of a setting or of the named families, for a process with a steady
    allocator; of another `seed` in other sizes; `kind` of device, as `accelerator.facts` has it.
    """
    families, on_device = _families(of, kind)
    known = [family.name for family in families]
    for name in only:
        if name not in known:
            raise unknown("family of ops", name, known, f"known are {', '.join(known)}")
    wanted = [family for family in families if not only or family.name in only]
    if on_device is not None:
        return on_device(wanted, setting)  # of seed 0 alone
    # an op of PyTorch is called as in a step: what a call costs is a part of it
    overhead = call_s if of == "jax" else lambda buffers: 0.0
    return [
        dataclasses.replace(case, library=library(of))
        for family in wanted
        for case in _family_cases(family, setting, overhead, seed)
    ]


def _families(
    of: str, kind: str
) -> tuple[Sequence[Family], Callable[[Sequence[Family], str], list[Case]] | None]:
    """(families of a library's ops, what makes their cases where they run beside a host)."""
    if of != "torch":
        if kind == "cpu":
            return FAMILIES, None
        from hybridperf_calibration.microbench import jax_queue

        return FAMILIES, jax_queue.device_cases
    from hybridperf_calibration.microbench import torch_families

    if kind == "cpu":
        return torch_families.FAMILIES, None
    from hybridperf_calibration.microbench import gpu

    return gpu.FAMILIES, gpu.gpu_cases


def host_cases(of: str = "jax") -> list[Case]:
    """What a call (an op of a step) and fresh memory cost besides ops, for a process as users have
    it.
    """
    if of == "torch":
        from hybridperf_calibration.microbench.eager import eager_cases
        from hybridperf_calibration.microbench.sharded_eager import sharded_cases

        calls = eager_cases() + sharded_cases()
    else:
        calls = [*map(_call_case, _CALL_BUFFERS)]
    return calls + [_allocation_case(megabytes, library(of)) for megabytes in _ALLOCATION_MB]


def call_s(buffers: float) -> float:
    """Seconds of a call besides its ops: a + b * buffers."""
    fixed_s, per_buffer_s = _call_costs()
    return fixed_s + per_buffer_s * buffers


@functools.cache
def _call_costs() -> tuple[float, float]:
    counts = (2, 16, 64)
    rng = np.random.default_rng(0)
    budget = Budget(cap_s=0.4, min_s=0.1)
    times = [time_case(dispatch_case(n // 2, n // 2), budget, rng).time_s for n in counts]
    per_buffer_s = max((times[-1] - times[0]) / (counts[-1] - counts[0]), 0.0)
    return max(times[0] - per_buffer_s * counts[0], 0.0), per_buffer_s


def _family_cases(
    family: Family, setting: str, overhead: Callable[[float], float], seed: int
) -> list[Case]:
    count = family.quick if setting == "quick" else family.full
    # quick points are the first of the full ones: a later full run goes on where a quick one
    # stopped
    found = {}
    for at, u in enumerate(sobol_points(family, count, seed)):
        program = family.build(u)
        # in a step, rows of a table larger than the caches come back after many batches
        cold = program.shared_bytes() > _COLD_TABLE_BYTES
        spread = _SPREADS[-1 if cold else at % len(_SPREADS)]
        key, tables = f"{program.name} spread {spread:g}", 0
        if program.shared and spread:
            tables = _TABLES[at // len(_SPREADS) % len(_TABLES)]
            key += f" of {tables}"
        if key not in found:
            found[key] = _case(program, key, spread, overhead, tables)
    return list(found.values())


def _case(
    program: OpProgram, key: str, spread_bytes: float, overhead: Callable[[float], float],
    tables: int = 0,
) -> Case:  # fmt: skip
    composite = program.columns is not None
    own_bytes = sum(program.own_bytes())
    result_bytes = max(program.result_bytes or 0.0, *program.own_bytes())
    most = [
        _CALL_BYTES / (own_bytes + result_bytes),
        _RESULT_BYTES / result_bytes,
        _SHARED_BYTES / (program.shared_bytes() + 1),
    ]
    copies = 1 if program.alone else int(min(max(min(most), 1), _MOST_COPIES))
    if tables:
        # many batches of indices for each: rows are out of the caches when they come again
        copies = max(min(tables, int(_SHARED_BYTES / (program.shared_bytes() + 1))), 1)
    call_bytes = copies * own_bytes
    if program.shared:
        # as many batches as touch so much of the table before the first comes again
        (_, (_, width)), (_, looked_up, _) = program.arguments[0], program.arguments[program.shared]
        touched = FLOAT_BYTES * width * math.prod(looked_up)
        sets = int(min(max(math.ceil(spread_bytes / (copies * touched)), 2), _INDEX_SETS))
    else:
        wanted = max(math.ceil(spread_bytes / call_bytes), 2)
        sets = int(min(wanted, max(_LARGEST_SPREAD_BYTES / call_bytes, 2), 64))
    per_copy = len(program.arguments)
    sets = max(min(sets, _MOST_ARRAYS // (copies * (per_copy - program.shared) or 1)), 2)

    def many(*flat: Any) -> tuple[Any, ...]:
        parts = [flat[i * per_copy : (i + 1) * per_copy] for i in range(copies)]
        made = [(program.prelude(*part),) if program.prelude else part for part in parts]
        results = [program.fn(*part) for part in made]
        return tuple(x for result in results for x in result) if program.carry else tuple(results)

    def make(rng: np.random.Generator) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        shared = [
            [argument(rng, a) for a in program.arguments[: program.shared]] for _ in range(copies)
        ]
        own = program.arguments[program.shared :]
        return many, [
            tuple(x for tables in shared for x in (*tables, *(argument(rng, a) for a in own)))
            for _ in range(sets)
        ]

    def shapes() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return many, tuple(_shape(a) for _ in range(copies) for a in program.arguments)

    def describe(told: Callable[[], Any]) -> Mapping[str, Any]:
        if program.lookups is not None:
            if program.lookups.direction == "forward":  # sums so long that XLA makes several ops
                main_op(told(), copies)
            return program.lookups.columns(sets, copies)
        columns = dict(program.columns or {}) or main_op(told(), copies, bool(program.prelude))
        footprint = sets * call_bytes
        if "nnz" in columns:
            return columns  # gathered rows come again within a product, as the op itself says
        if composite:
            columns["reuse_bytes"] = footprint
        elif "vocab" in columns:
            # the rows that these indices name are touched again, the rest of the table never
            touched = uniform_unique_rows(sets * columns["rows"], columns["vocab"])
            columns["reuse_bytes"] = float(copies * touched * columns["cols"] * FLOAT_BYTES)
        else:
            own = columns["reuse_bytes"]
            columns["reuse_bytes"] = max(own, min(own * sets, footprint))
        return columns

    carried = tuple(i * per_copy + j for i in range(copies) for j in range(program.carry))
    results = copies * max(program.carry, 1)

    def other_s() -> float:
        if program.prelude is None:
            return overhead(copies * per_copy + results)
        prelude = dataclasses.replace(program, fn=program.prelude, prelude=None)
        case = _case(prelude, key, spread_bytes, overhead)
        alone = dataclasses.replace(case, subtract_s=0.0, describe=None)
        return time_case(alone, Budget(cap_s=0.2), np.random.default_rng(0)).call_s

    named = program.columns or {"op": program.name.split()[0], "dtype": "fp32"}
    return Case(
        key,
        named,
        make,
        shapes=shapes,
        divisor=copies * program.times,
        subtract_s=other_s,
        carried=carried,
        describe=describe,
    )


def main_op(told: Any, copies: int, has_prelude: bool = False) -> dict[str, Any]:
    """The op that a program consists of, `copies` times, as columns.

    Args:
        told: what the library tells of the program: XLA's text, the program before XLA changed it
            (`lower_program`), or the calls of PyTorch's ops.
        copies: of the op.
        has_prelude: elementwise loops are passed over.

    Raises: ValueError: there is no such op.
    """
    from hybridperf.ops import Fused, columns

    work: dict[Any, float] = {}
    count: dict[Any, int] = {}
    reuse: dict[Any, list[float]] = {}
    for call in _calls_of(told, copies):
        if has_prelude and isinstance(call.op, Fused) and call.op.loop == "elementwise":
            continue
        done = call.op.work()
        proxy = float(done.flops + 10 * done.transcendentals + done.bytes) * call.times
        work[call.op] = work.get(call.op, 0.0) + proxy
        count[call.op] = count.get(call.op, 0) + 1
        reuse.setdefault(call.op, []).append(call.reuse_bytes or float(done.reuse_bytes))
    if not work:
        raise ValueError("compiled to nothing but its prelude")
    main = max(work, key=lambda op: work[op])
    if count[main] != copies or work[main] < _MAIN_SHARE * sum(work.values()):
        kinds = ", ".join(sorted({columns(op)["op"] for op in work}))
        raise ValueError(f"compiled to several ops, not one: {kinds}")
    mean_reuse_bytes = float(np.exp(np.mean(np.log(np.maximum(reuse[main], 1.0)))))
    return {**columns(main), "reuse_bytes": mean_reuse_bytes}


def _calls_of(told: Any, copies: int) -> list[OpCall]:
    """Our ops of a program, in order."""
    if isinstance(told, str | Mapping):
        from hybridperf.workloads.programs.jax.program import from_program

        alone = {"name": "case", "backend": "cpu", "temporary_bytes": 0.0, "result_bytes": 0.0}
        workload = from_program({**alone, "hlo": told} if isinstance(told, str) else told)
        # the first node of what was compiled is the call itself
        calls = [workload.calls[row - 1] for row in workload.graph.row[isinstance(told, str) :]]
        return [call for call in calls if isinstance(call, OpCall)]
    from hybridperf.workloads.programs.torch.on_cpu import kernels_on_cpu

    found = [kernels_on_cpu(call) for call in told]
    if None in found:
        raise ValueError(f"no rule for {told[found.index(None)].kind}")
    # all copies are used before the first comes again
    return [
        dataclasses.replace(call, reuse_bytes=copies * float(call.op.work().reuse_bytes))
        for calls in found
        for call in calls or ()
    ]


def argument(rng: np.random.Generator, description: tuple) -> np.ndarray:
    kind, shape, *below = description
    if kind == "flags":
        return rng.random(shape) < 0.5
    if kind == "index":
        return rng.integers(0, below[0], shape, dtype=np.int32)
    if kind == "lookups":
        return below[0].draw(rng, shape)
    # the same numbers from another place on: drawing new ones would take longer than measuring
    start = int(rng.integers(_NUMBERS // 2))
    few, made = _numbers()[start:], np.empty(math.prod(shape), np.float32)
    whole = len(made) // len(few) * len(few)
    made[:whole].reshape(-1, len(few))[:] = few  # np.resize takes twenty times as long
    made[whole:] = few[: len(made) - whole]
    return made.reshape(shape)


def _shape(description: tuple) -> Any:
    """What `argument` makes, without numbers."""
    import jax

    kind, shape, *_ = description
    types = {"flags": np.bool_, "index": np.int32, "lookups": np.int32}
    return jax.ShapeDtypeStruct(shape, types.get(kind, np.float32))


@functools.cache
def _numbers() -> np.ndarray:
    """Positive: logarithms and roots stay in their usual path."""
    return np.random.default_rng(0).random(_NUMBERS, dtype=np.float32) + np.float32(0.1)


def _call_case(buffers: int) -> Case:
    half = buffers // 2
    columns = {"op": "call", "dtype": "fp32", "buffers": buffers}
    return Case(f"call {buffers}", columns, dispatch_case(half, buffers - half).make)


def _allocation_case(megabytes: int, of: Library) -> Case:
    """Fresh memory: a result too large for the free lists, against the same in place."""
    n, one = megabytes * 2**20 // FLOAT_BYTES, float(1)

    def make(rng: np.random.Generator) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        return (lambda x: x + one), [(np.full(n, 0.5, np.float32),) for _ in range(2)]

    def make_in_place(rng: np.random.Generator) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        in_place = (lambda x: (x.add_(1.0),)) if of.name == "torch" else (lambda x: (x + one,))
        return in_place, [(np.full(n, 0.5, np.float32),)]

    def in_place_s() -> float:
        case = Case("", {}, make_in_place, carried=(0,), library=of)
        return time_case(case, Budget(cap_s=0.3), np.random.default_rng(0)).call_s

    columns = {"op": "allocation", "dtype": "fp32", "bytes": float(megabytes * 2**20)}
    return Case(f"allocation {megabytes} MiB", columns, make, subtract_s=in_place_s, library=of)
