"""A replayed step and what a change makes of it, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.table import Table

from hybridperf.report.text import percent, seconds
from hybridperf.report.trace_tables import column_table, short
from hybridperf.traces.changes import Change
from hybridperf.traces.replay import Replay
from hybridperf.traces.what_if import WhatIf

_MOST = 12  # rows of a table of ops


def steps(results: Sequence[WhatIf], changed: str, measured: Sequence[Replay]) -> Table:
    """A row per step and rank: measured, replayed, error, and after `changed`, if anything is.

    `results` are of the steps as `measured`, or of several turns of them in a row: then the time of
    a step is from there.
    """
    in_a_row = any(result.before.shorter is not None for result in results)
    headers = [
        "step",
        "rank",
        "measured",
        "replayed",
        "error",
        *(["a step in a row"] if in_a_row else []),
    ]
    table = column_table("replay", [*headers, *([changed, "speed-up"] if changed else [])])
    for result, one in zip(results, measured, strict=True):
        before_s, after_s = result.before.step_s, result.after.step_s
        for at, trace in enumerate(one.traces):
            cells = [
                seconds(one.measured_s[at]),
                seconds(one.replayed_s[at]),
                f"{100 * one.error[at]:+.2f} %",
            ]
            cells += [seconds(before_s[at])] if in_a_row else []
            if changed:
                cells += [seconds(after_s[at]), f"x{before_s[at] / after_s[at]:.3f}"]
            table.add_row(
                one.steps[at].name, "-" if trace.rank is None else str(trace.rank), *cells
            )
    return table


def waits(replay: Replay, of: str = "") -> Table:
    """Waiting at collectives of several ranks: measured and replayed, summed over ranks, and where
    they differ most.
    """
    table = column_table(
        f"waiting at collectives{of}",
        ["collective", "wire time", "waiting, measured", "replayed", "largest difference"],
    )
    for one, measured_s, replayed_s in replay.waits_s():
        apart_s = np.round(np.abs(replayed_s - measured_s), 10)  # less than that is rounding
        table.add_row(
            str(one),
            seconds(one.wire_s),
            seconds(measured_s.sum()),
            seconds(replayed_s.sum()),
            seconds(apart_s.max()),
        )
    return table


def critical(before: pd.DataFrame, after: pd.DataFrame | None, of: str = "") -> Table:
    """The critical path by op, before and after a change."""
    headers = [
        f"critical path{of}",
        "time" if after is None else "before",
        "share",
        *(["after", "share after"] if after is not None else []),
    ]
    table = column_table("", headers)
    merged = before.set_index("op")[["seconds", "share"]]
    if after is not None:
        merged = merged.join(
            after.set_index("op")[["seconds", "share"]].add_suffix("_after"), how="outer"
        ).fillna(0.0)
        merged = merged.loc[
            merged[["seconds", "seconds_after"]].max(axis=1).sort_values(ascending=False).index
        ]
    for op, row in merged.head(_MOST).iterrows():
        cells = [seconds(row["seconds"]), percent(row["share"])]
        if after is not None:
            cells += [seconds(row["seconds_after"]), percent(row["share_after"])]
        table.add_row(short(str(op)), *cells)
    return table


def savings(frame: pd.DataFrame, of: str = "") -> list[Table]:
    """Ops that would help if they took no time, and those with most time that would not."""
    helps = column_table(f"would help{of}", _SAVINGS)
    not_ = column_table(f"would not help{of}: less than 1 % of the step even at no time", _SAVINGS)
    for table, rows in (
        (helps, frame[frame["helps"]]),
        (not_, frame[~frame["helps"]].nlargest(_MOST, "seconds")),
    ):
        for row in rows.head(_MOST).itertuples():
            table.add_row(
                short(str(row.op)),
                seconds(float(row.seconds)),
                seconds(float(row.critical_s)),
                seconds(float(row.saves_s)),
            )
    return [table for table in (helps, not_) if table.row_count]


_SAVINGS = ["op", "time on all ranks", "on the critical path", "saves at most"]


def unknown(changes: Sequence[Change], total_s: float, of: str = "") -> Table:
    """Ops that keep their measured time, why, and their share of all that devices ran."""
    found: dict[str, float] = {}
    why: dict[str, str] = {}
    for change in changes:
        for op, busy_s in change.unknown.items():
            found[op] = found.get(op, 0.0) + busy_s
            why[op] = change.why.get(op, "kind or size not recorded")
    table = column_table(
        f"keep their measured time{of}", ["op or kernel", "why", "time", "share of the device's"]
    )
    for name, busy_s in sorted(found.items(), key=lambda one: -one[1])[:_MOST]:
        table.add_row(
            short(name), why[name], seconds(busy_s), percent(busy_s / total_s if total_s else 0.0)
        )
    return table
