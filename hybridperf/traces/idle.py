"""Why a device stood idle: each gap in what it ran, split by what it was waiting for.

A gap begins when the last running event ends (`dry`) and ends when the next event starts. The
host's call that launched that event decides:

    call made after `dry`     the device waited for a launch: `launch_bound`, but for the time in
                              which the calling thread itself stood in a call that waits for the
                              device (`synchronisation`), or in a copy that returns when it is done
                              (`host_copy`)
    call made before `dry`    up to the usual latency of a launch after the call: `launch_bound`;
                              the rest: `dependency`, the event was there and its stream held it
                              back (an event of another stream, or the turn from kernel to kernel)
    call not recorded         `unrecorded`

Time in which the device ran events of another step is no gap: a gap is where it ran nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hybridperf.traces.events import CALL, COPY, MARK, NONE, OP, RankTrace

# a set of time intervals, (start_s, end_s); `merged` ones are disjoint and in order
Intervals = tuple[np.ndarray, np.ndarray]
REASONS = ("launch_bound", "synchronisation", "host_copy", "dependency", "unrecorded")
_SYNCHRONISES = re.compile(
    r"synchroni[sz]e|^(?:cuda|hip)Free$|^(?:cuda|hip)Memcpy(?!.*Async)|(stream|device|event) sync",
    re.I,
)
_COPIES = re.compile(r"memcpy", re.I)
_FRAME = re.compile(r"^(?:ProfilerStep#|nccl:)")  # marks that tell nothing of the host's work
_LONG_S = 1e-4  # a gap worth saying what the host did in it
_USUAL_LATENCY_S = 1e-5  # of a launch, where no launch of the trace met an idle device


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Gaps:
    """Gaps in what one device ran, in order [N]."""

    start_s: np.ndarray
    end_s: np.ndarray
    event: np.ndarray  # device event that ended the gap
    reasons: np.ndarray  # seconds by reason [len(REASONS), N]
    # the op whose launch was awaited, and the call the host had to come back from; str [N]
    detail: np.ndarray

    def between(self, start_s: float, end_s: float) -> Gaps:
        """Those that lie between two times."""
        first = int(np.searchsorted(self.start_s, start_s))
        keep = slice(first, int(np.searchsorted(self.end_s, end_s, side="right")))
        columns = (self.start_s, self.end_s, self.event, self.reasons, self.detail)
        return Gaps(*(column[..., keep] for column in columns))


def gaps(trace: RankTrace) -> Gaps:
    """Gaps of a device, whatever step its events belong to."""
    device = trace.device_events
    dry, back = between(merged(device.start_s, device.end_s))
    real = np.flatnonzero(device.end_s > device.start_s)  # ordered by start, as all are
    event = real[np.searchsorted(device.start_s[real], back, side="left")]
    call, called_s = device.call[event], trace.called_s[event]
    known = call != NONE
    late = called_s >= dry
    until = np.where(late, back, np.minimum(back, called_s + launch_latency_s(trace)))
    split = np.zeros((len(REASONS), len(dry)))
    waits = device_waits(trace)
    copies = waits & trace.host_named(_COPIES.search)
    thread = np.append(trace.host.thread, NONE)[call]  # of NONE the last
    for row, mask in ((1, waits & ~copies), (2, copies)):
        for one in np.unique(thread[late]):
            here, calls = late & (thread == one), mask & (trace.host.thread == one)
            held = merged(trace.host.start_s[calls], trace.host.end_s[calls])
            split[row, here] = covered_s(held, dry[here], np.minimum(called_s, back)[here])
    split[0] = np.where(known, np.maximum(until - dry, 0.0) - split[1] - split[2], 0.0)
    split[3] = np.where(known, back - np.maximum(until, dry), 0.0)
    split[4] = np.where(known, 0.0, back - dry)
    return Gaps(dry, back, event, split, _details(trace, event, dry, called_s, waits))


def by_cause(found: Gaps) -> list[tuple[str, str, float, int]]:
    """(reason, detail, seconds, gaps) with the most seconds first."""
    row, at = np.nonzero(found.reasons > 0)
    causes = zip(np.array(REASONS)[row].tolist(), found.detail[at], strict=True)
    return [(*cause, *of) for cause, of in summed_by(causes, found.reasons[row, at].tolist())]


def summed_by(
    keys: Iterable[Key], seconds: Iterable[float], times: Iterable[int] = itertools.repeat(1)
) -> list[tuple[Key, tuple[float, int]]]:
    """Each key with its seconds and times in all, most seconds first."""
    together: dict[Key, tuple[float, int]] = {}
    for key, more_s, more in zip(keys, seconds, times, strict=False):
        total_s, count = together.get(key, (0.0, 0))
        together[key] = total_s + more_s, count + more
    return sorted(together.items(), key=lambda one: -one[1][0])


def launch_latency_s(trace: RankTrace) -> float:
    """Median seconds from a call to the start of what it launched on an idle device."""
    device, called_s = trace.device_events, trace.called_s
    busy_until = np.append(-np.inf, np.maximum.accumulate(device.end_s))[:-1]
    alone = called_s > busy_until
    return float(np.median((device.start_s - called_s)[alone])) if alone.any() else _USUAL_LATENCY_S


def device_waits(trace: RankTrace) -> np.ndarray:
    """Which host events wait for the device [H]: by name, and copies that end within them."""
    waits = trace.host_named(_SYNCHRONISES.search) & (trace.host.kind == CALL)
    device = trace.device_events
    copies = (device.kind == COPY) & (device.call != NONE)
    call = device.call[copies]
    waits[call[device.end_s[copies] <= trace.host.end_s[call]]] = True
    return waits


def op_around(trace: RankTrace, event: np.ndarray) -> np.ndarray:
    """Innermost framework op, or mark of a collective, around host events [N]; NONE without."""
    is_mark = trace.host_named(lambda name: name.startswith("nccl:")) & (trace.host.kind == MARK)
    ends = np.append(is_mark | (trace.host.kind == OP), True)  # the last: of NONE
    here = np.array(event, int)
    while (go := ~ends[here]).any():
        here[go] = trace.host.parent[here[go]]
    return here


def launching_op(trace: RankTrace, event: np.ndarray) -> list[str]:
    """Name of the op that launched each device event [N], or of the event where there is none."""
    call = trace.device_events.call[event]
    return [
        trace.host_name(at) if at != NONE else f"(no op) {trace.device_name(one)}"
        for at, one in zip(op_around(trace, call).tolist(), event, strict=True)
    ]


def _details(
    trace: RankTrace, found_at: np.ndarray, dry: np.ndarray, called_s: np.ndarray, waits: np.ndarray
) -> np.ndarray:
    """What each gap waited for: the op launched next, the call that held the host, the mark."""
    host = trace.host
    details = launching_op(trace, found_at)
    call = trace.device_events.call[found_at]
    for thread in np.unique(host.thread[call[call != NONE]]):
        here = np.flatnonzero((call != NONE) & (host.thread[call] == thread))
        # ordered by start; calls of a thread do not overlap
        held = np.flatnonzero(waits & (host.thread == thread))
        last = np.searchsorted(host.start_s[held], dry[here], side="right") - 1
        told = (host.kind == MARK) & ~trace.host_named(_FRAME.search)
        marks = np.flatnonzero(told & (host.thread == thread))
        for gap, at in zip(here, last, strict=True):
            if at >= 0 and host.end_s[held[at]] > dry[gap]:
                details[gap] = f"{details[gap]} after {trace.host_name(held[at])}"
            if called_s[gap] - dry[gap] > _LONG_S:
                middle_s = (called_s[gap] + dry[gap]) / 2
                around = marks[(host.start_s[marks] <= middle_s) & (host.end_s[marks] > middle_s)]
                if len(around):
                    details[gap] = f"{details[gap]} (host in {trace.host_name(around[-1])})"
    return np.array(details, object)


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
    """Gaps between intervals that are sorted and do not overlap."""
    return intervals[1][:-1], intervals[0][1:]
