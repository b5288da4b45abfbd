"""DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) and DualPipeV, which is DualPipe folded:
a forward and a backward pass of two micro-batches are computed beside each other, so that what
one sends hides behind what the other computes.

DualPipe has two pipes over p workers as Chimera has, each for half of m micro-batches; weights
stand twice. Its pipes mirror each other: worker w has the part of worker p - 1 - w. DualPipeV gives
both stages of a worker of the first half to one worker: 2p stages on p workers like a V, weights
once. So both have one order; with h the halves' workers (p / 2; p) and n the micro-batches of a
chunk (m / 2; m), worker w of h, r = h - 1 - w, lower-case its second chunk (in DualPipe the stage
of the other pipe), & a pair beside each other, I backward but for W:

    fill      2 r times F, w + 1 times F f, r times i w f
    steady    n - 2 h + w + 1 times F&b f&B; the first of them apart on worker h - 1
    drain     r times b f&B, w + 1 times b B, r times W B, and what weights' gradients are left;
              from the middle of b B on all weights' gradients are put off

With J of a pair, which takes no less than F and than B: 2 h F + (2 h + 1) I + (h + 2) W
+ (2 n - h - 2) J + max(0, h F - (h - 1) I) + (h - 1) max(0, I - W), of a stage. Read off the graphs
of h = 1 to 6, and tested against them. Where I > W and (h - 1) I > h F a step of p workers waits
for (p / 2 - 1) (J + B - 3 W) - F: the paper's bubble but for its middle workers' pair that is none.
Every worker keeps activations of 2 h + 1 stages, the paper's p + 1.
"""

from __future__ import annotations

from collections import deque

from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules.order import (
    BACKWARD,
    BOTH_WAYS,
    FORWARD,
    WEIGHT,
    Need,
    ScheduleKind,
    StageSeconds,
    Task,
)

Blocks = list[list[tuple[Task, ...]]]  # of each worker
Pass = tuple[str, int]  # a kind of task and which of a worker's two chunks it is of


def dualpipe(workers: int, micro_batches: int, chunks: int = 1) -> Blocks:
    """Two pipes: a worker's first chunk is of the pipe that begins on its side."""
    half, each = workers // 2, micro_batches // 2
    placed = []
    for worker in range(workers):
        near, pipe = min(worker, workers - 1 - worker), int(worker >= half)
        # the second pipe's micro-batches count on
        stages = (near, pipe, pipe * each), (workers - 1 - near, 1 - pipe, (1 - pipe) * each)
        placed.append(_placed(_blocks(near, half, each), stages))
    return placed


def dualpipe_v(workers: int, micro_batches: int, chunks: int = 2) -> Blocks:
    """DualPipeV: one pipeline folded into a V, two chunks a worker."""
    placed = []
    for worker in range(workers):
        stages = (worker, 0, 0), (2 * workers - 1 - worker, 0, 0)
        placed.append(_placed(_blocks(worker, workers, micro_batches), stages))
    return placed


def _blocks(worker: int, half: int, each: int) -> list[tuple[Pass, ...]]:
    """What a worker runs, blocks of tasks in order."""
    blocks: list[tuple[Pass, ...]] = []
    put_off: deque[Pass] = deque()
    below = half - 1 - worker

    def backward(chunk: int, late: bool, beside: tuple[Pass, ...] = ()) -> None:
        own: tuple[Pass, ...] = ((BACKWARD, chunk),)
        if late:
            put_off.append((WEIGHT, chunk))
        else:
            own += ((WEIGHT, chunk),)
        blocks.append((*beside, *own))

    def weights() -> None:
        if put_off:
            blocks.append((put_off.popleft(),))

    down, up = (FORWARD, 0), (FORWARD, 1)
    blocks += [(down,)] * (2 * below)
    blocks += [(down,), (up,)] * (worker + 1)
    for _ in range(below):
        backward(1, late=True)
        weights()
        blocks.append((up,))
    for turn in range(each - 2 * half + worker + 1):
        apart = turn == 0 and below == 0
        blocks += [(down,)] * apart
        backward(1, late=False, beside=() if apart else (down,))
        backward(0, late=False, beside=(up,))
    for _ in range(below):
        backward(1, late=False)
        backward(0, late=False, beside=(up,))
    for turn in range(worker + 1):  # the middle lies between a pair or before it
        middle = (worker + 1) // 2
        backward(1, late=turn >= middle + (worker % 2 == 0))
        backward(0, late=turn >= middle)
    for _ in range(below):
        weights()
        backward(0, late=True)
    while put_off:
        weights()
    return blocks


def _placed(
    blocks: list[tuple[Pass, ...]], stages: tuple[tuple[int, int, int], ...]
) -> list[tuple[Task, ...]]:
    """Blocks of tasks; of each chunk its (stage, pipe, first micro-batch): its passes count up."""
    numbers: dict[Pass, int] = {}

    def task(one: Pass) -> Task:
        kind, chunk = one
        stage, pipe, first = stages[chunk]
        number = numbers[one] = numbers.get(one, first - 1) + 1
        return Task(kind, number, stage, pipe)

    return [tuple(map(task, block)) for block in blocks]


def _dual_s(h: Array, n: Array, s: StageSeconds) -> Array:
    xp, i = array_module(h, n, *s), s.backward - s.weight
    fills_s = 2 * h * s.forward + (2 * h + 1) * i + (h + 2) * s.weight
    waits_s = xp.maximum(h * s.forward - (h - 1) * i, 0.0)
    waits_s = waits_s + (h - 1) * xp.maximum(i - s.weight, 0.0)
    pair_s = xp.maximum(s.joint, xp.maximum(s.forward, s.backward))
    return fills_s + (2 * n - h - 2) * pair_s + waits_s


_FILLED = Need(lambda p, m: m >= 2 * p, "2 pp micro-batches or more, got accumulation {m}, pp {p}")
DUALPIPE = ScheduleKind(
    "dualpipe",
    dualpipe,
    lambda p, m, v, seconds: _dual_s(p / 2, m / 2, seconds),
    lambda w, p, m, v: p + 1 + 0 * (w + m),
    pipes=2,
    in_pairs=True,
    splits_backward=True,
    needs=(*BOTH_WAYS, _FILLED),
)
DUALPIPE_V = ScheduleKind(
    "dualpipe_v",
    dualpipe_v,
    lambda p, m, v, seconds: _dual_s(p, m, StageSeconds(*(one / 2 for one in seconds))),
    lambda w, p, m, v: p + 0.5 + 0 * (w + m),
    folded=True,
    in_pairs=True,
    splits_backward=True,
    needs=(_FILLED,),
)
