"""A prediction as a page: time and interval of a step, its parts, roofline and timeline."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.model.calls import KINDS, call_columns
from hybridperf.model.step_table import split, step_table
from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import Axis, Interval, Series, intervals, plot
from hybridperf.report.html.of_model import model_facts
from hybridperf.report.html.tracks import timeline
from hybridperf.report.slices import LAUNCHES, critical_seconds, tracks_of
from hybridperf.report.text import percent, quantity, seconds

_LONGEST = 20  # rows of the step listed
_MOST_POINTS = 600  # on the roofline
_WHERE = "hybridperf predict --timeline FILE writes every one of them, for https://ui.perfetto.dev."
_ROOFLINE = (
    "Each kind of op by its arithmetic per byte of compulsory traffic and its predicted rate; areas"
    " are shares of seconds, lines are the datasheet's. Ops above a line read from a cache."
)
_WHAT = doc.Column("label", "what (its first label)")
_OP = [_WHAT, doc.Column("group", "group"), doc.Column("sizes", "sizes")]


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
        launches = {"group": LAUNCHES, "path_s": launches_s, "colour": doc.OTHER}
        groups = pd.concat([groups, pd.DataFrame([launches])], ignore_index=True)
    groups["of_step"] = groups["path_s"] / (prediction.time_s or 1.0)
    in_range = doc.Column("in_range", "in measured range", lambda known: "yes" if known else "no")
    columns = [
        doc.Column("group", "group"),
        doc.Column("seconds", "seconds", doc.time_words),
        doc.Column("share", "share", percent, "colour"),
        doc.Column("path_s", "on the critical path", doc.time_words),
        doc.Column("of_step", "of the step", percent),
        doc.Column("roofline_s", "datasheet roofline", doc.time_words),
        doc.Column("ops", "ops", doc.count_words),
        in_range,
    ]
    graph = prediction.workload.graph
    several = len(graph.stream_names) > 1 or bool(graph.rank.any())
    overlapped = ", added up over ranks and streams, whether they overlap or not" if several else ""
    explained = (
        f"Seconds and shares are of all ops{overlapped}. What lies on the critical path adds up to"
        " the time of the step: it decides when the step ends."
    )
    longest = rows.sort_values("total_s", ascending=False, kind="stable").head(_LONGEST)
    op_columns = [
        *_OP,
        doc.Column("nodes", "times", doc.count_words),
        doc.Column("seconds", "once", doc.time_words),
        doc.Column("total_s", "all together", doc.time_words),
        doc.Column("share", "share", percent, "colour"),
        doc.Column("roofline_s", "datasheet roofline, once", doc.time_words),
        in_range,
    ]
    title = f"The longest {len(longest)} of {len(rows):,} kinds of op"
    table = doc.frame_table(longest, op_columns, words=3)
    return [doc.Text(explained), doc.frame_table(groups, columns), doc.Folded(title, [table])]


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
    columns = [
        *_OP,
        doc.Column("intensity", "flops per byte", "{:.3g}".format),
        doc.Column("flops_per_s", "predicted rate", lambda rate: quantity(rate, "FLOP/s")),
        doc.Column("roof", "roof there", lambda rate: quantity(rate, "FLOP/s")),
        doc.Column("of_roof", "of the roof", percent),
        doc.Column("total_s", "all together", doc.time_words),
    ]
    frame = drawn.assign(roof=roof, of_roof=drawn["flops_per_s"] / roof)
    return doc.frame_table(frame, columns, words=3)


def _roof(peak: float, bandwidth: float, span: np.ndarray, drawn: pd.DataFrame) -> Series:
    x = np.unique(np.append(span, peak / bandwidth))
    kinds = sorted(set(drawn.loc[drawn["peak_flops_per_s"] == peak, "peak_of"]))
    name = f"{', '.join(kinds)}: {quantity(peak, 'FLOP/s')}"
    return Series(name, x, np.minimum(peak, x * bandwidth), doc.OTHER, line=True)


def _timeline(prediction: Prediction, colours: Mapping[str, int]) -> list[doc.Block]:
    tracks, labels = tracks_of(prediction, colours)
    return timeline(tracks, labels, [*colours.items(), (LAUNCHES, doc.OTHER)], _WHERE)


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


def _colours(prediction: Prediction) -> dict[str, int]:
    """A colour for each group: those with the most seconds have their own, the others are grey."""
    groups = list(map(str, prediction.breakdown()["group"]))
    there = dict.fromkeys([*groups, *(KINDS[g] for g in np.unique(prediction.op_group))])
    return {group: min(at, doc.COLOURS) for at, group in enumerate(there)}
