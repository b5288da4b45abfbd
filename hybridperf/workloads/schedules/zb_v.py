"""ZB-V (Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362): two
chunks a worker, laid down the workers and up again like a V, and the weights' gradients split off.

Worker w of p holds stages w and 2p - 1 - w, so the last stage is the first worker's and its
backward pass begins at once. Where F, B - W and W of a stage take as long, f each, nobody waits but
for the first forward pass to come by: a step takes 6 m f + (p - 1) f. Every worker keeps
activations of 2p stages, as 1F1B's first worker does.

Worker w's order (that of PyTorch's ScheduleZBVZeroBubble), lower-case its second chunk:

    fill      2 (p - w) - 1 times F, w times f F, p - w times f b w
    steady    F B W f b w, until forward passes are done; then B W f b w
    drain     w times B b, p - w times B W, and what weights' gradients are left

With q = p - 1 a step takes 2 m (F + B) of a stage and the most of 2 q (I - W), 2 q F - q I - W,
I + (q - 1) W, (2 q - 1) F - (q - 1) I, q I, 2 q F - (2 q + 1) W, (2 q - 1) F + I - 2 q W and
F + (q - 1) W, where I = B - W: read off the graphs of p = 2 to 8, and tested against them. It takes
2p - 1 micro-batches to fill.
"""

from __future__ import annotations

import functools

from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules.order import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Need,
    Schedule,
    ScheduleKind,
    StageSeconds,
    Task,
)

CHUNKS = 2


def zb_v(workers: int, micro_batches: int, chunks: int = CHUNKS) -> Schedule:
    """Each worker's order: numbers of its chunks' passes count up."""
    orders = []
    for worker in range(workers):
        stages = worker, CHUNKS * workers - 1 - worker
        numbers: dict[tuple[str, int], int] = {}
        order = []
        for kind, chunk in _passes(worker, workers, micro_batches):
            number = numbers[kind, chunk] = numbers.get((kind, chunk), -1) + 1
            order.append(Task(kind, number, stages[chunk]))
        orders.append(tuple(order))
    return Schedule(
        "zb_v", workers, micro_batches, tuple(orders), chunks=CHUNKS, splits_backward=True,
        folded=True,
    )  # fmt: skip


def _passes(worker: int, workers: int, micro_batches: int) -> list[tuple[str, int]]:
    """Kinds of tasks and the chunks they are of, in order."""
    down, up = [(FORWARD, 0)], [(FORWARD, 1)]
    back_down, back_up = [(BACKWARD, 0), (WEIGHT, 0)], [(BACKWARD, 1), (WEIGHT, 1)]
    below = workers - worker
    order = (2 * below - 1) * down + worker * (up + down) + below * (up + back_up)
    with_down = micro_batches - 2 * workers + 1 + worker
    for turn in range(micro_batches - workers):
        order += (down if turn < with_down else []) + back_down + up + back_up
    order += worker * (back_down[:1] + back_up[:1]) + below * back_down
    return order + worker * back_up[1:] + worker * back_down[1:]


def _zb_v_s(p: Array, m: Array, v: Array, seconds: StageSeconds) -> Array:
    f, w = seconds.forward / CHUNKS, seconds.weight / CHUNKS
    i = seconds.backward / CHUNKS - w
    xp, q = array_module(p, m, f, i, w), p - 1
    waits_s = (
        2 * q * (i - w), 2 * q * f - q * i - w, i + (q - 1) * w, (2 * q - 1) * f - (q - 1) * i,
        q * i, 2 * q * f - (2 * q + 1) * w, (2 * q - 1) * f + i - 2 * q * w, f + (q - 1) * w,
    )  # fmt: skip
    return 2 * m * (f + i + w) + xp.where(p > 1, functools.reduce(xp.maximum, waits_s), 0.0)


ZB_V = ScheduleKind(
    "zb_v",
    zb_v,
    _zb_v_s,
    lambda w, p, m, v: p + 0 * (w + m),
    folded=True,
    splits_backward=True,
    needs=(
        Need(
            lambda p, m: m >= 2 * p - 1,
            "2 pp - 1 micro-batches or more, got accumulation {m}, pp {p}",
        ),
    ),
)
