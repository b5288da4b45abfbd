"""Ops of JAX on a device beside its host: several copies of an op in one program, one after the
other, and several calls of it in a queue, so that neither a launch nor the host's way there is part
of an op's time. What an op is, is read from the program before XLA changes it, as a user's step for
such a device is (`hybridperf.workloads.programs.jax.lowered`).

    time of an op = seconds from the first call until the last result is there / calls / copies

Where the host needs longer to issue the calls than the device to run them, the row is `unreliable`.

This has run on CPUs alone: nobody here had JAX on a GPU or a TPU to try it on.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax

from hybridperf.hardware import device_called, load_device
from hybridperf.workloads.programs.jax.lowered import lower_program
from hybridperf_calibration.microbench.cases import argument, main_op
from hybridperf_calibration.microbench.op_programs import (
    FLOAT_BYTES,
    GPU,
    Family,
    OpProgram,
    points,
    reaching,
)
from hybridperf_calibration.microbench.timer import Budget, Case, Timing, timing_of

_COPIES, _COLD_COPIES, _TABLE_COPIES = 32, 4, 2  # of an op in a program, at most
_COLD_BYTES = 2.5e8  # of all sets of arguments together: several times any GPU's cache
_MOST_BYTES = 4e9  # of arguments, and of results, together
_MOST_ARRAYS, _MOST_SETS = 256, 32
_CALLS = 16  # in the queue: JAX makes the host wait from 32 on
_FORMATS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))
_HOST_SHARE = 0.8  # of a call: from there on the host may be what takes so long
_ROUNDS = 5
_OF_CPUS = ("loop_trip",)  # which XLA runs there alone
_PROGRAMS_FOR = "h100_sxm"  # read as for this one where JAX' device is none we know


def device_cases(families: Sequence[Family], setting: str) -> list[Case]:
    """Ops of families as JAX' device runs them, half of them on data that no cache still holds."""
    made: dict[str, Case] = {}
    for family in families:
        if family.name in _OF_CPUS:
            continue
        count = family.quick if setting == "quick" else family.full
        for at, u in enumerate(points(family, count)):
            with reaching(GPU):
                program = family.build(u)
            single = program.columns is not None or program.lookups is not None
            number, cold = _FORMATS[0 if single else at % 2], at // 2 % 2 == 1
            key = f"{program.name} {number.name} {'cold' if cold else 'warm'}"
            if key not in made:
                named = program.columns or {"op": family.name, "dtype": number.name}
                timed = _Queue(program, number, cold).timed
                made[key] = Case(key, named, divisor=program.times, timed=timed)
    return list(made.values())


@dataclasses.dataclass(frozen=True)
class _Queue:
    """An op in a number format, on data that is in the caches or not."""

    program: OpProgram
    number: np.dtype
    cold: bool

    @property
    def own_bytes(self) -> float:
        """Of the arguments of one copy that no other set has."""
        return max(sum(self.program.own_bytes()) * self.number.itemsize / FLOAT_BYTES, 1.0)

    @property
    def copies(self) -> int:
        """Of the op in a program."""
        of = self.program
        if of.alone:
            return 1
        most = _TABLE_COPIES if of.shared else _COLD_COPIES if self.cold else _COPIES
        results = max(of.result_bytes or 0.0, self.own_bytes)
        return int(max(min(most, _MOST_BYTES / (results + of.shared_bytes())), 1))

    @property
    def sets(self) -> int:
        """Of arguments, in turn."""
        if not self.cold:
            return 1
        call_bytes = self.copies * self.own_bytes
        fitting = min(_MOST_BYTES / call_bytes, _MOST_SETS)
        fitting = min(fitting, _MOST_ARRAYS / (self.copies * len(self.program.arguments)))
        return int(max(min(math.ceil(_COLD_BYTES / call_bytes), fitting), 1))

    def timed(self, case: Case, budget: Budget, rng: np.random.Generator) -> Timing:
        copies, tuples = self.copies, self._arguments(rng)
        described = self._described(tuples[0])
        whole, issue_s = self._seconds(tuples, budget)
        late = issue_s > _HOST_SHARE * statistics.median(whole)
        return timing_of(
            whole, issue_s, case.divisor * copies, described, unreliable=late,
            reuse_bytes=int(self.sets * copies * self.own_bytes),
        )  # fmt: skip

    def _arguments(self, rng: np.random.Generator) -> list[list[Any]]:
        """Sets of those of all copies; tables are a copy's own, and all sets'. What a prelude makes
        is an argument here: nothing fuses across a launch.
        """
        of = self.program
        prelude = None if of.prelude is None else jax.jit(of.prelude)

        def taken(own: list[Any]) -> list[Any]:
            return own if prelude is None else [prelude(*own)]

        def placed(description: tuple) -> Any:
            made = argument(rng, description)
            floating = made.dtype == np.float32 and description[0] != "single"
            return jax.device_put(made.astype(self.number) if floating else made)

        tables = [[placed(one) for one in of.arguments[: of.shared]] for _ in range(self.copies)]
        own = of.arguments[of.shared :]
        return jax.block_until_ready([
            [x for shared in tables for x in taken([*shared, *map(placed, own)])]
            for _ in range(self.sets)
        ])  # fmt: skip

    def _seconds(self, tuples: list[list[Any]], budget: Budget) -> tuple[list[float], float]:
        """(seconds of a call by round, seconds that the host needs to issue one)."""
        of, each = self.program, len(tuples[0]) // self.copies
        carried = [copy * each + at for copy in range(self.copies) for at in range(of.carry)]

        def run(*flat: Any) -> list[Any]:
            results: list[Any] = []
            for copy in range(self.copies):
                part: Any = tuple(flat[copy * each : (copy + 1) * each])
                if results:  # no fusion reaches across, and none runs beside another
                    part = lax.optimization_barrier((part, results[-1]))[0]
                results.append(of.fn(*part))
            return results

        call = jax.jit(run, donate_argnums=carried).lower(*tuples[0]).compile()

        def queued(calls: int) -> tuple[float, float]:
            start_s, results = time.perf_counter(), None
            for at in range(calls):
                arguments = tuples[at % len(tuples)]
                results = call(*arguments)
                if carried:
                    made = [one for copy in results for one in copy[: of.carry]]
                    for position, one in zip(carried, made, strict=True):
                        donated = arguments[position]
                        for other in tuples:
                            if other[position] is donated:
                                other[position] = one
            issued_s = time.perf_counter() - start_s
            jax.block_until_ready(results)
            return (time.perf_counter() - start_s) / calls, issued_s / calls

        queued(2)
        once_s, _ = queued(1)
        calls = int(np.clip(budget.cap_s / (_ROUNDS * once_s), 1, _CALLS))
        found, begun_s = [queued(calls)], time.perf_counter()
        while len(found) < _ROUNDS or time.perf_counter() - begun_s < min(budget.cap_s, 0.1):
            found.append(queued(calls))
        return [one for one, _ in found], statistics.median(issued for _, issued in found)

    def _described(self, arguments: Sequence[Any]) -> Mapping[str, Any]:
        """The row's own columns."""
        of = self.program
        if of.lookups is not None:
            return of.lookups.columns(self.sets, self.copies)
        footprint = self.sets * self.copies * self.own_bytes
        if of.columns is not None:
            gathers = "nnz" in of.columns  # the op itself says when rows come again
            return dict(of.columns) | ({} if gathers else {"reuse_bytes": footprint})
        own = arguments[: len(arguments) // self.copies]
        known = device_called(jax.devices()[0].device_kind)
        device = load_device(known or _PROGRAMS_FOR)
        if device.vendor.lower() not in ("nvidia", "amd"):
            device = load_device(_PROGRAMS_FOR)
        told = lower_program(
            of.fn, *own, device=device, donate_argnums=tuple(range(of.carry))
        )  # fmt: skip
        found = main_op(told, 1)
        return found | {"reuse_bytes": max(found["reuse_bytes"], footprint)}
