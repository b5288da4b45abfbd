"""How long ago each step of a program last touched its data: what decides which memory level serves it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from hybridperf.ops import Op


@dataclasses.dataclass(frozen=True)
class Step:
    """One priced instruction; `reads` and `writes` are (buffer, bytes), `table` the buffer and size of a table looked up at random."""

    name: str
    op: Op
    times: float = 1.0
    reads: tuple[tuple[str, float], ...] = ()
    writes: tuple[tuple[str, float], ...] = ()
    table: tuple[str, float] | None = None
    reuse_bytes: float | None = None


def with_reuse(steps: Iterable[Step], temporary_bytes: float) -> list[Step]:
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
