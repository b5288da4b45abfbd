"""The Pareto front of many points: rows that no other beats in all objectives."""

from __future__ import annotations

import bisect

import numpy as np


def undominated(values: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """Positions of rows of `values` [n, objectives] that no other row dominates, smallest first.

    Smaller is better. Of equal rows the one lowest in `order` [n] stays, their own if None. Once
    sorted, a row can only be dominated by an earlier one.
    """
    rows = np.lexsort((np.arange(len(values)) if order is None else order, *values.T[::-1]))
    if values.shape[1] <= 2:  # the least second objective so far tells
        last = values[rows, -1]
        least_before = np.concatenate([[np.inf], np.minimum.accumulate(last)[:-1]])
        return rows[last < least_before]
    if values.shape[1] == 3:
        return rows[_stairs(values[rows])]
    kept = []
    while len(rows):
        kept.append(rows[0])
        rows = rows[(values[rows] < values[rows[0]]).any(axis=1)]
    return np.array(kept, int)


def _stairs(values: np.ndarray) -> list[int]:
    """Rows of sorted `values` [n, 3] that no earlier one dominates, in n log n.

    The second and third objectives of those so far form a staircase: the third falls as the second
    grows, and the stair left of a point decides.
    """
    seconds, thirds, kept = [-np.inf], [np.inf], []
    for row, (_, second, third) in enumerate(values.tolist()):
        at = bisect.bisect_right(seconds, second)
        if thirds[at - 1] <= third:
            continue
        kept.append(row)
        start = at - 1 if seconds[at - 1] == second else at
        stop = at
        while stop < len(thirds) and thirds[stop] >= third:
            stop += 1
        seconds[start:stop], thirds[start:stop] = [second], [third]
    return kept
