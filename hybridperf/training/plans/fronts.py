"""Pareto fronts: layouts that no other beats in both of two objectives."""

from __future__ import annotations

import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.training.plans.ranked import RankedLayouts, scores

_NAMES = ("time", "memory", "energy", "cost")
PAIRS = (("time", "memory"), ("time", "energy"), ("time", "cost"))


def front(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Places on the front of two columns [N], by rising `first`; of equal points the earliest."""
    order = np.lexsort((np.arange(len(first)), second, first))
    along = second[order]
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(along)[:-1]])
    return np.asarray(order[along < best_before])


def plan_front(plan: RankedLayouts, one: str, other: str) -> np.ndarray:
    """Ranks of the layouts on the front of two of time (per token), memory, energy and cost."""
    for name in (one, other):
        if name not in _NAMES:
            raise unknown("column of a front", name, _NAMES, f"known are {', '.join(_NAMES)}")
    if "cost" in (one, other) and plan.economy.usd_per_hour is None:
        raise InputError(
            f"expected a price for a front of cost, got none of {plan.setup.device.id};"
            f" {plan.economy.unknown}"
        )
    columns = [np.empty(len(plan)) for _ in range(2)]
    for number, case in enumerate(plan.cases):
        here, at = plan.ranked[:, 0] == number, plan.ranked_in(number)
        for column, name in zip(columns, (one, other), strict=True):
            objective = "tokens_per_s" if name == "time" else name
            memory = name == "memory"
            values = case.row_memory_bytes if memory else scores(case, objective, plan.economy)
            column[here] = values[at]
    return front(*columns)
