"""Measured rows -> a model of the machine: knobs, learned corrections, and how far to trust both.

Knobs first, corrections second, so that what is learned cannot steal from what has a meaning. All
measures of trust come from rows that neither has seen: the rows of each group are dealt into five
folds, and each fold is predicted by knobs and networks of the other four.

    held out     log(predicted / measured) of each row, by the fit without its fold
    shares       how much of the networks' and of the process' correction to take: what would have
                 been best on the held-out rows (of the other folds, for a row's own error)
    interval     the 0.9 quantile of the absolute held-out errors of a group (split-conformal over
                 folds; position (n + 1) 0.9 among n, interpolated). Groups of fewer than 20 rows
                 share one quantile over them all, or over all rows where they are fewer than 20
                 together.
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
from hybridperf.io import InputError, check_seconds, plain, write_json, write_table
from hybridperf.io.provenance import origin
from hybridperf.learning.inputs import Box
from hybridperf.learning.prior import Adapted, FamilyPrior
from hybridperf.learning.prior.alone import LEAST_ROWS, learn_after, learn_alone, told
from hybridperf.learning.prior.shipped import (
    CPU_PRIORS,
    DEFAULT_PRIOR,
    NO_PRIOR,
    Prior,
    is_installed,
    load_prior,
)
from hybridperf.model import GROUP_KNOBS, GroupReport, PerfModel, shipped
from hybridperf.model.families import gpu_of
from hybridperf.model.fit import families as family_fit
from hybridperf.model.fit import rows as fit_rows
from hybridperf.model.fit.families import FamilyFit
from hybridperf.model.fit.knobs import fit_knobs
from hybridperf.model.platform import OpTable, neutral_knobs, with_group_knobs
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import RooflineKnobs

COVERAGE = 0.9
LEAST_ROWS_FOR_INTERVAL = 20
REPORT_SCHEMA_VERSION = 1
# a kernel takes no longer by itself than the first, no kernel was met that takes the second times
# longer than the longer of that and its roofline
_SHORT_S, _MOST_OVER_ROOFLINE = 1e-5, 3.0


@dataclasses.dataclass(frozen=True)
class FitReport:
    """How well a fitted model predicts measured rows that it was not fitted to."""

    # a row per op: op, rows, median_ape, mean_ape, knobs_ape, roofline_ape, noise, coverage, share;
    # errors as fractions, 0.1 is 10 %
    table: pd.DataFrame
    # a row per held-out measurement: op, fold, measured_s, predicted_s, knobs_s, roofline_s, low_s,
    # high_s, noise
    held_out: pd.DataFrame
    rows: int  # fitted to
    dropped: Mapping[str, int]  # rows not fitted to, by reason
    # ops of which the roofline times one constant was kept: nearer to rows held out than the fit
    kept: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Plain numbers for a JSON file."""
        records = plain(self.table)
        counts = {"rows": self.rows, "dropped": dict(self.dropped)}
        return {**counts, "ops": records, "kept": list(self.kept)}

    def save(self, folder: str | os.PathLike) -> None:
        """Write `report.json` (the summary) and `held_out.csv` (held-out predictions)."""
        path = Path(folder) / "report.json"
        write_json(path, "fit-report", REPORT_SCHEMA_VERSION, self.summary())
        write_table(self.held_out, Path(folder) / "held_out.csv")


def fit(
    measurements: pd.DataFrame | None, device: DeviceSpec | str, *,
    prior: str | Prior | None = None, drift: Sequence[float] = (),
    provenance: Mapping[str, Any] | None = None,
) -> tuple[PerfModel, FitReport]:  # fmt: skip
    """Fit a model of a device to measured times of ops.

    Args:
        measurements: a table of ops with their `time_s` in seconds; None: the prior alone, or
            without prior the datasheet roofline itself.
        device: name or facts of the device. "here" is this CPU with as many cores as the column
            `cores` gives, or with all that this process may use.
        prior: what other GPUs showed, adapted to the rows: a `Prior`, its folder or name, or
            "none"; None: the installed one for GPUs, none for CPUs. Ops without a prior are fitted
            by themselves.
        drift: how the machine's speed changed while rows were measured: evenly spaced quantiles of
            log slowness.
        provenance: what to record about the rows.

    Returns:
        The model, and a report of its errors on held-out rows.

    Raises:
        InputError: when a column is missing, a time is not positive, or a row cannot be read.
    """
    device = fit_rows.named_device(device, measurements)
    provenance = {**origin(measurements), **(provenance or {})}
    known = prior_for(prior, device, measurements)
    usable, parsed, dropped = None, None, dict[str, int]()
    if measurements is not None:
        usable, dropped = fit_rows.usable_rows(measurements, device)
        parsed = fit_rows.parse_measured(usable, device)
        roofline_s = PerfModel.datasheet(device).predict_ops(usable)["roofline_s"].to_numpy()
        most_s = _MOST_OVER_ROOFLINE * np.maximum(roofline_s, _SHORT_S)
        check_seconds(usable["time_s"].to_numpy(float), roofline_s, most_s, "time_s")
    rest, fits = usable, dict[str, FamilyFit]()
    if known is not None and device.kind != "cpu":
        time_s = np.zeros(0) if usable is None else usable["time_s"].to_numpy(np.float64)
        fits, left = family_fit.adapt_families(known, parsed, time_s, device)
        rest = None if usable is None else usable.iloc[left]
        by_family = {family: fitted.adapted.rows for family, fitted in fits.items()}
        provenance["prior"] = {"date": known.provenance.get("date"), "rows": by_family}
    alone = None
    if rest is not None and not rest.empty:
        of_cpus = known if device.kind == "cpu" else None
        alone = _fit_alone(fit_rows.read_measurements(rest, device), device, of_cpus)
    model, report = model_of_families(device, fits, alone)
    provenance["rows"] = rows = 0 if usable is None else len(usable)
    report = dataclasses.replace(report, rows=rows, dropped=dict(dropped))
    if usable is not None:
        provenance["fit"] = report.summary()
    # as when it is loaded again; a `Prior` may have left devices out, which stay left out then
    left_out = type(prior) is Prior
    others = shipped if (model.groups or model.families) and not left_out else None
    return dataclasses.replace(
        model, provenance=provenance, drift=tuple(drift), references=others
    ), report


def model_of_families(
    device: DeviceSpec,
    fits: Mapping[str, FamilyFit],
    alone: tuple[PerfModel, FitReport] | None = None,
) -> tuple[PerfModel, FitReport]:
    """(adapted priors, and ops fitted `alone` since no prior knows them, as one model; report)."""
    nothing = _reported(fit_rows.held_out_rows(), {}, 0)
    model, report = alone or (PerfModel.datasheet(device), nothing)
    arrays = {name: np.array(getattr(model.knobs, name)) for name in GROUP_KNOBS}
    for group, knobs in family_fit.group_knobs(fits).items():
        for name, value in knobs.items():
            arrays[name][GROUPS.index(group)] = value
    model = dataclasses.replace(
        model,
        knobs=dataclasses.replace(model.knobs, **arrays),
        groups={**model.groups, **family_fit.group_reports(fits)},
        families={family: fitted.adapted for family, fitted in fits.items()},
    )
    unseen = family_fit.held_out(fits)
    if not unseen:
        return model, report
    shares = dict(zip(report.table["op"], report.table["share"], strict=True))
    shares |= {frame["op"].iloc[0]: 1.0 for frame in unseen}
    every = [*([report.held_out] if len(report.held_out) else []), *unseen]
    rows = sum(len(one.time_s) for one in fits.values()) + report.rows
    return model, _reported(pd.concat(every, ignore_index=True), shares, rows)


def prior_for(
    prior: str | Prior | None, device: DeviceSpec, rows: pd.DataFrame | None
) -> Prior | None:
    """The prior to use; `InputError` where one is asked for that cannot serve the device."""
    if prior == NO_PRIOR:
        return None
    if device.kind == "cpu":
        return _prior_of_cpus(prior, device, rows)
    if gpu_of(device) is None:
        if prior is None:
            return None
        raise _knows_gpus(device)
    found = prior if isinstance(prior, Prior) else load_prior(prior or DEFAULT_PRIOR)
    if found.knobs:
        raise InputError(
            f"expected a prior over GPUs for {device.id}, got one over CPUs; use --prior none"
        )
    return found


def _knows_gpus(device: DeviceSpec) -> InputError:
    return InputError(
        "priors know GPUs whose number of multiprocessors and L2 size are given, and"
        f" {device.id} is not one of them; use --prior none"
    )


def _prior_of_cpus(
    prior: str | Prior | None, device: DeviceSpec, rows: pd.DataFrame | None
) -> Prior | None:
    """What CPUs showed of the library whose ops were measured, on as many cores."""
    libraries = [] if rows is None or "library" not in rows else rows["library"].dropna().unique()
    name = CPU_PRIORS.get(str(libraries[0]) if len(libraries) else "jax")
    if prior is None and (name is None or len(libraries) > 1 or not is_installed(name)):
        return None
    found = prior if isinstance(prior, Prior) else load_prior(str(prior or name))
    if not found.knobs:
        raise _knows_gpus(device)
    return found if prior or found.provenance.get("cores") == device.multiprocessors else None


def _fit_alone(
    data: fit_rows.MeasuredOps, device: DeviceSpec, prior: Prior | None = None
) -> tuple[PerfModel, FitReport]:
    """Rows of groups of which no GPU's prior knows; `prior`: what other CPUs showed."""
    fold = fit_rows.deal_folds(data.table.group)
    folds = [fold == k for k in range(fit_rows.FOLDS)]
    known, families = (prior.knobs, prior.families) if prior else ({}, {})
    table = corrected(data, families)
    knobs, knobs_without = fit_knobs(table, data.measured_s, device, folds, known)
    # over measured seconds: by the final knobs, and by the knobs that have not seen a row's fold
    ratio, *ratios = (
        PerfModel(device, found).op_seconds(data.table) / data.measured_s
        for found in (knobs, *knobs_without)
    )
    closed_form, without = np.log(ratio), np.log(ratios)
    residuals, corrections = learn_corrections(data, fold, closed_form, without, families)
    own = without[fold, np.arange(len(fold))]
    errors = own + corrections
    knobs, kept = _guarded(data, device, knobs, knobs_without, fold, errors)
    residuals = {one: found for one, found in residuals.items() if one not in kept}
    model = PerfModel(device, knobs, _group_reports(data, errors, residuals))
    # that the other folds' errors give: a fair trial of the interval
    measured, group, width = data.measured_s, data.table.group, np.full(len(fold), np.nan)
    for one in np.unique(group):
        for mine in folds:
            quantile = conformal_quantile(errors[(group == one) & ~mine])
            if quantile is not None:
                width[(group == one) & mine] = quantile
    held_out = fit_rows.held_out_rows(
        [GROUPS[g] for g in group], fold, measured, errors, width,
        knobs_s=measured * np.exp(own), roofline_s=model.roofline_seconds(data.table),
        noise=fit_rows.noise_of(data.rows),
    )  # fmt: skip
    shares = {GROUPS[one]: residual.learned for one, residual in residuals.items()}
    report = _reported(held_out, shares, len(measured))
    return model, dataclasses.replace(report, kept=tuple(GROUPS[one] for one in kept))


def _guarded(
    data: fit_rows.MeasuredOps, device: DeviceSpec, knobs: RooflineKnobs,
    without: Sequence[RooflineKnobs], fold: np.ndarray, errors: np.ndarray,
) -> tuple[RooflineKnobs, list[int]]:  # fmt: skip
    """(knobs, the groups of which they are no more than the roofline times one constant): where
    rows held out are nearer to that, by more than the standard error of the difference. `errors`
    [R] of those rows become its own there.
    """
    group, kept = data.table.group, []
    groups = [int(one) for one in np.unique(group)]
    plain_s = [
        PerfModel(device, with_group_knobs(one, neutral_knobs(), groups)).op_seconds(data.table)
        for one in (knobs, *without)
    ]
    timed = [one for one in groups if plain_s[0][group == one].min() > 0]  # a call has no work
    with np.errstate(divide="ignore"):
        plain, *plain_without = (np.log(one / data.measured_s) for one in plain_s)
    for one in timed:
        at = np.flatnonzero(group == one)
        constant = np.array([
            np.median(plain_without[k][at[fold[at] != k]]) if (fold[at] != k).any() else np.nan
            for k in fold[at]
        ])  # fmt: skip
        other = np.array([plain_without[k][i] for k, i in zip(fold[at], at, strict=True)])
        gain = np.abs(errors[at]) - np.abs(other - constant)
        if gain.mean() > gain.std() / np.sqrt(len(gain)):
            errors[at] = other - constant
            share = np.full(len(GROUPS), np.exp(np.median(plain[at])))
            alike = {"compute_efficiency": share, "memory_efficiency": share}
            scaled = dataclasses.replace(neutral_knobs(), **alike)
            knobs = with_group_knobs(knobs, scaled, [one])
            kept.append(one)
    return knobs, kept


def corrected(data: fit_rows.MeasuredOps, priors: Mapping[str, FamilyPrior]) -> OpTable:
    """The ops with what other machines showed of them: knobs explain what is left."""
    correction = np.zeros(len(data.measured_s))
    for group, inputs in data.inputs.items():
        if (prior := priors.get(GROUPS[group])) is not None:
            correction[data.table.group == group] = told(prior, inputs)
    return dataclasses.replace(data.table, correction=correction)


# --- learned corrections --------------------------------------------------------------------------


def learn_corrections(
    data: fit_rows.MeasuredOps, fold: np.ndarray, closed_form: np.ndarray, without: np.ndarray,
    priors: Mapping[str, FamilyPrior],
) -> tuple[dict[int, Adapted], np.ndarray]:  # fmt: skip
    """(correction of each group with enough rows, held-out log corrections [R]); `priors`: what
    other machines showed of a group, after which any number is enough.
    """
    found, corrections = {}, np.zeros(len(fold))
    for group, inputs in data.inputs.items():
        at = np.flatnonzero(data.table.group == group)
        given = inputs, -closed_form[at], -without[:, at], fold[at]
        if (prior := priors.get(GROUPS[group])) is not None:
            found[group], corrections[at] = learn_after(prior, *given)
        elif len(at) >= LEAST_ROWS:
            found[group], corrections[at] = learn_alone(*given)
    return found, corrections


# --- how far to trust it --------------------------------------------------------------------------


def conformal_quantile(errors: np.ndarray, coverage: float = COVERAGE) -> float | None:
    """What (n + 1) * coverage of n + 1 exchangeable absolute errors stay below.

    Interpolated between the n that are known (split-conformal prediction: Lei et al., 2018); None
    where n is too small for that position to exist. Interpolating instead of rounding up keeps
    small groups from covering too much.
    """
    n = len(errors)
    position = (n + 1) * coverage
    if n < LEAST_ROWS_FOR_INTERVAL or position > n:
        return None
    ordered = np.sort(np.abs(errors))
    below = math.floor(position)
    above = ordered[min(below, n - 1)]
    return float(ordered[below - 1] + (position - below) * (above - ordered[below - 1]))


def _group_reports(
    data: fit_rows.MeasuredOps, errors: np.ndarray, residuals: Mapping[int, Adapted]
) -> dict[str, GroupReport]:
    group = data.table.group
    sizes = np.bincount(group, minlength=len(GROUPS))
    pooled = conformal_quantile(errors[sizes[group] < LEAST_ROWS_FOR_INTERVAL])
    pooled = conformal_quantile(errors) if pooled is None else pooled
    reports = {}
    for one, inputs in data.inputs.items():
        here = group == one
        quantile = conformal_quantile(errors[here])
        quantile = pooled if quantile is None else quantile
        dtypes = map(str, np.unique(data.dtypes[here]))
        reports[GROUPS[one]] = GroupReport.of(
            int(here.sum()), quantile, Box.of(inputs), dtypes, errors[here], residuals.get(one)
        )
    return reports


def _reported(held_out: pd.DataFrame, shares: Mapping[str, float], rows: int) -> FitReport:
    """Medians per op kind (mean where named so); `share` is that of the networks."""
    measured = held_out["measured_s"]
    judged = held_out["low_s"].notna()
    covered = measured.between(held_out["low_s"], held_out["high_s"]).astype(float)
    frame = pd.DataFrame({
        "op": held_out["op"], "ape": (held_out["predicted_s"] / measured - 1).abs(),
        "knobs_ape": (held_out["knobs_s"] / measured - 1).abs(),
        "roofline_ape": (held_out["roofline_s"] / measured - 1).abs(),
        "noise": held_out["noise"], "coverage": covered.where(judged),
    })  # fmt: skip
    out = frame.groupby("op", sort=True).agg(
        rows=("op", "size"), median_ape=("ape", "median"), mean_ape=("ape", "mean"),
        knobs_ape=("knobs_ape", "median"), roofline_ape=("roofline_ape", "median"),
        noise=("noise", "median"), coverage=("coverage", "mean"),
    ).reset_index()  # fmt: skip
    out["share"] = [shares.get(op, 0.0) for op in out["op"]]
    return FitReport(out, held_out, rows, {})
