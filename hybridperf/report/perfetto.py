"""A predicted, replayed or measured step as a timeline for https://ui.perfetto.dev and
chrome://tracing.

Ranks are processes; the host's threads and the device's streams are threads. Arrows lead from a
call to what it launched and from an event to what waited for it on another stream. The critical
path is coloured, has `critical` in its arguments, and stands once more on a thread of its own, in
the category `critical_path`. What is written here, `importers.kineto` reads back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.report import trace_events as form
from hybridperf.report.trace_events import Slice, TraceFile
from hybridperf.traces.events import CALL, COPY, FILL, KERNEL, MARK, NONE, OP, RankTrace
from hybridperf.traces.replay import Replay

_CATEGORY = {KERNEL: form.KERNEL, COPY: form.COPY, FILL: form.FILL}
_HOST_CATEGORY = {OP: form.OP, CALL: form.CALL, MARK: form.MARK}
_CRITICAL_THREAD, _HOST_THREAD = "critical path", "host"
_MICROSECONDS = 1e6


def write_timeline(prediction: Prediction, path: str | os.PathLike) -> None:
    """Write a predicted step as a timeline that https://ui.perfetto.dev and chrome://tracing open.

    Args:
        prediction: what `hp.predict` returned.
        path: the JSON file to write.
    """
    graph, times = prediction.workload.graph, prediction.timeline
    ops = prediction.ops()
    dims = ops.loc[:, "critical":].iloc[:, 1:].to_dict("records")
    file = TraceFile()
    for rank in sorted(set(graph.rank.tolist())):
        file.process(rank, f"rank {rank}")
    slices: dict[int, Slice] = {}
    critical = prediction.on_critical_path
    for node in np.lexsort([-times.end_s, times.start_s]).tolist():
        rank, stream, label = (
            int(graph.rank[node]),
            int(graph.stream[node]),
            graph.labels[node] or str(ops["group"].iloc[node]),
        )
        start_s, end_s = float(times.start_s[node]), float(times.end_s[node])
        if critical[node]:
            file.slice(rank, _CRITICAL_THREAD, label, form.CRITICAL, start_s, end_s)
        sizes = {
            name: size
            for name, size in dims[node].items()
            if size == size and size not in (0.0, None)
        }
        roofline_us = ops["roofline_s"].iloc[node] * _MICROSECONDS
        slices[node] = file.slice(
            rank,
            graph.stream_names[stream],
            label,
            form.KERNEL,
            start_s,
            end_s,
            critical=bool(critical[node]),
            **{
                "stream": stream,
                "device": rank,
                "correlation": node + 1,
                "group": ops["group"].iloc[node],
                "roofline_us": roofline_us,
            },
            **{
                name: size
                for name, size in sizes.items()
                if name not in ("stream", "device", "group")
            },
        )
    launches = np.flatnonzero(graph.launch_row > 0)
    for node in launches[np.argsort(times.launch_start_s[launches], kind="stable")].tolist():
        begin_s, launched_s = float(times.launch_start_s[node]), float(times.launch_end_s[node])
        call = file.slice(
            int(graph.rank[node]),
            _HOST_THREAD,
            "launch",
            form.CALL,
            begin_s,
            launched_s,
            correlation=node + 1,
        )
        file.arrow(form.LAUNCH, call, slices[node])
    _dependencies(file, graph, slices)
    facts = {
        "workload": prediction.workload.name,
        "device": prediction.model.device.name,
        "seconds": prediction.time_s,
    }
    file.write(
        path,
        deviceProperties=_devices(graph.rank.tolist(), [prediction.model.device.name]),
        otherData=facts,
    )


def write_replay(replay: Replay, path: str | os.PathLike) -> None:
    """Write a replayed step, or one after a what-if: what its graph says, not what was measured.

    The kernel of a collective begins when its rank has come to it, and waits for the others first,
    as in a measured step.
    """
    graph, times, nodes = replay.graph, replay.timeline, replay.nodes
    file = TraceFile()
    for at, trace in enumerate(replay.traces):
        file.process(at, _rank_name(trace, at))
    launched, run = _critical_nodes(replay)
    arrival = {
        meeting.node[at]: came
        for meeting in replay.meetings
        for at, came in meeting.arrival.items()
    }
    begins_s = times.start_s.copy()
    begins_s[list(arrival)] = times.end_s[list(arrival.values())]
    runs = {
        came: node for node, came in arrival.items()
    }  # node that launches -> node that runs, where they are two
    slices: dict[int, Slice] = {}
    marked: list[tuple[int, float, float, str]] = []
    for node in np.lexsort([-replay.end_s, begins_s]).tolist():
        event, at = int(nodes.event[node]), int(graph.rank[node])
        if event == NONE:
            continue
        trace = replay.traces[at]
        start_s, end_s = float(begins_s[node]), float(replay.end_s[node])
        row, name, stream = (
            int(nodes.row[node]),
            trace.device_name(event),
            int(trace.device_events.stream[event]),
        )
        op = replay.op_of_row(row) if row != NONE else name
        if node in run:
            marked.append((at, start_s, end_s, op))
        slices[node] = file.slice(
            at, f"stream {stream}", name, _CATEGORY[int(trace.device_events.kind[event])], start_s,
            end_s, critical=node in run, stream=stream, device=at, correlation=node + 1, op=op,
        )  # fmt: skip
    # the host's line: what a launch or a wait follows, and the wait itself
    hosts: list[tuple[int, float, float, str, int]] = []
    for node in np.flatnonzero((graph.launch_row > 0) | graph.blocking).tolist():
        at, begin_s, ready_s = (
            int(graph.rank[node]),
            float(times.launch_start_s[node]),
            float(times.launch_end_s[node]),
        )
        call = int(replay.rows.call[graph.launch_row[node] - 1]) if graph.launch_row[node] else NONE
        name = replay.traces[at].host_name(call) if call != NONE else _HOST_THREAD
        hosts.append((at, begin_s, ready_s, name, node))
        if node in launched:
            marked.append((at, begin_s, ready_s, _HOST_THREAD))
        if graph.blocking[node] and times.end_s[node] > ready_s:
            hosts.append((at, ready_s, float(times.end_s[node]), "waits for the device", NONE))
    for at, begin_s, end_s, name, node in sorted(hosts, key=lambda one: (one[0], one[1], -one[2])):
        ran = runs.get(node, node)
        more: dict[str, Any] = {} if ran not in slices else {"correlation": ran + 1}
        call_slice = file.slice(
            at, _HOST_THREAD, name, form.CALL, begin_s, end_s, critical=node in launched, **more
        )
        if ran in slices:
            file.arrow(form.LAUNCH, call_slice, slices[ran])
    _mark(file, marked)
    _dependencies(file, graph, slices)
    ranks = range(len(replay.traces))
    facts = {
        "step": replay.steps[0].name,
        "seconds": replay.replayed_s.tolist(),
        "measured_seconds": replay.measured_s.tolist(),
    }
    file.write(
        path,
        deviceProperties=_devices(ranks, [trace.device for trace in replay.traces]),
        otherData=facts,
        **_rank(replay.traces),
    )


def write_traces(
    traces: Sequence[RankTrace], path: str | os.PathLike, replays: Sequence[Replay] = ()
) -> None:
    """Write recorded events of ranks on one clock; `replays` of steps of the same traces mark their
    critical paths.
    """
    file = TraceFile()
    first_us = min(trace.origin_us for trace in traces)
    correlation = 0
    for at, trace in enumerate(traces):
        file.process(at, _rank_name(trace, at))
        zero_s = (trace.origin_us - first_us) * 1e-6
        calls, events = _critical_events(replays, at)
        host, device = trace.host, trace.device_events
        marked: list[tuple[int, float, float, str]] = []
        number = {
            int(call): correlation + place + 1
            for place, call in enumerate(np.unique(device.call[device.call != NONE]))
        }
        correlation += len(number)
        slices: dict[int, Slice] = {}
        order = np.lexsort([np.arange(len(host)), -host.end_s, host.start_s])
        for event in order.tolist():
            args: dict[str, Any] = _shapes(trace, event)
            if event in number:
                args["correlation"] = number[event]
            start_s, end_s = zero_s + float(host.start_s[event]), zero_s + float(host.end_s[event])
            name, thread = trace.host_name(event), f"thread {trace.threads[host.thread[event]]}"
            if event in calls:
                marked.append((at, start_s, end_s, name))
            slices[event] = file.slice(
                at,
                thread,
                name,
                _HOST_CATEGORY[int(host.kind[event])],
                start_s,
                end_s,
                critical=event in calls,
                **args,
            )
        for event in np.lexsort([-device.end_s, device.start_s]).tolist():
            call, stream, size = (
                int(device.call[event]),
                int(device.stream[event]),
                float(device.bytes[event]),
            )
            args = {"stream": stream, "device": at}
            if call != NONE:
                args["correlation"] = number[call]
            if np.isfinite(size):
                args["bytes"] = size
            args |= _group(trace, event)
            start_s, end_s = (
                zero_s + float(device.start_s[event]),
                zero_s + float(device.end_s[event]),
            )
            if event in events:
                marked.append((at, start_s, end_s, trace.device_name(event)))
            ran = file.slice(
                at, f"stream {stream}", trace.device_name(event),
                _CATEGORY[int(device.kind[event])], start_s, end_s, critical=event in events,
                **args,
            )  # fmt: skip
            if call != NONE:
                file.arrow(form.LAUNCH, slices[call], ran)
        _mark(file, marked)
    devices = _devices(range(len(traces)), [trace.device for trace in traces])
    file.write(
        path, deviceProperties=devices, baseTimeNanoseconds=round(first_us * 1e3), **_rank(traces)
    )


def _mark(file: TraceFile, marked: Iterable[tuple[int, float, float, str]]) -> None:
    for at, start_s, end_s, name in sorted(marked, key=lambda one: (one[0], one[1], -one[2])):
        file.slice(at, _CRITICAL_THREAD, name, form.CRITICAL, start_s, end_s)


def _dependencies(file: TraceFile, graph: Any, slices: dict[int, Slice]) -> None:
    for node in slices:
        for other in graph.waits_for(node).tolist():
            if other in slices and (slices[other].process, slices[other].thread) != (
                slices[node].process,
                slices[node].thread,
            ):
                file.arrow(form.DEPENDENCY, slices[other], slices[node])


def _critical_nodes(replay: Replay) -> tuple[set[int], set[int]]:
    """Nodes whose launch, and those whose event is on the critical path."""
    path = replay.critical
    return set(path.node[path.is_launch].tolist()), set(path.node[~path.is_launch].tolist())


def _critical_events(replays: Sequence[Replay], at: int) -> tuple[set[int], set[int]]:
    """Host events and device events of one trace on the critical paths of its replayed steps."""
    calls, events = set(), set()
    for replay in replays:
        launched, run = _critical_nodes(replay)
        for node in launched:
            row = int(replay.graph.launch_row[node]) - 1
            if replay.graph.rank[node] == at and replay.rows.call[row] != NONE:
                calls.add(int(replay.rows.call[row]))
        events |= {int(replay.nodes.event[node]) for node in run if replay.graph.rank[node] == at}
    return calls, events - {NONE}


def _shapes(trace: RankTrace, event: int) -> dict[str, Any]:
    shape = int(trace.host.shapes[event])
    if shape == NONE:
        return {}
    args = {"Input Dims": _value(trace.shapes[shape])}
    if shape < len(trace.types) and trace.types[shape]:
        args["Input type"] = _value(trace.types[shape])
    return args


def _group(trace: RankTrace, event: int) -> dict[str, Any]:
    """What was recorded of a collective's group, as PyTorch's profiler writes it."""
    said = trace.messages.get(event)
    if said is None:
        return {}
    args: dict[str, Any] = {
        "Collective name": said.kind,
        "Process Group Name": said.group,
        "Process Group Ranks": list(said.ranks),
    }
    args |= {
        "Group size": said.size or 0,
        "Out bytes": said.out_bytes if np.isfinite(said.out_bytes) else 0,
    }
    return {name: value for name, value in args.items() if value}


def _value(text: str) -> Any:
    """What JSON says; the text itself where it is none."""
    try:
        return json.loads(text, parse_constant=str)  # NaN and Infinity are no JSON
    except ValueError:
        return text


def _rank_name(trace: RankTrace, at: int) -> str:
    return f"rank {trace.rank}" if trace.rank is not None else f"trace {at}"


def _rank(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """Which rank a file of one is of, and of how many, as PyTorch's profiler writes it."""
    info: dict[str, int] = {}
    if len(traces) == 1 and traces[0].rank is not None:
        info["rank"] = traces[0].rank
    if (info or len(traces) > 1) and traces[0].world:
        info["world_size"] = traces[0].world
    return {"distributedInfo": info} if info else {}


def _devices(ranks: Iterable[int], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"id": rank, "name": names[min(at, len(names) - 1)]}
        for at, rank in enumerate(sorted(set(ranks)))
    ]
