"""What any model of op times must beat, given the same rows: those measured on the new device and
those of all others.

    roofline        the datasheet's: max(F / P, B / BW)
    floor_and_rates floor + max(F / (e_P P), B / (e_B BW)): three numbers of the device, pulled
                    weakly to what they are elsewhere
    trees           gradient-boosted trees on log time, rows of the other devices and the new one
    residual_trees  the same on log(time / roofline)
    process         a Gaussian process on log(time / roofline), the new device's rows alone; none
                    without rows

Trees and process see all inputs that our own networks see, the roofline's parts, and trees the
datasheet's numbers. Axes: N rows.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.claims.scores import (
    OTHERS_ROWS,
    SEED,
    boosted_trees,
    fit_logs,
    own_copies,
    scikit_learn,
)
from hybridperf.learning.prior import FamilyRows

NAMES = ("roofline", "floor_and_rates", "trees", "residual_trees", "process")
_MOST_PROCESS_ROWS = 2500
_MOST_HYPER_ROWS = 300
_START = np.log([5e-6, 0.6, 0.7])
_RATES_SPREAD = np.array([1.5, 0.7, 0.7])

TimedRows = tuple[FamilyRows, np.ndarray]  # and their seconds
Predicts = Callable[[FamilyRows], np.ndarray]  # logs of seconds [N]


def fit_all(
    others: Sequence[TimedRows],
    own: TimedRows | None,
    only: Sequence[str] = NAMES,
    rates: np.ndarray | None = None,
) -> dict[str, Predicts]:
    """Every baseline that these rows allow; `own` is None where nothing was measured there.

    `rates`: `usual_rates` of the others, where they are known.
    """
    rates = usual_rates(others) if rates is None else rates
    out: dict[str, Predicts] = {
        "roofline": log_roofline,
        "floor_and_rates": floor_and_rates(rates, own),
    }
    for name, on_residual in (("trees", False), ("residual_trees", True)):
        if name in only:
            out[name] = trees(others, own, on_residual)
    if own is not None and "process" in only:
        out["process"] = gaussian_process(own)
    return out


def log_roofline(rows: FamilyRows) -> np.ndarray:
    """log of max(F / P, B / BW)."""
    return rows.log_roofline_s()


def usual_rates(others: Sequence[TimedRows]) -> np.ndarray:
    """[3] medians of the other devices' logs of floor and efficiencies."""
    found = [_fit_rates(rows, _START) for rows in others]
    return np.asarray(np.median(found, 0)) if found else _START


def floor_and_rates(usual: np.ndarray, own: TimedRows | None) -> Predicts:
    """Least squares of logs, pulled to usual numbers; without rows these."""
    theta = usual if own is None else _fit_rates(own, usual)
    return lambda rows: _rates(theta, rows.in_waves().work())


def _rates(theta: np.ndarray, log_work: np.ndarray) -> np.ndarray:
    compute, memory = log_work[:, 0] - theta[1], log_work[:, 1] - theta[2]
    return np.asarray(np.logaddexp(theta[0], np.maximum(compute, memory)))


def _fit_rates(data: TimedRows, pulled_to: np.ndarray) -> np.ndarray:
    log_work = data[0].in_waves().work()
    return fit_logs(
        lambda theta: _rates(theta, log_work), np.log(data[1]), pulled_to, _RATES_SPREAD
    )


def trees(others: Sequence[TimedRows], own: TimedRows | None, on_residual: bool) -> Predicts:
    """Boosted trees on rows of all devices."""
    boosting = boosted_trees()
    random = np.random.default_rng(SEED)
    parts = [_some(rows, random, OTHERS_ROWS) for rows in others]
    if own is not None:
        typical = float(np.mean([len(time_s) for _, time_s in parts])) if parts else 1.0
        parts.extend([own] * own_copies(typical, len(own[1])))
    names = tuple(dict.fromkeys(name for rows, _ in parts for name in rows.inputs.names))

    def offset(rows: FamilyRows) -> np.ndarray | float:
        return log_roofline(rows) if on_residual else 0.0

    x = np.concatenate([_tree_inputs(rows, names) for rows, _ in parts])
    boosting.fit(x, np.concatenate([np.log(time_s) - offset(rows) for rows, time_s in parts]))
    return lambda rows: boosting.predict(_tree_inputs(rows, names)) + offset(rows)


def _some(rows: TimedRows, random: np.random.Generator, most: int) -> TimedRows:
    keep = random.permutation(len(rows[1]))[:most]
    return rows[0].rows(keep), rows[1][keep]


def _tree_inputs(rows: FamilyRows, names: tuple[str, ...]) -> np.ndarray:
    datasheet = (rows.peak_flops_per_s, rows.memory_bytes_per_s, rows.sm_count)
    facts = [np.log(np.broadcast_to(fact, (len(rows),))) for fact in datasheet]
    return np.concatenate([_inputs(rows, names), np.stack(facts, 1)], 1)


def _inputs(rows: FamilyRows, names: tuple[str, ...]) -> np.ndarray:
    """Inputs of our networks, then where an op lies on the roofline [N, 5]: its three terms, the
    higher one of two, and how far they lie apart.
    """
    log_work = np.maximum(rows.work(), np.log(1e-12))
    higher = log_work[:, :2].max(1, keepdims=True)
    apart = log_work[:, :1] - log_work[:, 1:2]
    return np.concatenate([rows.inputs.select(names), log_work, higher, apart], 1)


def gaussian_process(own: TimedRows) -> Predicts:
    """Matern 3/2 of one length, a linear part and noise over standardised inputs; hyper-parameters
    by likelihood of up to 300 rows.
    """
    module = scikit_learn("gaussian_process")
    kernels = module.kernels
    rows, time_s = _some(own, np.random.default_rng(SEED), _MOST_PROCESS_ROWS)
    names = rows.inputs.names
    raw = _inputs(rows, names)
    centre, scale = raw.mean(0), raw.std(0)
    used = scale > 1e-9
    target = np.log(time_s) - log_roofline(rows)
    middle = float(target.mean())

    def inputs(some: FamilyRows) -> np.ndarray:
        return np.clip((_inputs(some, names)[:, used] - centre[used]) / scale[used], -5.0, 5.0)

    x = inputs(rows)
    dimensions = max(x.shape[1], 1)
    lengths = 0.05 * dimensions**0.5, 50 * dimensions**0.5
    kernel = (
        kernels.ConstantKernel(0.1, (1e-4, 1e2)) * kernels.Matern(dimensions**0.5, lengths, nu=1.5)
        + kernels.ConstantKernel(0.01 / dimensions, (1e-6, 1e1)) * kernels.DotProduct(1.0, "fixed")
        + kernels.WhiteKernel(1e-2, (1e-5, 1.0))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hyper-parameter may lie at its bound
        few = slice(0, _MOST_HYPER_ROWS)
        fitted = module.GaussianProcessRegressor(kernel, random_state=SEED)
        fitted = fitted.fit(x[few], target[few] - middle)
        whole = module.GaussianProcessRegressor(fitted.kernel_, optimizer=None)
        whole = whole.fit(x, target - middle)
    return lambda some: whole.predict(inputs(some)) + middle + log_roofline(some)
