"""Chimera (Li and Hoefler 2021): two pipes over the same workers, one down and one up, each for
half of the micro-batches.

Worker w holds stage w of the pipe down and stage D - 1 - w of the pipe up, so weights stand there
twice, and one pipe fills the other's bubbles: with D micro-batches D - 2 slots are idle, where 1F1B
has 2 (D - 1).

Each pipe alone is 1F1B. The two are woven together by a greedy list schedule in slots as if forward
and backward took as long: of what is ready a free worker takes the task of the deepest stage, which
is nearest to its turn. The order found is then kept, whatever the tasks really take.

More than D micro-batches go in units of D ("direct concatenation"): a unit's tasks fill what slots
the units before it leave idle.
"""

from __future__ import annotations

from hybridperf.workloads.schedules.one_way import alternated
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, Schedule, Task

DOWN, UP = 0, 1
Queue = tuple[Task, ...]


def chimera(workers: int, micro_batches: int) -> Schedule:
    """Both pipes woven together; workers are even, micro-batches an even number up to them or a
    multiple of them.
    """
    empty = Schedule("chimera", workers, micro_batches, ((),) * workers, pipes=2)
    queues = [_queues(worker, workers, micro_batches) for worker in range(workers)]
    return Schedule("chimera", workers, micro_batches, _woven(empty, queues), pipes=2)


def _queues(worker: int, workers: int, micro_batches: int) -> list[Queue]:
    """What a worker has to do, in order within a pipe of a unit: the first unit's two, the
    second's, and so on.
    """
    queues = []
    for first in range(0, micro_batches, workers):
        unit = range(first, min(first + workers, micro_batches))
        half = len(unit) // 2
        for pipe, stage, mine in (
            (DOWN, worker, unit[:half]),
            (UP, workers - 1 - worker, unit[half:]),
        ):
            forwards, backwards = (
                [Task(kind, m, stage, pipe) for m in mine] for kind in (FORWARD, BACKWARD)
            )
            queues.append(alternated(forwards, backwards, workers - stage))
    return queues


def _woven(schedule: Schedule, queues: list[list[Queue]]) -> tuple[Queue, ...]:
    """The greedy list schedule, slot by slot: each worker takes a task that is ready, of the
    earliest unit the one of the deepest stage.
    """
    done: set[Task] = set()
    at = [[0] * len(mine) for mine in queues]
    orders: list[list[Task]] = [[] for _ in queues]
    while any(len(order) < sum(map(len, mine)) for order, mine in zip(orders, queues, strict=True)):
        taken = []
        for worker, mine in enumerate(queues):
            heads = [
                (i // schedule.pipes, -queue[n].stage, i)
                for i, (queue, n) in enumerate(zip(mine, at[worker], strict=True))
                if n < len(queue)
            ]
            ready = [
                head
                for head in heads
                if done.issuperset(schedule.needs(mine[head[2]][at[worker][head[2]]]))
            ]
            if ready:
                taken.append((worker, min(ready)[2]))
        for worker, i in taken:  # after all have looked: what ends in this slot helps nobody in it
            task = queues[worker][i][at[worker][i]]
            done.add(task)
            orders[worker].append(task)
            at[worker][i] += 1
    return tuple(map(tuple, orders))
