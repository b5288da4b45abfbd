"""One rank's recorded events as columns: host calls, device events, and which launched which.

Importers make these; everything else about traces reads them. Times are seconds from the rank's
`origin_us`, a clock shared by the ranks of a machine. Axes: H host events and D device events, each
ordered by start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

NONE = -1
_STICKS_OUT_S = 2e-6  # start and length are each cut by less than a microsecond
# kinds of host events: op of the framework, call into the device's runtime, mark of people or tools
OP, CALL, MARK = range(3)
KERNEL, COPY, FILL = range(3)  # kinds of device events


@dataclass(frozen=True, eq=False)
class HostEvents:
    """What host threads did. Events of one thread nest."""

    name: np.ndarray  # index into `RankTrace.names`; int32 [H]
    kind: np.ndarray  # OP, CALL or MARK; int8 [H]
    thread: np.ndarray  # index into `RankTrace.threads`; int32 [H]
    start_s: np.ndarray  # float64 [H]
    end_s: np.ndarray
    # the innermost op or mark of the same thread around it, NONE for the outermost; int32 [H]
    parent: np.ndarray
    shapes: np.ndarray  # index into `RankTrace.shapes`, NONE where not recorded; int32 [H]

    def __len__(self) -> int:
        return len(self.name)

    def around(self, event: int) -> Iterator[int]:
        """A host event and those around it, the innermost first; nothing for NONE."""
        while event != NONE:
            yield event
            event = int(self.parent[event])


@dataclass(frozen=True, eq=False)
class DeviceEvents:
    """What the device did. Events of one stream overlap at most by the clock's resolution."""

    name: np.ndarray  # index into `RankTrace.names`; int32 [D]
    kind: np.ndarray  # KERNEL, COPY or FILL; int8 [D]
    stream: np.ndarray  # the number that the trace gives it; int64 [D]
    start_s: np.ndarray  # float64 [D]
    end_s: np.ndarray
    call: np.ndarray  # the host event that launched it, NONE where the trace lacks it; int32 [D]
    # of a copy or fill, of a collective's input; NaN where not recorded; float64 [D]
    bytes: np.ndarray
    communicates: np.ndarray  # a kernel of a collective; bool [D]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Message:
    """What a trace records of a collective's kernel besides its input's bytes."""

    kind: str = ""  # the collective as the framework calls it, "" where not recorded
    group: str = ""  # name of the process group, "" where not recorded
    ranks: tuple[int, ...] = ()  # of the group, in the group's order; () where not recorded
    size: int | None = None  # ranks in the group
    out_bytes: float = float("nan")  # of the output


@dataclass(frozen=True, eq=False)
class RankTrace:
    """All events of one rank's trace, host and device, in columns."""

    source: str  # for people: file, and member of an archive
    rank: int | None  # None: the trace does not say
    world: int | None  # ranks of the run
    device: str  # as the trace names it, "" where it does not
    origin_us: float  # of all times, on the clock of the trace
    names: tuple[str, ...]
    threads: tuple[str, ...]
    shapes: tuple[str, ...]  # input dimensions of an op, as JSON
    host: HostEvents
    device_events: DeviceEvents
    notes: tuple[str, ...] = field(default=())  # what the trace lacks or was assumed
    # input types as JSON, "" where not recorded; indexed as `shapes`
    types: tuple[str, ...] = field(default=())
    # by device event, of those that communicate and say anything
    messages: Mapping[int, Message] = field(default_factory=dict)

    def with_notes(self, *notes: str) -> RankTrace:
        """The same trace with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_communication(self, pattern: re.Pattern[str]) -> RankTrace:
        """The same trace whose kernels of matching names count as communication, too."""
        matches = np.array([pattern.search(name) is not None for name in self.names], bool)
        device = self.device_events
        more = matches[device.name] & (device.kind == KERNEL)
        return replace(self, device_events=replace(device, communicates=device.communicates | more))

    @cached_property
    def called_s(self) -> np.ndarray:
        """When each device event was called for; NaN where the trace lacks its call [D]."""
        return np.append(self.host.start_s, np.nan)[self.device_events.call]  # of NONE the last

    @cached_property
    def launched_s(self) -> np.ndarray:
        """When each device event was called for, or started where the trace lacks its call [D]."""
        return np.where(np.isnan(self.called_s), self.device_events.start_s, self.called_s)

    def host_named(self, fits: Callable[[str], object]) -> np.ndarray:
        """Which host events have a name that fits; bool [H]."""
        fit = np.array([bool(fits(name)) for name in self.names], bool)
        return fit[self.host.name]

    def host_name(self, event: int) -> str:
        """Name of a host event, by its place."""
        return self.names[self.host.name[event]]

    def device_name(self, event: int) -> str:
        """Name of a device event, by its place."""
        return self.names[self.device_events.name[event]]

    def op_of_call(self, event: int) -> int:
        """The innermost framework op around a host event, or itself; NONE without."""
        return next((at for at in self.host.around(event) if self.host.kind[at] == OP), NONE)


def nesting_order(start_s: np.ndarray, end_s: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Order by start in which what encloses stands before what it encloses; stable."""
    return np.lexsort((kind == CALL, -end_s, start_s))


def parents(
    thread: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, kind: np.ndarray
) -> np.ndarray:
    """The innermost op or mark of the same thread around each event, NONE for the outermost; events
    in `nesting_order`.

    A call has no children: what it runs belongs to the op that made it. Of two that touch, none is
    in the other; an event without length is in what starts with it or around it, not in what ends
    where it stands. Clocks that count whole microseconds cut both the start and the length of an
    event, so a child may stick out of its parent by up to two of their ticks, two neighbours may
    touch, and short events may have no length at all. An event that sticks out further is no child.
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
