"""A schedule as a graph, evaluated: what closed forms and the composition of steps are held
against. Each worker is a rank that computes its tasks in order.

Each stage has rows of its own in the duration table, one for each kind of task and one for what it
exchanges with the next stage, in the order of `Schedule.kinds`, then transfers. Two ways to send:

    overlapped   on a stream of its own: the receiver waits, the sender goes on (`isend`)
    blocking     on the sender's stream of computations: it waits until the transfer is over
                 (Megatron without `--overlap-p2p`)

Each link is a stream per worker and direction: two transfers the same way follow each other, those
against each other do not meet.
"""

import itertools
from collections import Counter

import numpy as np

from hybridperf.engine.evaluate import last_ends
from hybridperf.engine.graph import COMPUTE, GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.workloads.schedules import BACKWARD, FORWARD, WEIGHT, Schedule, Task

DOWNSTREAM, UPSTREAM = "send_activations", "send_gradients"


def stage_seconds(schedule, forward_s, backward_s, weight_s=0.0, send_s=0.0) -> np.ndarray:
    """Seconds of each row, from those of each stage [S] or of all of them [].

    `backward_s` is the whole backward; `weight_s` is what of it a schedule that splits it puts off,
    and ignored by others.
    """
    size = schedule.stages
    split = schedule.kind.splits_backward
    parts = [forward_s, np.subtract(backward_s, weight_s if split else 0.0)]
    parts += [weight_s] if split else []
    of_stages = [np.broadcast_to(part, (size,)) for part in parts]
    return np.concatenate([*of_stages, np.broadcast_to(send_s, (size - 1,))]).astype(np.float64)


def schedule_graph(schedule, *, blocking=False):
    """The graph of a schedule alone."""
    builder, nodes = GraphBuilder(), {}
    arrived = {}  # the transfer that brings what a task needs from another worker
    sends = 1 + schedule.stages * len(schedule.kinds)  # row of the first transfer
    for task in schedule.issue_order():
        rank = schedule.worker_of(task)
        waits = [nodes[need] for need in schedule.needs(task) if schedule.worker_of(need) == rank]
        if task == schedule.block(task)[0]:
            waits += [arrived[own] for own in schedule.block(task) if own in arrived]
        row = 1 + schedule.kinds.index(task.kind) * schedule.stages + task.stage
        nodes[task] = builder.op(row, label=str(task), rank=rank, after=waits)
        for sent, after in schedule.sent_with(task):
            row = sends + min(sent.stage, after.stage)
            stream = DOWNSTREAM if sent.kind == FORWARD else UPSTREAM
            arrived[after] = builder.op(
                row,
                label=f"send {sent}",
                rank=rank,
                stream=COMPUTE if blocking else stream,
                after=[nodes[task]],
            )
    return builder.build()


def graph_seconds(
    schedule, forward_s, backward_s, *, weight_s=0.0, send_s=0.0, blocking=False
) -> float:
    """Seconds until the last task ends, by the graph; arguments as for `stage_seconds`."""
    seconds = stage_seconds(schedule, forward_s, backward_s, weight_s, send_s)
    program = lower(schedule_graph(schedule, blocking=blocking)).program
    return float(last_ends(program, seconds[:, None].astype(np.float32))[0])


def checked(schedule: Schedule) -> Schedule:
    """The schedule itself; `InputError` where a task is missing or misplaced, or never runs."""
    if len(schedule.orders) != schedule.workers:
        raise _wrong(
            schedule,
            f"has {len(schedule.orders)} orders, expected one for each of {schedule.workers}"
            " workers",
        )
    seen: Counter[tuple[str, int, int]] = Counter()
    pipe_of: dict[int, int] = {}
    for worker, order in enumerate(schedule.orders):
        for task in order:
            known = task.kind in schedule.kinds and 0 <= task.micro_batch < schedule.micro_batches
            known = known and 0 <= task.stage < schedule.stages
            if not (known and 0 <= task.pipe < schedule.kind.pipes):
                raise _wrong(
                    schedule, f"has a task {task} on worker {worker}, which it has no place for"
                )
            if (place := schedule.worker_of(task)) != worker:
                raise _wrong(schedule, f"has {task} on worker {worker}, expected worker {place}")
            if pipe_of.setdefault(task.micro_batch, task.pipe) != task.pipe:
                raise _wrong(
                    schedule, f"sends micro-batch {task.micro_batch} through both pipes; choose one"
                )
            seen[task[:3]] += 1
    micro_batches, stages = range(schedule.micro_batches), range(schedule.stages)
    for one in itertools.product(schedule.kinds, micro_batches, stages):
        if seen[one] != 1:
            raise _wrong(schedule, f"has {Task(*one)} {seen[one]} times, expected once")
    schedule.replay(lambda task: 1.0)
    return schedule


def _wrong(schedule: Schedule, sentence: str) -> InputError:
    return InputError(f"schedule {schedule.kind.name!r} {sentence}")


def in_flight_of(schedule: Schedule) -> list[int]:
    """Most (micro-batch, stage) pairs whose activations each worker keeps at a time: from the
    forward task to the last that needs them; [workers].
    """
    last = WEIGHT if schedule.kind.splits_backward else BACKWARD
    most = []
    for order in schedule.orders:
        kept, peak = 0, 0
        for task in order:
            kept += (task.kind == FORWARD) - (task.kind == last)
            peak = max(peak, kept)
        most.append(peak)
    return most
