"""What a pipeline's slowest worker has to do, and how long it waits while the pipeline fills and
drains, by schedule.

    1F1B                        all stages once, and the others of m micro-batches on the stage that
                                adds most: behind its first p - s forwards (stage s of p), which
                                fill what it would wait, each adds a forward and a backward pass
    GPipe                       all stages once, and m - 1 times the slowest forward and the slowest
                                backward pass
    interleaved                 all micro-batches on the slowest stage, and while the pipeline fills
                                and drains a chunk of each other stage; `_interleaved_s` says what
                                embedding and head add, which weigh on one chunk each
    zero bubble, and any other  slowest stage; waits fill (sum_stages - max_stage), by the fill that
                                makes it the closed form of equal stages (`schedules/names.py`),
                                which depends on the seconds F, B, W of a layer forward, backward,
                                and for its weights' gradients:
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
from typing import Any

import numpy as np

from hybridperf.engine.step_features import LayerSeconds, Pace, Passes, Stages, StepFeatures
from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules.names import closed_form_s
from hybridperf.workloads.transformer.columns import (
    BY_FILL,
    FOLDED,
    SCHEDULES,
    TWO_PIPES,
    one_of,
)


def pace(xp: Any, f: StepFeatures, stages: Stages, layer: LayerSeconds) -> Pace:
    """Pace of the slowest worker by each row's schedule."""
    found = plain_pace(xp, f, stages)
    return found if f.schedule is None else scheduled_pace(xp, f, found, stages, layer)


def plain_pace(xp: Any, f: StepFeatures, stages: Stages) -> Pace:
    """Pace of workers that hold a stage each."""
    first_s, last_s, other_s = (one.both_s for one in (stages.first, stages.last, stages.other))
    stage_s = xp.maximum(xp.maximum(first_s, last_s), other_s)
    at_last = last_s >= stage_s
    at_first = xp.where(at_last, f.stages == 1, first_s >= stage_s)
    layers = xp.where(at_first, f.layers_first, xp.where(at_last, f.layers_last, f.layers_most))
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
    chunked_s = _interleaved_s(xp, f, stages) - m * stage_s
    chunked_s = xp.where(f.chunks > 1, xp.maximum(chunked_s, 0.0), plain_s)
    waits_s = xp.where(f.stages > 1, chunked_s, 0.0)
    return Pace(stage_s, waits_s, layers, at_first, at_last)


def _interleaved_s(xp: Any, f: StepFeatures, stages: Stages) -> Array:
    """A step of an interleaved pipeline of p stages with v chunks of c seconds each, the first with
    an embedding of e seconds, the last with a head of h: the longest of

        (m v + p - 1) c + p e + m h     down and up the first chunk, and on the last stage
        (m v + p - 2) c + (m - p) e + min(2 p, m) h     on the first, down and up the last chunk
        m (v c + e)                     on the first stage

    Exact where the head is the longer; up to 5 % below where the embedding is, by the graphs of
    p = 2 to 8, v = 2 to 4, which have paths besides that go between the two.
    """
    p, m, e, h = f.stages, f.micro_batches, stages.embedding_s, stages.head_s
    first_s, last_s = stages.first.both_s, stages.last.both_s
    c = (stages.sum_s - e - h) / (p * f.chunks)
    down_s = m * last_s + (p - 1) * c + p * e
    up_s = m * first_s + (p - 2) * c + xp.minimum(2 * p, m) * h - p * e
    other_s = m * stages.other.both_s + (p - 1) * c
    return functools.reduce(xp.maximum, (down_s, up_s, m * first_s, other_s))


def scheduled_pace(
    xp: Any, f: StepFeatures, plain: Pace, stages: Stages, layer: LayerSeconds
) -> Pace:
    """Pace with rows among them of schedules with two pipes, or none but a closed form."""
    two_pipes, by_fill = one_of(f.schedule, TWO_PIPES), one_of(f.schedule, BY_FILL)
    if array_module(f.schedule) is np and not np.any(two_pipes | by_fill):
        return plain
    both_s = layer.forward_s + layer.backward_s
    forward, backward = layer.forward_s / both_s, layer.backward_s / both_s  # of one second
    weight = layer.backward_work_s * f.weight_share / both_s
    beside_s = xp.minimum(layer.exchange_s, xp.maximum(both_s - layer.exchange_s, 0.0))
    joint = 1 - f.exchange_hidden * beside_s / both_s
    closed, in_pairs = 0.0 * both_s, 0.0 * both_s  # of a stage that takes one second
    for code in (*TWO_PIPES, *BY_FILL):
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
    waits_s = xp.where(by_fill, filling_s, plain.waits_s)
    outer_s = (first_s + last_s) / 2
    inner_s = xp.where(f.stages > 2, other_s, outer_s)
    less_s, more_s = xp.minimum(outer_s, inner_s), xp.maximum(outer_s, inner_s)
    uniform_s = closed * less_s
    whole_s = (xp.maximum(uniform_s, m * more_s) + uniform_s + m * (more_s - less_s)) / 2
    outer = two_pipes & (outer_s >= inner_s)
    middle = xp.where(two_pipes, f.layers_most, plain.layers)
    stage_s = xp.where(two_pipes, more_s, plain.stage_s)
    ends = xp.where(two_pipes, 0.5 * outer, plain.embeddings)
    layers = xp.where(outer, (f.layers_first + f.layers_last) / 2, middle)
    return Pace(
        stage_s,
        xp.where(two_pipes, xp.maximum(whole_s - m * more_s, 0.0), waits_s),
        layers,
        ends,
        xp.where(two_pipes, 0.5 * outer, xp.where(folded, plain.embeddings, plain.heads)),
        (closed - in_pairs)
        * both_s
        * xp.where(outer, (f.layers_first + f.layers_last) / 2, middle),
    )
