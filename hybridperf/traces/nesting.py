"""Which op or mark a host event happened in: intervals of one thread, nested.

Clocks that count whole microseconds cut both the start and the length of an event, so a child may
stick out of its parent by up to two of their ticks, two neighbours may touch, and short events may
have no length at all. An event that sticks out further is no child.
"""

from __future__ import annotations

import numpy as np

from hybridperf.traces.events import CALL, NONE

_STICKS_OUT_S = 2e-6  # start and length are each cut by less than a microsecond


def nesting_order(
    thread: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, kind: np.ndarray
) -> np.ndarray:
    """Order by start in which what encloses stands before what it encloses; stable."""
    return np.lexsort((kind == CALL, -end_s, start_s))


def parents(
    thread: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, kind: np.ndarray
) -> np.ndarray:
    """The innermost op or mark of the same thread around each event, NONE for the outermost; events
    in `nesting_order`.

    A call has no children: what it runs belongs to the op that made it. Of two that touch, none is
    in the other; an event without length is in what starts with it or around it, not in what ends
    where it stands.
    """
    found = np.full(len(thread), NONE, np.int32)
    starts, ends, calls = start_s.tolist(), end_s.tolist(), (kind == CALL).tolist()
    open_by_thread: dict[int, list[int]] = {}
    for event, (of, start, end, is_call) in enumerate(
        zip(thread.tolist(), starts, ends, calls, strict=True)
    ):
        around = open_by_thread.setdefault(of, [])
        while around and ends[around[-1]] <= start:
            if is_call and starts[around[-1]] == start == end:
                break
            around.pop()
        for candidate in reversed(around):
            begun = ends[candidate] > start or starts[candidate] == start
            if begun and ends[candidate] + _STICKS_OUT_S >= end:
                found[event] = candidate
                break
        if not is_call:
            around.append(event)
    return found
