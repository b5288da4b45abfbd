"""What a trace shows, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.report.text import percent, seconds
from hybridperf.traces.summary import LostTime, StepSummaryRow

Item = TypeVar("Item")
_WIDE = 160  # columns where the output is a file or a pipe
REASONS = {
    "launch_bound": "launch not called yet",
    "synchronisation": "host waits for the device",
    "host_copy": "host copies",
    "dependency": "held back in its stream",
    "unrecorded": "launch not recorded",
    "other_step": "busy with another step",
    "waiting": "waiting",
}


def console() -> Console:
    """Standard output, wide where nobody looks at it directly."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(width=_WIDE, highlight=False)


def steps(rows: Sequence[StepSummaryRow]) -> Table:
    """A row per step and rank."""
    columns: dict[str, Callable[[StepSummaryRow], str]] = {
        "step": lambda row: row.step,
        "rank": lambda row: rank_words(row.rank),
        "host": lambda row: seconds(row.step_cpu_s),
        "GPU span": lambda row: seconds(row.gpu_span_s),
        "busy": lambda row: seconds(row.gpu_busy_s),
        "compute": lambda row: seconds(row.compute_s),
        "communication": lambda row: seconds(row.comm_s),
        "exposed": lambda row: seconds(row.exposed_comm_s),
        "of it waiting": lambda row: seconds(row.waiting_s),
        "idle": lambda row: f"{seconds(row.idle_s)} ({percent(_idle_share(row))})",
        "kernels": lambda row: str(row.n_kernels),
    }
    return rich_table(rows[0].gpu or "unnamed device" if rows else "", rows, columns)


def _idle_share(row: StepSummaryRow) -> float:
    return row.idle_s / row.gpu_span_s if row.gpu_span_s else 0.0


def idle(rows: Sequence[StepSummaryRow]) -> Table:
    """Why devices were idle, seconds by reason."""
    some = [name for name in REASONS if any(getattr(row, f"{name}_s", 0.0) > 0 for row in rows)]
    reasons = [name for name in some if name != "waiting"]
    table = column_table("why idle", ["step", "rank", "idle", *(REASONS[name] for name in reasons)])
    for row in rows:
        times = [row.idle_s, *(getattr(row, f"{name}_s") for name in reasons)]
        table.add_row(row.step, rank_words(row.rank), *map(seconds, times))
    return table


def losses(found: Iterable[LostTime], most: int = 12, ranks_known: bool = True) -> Table:
    """Where devices did nothing useful, the longest first."""
    columns: dict[str, Callable[[LostTime], str]] = {
        "why": _why_lost,
        "rank": lambda loss: str(loss.rank) if ranks_known else "-",
        "time": lambda loss: seconds(loss.seconds),
        "times": lambda loss: str(loss.times),
    }
    return rich_table("most time lost", list(found)[:most], columns)


def _why_lost(loss: LostTime) -> str:
    if loss.reason == "other_step":
        return REASONS[loss.reason]
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


def short(name: str, length: int = 90) -> str:
    return name if len(name) <= length else f"{name[: length - 3]}..."
