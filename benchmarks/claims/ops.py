"""Single ops: a model's held-out errors next to those of baselines trained on the very same folds.

The rows a model was fitted on lie in its folder; they are fitted again in five folds, and each row
is predicted by

    ours            knobs and learned correction of the other folds
    knobs           the knobs of the other folds alone: the fitted roofline
    trees           gradient-boosted trees on the log of time, on the same inputs
    datasheet       the roofline of the datasheet
    scaled          that, times the other folds' median of measured over it, of the kind of op

Per kind of op the medians are compared, ours against the better of knobs and trees, with a
bootstrap interval of the difference over rows; the noise floor is what two passes over the same
case differ by.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import harness
from benchmarks.claims.scores import best, coverage_band, excess, scikit_learn, scores
from hybridperf.io import InputError, plain, read_tables, write_json, write_table
from hybridperf.learning.prior.shipped import NO_PRIOR
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import LEAST_ROWS_FOR_INTERVAL, fit
from hybridperf.model.fit.rows import FOLDS, MeasuredOps, deal_folds, read_measurements, usable_rows
from hybridperf.report import text

SUMMARY_SCHEMA_VERSION = 1
ROW_FILES = ("ops.csv", "host.csv")  # that a calibration leaves in the model's folder
RESAMPLES = 2000
_TARGETS = {"gemm": 0.10, "gemm_transposed": 0.10}  # held-out median errors we want;
_TARGET = 0.15  # of other ops; twice the noise floor where that is more
_BASELINES = ("knobs", "trees")


def run(
    model: PerfModel, folder: Path, out: str | os.PathLike, say: Callable[[str], None] = print
) -> Mapping[str, Any]:
    """Compare on the rows in `folder`; leaves `ops.json`, `ops.csv` and `results.json` in `out`."""
    out = Path(out)
    files = [folder / name for name in ROW_FILES if (folder / name).exists()]
    if not files:
        raise InputError(
            f"{folder} holds no {' or '.join(ROW_FILES)}; expected the folder that `hybridperf"
            " calibrate` made"
        )
    rows = read_tables(files)
    _, report = fit(rows, model.device, prior=NO_PRIOR)
    data = read_measurements(usable_rows(rows, model.device)[0], model.device)
    held_out = report.held_out.assign(trees_s=_trees(data, say))
    held_out = held_out.assign(scaled_s=scaled(held_out))
    table = compare(held_out)
    coverage = covered(held_out)
    inside, *band = (text.percent(coverage[name]) for name in ("inside", "band_low", "band_high"))
    results = [_result_line(line, held_out) for line in table.to_dict("records")]
    say(
        f"\n{harness.lines_table(results)}\n\n{inside} of {coverage['rows']} held-out rows lie"
        f" inside their 90 % interval (chance alone: {' to '.join(band)})"
    )
    write_table(held_out, out / "ops.csv")
    lines = plain(table)
    summary = {"ops": lines, "coverage": coverage}
    write_json(out / "ops.json", "validate-ops", SUMMARY_SCHEMA_VERSION, summary)
    harness.write_results(out, "ops", results)
    say(f"\nops.json and ops.csv are in {out}")
    return summary


def compare(held_out: pd.DataFrame) -> pd.DataFrame:
    """One line per op kind with at least 20 rows: medians of each, and how far ours lies above the
    better baseline.

    Columns `op, rows, ours, knobs, trees, datasheet, scaled, noise, goal, excess, excess_low,
    excess_high`, shares: `excess` is the difference of medians, low and high its 95 % bootstrap
    interval. Ours is worse beyond chance where `excess_low` is above zero.
    """
    rng, lines = np.random.default_rng(0), []
    for op, rows in held_out.groupby("op"):
        if len(rows) < LEAST_ROWS_FOR_INTERVAL:
            continue
        measured = rows["measured_s"].to_numpy()
        ways = ("predicted", *_BASELINES, "roofline", "scaled")
        error = {name: np.abs(rows[f"{name}_s"].to_numpy() / measured - 1) for name in ways}
        median = {name: float(np.median(values)) for name, values in error.items()}
        better = best({name: median[name] for name in _BASELINES})
        low, high = excess([error["predicted"]], [error[better]], rng, RESAMPLES)
        noise = float(rows["noise"].median())
        lines.append({
            "op": op, "rows": len(rows), "ours": median["predicted"], "knobs": median["knobs"],
            "trees": median["trees"], "datasheet": median["roofline"],
            "scaled": median["scaled"], "noise": noise,
            "goal": np.nanmax([_TARGETS.get(str(op), _TARGET), 2 * noise]),
            "excess": median["predicted"] - median[better], "excess_low": low, "excess_high": high,
        })  # fmt: skip
    return pd.DataFrame(lines)


def covered(held_out: pd.DataFrame) -> dict[str, float]:
    """Share of held-out rows inside their interval, and the band that chance leaves around 90 %."""
    judged = held_out[held_out["low_s"].notna()]
    low, high = coverage_band(len(judged))
    inside = float(judged["measured_s"].between(judged["low_s"], judged["high_s"]).mean())
    return {"rows": len(judged), "inside": inside, "band_low": low, "band_high": high}


def _trees(data: MeasuredOps, say: Callable[[str], None]) -> np.ndarray:
    """Seconds [R] by gradient-boosted trees of the other folds."""
    boosting = scikit_learn("ensemble").GradientBoostingRegressor
    options = {"n_estimators": 200, "max_depth": 3, "learning_rate": 0.08, "subsample": 0.7}
    say("training baselines")
    fold, log_s = deal_folds(data.table.group), np.log(data.measured_s)
    predicted = np.full(len(fold), np.nan)
    for group, inputs in data.inputs.items():
        at = np.flatnonzero(data.table.group == group)
        for k in range(FOLDS):
            mine = fold[at] == k
            if mine.any() and (~mine).any():
                trees = boosting(**options, random_state=0)
                trees.fit(inputs.values[~mine], log_s[at[~mine]])
                predicted[at[mine]] = trees.predict(inputs.values[mine])
    return np.exp(predicted)


def scaled(held_out: pd.DataFrame) -> pd.Series:
    """Seconds [R] by the datasheet's roofline and one constant of each kind of op."""
    ratio = held_out["measured_s"] / held_out["roofline_s"].where(held_out["roofline_s"] > 0)
    seconds = held_out["roofline_s"].copy()
    for k in held_out["fold"].unique():
        here = held_out["fold"] == k
        seconds[here] *= held_out["op"][here].map(ratio[~here].groupby(held_out["op"]).median())
    return seconds


def _result_line(line: Mapping[str, Any], held_out: pd.DataFrame) -> harness.ResultLine:
    rows = held_out[held_out["op"] == line["op"]]
    found = scores(*(rows[f"{name}_s"] for name in ("measured", "predicted", "low", "high")))
    others = {name: line[name] for name in (*_BASELINES, "scaled", "datasheet")}
    return harness.ResultLine(
        line["op"], line["ours"], line["rows"], line["goal"], others, "median error",
        found.pearson, found.coverage, found.half_width,
    )  # fmt: skip
