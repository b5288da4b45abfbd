"""What a trace shows, its replay and what a change makes of it, as tables for a terminal."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.report.text import items_table, percent, seconds, short, table
from hybridperf.traces.changes import Change
from hybridperf.traces.replay import Replay
from hybridperf.traces.summary import LostTime, StepSummaryRow
from hybridperf.traces.what_if import WhatIf

Item = TypeVar("Item")
_MOST = 12  # rows of a table
REASONS = {
    "launch_bound": "launch not called yet",
    "synchronisation": "host waits for the device",
    "host_copy": "host copies",
    "dependency": "held back in its stream",
    "unrecorded": "launch not recorded",
    "waiting": "waiting",
}


def steps(rows: Sequence[StepSummaryRow]) -> str:
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
    return _items(rows[0].gpu or "unnamed device" if rows else "", rows, shown)


def _idle(row: StepSummaryRow) -> str:
    share = percent(row.idle_s / (row.gpu_span_s or math.inf))
    return f"{seconds(row.idle_s)} ({share})" if math.isfinite(row.idle_s) else "-"


def temporal_breakdown(frame: pd.DataFrame) -> str:
    """What `as_hta.temporal_breakdown` found: times with their share of the kernel time."""
    parts = {"idle": "idle", "compute": "computation", "non_compute": "no computation"}

    def taken(row: Mapping[str, float], part: str) -> str:
        return f"{row[f'{part}_time(us)']:,.0f} µs ({row[f'{part}_time_pctg']:.2f} %)"

    rows = [
        [f"{row['rank']:.0f}", f"{row['kernel_time(us)']:,.0f} µs", *(taken(row, p) for p in parts)]
        for row in frame.to_dict("records")
    ]
    headers = ["rank", "kernel time", *parts.values()]
    return _titled("temporal breakdown as by HolisticTraceAnalysis", headers, rows)


def idle(rows: Sequence[StepSummaryRow]) -> str:
    """Why devices were idle, seconds by reason."""
    reasons = idle_reasons(rows)
    cells = [
        [row.step, rank_words(row.rank), seconds(row.idle_s)]
        + [seconds(getattr(row, f"{name}_s")) for name in reasons]
        for row in rows
    ]
    return _titled(
        "why idle", ["step", "rank", "idle", *(REASONS[name] for name in reasons)], cells
    )


def idle_reasons(rows: Sequence[StepSummaryRow]) -> list[str]:
    """Reasons for which some device was idle."""
    idle = [name for name in REASONS if name != "waiting"]
    return [name for name in idle if any(getattr(row, f"{name}_s") > 0 for row in rows)]


def losses(found: Iterable[LostTime], most: int = _MOST, ranks_known: bool = True) -> str:
    """Where devices did nothing useful, the longest first."""
    columns: dict[str, Callable[[LostTime], str]] = {
        "why": _why_lost,
        "rank": lambda loss: str(loss.rank) if ranks_known else "-",
        "time": lambda loss: seconds(loss.seconds),
        "times": lambda loss: str(loss.times),
    }
    return _items("most time lost", list(found)[:most], columns)


def _why_lost(loss: LostTime) -> str:
    return f"{REASONS[loss.reason]}{' ' if loss.reason == 'waiting' else ': '}{loss.detail}"


def top(title: str, frame: pd.DataFrame) -> str:
    """`name, device_s, share, events` of `summary.top_ops` or `top_kernels`."""
    columns: dict[str, Callable[[Any], str]] = {
        "name": lambda row: short(str(row.name)),
        "device time": lambda row: seconds(row.device_s),
        "share": lambda row: percent(row.share),
        "events": lambda row: str(row.events),
    }
    return _items(title, frame.itertuples(), columns)


def host(found: Host) -> str:
    """The overheads of a host over all ops, and of how many kinds they were seen."""
    headers = ["overhead", "mean", "standard deviation", "median", "times", "kinds"]
    overheads: dict[str, Spread | Overhead | None] = {
        "between ops": found.between_ops_s,
        "before the first launch": found.before_launch_s,
        "the launch call": found.launch_call_s,
        "between launches": found.between_launches_s,
        "after the last launch": found.after_launch_s,
        "op without launch": found.without_launch_s,
    }
    rows = []
    for name, one in overheads.items():
        spread = one.shared if isinstance(one, Overhead) else one
        kinds = str(len(one.by_kind)) if isinstance(one, Overhead) else "-"
        if spread is not None:
            times = map(seconds, (spread.mean_s, spread.std_s, spread.median_s))
            rows.append([name, *times, spread.count, kinds])
    return _titled("host overheads", headers, rows)


def rank_words(rank: int | None) -> str:
    """The number of a rank, where it is known."""
    return "-" if rank is None else str(rank)


def _titled(title: str, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table under its title; nothing where it has no rows."""
    return f"\n{title}\n{table(headers, rows)}" if rows else ""


def _items(
    title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], str]]
) -> str:  # fmt: skip
    """`items_table` under its title; nothing where there is no item."""
    listed = list(items)
    return f"\n{title}\n{items_table(listed, columns)}" if listed else ""


def replayed(results: Sequence[WhatIf], changed: str, measured: Sequence[Replay]) -> str:
    """A row per step and rank: measured, replayed, error, and after `changed`, if anything is.

    `results` are of the steps `measured`, or of several repetitions of them in a row.
    """
    in_a_row = any(result.before.shorter is not None for result in results)
    headers = ["step", "rank", "measured", "replayed", "error"]
    headers += ["a step in a row"] if in_a_row else []
    headers += [changed, "speed-up"] if changed else []
    headers += ["from", "to"] if any(result.ends for result in results) else []
    rows = []
    for result, one in zip(results, measured, strict=True):
        before_s, after_s = result.before.step_s, result.after.step_s
        for at, trace in enumerate(one.traces):
            cells = [seconds(one.measured_s[at]), seconds(one.replayed_s[at])]
            cells.append(f"{100 * one.error[at]:+.2f} %")
            cells += [seconds(before_s[at])] if in_a_row else []
            if changed:
                cells += [seconds(after_s[at]), f"x{before_s[at] / after_s[at]:.3f}"]
            cells += [seconds(end.step_s[at]) for end in result.ends or ()]
            rows.append([one.steps[at].name, rank_words(trace.rank), *cells])
    return _titled("replay", headers, rows)


def waits(replay: Replay, of: str = "") -> str:
    """Waiting at collectives over all ranks, measured and replayed, and the largest difference."""
    headers = ["collective", "wire time", "waiting, measured", "replayed", "largest difference"]
    rows = []
    for one, measured_s, replayed_s in replay.waits_s():
        apart_s = np.round(np.abs(replayed_s - measured_s), 10)  # less than that is rounding
        times = (one.wire_s, measured_s.sum(), replayed_s.sum(), apart_s.max())
        rows.append([one, *map(seconds, times)])
    return _titled(f"waiting at collectives{of}", headers, rows)


def critical(before: pd.DataFrame, after: pd.DataFrame | None, of: str = "") -> str:
    """The critical path by op, before and after a change."""
    headers = ["op", "time", "share"]
    merged = before.set_index("op")[["seconds", "share"]]
    if after is not None:
        headers = ["op", "before", "share", "after", "share after"]
        changed = after.set_index("op")[["seconds", "share"]].add_suffix("_after")
        merged = merged.join(changed, how="outer").fillna(0.0)
        longer = merged[["seconds", "seconds_after"]].max(axis=1)
        merged = merged.loc[longer.sort_values(ascending=False).index]
    rows = []
    for op, row in merged.head(_MOST).iterrows():
        cells = [seconds(row["seconds"]), percent(row["share"])]
        if after is not None:
            cells += [seconds(row["seconds_after"]), percent(row["share_after"])]
        rows.append([short(str(op)), *cells])
    return _titled(f"critical path{of}", headers, rows)


def savings(frame: pd.DataFrame, of: str = "") -> str:
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
    found = (_items(title, some.itertuples(), columns) for title, some in by_title.items())
    return "\n".join(filter(None, found))


def unknown(changes: Sequence[Change], total_s: float, of: str = "") -> str:
    """Ops that keep their measured time, why, and their share of all that devices ran."""
    found: dict[str, float] = {}
    why: dict[str, str] = {}
    for change in changes:
        for op, busy_s in change.unknown.items():
            found[op] = found.get(op, 0.0) + busy_s
            why[op] = change.why.get(op, "kind or size not recorded")
    headers = ["op or kernel", "why", "time", "share of the device's"]
    rows = [
        [short(name), why[name], seconds(busy_s), percent(busy_s / (total_s or math.inf))]
        for name, busy_s in sorted(found.items(), key=lambda one: -one[1])[:_MOST]
    ]
    return _titled(f"keep their measured time{of}", headers, rows)
