"""What `validate ops --data` prints: medians next to goals and baselines, coverage, and how much of
what must hold does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report import text
from hybridperf.validate.baselines import COLUMN


def tables(results: pd.DataFrame) -> str:
    """Medians by rows fitted on, with goals and the best baseline; then coverage."""
    unseen, seen = (results[results["shapes"] == kind] for kind in ("unseen", "seen"))
    sizes = [size for size in ("0", "20", "50", "200", "10%", "all") if size in set(unseen["size"])]
    errors, covers = [], []
    for (split, device, line), rows in unseen.groupby(["split", "device", "line"], sort=False):
        by_size = {row["size"]: row for row in rows.to_dict("records")}
        name, found = f"{line}, {device} ({split})", [by_size.get(size) for size in sizes]
        errors.append([name, *map(_error_cell, found)])
        covers.append([name, *map(_cover_cell, found)])
    medians = seen.groupby(["line", "size"], sort=False)["median"].median().unstack()
    seen_rows = [
        [str(line), *(text.percent(row.get(size)) for size in sizes)]
        for line, row in medians.iterrows()
    ]
    legend = "\nours /goal [best baseline]; ! goal missed, * worse than the baseline beyond chance"
    seen_title = "median error, shapes other devices were seen with; rows:"
    return "\n\n".join([
        text.table(["median error, unseen shapes; rows:", *sizes], errors) + legend,
        text.table(["inside 90 % intervals, in range | all; rows:", *sizes], covers),
        text.table([seen_title, *sizes], seen_rows),
        _met_text(met(results)),
    ])  # fmt: skip


def _met_text(counts: Mapping[str, int]) -> str:
    return (
        f"{counts['goals_met']} of {counts['goals']} goals met; worse than the best baseline beyond"
        f" chance: {counts['worse']} of {counts['compared']}; outside its range worse than its"
        f" roofline: {counts['worse_out_of_range']} of {counts['out_of_range']}; in-range coverage"
        f" below its band: {counts['under_covered']} of {counts['covered']}"
    )


def _error_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    wanted, median = row["goal"], row["median"]
    has_goal = wanted is not None and np.isfinite(wanted)
    missed = "!" if has_goal and median > wanted else ""
    worse = "*" if row["excess_low"] > 0 else ""
    goal = f"/{100 * wanted:g}" if has_goal else ""
    return f"{missed}{100 * median:.1f}{goal} [{100 * row[COLUMN + row['best_null']]:.1f}{worse}]"


def _cover_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    inside = row["covered_in_range"]
    if inside is None:
        return "-"
    low = "<" if inside < row["band_low"] else ""
    return f"{low}{100 * inside:.0f}|{100 * row['covered']:.0f} +-{100 * row['half_width']:.0f}"


def met(results: pd.DataFrame) -> dict[str, int]:
    """Counts of what must hold, on unseen shapes; views without a goal are not counted."""
    counted = ~results["line"].str.contains(": ") | results["goal"].notna()
    unseen = results[(results["shapes"] == "unseen") & counted]
    with_goal = unseen[unseen["goal"].notna()]
    far = unseen[unseen["median_out_of_range"].notna()]
    near = unseen[(unseen["covered_in_range"].notna()) & (unseen["size"] != "0")]
    return {
        "goals": len(with_goal),
        "goals_met": int((with_goal["median"] <= with_goal["goal"]).sum()),
        "compared": len(unseen),
        "worse": int((unseen["excess_low"] > 0).sum()),
        "out_of_range": len(far),
        "worse_out_of_range": int((far["median_out_of_range"] > far["knobs_out_of_range"]).sum()),
        "covered": len(near),
        "under_covered": int((near["covered_in_range"] < near["band_low"]).sum()),
    }
