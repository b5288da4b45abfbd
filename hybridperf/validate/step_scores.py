"""How predictions of training steps err: one line for a set of rows, baselines next to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.report import text
from hybridperf.validate.scores import Scores, mean, scores

# a row so many times slower than predicted belongs to the slow branch (`steps/cross_node.py`)
SLOW = 1.7


@dataclasses.dataclass(frozen=True)
class StepScores:
    """Errors of a set of rows, with and without the slow ones."""

    all: Scores
    fast_mape: float  # of rows that are not slower than predicted by SLOW
    slow_rows: int


def step_scores(frame: pd.DataFrame, baselines: Sequence[str] = ()) -> StepScores:
    """Of rows with `step_time_s`, `predicted_s`, `low_s`, `high_s` and a column per baseline."""
    measured_s = frame["step_time_s"].to_numpy(float)
    predicted_s = frame["predicted_s"].to_numpy(float)
    error, slow = np.abs(predicted_s / measured_s - 1), measured_s > SLOW * predicted_s
    low_s, high_s = frame.get("low_s"), frame.get("high_s")
    others = {name: frame[name] for name in baselines if name in frame}
    found = scores(measured_s, predicted_s, low_s, high_s, others)
    return StepScores(found, mean(error[~slow]), int(slow.sum()))


def mean_of(parts: Sequence[StepScores]) -> StepScores:
    """The mean over draws of the same split."""
    names = parts[0].all.baselines
    fields = ("mape", "median", "bias", "pearson", "coverage", "half_width")
    means = {
        field: float(np.mean([getattr(part.all, field) for part in parts])) for field in fields
    }
    others = {name: float(np.mean([part.all.baselines[name] for part in parts])) for name in names}
    return StepScores(
        Scores(parts[0].all.rows, **means, baselines=others),
        float(np.mean([part.fast_mape for part in parts])),
        round(np.mean([part.slow_rows for part in parts])),
    )


def line(
    name: str,
    found: StepScores,
    baselines: Sequence[str],
    goal: float | None = None,
    remark: str = "",
) -> list[str]:
    """A row of the table that `headers` heads."""
    slow = f"{found.slow_rows}: {text.percent(found.fast_mape)} without" if found.slow_rows else ""
    errors = found.all
    others = (errors.baselines.get(one, np.nan) for one in baselines)
    percents = [errors.mape, errors.median, errors.bias, errors.coverage, *others]
    cells = ["" if np.isnan(value) else text.percent(value) for value in percents]
    reached = "" if goal is None else reached_text(goal, errors.mape <= goal)
    return [name, str(errors.rows), *cells, reached, slow, remark]


def reached_text(goal: float, reached: bool) -> str:
    return f"{text.percent(goal)} {'yes' if reached else 'NO'}"


def headers(baselines: Sequence[str]) -> list[str]:
    """Of `line`."""
    errors = ["MAPE", "median", "bias", "in interval", *baselines]
    return ["", "rows", *errors, "goal", "slower than 1.7 x", ""]
