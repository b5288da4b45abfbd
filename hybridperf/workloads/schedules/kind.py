"""What one pipeline schedule answers. To add a schedule: a file that makes its `ScheduleKind`, and
its place in `names.KINDS`; unlike stages (`pace.py`) only where it differs from 1F1B.

Symbols: p workers, m micro-batches, v chunks per worker; F and B seconds of one worker's forward
and backward of one micro-batch, W the part of B that makes the weights' gradients. All formulas
take NumPy columns and numbers that JAX traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hybridperf.io.namespace import Array
from hybridperf.workloads.schedules.order import Schedule


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
    order: Callable[[int, int, int], Schedule]  # (p, m, v)
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
    needs: tuple[Need, ...] = ()
