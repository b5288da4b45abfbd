"""How far predictions lie from measured times, and a baseline that needs no model: one constant."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


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


def pearson_of_logs(measured_s: np.ndarray, predicted_s: np.ndarray) -> float:
    """Pearson's r of log seconds; NaN of fewer than two rows or where all are equal."""
    if len(measured_s) < 2 or np.ptp(measured_s) == 0 or np.ptp(predicted_s) == 0:
        return float("nan")
    return float(np.corrcoef(np.log(measured_s), np.log(predicted_s))[0, 1])


def mape(predicted: Any, measured: Any) -> float:
    """Mean absolute percentage error as a share."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))


def mean(values: np.ndarray) -> float:
    """Mean of an array, NaN of an empty one."""
    return float(np.mean(values)) if len(values) else np.nan


def median(values: np.ndarray) -> float:
    """Median of an array, NaN of an empty one."""
    return float(np.median(values)) if len(values) else np.nan


def finite(value: float) -> float | None:
    """A number as JSON takes it."""
    return float(value) if np.isfinite(value) else None


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
