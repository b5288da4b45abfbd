"""What the host of one rank did in a step, as one sequence: launches, waits, and its own seconds.

The main thread and the autograd thread take turns, so their calls are merged by time into one.
Each entry has the host seconds since the entry before it was done, so nothing that two threads did
at once counts twice.

A launch is done a constant after its call returned, when its event may start
(`StreamDelays`). An entry that waits holds up the sequence until a device event has ended; what
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

from hybridperf.traces.events import CALL, COPY, NONE
from hybridperf.traces.stream_order import CLOCK_S, LaunchedEvents

QUEUE = 1022  # launches that a stream holds before the next call waits, as a V100's trace shows
_ANY_STREAM = {
    "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "hipStreamSynchronize",
    "hipEventSynchronize", "hipMemcpy",
}  # fmt: skip
_WHOLE_DEVICE = {
    "cudaDeviceSynchronize", "cudaFree", "cudaFreeHost", "cuCtxSynchronize",
    "hipDeviceSynchronize", "hipFree",
}  # fmt: skip
_USUAL_COPY_LATENCY_S = 10e-6
_LAST_PIECE_S, _LAST_PIECE = 5e-6, 0.05  # seconds, and share of the copy


class HostEntry(NamedTuple):
    """One entry of a host's sequence."""

    host_s: float  # the host's own seconds since the entry before was done
    launches: int  # place among the launched events, NONE for a wait
    # place of the event that holds up the host, itself for a blocking copy, NONE without one
    waits_for: int
    call: int  # host event, NONE where the trace lacks it


class HostSequence(NamedTuple):
    """A step's entries in order."""

    entries: list[HostEntry]
    rest_s: float  # host seconds after the last entry until the step's mark ends


def host_sequence(
    launched: LaunchedEvents, latency_s: np.ndarray, gap_s: np.ndarray, start_s: float,
    end_s: float, carried: np.ndarray,
) -> HostSequence:  # fmt: skip
    """The host's sequence in a step from `start_s` to `end_s`.

    Args:
        launched: device events of the step and those still running, in order of launch [L].
        latency_s: from the launching call's end to the start on an idle stream [L].
        gap_s: least time the stream stands idle after the event [L].
        carried: launched before the step [L].
    """
    blocking, pageable = _copies(launched)
    # median from a blocking copy's call to the copy on an idle stream
    idle = blocking & (launched.stream_free_s < launched.begin_s)
    copy_latency_s = _USUAL_COPY_LATENCY_S
    if idle.any():
        copy_latency_s = float(np.median((launched.start_s - launched.begin_s)[idle]))
    queue_of, queue = _queue(launched)
    host = launched.trace.host
    # what they are ordered by, then call, launched place or NONE, when the host is done, target
    todo: list[tuple[tuple[float, int, int], int, int, float, int]] = []
    for at in np.flatnonzero(~carried).tolist():
        begin_s, call = float(launched.begin_s[at]), int(launched.call[at])
        held, full = list[tuple[int, int]](), queue_of[at] - queue
        if full >= 0 and call != NONE:
            held.append((0, launched.streams[int(launched.stream[at])][full]))
        if pageable[at] and not blocking[at] and launched.before[at] != NONE:
            held.append((1, int(launched.before[at])))
        for order, target in held:
            if launched.end_s[target] <= launched.return_s[at] + CLOCK_S:
                todo.append(((begin_s, at, order), call, NONE, float(host.start_s[call]), target))
        done_s, target = float(launched.return_s[at] + latency_s[at]), NONE
        if blocking[at]:
            copied_s = float(launched.begin_s[at] + copy_latency_s)
            done_s, target = min(copied_s, float(launched.start_s[at])), at
        todo.append(((begin_s, at, 2), call, at, done_s, target))
    for call, key_s, target in _synchronising(launched, start_s, end_s):
        order_by = (key_s, int(np.searchsorted(launched.begin_s, key_s)), 3)
        todo.append((order_by, call, NONE, float(host.start_s[call]), target))

    now_s, entries = start_s, list[HostEntry]()
    for _, call, place, done_s, target in sorted(todo, key=lambda one: one[0]):
        entries.append(HostEntry(max(0.0, done_s - now_s), place, target, call))
        now_s = max(now_s, done_s)
        if target != NONE:
            now_s = max(now_s, float(launched.end_s[target] + gap_s[target]))
    return HostSequence(entries, max(0.0, end_s - now_s))


def _copies(launched: LaunchedEvents) -> tuple[np.ndarray, np.ndarray]:
    """Which copies held up their call until they ended, and which use pageable memory [L] each."""
    copies = (launched.kind == COPY) & (launched.call != NONE)
    names = launched.trace.names
    pageable_name = np.array(["pageable" in name.lower() for name in names], bool)
    pageable = copies & pageable_name[launched.trace.device_events.name[launched.event]]
    copy_s = launched.end_s - launched.start_s
    # the host hands over the last piece of a copy of pageable memory and returns, so such a copy
    # may end a little later
    late_s = np.where(pageable, np.maximum(_LAST_PIECE_S, _LAST_PIECE * copy_s), 0.0)
    within = launched.start_s < launched.return_s
    return copies & within & (launched.end_s <= launched.return_s + late_s), pageable


def _queue(launched: LaunchedEvents) -> tuple[list[int], int]:
    """Events that each one's stream was given before it [L], and how many a queue holds."""
    number, most = np.zeros(len(launched), np.int64), QUEUE
    for here in map(np.array, launched.streams.values()):
        number[here] = np.arange(len(here))
        ended = np.searchsorted(np.sort(launched.end_s[here]), launched.begin_s[here], "right")
        most = max(most, int((number[here] - ended).max()))
    return number.tolist(), most


def _synchronising(
    launched: LaunchedEvents, start_s: float, end_s: float
) -> list[tuple[int, float, int]]:
    """Calls of the step that wait: host event, its time in the sequence, the place waited for."""
    host = launched.trace.host
    whole = launched.trace.host_named(_WHOLE_DEVICE.__contains__)
    waits = (host.kind == CALL) & (whole | launched.trace.host_named(_ANY_STREAM.__contains__))
    inside = (host.start_s >= start_s) & (host.start_s < end_s)
    launching, found = set(launched.call.tolist()), []
    for call in np.flatnonzero(waits & inside).tolist():
        if call in launching:
            continue
        begin_s, return_s = float(host.start_s[call]), float(host.end_s[call])
        before = int(np.searchsorted(launched.begin_s, begin_s))
        target = _waited_for(launched, before, return_s, bool(whole[call]))
        # one thread launches while another waits: the sequence goes on, and waits at the end
        until = int(np.searchsorted(launched.begin_s, return_s))
        others = (launched.thread[before:until] != host.thread[call]).any()
        if target != NONE:
            found.append((call, return_s if others else begin_s, target))
    return found


def _waited_for(launched: LaunchedEvents, before: int, return_s: float, whole: bool) -> int:
    """The event among the first `before` that a call waited for which returned at `return_s`."""
    best, passed = NONE, NONE
    for places in launched.streams.values():
        given = bisect_left(places, before)
        ended = given
        while ended and launched.end_s[places[ended - 1]] > return_s + CLOCK_S:
            ended -= 1
        if not ended:
            continue
        last = places[ended - 1]
        all_ended = ended == given  # all that the stream had been given
        if all_ended and (best == NONE or launched.end_s[last] > launched.end_s[best]):
            best = last
        if passed == NONE or launched.end_s[last] > launched.end_s[passed]:
            passed = last
    # an event's wait may end before its stream does
    return best if best != NONE or whole else passed
