"""Chimera (Li and Hoefler 2021): two pipes over the same workers, one down and one up, each for
half of the micro-batches.

Worker w holds stage w of the pipe down and stage D - 1 - w of the pipe up, so weights stand there
twice, and one pipe fills the other's bubbles: with D micro-batches D - 2 slots are idle, where 1F1B
has 2 (D - 1). A step takes D F + (m + D - 2) B where B >= F and m <= D, else see `_chimera_s`.

Each pipe alone is 1F1B. The two are interleaved by a greedy list schedule in slots as if forward
and backward took as long: of what is ready a free worker takes the task of the deepest stage, which
is nearest to its turn. The order found is then kept, whatever the tasks really take.

More than D micro-batches go in units of D ("direct concatenation"): a unit's tasks fill what slots
the units before it leave idle.
"""

from __future__ import annotations

from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules.one_way import Orders, both_ways
from hybridperf.workloads.schedules.order import (
    BOTH_WAYS,
    Need,
    Schedule,
    ScheduleKind,
    StageSeconds,
    Task,
)

DOWN, UP = 0, 1


def chimera(workers: int, micro_batches: int, chunks: int = 1) -> Orders:
    """Chimera's order: two pipelines in opposite directions, interleaved."""
    queues = [_queues(worker, workers, micro_batches) for worker in range(workers)]
    return _merged(Schedule(CHIMERA, workers, micro_batches, ()), queues)


def _queues(worker: int, workers: int, micro_batches: int) -> Orders:
    """A worker's tasks, one queue per pipe of the first unit, of the second, and so on."""
    queues = []
    for first in range(0, micro_batches, workers):
        unit = range(first, min(first + workers, micro_batches))
        half = len(unit) // 2
        down, up = (DOWN, worker, unit[:half]), (UP, workers - 1 - worker, unit[half:])
        queues += [both_ways(at, mine, workers - at, pipe) for pipe, at, mine in (down, up)]
    return queues


def _merged(schedule: Schedule, queues: list[Orders]) -> Orders:
    """The greedy list schedule, slot by slot: of the earliest unit the deepest ready stage."""
    done: set[Task] = set()
    at = [[0] * len(mine) for mine in queues]
    orders: Orders = [[] for _ in queues]
    while any(len(order) < sum(map(len, mine)) for order, mine in zip(orders, queues, strict=True)):
        taken = []
        for worker, mine in enumerate(queues):
            ready = [
                (i // CHIMERA.pipes, -queue[n].stage, i)
                for i, (queue, n) in enumerate(zip(mine, at[worker], strict=True))
                if n < len(queue) and done.issuperset(schedule.needs(queue[n]))
            ]
            if ready:
                taken.append((worker, min(ready)[2]))
        for worker, i in taken:  # after all have looked: what ends in this slot helps nobody in it
            task = queues[worker][i][at[worker][i]]
            done.add(task)
            orders[worker].append(task)
            at[worker][i] += 1
    return orders


def _chimera_s(d: Array, m: Array, v: Array, seconds: StageSeconds) -> Array:
    """Up to D micro-batches: D (F + B) + (m - 2) max(F, B).

    Units of D fit into each other without a gap if F = B. Else each further one has D - 2 gaps of B
    - F, or half as many of F - B where forwards are longer, and once up to F of them is filled.
    Read off the graphs of D = 2 to 16, and tested against them.
    """
    forward_s, backward_s = seconds[:2]
    xp = array_module(d, m, forward_s, backward_s)
    longer_back_s = xp.maximum(backward_s - forward_s, 0.0)
    longer_there_s = xp.maximum(forward_s - backward_s, 0.0)
    first = xp.minimum(m, d)
    further = (m - first) / d
    both_s = d * (forward_s + backward_s)
    unit_s = both_s + (d - 2) * (longer_back_s + longer_there_s / 2)
    filled_s = xp.minimum(forward_s, xp.floor(d / 4) * longer_back_s) * (further > 0)
    first_s = both_s + (first - 2) * xp.maximum(forward_s, backward_s)
    return first_s + further * unit_s - filled_s


def _in_flight(w: Array, p: Array, m: Array, v: Array) -> Array:
    """Both pipes: D / 2 + 1 on the outer workers to D in the middle; D on all with more than D."""
    xp = array_module(w, p, m, v)
    one_unit = xp.minimum(p - w, m / 2) + xp.minimum(w + 1, m / 2)
    return xp.where(m > p, p, one_unit)


CHIMERA = ScheduleKind(
    "chimera", chimera, _chimera_s, _in_flight, pipes=2,
    needs=(*BOTH_WAYS, Need(
        lambda p, m: (m <= p) | (m % p == 0),
        "up to pp micro-batches or a multiple of pp, got accumulation {m}, pp {p}",
    )),
)  # fmt: skip
