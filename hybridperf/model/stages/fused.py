"""Loops, norms and copies as a framework fuses them into a step: by the datasheet's bandwidth.

There is nothing to measure; how far off they are is believed of what was measured of such ops by
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.model.batch import Batch
from hybridperf.model.sources import FUSED
from hybridperf.model.stages.closed import by_knobs
from hybridperf.model.stages.family import log_variance, told_of
from hybridperf.model.stages.step import Machine, Step
from hybridperf.model.stages.who import Who, who


def by_datasheet(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """As the datasheet has them."""
    if who(batch, machine.model) is not Who.FUSED:
        return []
    variance = np.nan if xp is np else 0.0  # what is traced asks for no interval
    if xp is np and (
        found := machine.told.get(id(batch)) or told_of([batch], machine).get(id(batch))
    ):
        variance = log_variance(found[-1])
    elif xp is np and who(batch.by_itself, machine.model) is Who.GROUP:
        variance = by_knobs(batch.by_itself, machine, log_s, xp)[0].log_variance
    nothing = np.zeros(len(batch))
    return [Step("datasheet", nothing, FUSED, variance, variance, nothing)]
