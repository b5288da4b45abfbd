"""What any model of op times must beat, each given the same rows: the measured ones of the new
device and those of all others.

    roofline        the datasheet's: max(F / P, B / BW)
    floor_and_rates floor + max(F / (e_P P), B / (e_B BW)): three numbers of the device, pulled
    weakly to what they are elsewhere
    trees           gradient-boosted trees on log time, on the rows of the other devices and the new
                    one's
    residual_trees  the same on log(time / roofline)
    process         a Gaussian process on log(time / roofline), the new device's rows alone; none
                    without rows

Trees and process see all inputs that our own networks see, the roofline's parts, and trees the
datasheet's numbers. Axes: N rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from hybridperf.io import InputError
from hybridperf.learning.prior import FamilyRows

NAMES = ("roofline", "floor_and_rates", "trees", "residual_trees", "process")
OTHERS_ROWS = 2000  # of each other device: more no longer help the trees
_OWN_COPIES = (
    10  # a row of the device itself stands there so often, while it has fewer rows than the others
)
_TREES = {
    "max_iter": 200,
    "learning_rate": 0.1,
    "max_leaf_nodes": 31,
    "min_samples_leaf": 5,
    "l2_regularization": 1.0,
}
_MOST_PROCESS_ROWS = 2500
_MOST_HYPER_ROWS = 300
_START = np.log([5e-6, 0.6, 0.7])
_RATES_SPREAD = np.array([1.5, 0.7, 0.7])
_LOSS_SCALE = 0.25

Rows = tuple[FamilyRows, np.ndarray]  # and their seconds
Predicts = Callable[[FamilyRows], np.ndarray]  # logs of seconds [N]


def fit_all(
    others: Sequence[Rows], own: Rows | None, seed: int = 0, only: Sequence[str] = NAMES
) -> dict[str, Predicts]:
    """Every null model that these rows allow; `own` is None where nothing was measured on the
    device.
    """
    out: dict[str, Predicts] = {
        "roofline": log_roofline,
        "floor_and_rates": floor_and_rates(others, own),
    }
    for name, on_residual in (("trees", False), ("residual_trees", True)):
        if name in only:
            out[name] = trees(others, own, seed, on_residual)
    if own is not None and "process" in only:
        out["process"] = gaussian_process(own, seed)
    return out


def log_roofline(rows: FamilyRows) -> np.ndarray:
    """log of max(F / P, B / BW)."""
    return np.asarray(rows.work()[:, :2].max(1))


# --- floor and two rates --------------------------------------------------------------------------


def floor_and_rates(others: Sequence[Rows], own: Rows | None) -> Predicts:
    """Least squares of logs; without rows the median of the other devices' numbers."""
    usual = np.median([_fit_rates(rows, _START) for rows in others], 0) if others else _START
    theta = usual if own is None else _fit_rates(own, usual)
    return lambda rows: _rates(theta, rows.work())


def _rates(theta: np.ndarray, log_work: np.ndarray) -> np.ndarray:
    return np.asarray(
        np.logaddexp(theta[0], np.maximum(log_work[:, 0] - theta[1], log_work[:, 1] - theta[2]))
    )


def _fit_rates(data: Rows, pulled_to: np.ndarray) -> np.ndarray:
    log_work, log_time = data[0].work(), np.log(data[1])

    def residuals(theta: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [
                (_rates(theta, log_work) - log_time) / _LOSS_SCALE,
                (theta - pulled_to) / _RATES_SPREAD,
            ]
        )

    return np.asarray(least_squares(residuals, pulled_to, loss="soft_l1", max_nfev=100).x)


# --- trees ----------------------------------------------------------------------------------------


def trees(others: Sequence[Rows], own: Rows | None, seed: int, on_residual: bool) -> Predicts:
    """Boosted trees on rows of all devices."""
    boosting = _sklearn("ensemble").HistGradientBoostingRegressor(
        **_TREES, early_stopping=False, random_state=seed
    )
    random = np.random.default_rng(seed)
    parts = [_thinned(rows, time_s, random) for rows, time_s in others]
    if own is not None:
        typical = np.mean([len(time_s) for _, time_s in parts]) if parts else 1.0
        copies = int(
            np.clip(typical / len(own[1]), 1, _OWN_COPIES)
        )  # not weights, which sklearn bins by ten times as slowly
        parts.extend([own] * copies)
    names = tuple(dict.fromkeys(name for rows, _ in parts for name in rows.inputs.names))
    x = np.concatenate([_tree_inputs(rows, names) for rows, _ in parts])
    target = np.concatenate(
        [np.log(time_s) - (log_roofline(rows) if on_residual else 0.0) for rows, time_s in parts]
    )
    boosting.fit(x, target)
    return lambda rows: (
        boosting.predict(_tree_inputs(rows, names)) + (log_roofline(rows) if on_residual else 0.0)
    )


def _thinned(rows: FamilyRows, time_s: np.ndarray, random: np.random.Generator) -> Rows:
    keep = random.permutation(len(time_s))[:OTHERS_ROWS]
    return rows.rows(keep), time_s[keep]


def _tree_inputs(rows: FamilyRows, names: tuple[str, ...]) -> np.ndarray:
    facts = [
        np.log(np.broadcast_to(fact, (len(rows),)))
        for fact in (rows.peak_flops_per_s, rows.memory_bytes_per_s, rows.sm_count)
    ]
    return np.concatenate([rows.inputs.select(names), _parts(rows), np.stack(facts, 1)], 1)


def _parts(rows: FamilyRows) -> np.ndarray:
    """Where an op lies on the roofline [N, 5]: its three terms, the higher one of two, and how far
    they lie apart.
    """
    log_work = np.maximum(rows.work(), np.log(1e-12))
    return np.concatenate(
        [log_work, log_work[:, :2].max(1, keepdims=True), log_work[:, :1] - log_work[:, 1:2]], 1
    )


# --- a process on the device's own rows -----------------------------------------------------------


def gaussian_process(own: Rows, seed: int) -> Predicts:
    """Matern 3/2 of one length, a linear part and noise over standardised inputs; hyper-parameters
    by likelihood of up to 300 rows.
    """
    module = _sklearn("gaussian_process")
    kernels = module.kernels
    rows, time_s = _process_rows(own, seed)
    names = rows.inputs.names
    raw = _process_inputs(rows, names)
    centre, scale = raw.mean(0), raw.std(0)
    used = scale > 1e-9
    target = np.log(time_s) - log_roofline(rows)
    middle = float(target.mean())

    def inputs(some: FamilyRows) -> np.ndarray:
        return np.clip(
            (_process_inputs(some, names)[:, used] - centre[used]) / scale[used], -5.0, 5.0
        )

    x = inputs(rows)
    dimensions = max(x.shape[1], 1)
    kernel = (
        kernels.ConstantKernel(0.1, (1e-4, 1e2))
        * kernels.Matern(dimensions**0.5, (0.05 * dimensions**0.5, 50 * dimensions**0.5), nu=1.5)
        + kernels.ConstantKernel(0.01 / dimensions, (1e-6, 1e1)) * kernels.DotProduct(1.0, "fixed")
        + kernels.WhiteKernel(1e-2, (1e-5, 1.0))
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a hyper-parameter at its bound is no concern of the reader
        few = slice(0, _MOST_HYPER_ROWS)
        fitted = module.GaussianProcessRegressor(kernel, random_state=seed).fit(
            x[few], target[few] - middle
        )
        whole = module.GaussianProcessRegressor(fitted.kernel_, optimizer=None).fit(
            x, target - middle
        )
    return lambda some: whole.predict(inputs(some)) + middle + log_roofline(some)


def _process_rows(own: Rows, seed: int) -> Rows:
    keep = np.random.default_rng(seed).permutation(len(own[1]))[:_MOST_PROCESS_ROWS]
    return own[0].rows(keep), own[1][keep]


def _process_inputs(rows: FamilyRows, names: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([rows.inputs.select(names), _parts(rows)], 1)


def _sklearn(part: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        raise InputError(
            "null models need scikit-learn; pip install 'hybridperf[validate]'"
        ) from error


def best(medians: Mapping[str, float]) -> str:
    """The name of the null model with the least error."""
    return min(medians, key=lambda name: medians[name])
