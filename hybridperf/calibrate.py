"""Measured rows -> a model of the machine: knobs (`knob_fit.py`), and how far to trust them.

The interval of a group is the 0.9 quantile, with the finite-sample rank of split-conformal prediction, of the absolute log errors that
each fifth of its rows has under the fit to the other four fifths. Groups of fewer than 20 rows share one quantile over them all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec, load_device
from hybridperf.io import InputError, positive_column, require_columns
from hybridperf.knob_fit import fit_knobs
from hybridperf.model import GroupReport, OpTable, PerfModel, op_table
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops
from hybridperf.roofline import Work

FOLDS = 5
COVERAGE = 0.9
LEAST_ROWS_FOR_INTERVAL = 20


@dataclasses.dataclass(frozen=True)
class FitReport:
    """How well a fit explains rows it has not seen. One line per op name."""

    table: pd.DataFrame  # op, rows, median_ape, mean_ape, roofline_ape, noise, coverage (shares, not percent)
    rows: int
    dropped: Mapping[str, int]  # reason -> rows not fitted on

    def summary(self) -> dict[str, Any]:
        """Plain numbers for a JSON file."""
        records = self.table.astype(object).where(self.table.notna(), None).to_dict("records")
        return {"rows": self.rows, "dropped": dict(self.dropped), "ops": records}


def fit(
    measurements: pd.DataFrame | None,
    device: DeviceSpec | str,
    *,
    prior: str = "none",
    provenance: Mapping[str, Any] | None = None,
) -> tuple[PerfModel, FitReport]:
    """Knobs of `device` (a name will do) from measured rows -> (PerfModel, FitReport).

    `measurements` has the columns of a table of ops and `time_s`. No rows and no prior: the datasheet roofline itself.
    `InputError` for a missing column, a time that is not a positive number, or rows that cannot be read.
    """
    device = load_device(device) if isinstance(device, str) else device
    if prior != "none":
        raise InputError(f"no prior named {prior!r} is shipped; use --prior none")
    if measurements is None:
        model = dataclasses.replace(PerfModel.datasheet(device), provenance={**(provenance or {}), "rows": 0})
        return model, FitReport(_empty_report(), 0, {})
    rows, dropped = _usable(measurements, device)
    parsed = parse_ops(rows, device)
    bad = np.flatnonzero(parsed.problem.astype(bool))
    if len(bad):
        raise InputError(f"row {int(rows.index[bad[0]]) + 1}: {parsed.problem[bad[0]]} ({len(bad)} such rows); mend or drop them")
    table = _concatenate([op_table(part) for part in parsed.parts])
    order = np.concatenate([part.rows for part in parsed.parts])
    measured = rows["time_s"].to_numpy(np.float64)[order]

    knobs = fit_knobs(table, measured, device)
    held_out, fold = _held_out_log_errors(table, measured, device)
    dtypes = np.concatenate([np.full(len(part.rows), part.op.dtype) for part in parsed.parts])
    reports = _group_reports(table, held_out, dtypes)
    model = PerfModel(device, knobs, reports, {**(provenance or {}), "rows": len(rows)})
    report = _report(rows.iloc[order].reset_index(drop=True), model, table, held_out, fold, dropped)
    return dataclasses.replace(model, provenance={**model.provenance, "fit": report.summary()}), report


def _usable(frame: pd.DataFrame, device: DeviceSpec) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows to fit on: of this device where the table names devices, with times that can be trusted."""
    require_columns(frame, ["op", "dtype", "time_s"], "fitting")
    if frame.empty:
        raise InputError("no rows to fit on; expected at least one")
    dropped: dict[str, int] = {}
    keep = np.ones(len(frame), bool)

    def drop(where: np.ndarray, reason: str) -> None:
        nonlocal keep
        if (where & keep).any():
            dropped[reason] = int((where & keep).sum())
            keep &= ~where

    if "device" in frame.columns and device.id != "here":
        drop((frame["device"].astype(str) != device.id).to_numpy(), "other devices")
    if "throttled" in frame.columns:
        drop(pd.to_numeric(frame["throttled"], errors="coerce").fillna(0).to_numpy() == 1, "thermally throttled")
    if "unreliable" in frame.columns:
        drop(pd.to_numeric(frame["unreliable"], errors="coerce").fillna(0).to_numpy() == 1, "mostly call overhead")
    rows = frame.reset_index(drop=True)[keep]  # the index still says where in the table a row stood
    if rows.empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise InputError(f"no rows left to fit {device.id} on ({reasons}); check --device against the table's device column")
    positive_column(rows, "time_s", "fitting")
    return rows, dropped


# --- how far to trust it --------------------------------------------------------------------------------------------------


def _held_out_log_errors(table: OpTable, measured: np.ndarray, device: DeviceSpec) -> tuple[np.ndarray, np.ndarray]:
    """(log(predicted / measured) of each row under knobs fitted without its fold, NaN where there are too few rows; the fold)."""
    rng = np.random.default_rng(0)
    fold = np.empty(len(measured), int)
    for group in np.unique(table.group):
        at = np.flatnonzero(table.group == group)
        fold[at] = rng.permutation(len(at)) % FOLDS
    errors = np.full(len(measured), np.nan)
    for k in range(FOLDS):
        train, test = fold != k, fold == k
        if not test.any() or not train.any():
            continue
        knobs = fit_knobs(jax.tree.map(lambda x, keep=train: x[keep], table), measured[train], device)
        seen = np.isin(table.group[test], np.unique(table.group[train]))
        model = PerfModel(device, knobs)
        predicted = model.op_seconds(jax.tree.map(lambda x, keep=test: x[keep], table))
        errors[np.flatnonzero(test)[seen]] = np.log(predicted / measured[test])[seen]
    return errors, fold


def conformal_quantile(errors: np.ndarray, coverage: float = COVERAGE) -> float | None:
    """The ceil((n + 1) * coverage)-th smallest of n absolute errors; None where n is too small for that rank to exist."""
    n = len(errors)
    rank = math.ceil((n + 1) * coverage)
    return None if n < LEAST_ROWS_FOR_INTERVAL or rank > n else float(np.sort(np.abs(errors))[rank - 1])


def _group_reports(table: OpTable, held_out: np.ndarray, dtypes: np.ndarray) -> dict[str, GroupReport]:
    reports = {}
    finite = np.isfinite(held_out)
    sizes = np.bincount(table.group[finite], minlength=len(GROUPS))
    pooled = conformal_quantile(held_out[finite & (sizes[table.group] < LEAST_ROWS_FOR_INTERVAL)])
    for group in np.unique(table.group):
        here = table.group == group
        quantile = conformal_quantile(held_out[here & finite])
        quantile = pooled if quantile is None else quantile
        extremes = {
            field.name: np.asarray(getattr(table.work, field.name))[here]
            for field in dataclasses.fields(Work)
        }  # fmt: skip
        reports[GROUPS[group]] = GroupReport(
            rows=int(here.sum()),
            half_width=None if quantile is None else float(np.expm1(quantile)),
            lowest={name: float(values.min()) for name, values in extremes.items()},
            highest={name: float(values.max()) for name, values in extremes.items()},
            dtypes=tuple(map(str, np.unique(dtypes[here]))),
        )
    return reports


def _report(
    rows: pd.DataFrame,
    model: PerfModel,
    table: OpTable,
    held_out: np.ndarray,
    fold: np.ndarray,
    dropped: dict[str, int],
) -> FitReport:
    measured = rows["time_s"].to_numpy(np.float64)
    roofline_ape = np.abs(model.roofline_seconds(table) / measured - 1)
    ape = np.abs(np.expm1(held_out))
    inside = np.full(len(rows), np.nan)  # within the interval that the other folds' errors give: a fair trial of it
    for group in np.unique(table.group):
        for k in range(FOLDS):
            here = table.group == group
            others = held_out[here & (fold != k)]
            quantile = conformal_quantile(others[np.isfinite(others)])
            if quantile is not None:
                inside[here & (fold == k)] = np.abs(held_out[here & (fold == k)]) <= quantile
    noise = pd.to_numeric(rows["noise"], errors="coerce") if "noise" in rows.columns else np.nan
    frame = pd.DataFrame({
        "op": [GROUPS[g] for g in table.group], "median_ape": ape, "mean_ape": ape, "roofline_ape": roofline_ape, "noise": noise,
        "coverage": inside,
    })  # fmt: skip
    groups = frame.groupby("op", sort=True)
    out = groups.agg(
        rows=("op", "size"), median_ape=("median_ape", "median"), mean_ape=("mean_ape", "mean"),
        roofline_ape=("roofline_ape", "median"), noise=("noise", "median"), coverage=("coverage", "mean"),
    ).reset_index()  # fmt: skip
    return FitReport(out, len(rows), dropped)


def _empty_report() -> pd.DataFrame:
    return pd.DataFrame(columns=["op", "rows", "median_ape", "mean_ape", "roofline_ape", "noise", "coverage"])


def _concatenate(tables: list[OpTable]) -> OpTable:
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *tables)
