"""A schedule as a graph: each worker a rank that computes its tasks in order, activations and their
gradients sent between workers.

Stages need not be alike (the first one embeds, the last has logits and loss), so each has rows of
its own in the duration table: one for each kind of task, and one for what it exchanges with the
next stage. Two ways to send:

    beside   on a stream of its own: the receiver waits, the sender goes on
             (overlapped; `isend`)
    held     on the sender's stream of computations: it waits until the transfer is over
             (Megatron without `--overlap-p2p`)

Each link is a stream per worker and direction: two transfers the same way follow each other, those
against each other do not meet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.engine.evaluate import makespan
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.engine.outputs import COMPUTE
from hybridperf.io import InputError
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, WEIGHT, Schedule, Task

DOWNSTREAM, UPSTREAM = "send_activations", "send_gradients"


@dataclasses.dataclass(frozen=True)
class StageRows:
    """Rows of the duration table, by stage; S = `Schedule.stages`."""

    forward: Sequence[int]  # [S]
    backward: Sequence[int]  # [S]; of the inputs' gradients alone where the backward is split
    weight: Sequence[int] = ()  # [S] where the backward is split
    send: Sequence[
        int
        # [S - 1] between stage s and s + 1, activations there and gradients back; empty: takes no
        # time
    ] = ()

    @staticmethod
    def numbered(schedule: Schedule, first: int = 1) -> StageRows:
        """Rows one after the other from `first`: forwards, backwards, weights' gradients if there
        are any, transfers.
        """
        size = schedule.stages
        kinds = len(schedule.kinds)
        starts = [first + kind * size for kind in range(kinds + 1)]
        weight = range(starts[2], starts[2] + size) if kinds == 3 else ()
        return StageRows(
            range(starts[0], starts[1]),
            range(starts[1], starts[2]),
            weight,
            range(starts[-1], starts[-1] + size - 1),
        )

    def of(self, task: Task) -> int:
        """Row of a task."""
        return {FORWARD: self.forward, BACKWARD: self.backward, WEIGHT: self.weight}[task.kind][
            task.stage
        ]


def stage_seconds(
    schedule: Schedule, forward_s: Any, backward_s: Any, weight_s: Any = 0.0, send_s: Any = 0.0
) -> np.ndarray:
    """Seconds in the order of `StageRows.numbered` [U], from those of each stage [S] or of all of
    them [].

    `backward_s` is the whole backward; `weight_s` is what of it a schedule that splits it puts off,
    and ignored by others.
    """
    size = schedule.stages
    backward = np.broadcast_to(
        np.subtract(backward_s, weight_s if schedule.splits_backward else 0.0), (size,)
    )
    parts = [np.broadcast_to(forward_s, (size,)), backward]
    parts += [np.broadcast_to(weight_s, (size,))] if schedule.splits_backward else []
    return np.concatenate([*parts, np.broadcast_to(send_s, (size - 1,))]).astype(np.float64)


def add_schedule(
    builder: GraphBuilder,
    schedule: Schedule,
    rows: StageRows,
    *,
    ranks: Sequence[int] = (),
    held: bool = False,
) -> dict[Task, int]:
    """Add a schedule's tasks to a graph; their nodes. `ranks` [workers] names the workers' ranks,
    0, 1, ... if not given.

    What follows the step, a reduction of gradients or an optimizer, may wait for the nodes of a
    worker's last tasks.
    """
    ranks = ranks or range(schedule.workers)
    _check_rows(schedule, rows, ranks)
    nodes: dict[Task, int] = {}
    arrived: dict[Task, int] = {}  # the transfer that brings what a task needs from another worker
    for task in schedule.issue_order():
        worker = schedule.worker_of(task)
        waits = [nodes[need] for need in schedule.needs(task) if schedule.worker_of(need) == worker]
        waits += [arrived[task]] if task in arrived else []
        nodes[task] = builder.op(rows.of(task), label=str(task), rank=ranks[worker], after=waits)
        after = _next_stage(schedule, task)
        if after is not None and schedule.worker_of(after) != worker:
            row = rows.send[min(task.stage, after.stage)] if len(rows.send) else 0
            stream = COMPUTE if held else DOWNSTREAM if task.kind == FORWARD else UPSTREAM
            arrived[after] = builder.op(
                row, label=f"send {task}", rank=ranks[worker], stream=stream, after=[nodes[task]]
            )
    return nodes


def schedule_graph(
    schedule: Schedule, rows: StageRows | None = None, *, held: bool = False
) -> Graph:
    """The graph of a schedule alone, of rows numbered from 1 if none are given."""
    builder = GraphBuilder()
    add_schedule(builder, schedule, rows or StageRows.numbered(schedule), held=held)
    return builder.build()


def graph_seconds(
    schedule: Schedule,
    forward_s: Any,
    backward_s: Any,
    *,
    weight_s: Any = 0.0,
    send_s: Any = 0.0,
    held: bool = False,
) -> float:
    """Seconds until the last task ends, by the graph; arguments as for `stage_seconds`."""
    seconds = stage_seconds(schedule, forward_s, backward_s, weight_s, send_s)
    program = lower(schedule_graph(schedule, held=held)).program
    return float(makespan(program, seconds[:, None].astype(np.float32))[0])


def _next_stage(schedule: Schedule, task: Task) -> Task | None:
    """The task of another stage that uses what this one makes."""
    if task.kind == FORWARD and task.stage + 1 < schedule.stages:
        return task._replace(stage=task.stage + 1)
    return task._replace(stage=task.stage - 1) if task.kind == BACKWARD and task.stage else None


def _check_rows(schedule: Schedule, rows: StageRows, ranks: Sequence[int]) -> None:
    size = schedule.stages
    expected = {
        "forward": size,
        "backward": size,
        "weight": size if schedule.splits_backward else 0,
    }
    for name, count in expected.items():
        if len(getattr(rows, name)) != count:
            raise InputError(
                f"schedule {schedule.name!r} needs {count} {name} rows, one for each stage, got"
                f" {len(getattr(rows, name))}"
            )
    if len(rows.send) not in (0, size - 1):
        raise InputError(
            f"schedule {schedule.name!r} needs {size - 1} rows of transfers between {size} stages,"
            f" or none, got {len(rows.send)}"
        )
    if len(ranks) != schedule.workers:
        raise InputError(
            f"schedule {schedule.name!r} needs a rank for each of {schedule.workers} workers, got"
            f" {len(ranks)}"
        )
