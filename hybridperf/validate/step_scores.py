"""How predictions of training steps err: one line for a set of rows, with both null models beside
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.report import text

# a row so many times slower than predicted belongs to the slow branch (`steps/cross_node.py`)
SLOW = 1.7


@dataclasses.dataclass(frozen=True)
class Scores:
    """Errors of a set of rows; shares, not percent."""

    rows: int
    mape: float
    median: float
    bias: float  # mean of log(predicted / measured)
    coverage: float  # share inside the interval; NaN without one
    fast_mape: float  # of rows that are not slower than predicted by SLOW
    slow_rows: int
    nulls: Mapping[str, float]  # mean error of each


def scores(frame: pd.DataFrame, nulls: Sequence[str] = ()) -> Scores:
    """Of rows with `step_time_s`, `predicted_s`, `low_s`, `high_s` and a column of seconds for each
    null model.
    """
    measured_s, predicted_s = (
        frame["step_time_s"].to_numpy(float),
        frame["predicted_s"].to_numpy(float),
    )
    error = np.abs(predicted_s / measured_s - 1)
    slow = measured_s > SLOW * predicted_s
    inside = np.full(len(frame), np.nan)
    if {"low_s", "high_s"} <= set(frame):
        low_s, high_s = frame["low_s"].to_numpy(float), frame["high_s"].to_numpy(float)
        inside = np.where(np.isnan(low_s), np.nan, (low_s <= measured_s) & (measured_s <= high_s))
    return Scores(
        rows=len(frame),
        mape=_mean(error),
        median=float(np.median(error)) if len(error) else np.nan,
        bias=_mean(np.log(predicted_s / measured_s)),
        coverage=_mean(inside[~np.isnan(inside)]),
        fast_mape=_mean(error[~slow]),
        slow_rows=int(slow.sum()),
        nulls={
            name: _mean(np.abs(frame[name].to_numpy(float) / measured_s - 1))
            for name in nulls
            if name in frame
        },
    )


def mean_of(parts: Sequence[Scores]) -> Scores:
    """The mean over draws of the same split."""
    names = parts[0].nulls
    means = {
        field: float(np.mean([getattr(part, field) for part in parts]))
        for field in ("mape", "median", "bias", "coverage", "fast_mape")
    }
    return Scores(
        rows=parts[0].rows, slow_rows=round(np.mean([part.slow_rows for part in parts])),
        nulls={name: float(np.mean([part.nulls[name] for part in parts])) for name in names},
        **means,
    )  # fmt: skip


def line(
    name: str, found: Scores, nulls: Sequence[str], goal: float | None = None, said: str = ""
) -> list[str]:
    """A row of the table that `HEADERS` heads."""
    slow = f"{found.slow_rows}: {text.percent(found.fast_mape)} without" if found.slow_rows else ""
    reached = (
        "" if goal is None else f"{text.percent(goal)} {'yes' if found.mape <= goal else 'NO'}"
    )
    percents = [
        found.mape,
        found.median,
        found.bias,
        found.coverage,
        *(found.nulls.get(null, np.nan) for null in nulls),
    ]
    return [
        name,
        str(found.rows),
        *("" if np.isnan(value) else text.percent(value) for value in percents),
        reached,
        slow,
        said,
    ]


def headers(nulls: Sequence[str]) -> list[str]:
    """Of `line`."""
    return [
        "",
        "rows",
        "MAPE",
        "median",
        "bias",
        "in interval",
        *nulls,
        "goal",
        "slower than 1.7 x",
        "",
    ]


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else np.nan
