"""What the baselines of all claims share: every claim gives them the same rows as our model.

device_baselines      ops of a device: roofline, three numbers, trees, a Gaussian process
collective_baselines  collectives of a system: alpha-beta, ring and tree, interpolation, trees
step_baselines        training steps: a constant share of the peak, trees
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from hybridperf.io import InputError

COLUMN = "null_"  # what the columns of baselines in written tables begin with
OTHERS_ROWS = 2000  # of each other device or system: more no longer help
_OWN_COPIES = 10  # most copies of a row of one's own, while it has fewer rows than the others
_LOSS_SCALE = 0.25


def scikit_learn(part: str) -> Any:
    """A module of scikit-learn; `InputError` where it is not installed."""
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        remedy = "pip install 'hybridperf[validate]'"
        raise InputError(f"baselines need scikit-learn; {remedy}") from error


def boosted_trees(seed: int, leaves: int = 31, *, outcome: bool = False, **options: Any) -> Any:
    """Untrained gradient-boosted trees of seconds, or of an outcome that is true or false."""
    module = scikit_learn("ensemble")
    kind = "HistGradientBoostingClassifier" if outcome else "HistGradientBoostingRegressor"
    return getattr(module, kind)(
        max_iter=200, learning_rate=0.1, max_leaf_nodes=leaves, min_samples_leaf=5,
        l2_regularization=1.0, early_stopping=False, random_state=seed, **options,
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


def best_factors(predicted_s: Sequence[float], measured_s: Sequence[float]) -> np.ndarray | None:
    """For each step [N] the factor that fits all others best; None where there are no others."""
    if len(measured_s) < 2:
        return None
    ratio = np.asarray(measured_s, np.float64) / np.asarray(predicted_s, np.float64)
    return np.array([best_factor(np.delete(ratio, at)) for at in range(len(ratio))])


def best(medians: Mapping[str, float]) -> str:
    """The name of the baseline with the least error."""
    return min(medians, key=lambda name: medians[name])
