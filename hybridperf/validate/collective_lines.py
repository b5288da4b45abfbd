"""Lines of the table of collectives: groups of a task that stand together, with goals, and what
they say as one.

A line has the median over its groups of their mean errors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.model.fit.device import COVERAGE
from hybridperf.report import fits, text
from hybridperf.validate import collective_nulls
from hybridperf.validate.collective_groups import GROUP

_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Line:
    """Groups of a task that stand together in the table."""

    name: str
    task: str
    goal: float | None = None
    systems: tuple[str, ...] = ()  # all
    only: str = ""  # implementation


_OTHER_GENERATION = ("aic_a100_sxm", "aic_h100_sxm", "aic_gb200")
_NEW_GENERATION = ("aic_h100_sxm", "aic_gb200")
LINES = (
    Line("unseen system, no rows", "unseen", 0.25),
    Line("  nccl only", "unseen", 0.25, only="nccl"),
    Line("  another generation (A100, H100, GB200)", "unseen", 0.25, _OTHER_GENERATION),
    Line("  nccl only", "unseen", 0.25, _OTHER_GENERATION, "nccl"),
    Line("near relative, no rows (H100 -> H200)", "near", 0.05, ("aic_h200_sxm",)),
    Line("few-shot systems, no rows", "near"),
    Line(
        "new generation (H100, GB200), 20 rows per collective",
        "per_collective",
        0.06,
        _NEW_GENERATION,
    ),
    Line("  nccl only", "per_collective", 0.06, _NEW_GENERATION, "nccl"),
    Line("20 rows per collective", "per_collective", 0.09),
    Line("  nccl only", "per_collective", 0.09, only="nccl"),
    Line("20 rows per group", "per_group", 0.09),
    Line("random half of the rows", "half", 0.05),
    Line("2, 4 -> 8 ranks", "ranks", 0.15),
    Line("few-shot systems, half of 20 rows", "few_shot"),
)


def line_of(
    line: Line, results: Sequence[Mapping[str, Any]], seed: int = 0
) -> dict[str, Any] | None:
    """A line of the table; None where it has no group.

    Coverage is of rows in range, or where most are out of it (nothing was fitted, or only fewer
    ranks) of all rows; the band is what a share of 90 % of so many independent rows of one draw
    does with a chance of 99 %.
    """
    groups = pd.DataFrame(
        [
            one
            for one in results
            if one["task"] == line.task
            and (not line.systems or one["system"] in line.systems)
            and line.only in ("", one["implementation"])
        ]
    )
    if groups.empty:
        return None
    nulls = {name: _median_error(groups.get(f"null_{name}")) for name in collective_nulls.NAMES}
    whole = {
        name: value
        for name, (value, answered) in nulls.items()
        if value is not None and answered == len(groups)
    }
    best = min(whole, key=lambda name: whole[name])
    near = groups["in_range"].sum() >= 0.5 * groups["tested"].sum()
    rows = round(float(groups["in_range" if near else "tested"].sum()))
    low, high = fits.binomial_band(rows, COVERAGE)
    ours = groups["ours"].to_numpy(np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(ours), (_RESAMPLES, len(ours)))
    spread = np.quantile(np.median(ours[drawn], axis=1), [0.025, 0.975])
    median = float(np.median(ours))
    return {
        "line": line.name, "task": line.task, "goal": line.goal,
        "met": None if line.goal is None else median <= line.goal, "groups": len(groups),
        "ours": median, "ours_low": float(spread[0]), "ours_high": float(spread[1]),
        **{f"null_{name}": value for name, (value, _) in nulls.items()},
        **{f"answered_{name}": answered for name, (_, answered) in nulls.items()},
        "best_null": best,
        "best_null_wins": int((groups[f"null_{best}"].astype(float) < groups["ours"]).sum()),
        "covered": float(groups["inside_in_range" if near else "inside"].sum() / rows),
        "covered_rows": rows, "covered_in_range": bool(near), "band_low": low / rows,
        "band_high": high / rows, "half_width": _number(groups["half_width"].median()),
    }  # fmt: skip


def _median_error(errors: pd.Series | None) -> tuple[float | None, int]:
    """(the median over groups, how many of them the model could answer)."""
    if errors is None or not errors.notna().any():
        return None, 0
    return float(errors.astype(float).median()), int(errors.notna().sum())


def lines_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Everything as one table, with what its signs mean."""
    headers = [
        "MAPE, median over groups", "goal", "ours", "95 %", "groups",
        *(name.replace("_", " ") for name in collective_nulls.NAMES), "best wins", "inside", "band",
        "half-width",
    ]  # fmt: skip
    cells = []
    for line in lines:
        nulls = []
        for name in collective_nulls.NAMES:
            value, answered = line[f"null_{name}"], line[f"answered_{name}"]
            nulls.append(
                ""
                if value is None
                else text.percent(value) + ("" if answered == line["groups"] else f" ({answered})")
            )
        cells.append([
            line["line"], "" if line["goal"] is None else f"{100 * line['goal']:.0f} %",
            text.percent(line["ours"]),
            f"{100 * line['ours_low']:.1f}-{100 * line['ours_high']:.1f}", str(line["groups"]),
            *nulls, f"{line['best_null_wins']} ({line['best_null'].replace('_', ' ')})",
            text.percent(line["covered"]) + ("" if line["covered_in_range"] else "*"),
            f"{100 * line['band_low']:.1f}-{100 * line['band_high']:.1f}",
            text.percent(line["half_width"]),
        ])  # fmt: skip
    notes = (
        "95 %: bootstrap over groups. (k): of the k groups that it can answer. best wins: in how"
        " many groups the null model of the least\nmedian has less error than ours. inside: share"
        " of measurements in their 90 % interval, in range (*: of all, most are not)."
    )
    return text.table(headers, cells) + "\n" + notes


def long_table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per task, group and model."""
    frame = pd.DataFrame(results)
    models = [column for column in frame if column == "ours" or str(column).startswith("null_")]
    kept = [column for column in frame if column not in models]
    long = frame.melt(kept, models, "model", "mape")
    return long.assign(model=long["model"].str.removeprefix("null_")).sort_values(
        ["task", *GROUP, "model"], ignore_index=True
    )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
