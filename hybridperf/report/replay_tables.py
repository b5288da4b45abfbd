"""A replayed step and what a change makes of it, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from hybridperf.report.text import percent, seconds
from hybridperf.report.trace_tables import column_table, rank_words, rich_table, short
from hybridperf.traces.changes import Change
from hybridperf.traces.replay import Replay
from hybridperf.traces.what_if import WhatIf

_MOST = 12  # rows of a table of ops


def steps(results: Sequence[WhatIf], changed: str, measured: Sequence[Replay]) -> Table:
    """A row per step and rank: measured, replayed, error, and after `changed`, if anything is.

    `results` are of the steps `measured`, or of several repetitions of them in a row.
    """
    in_a_row = any(result.before.shorter is not None for result in results)
    headers = ["step", "rank", "measured", "replayed", "error"]
    headers += ["a step in a row"] if in_a_row else []
    headers += [changed, "speed-up"] if changed else []
    table = column_table("replay", headers)
    for result, one in zip(results, measured, strict=True):
        before_s, after_s = result.before.step_s, result.after.step_s
        for at, trace in enumerate(one.traces):
            cells = [seconds(one.measured_s[at]), seconds(one.replayed_s[at])]
            cells.append(f"{100 * one.error[at]:+.2f} %")
            cells += [seconds(before_s[at])] if in_a_row else []
            if changed:
                cells += [seconds(after_s[at]), f"x{before_s[at] / after_s[at]:.3f}"]
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
    tables = [
        rich_table(f"would help{of}", helps.itertuples(), columns),
        rich_table(no_help, others.itertuples(), columns),
    ]
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
