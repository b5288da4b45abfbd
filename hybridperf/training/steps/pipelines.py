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
    ZB-V, DualPipeV             what the first worker, which has both ends, has more to do than the
                                others fills its waits: no less than they take by themselves
    Chimera, DualPipe           a worker has a stage of each pipe, each for half of the
                                micro-batches: the outer workers (first + last) / 2, the others one
                                of the rest. Uniform ones take c(F, B) stages by the closed form.
                                Where one kind has more to do, l s a micro-batch the less and h the
                                more, its work partly fills the bubbles: halfway between
                                max(c l, m h), the lower bound, and c l + m (h - l)

Both are the closed form itself where stages are uniform. Against their graphs with a head of up to
two thirds of a stage: zero bubble to rounding, Chimera within 6 % (1.6 % on average), ZB-V and
DualPipeV up to 6 % below (1.3 % on average). Beside them pairs of passes (DualPipe) hide messages
of experts behind the other pass: what the closed form is shorter by with the shorter pair.

Axes: N rows.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io.namespace import Array, array_module
from hybridperf.training.steps.step_features import StepFeatures
from hybridperf.workloads.schedules import closed_form_s
from hybridperf.workloads.transformer.columns import (
    FOLDED,
    SCHEDULES,
    SPLITS_BACKWARD,
    TWO_PIPES,
    one_of,
)


class LayerSeconds(NamedTuple):
    """Seconds of one micro-batch on a layer [N]."""

    forward_s: Array
    backward_s: Array
    backward_work_s: Array  # of the GPU alone
    exchange_s: Array  # messages of both passes that hold the rank up


class Passes(NamedTuple):
    """Seconds of one micro-batch on a stage [N]."""

    forward: Array
    backward: Array

    @property
    def both_s(self) -> Array:
        return self.forward + self.backward


class Stages(NamedTuple):
    """Stages of a pipeline [N]; one that is alone is the first and the last."""

    first: Passes
    other: Passes  # the fullest between first and last; 0 where there is none
    last: Passes
    sum_s: Array  # of both passes of all


class Pace(NamedTuple):
    """Of the slowest worker [N]."""

    stage_s: Array  # of a micro-batch
    waits_s: Array  # for other stages, in a step
    layers: Array  # that it has
    embeddings: Array  # 1, or 0; half of one where it is so for half of the micro-batches
    heads: Array
    hidden_s: Array = 0.0  # messages of pairs of passes, in a step, that hide behind both


def pace(xp: Any, f: StepFeatures, stages: Stages) -> Pace:
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


def scheduled_pace(
    xp: Any, f: StepFeatures, plain: Pace, stages: Stages, layer: LayerSeconds
) -> Pace:
    """Pace with rows among them of schedules that two pipes or a split backward pass have."""
    two_pipes, splits = one_of(f.schedule, TWO_PIPES), one_of(f.schedule, SPLITS_BACKWARD)
    if array_module(f.schedule) is np and not np.any(two_pipes | splits):
        return plain
    both_s = layer.forward_s + layer.backward_s
    forward, backward = layer.forward_s / both_s, layer.backward_s / both_s  # of one second
    weight = layer.backward_work_s * f.weight_share / both_s
    beside_s = xp.minimum(layer.exchange_s, xp.maximum(both_s - layer.exchange_s, 0.0))
    joint = 1 - f.exchange_hidden * beside_s / both_s
    closed, in_pairs = 0.0 * both_s, 0.0 * both_s  # of a stage that takes one second
    for code in (*TWO_PIPES, *SPLITS_BACKWARD):
        rows, name = f.schedule == code, SCHEDULES[code]
        if array_module(rows) is np and not np.any(rows):
            continue
        # other rows' sizes may not suit the schedule
        p, m = xp.where(rows, f.stages, 2), xp.where(rows, f.micro_batches, 4)
        apart, beside = (
            closed_form_s(name, p, m, forward, backward, weight_s=weight, joint_s=pair)
            for pair in (1.0, joint)
        )
        closed, in_pairs = xp.where(rows, apart, closed), xp.where(rows, beside, in_pairs)
    m = f.micro_batches
    folded = one_of(f.schedule, FOLDED)  # the first holds the head, too
    others_s = xp.maximum(stages.sum_s - plain.stage_s, 0.0) / xp.maximum(f.stages - 1, 1)
    beside_others_s = xp.maximum(closed * others_s - m * plain.stage_s, 0.0)
    filling_s = xp.where(folded, beside_others_s, xp.maximum(closed - m, 0.0) * others_s)
    first_s, last_s, other_s = (one.both_s for one in (stages.first, stages.last, stages.other))
    waits_s = xp.where(splits, filling_s, plain.waits_s)
    outer_s = (first_s + last_s) / 2
    inner_s = xp.where(f.stages > 2, other_s, outer_s)
    less_s, more_s = xp.minimum(outer_s, inner_s), xp.maximum(outer_s, inner_s)
    uniform_s = closed * less_s
    whole_s = (xp.maximum(uniform_s, m * more_s) + uniform_s + m * (more_s - less_s)) / 2
    outer = two_pipes & (outer_s >= inner_s)
    middle = xp.where(two_pipes, f.layers_most, plain.layers)
    stage_s = xp.where(two_pipes, more_s, plain.stage_s)
    ends = xp.where(two_pipes, 0.5 * outer, plain.embeddings)
    return Pace(
        stage_s,
        xp.where(two_pipes, xp.maximum(whole_s - m * more_s, 0.0), waits_s),
        xp.where(outer, (f.layers_first + f.layers_last) / 2, middle),
        ends,
        xp.where(two_pipes, 0.5 * outer, xp.where(folded, plain.embeddings, plain.heads)),
        (closed - in_pairs)
        * both_s
        * xp.where(outer, (f.layers_first + f.layers_last) / 2, middle),
    )
