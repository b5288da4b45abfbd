"""What to split where one table holds a placement up: splits are tried, not guessed.

Columns of a piece are read by all lookups again, rows of a piece make partial sums that travel:
which of them pays, if any, depends on the table, the links and the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hybridperf.explore.sharding import greedy, local
from hybridperf.explore.sharding.cost import PlacementCost
from hybridperf.explore.sharding.fused import KernelPricer
from hybridperf.explore.sharding.splits import KINDS
from hybridperf.io import InputError
from hybridperf.ops.embedding import Table

_FINER = (2, 4)  # times as many pieces as now
_WORTHWHILE = 0.98  # of the step as it is


class SplitTables(NamedTuple):
    """Tables in pieces, and what placements of them cost."""

    pieces: Sequence[Table]
    owners: Sequence[str]
    cost: PlacementCost
    fused: KernelPricer


class SplitAdvice(NamedTuple):
    """A split that makes the step shorter, as `--split` takes it."""

    how: str
    step_s: float


def better_split(
    cut: Callable[[Mapping[str, str]], SplitTables],
    splits: Mapping[str, str],
    owner: str,
    pieces: int,
    batch: float,
    step_s: float,
) -> SplitAdvice | None:
    """The best finer split of a table now in `pieces`; None where none helps noticeably."""
    found = []
    for kind in KINDS:
        for finer in _FINER:
            how = f"{kind}:{finer * pieces}"
            try:
                step = _step_s(cut({**splits, owner: how}), batch)
            except InputError:  # more pieces than it has rows or columns
                continue
            if step is not None and step < _WORTHWHILE * step_s:
                found.append(SplitAdvice(f"{owner}={how}", step))
    return min(found, key=lambda one: one.step_s, default=None)


def _step_s(made: SplitTables, batch: float) -> float | None:
    """Seconds of the best greedy placement, polished; None where none has room."""
    ruled = (greedy.by_rule(rule, made.cost, made.pieces, batch) for rule in greedy.GREEDY)
    starts = [one for one in ruled if one is not None]
    if not starts:
        return None
    best = local.polish(made.cost, min(starts, key=made.cost.step_s))
    return None if best.over_bytes else float(made.fused.parts(best.placement).step_s)
