"""What the host of one rank did in a step, as one line: launches, waits, and the host's seconds
between them.

The main thread and the autograd thread take turns, so their calls are merged by time into one line.
Each entry has the host seconds since the entry before it was done, so nothing that two threads did
at once counts twice.

A launch is done a constant after its call returned, when its event may start
(`stream_order.Delays`). An entry that waits holds up the line until a device event has ended; what
its call took beyond that belongs to the next entry's seconds. Who waits for what is decided by what
was observed:

- a synchronising call waits for the latest end, among the last event of each stream launched before
  it, that lies before its return;
- a copy that had ended when its call returned, or all but ended if of pageable memory, held the
  call up; another one of pageable memory waited for its stream before it;
- a launch finds its stream's queue full when `QUEUE` events before it have not ended.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from hybridperf.traces.events import CALL, COPY, NONE, RankTrace
from hybridperf.traces.stream_order import CLOCK_S, LaunchedEvents

QUEUE = 1022  # launches that a stream holds before the next call waits, as a V100's trace shows
_ANY_STREAM = {
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "hipStreamSynchronize",
    "hipEventSynchronize",
    "hipMemcpy",
}
_WHOLE_DEVICE = {
    "cudaDeviceSynchronize",
    "cudaFree",
    "cudaFreeHost",
    "cuCtxSynchronize",
    "hipDeviceSynchronize",
    "hipFree",
}
SYNCHRONISES = frozenset(_ANY_STREAM | _WHOLE_DEVICE)
_USUAL_COPY_LATENCY_S = 10e-6
_LAST_PIECE_S, _LAST_PIECE = 5e-6, 0.05  # seconds, and share of the copy


class Entry(NamedTuple):
    """One entry of a host's line."""

    host_s: float  # the host's own seconds since the entry before was done
    launches: int  # place among the launched events, NONE for a wait
    # place of the event that holds up the line, the launched one itself for a blocking copy; NONE
    # if nothing does
    waits_for: int
    call: int  # host event, NONE where the trace lacks it


class HostLine(NamedTuple):
    """A step's entries in order."""

    entries: list[Entry]
    rest_s: float  # host seconds after the last entry until the step's mark ends


def host_line(
    launched: LaunchedEvents,
    latency_s: np.ndarray,
    gap_s: np.ndarray,
    start_s: float,
    end_s: float,
    carried: np.ndarray,
) -> HostLine:
    """The line of a step that begins and ends on the host at these times. `carried` [L]: launched
    before the step.
    """
    blocking, pageable = _copies(launched)
    copy_latency_s = _copy_latency_s(launched, blocking)
    queue_of, queue = _queue(launched)
    # key of order, then: launched place or NONE, target, call
    todo: list[tuple[float, int, int, int, int]] = []
    for at in np.flatnonzero(~carried).tolist():
        begin_s, call = float(launched.begin_s[at]), int(launched.call[at])
        full = queue_of[at] - queue
        if full >= 0 and call != NONE:
            freed = launched.on_same_stream(at, full)
            if launched.end_s[freed] <= launched.return_s[at] + CLOCK_S:
                todo.append((begin_s, at, 0, NONE, freed))
        if pageable[at] and not blocking[at] and launched.before[at] != NONE:
            before = int(launched.before[at])
            if launched.end_s[before] <= launched.return_s[at] + CLOCK_S:
                todo.append((begin_s, at, 1, NONE, before))
        todo.append((begin_s, at, 2, at, at if blocking[at] else NONE))
    for call, key_s, target in _synchronising(launched, start_s, end_s):
        todo.append((key_s, int(np.searchsorted(launched.begin_s, key_s)), 3, call, target))
    todo.sort(key=lambda one: one[:3])

    host = launched.trace.host
    now_s, entries = start_s, []
    for _, at, order, what, target in todo:
        if order == 2:
            call = int(launched.call[what])
            if target == NONE:
                done_s = float(launched.return_s[what] + latency_s[what])
            else:
                done_s = min(
                    float(launched.begin_s[what] + copy_latency_s), float(launched.start_s[what])
                )
            place = what
        else:
            call = what if order == 3 else int(launched.call[at])
            done_s, place = float(host.start_s[call]), NONE
        host_s = max(0.0, done_s - now_s)
        now_s = max(now_s, done_s)
        if target != NONE:
            now_s = max(now_s, float(launched.end_s[target] + gap_s[target]))
        entries.append(Entry(host_s, place, target, call))
    return HostLine(entries, max(0.0, end_s - now_s))


def _copies(launched: LaunchedEvents) -> tuple[np.ndarray, np.ndarray]:
    """Whether each event is a copy that held up its call until its end, and whether one of pageable
    memory [L] each.
    """
    copies = (launched.kind == COPY) & (launched.call != NONE)
    names = launched.trace.names
    pageable_name = np.array(["pageable" in name.lower() for name in names], bool)
    pageable = copies & pageable_name[launched.trace.device_events.name[launched.event]]
    copy_s = launched.end_s - launched.start_s
    # the host hands over the last piece of a copy of pageable memory and returns, so such a copy
    # may end a little later
    late_s = np.where(pageable, np.maximum(_LAST_PIECE_S, _LAST_PIECE * copy_s), 0.0)
    return (
        copies
        & (launched.start_s < launched.return_s)
        & (launched.end_s <= launched.return_s + late_s),
        pageable,
    )


def _copy_latency_s(launched: LaunchedEvents, blocking: np.ndarray) -> float:
    """Seconds from the start of a blocking copy's call to the copy on an
    idle stream, the median.
    """
    idle = blocking & (launched.stream_free_s < launched.begin_s)
    return (
        float(np.median((launched.start_s - launched.begin_s)[idle]))
        if idle.any()
        else _USUAL_COPY_LATENCY_S
    )


def _queue(launched: LaunchedEvents) -> tuple[list[int], int]:
    """How many events each one's stream was given before it [L], and how many a stream's queue
    holds: never fewer than were seen.
    """
    number = np.zeros(len(launched), np.int64)
    most = QUEUE
    for stream in np.unique(launched.stream):
        here = np.flatnonzero(launched.stream == stream)
        number[here] = np.arange(len(here))
        ended = np.searchsorted(np.sort(launched.end_s[here]), launched.begin_s[here], "right")
        most = max(most, int((number[here] - ended).max()))
    return number.tolist(), most


def _synchronising(
    launched: LaunchedEvents, start_s: float, end_s: float
) -> list[tuple[int, float, int]]:
    """Calls of the step that wait: host event, when in the line, and the place waited for."""
    trace: RankTrace = launched.trace
    host = trace.host
    names = [index for index, name in enumerate(trace.names) if name in SYNCHRONISES]
    whole = {index for index in names if trace.names[index] in _WHOLE_DEVICE}
    launching = set(launched.call.tolist())
    found = []
    inside = (
        (host.kind == CALL)
        & np.isin(host.name, names)
        & (host.start_s >= start_s)
        & (host.start_s < end_s)
    )
    for call in np.flatnonzero(inside).tolist():
        if call in launching:
            continue
        begin_s, return_s = float(host.start_s[call]), float(host.end_s[call])
        before = int(np.searchsorted(launched.begin_s, begin_s))
        target = _waited_for(launched, before, return_s, int(host.name[call]) in whole)
        # a thread that launches while another waits: the line goes on, and stands where the wait
        # ends
        until = int(np.searchsorted(launched.begin_s, return_s))
        others = (launched.thread[before:until] != host.thread[call]).any()
        if target != NONE:
            found.append((call, return_s if others else begin_s, target))
    return found


def _waited_for(launched: LaunchedEvents, before: int, return_s: float, whole: bool) -> int:
    """The event among the first `before` that a call waited for which returned at `return_s`."""
    best, passed = NONE, NONE
    for places in launched.streams().values():
        given = bisect_left(places, before)
        ended = given
        while ended and launched.end_s[places[ended - 1]] > return_s + CLOCK_S:
            ended -= 1
        if not ended:
            continue
        last = places[ended - 1]
        if ended == given and (
            best == NONE or launched.end_s[last] > launched.end_s[best]
        ):  # all the stream had been given
            best = last
        if passed == NONE or launched.end_s[last] > launched.end_s[passed]:
            passed = last
    # an event's wait may end before its stream does
    return best if best != NONE or whole else passed
