"""The step that a training run repeats: what plans, rows and seconds that are given tell of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridperf.engine.economy import Economy
from hybridperf.engine.step_features import StepParts

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True)
class Step:
    """What a run repeats.

    Attributes:
        step_s: seconds of a step.
        low_s: the 5th percentile of that.
        high_s: the 95th.
        gpus: that take part.
        gpus_per_node: of these.
        state_bytes: of a checkpoint: weights and optimizer.
        parts: what a step is made of, for its energy; None: all of it computes.
        economy: money and power; None: neither is told.
        words: what runs, for reports.
        stall_chance: share of runs like this that stall from their first step on.
        stalled_s: seconds of a step of those.
        drives: makes the table of `hp.elasticities` of what runs; None: nothing is known of it.
    """

    step_s: float
    low_s: float
    high_s: float
    gpus: int
    gpus_per_node: int = 8
    state_bytes: float = 0.0
    parts: StepParts | None = None
    economy: Economy | None = None
    words: str = ""
    stall_chance: float = 0.0
    stalled_s: float = 0.0
    drives: Callable[[], pandas.DataFrame] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    @property
    def nodes(self) -> int:
        return math.ceil(self.gpus / self.gpus_per_node)
