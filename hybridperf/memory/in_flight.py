"""How many micro-batches' activations a stage holds at most, in units of the stage's own layers.

p stages, m micro-batches, v chunks per stage, stage s from 0:

    GPipe           m
    1F1B            min(p - s, m)
    interleaved     min(2 (p - s - 1) + (v - 1) p + 1, m v) / v;  stage 0: 1 + (p - 1) / (p v) times p (2205.05198)
    zero bubble     min(p, m) on every stage: what the delayed weight gradients still need takes the place of what is done (ZB-H1)
    Chimera         two stages per worker: s of one direction min(p - s, p/2, m/2), p - 1 - s of the other min(s + 1, p/2, m/2)
"""

from __future__ import annotations

from typing import Any

from hybridperf.either import array_module
from hybridperf.workloads.transformer.codes import CHIMERA, GPIPE, INTERLEAVED, ZERO_BUBBLE


def in_flight(schedule: Any, pp: Any, vp: Any, micro_batches: Any, stage: Any) -> Any:
    """Micro-batches that stage `stage` holds at once, for schedule codes and numbers of any broadcastable shape.

    For Chimera that of the stage of worker `stage` in the first direction.
    """
    xp = array_module(schedule, pp, vp, micro_batches, stage)
    one_f_one_b = xp.minimum(pp - stage, micro_batches)
    interleaved = xp.minimum(2 * (pp - stage - 1) + (vp - 1) * pp + 1, micro_batches * vp) / vp
    result = xp.where(schedule == GPIPE, micro_batches, one_f_one_b)
    result = xp.where(schedule == INTERLEAVED, interleaved, result)
    result = xp.where(schedule == ZERO_BUBBLE, xp.minimum(pp, micro_batches), result)
    return xp.where(schedule == CHIMERA, xp.minimum(one_f_one_b, xp.minimum(pp, micro_batches) / 2), result)


def in_flight_up(pp: Any, micro_batches: Any, stage: Any) -> Any:
    """Micro-batches of Chimera's second direction that worker `stage` holds, of stage p - 1 - s."""
    xp = array_module(pp, micro_batches, stage)
    return xp.minimum(stage + 1, xp.minimum(pp, micro_batches) / 2)
