"""How far predictions lie from measured times: the one score of all claims, and what their
baselines share. Every claim gives these the same rows as our model.

device_baselines      ops of a device: roofline, three numbers, trees, a Gaussian process
collective_baselines  collectives of a system: alpha-beta, ring and tree, interpolation, trees
step_splits           training steps: a constant share of the peak, trees
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from hybridperf.io import InputError
from hybridperf.model.fit.device import COVERAGE
from hybridperf.report.fits import binomial_band

SEED = 0  # of every draw and tree
COLUMN = "null_"  # what the columns of baselines in written tables begin with
OTHERS_ROWS = 2000  # of each other device or system: more no longer help
_OWN_COPIES = 10  # most copies of a row of one's own, while it has fewer rows than the others
_LOSS_SCALE = 0.25


@dataclasses.dataclass(frozen=True)
class Scores:
    """Errors of a set of rows; shares, not percent. NaN where nothing is known."""

    rows: int
    mape: float  # mean of |predicted / measured - 1|
    median: float
    bias: float  # mean of log(predicted / measured)
    pearson: float  # correlation of the logs
    coverage: float  # share of rows inside their interval
    half_width: float  # median over rows of sqrt(high / low) - 1
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)  # MAPE of each
    medians: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of their errors


def scores(
    measured_s: Any,
    predicted_s: Any,
    low_s: Any = None,
    high_s: Any = None,
    baselines: Mapping[str, Any] | None = None,
) -> Scores:
    """Score predicted seconds [N]; intervals and seconds of baselines where there are any."""
    measured, predicted = np.asarray(measured_s, float), np.asarray(predicted_s, float)
    error = np.abs(predicted / measured - 1)
    inside = width = np.zeros(0)
    if low_s is not None and high_s is not None:
        low, high = np.asarray(low_s, float), np.asarray(high_s, float)
        known = ~np.isnan(low)
        inside = ((low <= measured) & (measured <= high))[known]
        width = np.sqrt(high[known] / low[known]) - 1
    others = {
        name: np.abs(np.asarray(values, float) / measured - 1)
        for name, values in (baselines or {}).items()
    }
    return Scores(
        rows=len(measured),
        mape=mean(error),
        median=median(error),
        bias=mean(np.log(predicted / measured)),
        pearson=pearson_of_logs(measured, predicted),
        coverage=mean(inside),
        half_width=median(width),
        baselines={name: mean(each) for name, each in others.items()},
        medians={name: median(each) for name, each in others.items()},
    )


def mean_of(draws: Sequence[Scores]) -> Scores:
    """Means over draws of the same split."""

    def means(of_draws: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {name: float(np.mean([draw[name] for draw in of_draws])) for name in of_draws[0]}

    every = [dataclasses.asdict(draw) for draw in draws]
    baselines = means([draw.pop("baselines") for draw in every])
    medians = means([draw.pop("medians") for draw in every])
    found = Scores(**means(every), baselines=baselines, medians=medians)
    return dataclasses.replace(found, rows=draws[0].rows)


def pearson_of_logs(measured_s: np.ndarray, predicted_s: np.ndarray) -> float:
    """Pearson's r of log seconds; NaN of fewer than two rows or where all are equal."""
    if len(measured_s) < 2 or np.ptp(measured_s) == 0 or np.ptp(predicted_s) == 0:
        return float("nan")
    return float(np.corrcoef(np.log(measured_s), np.log(predicted_s))[0, 1])


def mape(predicted: Any, measured: Any) -> float:
    """Mean absolute percentage error as a share."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))


def mean(values: np.ndarray) -> float:
    """NaN of none."""
    return float(np.mean(values)) if len(values) else np.nan


def median(values: np.ndarray) -> float:
    """NaN of none."""
    return float(np.median(values)) if len(values) else np.nan


def finite(value: float) -> float | None:
    """A number as JSON takes it."""
    return float(value) if np.isfinite(value) else None


def excess(
    ours: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    random: np.random.Generator,
    resamples: int,
) -> tuple[float, float]:
    """95 % bootstrap interval over rows of our median error minus a baseline's, mean over draws."""
    apart = np.zeros(resamples)
    for mine, other in zip(ours, baseline, strict=True):
        drawn = random.integers(0, len(mine), (resamples, len(mine)))
        apart += (np.median(mine[drawn], axis=1) - np.median(other[drawn], axis=1)) / len(ours)
    return float(np.quantile(apart, 0.025)), float(np.quantile(apart, 0.975))


def coverage_band(rows: int) -> tuple[float, float]:
    """Shares of rows between which coverage of 90 % stays by chance, 99 times of 100."""
    low, high = binomial_band(rows, COVERAGE) if rows else (np.nan, np.nan)
    return low / max(rows, 1), high / max(rows, 1)


def scikit_learn(part: str) -> Any:
    """A module of scikit-learn; `InputError` where it is not installed."""
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        remedy = "pip install 'hybridperf[validate]'"
        raise InputError(f"baselines need scikit-learn; {remedy}") from error


def boosted_trees(leaves: int = 31, *, outcome: bool = False, **options: Any) -> Any:
    """Untrained gradient-boosted trees of seconds, or of an outcome that is true or false."""
    module = scikit_learn("ensemble")
    kind = "HistGradientBoostingClassifier" if outcome else "HistGradientBoostingRegressor"
    return getattr(module, kind)(
        max_iter=200, learning_rate=0.1, max_leaf_nodes=leaves, min_samples_leaf=5,
        l2_regularization=1.0, early_stopping=False, random_state=SEED, **options,
    )  # fmt: skip


def own_copies(typical: float, own: int) -> int:
    """How often trees see each own row, so that others' rows do not drown them.

    Copies, not weights, by which scikit-learn bins ten times as slowly.
    """
    return int(np.clip(typical / own, 1, _OWN_COPIES))


def fit_logs(
    formula: Callable[[np.ndarray], np.ndarray],
    log_time: np.ndarray,
    pulled_to: np.ndarray,
    spread: np.ndarray,
) -> np.ndarray:
    """Numbers by robust least squares of log seconds, pulled to `pulled_to` within `spread`."""

    def residuals(theta: np.ndarray) -> np.ndarray:
        data = (formula(theta) - log_time) / _LOSS_SCALE
        return np.concatenate([data, (theta - pulled_to) / spread])

    return np.asarray(least_squares(residuals, pulled_to, loss="soft_l1", max_nfev=100).x)


def best_factor(ratio: np.ndarray) -> float:
    """The f that errs least in the mean of |f / ratio - 1|; `ratio` is measured over predicted.

    |f / r - 1| = (1 / r) |f - r|: the median of the ratios with weights 1 / r.
    """
    order = np.argsort(ratio)
    reached = np.cumsum((1 / ratio)[order])
    return float(ratio[order][np.searchsorted(reached, reached[-1] / 2)])


def by_the_others(works: Sequence[Any], measured_s: Any) -> np.ndarray | None:
    """Seconds of each step [N] by one constant of all *other* steps: seconds per unit of its work.

    Args:
        works: sizes of the steps' work [N] each, above zero; where there are several, that one
            counts which, times its constant, fits the others best.
        measured_s: seconds of the steps [N].

    Returns:
        None where there are no others.
    """
    measured = np.asarray(measured_s, np.float64)
    if len(measured) < 2:
        return None
    sizes = [np.asarray(work, np.float64) for work in works]
    seconds = np.empty(len(measured))
    for at in range(len(measured)):
        tried = []
        for size in sizes:
            ratio = np.delete(measured / size, at)
            factor = best_factor(ratio)
            tried.append((mape(factor, ratio), factor * size[at]))
        seconds[at] = min(tried, key=lambda one: one[0])[1]
    return seconds


def best(medians: Mapping[str, float]) -> str:
    """The name of the baseline with the least error."""
    return min(medians, key=lambda name: medians[name])
