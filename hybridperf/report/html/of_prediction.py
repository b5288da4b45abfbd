"""A prediction as a page: time and interval of a step, its parts, roofline and timeline."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.model.calls import CHAIN, KINDS, CallChain, call_columns
from hybridperf.model.step_table import split, step_table
from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import Axis, Interval, Series, intervals, plot
from hybridperf.report.html.of_model import model_facts
from hybridperf.report.html.tracks import Track, merge_all, timeline
from hybridperf.report.text import percent, quantity, seconds

_LONGEST = 20  # rows of the step listed
_MOST_POINTS = 600  # on the roofline
_LAUNCHES = "host: launches"
# of several kernels in a row, by what a pipeline's labels begin with: F3 of stage 0
_PASSES = {"F": "forward pass", "B": "backward pass", "W": "gradients of weights"}
_PASS = re.compile(r"([FBW])\d")
_WHERE = "hybridperf predict --timeline FILE writes every one of them, for https://ui.perfetto.dev."
_ROOFLINE = (
    "Each kind of op by its arithmetic per byte of compulsory traffic and its predicted rate; areas"
    " are shares of seconds, lines are the datasheet's. Ops above a line read from a cache."
)
_OP = {"label": "what (its first label)", "group": "group", "sizes": "sizes"}


def prediction_page(prediction: Prediction, title: str = "") -> doc.Page:
    """The page of one predicted step."""
    workload, device = prediction.workload, prediction.model.device
    colours = _colours(prediction)
    rows = _rows(prediction)
    rows["colour"] = rows["group"].map(colours)
    rows["share"] = rows["total_s"] / (float(rows["total_s"].sum()) or 1.0)
    notes = doc.Notes(prediction.notes, "None: every op lies within what was measured.")
    sections = [
        doc.Section("Summary", _summary(prediction, rows)),
        doc.Section("Breakdown", _breakdown(prediction, rows, colours)),
        doc.Section("Roofline", _roofline(prediction, rows, colours)),
        doc.Section("Timeline", _timeline(prediction, colours)),
        doc.Section("Notes and assumptions", [notes]),
        doc.Section("Provenance", _provenance(prediction)),
    ]
    lead, facts = f"One step on {device.name}, predicted.", [f"model of {device.id}"]
    return doc.Page(title or workload.name, sections, lead, facts)


def _summary(prediction: Prediction, rows: pd.DataFrame) -> list[doc.Block]:
    time_s, low_s, high_s = prediction.time_s, prediction.low_s, prediction.high_s
    interval = "no interval: too little of it was measured"
    if low_s is not None and high_s is not None:
        interval = f"90 %: {seconds(low_s)} to {seconds(high_s)}"
    total_s = float(rows["total_s"].sum())
    inside = float(rows.loc[rows["in_range"], "total_s"].sum()) / total_s if total_s else 1.0
    of_it = f"{percent(prediction.roofline_s / time_s)} of the prediction" if time_s else ""
    facts = [
        ("time of a step", seconds(time_s), interval),
        ("datasheet roofline", seconds(prediction.roofline_s), of_it),
    ]
    flops = prediction.workload.flops
    if flops > 0 and time_s > 0:
        reached = quantity(flops / time_s, "FLOP/s") + " reached"
        facts.append(("arithmetic", quantity(flops, "FLOP"), reached))
    facts.append(("within the measured range", percent(inside), "of the seconds of all ops"))
    predicted = Interval("predicted", time_s, low_s, high_s)
    roofline = Interval("datasheet roofline", prediction.roofline_s)
    caption = "The prediction with its 90 % interval, and the datasheet roofline."
    return [doc.Facts(facts), intervals([predicted, roofline], caption)]


def _breakdown(
    prediction: Prediction, rows: pd.DataFrame, colours: Mapping[str, int]
) -> list[doc.Block]:
    critical_s, launches_s = critical_seconds(prediction)
    groups = prediction.breakdown()
    groups["path_s"] = [critical_s.get(str(group), 0.0) for group in groups["group"]]
    groups["colour"] = groups["group"].map(colours)
    if launches_s > 0:
        launches = {"group": _LAUNCHES, "path_s": launches_s, "colour": doc.OTHER}
        groups = pd.concat([groups, pd.DataFrame([launches])], ignore_index=True)
    groups["of_step"] = groups["path_s"] / (prediction.time_s or 1.0)
    columns = {
        "group": "group", "seconds": "seconds", "share": "share", "path_s": "on the critical path",
        "of_step": "of the step", "roofline_s": "datasheet roofline", "ops": "ops",
        "in_range": "in measured range",
    }  # fmt: skip
    graph = prediction.workload.graph
    several = len(graph.stream_names) > 1 or bool(graph.rank.any())
    overlapped = ", added up over ranks and streams, whether they overlap or not" if several else ""
    explained = (
        f"Seconds and shares are of all ops{overlapped}. What lies on the critical path adds up to"
        " the time of the step: it decides when the step ends."
    )
    longest = rows.sort_values("total_s", ascending=False, kind="stable").head(_LONGEST)
    op_columns = {
        **_OP, "nodes": "times", "seconds": "once", "total_s": "all together", "share": "share",
        "roofline_s": "datasheet roofline, once", "in_range": "in measured range",
    }  # fmt: skip
    bars = {"share": "colour"}
    title = f"The longest {len(longest)} of {len(rows):,} kinds of op"
    table = doc.frame_table(longest, op_columns, bars, words=3)
    by_group = doc.frame_table(groups, columns, bars, {"of_step": percent})
    return [doc.Text(explained), by_group, doc.Folded(title, [table])]


def _roofline(
    prediction: Prediction, rows: pd.DataFrame, colours: Mapping[str, int]
) -> list[doc.Block]:
    known = (rows["intensity"] > 0) & (rows["flops_per_s"] > 0) & np.isfinite(rows["intensity"])
    placed, without = rows[known], rows[~known]
    if placed.empty:
        return [doc.Text("No op of this step does known arithmetic: there is no roofline to draw.")]
    drawn = placed.sort_values("total_s", ascending=False, kind="stable").head(_MOST_POINTS)
    bandwidth = prediction.model.device.memory_bytes_per_s
    low, high = float(drawn["intensity"].min()), float(drawn["intensity"].max())
    peaks = sorted(set(drawn["peak_flops_per_s"]))
    first = min(low, 0.5 * peaks[0] / bandwidth) / 2
    span = np.geomspace(first, max(high, 4 * peaks[-1] / bandwidth) * 2, 120)
    series = [_roof(peak, bandwidth, span, drawn) for peak in peaks]
    for group in map(str, drawn.groupby("group")["total_s"].sum().sort_values()[::-1].index):
        some = drawn[drawn["group"] == group]
        words = [
            f"{r.label} ({r.group}; {r.sizes}): {quantity(r.flops_per_s, 'FLOP/s')} at"
            f" {r.intensity:.3g} flops per byte, {seconds(r.total_s)} all together"
            for r in some.itertuples()
        ]
        x, y, share = (some[name].to_numpy() for name in ("intensity", "flops_per_s", "share"))
        series.append(Series(group, x, y, colours[group], words=words.__getitem__, share=share))
    caption = _ROOFLINE
    if len(drawn) < len(placed):
        caption += f" The {len(drawn)} longest of {len(placed):,} are drawn."
    if len(without):
        share_without = percent(float(without["share"].sum()))
        caption += f" {share_without} of all seconds have no arithmetic (copies, collectives)."
    x, y = Axis("flops per byte", log=True), Axis("rate", "FLOP/s", log=True)
    table = _roofline_table(drawn, bandwidth)
    return [plot(series, x, y, caption), doc.Folded("The plot as a table", [table])]


def _roofline_table(drawn: pd.DataFrame, bandwidth: float) -> doc.Table:
    roof = np.minimum(drawn["peak_flops_per_s"], drawn["intensity"] * bandwidth)
    columns = {
        **_OP, "intensity": "flops per byte", "flops_per_s": "predicted rate", "roof": "roof there",
        "of_roof": "of the roof", "total_s": "all together",
    }  # fmt: skip
    rates = dict.fromkeys(("flops_per_s", "roof"), lambda rate: quantity(rate, "FLOP/s"))
    frame = drawn.assign(roof=roof, of_roof=drawn["flops_per_s"] / roof)
    return doc.frame_table(frame, columns, write={**rates, "of_roof": percent}, words=3)


def _roof(peak: float, bandwidth: float, span: np.ndarray, drawn: pd.DataFrame) -> Series:
    x = np.unique(np.append(span, peak / bandwidth))
    kinds = sorted(set(drawn.loc[drawn["peak_flops_per_s"] == peak, "peak_of"]))
    name = f"{', '.join(kinds)}: {quantity(peak, 'FLOP/s')}"
    return Series(name, x, np.minimum(peak, x * bandwidth), doc.OTHER, line=True)


def slices(prediction: Prediction, most: int) -> pd.DataFrame:
    """What runs when, at most about so many slices: those that are short and follow each other are
    merged.

    Returns:
        A row each: `track, start_s, end_s, label` ("" where merged), `group` (of several kernels of
            a pipeline's pass, which pass), `critical, members`.
    """
    groups = dict.fromkeys((KINDS[g] for g in prediction.op_group), 0)
    tracks, labels = _tracks(prediction, groups)
    kinds = [*groups, _LAUNCHES, *_PASSES.values()]
    passes = [_PASSES.get(found[1], "") if (found := _PASS.match(one)) else "" for one in labels]
    of_label = np.array([kinds.index(one) if one else -1 for one in passes])
    chain = kinds.index(CHAIN) if CHAIN in kinds else -1
    for at, track in enumerate(tracks):
        own = np.where(track.kind == chain, of_label[track.label], -1)
        tracks[at] = dataclasses.replace(track, kind=np.where(own < 0, track.kind, own))
    done, _ = merge_all(tracks, prediction.time_s, most)
    names = [*labels, ""]  # -1: of several labels
    return pd.concat([
        pd.DataFrame({
            "track": track.name, "start_s": one.start_s, "end_s": one.end_s,
            "label": [names[at] for at in one.label], "group": [kinds[at] for at in one.kind],
            "critical": one.marked, "members": one.members,
        }) for track, one in zip(tracks, done, strict=True)
    ], ignore_index=True)  # fmt: skip


def _timeline(prediction: Prediction, colours: Mapping[str, int]) -> list[doc.Block]:
    tracks, labels = _tracks(prediction, colours)
    return timeline(tracks, labels, [*colours.items(), (_LAUNCHES, doc.OTHER)], _WHERE)


def _tracks(
    prediction: Prediction, colours: Mapping[str, int]
) -> tuple[list[Track], list[str]]:  # fmt: skip
    """A track for each stream of each rank and each host, and the labels they index."""
    graph, times = prediction.workload.graph, prediction.timeline
    label, labels = pd.factorize(np.array([name or "unnamed" for name in graph.labels], object))
    groups = list(colours)
    kind = np.array([groups.index(KINDS[g]) for g in prediction.op_group], int)
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


def _provenance(prediction: Prediction) -> list[doc.Block]:
    graph, workload = prediction.workload.graph, prediction.workload
    ranks = len(np.unique(graph.rank))
    size = f"{len(graph):,} nodes, {len(workload.calls):,} of them different; {ranks}"
    step = [
        ("step", workload.name),
        ("compiled for", workload.backend or "any device"),
        ("graph", f"{size} {'rank' if ranks == 1 else 'ranks'}"),
    ]
    return [doc.pairs_table("the step", step), *model_facts(prediction.model)]


def _rows(prediction: Prediction) -> pd.DataFrame:
    """Calls that nodes run with their seconds; only ops have columns of the roofline."""
    workload, graph = prediction.workload, prediction.workload.graph
    nodes = np.bincount(graph.row, minlength=len(workload.calls) + 1)[1:]
    at_node = np.full(len(workload.calls) + 1, -1)
    backwards = np.arange(len(graph))[::-1]
    at_node[graph.row[backwards]] = backwards  # the first node of each row is written last
    frame = pd.DataFrame({
        "label": [graph.labels[at] or "unnamed" if at >= 0 else "" for at in at_node[1:].tolist()],
        "group": [KINDS[g] for g in prediction.op_group],
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
    return frame[nodes > 0].reset_index(drop=True)


def _sizes(columns: Mapping[str, Any]) -> str:
    known = {k: v for k, v in columns.items() if v == v and v not in (None, 0.0, "")}
    plain = ("op", "dtype")
    words = {
        k: f"{v:,.6g}" if isinstance(v, int | float | np.number) else v for k, v in known.items()
    }
    return ", ".join(str(v) if k in plain else f"{k} {v}" for k, v in words.items())


def critical_seconds(prediction: Prediction) -> tuple[dict[str, float], float]:
    """Seconds of the critical path by group, and what of it the host's launches take."""
    graph = prediction.workload.graph
    on_path = np.flatnonzero(prediction.on_critical_path & (graph.row > 0))
    calls = prediction.workload.calls
    times = np.bincount(graph.row[on_path] - 1, minlength=len(calls)).astype(float)
    for at in np.flatnonzero(times).tolist():
        if isinstance(call := calls[at], CallChain):
            for row, often in call.parts:
                times[row - 1] += often * times[at]
            times[at] = 0.0
    by_kind = np.bincount(
        prediction.op_group, weights=times * prediction.op_s, minlength=len(KINDS)
    )
    left_s = prediction.time_s - float(by_kind.sum())
    launches_s = left_s if left_s > 1e-6 * prediction.time_s else 0.0
    return {KINDS[g]: float(by_kind[g]) for g in np.flatnonzero(by_kind)}, launches_s


def _colours(prediction: Prediction) -> dict[str, int]:
    """A colour for each group: those with the most seconds have their own, the others are grey."""
    groups = list(map(str, prediction.breakdown()["group"]))
    there = dict.fromkeys([*groups, *(KINDS[g] for g in np.unique(prediction.op_group))])
    return {group: min(at, doc.COLOURS) for at, group in enumerate(there)}
