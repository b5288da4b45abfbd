"""A predicted, replayed or measured step as a timeline for https://ui.perfetto.dev and
chrome://tracing.

Ranks are processes; the host's threads and the device's streams are threads. Arrows lead from a
call to what it launched and from an event to what waited for it on another stream. The critical
path is coloured, has `critical` in its arguments, and is repeated on a thread of its own, in the
category `critical_path`. `traces.readers.kineto` reads back what is written here.
"""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.report import trace_events as form
from hybridperf.report.trace_events import Slice, TimelineFile
from hybridperf.traces.events import CALL, COPY, FILL, KERNEL, MARK, NONE, OP, RankTrace
from hybridperf.traces.replay import Replay

_CATEGORY = {KERNEL: form.KERNEL, COPY: form.COPY, FILL: form.FILL}
_HOST_CATEGORY = {OP: form.OP, CALL: form.CALL, MARK: form.MARK}
_HOST_THREAD = "host"
_MICROSECONDS = 1e6


def write_timeline(prediction: Prediction, path: str | os.PathLike) -> None:
    """Write a predicted step as a timeline that https://ui.perfetto.dev and chrome://tracing open.

    Args:
        prediction: what `hp.predict` returned.
        path: the JSON file to write.
    """
    graph, times = prediction.workload.graph, prediction.timeline
    ops = prediction.ops()
    groups, roofline_us = ops["group"].tolist(), (ops["roofline_s"] * _MICROSECONDS).tolist()
    sizes = ops.loc[:, "critical":].iloc[:, 1:].to_dict("records")
    critical = prediction.on_critical_path.tolist()
    file = TimelineFile()
    for rank in sorted(set(graph.rank.tolist())):
        file.process(rank, f"rank {rank}")
    slices: dict[int, Slice] = {}
    for node in np.lexsort([-times.end_s, times.start_s]).tolist():
        rank, stream = int(graph.rank[node]), int(graph.stream[node])
        label, thread = graph.labels[node] or groups[node], graph.stream_names[stream]
        span = float(times.start_s[node]), float(times.end_s[node])
        if critical[node]:
            file.slice(rank, form.CRITICAL_THREAD, label, form.CRITICAL, *span)
        args: dict[str, Any] = {"stream": stream, "device": rank, "correlation": node + 1}
        args |= {"group": groups[node], "roofline_us": roofline_us[node]}
        for name, size in sizes[node].items():
            if name not in args and size == size and size not in (0.0, None):
                args[name] = size
        args["critical"] = critical[node]
        slices[node] = file.slice(rank, thread, label, form.KERNEL, *span, **args)
    launches = np.flatnonzero(graph.launch_row > 0)
    for node in launches[np.argsort(times.launch_start_s[launches], kind="stable")].tolist():
        rank = int(graph.rank[node])
        span = float(times.launch_start_s[node]), float(times.launch_end_s[node])
        call = file.slice(rank, _HOST_THREAD, "launch", form.CALL, *span, correlation=node + 1)
        file.arrow(form.LAUNCH, call, slices[node])
    _dependencies(file, graph, slices)
    device = prediction.model.device.name
    facts = {"workload": prediction.workload.name, "device": device, "seconds": prediction.time_s}
    devices = _devices(graph.rank.tolist(), [device])
    file.write(path, deviceProperties=devices, otherData=facts)


def write_replay(replay: Replay, path: str | os.PathLike) -> None:
    """Write a replayed step, or one after a what-if, by the times of its graph.

    The kernel of a collective begins when its rank has come to it, and waits for the others first,
    as in a measured step.
    """
    graph, times, nodes = replay.graph, replay.timeline, replay.nodes
    file = TimelineFile()
    for at, trace in enumerate(replay.traces):
        file.process(at, _rank_name(trace, at))
    launched, run = _critical_nodes(replay)
    came = [(one.node[at], node) for one in replay.meetings for at, node in one.arrival.items()]
    arrival = dict(came)
    begins_s = times.start_s.copy()
    begins_s[list(arrival)] = times.end_s[list(arrival.values())]
    slices: dict[int, Slice] = {}
    for node in np.lexsort([-replay.end_s, begins_s]).tolist():
        event, at, row = int(nodes.event[node]), int(graph.rank[node]), int(nodes.row[node])
        if event == NONE:
            continue
        trace = replay.traces[at]
        span = float(begins_s[node]), float(replay.end_s[node])
        name, stream = trace.device_name(event), int(trace.device_events.stream[event])
        op = replay.op_of_row(row) if row != NONE else name
        category = _CATEGORY[int(trace.device_events.kind[event])]
        args: dict[str, Any] = {"stream": stream, "device": at, "correlation": node + 1, "op": op}
        args |= {"critical": node in run, "repeated": op}
        slices[node] = file.slice(at, f"stream {stream}", name, category, *span, **args)
    # the host's thread: what a launch or a wait follows, and the wait itself
    hosts: list[tuple[int, float, float, str, int]] = []  # process, start, -end, name, node
    for node in np.flatnonzero((graph.launch_row > 0) | graph.blocking).tolist():
        at = int(graph.rank[node])
        start_s, end_s = float(times.launch_start_s[node]), float(times.launch_end_s[node])
        call = int(replay.rows.call[graph.launch_row[node] - 1]) if graph.launch_row[node] else NONE
        name = replay.traces[at].host_name(call) if call != NONE else _HOST_THREAD
        hosts.append((at, start_s, -end_s, name, node))
        if graph.blocking[node] and times.end_s[node] > end_s:
            hosts.append((at, end_s, -float(times.end_s[node]), "waits for the device", NONE))
    # node that launches -> node that runs, where they are two
    runs = {node: ran for ran, node in arrival.items()}
    for at, start_s, minus_end_s, name, node in sorted(hosts, key=lambda one: one[:3]):
        ran, span = runs.get(node, node), (start_s, -minus_end_s)
        args = {"critical": node in launched, "repeated": _HOST_THREAD}
        args |= {"correlation": ran + 1} if ran in slices else {}
        launch = file.slice(at, _HOST_THREAD, name, form.CALL, *span, **args)
        if ran in slices:
            file.arrow(form.LAUNCH, launch, slices[ran])
    file.critical_path()
    _dependencies(file, graph, slices)
    replayed_s, measured_s = replay.replayed_s.tolist(), replay.measured_s.tolist()
    facts = {"step": replay.steps[0].name, "seconds": replayed_s, "measured_seconds": measured_s}
    devices = _devices(range(len(replay.traces)), [trace.device for trace in replay.traces])
    file.write(path, deviceProperties=devices, otherData=facts, **_rank(replay.traces))


def write_traces(
    traces: Sequence[RankTrace], path: str | os.PathLike, replays: Sequence[Replay] = ()
) -> None:
    """Write recorded events of ranks on one clock; `replays` of their steps mark critical paths."""
    file = TimelineFile()
    first_us = min(trace.origin_us for trace in traces)
    correlation = 0
    for at, trace in enumerate(traces):
        file.process(at, _rank_name(trace, at))
        zero_s = (trace.origin_us - first_us) * 1e-6
        calls, events = _critical_events(replays, at)
        host, device = trace.host, trace.device_events
        launching = np.unique(device.call[device.call != NONE]).tolist()
        number = {call: correlation + place + 1 for place, call in enumerate(launching)}
        correlation += len(number)
        slices: dict[int, Slice] = {}
        for event in np.lexsort([np.arange(len(host)), -host.end_s, host.start_s]).tolist():
            args: dict[str, Any] = _shapes(trace, event)
            args |= {"correlation": number[event]} if event in number else {}
            span = zero_s + float(host.start_s[event]), zero_s + float(host.end_s[event])
            name, thread = trace.host_name(event), f"thread {trace.threads[host.thread[event]]}"
            args |= {"critical": event in calls, "repeated": name}
            category = _HOST_CATEGORY[int(host.kind[event])]
            slices[event] = file.slice(at, thread, name, category, *span, **args)
        for event in np.lexsort([-device.end_s, device.start_s]).tolist():
            call, stream = int(device.call[event]), int(device.stream[event])
            size = float(device.bytes[event])
            args = {"stream": stream, "device": at}
            args |= {"correlation": number[call]} if call != NONE else {}
            args |= {"bytes": size} if np.isfinite(size) else {}
            args |= _group(trace, event)
            span = zero_s + float(device.start_s[event]), zero_s + float(device.end_s[event])
            name, category = trace.device_name(event), _CATEGORY[int(device.kind[event])]
            args |= {"critical": event in events, "repeated": name}
            ran = file.slice(at, f"stream {stream}", name, category, *span, **args)
            if call != NONE:
                file.arrow(form.LAUNCH, slices[call], ran)
        file.critical_path()
    devices = _devices(range(len(traces)), [trace.device for trace in traces])
    clock_ns = round(first_us * 1e3)
    file.write(path, deviceProperties=devices, baseTimeNanoseconds=clock_ns, **_rank(traces))


def _dependencies(file: TimelineFile, graph: Any, slices: dict[int, Slice]) -> None:
    for node in slices:
        for other in graph.waits_for(node).tolist():
            if other in slices and slices[other][:2] != slices[node][:2]:  # process and thread
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
    message = trace.messages.get(event)
    if message is None:
        return {}
    args: dict[str, Any] = {
        "Collective name": message.kind,
        "Process Group Name": message.group,
        "Process Group Ranks": list(message.ranks),
        "Group size": message.size or 0,
        "Out bytes": message.out_bytes if np.isfinite(message.out_bytes) else 0,
    }
    return {name: value for name, value in args.items() if value}


def _value(text: str) -> Any:
    """The value of a JSON text; the text itself where it is not JSON."""
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
    numbered = enumerate(sorted(set(ranks)))
    return [{"id": rank, "name": names[min(at, len(names) - 1)]} for at, rank in numbered]
