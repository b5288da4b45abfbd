"""A replayed step and what a change makes of it, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.table import Table

from hybridperf.report.text import percent, seconds
from hybridperf.report.trace_tables import column_table, short
from hybridperf.traces.replay import Replay
from hybridperf.traces.what_if import WhatIf

_MOST = 12  # rows of a table of ops


def steps(results: Sequence[WhatIf], changed: str) -> Table:
    """A row per step and rank: measured, replayed, error, and after `changed`, if anything is."""
    headers = ["step", "rank", "measured", "replayed", "error", *([changed, "speed-up"] if changed else [])]
    table = column_table("replay", headers)
    for result in results:
        before, after = result.before, result.after
        for at, trace in enumerate(before.traces):
            cells = [seconds(before.measured_s[at]), seconds(before.replayed_s[at]), f"{100 * before.error[at]:+.2f} %"]
            if changed:
                cells += [seconds(after.replayed_s[at]), f"x{before.replayed_s[at] / after.replayed_s[at]:.3f}"]
            table.add_row(before.steps[at].name, "-" if trace.rank is None else str(trace.rank), *cells)
    return table


def waits(replay: Replay) -> Table:
    """Waiting at collectives of several ranks: measured and replayed, summed over ranks, and where they differ most."""
    table = column_table("waiting at collectives", ["collective", "wire time", "waiting, measured", "replayed", "largest difference"])
    for one, measured_s, replayed_s in replay.waits_s():
        apart_s = np.abs(replayed_s - measured_s)
        table.add_row(str(one), seconds(one.wire_s), seconds(measured_s.sum()), seconds(replayed_s.sum()), seconds(apart_s.max()))
    return table


def critical(before: pd.DataFrame, after: pd.DataFrame | None) -> Table:
    """The critical path by op, before and after a change."""
    headers = ["critical path", "before", "share", *(["after", "share after"] if after is not None else [])]
    table = column_table("", headers)
    merged = before.set_index("op")[["seconds", "share"]]
    if after is not None:
        merged = merged.join(after.set_index("op")[["seconds", "share"]].add_suffix("_after"), how="outer").fillna(0.0)
        merged = merged.loc[merged[["seconds", "seconds_after"]].max(axis=1).sort_values(ascending=False).index]
    for op, row in merged.head(_MOST).iterrows():
        cells = [seconds(row["seconds"]), percent(row["share"])]
        if after is not None:
            cells += [seconds(row["seconds_after"]), percent(row["share_after"])]
        table.add_row(short(str(op)), *cells)
    return table


def savings(frame: pd.DataFrame) -> tuple[Table, Table]:
    """Ops that would help if they took no time, and those with most time that would not."""
    helps, not_ = column_table("would help", _SAVINGS), column_table("would not help: less than 1 % of the step even at no time", _SAVINGS)
    for table, rows in ((helps, frame[frame["helps"]]), (not_, frame[~frame["helps"]].nlargest(_MOST, "seconds"))):
        for row in rows.head(_MOST).itertuples():
            table.add_row(short(str(row.op)), seconds(float(row.seconds)), seconds(float(row.critical_s)), seconds(float(row.saves_s)))
    return helps, not_


_SAVINGS = ["op", "time on all ranks", "on the critical path", "saves at most"]


def unknown(found: dict[str, float], total_s: float) -> Table:
    """Ops that keep their measured time since no model knows them, with their share of all that devices ran."""
    table = column_table("keep their measured time: no model knows them", ["op or kernel", "time", "share of the device's"])
    for name, busy_s in sorted(found.items(), key=lambda one: -one[1])[:_MOST]:
        table.add_row(short(name), seconds(busy_s), percent(busy_s / total_s if total_s else 0.0))
    return table
