"""A prediction as a page: how long a step takes and how sure that is, what it goes into, what its
ops reach and when they run, and what was assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.engine.step_table import split, step_table
from hybridperf.engine.workload import KINDS, call_columns
from hybridperf.report.html.cells import count_cell, rate_cell, share_cell, time_cell, time_words
from hybridperf.report.html.document import (
    COLOURS,
    OTHER,
    Block,
    Cell,
    Facts,
    Folded,
    Notes,
    Page,
    Plot,
    Range,
    Ranges,
    Rows,
    Section,
    Series,
    Table,
    Text,
    Timeline,
    Track,
)
from hybridperf.report.html.of_model import model_facts
from hybridperf.report.text import percent, quantity, seconds

_LONGEST = 20  # rows of the step listed
_MOST_POINTS = 600  # on the roofline
_LAUNCHES = "host: launches"
_WHERE = "hybridperf predict --timeline FILE writes every one of them, for https://ui.perfetto.dev."


def prediction_page(prediction: Prediction, title: str = "") -> Page:
    """The page of one predicted step."""
    workload, device = prediction.workload, prediction.model.device
    rows = _rows(prediction)
    colours = _colours(prediction)
    sections = [
        Section("Summary", _summary(prediction, rows)),
        Section("Breakdown", _breakdown(prediction, rows, colours)),
        Section("Roofline", _roofline(prediction, rows, colours)),
        Section("Timeline", [_timeline(prediction, colours)]),
        Section(
            "Notes and assumptions",
            [Notes(prediction.notes, "None: every op lies within what was measured.")],
        ),
        Section("Provenance", _provenance(prediction)),
    ]
    return Page(
        title or workload.name,
        sections,
        f"One step on {device.name}, predicted.",
        facts=[f"model of {device.id}"],
    )


def _summary(prediction: Prediction, rows: pd.DataFrame) -> list[Block | Folded]:
    time_s, low_s, high_s = prediction.time_s, prediction.low_s, prediction.high_s
    known = low_s is not None and high_s is not None
    interval = (
        f"90 %: {seconds(low_s)} to {seconds(high_s)}"
        if known
        else "no interval: too little of it was measured"
    )
    total_s = float(rows["total_s"].sum())
    inside = float(rows.loc[rows["in_range"], "total_s"].sum()) / total_s if total_s else 1.0
    facts = [
        ("time of a step", seconds(time_s), interval),
        (
            "datasheet roofline",
            seconds(prediction.roofline_s),
            f"{prediction.roofline_s / time_s:.0%} of the prediction" if time_s else "",
        ),
    ]
    if prediction.workload.flops > 0 and time_s > 0:
        facts.append(
            (
                "arithmetic",
                quantity(prediction.workload.flops, "FLOP"),
                quantity(prediction.workload.flops / time_s, "FLOP/s") + " reached",
            )
        )
    facts.append(("within the measured range", percent(inside), "of the seconds of all ops"))
    roofline = ("datasheet roofline", prediction.roofline_s, seconds(prediction.roofline_s))
    said = f"{seconds(time_s)}{f' ({interval})' if known else ''}"
    return [
        Facts(facts),
        Ranges([Range("predicted", time_s, said, low_s, high_s, [roofline])], time_words),
    ]


def _breakdown(
    prediction: Prediction, rows: pd.DataFrame, colours: Mapping[str, int]
) -> list[Block | Folded]:
    critical_s, launches_s = _critical_s(prediction)
    groups: Rows = []
    for one in prediction.breakdown().itertuples():
        on_path_s = critical_s.get(str(one.group), 0.0)
        groups.append([
            str(one.group), time_cell(one.seconds), share_cell(one.share, colours[str(one.group)]),
            time_cell(on_path_s),
            share_cell(on_path_s / prediction.time_s if prediction.time_s else 0.0),
            time_cell(one.roofline_s), count_cell(one.ops), "yes" if one.in_range else "no",
        ])  # fmt: skip
    if launches_s > 0:
        groups.append(
            [
                _LAUNCHES,
                "-",
                "-",
                time_cell(launches_s),
                share_cell(launches_s / prediction.time_s),
                "-",
                "-",
                "-",
            ]
        )
    headers = [
        "group",
        "seconds",
        "share",
        "on the critical path",
        "of the step",
        "datasheet roofline",
        "ops",
        "in measured range",
    ]
    several = len(prediction.workload.graph.stream_names) > 1 or bool(
        prediction.workload.graph.rank.any()
    )
    said = "Seconds and shares are of all ops"
    said += (
        ", those of all ranks and streams added up, whether they run side by side or not"
        if several
        else ""
    )
    said += (
        ". What lies on the critical path adds up to the time of the step: it is what holds the"
        " step up."
    )
    longest = rows.sort_values("total_s", ascending=False, kind="stable").head(_LONGEST)
    total_s = float(rows["total_s"].sum()) or 1.0
    table: Rows = [
        [
            one.label,
            one.group,
            one.sizes,
            count_cell(one.nodes),
            time_cell(one.seconds),
            time_cell(one.total_s),
            share_cell(one.total_s / total_s, colours[one.group]),
            time_cell(one.roofline_s),
            "yes" if one.in_range else "no",
        ]
        for one in longest.itertuples()
    ]
    names = [
        "what (its first label)",
        "group",
        "sizes",
        "times",
        "once",
        "all together",
        "share",
        "datasheet roofline, once",
        "in measured range",
    ]
    return [
        Text(said),
        Table(["group", *headers[1:]], groups),
        Folded(
            f"The longest {len(table)} of {len(rows):,} kinds of op", [Table(names, table, words=3)]
        ),
    ]


def _roofline(
    prediction: Prediction, rows: pd.DataFrame, colours: Mapping[str, int]
) -> list[Block | Folded]:
    placed = rows[
        (rows["intensity"] > 0) & (rows["flops_per_s"] > 0) & np.isfinite(rows["intensity"])
    ]
    if placed.empty:
        return [
            Text(
                "No op of this step does arithmetic that is known: there is nothing to place under"
                " a roofline."
            )
        ]
    without = rows.drop(placed.index)
    total_s = float(rows["total_s"].sum()) or 1.0
    drawn = placed.sort_values("total_s", ascending=False, kind="stable").head(_MOST_POINTS)
    bandwidth = prediction.model.device.memory_bytes_per_s
    low, high = float(drawn["intensity"].min()), float(drawn["intensity"].max())
    peaks = sorted(set(drawn["peak_flops_per_s"]))
    span = np.geomspace(
        min(low, 0.5 * peaks[0] / bandwidth) / 2, max(high, 4 * peaks[-1] / bandwidth) * 2, 120
    )
    series = [_roof(peak, bandwidth, span, drawn) for peak in peaks]
    for group in _by_seconds(drawn):
        some = drawn[drawn["group"] == group]
        labels = [
            f"{r.label} ({r.group}; {r.sizes}): {quantity(r.flops_per_s, 'FLOP/s')} at"
            f" {r.intensity:.3g} flops per byte, {seconds(r.total_s)} all together"
            for r in some.itertuples()
        ]
        points = (some["intensity"].to_numpy(), some["flops_per_s"].to_numpy())
        series.append(
            Series(
                group,
                *points,
                colour=colours[group],
                labels=labels,
                share=some["total_s"].to_numpy() / total_s,
            )
        )
    caption = (
        "Each kind of op by its arithmetic per byte of compulsory traffic and by the rate predicted"
        " for it; areas are shares of seconds, lines are the datasheet's. Above a line: its data"
        " come from a cache."
    )
    if len(drawn) < len(placed):
        caption += f" The {len(drawn)} longest of {len(placed):,} are drawn."
    if len(without):
        caption += (
            f" {percent(float(without['total_s'].sum()) / total_s)} of all seconds have no"
            " arithmetic (copies, lookups, collectives)."
        )
    plot = Plot(
        series,
        "flops per byte",
        "FLOP/s",
        lambda at: f"{at:g}",
        lambda at: quantity(at, "FLOP/s"),
        x_log=True,
        y_log=True,
        caption=caption,
    )
    return [plot, Folded("The plot as a table", [_roofline_table(drawn, bandwidth)])]


def _roofline_table(drawn: pd.DataFrame, bandwidth: float) -> Table:
    rows: Rows = []
    for r in drawn.itertuples():
        roof = min(float(r.peak_flops_per_s), float(r.intensity) * bandwidth)
        rows.append([
            r.label, r.group, r.sizes, Cell(f"{r.intensity:.3g}", r.intensity),
            rate_cell(r.flops_per_s, "FLOP/s"), rate_cell(roof, "FLOP/s"),
            share_cell(r.flops_per_s / roof), time_cell(r.total_s),
        ])  # fmt: skip
    headers = [
        "what (its first label)",
        "group",
        "sizes",
        "flops per byte",
        "predicted rate",
        "roof there",
        "of the roof",
        "all together",
    ]
    return Table(headers, rows, words=3)


def _roof(peak: float, bandwidth: float, span: np.ndarray, drawn: pd.DataFrame) -> Series:
    corner = np.unique(np.append(span, peak / bandwidth))
    kinds = sorted(set(drawn.loc[drawn["peak_flops_per_s"] == peak, "peak_of"]))
    return Series(
        f"{', '.join(kinds)}: {quantity(peak, 'FLOP/s')}",
        corner,
        np.minimum(peak, corner * bandwidth),
        colour=OTHER,
        line=True,
        at_end=True,
    )


def _timeline(prediction: Prediction, colours: Mapping[str, int]) -> Timeline:
    graph, times = prediction.workload.graph, prediction.timeline
    labels, label = _numbered([graph.labels[at] or "unnamed" for at in range(len(graph))])
    groups = list(colours)
    kind = np.array([groups.index(KINDS[g]) for g in prediction.op_group], int)
    kind_of_node = np.where(
        graph.row > 0, kind[np.maximum(graph.row, 1) - 1] if len(kind) else 0, 0
    )
    several = bool((graph.rank != graph.rank[0]).any())
    launches = np.flatnonzero((graph.launch_row > 0) & (times.launch_end_s > times.launch_start_s))
    taking = np.flatnonzero(times.end_s > times.start_s)
    streams = len(graph.stream_names) + 1  # a rank's host first
    tracks = []
    for line, host, at in _by_line(
        graph.rank[launches] * streams,
        launches,
        graph.rank[taking] * streams + graph.stream[taking] + 1,
        taking,
    ):
        rank, stream = divmod(line, streams)
        name = f"{f'rank {rank} ' if several else ''}{graph.stream_names[stream - 1] if stream else 'host'}"
        edges = (
            (times.launch_start_s[at], times.launch_end_s[at])
            if host
            else (times.start_s[at], times.end_s[at])
        )
        kinds = np.full(len(at), len(groups)) if host else kind_of_node[at]
        tracks.append(
            Track(name, *edges, label[at], kinds, prediction.on_critical_path[at] & (not host))
        )
    return Timeline(tracks, labels, [*colours.items(), (_LAUNCHES, OTHER)], more=_WHERE)


def _by_line(
    host_line: np.ndarray, host: np.ndarray, line: np.ndarray, node: np.ndarray
) -> Iterator[tuple[int, bool, np.ndarray]]:
    """(line, whether it is a host's, its nodes), lines in order."""
    lines, nodes = np.concatenate([host_line, line]), np.concatenate([host, node])
    order = np.argsort(lines, kind="stable")
    found, first = np.unique(lines[order], return_index=True)
    hosts = set(host_line.tolist())
    for which, part in zip(found.tolist(), np.split(nodes[order], first[1:]), strict=True):
        yield which, which in hosts, part


def _provenance(prediction: Prediction) -> list[Block | Folded]:
    graph, workload = prediction.workload.graph, prediction.workload
    ranks = len(np.unique(graph.rank))
    step = [
        ("step", workload.name),
        ("compiled for", workload.backend or "any device"),
        (
            "graph",
            (
                f"{len(graph):,} nodes, {len(workload.calls):,} of them different; {ranks}"
                f" {'rank' if ranks == 1 else 'ranks'}"
            ),
        ),
    ]
    return [Table(["the step", ""], step, words=2, sortable=False), *model_facts(prediction.model)]


def _rows(prediction: Prediction) -> pd.DataFrame:
    """Rows that nodes run: `label, group, sizes, nodes, seconds, total_s, roofline_s, in_range,
    intensity, flops_per_s, peak_flops_per_s, peak_of`, the last four of ops alone.
    """
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
        frame.loc[at, "peak_of"] = [
            f"{call.op.peak_dtype}{' vector' if call.op.unit == 'vector' else ''}"
            for call in ops.values()
        ]
    return frame[nodes > 0].reset_index(drop=True)


def _sizes(columns: Mapping[str, Any]) -> str:
    known = {
        name: value
        for name, value in columns.items()
        if value == value and value not in (None, 0.0, "")
    }
    return ", ".join(
        str(value) if name in ("op", "dtype") else f"{name} {_number(value)}"
        for name, value in known.items()
    )


def _number(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float | np.number) else str(value)


def _critical_s(prediction: Prediction) -> tuple[dict[str, float], float]:
    """Seconds of the critical path by group, and what of it the host's launches take."""
    graph = prediction.workload.graph
    on_path = np.flatnonzero(prediction.on_critical_path & (graph.row > 0))
    row = graph.row[on_path] - 1
    by_kind = np.bincount(
        prediction.op_group[row], weights=prediction.op_s[row], minlength=len(KINDS)
    )
    left_s = prediction.time_s - float(by_kind.sum())
    return {KINDS[g]: float(by_kind[g]) for g in np.flatnonzero(by_kind)}, (
        left_s if left_s > 1e-6 * prediction.time_s else 0.0
    )


def _colours(prediction: Prediction) -> dict[str, int]:
    """A colour for each group: those with the most seconds have their own, the others are grey."""
    groups = list(map(str, prediction.breakdown()["group"]))
    there = dict.fromkeys([*groups, *(KINDS[g] for g in np.unique(prediction.op_group))])
    return {group: min(at, COLOURS) for at, group in enumerate(there)}


def _by_seconds(frame: pd.DataFrame) -> list[str]:
    return list(
        map(str, frame.groupby("group")["total_s"].sum().sort_values(ascending=False).index)
    )


def _numbered(words: list[str]) -> tuple[list[str], np.ndarray]:
    place: dict[str, int] = {}
    at = np.array([place.setdefault(word, len(place)) for word in words], int)
    return list(place), at
