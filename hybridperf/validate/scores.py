"""How far predictions lie from measured times: the one score of all claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.model.fit.device import COVERAGE
from hybridperf.report.fits import binomial_band

# a step so many times slower than predicted belongs to the slow branch (`steps/cross_node.py`)
SLOW = 1.7


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
    slow: int  # rows slower than predicted by SLOW
    fast_mape: float  # of the other rows
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)  # MAPE of each


def scores(
    measured_s: Any,
    predicted_s: Any,
    low_s: Any = None,
    high_s: Any = None,
    baselines: Mapping[str, Any] | None = None,
) -> Scores:
    """Score predicted seconds [N]; intervals and seconds of baselines where there are any."""
    measured, predicted = np.asarray(measured_s, float), np.asarray(predicted_s, float)
    error, slow = np.abs(predicted / measured - 1), measured > SLOW * predicted
    inside = width = np.zeros(0)
    if low_s is not None and high_s is not None:
        low, high = np.asarray(low_s, float), np.asarray(high_s, float)
        known = ~np.isnan(low)
        inside = ((low <= measured) & (measured <= high))[known]
        width = np.sqrt(high[known] / low[known]) - 1
    others = {name: np.asarray(values, float) for name, values in (baselines or {}).items()}
    return Scores(
        rows=len(measured),
        mape=mean(error),
        median=float(np.median(error)) if len(error) else np.nan,
        bias=mean(np.log(predicted / measured)),
        pearson=pearson_of_logs(measured, predicted),
        coverage=mean(inside),
        half_width=float(np.median(width)) if len(width) else np.nan,
        slow=int(slow.sum()),
        fast_mape=mean(error[~slow]),
        baselines={name: mean(np.abs(value / measured - 1)) for name, value in others.items()},
    )


def mean_of(draws: Sequence[Scores]) -> Scores:
    """Means over draws of the same split."""

    def means(of_draws: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {name: float(np.mean([draw[name] for draw in of_draws])) for name in of_draws[0]}

    every = [dataclasses.asdict(draw) for draw in draws]
    baselines = means([draw.pop("baselines") for draw in every])
    found = Scores(**means(every), baselines=baselines)
    return dataclasses.replace(found, rows=draws[0].rows, slow=round(found.slow))


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
