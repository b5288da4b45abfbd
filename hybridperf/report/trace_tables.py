"""What a trace shows, its replay and what a change makes of it, as tables for a terminal."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.report.text import percent, seconds, short
from hybridperf.traces.changes import Change
from hybridperf.traces.replay import Replay
from hybridperf.traces.summary import LostTime, StepSummaryRow
from hybridperf.traces.what_if import WhatIf

Item = TypeVar("Item")
_WIDE = 160  # columns where the output is a file or a pipe
_MOST = 12  # rows of a table
REASONS = {
    "launch_bound": "launch not called yet",
    "synchronisation": "host waits for the device",
    "host_copy": "host copies",
    "dependency": "held back in its stream",
    "unrecorded": "launch not recorded",
    "waiting": "waiting",
}


def console() -> Console:
    """Standard output, wide where nobody looks at it directly."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(width=_WIDE, highlight=False)


def steps(rows: Sequence[StepSummaryRow]) -> Table:
    """A row per step and rank; the span is busy, other steps and idle."""
    columns: dict[str, Callable[[StepSummaryRow], str]] = {
        "step": lambda row: row.step,
        "rank": lambda row: rank_words(row.rank),
        "host": lambda row: seconds(row.step_cpu_s),
        "period": lambda row: seconds(row.period_s),
        "GPU span": lambda row: seconds(row.gpu_span_s),
        "busy": lambda row: seconds(row.gpu_busy_s),
        "computation": lambda row: seconds(row.computation_s),
        "exposed copies": lambda row: seconds(row.exposed_copy_s),
        "communication": lambda row: seconds(row.comm_s),
        "exposed": lambda row: seconds(row.exposed_comm_s),
        "of it waiting": lambda row: seconds(row.waiting_s),
        "other steps": lambda row: seconds(row.other_step_s),
        "idle": _idle,
        "kernels": lambda row: str(row.n_kernels),
    }
    empty = {
        "exposed copies": not any(row.exposed_copy_s for row in rows),
        "of it waiting": all(math.isnan(row.waiting_s) for row in rows),
        "other steps": not any(row.other_step_s for row in rows),
    }
    shown = {name: cell for name, cell in columns.items() if not empty.get(name)}
    table = rich_table(rows[0].gpu or "unnamed device" if rows else "", rows, shown)
    table.columns[0].no_wrap = table.columns[-2].no_wrap = True
    return table


def _idle(row: StepSummaryRow) -> str:
    share = percent(row.idle_s / (row.gpu_span_s or math.inf))
    return f"{seconds(row.idle_s)} ({share})" if math.isfinite(row.idle_s) else "-"


def temporal_breakdown(frame: pd.DataFrame) -> Table:
    """What `as_hta.temporal_breakdown` found: times with their share of the kernel time."""
    parts = {"idle": "idle", "compute": "computation", "non_compute": "no computation"}
    headers = ["rank", "kernel time", *parts.values()]
    table = column_table("temporal breakdown as by HolisticTraceAnalysis", headers)
    for _, row in frame.iterrows():
        times = [
            f"{row[f'{part}_time(us)']:,.0f} µs ({row[f'{part}_time_pctg']:.2f} %)"
            for part in parts
        ]
        table.add_row(f"{row['rank']:.0f}", f"{row['kernel_time(us)']:,.0f} µs", *times)
    return table


def idle(rows: Sequence[StepSummaryRow]) -> Table:
    """Why devices were idle, seconds by reason."""
    reasons = idle_reasons(rows)
    table = column_table("why idle", ["step", "rank", "idle", *(REASONS[name] for name in reasons)])
    for row in rows:
        times = [row.idle_s, *(getattr(row, f"{name}_s") for name in reasons)]
        table.add_row(row.step, rank_words(row.rank), *map(seconds, times))
    return table


def idle_reasons(rows: Sequence[StepSummaryRow]) -> list[str]:
    """Reasons for which some device was idle."""
    idle = [name for name in REASONS if name != "waiting"]
    return [name for name in idle if any(getattr(row, f"{name}_s") > 0 for row in rows)]


def losses(found: Iterable[LostTime], most: int = _MOST, ranks_known: bool = True) -> Table:
    """Where devices did nothing useful, the longest first."""
    columns: dict[str, Callable[[LostTime], str]] = {
        "why": _why_lost,
        "rank": lambda loss: str(loss.rank) if ranks_known else "-",
        "time": lambda loss: seconds(loss.seconds),
        "times": lambda loss: str(loss.times),
    }
    return rich_table("most time lost", list(found)[:most], columns)


def _why_lost(loss: LostTime) -> str:
    return f"{REASONS[loss.reason]}{' ' if loss.reason == 'waiting' else ': '}{loss.detail}"


def top(title: str, frame: pd.DataFrame) -> Table:
    """`name, device_s, share, events` of `summary.top_ops` or `top_kernels`."""
    columns: dict[str, Callable[[Any], str]] = {
        "name": lambda row: short(str(row.name)),
        "device time": lambda row: seconds(row.device_s),
        "share": lambda row: percent(row.share),
        "events": lambda row: str(row.events),
    }
    return rich_table(title, frame.itertuples(), columns)


def host(found: Host) -> Table:
    """The overheads of a host over all ops, and of how many kinds they were seen."""
    headers = ["overhead", "mean", "standard deviation", "median", "times", "kinds"]
    table = column_table("host overheads", headers)
    overheads: dict[str, Spread | Overhead | None] = {
        "between ops": found.between_ops_s,
        "before the first launch": found.before_launch_s,
        "the launch call": found.launch_call_s,
        "between launches": found.between_launches_s,
        "after the last launch": found.after_launch_s,
        "op without launch": found.without_launch_s,
    }
    for name, one in overheads.items():
        spread = one.shared if isinstance(one, Overhead) else one
        kinds = str(len(one.by_kind)) if isinstance(one, Overhead) else "-"
        if spread is not None:
            times = map(seconds, (spread.mean_s, spread.std_s, spread.median_s))
            table.add_row(name, *times, str(spread.count), kinds)
    return table


def rich_table(
    title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], str]]
) -> Table:
    """A table with a row for each item; `columns`: by header, what is written of an item."""
    table = column_table(title, list(columns))
    for item in items:
        table.add_row(*(cell(item) for cell in columns.values()))
    return table


def rank_words(rank: int | None) -> str:
    """The number of a rank, where it is known."""
    return "-" if rank is None else str(rank)


def column_table(title: str, headers: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for at, header in enumerate(headers):
        table.add_column(header, justify="left" if at == 0 else "right", overflow="fold")
    return table


def replayed(results: Sequence[WhatIf], changed: str, measured: Sequence[Replay]) -> Table:
    """A row per step and rank: measured, replayed, error, and after `changed`, if anything is.

    `results` are of the steps `measured`, or of several repetitions of them in a row.
    """
    in_a_row = any(result.before.shorter is not None for result in results)
    headers = ["step", "rank", "measured", "replayed", "error"]
    headers += ["a step in a row"] if in_a_row else []
    headers += [changed, "speed-up"] if changed else []
    headers += ["from", "to"] if any(result.ends for result in results) else []
    table = column_table("replay", headers)
    for result, one in zip(results, measured, strict=True):
        before_s, after_s = result.before.step_s, result.after.step_s
        for at, trace in enumerate(one.traces):
            cells = [seconds(one.measured_s[at]), seconds(one.replayed_s[at])]
            cells.append(f"{100 * one.error[at]:+.2f} %")
            cells += [seconds(before_s[at])] if in_a_row else []
            if changed:
                cells += [seconds(after_s[at]), f"x{before_s[at] / after_s[at]:.3f}"]
            cells += [seconds(end.step_s[at]) for end in result.ends or ()]
            table.add_row(one.steps[at].name, rank_words(trace.rank), *cells)
    return table


def waits(replay: Replay, of: str = "") -> Table:
    """Waiting at collectives over all ranks, measured and replayed, and the largest difference."""
    headers = ["collective", "wire time", "waiting, measured", "replayed", "largest difference"]
    table = column_table(f"waiting at collectives{of}", headers)
    for one, measured_s, replayed_s in replay.waits_s():
        apart_s = np.round(np.abs(replayed_s - measured_s), 10)  # less than that is rounding
        times = (one.wire_s, measured_s.sum(), replayed_s.sum(), apart_s.max())
        table.add_row(str(one), *map(seconds, times))
    return table


def critical(before: pd.DataFrame, after: pd.DataFrame | None, of: str = "") -> Table:
    """The critical path by op, before and after a change."""
    headers = [f"critical path{of}", "time" if after is None else "before", "share"]
    table = column_table("", headers + (["after", "share after"] if after is not None else []))
    merged = before.set_index("op")[["seconds", "share"]]
    if after is not None:
        changed = after.set_index("op")[["seconds", "share"]].add_suffix("_after")
        merged = merged.join(changed, how="outer").fillna(0.0)
        longer = merged[["seconds", "seconds_after"]].max(axis=1)
        merged = merged.loc[longer.sort_values(ascending=False).index]
    for op, row in merged.head(_MOST).iterrows():
        cells = [seconds(row["seconds"]), percent(row["share"])]
        if after is not None:
            cells += [seconds(row["seconds_after"]), percent(row["share_after"])]
        table.add_row(short(str(op)), *cells)
    return table


def savings(frame: pd.DataFrame, of: str = "") -> list[Table]:
    """Ops that would help if they took no time, and those with most time that would not."""
    columns: dict[str, Callable[[Any], str]] = {
        "op": lambda row: short(str(row.op)),
        "time on all ranks": lambda row: seconds(float(row.seconds)),
        "on the critical path": lambda row: seconds(float(row.critical_s)),
        "saves at most": lambda row: seconds(float(row.saves_s)),
    }
    helps = frame[frame["helps"]].head(_MOST)
    others = frame[~frame["helps"]].nlargest(_MOST, "seconds")
    no_help = f"would not help{of}: less than 1 % of the step even at no time"
    by_title = {f"would help{of}": helps, no_help: others}
    tables = [rich_table(title, some.itertuples(), columns) for title, some in by_title.items()]
    return [table for table in tables if table.row_count]


def unknown(changes: Sequence[Change], total_s: float, of: str = "") -> Table:
    """Ops that keep their measured time, why, and their share of all that devices ran."""
    found: dict[str, float] = {}
    why: dict[str, str] = {}
    for change in changes:
        for op, busy_s in change.unknown.items():
            found[op] = found.get(op, 0.0) + busy_s
            why[op] = change.why.get(op, "kind or size not recorded")
    headers = ["op or kernel", "why", "time", "share of the device's"]
    table = column_table(f"keep their measured time{of}", headers)
    for name, busy_s in sorted(found.items(), key=lambda one: -one[1])[:_MOST]:
        share = busy_s / total_s if total_s else 0.0
        table.add_row(short(name), why[name], seconds(busy_s), percent(share))
    return table
