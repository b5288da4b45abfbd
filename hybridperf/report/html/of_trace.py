"""Recorded steps as a page: where each rank's time went and why, the longest ops, a timeline."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import bars
from hybridperf.report.html.tracks import timeline
from hybridperf.report.slices import Track
from hybridperf.report.text import percent, seconds
from hybridperf.report.trace_tables import REASONS, idle_reasons, rank_words
from hybridperf.traces import summary as summed
from hybridperf.traces.events import COPY, FILL, RankTrace
from hybridperf.traces.overheads import outermost_op
from hybridperf.traces.steps import CommonStep

_TOP = 30  # ops and kernels listed
_MOST_BARS = 64
_PARTS = [
    ("computation", 0), ("copies, exposed", 6), ("communication, exposed", 1),
    ("waiting for a rank, exposed", 3), ("other steps", 7),
]  # fmt: skip
_IDLE = {"launch_bound": 5, "synchronisation": 4, "host_copy": 8, "dependency": 2}
_NOT_RECORDED = 9
_TIMES = {
    "step_cpu_s": "host", "period_s": "period", "gpu_span_s": "device span", "gpu_busy_s": "busy",
    "computation_s": "computation", "exposed_copy_s": "copies, exposed", "comm_s": "communication",
    "exposed_comm_s": "exposed", "waiting_s": "of it waiting", "other_step_s": "other steps",
    "idle_s": "idle",
}  # fmt: skip
_COUNTS = {"n_kernels": "kernels", "n_comm": "of collectives", "n_cpu_ops": "host ops"}
_KERNEL, _COMMUNICATION, _COPY, _HOST = range(4)
_KINDS = [("computation", 0), ("communication", 1), ("copies and fills", 2), ("host: ops", 4)]
_WHERE = "hybridperf trace export --out FILE writes every one of them, for https://ui.perfetto.dev."


def trace_page(
    traces: Sequence[RankTrace], chosen: Sequence[CommonStep],
    summaries: Sequence[summed.StepSummary], notes: Iterable[str] = (), title: str = "",
) -> doc.Page:  # fmt: skip
    """The page of `chosen` steps of the traces of one run's ranks; `notes` are listed."""
    rows = [row for summary in summaries for row in summary.rows]
    all_traces = [*traces] * len(chosen)
    all_steps = [one for step in chosen for one in step.steps]
    devices = ", ".join(dict.fromkeys(trace.device or "unnamed device" for trace in traces))
    ranks = f"{len(traces)} {'rank' if len(traces) == 1 else 'ranks'}"
    count = f"{len(chosen)} {'step' if len(chosen) == 1 else 'steps'} of {ranks}"
    ranks_known = traces[0].rank is not None
    ops = _top("op", summed.top_ops(all_traces, all_steps, _TOP), 0)
    kernels = _top("kernel", summed.top_kernels(all_traces, all_steps, _TOP), 2)
    sections = [
        doc.Section("Summary", [_summary(rows, len(traces))]),
        doc.Section("Steps", _steps(rows)),
        doc.Section("Time lost", [_losses(summed.worst(summaries), ranks_known)]),
        doc.Section("Longest ops and kernels", [ops, kernels]),
        doc.Section("Timeline", _timeline(traces, chosen)),
        doc.Section("Notes", [doc.Notes(list(dict.fromkeys(filter(None, notes))))]),
        doc.Section("Provenance", [_sources(traces)]),
    ]
    lead = f"{count} on {devices}, as recorded."
    return doc.Page(title or f"Recorded: {count}", sections, lead)


def _summary(rows: Sequence[summed.StepSummaryRow], ranks: int) -> doc.Facts:
    spans = sorted(row.gpu_span_s for row in rows)
    span_s = sum(spans) or 1.0
    remark = "first start to last end"
    if len(spans) > 1:
        remark = f"median of {len(spans)}; {seconds(spans[0])} to {seconds(spans[-1])}"
    middle = seconds(float(np.median(spans)) if spans else None)
    periods = [row.period_s for row in rows if math.isfinite(row.period_s)]
    facts = [("a step's span on the device", middle, remark)]
    if periods:
        ends = "from the end of a step on the device to that of the next, median"
        facts.insert(0, ("a step every", seconds(float(np.median(periods))), ends))
    fields = {
        "computation": "computation_s", "copies, exposed": "exposed_copy_s",
        "exposed communication": "exposed_comm_s", "other steps": "other_step_s", "idle": "idle_s",
    }  # fmt: skip
    for name, field in fields.items():
        total_s = sum(getattr(row, field) for row in rows)
        each = f"{seconds(total_s / max(len(rows), 1))} per step and rank"
        facts.append((name, percent(total_s / span_s), each))
    known = [row.waiting_s for row in rows if math.isfinite(row.waiting_s)]
    if ranks > 1 and known:
        share = percent(sum(known) / span_s)
        facts.append(("waiting for another rank", share, "part of exposed communication"))
    return doc.Facts(facts)


def _steps(rows: Sequence[summed.StepSummaryRow]) -> list[doc.Block]:
    frame = pd.DataFrame(rows, columns=[*summed.StepSummaryRow.__dataclass_fields__])
    reasons = idle_reasons(rows)
    waiting_s = frame["waiting_s"].fillna(0.0)
    idle = [frame[f"{reason}_s"] for reason in reasons]
    exposed_s = frame["exposed_comm_s"] - waiting_s
    parts_s = (frame["computation_s"], frame["exposed_copy_s"], exposed_s, waiting_s)
    amounts = zip(*parts_s, frame["other_step_s"], *idle, strict=True)
    names = [row.step if row.rank is None else f"{row.step}, rank {row.rank}" for row in rows]
    spans = [seconds(row.gpu_span_s) for row in rows]
    drawn = list(zip(names, amounts, spans, strict=True))
    colours = [_IDLE.get(reason, _NOT_RECORDED) for reason in reasons]
    words = [f"idle: {REASONS[reason]}" for reason in reasons]
    parts = [*_PARTS, *zip(words, colours, strict=True)]
    caption = "What the device's time went into, from its first start to its last end."
    if len(drawn) > _MOST_BARS:
        caption += f" The first {_MOST_BARS} of {len(drawn):,} are drawn."
    frame["idle"] = (frame["idle_s"] / frame["gpu_span_s"]).fillna(0.0)
    where = [doc.Column("step", "step"), doc.Column("rank", "rank", lambda rank: f"{rank:.0f}")]
    times = [doc.Column(name, header, doc.time_words) for name, header in _TIMES.items()]
    counts = [doc.Column(name, header, doc.count_words) for name, header in _COUNTS.items()]
    columns = [*where, *times, doc.Column("idle", "idle share", percent)]
    blocks: list[doc.Block] = [bars(drawn[:_MOST_BARS], parts, caption)]
    blocks.append(doc.frame_table(frame, columns))
    if reasons:
        why = [doc.Column(f"{reason}_s", REASONS[reason], doc.time_words) for reason in reasons]
        idle_s = doc.Column("idle_s", "idle", doc.time_words)
        blocks.append(doc.Folded("Why idle", [doc.frame_table(frame, [*where, idle_s, *why])]))
    # apart: all columns at once would not fit a window
    blocks.append(doc.Folded("How many", [doc.frame_table(frame, [*where, *counts])]))
    return blocks


def _losses(losses: Sequence[summed.LostTime], ranks_known: bool) -> doc.Block:
    if not losses:
        return doc.Notes([], "No time was lost.")
    largest_s = losses[0].seconds or 1.0
    rows = [
        [
            doc.Cell(REASONS[loss.reason]),
            doc.Cell(loss.detail),
            doc.Cell(str(loss.rank) if ranks_known else "-"),
            doc.Cell(seconds(loss.seconds), loss.seconds, loss.seconds / largest_s, 3),
            doc.Cell(doc.count_words(loss.times), loss.times),
        ]
        for loss in losses
    ]
    caption = "Seconds in which a device did nothing useful"
    return doc.Table(["why", "where", "rank", "time", "times"], rows, caption, words=2)


def _top(what: str, frame: pd.DataFrame, colour: int) -> doc.Table:
    columns = [
        doc.Column("name", what),
        doc.Column("device_s", "device time", doc.time_words),
        doc.Column("share", "share", percent, colour),
        doc.Column("events", "events", doc.count_words),
    ]
    caption = f"By {what}: the {len(frame)} with the most device time"
    return doc.frame_table(frame, columns, caption=caption)


def _timeline(traces: Sequence[RankTrace], chosen: Sequence[CommonStep]) -> list[doc.Block]:
    """Host threads (their outermost ops) and streams of every rank, on one clock."""
    names: dict[str, int] = {}
    tracks = []
    first_us = min(trace.origin_us for trace in traces)
    for at, trace in enumerate(traces):
        zero_s = (trace.origin_us - first_us) * 1e-6
        label = np.array([names.setdefault(name, len(names)) for name in trace.names], int)
        before = f"rank {trace.rank if trace.rank is not None else at} " if len(traces) > 1 else ""
        host, device = trace.host, trace.device_events
        calls = _together([step.steps[at].host for step in chosen])
        calls = calls[outermost_op(trace)[calls] == calls]
        events = _together([step.steps[at].device for step in chosen])
        copies = np.where(np.isin(device.kind, (COPY, FILL)), _COPY, _KERNEL)
        kinds = np.where(device.communicates, _COMMUNICATION, copies)
        sides = (
            ("thread", host, host.thread, trace.threads, np.full(len(host), _HOST), calls),
            ("stream", device, device.stream, None, kinds, events),
        )
        for what, recorded, row, row_names, kind, these in sides:
            for number in np.unique(row[these]).tolist():
                some = these[row[these] == number]
                name = f"{before}{what} {row_names[number] if row_names is not None else number}"
                edges = (zero_s + recorded.start_s[some], zero_s + recorded.end_s[some])
                unmarked = np.zeros(len(some), bool)
                tracks.append(Track(name, *edges, label[recorded.name[some]], kind[some], unmarked))
    return timeline(tracks, list(names), _KINDS, _WHERE)


def _together(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *parts]).astype(int)


def _sources(traces: Sequence[RankTrace]) -> doc.Table:
    def cells(trace: RankTrace) -> list[doc.Cell]:
        rank, world = rank_words(trace.rank), rank_words(trace.world)
        events = [len(trace.host), len(trace.device_events)]
        counts = [doc.Cell(doc.count_words(count), count) for count in events]
        placed = [doc.Cell(trace.source), doc.Cell(rank, trace.rank), doc.Cell(world)]
        return [*placed, *counts, doc.Cell(trace.device or "-")]

    headers = ["recorded in", "rank", "of ranks", "host events", "device events", "device"]
    return doc.Table(headers, [cells(trace) for trace in traces])
