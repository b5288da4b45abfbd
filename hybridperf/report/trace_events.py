"""A file in the Trace Event Format (JSON), which https://ui.perfetto.dev and chrome://tracing open.

Processes hold threads, threads hold slices (`ph: X`, times in microseconds), arrows between slices
are pairs of flow events (`s` and `f` with one id). Slices of a thread must nest: one that would
cross another's end goes to a further thread of the same name. Names of categories are those of
PyTorch's profiler, so that what reads its traces reads these.
"""

import gzip
import json
import math
import os
from typing import Any, NamedTuple

from hybridperf.io import replacing

OP, CALL, MARK = "cpu_op", "cuda_runtime", "user_annotation"
KERNEL, COPY, FILL = "kernel", "gpu_memcpy", "gpu_memset"
# category and thread of the slices that repeat the critical path
CRITICAL, CRITICAL_THREAD = "critical_path", "critical path"
# kinds of arrows: from a call to what it launched, from an event to what waited for it
LAUNCH, DEPENDENCY = "ac2g", "dependency"
CRITICAL_COLOUR = "terrible"  # red, of the format's reserved names
_MICROSECONDS = 1e6
_INSIDE = 0.999  # where in its first slice an arrow begins: at the very end the slice is over
_LANES = 1000  # threads set aside for each thread whose slices may cross


class Slice(NamedTuple):
    """Where a slice went, for arrows."""

    process: int
    thread: int
    start_us: float
    dur_us: float


class TimelineFile:
    """Collects events and writes them."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._threads: dict[tuple[int, str], int] = {}
        # ends of the open slices of each lane of a thread
        self._open: dict[tuple[int, str], list[list[float]]] = {}
        self._named: set[tuple[int, int]] = set()
        self._last_us: dict[tuple[int, str], float] = {}
        self._flows = 0
        self._critical: list[tuple[int, float, float, str]] = []  # process, start, -end, name

    def process(self, process: int, name: str) -> None:
        """Name a process; it stands in the order of its number."""
        self._meta("process_name", process, {"name": name})
        self._meta("process_sort_index", process, {"sort_index": process})

    def slice(
        self, process: int, thread: str, name: str, category: str, start_s: float, end_s: float, *,
        critical: bool = False, repeated: str = "", **args: Any,
    ) -> Slice:  # fmt: skip
        """Add a slice to the thread of this name. Slices of one thread are added in order of start,
        of equal ones the longer first. A critical one may be `repeated` under another name.
        """
        if not (math.isfinite(start_s) and math.isfinite(end_s)):
            raise ValueError(f"expected finite times of {name!r}, got {start_s} to {end_s} s")
        start_us = start_s * _MICROSECONDS
        dur_us = max(0.0, end_s * _MICROSECONDS - start_us)
        tid = self._lane(process, thread, start_us, start_us + dur_us)
        event: dict[str, Any] = {"ph": "X", "name": name, "cat": category, "pid": process}
        event |= {"tid": tid, "ts": start_us, "dur": dur_us}
        if critical:
            event["cname"] = CRITICAL_COLOUR
            args["critical"] = True
            self._critical += [(process, start_s, -end_s, repeated)] if repeated else []
        self._events.append({**event, "args": args})
        return Slice(process, tid, start_us, dur_us)

    def critical_path(self) -> None:
        """Repeat the critical slices so far on a thread of their own."""
        for process, start_s, minus_end_s, name in sorted(self._critical, key=lambda one: one[:3]):
            self.slice(process, CRITICAL_THREAD, name, CRITICAL, start_s, -minus_end_s)
        self._critical.clear()

    def arrow(self, kind: str, first: Slice, second: Slice) -> None:
        """An arrow from within one slice to the start of another."""
        self._flows += 1
        common = {"name": kind, "cat": kind, "id": self._flows}
        begin_us = first.start_us if kind == LAUNCH else first.start_us + _INSIDE * first.dur_us
        ends = (("s", first, begin_us), ("f", second, second.start_us))
        for phase, one, at_us in ends:
            place = {"pid": one.process, "tid": one.thread, "ts": at_us}
            self._events.append({"ph": phase, **common, **place})
        self._events[-1]["bp"] = "e"

    def write(self, path: str | os.PathLike, **facts: Any) -> None:
        """Write the file with `facts`, whole or not at all, compressed if it ends in .gz."""
        document = {"schemaVersion": 1, **facts, "displayTimeUnit": "ms"}
        document["traceEvents"] = self._events
        content = json.dumps(document, default=float, allow_nan=False).encode()
        if str(path).lower().endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        with replacing(path, "wb") as handle:
            handle.write(content)

    def _lane(self, process: int, thread: str, start_us: float, end_us: float) -> int:
        key = process, thread
        if start_us < self._last_us.get(key, start_us):
            got = f"{start_us} µs after {self._last_us[key]} µs"
            raise ValueError(f"slices of {thread!r} must come in order of start, got {got}")
        self._last_us[key] = start_us
        threads = sum(1 for other, _ in self._threads if other == process)
        first = self._threads.setdefault(key, _LANES * threads)
        lanes = self._open.setdefault(key, [])
        fitting = (at for at, ends in enumerate(lanes) if _fits(ends, start_us, end_us))
        at = next(fitting, len(lanes))
        if at == len(lanes):
            lanes.append([end_us])
        tid = first + at
        if (process, tid) not in self._named:
            self._named.add((process, tid))
            self._meta("thread_name", process, {"name": thread}, tid)
            self._meta("thread_sort_index", process, {"sort_index": tid}, tid)
        return tid

    def _meta(self, name: str, process: int, args: dict[str, Any], thread: int = 0) -> None:
        event = {"ph": "M", "name": name, "pid": process, "tid": thread, "ts": 0, "args": args}
        self._events.append(event)


def _fits(ends: list[float], start_us: float, end_us: float) -> bool:
    """Whether a slice nests in a lane whose slices end at these times; if so, add it to them."""
    while ends and ends[-1] <= start_us:
        ends.pop()
    if ends and end_us > ends[-1]:
        return False
    ends.append(end_us)
    return True
