"""Schedules with one pipe: GPipe, 1F1B, interleaved 1F1B and the zero-bubble ZB-H1.

    GPipe        all forwards, then all backwards (Huang et al. 2019): as long as 1F1B, with every
                 micro-batch in flight
    1F1B         p - w forwards on worker w, then a backward for each further forward
                 (PipeDream-Flush, DAPPLE, Megatron)
    interleaved  1F1B whose workers hold v chunks each, so that a slot of the pipeline is v times
                 shorter (Narayanan et al. 2021)
    ZB-H1        1F1B with the weights' gradients split off; worker w does them w micro-batches
                 late, and so has some left to do while it would wait (Qi et al. 2023); no more in
                 flight than 1F1B's first worker has

Axes: p workers, m micro-batches, v chunks.
"""

from __future__ import annotations

from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, WEIGHT, Schedule, Task


def gpipe(workers: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards."""
    orders = tuple(
        tuple(Task(kind, m, worker) for kind in (FORWARD, BACKWARD) for m in range(micro_batches))
        for worker in range(workers)
    )
    return Schedule("gpipe", workers, micro_batches, orders)


def one_forward_one_backward(workers: int, micro_batches: int) -> Schedule:
    """1F1B."""
    orders = tuple(
        alternated(
            [Task(FORWARD, m, worker) for m in range(micro_batches)],
            [Task(BACKWARD, m, worker) for m in range(micro_batches)],
            workers - worker,
        )
        for worker in range(workers)
    )
    return Schedule("1f1b", workers, micro_batches, orders)


def interleaved(workers: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B over chunks: p micro-batches go through a worker's first chunk, then through its second,
    and so on; m is a multiple of p.
    """
    turns = [
        (chunk, group * workers + m)
        for group in range(micro_batches // workers)
        for chunk in range(chunks)
        for m in range(workers)
    ]
    orders = []
    for worker in range(workers):
        forwards = [Task(FORWARD, m, chunk * workers + worker) for chunk, m in turns]
        backwards = [
            Task(BACKWARD, m, (chunks - 1 - chunk) * workers + worker) for chunk, m in turns
        ]
        # the first micro-batch is back after p - 1 - w workers there and back, and must have gone
        # through all chunks but the last before
        ahead = 2 * (workers - 1 - worker) + (chunks - 1) * workers + 1
        orders.append(alternated(forwards, backwards, ahead if chunks > 1 else workers - worker))
    return Schedule("interleaved", workers, micro_batches, tuple(orders), chunks=chunks)


def zero_bubble(workers: int, micro_batches: int) -> Schedule:
    """ZB-H1: worker w puts off the weights' gradients by w micro-batches."""
    orders = []
    for worker in range(workers):
        ahead = min(workers - worker, micro_batches)
        order = [Task(FORWARD, m, worker) for m in range(ahead)]
        for m in range(micro_batches):
            order.append(Task(BACKWARD, m, worker))
            if m >= worker:
                order.append(Task(WEIGHT, m - worker, worker))
            if m + ahead < micro_batches:
                order.append(Task(FORWARD, m + ahead, worker))
        order += [
            Task(WEIGHT, m, worker) for m in range(max(0, micro_batches - worker), micro_batches)
        ]
        orders.append(tuple(order))
    return Schedule("zero_bubble", workers, micro_batches, tuple(orders), splits_backward=True)


def alternated(forwards: list[Task], backwards: list[Task], ahead: int) -> tuple[Task, ...]:
    """`ahead` forwards, then a backward and a forward in turn, then what backwards are left."""
    ahead = min(ahead, len(forwards))
    order = list(forwards[:ahead])
    for at, backward in enumerate(backwards):
        order.append(backward)
        order += forwards[at + ahead : at + ahead + 1]
    return tuple(order)
