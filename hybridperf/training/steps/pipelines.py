"""What a pipeline's slowest worker has to do, and how long it waits while the pipeline fills and
drains, by schedule.

    GPipe, 1F1B, interleaved    slowest stage; waits fill (sum_stages - max_stage), `fill` as the
                                row has it
    zero bubble                 the same, with the fill that makes it the closed form of uniform
                                stages (`schedules/names.py`), which depends on the seconds F, B, W
                                of a layer forward, backward, and for its weights' gradients:
                                fill = (closed(p, m, F, B, W) - m (F + B)) / ((p - 1) (F + B))
    Chimera                     a worker has a stage of each pipe, each for half of the
                                micro-batches: the outer workers (first + last) / 2, the others one
                                of the rest. Uniform ones take c(F, B) stages by the closed form.
                                Where one kind has more to do, l s a micro-batch the less and h the
                                more, its work partly fills the bubbles: halfway between
                                max(c l, m h), the lower bound, and c l + m (h - l)

Both are the closed form itself where stages are uniform. Against their graphs with a head of up to
two thirds of a stage: zero bubble to rounding, Chimera within 6 % (1.6 % on average). Axes: N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io.namespace import Array, array_module
from hybridperf.training.steps.step_features import StepFeatures
from hybridperf.workloads.schedules import closed_form_s
from hybridperf.workloads.transformer.columns import CHIMERA, ZERO_BUBBLE


class Stages(NamedTuple):
    """Seconds of one micro-batch [N]."""

    first_s: Array
    last_s: Array
    other_s: Array  # of the fullest between them; 0 where there is none
    sum_s: Array  # of all


class Pace(NamedTuple):
    """Of the slowest worker [N]."""

    stage_s: Array  # of a micro-batch
    waits_s: Array  # for other stages, in a step
    layers: Array  # that it has
    embeddings: Array  # 1, or 0; half of one where it is so for half of the micro-batches
    heads: Array


def pace(xp: Any, f: StepFeatures, stages: Stages) -> Pace:
    """Pace of workers that hold a stage each; a stage that is alone is the first and the last."""
    stage_s = xp.maximum(xp.maximum(stages.first_s, stages.last_s), stages.other_s)
    at_last = stages.last_s >= stage_s
    at_first = xp.where(at_last, f.stages == 1, stages.first_s >= stage_s)
    layers = xp.where(at_first, f.layers_first, xp.where(at_last, f.layers_last, f.layers_most))
    waits_s = f.fill * xp.maximum(stages.sum_s - stage_s, 0.0)
    return Pace(stage_s, waits_s, layers, at_first, at_last)


def interleaved_pace(
    xp: Any, f: StepFeatures, plain: Pace, stages: Stages,
    pass_seconds: Callable[[], tuple[Array, Array]],
) -> Pace:  # fmt: skip
    """Pace with zero bubble and Chimera among the rows; `pass_seconds`: of a layer, both ways."""
    chimera, zero_bubble = f.schedule == CHIMERA, f.schedule == ZERO_BUBBLE
    if array_module(f.schedule) is np and not np.any(chimera | zero_bubble):
        return plain
    forward_s, backward_s = pass_seconds()
    both_s = forward_s + backward_s
    forward, backward = forward_s / both_s, backward_s / both_s  # of a stage that takes one second

    def closed(name: str, rows: Array) -> Array:
        # other rows' sizes may not suit the schedule
        p, m = xp.where(rows, f.stages, 2), xp.where(rows, f.micro_batches, 2)
        return closed_form_s(name, p, m, forward, backward, weight_s=backward * f.weight_share)

    m = f.micro_batches
    fill = xp.maximum(closed("zero_bubble", zero_bubble) - m, 0.0) / xp.maximum(f.stages - 1, 1)
    filling_s = fill * xp.maximum(stages.sum_s - plain.stage_s, 0.0)
    waits_s = xp.where(zero_bubble, filling_s, plain.waits_s)
    outer_s = (stages.first_s + stages.last_s) / 2
    inner_s = xp.where(f.stages > 2, stages.other_s, outer_s)
    less_s, more_s = xp.minimum(outer_s, inner_s), xp.maximum(outer_s, inner_s)
    uniform_s = closed("chimera", chimera) * less_s
    whole_s = (xp.maximum(uniform_s, m * more_s) + uniform_s + m * (more_s - less_s)) / 2
    outer = chimera & (outer_s >= inner_s)
    of_chimera = xp.where(chimera, f.layers_most, plain.layers)
    return Pace(
        xp.where(chimera, more_s, plain.stage_s),
        xp.where(chimera, xp.maximum(whole_s - m * more_s, 0.0), waits_s),
        xp.where(outer, (f.layers_first + f.layers_last) / 2, of_chimera),
        xp.where(chimera, 0.5 * outer, plain.embeddings),
        xp.where(chimera, 0.5 * outer, plain.heads),
    )
