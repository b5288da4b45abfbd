"""Measured rows -> a model of the machine: knobs (`knob_fit.py`), learned corrections (`residual.py`), and how far to trust both.

Knobs first, corrections second, so that what is learned cannot steal from what has a meaning. Everything said about trust comes from
rows that neither has seen: the rows of each group are dealt into five folds, and each fold is predicted by knobs and networks of the
other four.

    held out     log(predicted / measured) of each row, by the fit without its fold
    share        how much of the networks' word to take: what would have been best on the held-out rows (of the other folds, for a row's
                 own error)
    interval     the 0.9 quantile of the absolute held-out errors of a group (split-conformal over folds; position (n + 1) 0.9 among n,
                 interpolated). Groups of fewer than 20 rows share one quantile over them all.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError, write_json, write_table
from hybridperf.knob_fit import fit_knobs
from hybridperf.measurements import FOLDS, MeasuredOps, deal_folds, named_device, noise_of, origin, read_measurements
from hybridperf.model import GroupReport, PerfModel
from hybridperf.ops import GROUPS
from hybridperf.residual import LEAST_ROWS, Box, Job, Residual, best_share, log_correction, train

COVERAGE = 0.9
LEAST_ROWS_FOR_INTERVAL = 20
REPORT_SCHEMA_VERSION = 1
_ERROR_QUANTILES = 41  # of the held-out errors, kept for the intervals of steps
_FOLD_MEMBERS, _FINAL_MEMBERS = 2, 4


@dataclasses.dataclass(frozen=True)
class FitReport:
    """How well a fit explains rows it has not seen."""

    table: pd.DataFrame  # by op kind: op, rows, median_ape, mean_ape, knobs_ape, roofline_ape, noise, coverage, share (no percent)
    held_out: pd.DataFrame  # by row: op, fold, measured_s, predicted_s, knobs_s, roofline_s, low_s, high_s, noise
    rows: int
    dropped: Mapping[str, int]  # reason -> rows not fitted on

    def summary(self) -> dict[str, Any]:
        """Plain numbers for a JSON file."""
        records = self.table.astype(object).where(self.table.notna(), None).to_dict("records")
        return {"rows": self.rows, "dropped": dict(self.dropped), "ops": records}

    def save(self, folder: str | os.PathLike) -> None:
        """Write `report.json` (what `summary` says) and `held_out.csv` (each row's held-out prediction, in seconds) into a folder."""
        write_json(Path(folder) / "report.json", "fit-report", REPORT_SCHEMA_VERSION, self.summary())
        write_table(self.held_out, Path(folder) / "held_out.csv")


def fit(
    measurements: pd.DataFrame | None,
    device: DeviceSpec | str,
    *,
    prior: str = "none",
    drift: Sequence[float] = (),
    provenance: Mapping[str, Any] | None = None,
) -> tuple[PerfModel, FitReport]:
    """A model of `device` (a name will do) from measured rows -> (PerfModel, FitReport).

    `measurements` has the columns of a table of ops and `time_s`. No rows and no prior: the datasheet roofline itself. The name `here`
    means this CPU with as many cores as the rows' column `cores` says, or with all this process may use. `drift`: how the machine's speed
    moved while the rows were measured, as quantiles of log slowness (`engine.drift`).
    `InputError` for a missing column, a time that is not a positive number, or rows that cannot be read.
    """
    device = named_device(device, measurements) if isinstance(device, str) else device
    provenance = {**origin(measurements), **(provenance or {})}
    if prior != "none":
        raise InputError(f"no prior named {prior!r} is shipped; use --prior none")
    if measurements is None:
        model = dataclasses.replace(PerfModel.datasheet(device), provenance={**provenance, "rows": 0})
        return model, FitReport(pd.DataFrame(columns=_SUMMARY), pd.DataFrame(columns=_HELD_OUT), 0, {})
    data, dropped = read_measurements(measurements, device)
    fold = deal_folds(data.table.group)
    knobs, knobs_without = fit_knobs(data.table, data.measured_s, device, [fold == k for k in range(FOLDS)])
    # log(closed form / measured): of the final knobs, and of the knobs that have not seen a row's fold
    closed_form = np.log(PerfModel(device, knobs).op_seconds(data.table) / data.measured_s)
    without = np.log([PerfModel(device, found).op_seconds(data.table) / data.measured_s for found in knobs_without])
    residuals, said = learn_corrections(data, fold, closed_form, without)
    own = without[fold, np.arange(len(fold))]
    errors = own + said
    groups = _group_reports(data, errors, residuals)
    model = PerfModel(device, knobs, groups, {**provenance, "rows": len(data.measured_s)}, tuple(drift))
    report = _report(data, model, fold, own, errors, dropped)
    return dataclasses.replace(model, provenance={**model.provenance, "fit": report.summary()}), report


# --- learned corrections --------------------------------------------------------------------------------------------------


def learn_corrections(
    data: MeasuredOps, fold: np.ndarray, closed_form: np.ndarray, without: np.ndarray
) -> tuple[dict[int, Residual], np.ndarray]:
    """(correction of each group with enough rows, held-out log corrections [R])."""
    learners = [group for group, inputs in data.inputs.items() if len(inputs.values) >= LEAST_ROWS]
    at = {group: np.flatnonzero(data.table.group == group) for group in learners}
    jobs = []
    for group in learners:
        inputs, rows = data.inputs[group], at[group]
        for k in range(FOLDS):
            others = fold[rows] != k
            jobs.append(Job(inputs.rows(others), -without[k, rows[others]], _FOLD_MEMBERS))
        jobs.append(Job(inputs, -closed_form[rows], _FINAL_MEMBERS))
    trained = iter(train(jobs))
    residuals, said = {}, np.zeros(len(fold))
    for group in learners:
        inputs, rows = data.inputs[group], at[group]
        target, raw = -without[fold[rows], rows], np.zeros(len(rows))
        for k in range(FOLDS):
            mine = fold[rows] == k
            raw[mine] = log_correction(next(trained), inputs.rows(mine))
        for k in range(FOLDS):
            mine = fold[rows] == k
            said[rows[mine]] = best_share(target[~mine], raw[~mine]) * raw[mine]
        residuals[group] = dataclasses.replace(next(trained), share=best_share(target, raw))
    return residuals, said


# --- how far to trust it --------------------------------------------------------------------------------------------------


def conformal_quantile(errors: np.ndarray, coverage: float = COVERAGE) -> float | None:
    """What (n + 1) * coverage of n + 1 exchangeable absolute errors stay below, interpolated between the n that are known.

    None where n is too small for that position to exist. Interpolating instead of rounding up keeps small groups from covering too much.
    """
    n = len(errors)
    position = (n + 1) * coverage
    if n < LEAST_ROWS_FOR_INTERVAL or position > n:
        return None
    ordered = np.sort(np.abs(errors))
    below = math.floor(position)
    above = ordered[min(below, n - 1)]
    return float(ordered[below - 1] + (position - below) * (above - ordered[below - 1]))


def _group_reports(data: MeasuredOps, errors: np.ndarray, residuals: Mapping[int, Residual]) -> dict[str, GroupReport]:
    group = data.table.group
    sizes = np.bincount(group, minlength=len(GROUPS))
    pooled = conformal_quantile(errors[sizes[group] < LEAST_ROWS_FOR_INTERVAL])
    reports = {}
    for one, inputs in data.inputs.items():
        here = group == one
        quantile = conformal_quantile(errors[here])
        quantile = pooled if quantile is None else quantile
        box = Box.of(inputs)
        spread = np.quantile(errors[here], np.linspace(0, 1, _ERROR_QUANTILES))
        reports[GROUPS[one]] = GroupReport(
            rows=int(here.sum()),
            half_width=None if quantile is None else float(np.expm1(quantile)),
            lowest=dict(zip(box.names, map(float, box.low), strict=True)),
            highest=dict(zip(box.names, map(float, box.high), strict=True)),
            dtypes=tuple(map(str, np.unique(data.dtypes[here]))),
            errors=tuple(map(float, spread)),
            residual=residuals.get(one),
        )
    return reports


def _report(
    data: MeasuredOps, model: PerfModel, fold: np.ndarray, knobs_errors: np.ndarray, errors: np.ndarray, dropped: Mapping[str, int]
) -> FitReport:
    measured, group = data.measured_s, data.table.group
    predicted = measured * np.exp(errors)
    width = np.full(len(measured), np.nan)  # that the other folds' errors give: a fair trial of the interval
    for one in np.unique(group):
        for k in range(FOLDS):
            here = group == one
            quantile = conformal_quantile(errors[here & (fold != k)])
            if quantile is not None:
                width[here & (fold == k)] = quantile
    held_out = pd.DataFrame({
        "op": [GROUPS[g] for g in group], "fold": fold, "measured_s": measured, "predicted_s": predicted,
        "knobs_s": measured * np.exp(knobs_errors), "roofline_s": model.roofline_seconds(data.table),
        "low_s": predicted * np.exp(-width), "high_s": predicted * np.exp(width),
        "noise": noise_of(data.rows),
    })  # fmt: skip
    return FitReport(_summary(held_out, model), held_out, len(measured), dict(dropped))


_SUMMARY = ("op", "rows", "median_ape", "mean_ape", "knobs_ape", "roofline_ape", "noise", "coverage", "share")
_HELD_OUT = ("op", "fold", "measured_s", "predicted_s", "knobs_s", "roofline_s", "low_s", "high_s", "noise")


def _summary(held_out: pd.DataFrame, model: PerfModel) -> pd.DataFrame:
    """One line per op kind: medians of absolute percentage errors (mean where it says so), noise, coverage, share of the networks."""
    measured = held_out["measured_s"]
    judged = held_out["low_s"].notna()
    frame = pd.DataFrame({
        "op": held_out["op"], "ape": (held_out["predicted_s"] / measured - 1).abs(),
        "knobs_ape": (held_out["knobs_s"] / measured - 1).abs(), "roofline_ape": (held_out["roofline_s"] / measured - 1).abs(),
        "noise": held_out["noise"],
        "coverage": measured.between(held_out["low_s"], held_out["high_s"]).astype(float).where(judged),
    })  # fmt: skip
    out = frame.groupby("op", sort=True).agg(
        rows=("op", "size"), median_ape=("ape", "median"), mean_ape=("ape", "mean"), knobs_ape=("knobs_ape", "median"),
        roofline_ape=("roofline_ape", "median"), noise=("noise", "median"), coverage=("coverage", "mean"),
    ).reset_index()  # fmt: skip
    found = {group: report.residual for group, report in model.groups.items()}
    out["share"] = [0.0 if (residual := found[group]) is None else residual.share for group in out["op"]]
    return out
