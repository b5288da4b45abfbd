"""A program as a CPU runs it, one op after the other, and how long ago each touched its data: that
decides its memory level.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import Op
from hybridperf.ops.movement import TableOp

# glibc serves larger blocks by fresh pages from the operating system at every call (its dynamic
# mmap threshold ends at 32 MiB); smaller ones come back from its own free lists, already touched.
FRESH_BLOCK_BYTES = 32 * 2**20
_GRAIN = 4  # of an octave


class Touch(NamedTuple):
    """One execution of a step reads or writes `bytes` of a buffer; loops walk through the rest."""

    buffer: str
    bytes: float
    whole_bytes: float  # of the buffer

    def over(self, times: float) -> float:
        """Bytes of the buffer that so many executions touch."""
        return min(self.bytes * times, max(self.whole_bytes, self.bytes))


@dataclasses.dataclass(frozen=True)
class CpuStep:
    """One priced op; `table` is the buffer and size of a table looked up at random."""

    name: str
    op: Op | CollectiveCall
    times: float = 1.0
    reads: tuple[Touch, ...] = ()
    writes: tuple[Touch, ...] = ()
    table: tuple[str, float] | None = None
    reuse_bytes: float | None = None
    trip_bytes: float | None = None  # in a loop: bytes that one trip of the innermost touches
    inlined: bool = False  # pays no launch of its own


def in_loop(steps: Iterable[CpuStep], trips: float) -> list[CpuStep]:
    """Steps of a loop that runs `trips` times in all, with the bytes that one trip touches."""
    steps = list(steps)
    trip_bytes = sum(_footprint(steps, trips).values())
    return [
        step if step.trip_bytes is not None else dataclasses.replace(step, trip_bytes=trip_bytes)
        for step in steps
    ]


def with_reuse(steps: Iterable[CpuStep], temporary_bytes: float) -> list[CpuStep]:
    """Steps with the mean distance (log, weighted by bytes) to the last touch of what each uses.

    A program runs again and again, so what it has not touched yet was last touched one whole pass
    ago. Results land in the arena of temporaries, whose places are used over and over: their
    distance is the arena's size. In a loop, a buffer that every trip reads whole (weights, what is
    carried) was touched one trip ago, in all trips but the first; of a stack each trip reads
    another slice.
    """
    steps = list(steps)
    moved = [sum(touch.bytes for touch in (*s.reads, *s.writes)) for s in steps]
    footprint = _footprint(steps)
    made: set[str] = set()
    outside: set[str] = set()  # what a pass reads before it writes it
    for step in steps:
        outside |= {touch.buffer for touch in step.reads} - made
        made |= {touch.buffer for touch in step.writes}
    tables = dict(step.table for step in steps if step.table and step.table[0] in outside)
    traffic = sum(touch.over(step.times) for step in steps for touch in (*step.reads, *step.writes))
    pass_bytes = min(traffic, sum(footprint[b] for b in outside) + max(temporary_bytes, 1.0))
    clock, placed = 0.0, []
    last: dict[str, float] = {}
    for step, size in zip(steps, moved, strict=True):
        if step.table:
            table = step.table[0]
            since = clock - last[table] if table in last else math.inf
            if table in tables:
                # rows of a table come back after many passes, when about all of every table has
                # been touched; those that this pass has looked up are updated by it
                updated = any(touch.buffer == table for touch in step.writes)
                every = max(sum(tables.values()), pass_bytes)
                since = min(every, max(since, size)) if updated else every
            else:
                since = min(since, pass_bytes)
            step = dataclasses.replace(step, reuse_bytes=_between_lookups(step.op, since))
        else:
            distances = [
                (min(clock - last[t.buffer], pass_bytes) if t.buffer in last else pass_bytes, t)
                for t in step.reads
            ]
            distances += [(min(max(temporary_bytes, t.bytes), pass_bytes), t) for t in step.writes]
            weight = sum(touch.bytes for _, touch in distances)
            if weight > 0:
                log = sum(t.bytes * _log_distance(d, t, step, size) for d, t in distances) / weight
                step = dataclasses.replace(step, reuse_bytes=math.exp(log))
        placed.append(step)
        clock += size
        last |= {touch.buffer: clock for touch in (*step.reads, *step.writes)}
    return placed


def _between_lookups(op: Op | CollectiveCall, since: float) -> float:
    """Bytes between two touches of a row, geometric mean over a step's lookups: the first of a row
    finds it as long ago as its table was touched, each further one within this step. The few that
    come twice where rows are more than lookups are first ones here, as where lookups are measured.
    """
    assert isinstance(op, TableOp)
    own = max(float(op.work().reuse_bytes), 1.0)  # of the rows in use
    first = min(float(op.vocab / op.rows), 1.0)
    return own * max(since / own, 1.0) ** first


def _log_distance(distance: float, touch: Touch, step: CpuStep, size: float) -> float:
    """Mean log distance of a touch over all executions of a step; `distance`: of the first."""
    first = math.log(max(distance, size, 1.0))
    if step.trip_bytes is None or touch.bytes < touch.whole_bytes:
        return first
    again = math.log(max(min(distance, step.trip_bytes), size, 1.0))
    return (first + (step.times - 1) * again) / step.times


def _footprint(steps: Iterable[CpuStep], trips: float = 1.0) -> dict[str, float]:
    """Bytes of each buffer that steps touch, in one of `trips`."""
    footprint: dict[str, float] = {}
    for step in steps:
        for touch in (*step.reads, *step.writes):
            touched = touch.over(step.times / trips)
            footprint[touch.buffer] = max(footprint.get(touch.buffer, 0.0), touched)
    return footprint


def rounded(reuse_bytes: float | None) -> float | None:
    """To a quarter of a power of two, so that equal ops stay one row of durations."""
    if reuse_bytes is None:
        return None
    return 2.0 ** (round(math.log2(max(reuse_bytes, 1.0)) * _GRAIN) / _GRAIN)
