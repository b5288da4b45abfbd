"""One rank's recorded events as columns: host calls, device events, and which launched which.

Importers make these; everything else about traces reads them. Times are seconds from the rank's
`origin_us`, a clock shared by the ranks of a machine. Axes: H host events and D device events, each
ordered by start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

NONE = -1
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
    """The events of one rank."""

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

    def host_name(self, event: int) -> str:
        """Name of one host event."""
        return self.names[self.host.name[event]]

    def device_name(self, event: int) -> str:
        """Name of one device event."""
        return self.names[self.device_events.name[event]]

    def op_of_call(self, event: int) -> int:
        """The innermost framework op around a host event, or itself; NONE without."""
        while event != NONE and self.host.kind[event] != OP:
            event = int(self.host.parent[event])
        return event
