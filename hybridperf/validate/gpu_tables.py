"""What `validate gpu-ops` prints: medians beside goals and null models, coverage, and how much of
what must hold does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report import text


def tables(results: pd.DataFrame) -> str:
    """Medians by rows fitted on with goals and the best null model, then how many measurements lie
    inside their interval.
    """
    unseen = results[results["shapes"] == "unseen"]
    sizes = [size for size in ("0", "20", "50", "200", "10%", "all") if size in set(unseen["size"])]
    errors, covers = [], []
    for (split, device, line), rows in unseen.groupby(["split", "device", "line"], sort=False):
        by_size = {row["size"]: row for row in rows.to_dict("records")}
        errors.append(
            [f"{line}, {device} ({split})", *(_error_cell(by_size.get(size)) for size in sizes)]
        )
        covers.append(
            [f"{line}, {device} ({split})", *(_cover_cell(by_size.get(size)) for size in sizes)]
        )
    seen = (
        results[results["shapes"] == "seen"]
        .groupby(["line", "size"], sort=False)["median"]
        .median()
        .unstack()
    )
    seen_rows = [
        [str(line), *(text.percent(row.get(size)) for size in sizes)]
        for line, row in seen.iterrows()
    ]
    counts = met(results)
    return "\n\n".join(
        [
            text.table(["median error, unseen shapes; rows:", *sizes], errors)
            + "\nours /goal [best null model]; ! goal missed, * worse than the null model beyond"
            " chance",
            text.table(["inside 90 % intervals, in range | all; rows:", *sizes], covers),
            text.table(
                ["median error, shapes other devices were seen with; rows:", *sizes], seen_rows
            ),
            (
                f"{counts['goals_met']} of {counts['goals']} goals met; worse than the best null"
                f" model beyond chance: {counts['worse']} of {counts['compared']}; outside its"
                f" range worse than its roofline: {counts['worse_out_of_range']} of"
                f" {counts['out_of_range']}; in-range coverage below its band:"
                f" {counts['under_covered']} of {counts['covered']}"
            ),
        ]
    )


def _error_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    wanted = row["goal"]
    has_goal = wanted is not None and np.isfinite(wanted)
    missed = "!" if has_goal and row["median"] > wanted else ""
    worse = "*" if row["excess_low"] > 0 else ""
    null = row[f"null_{row['best_null']}"]
    return (
        f"{missed}{100 * row['median']:.1f}"
        + (f"/{100 * wanted:g}" if has_goal else "")
        + f" [{100 * null:.1f}{worse}]"
    )


def _cover_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    inside = row["covered_in_range"]
    low = "<" if inside is not None and inside < row["band_low"] else ""
    return (
        f"{low}{100 * inside:.0f}" + f"|{100 * row['covered']:.0f} +-{100 * row['half_width']:.0f}"
        if inside is not None
        else "-"
    )


def met(results: pd.DataFrame) -> dict[str, int]:
    """Counts of what must hold, on unseen shapes; views without a goal are not counted."""
    unseen = results[
        (results["shapes"] == "unseen")
        & (~results["line"].str.contains(": ") | results["goal"].notna())
    ]
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


def left_out_text(left_out: Mapping[str, Mapping[str, int]]) -> str:
    lines = [
        f"  {name}: {count} rows, {reason}"
        for name, reasons in sorted(left_out.items())
        for reason, count in reasons.items()
    ]
    return "rows left out:\n" + "\n".join(lines) if lines else "no row was left out"
