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
import datetime
import hashlib
import importlib.metadata
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import hybridperf
from hybridperf.hardware import DeviceSpec, load_device, this_cpu
from hybridperf.io import InputError, positive_column, require_columns, write_json, write_table
from hybridperf.knob_fit import fit_knobs
from hybridperf.model import GroupReport, OpTable, PerfModel, op_table
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops
from hybridperf.residual import LEAST_ROWS, Box, Inputs, Job, Residual, best_share, concatenate, inputs_of, log_correction, train

FOLDS = 5
COVERAGE = 0.9
LEAST_ROWS_FOR_INTERVAL = 20
NOT_MEASURED = "not measured yet"
REPORT_SCHEMA_VERSION = 1
ALL_OPS = "all"  # stands for every op kind together in a learning curve
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
    provenance: Mapping[str, Any] | None = None,
) -> tuple[PerfModel, FitReport]:
    """A model of `device` (a name will do) from measured rows -> (PerfModel, FitReport).

    `measurements` has the columns of a table of ops and `time_s`. No rows and no prior: the datasheet roofline itself. The name `here`
    means this CPU with as many cores as the rows' column `cores` says, or with all this process may use.
    `InputError` for a missing column, a time that is not a positive number, or rows that cannot be read.
    """
    device = _named(device, measurements) if isinstance(device, str) else device
    provenance = {**_origin(measurements), **(provenance or {})}
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
    residuals, said = _learn(data, fold, closed_form, without)
    own = without[fold, np.arange(len(fold))]
    errors = own + said
    groups = _group_reports(data, errors, residuals)
    model = PerfModel(device, knobs, groups, {**provenance, "rows": len(data.measured_s)})
    report = _report(data, model, fold, own, errors, dropped)
    return dataclasses.replace(model, provenance={**model.provenance, "fit": report.summary()}), report


def _named(device: str, measurements: pd.DataFrame | None) -> DeviceSpec:
    """A device by name; `here` with the cores that the rows were measured on."""
    spec = load_device(device)
    if spec.id != "here" or measurements is None or "cores" not in measurements.columns:
        return spec
    counts = pd.to_numeric(measurements["cores"], errors="coerce").dropna().unique()
    if len(counts) > 1:
        raise InputError(
            f"expected rows measured on one number of cores, got {', '.join(f'{n:g}' for n in sorted(counts))}; fit each alone"
        )
    return this_cpu(int(counts[0])) if len(counts) and counts[0] >= 1 else spec


def _origin(measurements: pd.DataFrame | None) -> dict[str, Any]:
    """Provenance of any fit: when, by which versions, from which rows."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "numpy")}
    origin: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "versions": {"hybridperf": hybridperf.__version__, "python": platform.python_version(), **versions},
    }
    if measurements is not None:
        values = pd.util.hash_pandas_object(measurements, index=False).to_numpy().tobytes()
        origin["rows_sha256"] = hashlib.sha256(repr(list(measurements.columns)).encode() + values).hexdigest()[:16]
    return origin


@dataclasses.dataclass(frozen=True)
class MeasuredOps:
    """Rows to fit on. R rows, in the order of the table of ops."""

    rows: pd.DataFrame
    table: OpTable  # [R]
    measured_s: np.ndarray  # [R]
    inputs: Mapping[int, Inputs]  # of the rows of each group, in their order
    dtypes: np.ndarray  # [R]

    def some(self, keep: np.ndarray) -> MeasuredOps:
        """The rows of a mask [R]."""
        group = self.table.group
        return MeasuredOps(
            rows=self.rows[keep].reset_index(drop=True),
            table=jax.tree.map(lambda leaf: leaf[keep], self.table),
            measured_s=self.measured_s[keep],
            inputs={one: inputs.rows(keep[group == one]) for one, inputs in self.inputs.items() if keep[group == one].any()},
            dtypes=self.dtypes[keep],
        )


def read_measurements(measurements: pd.DataFrame, device: DeviceSpec) -> tuple[MeasuredOps, dict[str, int]]:
    rows, dropped = _usable(measurements, device)
    parsed = parse_ops(rows, device)
    bad = np.flatnonzero(parsed.problem.astype(bool))
    if len(bad):
        raise InputError(f"row {int(rows.index[bad[0]]) + 1}: {parsed.problem[bad[0]]} ({len(bad)} such rows); mend or drop them")
    tables = [op_table(part) for part in parsed.parts]
    table = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *tables)
    order = np.concatenate([part.rows for part in parsed.parts])
    inputs: dict[int, list[Inputs]] = {}
    for part in parsed.parts:
        of_part = inputs_of(part.op, part.work, len(part.rows))
        for group in np.unique(part.group):
            inputs.setdefault(int(group), []).append(of_part.rows(part.group == group))
    data = MeasuredOps(
        rows=rows.iloc[order].reset_index(drop=True),
        table=table,
        measured_s=rows["time_s"].to_numpy(np.float64)[order],
        inputs={group: concatenate(parts) for group, parts in inputs.items()},
        dtypes=np.concatenate([np.full(len(part.rows), part.op.dtype) for part in parsed.parts]),
    )
    return data, dropped


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
    if "expected_s" in frame.columns:  # rows of a measurement plan; elsewhere an empty time is a slip
        drop((frame["time_s"].isna() & frame["expected_s"].notna()).to_numpy(), NOT_MEASURED)
    if dropped.get(NOT_MEASURED) and not keep.any():
        raise InputError(
            f"no time to fit {device.id} on: {dropped[NOT_MEASURED]} rows are {NOT_MEASURED}; fill in their time_s, in seconds"
        )
    rows = frame.reset_index(drop=True)[keep]  # the index still says where in the table a row stood
    if rows.empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise InputError(f"no rows left to fit {device.id} on ({reasons}); check --device against the table's device column")
    positive_column(rows, "time_s", "fitting")
    return rows, dropped


def deal_folds(group: np.ndarray) -> np.ndarray:
    """The fold of each row [R], dealt evenly within each group."""
    rng = np.random.default_rng(0)
    fold = np.empty(len(group), int)
    for one in np.unique(group):
        at = np.flatnonzero(group == one)
        fold[at] = rng.permutation(len(at)) % FOLDS
    return fold


# --- what more rows would bring -------------------------------------------------------------------------------------------


def learning_curve(
    measurements: pd.DataFrame, device: DeviceSpec | str, shares: Sequence[float] = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
) -> pd.DataFrame:
    """Held-out error against the number of rows fitted on: `rows, op, median_ape, knobs_ape, noise` (shares of the measured time).

    One fifth of each group is held out throughout; nested random subsets of the rest, `shares` of each group's, are fitted on. A line per
    size and op kind, and one of op `all`; `knobs_ape` is the error without learned corrections, `noise` the held-out rows' own. Groups of
    fewer than five rows are fitted on and not judged.
    """
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"expected shares of the rows above 0 and up to 1, got {list(shares)}")
    device = _named(device, measurements) if isinstance(device, str) else device
    data, _ = read_measurements(measurements, device)
    group = data.table.group
    held = (deal_folds(group) == 0) & (np.bincount(group)[group] >= FOLDS)
    if not held.any():
        raise InputError(f"expected at least {FOLDS} rows of some op kind to hold some out, got {len(group)} rows in all")
    train_data, unseen = data.some(~held), data.some(held)
    sizes = sorted({float(share) for share in shares}, reverse=True)
    place = _places(train_data.table.group)  # of each row in a random order of its group, as a share of the group
    masks = [place < share for share in sizes]
    # the largest subset is fitted first and the smaller ones from there, so that all share its compiled functions
    largest = train_data.some(masks[0])
    first, others = fit_knobs(largest.table, largest.measured_s, device, [~mask[masks[0]] for mask in masks[1:]])
    curve = [_judged(unseen, train_data.some(mask), PerfModel(device, knobs)) for mask, knobs in zip(masks, [first, *others], strict=True)]
    return pd.concat(curve[::-1], ignore_index=True)


def _places(group: np.ndarray) -> np.ndarray:
    """Where each row stands in a random order of its group, as a share of it [R]: of every group the first is at 0, the last below 1."""
    rng = np.random.default_rng(1)
    place = np.empty(len(group))
    for one in np.unique(group):
        at = np.flatnonzero(group == one)
        place[at] = rng.permutation(len(at)) / len(at)
    return place


def _judged(unseen: MeasuredOps, seen: MeasuredOps, closed_form: PerfModel) -> pd.DataFrame:
    """Errors on `unseen` of knobs, and of corrections learned from `seen` on top: a line per op kind and one for all."""
    knobs_errors = np.log(closed_form.op_seconds(unseen.table) / unseen.measured_s)
    errors_seen = np.log(closed_form.op_seconds(seen.table) / seen.measured_s)
    # shares are chosen with knobs that saw the fold left out: a second fit for each fold would cost six times as much
    residuals, _ = _learn(seen, deal_folds(seen.table.group), errors_seen, np.broadcast_to(errors_seen, (FOLDS, len(errors_seen))))
    errors = knobs_errors.copy()
    for one, residual in residuals.items():
        if one in unseen.inputs:
            errors[unseen.table.group == one] += log_correction(residual, unseen.inputs[one])
    frame = pd.DataFrame({
        "op": [GROUPS[g] for g in unseen.table.group], "median_ape": np.abs(np.expm1(errors)), "knobs_ape": np.abs(np.expm1(knobs_errors)),
        "noise": _noise(unseen.rows),
    })  # fmt: skip
    out = pd.concat([frame.assign(op=ALL_OPS), frame]).groupby("op", sort=False).median().reset_index()
    counts = {GROUPS[g]: int(n) for g, n in zip(*np.unique(seen.table.group, return_counts=True), strict=True)}
    out.insert(0, "rows", [len(seen.measured_s) if op == ALL_OPS else counts[op] for op in out["op"]])
    return out


# --- learned corrections --------------------------------------------------------------------------------------------------


def _learn(data: MeasuredOps, fold: np.ndarray, closed_form: np.ndarray, without: np.ndarray) -> tuple[dict[int, Residual], np.ndarray]:
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
        "noise": _noise(data.rows),
    })  # fmt: skip
    return FitReport(_summary(held_out, model), held_out, len(measured), dict(dropped))


def _noise(rows: pd.DataFrame) -> np.ndarray:
    """How far two measurements of each row disagree, a share [R]; not a number where the table does not say."""
    if "noise" not in rows.columns:
        return np.full(len(rows), np.nan)
    return pd.to_numeric(rows["noise"], errors="coerce").to_numpy(np.float64)


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
