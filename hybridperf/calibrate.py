"""Measured rows -> knobs: robust least squares in the log of time, each knob pulled towards what devices usually show.

With t(theta) the calibrated form of `roofline.py`, over all rows i of all groups at once (memory levels are shared by the groups),

    minimise   sum_i  huber( log t_i(theta) - log measured_i ; 0.1 )  +  sum_j ((theta_j - prior_j) / width_j)^2

theta holds logs of positive knobs, so nothing leaves its range, and a knob that no row speaks of stays at its prior. Errors of
10 % count in full, larger ones linearly: a handful of disturbed measurements does not bend the fit.

The interval of a group is the 0.9 quantile, with the finite-sample rank of split-conformal prediction, of the absolute log errors that
each fifth of its rows has under the fit to the other four fifths. Groups of fewer than 20 rows share one quantile over them all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.hardware import LEVELS, MEMORY, DeviceSpec, load_device
from hybridperf.io import InputError, positive_column, require_columns
from hybridperf.model import (
    GROUP_KNOBS,
    GroupReport,
    OpTable,
    PerfModel,
    Platform,
    canonical,
    durations,
    neutral_knobs,
    op_table,
)  # fmt: skip
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops
from hybridperf.roofline import Knobs, Work

LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly
FOLDS = 5
COVERAGE = 0.9
LEAST_ROWS_FOR_INTERVAL = 20
ROWS_PER_GROUP = 3000  # more rows of one group are thinned evenly over their times: five knobs need no more

# Prior of log knobs: (median, width in log). Wide where devices differ by orders of magnitude, narrow where they do not.
_PRIOR = {
    "floor_s": (2e-6, 1.5),
    "compute_efficiency": (0.6, 0.7),
    "memory_efficiency": (0.7, 0.4),
    "transcendental_flops": (15.0, 1.0),
    "strided_factor": (1.0, 0.7),
    "step_s": (1e-10, 2.5),
    "smoothing": (0.7, 2.0),
}
# Seconds of one step, where a step is more than a loop iteration.
_STEP_PRIOR = {
    "batched_gemm": 5e-8, "batched_gemm_transposed": 3e-7, "gather": 2e-8, "pooled_gather": 2e-8, "scatter_add": 2e-8,
    "allocation": 5e-7, "call": 1e-6, "loop_trip": 1e-7, "norm": 1e-8, "softmax": 1e-8,
}  # fmt: skip
# Cost of a strided read over a plain loop's: the next row of a table is nowhere a prefetcher would look.
_STRIDED_FACTOR_PRIOR = {"gather": (5.0, 1.2), "pooled_gather": (5.0, 1.2), "scatter_add": (5.0, 1.2)}
_LEVEL_GAIN = {"l1": 1.5, "l2": 2.0, "l3": 2.0}  # bandwidth of a cache over the next level's
_LEVEL_GAIN_WIDTH = 0.7
_LINE_PRIOR_S = {"l1": 3e-10, "l2": 1.5e-9, "l3": 8e-9, "memory": 2e-8}
_LINE_WIDTH = 1.0


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

    knobs = _fit_knobs(table, measured, device)
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


# --- knobs as one vector of logs ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Parameters:
    """Where each knob of the groups at hand stands in the vector theta."""

    groups: tuple[int, ...]
    levels: tuple[int, ...]  # memory levels this device has

    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """(means, widths) of theta."""
        means, widths = [], []
        for name in GROUP_KNOBS:
            for group in self.groups:
                median, width = _PRIOR[name]
                if name == "step_s":
                    median = _STEP_PRIOR.get(GROUPS[group], median)
                if name == "strided_factor":
                    median, width = _STRIDED_FACTOR_PRIOR.get(GROUPS[group], (median, width))
                means.append(_to_unbounded(name, median))
                widths.append(width)
        for level in self.levels:
            if level != MEMORY:
                means.append(math.log(_LEVEL_GAIN[LEVELS[level]] - 1))
                widths.append(_LEVEL_GAIN_WIDTH)
        for level in self.levels:
            means.append(math.log(_LINE_PRIOR_S[LEVELS[level]]))
            widths.append(_LINE_WIDTH)
        return np.array(means), np.array(widths)

    def knobs(self, theta: Any, *, bare: frozenset[int]) -> Knobs:
        """Knobs [G], [L] from theta. `bare` groups have no separate step cost: every row has the same number of steps."""
        neutral = neutral_knobs()
        at = jnp.asarray(self.groups)
        n, values = len(self.groups), {}
        has_steps = jnp.asarray([0.0 if g in bare else 1.0 for g in self.groups])
        for i, name in enumerate(GROUP_KNOBS):
            block = theta[i * n : (i + 1) * n]
            fitted = jax.nn.sigmoid(block) if name == "smoothing" else jnp.exp(block)
            if name == "step_s":
                fitted = fitted * has_steps
            values[name] = jnp.asarray(getattr(neutral, name)).at[at].set(fitted)
        rest = theta[len(GROUP_KNOBS) * n :]
        speedup, line = [], []
        caches = [level for level in self.levels if level != MEMORY]
        gains = {level: 1.0 + jnp.exp(rest[i]) for i, level in enumerate(caches)}
        lines = {level: jnp.exp(rest[len(caches) + i]) for i, level in enumerate(self.levels)}
        fastest = jnp.asarray(1.0)
        for level in reversed(range(len(LEVELS))):  # each cache is faster than the level behind it
            fastest = fastest * gains.get(level, 1.0)
            speedup.append(fastest)
            line.append(lines.get(level, jnp.asarray(0.0)))
        return Knobs(**values, level_speedup=jnp.stack(speedup[::-1]), line_s=jnp.stack(line[::-1]))


def _to_unbounded(name: str, value: float) -> float:
    return math.log(value / (1 - value)) if name == "smoothing" else math.log(value)


def _fit_knobs(table: OpTable, measured: np.ndarray, device: DeviceSpec) -> Knobs:
    thin = _thinned(table, measured)
    table, measured = jax.tree.map(lambda x: x[thin], table), measured[thin]
    levels = tuple(i for i, capacity in enumerate(device.level_bytes()) if capacity > 0)
    parameters = _Parameters(tuple(int(g) for g in np.unique(table.group)), levels)
    bare = frozenset(g for g in parameters.groups if np.ptp(table.work.steps[table.group == g]) == 0)
    means, widths = parameters.prior()
    residuals, jacobian = _problem(parameters, bare, device)
    with jax.enable_x64(True):  # float32 steps are too coarse for a least-squares solver's stopping rule
        data = (jnp.asarray(np.log(measured)), canonical(table), jnp.asarray(means), jnp.asarray(widths))
        found = least_squares(
            lambda theta: np.asarray(residuals(theta, *data)),
            means,
            jac=lambda theta: np.asarray(jacobian(theta, *data)),
            loss=_huber_data_only(len(measured)),
            max_nfev=60,
        )
        knobs = parameters.knobs(jnp.asarray(found.x), bare=bare)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), knobs)


def _problem(parameters: _Parameters, bare: frozenset[int], device: DeviceSpec) -> tuple[Any, Any]:
    """Residual vector (scaled log errors, then pulls to the prior) and its Jacobian, compiled."""

    def residuals(theta: Any, log_measured: Any, table: OpTable, means: Any, widths: Any) -> Any:
        platform = Platform(device.memory_bytes_per_s, 1.0, jnp.asarray(device.level_bytes()), parameters.knobs(theta, bare=bare))
        errors = (jnp.log(durations(table, platform)) - log_measured) / LOSS_SCALE
        return jnp.concatenate([errors, (theta - means) / widths])

    return jax.jit(residuals), jax.jit(jax.jacfwd(residuals))


def _huber_data_only(rows: int) -> Any:
    """SciPy loss callback: pseudo-Huber (soft l1) for the first `rows` residuals, plain squares for the prior's."""

    def loss(z: np.ndarray) -> np.ndarray:
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        root = np.sqrt(1 + z[:rows])
        rho[:, :rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    return loss


def _thinned(table: OpTable, measured: np.ndarray) -> np.ndarray:
    keep = []
    for group in np.unique(table.group):
        at = np.flatnonzero(table.group == group)
        by_time = at[np.argsort(measured[at], kind="stable")]
        keep.append(by_time[np.unique(np.linspace(0, len(at) - 1, min(len(at), ROWS_PER_GROUP)).astype(int))])
    return np.sort(np.concatenate(keep))


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
        knobs = _fit_knobs(jax.tree.map(lambda x, keep=train: x[keep], table), measured[train], device)
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
