"""What a trace shows, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.report.text import percent, seconds
from hybridperf.traces.summary import LostTime, StepSummaryRow

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
    headers = [
        "step",
        "rank",
        "host",
        "GPU span",
        "busy",
        "compute",
        "communication",
        "exposed",
        "of it waiting",
        "idle",
        "kernels",
    ]
    table = column_table(f"{rows[0].gpu or 'unnamed device'}" if rows else "", headers)
    for row in rows:
        times = (
            row.step_cpu_s,
            row.gpu_span_s,
            row.gpu_busy_s,
            row.compute_s,
            row.comm_s,
            row.exposed_comm_s,
            row.waiting_s,
        )
        idle = (
            f"{seconds(row.idle_s)}"
            f" ({percent(row.idle_s / row.gpu_span_s if row.gpu_span_s else 0.0)})"
        )
        table.add_row(
            row.step,
            "-" if row.rank is None else str(row.rank),
            *map(seconds, times),
            idle,
            str(row.n_kernels),
        )
    return table


def idle(rows: Sequence[StepSummaryRow]) -> Table:
    """Why devices stood idle, seconds by reason."""
    reasons = [
        reason
        for reason in REASONS
        if any(getattr(row, f"{reason}_s", 0.0) > 0 for row in rows) and reason != "waiting"
    ]
    table = column_table(
        "why idle", ["step", "rank", "idle", *(REASONS[reason] for reason in reasons)]
    )
    for row in rows:
        said = (getattr(row, f"{reason}_s") for reason in reasons)
        table.add_row(
            row.step,
            "-" if row.rank is None else str(row.rank),
            seconds(row.idle_s),
            *map(seconds, said),
        )
    return table


def losses(found: Iterable[LostTime], most: int = 12, ranks_known: bool = True) -> Table:
    """Where devices did nothing useful, the longest first."""
    table = column_table("most time lost", ["why", "rank", "time", "times"])
    for loss in list(found)[:most]:
        before = "" if loss.reason in ("waiting", "other_step") else ": "
        detail = "" if loss.reason == "other_step" else f"{before or ' '}{loss.detail}"
        table.add_row(
            f"{REASONS[loss.reason]}{detail}",
            str(loss.rank) if ranks_known else "-",
            seconds(loss.seconds),
            str(loss.times),
        )
    return table


def top(title: str, frame: pd.DataFrame) -> Table:
    """`name, device_s, share, events` of `summary.top_ops` or `top_kernels`."""
    table = column_table(title, ["name", "device time", "share", "events"])
    for row in frame.itertuples():
        table.add_row(
            short(str(row.name)), seconds(row.device_s), percent(row.share), str(row.events)
        )
    return table


def host(found: Host) -> Table:
    """The overheads of a host over all ops, and of how many kinds they were seen."""
    table = column_table(
        "host overheads", ["overhead", "mean", "standard deviation", "median", "times", "kinds"]
    )
    said: dict[str, Spread | Overhead | None] = {
        "between ops": found.between_ops_s, "before the first launch": found.before_launch_s,
        "the launch call": found.launch_call_s, "between launches": found.between_launches_s,
        "after the last launch": found.after_launch_s, "op without launch": found.without_launch_s,
    }  # fmt: skip
    for name, one in said.items():
        spread, kinds = (
            (one.shared, str(len(one.by_kind))) if isinstance(one, Overhead) else (one, "-")
        )
        if spread is not None:
            table.add_row(
                name,
                *map(seconds, (spread.mean_s, spread.std_s, spread.median_s)),
                str(spread.count),
                kinds,
            )
    return table


def column_table(title: str, headers: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for at, header in enumerate(headers):
        table.add_column(header, justify="left" if at == 0 else "right", overflow="fold")
    return table


def short(name: str, length: int = 90) -> str:
    return name if len(name) <= length else f"{name[: length - 3]}..."
