"""What the baselines of all claims share; the score itself is `hybridperf.validate.scores`.

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
from hybridperf.validate.scores import Scores as Scores
from hybridperf.validate.scores import best_factor as best_factor
from hybridperf.validate.scores import by_the_others as by_the_others
from hybridperf.validate.scores import finite as finite
from hybridperf.validate.scores import mape as mape
from hybridperf.validate.scores import mean as mean
from hybridperf.validate.scores import median as median
from hybridperf.validate.scores import pearson_of_logs as pearson_of_logs
from hybridperf.validate.scores import scores as scores

SEED = 0  # of every draw and tree
COLUMN = "null_"  # what the columns of baselines in written tables begin with
OTHERS_ROWS = 2000  # of each other device or system: more no longer help
_OWN_COPIES = 10  # most copies of a row of one's own, while it has fewer rows than the others
_LOSS_SCALE = 0.25


def mean_of(draws: Sequence[Scores]) -> Scores:
    """Means over draws of the same split."""

    def means(of_draws: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {name: float(np.mean([draw[name] for draw in of_draws])) for name in of_draws[0]}

    every = [dataclasses.asdict(draw) for draw in draws]
    baselines = means([draw.pop("baselines") for draw in every])
    medians = means([draw.pop("medians") for draw in every])
    found = Scores(**means(every), baselines=baselines, medians=medians)
    return dataclasses.replace(found, rows=draws[0].rows)


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


def best(medians: Mapping[str, float]) -> str:
    """The name of the baseline with the least error."""
    return min(medians, key=lambda name: medians[name])
