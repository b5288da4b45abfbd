"""What a pipeline's slowest worker has to do, and how much of filling and draining shows, by schedule.

    stage_s      seconds of one micro-batch on the worker that others wait for
    fill         step = m stage_s + fill (sum_stages - stage_s), transfers counted with their stages

GPipe, 1F1B and interleaving: the slowest stage; `fill` comes with the row. Chimera and zero bubble: `fill` is that of the closed form of
uniform stages (`schedules/closed.py`), whose filling and draining depends on how long the ways there and back take,

    fill = (closed(p, m, F, B, W) - m (F + B)) / ((p - 1) (F + B))

with F, B, W of one layer. With uniform stages the step is then the closed form itself; with a heavy first or last stage it is an estimate,
as (m - 1) max + sum is for 1F1B. A Chimera worker holds a stage of each pipe, each for half of the micro-batches: the outer ones the first
and the last. Axes: N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybridperf.either import array_module
from hybridperf.schedules import closed_form_s
from hybridperf.workloads.transformer.codes import CHIMERA, ZERO_BUBBLE

if TYPE_CHECKING:
    from hybridperf.steps.compose import Features


class Pace(NamedTuple):
    """Of the slowest worker [N]."""

    stage_s: Any
    fill: Any
    layers: Any  # that it has
    embeddings: Any  # 1, or 0; half of one where it is so for half of the micro-batches
    heads: Any


def pace(xp: Any, f: Features, first_s: Any, last_s: Any, other_s: Any) -> Pace:
    """Of a pipeline whose workers hold a stage each; a stage that is alone is the first and the last."""
    stage_s = xp.maximum(xp.maximum(first_s, last_s), other_s)
    at_last = last_s >= stage_s
    at_first = xp.where(at_last, f.stages == 1, first_s >= stage_s)
    layers = xp.where(at_first, f.layers_first, xp.where(at_last, f.layers_last, f.layers_most))
    return Pace(stage_s, f.fill, layers, at_first, at_last)


def woven_pace(
    xp: Any, f: Features, plain: Pace, first_s: Any, last_s: Any, other_s: Any, ways_s: Callable[[], tuple[Any, Any]]
) -> Pace:  # fmt: skip
    """The same where some rows' schedules are not told by their `fill`; `ways_s` gives a layer's seconds there and back."""
    chimera, zero_bubble = f.schedule == CHIMERA, f.schedule == ZERO_BUBBLE
    if array_module(f.schedule) is np and not (chimera | zero_bubble).any():
        return plain
    forward_s, backward_s = ways_s()
    both_s = forward_s + backward_s
    forward, backward = forward_s / both_s, backward_s / both_s  # shares: a layer of one second
    slots = f.fill
    for rows, name in ((chimera, "chimera"), (zero_bubble, "zero_bubble")):
        p, m = xp.where(rows, f.stages, 2), xp.where(rows, f.micro_batches, 2)  # sizes that suit each where they are not asked for
        whole = closed_form_s(name, p, m, forward, backward, weight_s=backward * f.weight_share)
        slots = xp.where(rows, xp.maximum(whole - m, 0.0) / xp.maximum(p - 1, 1), slots)
    outer_s = (first_s + last_s) / 2
    outer = chimera & (outer_s >= other_s)
    return Pace(
        xp.where(chimera, xp.maximum(outer_s, other_s), plain.stage_s), slots,
        xp.where(outer, (f.layers_first + f.layers_last) / 2, xp.where(chimera, f.layers_most, plain.layers)),
        xp.where(chimera, 0.5 * outer, plain.embeddings), xp.where(chimera, 0.5 * outer, plain.heads),
    )  # fmt: skip
