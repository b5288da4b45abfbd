"""What a pipeline's slowest worker has to do, and how long it waits while the pipeline fills and
drains, by schedule.

    1F1B                        all stages once, and the others of m micro-batches on the stage that
                                adds most: behind its first p - s forwards (stage s of p), which
                                fill what it would wait, each adds a forward and a backward pass
    GPipe                       all stages once, and m - 1 times the slowest forward and the slowest
                                backward pass
    interleaved                 slowest stage; waits fill (sum_stages - max_stage), `fill` as the
                                row has it
    zero bubble                 as interleaved, by the fill that makes it the closed form of equal
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

import functools
from typing import Any

import numpy as np

from hybridperf.engine.step_features import Pace, Passes, Stages, StepFeatures
from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules.names import closed_form_s
from hybridperf.workloads.transformer.columns import CHIMERA, ZERO_BUBBLE


def pace(xp: Any, f: StepFeatures, stages: Stages, passes_s: tuple[Array, Array]) -> Pace:
    """Pace of the slowest worker by each row's schedule; `passes_s`: of a layer, both ways."""
    found = plain_pace(xp, f, stages)
    return found if f.schedule is None else interleaved_pace(xp, f, found, stages, passes_s)


def plain_pace(xp: Any, f: StepFeatures, stages: Stages) -> Pace:
    """Pace of workers that hold a stage each."""
    first_s, last_s, other_s = (one.both_s for one in (stages.first, stages.last, stages.other))
    stage_s = xp.maximum(xp.maximum(first_s, last_s), other_s)
    at_last = last_s >= stage_s
    at_first = xp.where(at_last, f.stages == 1, first_s >= stage_s)
    layers = xp.where(at_first, f.layers_first, xp.where(at_last, f.layers_last, f.layers_most))
    waits_s = f.fill * xp.maximum(stages.sum_s - stage_s, 0.0)
    m = f.micro_batches

    def added_s(passes: Passes, ahead: Array) -> Array:
        more = xp.maximum(passes.forward, passes.backward)
        less = xp.minimum(passes.forward, passes.backward)
        return (m - 1) * more + xp.maximum(m - ahead, 0.0) * less

    kinds = (stages.first, f.stages), (stages.other, 2.0), (stages.last, 1.0)
    # round the stages behind once more, to the last micro-batch's backward pass
    behind_s = stages.sum_s - first_s, last_s, 0.0
    again_s = (
        xp.where(m >= ahead, behind + (m - ahead) * passes.both_s, 0.0)
        for (passes, ahead), behind in zip(kinds, behind_s, strict=True)
    )
    every = (*(added_s(*kind) for kind in kinds), *again_s)
    one_f_one_b_s = functools.reduce(xp.maximum, every)
    # a last stage with little to do holds nobody up: the second forward pass turns before it
    turns_s = (first.forward * (m > 1) + added_s(first, f.stages) for first in stages[:2])
    turns_s = stages.sum_s - last_s + functools.reduce(xp.maximum, turns_s)
    forward, backward = (
        functools.reduce(xp.maximum, (kind[0][at] for kind in kinds)) for at in (0, 1)
    )
    added = xp.where(f.forwards_first > 0, (m - 1) * (forward + backward), one_f_one_b_s)
    whole_s = stages.sum_s + added
    whole_s = xp.where(f.forwards_first > 0, whole_s, xp.maximum(whole_s, turns_s))
    plain_s = xp.maximum(whole_s - m * stage_s, 0.0)
    waits_s = xp.where(f.chunks > 1, waits_s, xp.where(f.stages > 1, plain_s, 0.0))
    return Pace(stage_s, waits_s, layers, at_first, at_last)


def interleaved_pace(
    xp: Any, f: StepFeatures, plain: Pace, stages: Stages, passes_s: tuple[Array, Array]
) -> Pace:
    """Pace with zero bubble and Chimera among the rows; `passes_s`: of a layer, both ways."""
    chimera, zero_bubble = f.schedule == CHIMERA, f.schedule == ZERO_BUBBLE
    if array_module(f.schedule) is np and not np.any(chimera | zero_bubble):
        return plain
    forward_s, backward_s = passes_s
    both_s = forward_s + backward_s
    forward, backward = forward_s / both_s, backward_s / both_s  # of a stage that takes one second

    def closed(name: str, rows: Array) -> Array:
        # other rows' sizes may not suit the schedule
        p, m = xp.where(rows, f.stages, 2), xp.where(rows, f.micro_batches, 2)
        return closed_form_s(name, p, m, forward, backward, weight_s=backward * f.weight_share)

    m = f.micro_batches
    fill = xp.maximum(closed("zero_bubble", zero_bubble) - m, 0.0) / xp.maximum(f.stages - 1, 1)
    filling_s = fill * xp.maximum(stages.sum_s - plain.stage_s, 0.0)
    first_s, last_s, other_s = (one.both_s for one in (stages.first, stages.last, stages.other))
    waits_s = xp.where(zero_bubble, filling_s, plain.waits_s)
    outer_s = (first_s + last_s) / 2
    inner_s = xp.where(f.stages > 2, other_s, outer_s)
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
