"""How many micro-batches' activations a rank holds at most, for codes of schedules; the counts are
those of `schedules.in_flight`.

Chimera's rank s of p holds two stages: s of one direction, p - 1 - s of the other. In one unit of m
<= p micro-batches these keep min(p - s, m/2) and min(s + 1, m/2); with more units every rank keeps
p, of its stages in the same proportion.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridperf.io.namespace import array_module
from hybridperf.workloads.schedules import in_flight as in_flight_of
from hybridperf.workloads.transformer.codes import CHIMERA, GPIPE, SCHEDULES


def in_flight(schedule: Any, pp: Any, vp: Any, micro_batches: Any, stage: Any) -> tuple[Any, Any]:
    """Micro-batches that rank `stage` holds at once of its own stage, and of Chimera's second one,
    0 elsewhere; arrays broadcast.
    """
    xp = array_module(schedule, pp, vp, micro_batches, stage)
    own, second = 0.0, 0.0
    for code, name in enumerate(SCHEDULES):
        here = schedule == code
        if xp is np and not np.any(here):
            continue
        held = in_flight_of(name, stage, pp, micro_batches, chunks=vp)
        if (
            code == GPIPE
            # without stages it is gradient accumulation: each backward pass follows its forward
            # pass
        ):
            held = xp.where(pp == 1, 1.0, held)
        if code == CHIMERA:
            half = xp.minimum(pp, micro_batches) / 2
            down, up = xp.minimum(pp - stage, half), xp.minimum(stage + 1, half)
            second = xp.where(here, held * up / (down + up), 0.0)
            held = held * down / (down + up)
        own = xp.where(here, held, own)
    return own, second
