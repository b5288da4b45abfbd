"""Seconds of one call of a compiled JAX function, or of ops of PyTorch, the way that repeats best
on a machine shared with others.

The estimate is the **mean** over repeats but the slowest tenth. A training step is long: its ops
meet what a usual call meets (neighbours in the shared cache, a clock that moves), and the minimum
of a thousand calls of a few microseconds is luck that a step does not have. Nor does it take the
sum of its ops' medians: where rows come from memory a call now and then takes long, and in four
recommendation models the medians of all ops added up to 92 to 94 % of what they took together. What
slows the machine for longer than one measurement is left to the passes, of which the quietest
counts (`engine.merge_passes`). Repeats go on until the minimum, too, has settled (the last third of
them did not lower it by more than 1 %) or the time is up.

On one core of a CPU a call's seconds are the processor's (`machine.clock`): time slices of other
programs do not count. Neither do calls beside which the core's other hardware thread was at work
(`quiet.Sibling`, asked before and after each), as long as there are some without.

Every call gets **fresh inputs**: a case brings several tuples of arguments and the calls rotate
through them, so that data larger than the caches is read from memory, as it is in a training step.
`reuse_bytes` says how much was touched between two uses of the same data.

A call costs some microseconds before the device starts. Cases that are too short for that to be
small either repeat the op inside the function (`divisor` ops per call) or take off what an empty
call costs (`subtract_s`, measured with `dispatch_case`):

    time_s = (call_s - subtract_s) / divisor
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hybridperf_calibration.microbench import machine, quiet
from hybridperf_calibration.microbench.library import Jax, Library

# large outputs take up to 5 calls until each finds the memory that an earlier one freed
WARM_UP_CALLS = 6
SETTLED = 0.01  # the last third of the repeats lowered the minimum by less than this share
# less of the call than this left after the subtraction: a difference of two nearly equal numbers
RELIABLE_SHARE = 0.2
# time_s stays above this share of the call, because the fits take its logarithm
SMALLEST_SHARE = 0.01
_PATIENCE = 4.0
_SLOWEST = 0.1
GROWTH = 1.5  # repeats between two looks at the minimum; 1.5 makes the new repeats the last third


def times_itself(rng: np.random.Generator) -> Any:
    """What a case that is `timed` has in place of arguments."""
    raise NotImplementedError("this case times itself")


@dataclass(frozen=True)
class Case:
    """One shape of one op: what to run and which row it becomes.

    `make(rng)` returns a traceable function and the tuples of arguments to rotate through, all of
    the same shapes.
    """

    key: str  # unique, and the same from run to run: a store is resumed by it
    columns: Mapping[str, Any]  # the row's own columns: "op", "dtype" and the op's dimensions
    make: Callable[[np.random.Generator], tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]] = (
        times_itself
    )
    divisor: float = 1.0  # ops executed by one call
    # taken off the call before the division; a function measures it then
    subtract_s: float | Callable[[], float] = 0.0
    # positions of arguments updated in place: donated, and replaced by the leading results
    carried: tuple[int, ...] = ()
    # what the library tells of the ops that run -> the row's own columns
    describe: Callable[[Callable[[], Any]], Mapping[str, Any]] | None = None
    library: Library = Jax()  # noqa: RUF009 - has no state
    # how it is timed where a device has its own clock
    timed: Callable[[Case, Budget, np.random.Generator], Timing] | None = None
    # the same function, and arguments that have no more than their shapes; None: ask `make`
    shapes: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]] | None = None


@dataclass(frozen=True)
class Budget:
    """How long to repeat: until settled, or `cap_s` after `floor_repeats`."""

    cap_s: float = 0.5
    # 12 calls of 5 us are over before the scheduler has done anything: not yet a minimum
    min_s: float = 0.02
    min_repeats: int = 12
    floor_repeats: int = 3  # of calls that take longer than the cap
    max_repeats: int = 100_000


@dataclass(frozen=True)
class Timing:
    """A timed case; `time_s` and `least_s` are per op, `call_s` is the whole call."""

    time_s: float  # usual
    least_s: float
    call_s: float  # usual, nothing taken off
    repeats: int
    alone: float  # share of them without another hardware thread at work on the core
    settled: bool  # False: the time was up while the minimum still fell
    unreliable: bool  # less than RELIABLE_SHARE of the call was left after the subtraction
    compile_s: float
    repeating_s: float  # all timed calls together
    reuse_bytes: int  # touched between two uses of the same data: all arguments together
    load: float | None  # of the machine, see machine.load_1min
    preemptions: int  # of this process while the calls were timed
    described: Mapping[str, Any]  # what Case.describe read from the compiled program


@dataclass(frozen=True)
class Compiled:
    """A case ready to run, kept for later passes."""

    call: Callable[..., Any]
    compile_s: float
    described: Mapping[str, Any]


def compile_case(case: Case, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Compiled:
    """Compile `fn`, made by the case, for arguments like these."""
    start_s = time.perf_counter()
    call, told = case.library.compiled(fn, arguments, case.carried)
    compile_s = time.perf_counter() - start_s
    return Compiled(call, compile_s, case.describe(told) if case.describe else {})


def compile_ahead(cases: Iterable[Case], kept: dict[str, Compiled]) -> Iterator[bool]:
    """Compile a case a turn into `kept`, yielding True; those that `kept` has are passed over.

    What cannot be compiled is left to `time_case`, whose caller has a place for the error.
    """
    for case in cases:
        if case.key in kept or case.timed is not None:
            continue
        with contextlib.suppress(Exception):
            if case.shapes is not None and case.library.by_shapes:
                fn, arguments = case.shapes()
            else:
                fn, argument_tuples = case.make(np.random.default_rng(0))
                arguments = tuple(case.library.placed(argument_tuples[0]))
            kept[case.key] = compile_case(case, fn, arguments)
        yield True


def time_case(
    case: Case, budget: Budget, rng: np.random.Generator, kept: dict[str, Compiled] | None = None
) -> Timing:
    """Compile the case, warm it up, repeat it until settled; `kept` has compiled cases by key."""
    if case.timed is not None:
        return case.timed(case, budget, rng)
    import jax

    fn, argument_tuples = case.make(rng)
    # On the device before the clock starts, Python numbers as arrays, too, so that all tuples look
    # alike. What several tuples have in common stays one array.
    distinct = {id(argument): argument for arguments in argument_tuples for argument in arguments}
    placed = dict(zip(distinct, case.library.placed(list(distinct.values())), strict=True))
    argument_tuples = case.library.ready(
        [tuple(placed[id(a)] for a in arguments) for arguments in argument_tuples]
    )
    compiled = kept.get(case.key) if kept is not None else None
    if compiled is None:
        compiled = compile_case(case, fn, argument_tuples[0])
        if kept is not None:
            kept[case.key] = compiled
    # an array that stands in several tuples counts once
    total_bytes = sum(array.nbytes for array in jax.tree.leaves(list(placed.values())))
    subtract_s = case.subtract_s() if callable(case.subtract_s) else case.subtract_s

    rotation = Rotation(compiled.call, argument_tuples, case.carried, case.library)
    warm_up(rotation, budget.cap_s)
    preemptions_before = machine.preemptions()
    beside = quiet.sibling().busy if case.library.on_cpu() and one_core() else nobody
    every_s, calls_s = repeat_until_settled(rotation, budget, beside)
    call_s = usual(calls_s)

    def per_op_s(whole_call_s: float) -> float:
        return max(whole_call_s - subtract_s, SMALLEST_SHARE * whole_call_s) / case.divisor

    return Timing(
        time_s=per_op_s(call_s),
        least_s=per_op_s(min(calls_s)),
        call_s=call_s,
        repeats=len(every_s),
        alone=len(calls_s) / len(every_s) if beside is not nobody else 1.0,
        settled=is_settled(calls_s),
        unreliable=call_s - subtract_s < RELIABLE_SHARE * call_s,
        compile_s=compiled.compile_s,
        repeating_s=sum(every_s),
        reuse_bytes=total_bytes,
        load=machine.load_1min(),
        preemptions=machine.preemptions() - preemptions_before,
        described=compiled.described,
    )


def timing_of(
    calls_s: Sequence[float], call_s: float, ops: float, described: Mapping[str, Any], *,
    unreliable: bool = False, reuse_bytes: int = 0,
) -> Timing:  # fmt: skip
    """What a case that timed itself gives, of calls that take so long and run so many ops."""
    return Timing(
        time_s=statistics.median(calls_s) / ops, least_s=min(calls_s) / ops, call_s=call_s,
        repeats=len(calls_s), alone=1.0, settled=True, unreliable=unreliable, compile_s=0.0,
        repeating_s=sum(calls_s), reuse_bytes=reuse_bytes, load=machine.load_1min(), preemptions=0,
        described=described,
    )  # fmt: skip


def dispatch_case(n_arguments: int, n_outputs: int = 1) -> Case:
    """A call that computes next to nothing: what every call costs besides its op.

    Outputs are computed (from one element), because JAX hands unchanged arguments back without a
    call.
    """

    def make(rng: np.random.Generator) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        def nothing(*scalars: Any) -> tuple[Any, ...]:
            total = sum(scalars)
            return tuple(total * (output + 1) for output in range(n_outputs))

        return nothing, [tuple(rng.random(n_arguments, dtype=np.float32)) for _ in range(2)]

    counts = {"n_arguments": n_arguments, "n_outputs": n_outputs}
    columns = {"op": "dispatch", "dtype": "float32", **counts}
    return Case(f"dispatch {n_arguments} {n_outputs}", columns, make)


class Timed(Protocol):
    """Something that is called again and again."""

    def call_s(self) -> float:
        """Seconds of the next call."""


class Rotation:
    """Calls of a compiled function, each on the next arguments; results of in-place ones return."""

    def __init__(
        self, compiled: Callable[..., Any], argument_tuples: Sequence[tuple[Any, ...]],
        carried: Sequence[int], library: Library | None = None,
    ) -> None:  # fmt: skip
        self._compiled = compiled
        library = library or Jax()
        self._ready, self._clock = library.ready, machine.clock(library.on_cpu())
        self._tuples = [list(arguments) for arguments in argument_tuples]
        self._carried = tuple(carried)
        self._at = 0

    def __len__(self) -> int:
        return len(self._tuples)

    def call_s(self) -> float:
        """Seconds of the next call."""
        arguments = self._tuples[self._at]
        start_s = self._clock()
        results = self._ready(self._compiled(*arguments))
        seconds = self._clock() - start_s
        for position, result in zip(self._carried, results if self._carried else (), strict=False):
            donated = arguments[position]
            for other in self._tuples:  # an array may stand in several tuples
                if other[position] is donated:
                    other[position] = result
        self._at = (self._at + 1) % len(self._tuples)
        return seconds  # results that nobody carries on are freed here, outside the measured time


def warm_up(rotation: Rotation, cap_s: float) -> None:
    """Call it a few times: kernels are loaded, results' memory is found again."""
    start_s = time.perf_counter()
    for _ in range(WARM_UP_CALLS):
        rotation.call_s()
        if time.perf_counter() - start_s > cap_s:
            break


def nobody() -> bool:
    """Whether another hardware thread is at work, where that is not asked."""
    return False


def one_core() -> bool:
    """Whether this process is on a core of its own, whose other thread can be told."""
    return machine.cores_available() == 1


def repeat_until_settled(
    timed: Timed, budget: Budget, beside: Callable[[], bool] = nobody
) -> tuple[list[float], list[float]]:
    """(seconds of each call, of those that count).

    `beside`: whether something is at work on the core right now. Calls with that before or after
    them do not count, unless after `_PATIENCE` times the budget hardly any did without.
    """
    every_s: list[float] = []
    alone_s: list[float] = []
    look_at, enough = budget.min_repeats, budget.floor_repeats
    start_s, busy = time.perf_counter(), beside()
    while True:
        every_s.append(timed.call_s())
        before, busy = busy, beside()
        if not (before or busy):
            alone_s.append(every_s[-1])
        elapsed_s = time.perf_counter() - start_s
        out_of_patience = elapsed_s > _PATIENCE * budget.cap_s and len(every_s) >= enough
        if out_of_patience or (elapsed_s > budget.cap_s and len(alone_s) >= enough):
            return every_s, alone_s if len(alone_s) >= enough else every_s
        if len(alone_s) >= look_at:
            settled = elapsed_s >= budget.min_s and is_settled(alone_s)
            if settled or len(alone_s) >= budget.max_repeats:
                return every_s, alone_s
            look_at = math.ceil(look_at * GROWTH)


def usual(taken_s: Sequence[float]) -> float:
    """The mean of all but the slowest tenth."""
    return statistics.fmean(sorted(taken_s)[: math.ceil((1 - _SLOWEST) * len(taken_s))])


def is_settled(calls_s: Sequence[float]) -> bool:
    """Whether the last third of the repeats left the earlier minimum as it was."""
    earlier = len(calls_s) - len(calls_s) // 3
    if earlier == len(calls_s):
        return False
    return min(calls_s[earlier:]) >= (1 - SETTLED) * min(calls_s[:earlier])
