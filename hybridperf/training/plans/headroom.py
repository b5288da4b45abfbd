"""How near the winner is to the memory there is: the chance that it fits, a layout that surely
does, the fastest that just does not.

    P(fits) = Phi(log(usable / predicted) / sigma)

Predicted peaks err by 9.7 % on average where they were measured (`steps/memory_knobs.toml`); of a
normal error in the log that is a deviation sigma of 0.097 x (pi / 2)^(1/2) = 0.12.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from hybridperf.training.plans.costs import columns_of, times
from hybridperf.training.plans.ranked import Choice, RankedLayouts
from hybridperf.workloads.transformer import Layout

SIGMA = 0.097 * math.sqrt(math.pi / 2)
SURE = 0.95
_NEAR = 1.1  # times the memory that may be used


@dataclasses.dataclass(frozen=True)
class MemoryHeadroom:
    """How much of the usable memory the winner takes, and what is near the limit."""

    share: float  # of the usable memory, that the winner takes
    chance: float  # that it fits
    # the fastest that fits with a chance of SURE; None: no layout does, or the winner itself
    surer: Choice | None
    missed: Layout | None  # faster than the winner, a little too large; None: there is none
    missed_s: float
    missed_bytes: float


def chance_fits(share: float) -> float:
    """Chance that a layout predicted to take a share of the usable memory fits."""
    return 0.5 * (1 + math.erf(-math.log(share) / SIGMA / math.sqrt(2)))


def memory_headroom(plan: RankedLayouts) -> MemoryHeadroom:
    """How near the winner is to the memory there is."""
    first = plan.choice(0)
    case = plan.cases[first.case]
    space, usable = case.space, case.memory_bytes / case.setup.capacity_bytes
    shares = usable[space.base_of]  # of all layouts
    share = float(shares[case.rows[first.at]])
    surely = next(share for share in np.arange(1.0, 0.5, -0.005) if chance_fits(share) >= SURE)
    at = plan.ranked_in(first.case)
    sure = np.flatnonzero(shares[case.rows[at]] <= surely)
    surer = Choice(first.case, int(at[sure[0]])) if len(sure) and sure[0] else None
    nothing = MemoryHeadroom(share, chance_fits(share), surer, None, math.nan, math.nan)
    rows = np.flatnonzero((shares > 1) & (shares <= _NEAR))
    if not len(rows):
        return nothing
    step_s = times(columns_of(case.setup, space, rows), case.setup).step_s
    best = int(np.argmin(step_s))
    if step_s[best] >= plan.step_s(first):
        return nothing
    row = int(rows[best])
    missed_bytes = float(case.memory_bytes[space.base_of[row]])
    return dataclasses.replace(
        nothing, missed=space.layout(row), missed_s=float(step_s[best]), missed_bytes=missed_bytes
    )
