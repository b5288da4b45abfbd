"""What single calls of a step cost on one machine, by itself: each unique call priced once by its
model, all new ones together, and sums of them kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from hybridperf.collectives.model import CollectiveModel
from hybridperf.model import PerfModel
from hybridperf.model.calls import Call
from hybridperf.model.step_table import alone_seconds, step_table
from hybridperf.model.unmeasured import Unmeasured


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, kept."""

    model: PerfModel
    known: dict[Call, float] = dataclasses.field(default_factory=dict)
    # sums over the passes of a cell (`features.py`)
    cells: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # passes of cells, which take longer to build than to price
    kept: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # sums of what happens once a step
    once: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # what was not measured, by what it depends on
    by_machine: dict[Any, Unmeasured] = dataclasses.field(default_factory=dict)

    @property
    def links(self) -> CollectiveModel:
        """What prices collectives."""
        assert self.model.collectives is not None
        return self.model.collectives

    def learn(self, calls: Iterable[Call]) -> None:
        """Price those that are new."""
        new = [call for call in dict.fromkeys(calls) if call not in self.known]
        if new:
            seconds = alone_seconds(self.model, step_table(self.model, new))
            self.known.update(zip(new, seconds.tolist(), strict=True))

    def __getitem__(self, call: Call) -> float:
        return self.known[call]
