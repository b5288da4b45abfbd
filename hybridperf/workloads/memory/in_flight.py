"""How many micro-batches' activations a rank holds at most, for codes of schedules; the counts are
those of `schedules.in_flight`.

Chimera's rank s of p holds two stages: s of one direction, p - 1 - s of the other. In one unit of m
<= p micro-batches these keep min(p - s, m/2) and min(s + 1, m/2); with more units every rank keeps
p, of its stages in the same proportion.
"""

from __future__ import annotations

import numpy as np

from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules import in_flight as in_flight_of
from hybridperf.workloads.transformer.codes import CHIMERA, FORWARDS_FIRST, SCHEDULES


def in_flight(
    schedule: Array, pp: Array, vp: Array, micro_batches: Array, stage: Array
) -> tuple[Array, Array]:
    """Micro-batches that a rank holds of its own stage, and of Chimera's second; else 0."""
    xp = array_module(schedule, pp, vp, micro_batches, stage)
    own, second = 0.0, 0.0
    for code, name in enumerate(SCHEDULES):
        here = schedule == code
        if xp is np and not np.any(here):
            continue
        held = in_flight_of(name, stage, pp, micro_batches, chunks=vp)
        if code in FORWARDS_FIRST:
            # without stages it is gradient accumulation: a backward pass follows each forward pass
            held = xp.where(pp == 1, 1.0, held)
        if code == CHIMERA:
            half = xp.minimum(pp, micro_batches) / 2
            down, up = xp.minimum(pp - stage, half), xp.minimum(stage + 1, half)
            second = xp.where(here, held * up / (down + up), 0.0)
            held = held * down / (down + up)
        own = xp.where(here, held, own)
    return own, second
