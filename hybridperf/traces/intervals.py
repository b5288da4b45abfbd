"""Sets of time intervals: what several streams cover together, and how much of a span a set covers.

A set is a pair of arrays (start_s, end_s). `merged` sets are disjoint and in order; the other
functions want those.
"""

from __future__ import annotations

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]


def merged(start_s: np.ndarray, end_s: np.ndarray) -> Intervals:
    """The union of intervals as disjoint ones in order; touching ones join, empty ones vanish."""
    real = end_s > start_s
    start_s, end_s = start_s[real], end_s[real]
    order = np.argsort(start_s, kind="stable")
    start_s, reach = start_s[order], np.maximum.accumulate(end_s[order]) if len(order) else end_s
    first = np.ones(len(order), bool)
    first[1:] = start_s[1:] > reach[:-1]
    last = np.append(first[1:], True) if len(order) else first
    return start_s[first], reach[last]


def length_s(intervals: Intervals) -> float:
    """Seconds that a merged set covers."""
    return float((intervals[1] - intervals[0]).sum())


def covered_s(intervals: Intervals, start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """How much of each span a merged set covers; zero for spans that end before they start."""
    begin, end = intervals
    before = np.concatenate([[0.0], np.cumsum(end - begin)])

    def until(time_s: np.ndarray) -> np.ndarray:
        at = np.searchsorted(begin, time_s, side="right")  # intervals that have begun
        ends = np.append(-np.inf, end)[at]
        return before[at] - np.maximum(ends - time_s, 0.0)

    return np.maximum(until(np.asarray(end_s, float)) - until(np.asarray(start_s, float)), 0.0)


def between(intervals: Intervals) -> Intervals:
    """The gaps of a merged set."""
    return intervals[1][:-1], intervals[0][1:]
