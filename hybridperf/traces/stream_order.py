"""Which device events of a step waited for which others, beyond their own stream's order: read off
what happened.

A trace shows that `cudaStreamWaitEvent` was called but not for which streams. Three rules fill that
in, all on events in order of launch:

1. A collective waits for what its issuing stream was given before it (PyTorch's rule): the stream
   of the last event that the same thread launched before.
2. What a thread launches next after `cudaStreamWaitEvent` waits, on each other stream, for the last
   event launched before that call which had ended before it started.
3. An event that started later than its launch, its stream and the rules above explain waits for an
   event launched before it whose end, on another stream, it started right after; or, without one,
   for a kernel that ran all the while and was about to end: its blocks had left no room.

But for this last case no event waits for one that ended after it started: a rule can add an order
that did not exist, but none that did not hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridperf.traces.events import CALL, FILL, NONE, RankTrace

STREAM_WAITS = frozenset({"cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"})
CLOCK_S = 2e-6  # two stamps of whole microseconds may contradict each other by so much
_UNEXPLAINED_S = 20e-6  # later than this is no jitter
_RIGHT_AFTER_S = 10e-6  # an event's end reaches a waiting stream within this
_LAST_BLOCKS = 0.05  # of a kernel's time: it leaves a device that it filled within this
_BUSY_S = 5e-6  # launched so long before its stream was free: the gap between is the device's
_KINDS = FILL + 2
_FEW = 3  # with fewer, a median is chance
_CALL_S = 10e-6  # a launching call takes about so long
_USUAL_LATENCY_S = 2e-6
_USUAL_GAP_S = 1e-6


class LaunchedEvents:
    """Device events of a step in order of launch, L of them.

    Where two launches of one stream seem to overtake each other, the device's order counts.
    """

    def __init__(self, trace: RankTrace, events: np.ndarray):
        device, host = trace.device_events, trace.host
        call = device.call[events]
        known = call != NONE
        # an event whose launch the trace lacks counts as launched when it started, or when the next
        # of its stream was, if that is sooner
        begin, end = device.start_s[events].copy(), device.start_s[events].copy()
        thread = np.full(len(events), NONE)
        begin[known], end[known] = host.start_s[call[known]], host.end_s[call[known]]
        thread[known] = host.thread[call[known]]
        for stream in np.unique(device.stream[events]):
            here = np.flatnonzero(device.stream[events] == stream)
            here = here[np.lexsort([events[here], device.start_s[events][here]])]
            backwards = np.where(known[here], begin[here], np.inf)[::-1]
            next_known = np.minimum.accumulate(backwards)[::-1]
            unknown = here[~known[here]]
            begin[unknown] = end[unknown] = np.minimum(begin[here], next_known)[~known[here]]
            begin[here] = np.maximum.accumulate(begin[here])
        order = np.lexsort([events, device.start_s[events], begin])
        self.trace = trace
        self.event = events[order]
        self.begin_s = begin[order]  # of the launching call
        self.return_s = end[order]
        self.call = call[order]
        self.thread = thread[order]
        self.stream = device.stream[self.event]
        self.kind = device.kind[self.event]
        self.communicates = device.communicates[self.event]
        self.start_s = device.start_s[self.event]
        self.end_s = device.end_s[self.event]
        self.before = np.full(len(self.event), NONE)  # the one before it on its stream
        self.streams: dict[int, list[int]] = {}  # places of each stream's events, in order
        for i, stream in enumerate(self.stream.tolist()):
            there = self.streams.setdefault(stream, [])
            self.before[i] = there[-1] if there else NONE
            there.append(i)

    def __len__(self) -> int:
        return len(self.event)

    @property
    def stream_free_s(self) -> np.ndarray:
        """When the stream of each had ended what came before, minus infinity for its first."""
        return np.where(self.before == NONE, -np.inf, self.end_s[self.before])


@dataclass(frozen=True)
class StreamDelays:
    """A device's two delays, by kind of event (kernel, copy, fill, kernel of a collective).

    Latency: from the end of a launching call to the event's start on an idle stream. A call that
    takes long (a full queue, code loaded at first use) starts its event only when it is done, so
    its start would not do. Gap: how long a stream stands idle between an event and one that was
    launched long before, by the kinds of both. Both are means of the middle half: a median would
    move in whole microseconds, the clock of many traces.
    """

    latency_by_kind_s: tuple[float, ...]  # [4]
    gap_by_pair_s: tuple[float, ...]  # [16], kind of the first times 4 + kind of the second

    @staticmethod
    def of(ranks: Sequence[LaunchedEvents]) -> StreamDelays:
        """The constants that fit the events of these ranks."""
        columns = zip(*map(_delays, ranks), strict=True)
        kind, late_s, pair, gap_s = map(np.concatenate, columns)
        usual_late_s = _middle(late_s, _USUAL_LATENCY_S)
        latency_s = [_middle(late_s[kind == one], usual_late_s) for one in range(_KINDS)]
        usual_gap_s = _middle(gap_s, _USUAL_GAP_S)
        gaps_s = [_middle(gap_s[pair == one], usual_gap_s) for one in range(_KINDS**2)]
        return StreamDelays(tuple(latency_s), tuple(gaps_s))

    def latency_s(self, launched: LaunchedEvents) -> np.ndarray:
        """Seconds from each launching call's end to the event's start on an idle stream [L]."""
        latency_s = np.array(self.latency_by_kind_s)[_kind(launched)]
        return np.where(launched.call == NONE, 0.0, latency_s)

    def gap_s(self, launched: LaunchedEvents) -> np.ndarray:
        """Seconds its stream stands idle after each event at least [L], 0 after the last."""
        kind, follows = _kind(launched), np.flatnonzero(launched.before != NONE)
        gap_s = np.zeros(len(launched))
        before = launched.before[follows]
        gap_s[before] = np.array(self.gap_by_pair_s)[_KINDS * kind[before] + kind[follows]]
        return gap_s


def _kind(launched: LaunchedEvents) -> np.ndarray:
    return np.where(launched.communicates, FILL + 1, launched.kind).astype(int)


def _delays(launched: LaunchedEvents) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Kinds and seconds of launches on idle streams; pairs of kinds and seconds of other gaps."""
    kind, follows = _kind(launched), launched.before != NONE
    idle = follows & (launched.stream_free_s < launched.begin_s) & (launched.call != NONE)
    ready_s = _ready_s(launched)
    gap_s = launched.start_s - launched.stream_free_s
    # a longer gap is a wait for something else
    queued = follows & (ready_s < launched.stream_free_s - _BUSY_S) & (gap_s < _UNEXPLAINED_S)
    pair = _KINDS * kind[launched.before] + kind
    return kind[idle], (launched.start_s - launched.return_s)[idle], pair[queued], gap_s[queued]


def _middle(values: np.ndarray, otherwise: float) -> float:
    """Mean of the middle half, not below 0."""
    if len(values) < _FEW:
        return otherwise
    quarter = len(values) // 4
    return max(0.0, float(np.sort(values)[quarter : len(values) - quarter].mean()))


def stream_waits(
    launched: LaunchedEvents, latency_s: np.ndarray, gap_s: np.ndarray
) -> list[list[int]]:
    """Events on other streams, as places in `launched`, that each event waits for [L]."""
    waits: list[set[int]] = [set() for _ in range(len(launched))]
    if len(launched.streams) > 1:
        _add_collectives(launched, waits)
        _add_calls(launched, waits)
        _add_unexplained(launched, latency_s, gap_s, waits)
    return [sorted(those) for those in waits]


def hand_overs(
    launched: LaunchedEvents, waits: Sequence[Sequence[int]], latency_s: np.ndarray,
    gap_s: np.ndarray,
) -> list[tuple[int, float]]:  # fmt: skip
    """(kind, seconds) from an event's end to the start of one on another stream that waited."""
    kind, explained_s = _kind(launched), _explained_s(launched, latency_s, gap_s)
    ends_s = [launched.end_s[list(those)].max(initial=-np.inf) for those in waits]
    late = [at for at, end_s in enumerate(ends_s) if end_s >= explained_s[at]]
    found = [(int(kind[at]), float(launched.start_s[at] - ends_s[at])) for at in late]
    return [(one, taken_s) for one, taken_s in found if taken_s < _UNEXPLAINED_S]


def usual_hand_overs_s(taken: Sequence[tuple[int, float]]) -> np.ndarray:
    """Median hand-over to each kind of event [4]; 0 where there are few."""
    of_kind = ([taken_s for kind, taken_s in taken if kind == one] for one in range(_KINDS))
    enough = (those if len(those) >= _FEW else [0.0] for those in of_kind)
    return np.array([max(0.0, float(np.median(those))) for those in enough])


def with_hand_overs(
    launched: LaunchedEvents, waits: Sequence[Sequence[int]], gap_s: np.ndarray,
    hand_over_s: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Gaps [L], longer where another stream takes over and the own one stood idle."""
    kind, gap_s = _kind(launched), gap_s.copy()
    idle_s = np.full(len(launched), np.inf)
    follows = np.flatnonzero(launched.before != NONE)
    idle_s[launched.before[follows]] = (launched.start_s - launched.stream_free_s)[follows]
    for at, those in enumerate(waits):
        for place in those:
            if idle_s[place] >= hand_over_s[kind[at]]:
                gap_s[place] = max(gap_s[place], hand_over_s[kind[at]])
    return gap_s


def _ready_s(launched: LaunchedEvents) -> np.ndarray:
    """When each launch was made [L]; a copy may start within its call."""
    within = launched.start_s < launched.return_s
    return np.where(within, launched.begin_s + _CALL_S, launched.return_s)


def _explained_s(launched: LaunchedEvents, latency_s: np.ndarray, gap_s: np.ndarray) -> np.ndarray:
    """When each event could start by its launch and its stream [L]."""
    free_s = launched.stream_free_s + gap_s[launched.before]
    return np.asarray(np.maximum(_ready_s(launched) + latency_s, free_s))


def _last_ended(launched: LaunchedEvents, places: list[int], before: int, start_s: float) -> int:
    """Last of `places` before place `before` that had ended by `start_s`; 64 are looked at."""
    at = bisect_left(places, before)
    for place in reversed(places[max(0, at - 64) : at]):
        if launched.end_s[place] <= start_s + CLOCK_S:
            return place
    return NONE


def _add_collectives(launched: LaunchedEvents, waits: list[set[int]]) -> None:
    issuing: dict[int, int] = {}  # thread -> the stream it last launched work of its own on
    threads, streams = launched.thread.tolist(), launched.stream.tolist()
    for at, communicates in enumerate(launched.communicates.tolist()):
        if not communicates:
            issuing[threads[at]] = streams[at]
        elif issuing.get(threads[at], streams[at]) != streams[at]:
            places = launched.streams[issuing[threads[at]]]
            wanted = _last_ended(launched, places, at, launched.start_s[at])
            if wanted != NONE:
                waits[at].add(wanted)


def _add_calls(launched: LaunchedEvents, waits: list[set[int]]) -> None:
    host = launched.trace.host
    begin = launched.begin_s  # of at least two, since there are several streams
    calls = (host.kind == CALL) & launched.trace.host_named(STREAM_WAITS.__contains__)
    within = (host.start_s >= begin[0]) & (host.start_s <= begin[-1])
    threads = np.unique(launched.thread).tolist()
    of_thread = {thread: np.flatnonzero(launched.thread == thread) for thread in threads}
    for call in np.flatnonzero(calls & within).tolist():
        mine = of_thread.get(int(host.thread[call]))
        if mine is None:
            continue
        next_ = int(np.searchsorted(begin[mine], host.start_s[call], "right"))
        if next_ == len(mine):
            continue
        waiter = int(mine[next_])
        before = int(np.searchsorted(begin, host.start_s[call], "left"))
        for stream, there in launched.streams.items():
            if stream != launched.stream[waiter]:
                wanted = _last_ended(launched, there, min(before, waiter), launched.start_s[waiter])
                if wanted != NONE:
                    waits[waiter].add(wanted)


def _add_unexplained(
    launched: LaunchedEvents, latency_s: np.ndarray, gap_s: np.ndarray, waits: list[set[int]]
) -> None:
    explained = _explained_s(launched, latency_s, gap_s)
    for at in np.flatnonzero(launched.start_s - explained > _UNEXPLAINED_S).tolist():
        start_s = launched.start_s[at]
        if any(start_s - launched.end_s[place] < _RIGHT_AFTER_S for place in waits[at]):
            continue
        earlier = np.arange(max(0, at - 4096), at)
        earlier = earlier[launched.stream[earlier] != launched.stream[at]]
        ended = launched.end_s[earlier]
        near = earlier[(ended > start_s - _RIGHT_AFTER_S) & (ended <= start_s + CLOCK_S)]
        if not len(near):  # a kernel that filled the device makes room as its last blocks leave
            began = launched.start_s[earlier]
            leaving_s = np.maximum(_RIGHT_AFTER_S, _LAST_BLOCKS * (ended - began))
            leaves = (ended > start_s) & (ended <= start_s + leaving_s)
            near = earlier[leaves & (began <= explained[at])]
        if len(near):
            waits[at].add(int(near[np.argmax(launched.end_s[near])]))
