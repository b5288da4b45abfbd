"""Schedules with one pipe: GPipe, 1F1B, interleaved 1F1B and the zero-bubble ZB-H1.

    GPipe        all forwards, then all backwards (Huang et al. 2019): (m + p - 1) (F + B), with
                 every micro-batch in flight
    1F1B         p - w forwards on worker w, then a backward for each further forward
                 (PipeDream-Flush, DAPPLE, Megatron): as long as GPipe
    interleaved  1F1B whose workers hold v chunks each, so that a slot of the pipeline is v times
                 shorter (Narayanan et al. 2021): (m + (p - 1) / v) (F + B)
    ZB-H1        1F1B with the weights' gradients split off; worker w does them w micro-batches
                 late, and so has some left to do while it would wait (Qi et al. 2023):
                 m (F + B) + (p - 1) (F + B - 2 W) where W is below F and B - W; no more in flight
                 than 1F1B's first worker has

Symbols as in `order.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules.order import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Need,
    ScheduleKind,
    StageSeconds,
    Task,
)

Orders = list[list[Task]]  # of each worker


def gpipe(workers: int, micro_batches: int, chunks: int = 1) -> Orders:
    """All forwards, then all backwards."""
    batches = range(micro_batches)
    return [both_ways(worker, batches, micro_batches) for worker in range(workers)]


def one_forward_one_backward(workers: int, micro_batches: int, chunks: int = 1) -> Orders:
    """1F1B: after a warm-up each worker alternates forward and backward."""
    batches = range(micro_batches)
    return [both_ways(worker, batches, workers - worker) for worker in range(workers)]


def interleaved(workers: int, micro_batches: int, chunks: int) -> Orders:
    """1F1B over chunks: p micro-batches go through a worker's first chunk, then its second, ..."""
    turns = [
        (chunk, group * workers + m)
        for group in range(micro_batches // workers)
        for chunk in range(chunks)
        for m in range(workers)
    ]
    orders = []
    for worker in range(workers):
        forwards = [Task(FORWARD, m, chunk * workers + worker) for chunk, m in turns]
        last = (chunks - 1) * workers + worker
        backwards = [Task(BACKWARD, m, last - chunk * workers) for chunk, m in turns]
        # the first micro-batch is back after p - 1 - w workers there and back, and must have gone
        # through all chunks but the last before
        ahead = 2 * (workers - 1 - worker) + (chunks - 1) * workers + 1
        orders.append(alternated(forwards, backwards, ahead if chunks > 1 else workers - worker))
    return orders


def zero_bubble(workers: int, micro_batches: int, chunks: int = 1) -> Orders:
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
        put_off = range(max(0, micro_batches - worker), micro_batches)
        orders.append([*order, *(Task(WEIGHT, m, worker) for m in put_off)])
    return orders


def both_ways(stage: int, micro_batches: Sequence[int], ahead: int, pipe: int = 0) -> list[Task]:
    """A stage's forwards and backwards, `alternated`."""
    forwards = [Task(FORWARD, m, stage, pipe) for m in micro_batches]
    return alternated(forwards, [task._replace(kind=BACKWARD) for task in forwards], ahead)


def alternated(forwards: list[Task], backwards: list[Task], ahead: int) -> list[Task]:
    """`ahead` forwards, then a backward and a forward in turn, then what backwards are left."""
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for at, backward in enumerate(backwards):
        order.append(backward)
        order += forwards[at + ahead : at + ahead + 1]
    return order


# seconds and activations
# --------------------------------------------------------------------------------------------------


def _gpipe_s(p: Array, m: Array, v: Array, seconds: StageSeconds) -> Array:
    return (m + p - 1) * (seconds.forward + seconds.backward) + seconds.send * (2 * (p - 1))


def _1f1b_s(p: Array, m: Array, v: Array, seconds: StageSeconds) -> Array:
    """As GPipe; transfers on the longest path differ.

    A round trip of the pipeline takes 2 (p - 1) of them and gives its worker the turn of the
    micro-batch p later; r micro-batches left at the end have a round trip over r - 1 links.
    """
    xp = array_module(p, m)
    trips = xp.floor((m - 1) / p)
    left = m - 1 - trips * p
    sends = 2 * ((p - 1) * (1 + trips) + xp.maximum(left - 1, 0))
    return (m + p - 1) * (seconds.forward + seconds.backward) + seconds.send * sends


def _interleaved_s(p: Array, m: Array, v: Array, seconds: StageSeconds) -> Array:
    return (m + (p - 1) / v) * (seconds.forward + seconds.backward)


def _zero_bubble_s(p: Array, m: Array, v: Array, seconds: StageSeconds) -> Array:
    """The longest of three paths, each down to the last worker and up again.

    All F on the last worker, all W on it or where they are put off no longer; all F and W on the
    first; or no W but those of the last worker's steady state and the very last one.
    """
    forward_s, backward_s, weight_s = seconds[:3]
    xp = array_module(p, m, forward_s, backward_s, weight_s)
    input_s, turns, longer = backward_s - weight_s, m + p - 1, xp.maximum(m, p)
    below_s = turns * forward_s + longer * input_s + m * weight_s
    above_s = longer * forward_s + turns * input_s + m * weight_s
    through_s = turns * (forward_s + input_s) + xp.maximum(m - p + 1, 1) * weight_s
    return xp.maximum(xp.maximum(below_s, above_s), through_s)


def _interleaved_in_flight(w: Array, p: Array, m: Array, v: Array) -> Array:
    """p (1 + (p - 1) / (p v)) on the first worker."""
    xp = array_module(w, p, m, v)
    ahead = xp.where(v > 1, 2 * (p - 1 - w) + (v - 1) * p + 1, p - w)
    return xp.minimum(ahead, m * v) / v


GPIPE = ScheduleKind(
    "gpipe", gpipe, _gpipe_s, lambda w, p, m, v: m + 0 * (w + p), prices_sends=True,
    forwards_first=True, paced=True,
)  # fmt: skip
ONE_F_ONE_B = ScheduleKind(
    "1f1b", one_forward_one_backward, _1f1b_s,
    lambda w, p, m, v: array_module(w, p, m, v).minimum(p - w, m), prices_sends=True,
    paced=True,
)  # fmt: skip
INTERLEAVED = ScheduleKind(
    "interleaved",
    interleaved,
    _interleaved_s,
    _interleaved_in_flight,
    has_chunks=True,
    paced=True,
    needs=(
        Need(
            lambda p, m: m % p == 0,
            "accumulation divisible by pp, got accumulation {m}, pp {p}",
        ),
    ),
)
# activations are kept until the weights' gradients are made
ZERO_BUBBLE = ScheduleKind(
    "zero_bubble", zero_bubble, _zero_bubble_s,
    lambda w, p, m, v: array_module(w, p, m, v).minimum(p, m) + 0 * w, splits_backward=True,
)  # fmt: skip
