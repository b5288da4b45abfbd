"""What a pipeline's workers do, one thing after the other: the order of a schedule, without a
single second in it.

The layers of a model are cut into stages; a micro-batch goes forward through stage 0, 1, ... and
backward through ..., 1, 0. Each worker has its tasks in a fixed order and begins the next one as
soon as what it needs is done:

    F(m, s) needs F(m, s - 1)                       forward
    B(m, s) needs F(m, s) and B(m, s + 1)           backward; where it is split, the gradient of the
                                                    stage's input alone
    W(m, s) needs B(m, s)                           the gradient of the stage's weights, where it is
                                                    split off

So an order and the seconds of its tasks give all times; `replay` is that sentence as a loop.

A block of tasks of one worker (`joint`) begins once all is there that any of them needs, and hands
its results on when the last of them ends: a backward pass that is not cut in two, or a forward and
a backward pass that are computed beside each other.

Worker w of p holds stage w; with v chunks stages w, w + p, w + 2p, ...; folded like a V stages w
and 2p - 1 - w; in a second pipe, which runs the other way, also stage p - 1 - w.

To add a schedule: a file that makes its `ScheduleKind`, and its place in `names.KINDS`; unlike
stages (`pace.py`) only where it differs from 1F1B. Symbols: p workers, m micro-batches, v chunks
per worker; F and B seconds of one worker's forward and backward of one micro-batch, W the part of B
that makes the weights' gradients. All formulas take NumPy columns and numbers that JAX traces.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hybridperf.io import InputError
from hybridperf.io.namespace import Array

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"


class Task(NamedTuple):
    """One stage's work on one micro-batch. Micro-batches, stages and pipes count from 0."""

    kind: str  # FORWARD, BACKWARD or WEIGHT
    micro_batch: int
    stage: int
    pipe: int = 0

    def __str__(self) -> str:
        upwards = " upwards" if self.pipe else ""
        return f"{self.kind}{self.micro_batch} of stage {self.stage}{upwards}"


class TaskTime(NamedTuple):
    """When a task runs, in seconds from the start of the step."""

    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Which worker runs which task of a pipeline, in which order."""

    kind: ScheduleKind
    workers: int
    micro_batches: int
    orders: Sequence[Sequence[Task]]  # [workers]
    chunks: int = 1  # stages per worker and pipe
    joint: Mapping[Task, tuple[Task, ...]] = dataclasses.field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Stages that the model is cut into."""
        return self.workers * self.chunks

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of tasks that it has."""
        return (FORWARD, BACKWARD, WEIGHT) if self.kind.splits_backward else (FORWARD, BACKWARD)

    def worker_of(self, task: Task) -> int:
        """The worker that holds the task's stage."""
        turn, place = divmod(task.stage, self.workers)
        return self.workers - 1 - place if task.pipe or (self.kind.folded and turn) else place

    def stages_of(self, worker: int) -> tuple[int, ...]:
        """Stages that a worker holds, those of its second pipe behind those of its first."""
        firsts = (worker, self.workers - 1 - worker)[: self.kind.pipes]
        if self.kind.folded:
            return (worker, self.stages - 1 - worker)
        return tuple(first + at * self.workers for first in firsts for at in range(self.chunks))

    def block(self, task: Task) -> tuple[Task, ...]:
        """The tasks that hand their results on together with this one."""
        return self.joint.get(task, (task,))

    def needs(self, task: Task) -> tuple[Task, ...]:
        """Tasks that must be done before this one, besides those before it on its worker."""
        block = self.block(task)
        if task != block[0]:
            return ()
        inputs = (each for own in block for each in self._inputs(own) if each not in block)
        return tuple(self.block(each)[-1] for each in inputs)

    def _inputs(self, task: Task) -> tuple[Task, ...]:
        """Tasks whose results one works on."""
        if task.kind == FORWARD:
            return (task._replace(stage=task.stage - 1),) if task.stage else ()
        if task.kind == WEIGHT:
            return (task._replace(kind=BACKWARD),)
        own = task._replace(kind=FORWARD)
        last = task.stage == self.stages - 1
        return (own,) if last else (own, task._replace(stage=task.stage + 1))

    def replay(self, seconds: Callable[[Task], float]) -> dict[Task, TaskTime]:
        """When each task runs, transfers taking no time; `InputError` for a deadlock."""
        done: dict[Task, TaskTime] = {}
        at, free_s = [0] * self.workers, [0.0] * self.workers
        to_try = list(range(self.workers))
        while to_try:
            worker = to_try.pop()
            while at[worker] < len(self.orders[worker]):
                task = self.orders[worker][at[worker]]
                needed = self.needs(task)
                if any(each not in done for each in needed):
                    break
                start_s = max([free_s[worker], *(done[each].end_s for each in needed)])
                free_s[worker] = start_s + seconds(task)
                done[task] = TaskTime(start_s, free_s[worker])
                at[worker] += 1
                to_try.extend(self.worker_of(to) for _, to in self.sent_with(task))
        orders = enumerate(zip(self.orders, at, strict=True))
        waiting = ((worker, order[i]) for worker, (order, i) in orders if i < len(order))
        for worker, task in waiting:
            missing = next(each for each in self.needs(task) if each not in done)
            waits = f"worker {worker} waits before {task} for {missing}; mend the orders"
            raise InputError(f"schedule {self.kind.name!r} never ends: {waits}")
        return done

    def issue_order(self) -> list[Task]:
        """All tasks by when they would begin if each took as long: after what they need."""
        starts = self.replay(lambda task: 1.0)
        return sorted(starts, key=lambda task: (starts[task].start_s, self.worker_of(task)))

    def sent_with(self, task: Task) -> list[tuple[Task, Task]]:
        """Results that another worker needs and that are there once a task is done, each with the
        task that needs it.
        """
        block = self.block(task)
        if task != block[-1]:
            return []
        found = []
        for own in block:
            stage = own.stage + {FORWARD: 1, BACKWARD: -1}.get(own.kind, self.stages)
            to = own._replace(stage=stage)
            if 0 <= stage < self.stages and self.worker_of(to) != self.worker_of(own):
                found.append((own, to))
        return found


class StageSeconds(NamedTuple):
    """Seconds of one worker on one micro-batch, over all its chunks."""

    forward: Array
    backward: Array  # the whole of it
    weight: Array  # the part of the backward that makes the weights' gradients
    send: Array  # one transfer to the next worker
    joint: Array  # a forward and a backward pass beside each other, as far as they overlap


class Need(NamedTuple):
    """What a schedule asks of its sizes."""

    holds: Callable[[Array, Array], Array]  # (p, m)
    words: str  # behind "NAME needs"


BOTH_WAYS = (
    Need(lambda p, m: p % 2 == 0, "an even number of stages, got pp {p}"),
    Need(
        lambda p, m: m % 2 == 0,
        "an even number of micro-batches, half for each direction, got accumulation {m}",
    ),
)


class ScheduleKind(NamedTuple):
    """A schedule's order, closed form, activations and limits."""

    name: str
    # (p, m, v): tasks of each worker; of one with passes beside each other blocks of them
    order: Callable[[int, int, int], list[list[Any]]]
    step_s: Callable[[Array, Array, Array, StageSeconds], Array]  # (p, m, v, seconds)
    in_flight: Callable[[Array, Array, Array, Array], Array]  # (worker, p, m, v)
    prices_sends: bool = False  # whether `step_s` knows what transfers add
    has_chunks: bool = False
    folded: bool = False  # two chunks a worker, dealt down the workers and up again
    pipes: int = 1  # 2: every weight stands on two workers
    in_pairs: bool = False  # forward and backward passes beside each other
    splits_backward: bool = False  # into the gradients of inputs and those of weights
    # no backward begins before all forwards: the last stage keeps every micro-batch's loss, and a
    # single worker accumulates gradients instead, a backward after each forward
    forwards_first: bool = False
    # `pace.py` knows what unlike stages do to it; of others with one pipe, that they take the waits
    # which `step_s` has
    paced: bool = False
    needs: tuple[Need, ...] = ()

    def schedule(self, workers: int, micro_batches: int, chunks: int) -> Schedule:
        """The order of tasks for some sizes."""
        orders = self.order(workers, micro_batches, chunks)
        joint: dict[Task, tuple[Task, ...]] = {}
        if self.in_pairs:
            blocks = itertools.chain.from_iterable(orders)
            joint = {task: block for block in blocks if len(block) > 1 for task in block}
            orders = [list(itertools.chain.from_iterable(mine)) for mine in orders]
        return Schedule(self, workers, micro_batches, orders, chunks, joint)
