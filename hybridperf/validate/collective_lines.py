"""Lines of the table of collectives: groups of a task that stand together, with goals, and what
they show together.

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
from hybridperf.validate.baselines import COLUMN, best
from hybridperf.validate.collective_baselines import NAMES
from hybridperf.validate.collective_rows import GROUP
from hybridperf.validate.harness import ResultLine, baselines_in
from hybridperf.validate.scores import finite

_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class CollectiveLine:
    """Groups of a task that stand together in the table."""

    name: str
    task: str
    goal: float | None = None
    systems: tuple[str, ...] = ()  # all
    only: str = ""  # implementation


_OTHER_GENERATION = ("aic_a100_sxm", "aic_h100_sxm", "aic_gb200")
_NEW_GENERATION = ("aic_h100_sxm", "aic_gb200")
_NEW_AND_FEW = "new generation (H100, GB200), 20 rows per collective"
LINES = (
    CollectiveLine("unseen system, no rows", "unseen", 0.25),
    CollectiveLine("  nccl only", "unseen", 0.25, only="nccl"),
    CollectiveLine("  another generation (A100, H100, GB200)", "unseen", 0.25, _OTHER_GENERATION),
    CollectiveLine("  nccl only", "unseen", 0.25, _OTHER_GENERATION, "nccl"),
    CollectiveLine("near relative, no rows (H100 -> H200)", "near", 0.05, ("aic_h200_sxm",)),
    CollectiveLine("few-shot systems, no rows", "near"),
    CollectiveLine(_NEW_AND_FEW, "per_collective", 0.06, _NEW_GENERATION),
    CollectiveLine("  nccl only", "per_collective", 0.06, _NEW_GENERATION, "nccl"),
    CollectiveLine("20 rows per collective", "per_collective", 0.09),
    CollectiveLine("  nccl only", "per_collective", 0.09, only="nccl"),
    CollectiveLine("20 rows per group", "per_group", 0.09),
    CollectiveLine("random half of the rows", "half", 0.05),
    CollectiveLine("2, 4 -> 8 ranks", "ranks", 0.15),
    CollectiveLine("few-shot systems, half of 20 rows", "few_shot"),
)


def line_of(
    line: CollectiveLine, results: Sequence[Mapping[str, Any]], seed: int = 0
) -> dict[str, Any] | None:
    """A line of the table; None where it has no group.

    Coverage is of rows in range, or where most are out of it (nothing was fitted, or only fewer
    ranks) of all rows; the band is what a share of 90 % of so many independent rows of one draw
    does with a chance of 99 %.
    """
    chosen = [
        one
        for one in results
        if one["task"] == line.task
        and (not line.systems or one["system"] in line.systems)
        and line.only in ("", one["implementation"])
    ]
    if not chosen:
        return None
    groups = pd.DataFrame(chosen)
    baselines = {name: _median_error(groups.get(f"{COLUMN}{name}")) for name in NAMES}
    whole = {
        name: value
        for name, (value, answered) in baselines.items()
        if value is not None and answered == len(groups)
    }
    best_name = best(whole)
    best_errors = groups[f"{COLUMN}{best_name}"].astype(float)
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
        **{f"{COLUMN}{name}": value for name, (value, _) in baselines.items()},
        **{f"answered_{name}": answered for name, (_, answered) in baselines.items()},
        "best_null": best_name,
        "best_null_wins": int((best_errors < groups["ours"]).sum()),
        "covered": float(groups["inside_in_range" if near else "inside"].sum() / rows),
        "covered_rows": rows, "covered_in_range": bool(near), "band_low": low / rows,
        "band_high": high / rows, "half_width": finite(groups["half_width"].median()),
    }  # fmt: skip


def _median_error(errors: pd.Series | None) -> tuple[float | None, int]:
    """(the median over groups, how many of them the model could answer)."""
    if errors is None or not errors.notna().any():
        return None, 0
    return float(errors.astype(float).median()), int(errors.notna().sum())


def result_line(line: Mapping[str, Any]) -> ResultLine:
    """A line of the table as `results.json` keeps it."""
    return ResultLine(
        f"{line['line'].strip()} ({line['task']})", line["ours"], line["groups"], line["goal"],
        baselines_in(line), "MAPE, median over groups",
        coverage=line["covered"], half_width=line["half_width"],
    )  # fmt: skip


def lines_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Everything as one table, with what its signs mean."""
    headers = [
        "MAPE, median over groups", "goal", "ours", "95 %", "groups",
        *(name.replace("_", " ") for name in NAMES), "best wins", "inside", "band", "half-width",
    ]  # fmt: skip
    cells = [
        [
            line["line"], "" if line["goal"] is None else f"{100 * line['goal']:.0f} %",
            text.percent(line["ours"]),
            f"{100 * line['ours_low']:.1f}-{100 * line['ours_high']:.1f}", str(line["groups"]),
            *(_baseline_cell(line, name) for name in NAMES),
            f"{line['best_null_wins']} ({line['best_null'].replace('_', ' ')})",
            text.percent(line["covered"]) + ("" if line["covered_in_range"] else "*"),
            f"{100 * line['band_low']:.1f}-{100 * line['band_high']:.1f}",
            text.percent(line["half_width"]),
        ]
        for line in lines
    ]  # fmt: skip
    notes = (
        "95 %: bootstrap over groups. (k): of the k groups that it can answer. best wins: in how"
        " many groups the baseline of the least\nmedian has less error than ours. inside: share"
        " of measurements in their 90 % interval, in range (*: of all, most are not)."
    )
    return text.table(headers, cells) + "\n" + notes


def _baseline_cell(line: Mapping[str, Any], name: str) -> str:
    value, answered = line[f"{COLUMN}{name}"], line[f"answered_{name}"]
    if value is None:
        return ""
    return text.percent(value) + ("" if answered == line["groups"] else f" ({answered})")


def long_table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per task, group and model."""
    frame = pd.DataFrame(results)
    models = [column for column in frame if column == "ours" or str(column).startswith(COLUMN)]
    kept = [column for column in frame if column not in models]
    long = frame.melt(kept, models, "model", "mape")
    return long.assign(model=long["model"].str.removeprefix(COLUMN)).sort_values(
        ["task", *GROUP, "model"], ignore_index=True
    )
