"""Recorded steps as a page: what each rank's time went into, what was lost and why, which ops take
the longest, when everything ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report.html.cells import count_cell, share_cell, time_cell, time_words
from hybridperf.report.html.document import (
    OTHER,
    Bar,
    Bars,
    Block,
    Cell,
    Facts,
    Folded,
    Notes,
    Page,
    Rows,
    Section,
    Table,
    Timeline,
    Track,
    frame_table,
)
from hybridperf.report.text import percent, seconds
from hybridperf.report.trace_tables import REASONS
from hybridperf.traces.events import COPY, FILL, NONE, OP, RankTrace
from hybridperf.traces.steps import CommonStep
from hybridperf.traces.summary import (
    LostTime,
    StepSummary,
    StepSummaryRow,
    top_kernels,
    top_ops,
    worst,
)

_TOP = 30  # ops and kernels listed
_PARTS = [
    ("computation", 0),
    ("communication, exposed", 1),
    ("waiting for another rank, exposed", 3),
]
_IDLE = {
    "launch_bound": 5,
    "synchronisation": 4,
    "host_copy": 6,
    "dependency": 2,
    "unrecorded": OTHER,
    "other_step": OTHER,
}
_KERNEL, _COMMUNICATION, _COPY, _HOST = range(4)
_KINDS = [("computation", 0), ("communication", 1), ("copies and fills", 2), ("host: ops", 4)]
_WHERE = "hybridperf trace export --out FILE writes every one of them, for https://ui.perfetto.dev."


def trace_page(
    traces: Sequence[RankTrace],
    chosen: Sequence[CommonStep],
    found: Sequence[StepSummary],
    notes: Iterable[str] = (),
    title: str = "",
) -> Page:
    """The page of `chosen` steps of traces of one run, `found` being what
    `summaries` says of them.
    """
    rows = [row for said in found for row in said.rows]
    every_trace, every_step = (
        [*traces] * len(chosen),
        [one for step in chosen for one in step.steps],
    )
    devices = ", ".join(dict.fromkeys(trace.device or "unnamed device" for trace in traces))
    count = (
        f"{len(chosen)} {'step' if len(chosen) == 1 else 'steps'} of {len(traces)}"
        f" {'rank' if len(traces) == 1 else 'ranks'}"
    )
    sections = [
        Section("Summary", _summary(rows, len(traces))),
        Section("Steps", _steps(rows)),
        Section("Time lost", [_losses(worst(found), ranks_known=traces[0].rank is not None)]),
        Section(
            "Longest ops and kernels",
            [
                _top("op", top_ops(every_trace, every_step, _TOP), 0),
                _top("kernel", top_kernels(every_trace, every_step, _TOP), 2),
            ],
        ),
        Section("Timeline", [_timeline(traces, chosen)]),
        Section("Notes", [Notes(list(dict.fromkeys(filter(None, notes))))]),
        Section("Provenance", [_sources(traces)]),
    ]
    return Page(title or f"Recorded: {count}", sections, f"{count} on {devices}, as recorded.")


def _summary(rows: Sequence[StepSummaryRow], ranks: int) -> list[Block | Folded]:
    span_s = sum(row.gpu_span_s for row in rows)

    def part(name: str) -> tuple[str, str]:
        total_s = sum(getattr(row, name) for row in rows)
        return (
            percent(total_s / span_s if span_s else 0.0),
            f"{seconds(total_s / max(len(rows), 1))} per step and rank",
        )

    spans = sorted(row.gpu_span_s for row in rows)
    between = (
        f"{seconds(spans[0])} to {seconds(spans[-1])}"
        if len(spans) > 1
        else "first start to last end"
    )
    middle = seconds(float(np.median(spans)) if spans else None)
    facts = [
        (
            "time of a step on the device",
            middle,
            f"median of {len(spans)}; {between}" if len(spans) > 1 else between,
        )
    ]
    names = (
        ("computation", "compute_s"),
        ("exposed communication", "exposed_comm_s"),
        ("idle", "idle_s"),
    )
    facts += [(said, *part(name)) for said, name in names]
    if ranks > 1 and (known := [row.waiting_s for row in rows if math.isfinite(row.waiting_s)]):
        facts.append(
            (
                "waiting for another rank",
                percent(sum(known) / span_s if span_s else 0.0),
                "part of exposed communication",
            )
        )
    return [Facts(facts)]


def _steps(rows: Sequence[StepSummaryRow]) -> list[Block | Folded]:
    reasons = [reason for reason in _IDLE if any(getattr(row, f"{reason}_s") > 0 for row in rows)]
    legend = [*_PARTS, *((f"idle: {REASONS[reason]}", _IDLE[reason]) for reason in reasons)]
    bars = []
    for row in rows:
        waiting_s = row.waiting_s if math.isfinite(row.waiting_s) else 0.0
        parts = [
            row.compute_s,
            row.exposed_comm_s - waiting_s,
            waiting_s,
            *(getattr(row, f"{reason}_s") for reason in reasons),
        ]
        name = row.step if row.rank is None else f"{row.step}, rank {row.rank}"
        bars.append(
            Bar(
                name,
                [(amount, at, seconds(amount)) for at, amount in enumerate(parts)],
                seconds(row.gpu_span_s),
            )
        )
    headers = [
        "step",
        "rank",
        "host",
        "device",
        "busy",
        "computation",
        "communication",
        "exposed",
        "of it waiting",
        "idle",
        "idle share",
    ]
    table: Rows = []
    for row in rows:
        times = (
            row.step_cpu_s,
            row.gpu_span_s,
            row.gpu_busy_s,
            row.compute_s,
            row.comm_s,
            row.exposed_comm_s,
            row.waiting_s,
            row.idle_s,
        )
        idle = row.idle_s / row.gpu_span_s if row.gpu_span_s else 0.0
        counts = [count_cell(count) for count in (row.n_kernels, row.n_comm, row.n_cpu_ops)]
        rank = Cell("-" if row.rank is None else str(row.rank), row.rank)
        table.append([row.step, rank, *map(time_cell, times), share_cell(idle), *counts])
    idle_rows: Rows = [
        [
            row.step,
            "-" if row.rank is None else str(row.rank),
            time_cell(row.idle_s),
            *(time_cell(getattr(row, f"{r}_s")) for r in reasons),
        ]
        for row in rows
    ]
    blocks: list[Block | Folded] = [
        Bars(
            bars, legend, "What the device's time went into, from its first start to its last end."
        ),
        Table([*headers, "kernels", "of collectives", "host ops"], table),
    ]
    if reasons:
        blocks.append(
            Folded(
                "Why idle",
                [
                    Table(
                        ["step", "rank", "idle", *(REASONS[reason] for reason in reasons)],
                        idle_rows,
                    )
                ],
            )
        )
    return blocks


def _losses(found: Sequence[LostTime], ranks_known: bool) -> Block:
    if not found:
        return Notes([], "No time was lost.")
    largest = found[0].seconds or 1.0
    rows: Rows = [
        [
            REASONS[loss.reason],
            "" if loss.reason == "other_step" else loss.detail,
            str(loss.rank) if ranks_known else "-",
            Cell(seconds(loss.seconds), loss.seconds, loss.seconds / largest, 3),
            count_cell(loss.times),
        ]
        for loss in found
    ]
    return Table(
        ["why", "where", "rank", "time", "times"],
        rows,
        "Seconds in which a device did nothing useful",
        words=2,
    )


def _top(what: str, frame: pd.DataFrame, colour: int) -> Table:
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "name": (what, str),
        "device_s": ("device time", time_words),
        "share": ("share", percent),
        "events": ("events", "{:,}".format),
    }
    return frame_table(
        frame,
        columns,
        bars={"share": colour},
        caption=f"By {what}: the {len(frame)} with the most device time",
    )


def _timeline(traces: Sequence[RankTrace], chosen: Sequence[CommonStep]) -> Timeline:
    """Streams and host threads of every rank within the steps, all on one clock; of a thread the
    outermost ops.
    """
    names: dict[str, int] = {}
    tracks = []
    first_us = min(trace.origin_us for trace in traces)
    for at, trace in enumerate(traces):
        zero_s = (trace.origin_us - first_us) * 1e-6
        label = np.array([names.setdefault(name, len(names)) for name in trace.names], int)
        before = f"rank {trace.rank if trace.rank is not None else at} " if len(traces) > 1 else ""
        host, device = trace.host, trace.device_events
        calls = np.concatenate(
            [np.zeros(0, int), *(step.steps[at].host for step in chosen)]
        ).astype(int)
        calls = calls[_outermost(trace)[calls]]
        for thread in np.unique(host.thread[calls]).tolist():
            some = calls[host.thread[calls] == thread]
            edges = (zero_s + host.start_s[some], zero_s + host.end_s[some])
            kinds, marked = np.full(len(some), _HOST), np.zeros(len(some), bool)
            tracks.append(
                Track(
                    f"{before}thread {trace.threads[thread]}",
                    *edges,
                    label[host.name[some]],
                    kinds,
                    marked,
                )
            )
        events = np.concatenate(
            [np.zeros(0, int), *(step.steps[at].device for step in chosen)]
        ).astype(int)
        for stream in np.unique(device.stream[events]).tolist():
            some = events[device.stream[events] == stream]
            copies = np.where(np.isin(device.kind[some], (COPY, FILL)), _COPY, _KERNEL)
            kinds = np.where(device.communicates[some], _COMMUNICATION, copies)
            edges = (zero_s + device.start_s[some], zero_s + device.end_s[some])
            tracks.append(
                Track(
                    f"{before}stream {stream}",
                    *edges,
                    label[device.name[some]],
                    kinds,
                    np.zeros(len(some), bool),
                )
            )
    return Timeline(tracks, list(names), _KINDS, marked="", more=_WHERE)


def _outermost(trace: RankTrace) -> np.ndarray:
    """Host events that are ops in no other op [events]."""
    host = trace.host
    if not len(host):
        return np.zeros(0, bool)
    within, above = np.zeros(len(host), bool), host.parent
    while (above != NONE).any():
        within |= (above != NONE) & (host.kind[above] == OP)
        above = np.where(above == NONE, NONE, host.parent[above])
    return (host.kind == OP) & ~within


def _sources(traces: Sequence[RankTrace]) -> Table:
    rows: Rows = [
        [
            trace.source,
            Cell("-" if trace.rank is None else str(trace.rank), trace.rank),
            "-" if trace.world is None else str(trace.world),
            count_cell(len(trace.host)),
            count_cell(len(trace.device_events)),
            trace.device or "-",
        ]
        for trace in traces
    ]
    return Table(
        ["recorded in", "rank", "of ranks", "host events", "device events", "device"], rows
    )
