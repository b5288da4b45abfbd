"""A prediction in words: its time with the interval, and what it consists of by group of ops."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.model import PerfModel
from hybridperf.model.calls import CHAIN, CallChain, call_columns, row_kinds
from hybridperf.model.step_table import split, step_table
from hybridperf.report.slices import Track, slices_frame
from hybridperf.report.text import frame_table, quantity, seconds, within

_LAUNCHES = "host: launches"
# of several kernels in a row, by what a pipeline's labels begin with: F3 of stage 0
_PASSES = {"F": "forward pass", "B": "backward pass", "W": "gradients of weights"}
_PASS = re.compile(r"([FBW])\d")
_MOST_POINTS = 600  # on the roofline


def machine_words(loaded: PerfModel) -> str:
    """Which machine a model is of: "one pinned core of NAME", with what was measured and when."""
    spec, facts = loaded.device, loaded.provenance
    cores = spec.multiprocessors if spec.kind == "cpu" else None
    pinned = " pinned" if (facts.get("machine") or {}).get("cores") else ""
    count = (
        "" if not cores else f"one{pinned} core of " if cores == 1 else f"{cores}{pinned} cores of "
    )
    rows = sum(report.rows for report in loaded.groups.values())
    measured = f"{rows:,} measured rows" if rows else "its datasheet alone"
    return ", ".join(filter(None, [f"{count}{spec.name}", measured, str(facts.get("date") or "")]))


def prediction_report(result: Prediction) -> str:
    """A prediction with its breakdown."""
    interval = within(result.low_s, result.high_s)
    lines = [
        f"{result.workload.name} on {result.model.device.name}: {seconds(result.time_s)}{interval}",
        f"datasheet roofline: {seconds(result.roofline_s)}; {result.workload.flops:.3g} flops,"
        f" {quantity(result.workload.flops / result.time_s, 'FLOP/s')}",
        f"model: {machine_words(result.model)}",
        "",
        frame_table(result.breakdown()),
        *(f"note: {note}" for note in result.notes),
    ]
    return "\n".join(lines)


def slices(prediction: Prediction, most: int) -> pd.DataFrame:
    """What runs when (`report.slices.slices_frame`); `group` of several kernels of a pipeline's
    pass: which pass.
    """
    groups = list(dict.fromkeys(row_kinds()[g] for g in prediction.op_group))
    tracks, labels = _tracks(prediction, groups)
    kinds = [*groups, _LAUNCHES, *_PASSES.values()]
    passes = [_PASSES.get(found[1], "") if (found := _PASS.match(one)) else "" for one in labels]
    of_label = np.array([kinds.index(one) if one else -1 for one in passes])
    chain = kinds.index(CHAIN) if CHAIN in kinds else -1
    for at, track in enumerate(tracks):
        own = np.where(track.kind == chain, of_label[track.label], -1)
        tracks[at] = dataclasses.replace(track, kind=np.where(own < 0, track.kind, own))
    return slices_frame(tracks, labels, kinds, most)


def _tracks(prediction: Prediction, groups: Sequence[str]) -> tuple[list[Track], list[str]]:
    """A track for each stream of each rank and each host, and the labels they index."""
    graph, times = prediction.workload.graph, prediction.timeline
    label, labels = pd.factorize(np.array([name or "unnamed" for name in graph.labels], object))
    kind = np.array([groups.index(row_kinds()[g]) for g in prediction.op_group], int)
    kind_of_node = np.zeros(len(graph), int)
    runs = graph.row > 0
    kind_of_node[runs] = kind[graph.row[runs] - 1]
    several = bool((graph.rank != graph.rank[0]).any())
    launches = np.flatnonzero((graph.launch_row > 0) & (times.launch_end_s > times.launch_start_s))
    taking = np.flatnonzero(times.end_s > times.start_s)
    streams = len(graph.stream_names) + 1  # a rank's host first
    host_line = graph.rank[launches] * streams
    line = graph.rank[taking] * streams + graph.stream[taking] + 1
    nodes = pd.concat([pd.Series(launches, host_line), pd.Series(taking, line)])
    tracks = []
    for number, of_line in nodes.groupby(level=0):
        at, (rank, stream) = of_line.to_numpy(), divmod(int(number), streams)
        where, kinds = "host", np.full(len(at), len(groups))
        start, end = times.launch_start_s[at], times.launch_end_s[at]
        if stream:
            where, kinds = graph.stream_names[stream - 1], kind_of_node[at]
            start, end = times.start_s[at], times.end_s[at]
        marked = prediction.on_critical_path[at] & (stream > 0)
        name = f"rank {rank} {where}" if several else where
        tracks.append(Track(name, start, end, label[at], kinds, marked))
    return tracks, list(labels)


def critical_seconds(prediction: Prediction) -> tuple[dict[str, float], float]:
    """Seconds of the critical path by group, and what of it the host's launches take."""
    times = _times_run(prediction, prediction.on_critical_path)
    by_kind = np.bincount(
        prediction.op_group, weights=times * prediction.op_s, minlength=len(row_kinds())
    )
    left_s = prediction.time_s - float(by_kind.sum())
    launches_s = left_s if left_s > 1e-6 * prediction.time_s else 0.0
    return {row_kinds()[g]: float(by_kind[g]) for g in np.flatnonzero(by_kind)}, launches_s


def explained(prediction: Prediction, most: int) -> pd.DataFrame:
    """The ops that take longest, all their executions together, and why one takes as long: `op`
    with its sizes, `times` it runs, their `seconds`, `price` as a waterfall of stages.
    """
    run, calls = _times_run(prediction), split(prediction.workload.calls)[0]
    frame = pd.DataFrame({
        "at": list(calls), "times": [run[at] * call.times for at, call in calls.items()],
        "seconds": [run[at] * prediction.op_s[at] for at in calls],
    })  # fmt: skip
    frame = frame[frame["seconds"] > 0].nlargest(most, "seconds").reset_index(drop=True)
    frame.insert(0, "op", [_sizes(call_columns(calls[at])) for at in frame["at"]])
    frame["price"] = [prediction.explain(at) for at in frame["at"]]
    return frame.drop(columns="at")


def _times_run(prediction: Prediction, nodes: np.ndarray | None = None) -> np.ndarray:
    """How often each call runs, in chains too, on all ranks; of some nodes (a mask) if given."""
    graph, calls = prediction.workload.graph, prediction.workload.calls
    run = graph.row > 0 if nodes is None else nodes & (graph.row > 0)
    times = np.bincount(graph.row[run] - 1, minlength=len(calls)).astype(float)
    for at in np.flatnonzero(times).tolist():
        if isinstance(call := calls[at], CallChain):
            for row, often in call.parts:
                times[row - 1] += often * times[at]
            times[at] = 0.0
    return times


def roofline(prediction: Prediction) -> pd.DataFrame:
    """Kinds of op that do arithmetic, the longest first, and where each lies on the roofline."""
    workload, graph = prediction.workload, prediction.workload.graph
    nodes = np.bincount(graph.row, minlength=len(workload.calls) + 1)[1:]
    at_node = np.full(len(workload.calls) + 1, -1)
    backwards = np.arange(len(graph))[::-1]
    at_node[graph.row[backwards]] = backwards  # the first node of each row is written last
    frame = pd.DataFrame({
        "label": [graph.labels[at] or "unnamed" if at >= 0 else "" for at in at_node[1:].tolist()],
        "group": [row_kinds()[g] for g in prediction.op_group],
        "sizes": [_sizes(call_columns(call)) for call in workload.calls], "nodes": nodes,
        "seconds": prediction.op_s, "total_s": nodes * prediction.op_s,
        "roofline_s": prediction.op_roofline_s, "in_range": prediction.op_in_range,
        "intensity": np.nan, "flops_per_s": np.nan, "peak_flops_per_s": np.nan, "peak_of": "",
    })  # fmt: skip
    ops = split(workload.calls)[0]
    if ops:
        table = step_table(prediction.model, workload.calls).ops
        at = list(ops)
        flops = np.asarray(table.work.flops) + np.asarray(table.work.transcendentals)
        with np.errstate(divide="ignore", invalid="ignore"):
            frame.loc[at, "intensity"] = flops / np.asarray(table.work.bytes)
            frame.loc[at, "flops_per_s"] = flops * np.asarray(table.times) / prediction.op_s[at]
        frame.loc[at, "peak_flops_per_s"] = np.asarray(table.peak_flops_per_s)
        units = [" vector" if call.op.unit == "vector" else "" for call in ops.values()]
        formats = [call.op.peak_dtype for call in ops.values()]
        frame.loc[at, "peak_of"] = [f"{f}{unit}" for f, unit in zip(formats, units, strict=True)]
    frame = frame[nodes > 0].reset_index(drop=True)
    frame["share"] = frame["total_s"] / (float(frame["total_s"].sum()) or 1.0)
    placed = frame[(frame["intensity"] > 0) & (frame["flops_per_s"] > 0)]
    return placed.nlargest(_MOST_POINTS, "total_s")


def _sizes(columns: Mapping[str, Any]) -> str:
    known = {k: v for k, v in columns.items() if v == v and v not in (None, 0.0, "")}
    plain = ("op", "dtype")
    words = {
        k: f"{v:,.6g}" if isinstance(v, int | float | np.number) else v for k, v in known.items()
    }
    return ", ".join(str(v) if k in plain else f"{k} {v}" for k, v in words.items())
