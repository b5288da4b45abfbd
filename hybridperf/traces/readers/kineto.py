"""Traces of PyTorch's profiler (Kineto) as `RankTrace`: ops and calls of the host, events of the
device, and which call launched which.

Versions name the same things in other words: ops are `cpu_op` or `Operator`, calls `cuda_runtime`,
`cuda_driver` or `Runtime` (also AMD's; those of other accelerators end in `_runtime` or `_driver`),
device events `kernel`, `gpu_memcpy` and `gpu_memset` or `Kernel`, `Memcpy` and `Memset`, on MTIA
`mtia_ccp_events`. What a device did under another word is refused, or named in a note. A device
event and the call that launched it carry the same correlation, or in its absence are the ends of
one flow. Marks are people's annotations and `ProfilerStep#N`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io import InputError
from hybridperf.traces import events
from hybridperf.traces.events import CALL, COPY, FILL, KERNEL, MARK, NONE, OP, RankTrace
from hybridperf.traces.readers import nsight
from hybridperf.traces.readers.files import trace_files
from hybridperf.traces.readers.kineto_devices import (
    RankEvents,
    communicates,
    correlation,
    device_number,
    kind_of_kernel,
    parts,
)
from hybridperf.traces.readers.kineto_json import (
    Document,
    Event,
    WrongKind,
    as_number,
    as_text,
    as_whole,
    clipped,
    decoded,
)
from hybridperf.traces.readers.kineto_messages import groups_by_name, input_bytes, message

_HOST = {"cpu_op": OP, "operator": OP, "user_annotation": MARK, "runtime": CALL}
_CALLS = ("_runtime", "_driver")  # after the accelerator: cuda, hip, xpu, mtia, privateuse1
_DEVICE = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": FILL, "memset": FILL,
    "mtia_ccp_events": KERNEL,
}  # fmt: skip
_PYTHON = ("python", "python_function")
_STEP = re.compile("ProfilerStep#")  # an op in the versions that knew no annotations
# what tools note beside the work of hosts and devices
_NO_WORK = {
    "trace", "gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "cuda_profiler_range",
    "cpu_instant_event", "external_correlation", "fwdbwd", "gpu_pm_counter", "mtia_counters",
    "collective_comm",
}  # fmt: skip
_RANK_IN_NAME = re.compile(
    r"(?<![a-z])(?:rank|worker)[-_]?(\d{1,7})(?!\d)(?:[-_]?of[-_]?(\d{1,7}))?", re.I
)
_TOGETHER_US = 86400e6  # events of one recording lie within a day; others have damaged times
_NAMED = 3  # categories that a sentence names
_FEW = 0.01  # share of events that may be unusable before the file as a whole is


def read_traces(paths: Sequence[str | os.PathLike] | str | os.PathLike) -> tuple[RankTrace, ...]:
    """The ranks in files, archives and folders, in order of rank; unnumbered ones last.

    Other kinds of files in a folder or archive are left out, with a note of the first trace.

    Raises: InputError: nothing there, empty, cut off, damaged, or no Kineto trace.
    """
    traces: list[RankTrace] = []
    left_out: list[InputError] = []
    for file in trace_files(paths, left_out=left_out):
        try:
            a_database = file.text.startswith(nsight.MAGIC)
            read = nsight.document if a_database else decoded
            traces += rank_traces(read(file.text, file.source), file.source)
        except WrongKind as error:
            if not file.among_others:
                raise
            left_out.append(error)
    if not traces:
        raise left_out[0]
    traces.sort(key=lambda trace: (trace.rank is None, trace.rank or 0))
    if left_out:
        traces[0] = traces[0].with_notes(f"left out {len(left_out)} of the files: {left_out[0]}")
    return tuple(traces)


_Names = defaultdict[Any, int]  # numbers in order of first appearance


def rank_traces(document: Document, source: str) -> list[RankTrace]:
    """One decoded file as columns: of one rank, or a rank for each device with kernels.

    Raises: InputError: no profiler events, impossible times, or unknown launchers of kernels.
    """
    host, device, flows, others = _sorted_out(document.traceEvents or [])
    python = sum(of in _PYTHON for of, _ in others)
    unknown = _unknown(host, others)
    if unknown and not device:
        expected = f"expected kernels of an accelerator that is known in {source}"
        mend = "only CUDA's, ROCm's, XPU's and MTIA's are read"
        raise InputError(f"{expected}, found {unknown}; {mend}")
    if not host and not device:
        expected = f"expected ops, calls or kernels of PyTorch's profiler in {source}"
        raise WrongKind(f"{expected}, found none; check which file the profiler wrote")
    rank, world = rank_and_world(document, source)
    stated = _whole_rank(document)
    found = parts(host, device, document.traceEvents or [], stated, source)
    notes = [f"calls of Python functions ({python}) are not read"] if python else []
    notes += [f"not read: {unknown}"] if unknown else []
    for part in found:
        part.rank = part.rank if len(found) > 1 else rank
        part.notes[:0] = notes
    return [_rank_trace(document, source, part, flows, world) for part in found]


def _rank_trace(
    document: Document, source: str, part: RankEvents, flows: list[Event], world: int | None
) -> RankTrace:
    notes = part.notes
    (host, host_us), (device, device_us), origin_us = _usable(part.host, part.device, source, notes)
    names, shapes, threads = (_Names(itertools.count().__next__) for _ in range(3))
    host_events, host_order = _host_events(host, host_us, names, shapes, threads)
    device_events, on_device = _device_events(device, device_us, names)
    number = np.empty(len(host), np.int64)
    number[host_order] = np.arange(len(host))
    device_events.call[:] = _calls(host, number, on_device, flows)
    messages = _messages(document, host, host_order, host_events, device_events, on_device)
    lost = device_events.call == NONE
    if len(device) and lost.all():
        where = "each belongs to the step in which it starts"
        notes.append(f"no launch of {len(device)} device events is recorded: {where}")
    elif lost.any():
        lost_s = float((device_events.end_s - device_events.start_s)[lost].sum())
        of = f"{lost.sum()} of {len(device)} device events ({1e3 * lost_s:.3g} ms)"
        several = sum(_STEP.match(name) is not None for name in names) > 1
        but = "but those that ran between two of one step on their stream"
        steps = f": they belong to no step, {but}" if several else ""
        notes.append(f"{of} have no recorded call that launched them{steps}")
    if not len(device):
        notes.append("no device events: only the host was recorded")
    base_us = (as_number(document.baseTimeNanoseconds) or 0.0) / 1e3
    one_process = len({pid for pid, _ in threads}) < 2
    short = [(clipped(pid), clipped(tid)) for pid, tid in threads]
    return RankTrace(
        source=source,
        rank=part.rank,
        world=world,
        device=_device_name(document, on_device),
        origin_us=base_us + origin_us,
        names=tuple(names),
        threads=tuple(tid if one_process else f"{pid}/{tid}" for pid, tid in short),
        shapes=tuple(dims for dims, _ in shapes),
        host=host_events,
        device_events=device_events,
        notes=tuple(notes),
        types=tuple(types for _, types in shapes),
        messages=messages,
    )


def _sorted_out(
    events: list[Event],
) -> tuple[list[tuple[int, Event]], list[tuple[int, Event]], list[Event], list[tuple[str, Event]]]:
    """(kind, event) of host and device, flows, and (category, event) of what is neither."""
    host: list[tuple[int, Event]] = []
    device: list[tuple[int, Event]] = []
    flows: list[Event] = []
    others: list[tuple[str, Event]] = []
    for event in events:
        category = event.cat.lower() if isinstance(event.cat, str) else ""
        if event.ph == "X":
            if (kind := _HOST.get(category)) is not None:
                host.append((kind, event))
            elif category.endswith(_CALLS):
                host.append((CALL, event))
            elif (kind := _DEVICE.get(category)) is not None:
                kind = kind_of_kernel(as_text(event.name)) if kind == KERNEL else kind
                if kind is not None:
                    device.append((kind, event))
            elif category not in _NO_WORK:
                others.append((category, event))
        elif event.ph in ("s", "f") and category in ("ac2g", "async_cpu_to_gpu"):
            flows.append(event)
    return host, device, flows, others


def _unknown(host: list, others: list[tuple[str, Event]]) -> str:
    """What a device did under categories that nobody knows, for people: it names a stream or
    device, or is on a process that has no host events.
    """
    processes = {as_text(event.pid) for _, event in host}
    found = Counter[str]()
    for category, event in others:
        args = event.args
        placed = args is not None and not (args.stream is None and args.device is None)
        if category not in _PYTHON and (placed or processes.isdisjoint([as_text(event.pid)])):
            found[category] += 1
    named = [
        f"{count} events of {f'category {clipped(of)!r}' if of else 'no category'}"
        for of, count in found.most_common(_NAMED)
    ]
    return " and ".join(named) if processes else ""


def _usable(
    host: list, device: list, source: str, notes: list[str]
) -> tuple[tuple[list, np.ndarray], tuple[list, np.ndarray], float]:
    """Events with sane times, their [start, end] in µs and the first time; notes others."""
    # None becomes NaN
    times = np.array([(as_number(e.ts), as_number(e.dur)) for _, e in (*host, *device)], float)
    with np.errstate(invalid="ignore", over="ignore"):
        good = np.isfinite(times).all(axis=1)
        if good.any():
            good &= np.abs(times[:, 0] - np.median(times[good, 0])) < _TOGETHER_US
            good &= np.abs(times[:, 1]) < _TOGETHER_US
    if (bad := int((~good).sum())) and (bad > _FEW * len(good) + 1 or not good.any()):
        expected = f"expected times within a day of each other in {source}"
        found = f"found {bad} of {len(good)} events otherwise"
        raise InputError(f"{expected}, {found}; record it again")
    if bad:
        why = "without times, or times far from all others"
        notes.append(f"{bad} of {len(good)} events left out: {why}")
    if negative := int((times[good, 1] < 0).sum()):
        notes.append(f"{negative} events of negative length count as of none")
    origin_us = float(times[good, 0].min())
    start_us = times[:, 0] - origin_us
    spans = np.stack([start_us, start_us + np.maximum(times[:, 1], 0.0)], axis=1)
    n = len(host)
    of_host, of_device = (
        (list(itertools.compress(events, good[part])), spans[part][good[part]])
        for events, part in ((host, slice(n)), (device, slice(n, None)))
    )
    return of_host, of_device, origin_us


def _host_events(
    host: list, spans_us: np.ndarray, names: _Names, shapes: _Names, threads: _Names
) -> tuple[events.HostEvents, np.ndarray]:
    """Columns, and the order that they are in."""
    is_step = [kind == OP and bool(_STEP.match(as_text(e.name))) for kind, e in host]
    kind = np.where(is_step, MARK, [kind for kind, _ in host]).astype(np.int8)
    name = np.array([names[as_text(e.name)] for _, e in host], np.int32)
    thread = np.array([threads[as_text(e.pid), as_text(e.tid)] for _, e in host], np.int32)
    shape = np.full(len(host), NONE, np.int32)
    for i, (of, event) in enumerate(host):
        args = event.args if of != CALL else None
        if args is not None and (dims := bytes(args.dims) or bytes(args.dims_before)):
            both = (dims.decode(errors="replace"), bytes(args.types).decode(errors="replace"))
            shape[i] = shapes[both]
    start_s, end_s = spans_us.reshape(-1, 2).T * 1e-6
    order = events.nesting_order(start_s, end_s, kind)
    columns = (column[order] for column in (name, kind, thread, start_s, end_s, shape))
    name, kind, thread, start_s, end_s, shape = columns
    parent = events.parents(thread, start_s, end_s, kind)
    return events.HostEvents(name, kind, thread, start_s, end_s, parent, shape), order


def _device_events(
    device: list, spans_us: np.ndarray, names: _Names
) -> tuple[events.DeviceEvents, list[Event]]:
    """Columns, their `call` still NONE, and the events in the same order."""
    start_s, end_s = spans_us.reshape(-1, 2).T * 1e-6
    order = np.lexsort((-end_s, start_s))
    ordered = [device[i] for i in order]
    found = [event for _, event in ordered]
    texts = [as_text(event.name) for event in found]
    kind = np.array([kind for kind, _ in ordered], np.int8)
    named = np.array([communicates(text) for text in texts], bool)
    columns = events.DeviceEvents(
        name=np.array([names[text] for text in texts], np.int32),
        kind=kind,
        stream=np.array([_stream(event) for event in found], np.int64),
        start_s=start_s[order],
        end_s=end_s[order],
        call=np.full(len(found), NONE, np.int32),
        bytes=np.array([input_bytes(event.args) for event in found], float),
        communicates=named & (kind == KERNEL),
    )
    return columns, found


def _messages(
    document: Document,
    host: list,
    host_order: np.ndarray,
    host_events: events.HostEvents,
    device_events: events.DeviceEvents,
    on_device: list[Event],
) -> dict[int, events.Message]:
    """What a collective's kernel records, else the op around its launch; adds missing sizes."""
    by_name = groups_by_name(document.distributedInfo)
    found: dict[int, events.Message] = {}
    for event in np.flatnonzero(device_events.communicates).tolist():
        around = host_events.around(int(device_events.call[event]))
        ops = (host[host_order[at]][1] for at in around if host_events.kind[at] == OP)
        args = [on_device[event].args, *(op.args for op in ops)]
        if (stated := message(args, by_name)) is not None:
            found[event] = stated
        if np.isnan(device_events.bytes[event]):
            sizes = map(input_bytes, args)
            device_events.bytes[event] = next(filter(np.isfinite, sizes), np.nan)
    return found


def _calls(host: list, number: np.ndarray, device: list[Event], flows: list[Event]) -> np.ndarray:
    """Host event that launched each device event: by correlation, else by the flow's end."""
    launched_by: dict[int, int] = {}
    for i, (kind, event) in enumerate(host):
        if kind == CALL and (of := correlation(event)) is not None:
            launched_by.setdefault(of, int(number[i]))
    # no call has 0  # type: ignore[arg-type]
    found = np.array([launched_by.get(correlation(event) or 0, NONE) for event in device], np.int32)
    if flows and (found == NONE).any():
        begins = {_place(flow): flow.id for flow in flows if flow.ph == "s"}
        ends = {_place(flow): flow.id for flow in flows if flow.ph == "f"}
        calls = [(i, _place(event)) for i, (kind, event) in enumerate(host) if kind == CALL]
        by_flow = {as_text(begins[at]): int(number[i]) for i, at in calls if at in begins}
        for i in np.flatnonzero(found == NONE).tolist():
            if correlation(device[i]) is None and (at := _place(device[i])) in ends:
                found[i] = by_flow.get(as_text(ends[at]), NONE)
    return found


def rank_and_world(document: Document, source: str) -> tuple[int | None, int | None]:
    """(rank, ranks of the run) as the profiler wrote them, else as the file is named, else None."""
    info = document.distributedInfo if isinstance(document.distributedInfo, dict) else {}
    rank, world = _whole_rank(document), as_whole(info.get("world_size"))
    if rank is None:
        places = re.split(r"[/\\!]", source)[:-3:-1]  # the file's name, then its folder's
        named = next(filter(None, map(_RANK_IN_NAME.search, places)), None)
        if named is not None:
            rank, world = int(named[1]), world if named[2] is None else int(named[2])
    rank = rank if rank is not None and rank >= 0 else None
    return rank, world if world is not None and world > 0 else None


def _whole_rank(document: Document) -> int | None:
    """The rank as the profiler wrote it."""
    info = document.distributedInfo
    return as_whole(info.get("rank")) if isinstance(info, dict) else None


def _device_name(document: Document, events: list[Event]) -> str:
    """The model of the device that most events ran on, as the profiler wrote it."""
    properties = document.deviceProperties if isinstance(document.deviceProperties, list) else []
    named = (each for each in properties if isinstance(each, dict))
    by_id = {as_whole(each.get("id")): each.get("name") for each in named}
    numbers = [device_number(event) for event in events]
    most = max(sorted(set(numbers)), key=numbers.count, default=0)
    return clipped(by_id.get(most) or "")


def _stream(event: Event) -> int:
    stream = as_whole(event.args.stream) if event.args is not None else None
    # the timeline's row is the stream
    return stream if stream is not None else as_whole(event.tid) or 0


def _place(event: Event) -> tuple[str, str, str]:
    return as_text(event.pid), as_text(event.tid), as_text(event.ts)
