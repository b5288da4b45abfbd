"""Loops, norms and copies as a framework fuses them into a step: by the datasheet's bandwidth.

There is nothing to measure; how far off they are is believed of what was measured of such ops by
themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.model.batch import Batch
from hybridperf.model.sources import FUSED
from hybridperf.model.stages.closed import by_knobs
from hybridperf.model.stages.family import by_family
from hybridperf.model.stages.step import Machine, Step
from hybridperf.model.stages.who import Who, who


def by_datasheet(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """As the datasheet has them."""
    if who(batch, machine.model) is not Who.FUSED:
        return []
    # its scatter is asked, not its seconds: as tables time it, which asks its family once
    alone, variance = dataclasses.replace(batch.plain, issued_apart=False), np.nan
    known = {Who.FAMILY: by_family, Who.GROUP: by_knobs}.get(who(alone, machine.model))
    if known is not None:
        variance = known(alone, machine, log_s, xp)[0].log_variance
    nothing = np.zeros(len(batch))
    return [Step("datasheet", nothing, FUSED, variance, variance, nothing)]
