"""Memory of training steps: gigabytes of runs that ended, and which runs ran out.

A run is expected to fail where its peak is above what the device can give, or where its layout
cannot run: fewer micro-batches than a pipeline needs to fill, or no layer for some stage. Beside it
memory alone, counts that nothing was fitted to, and trees that see sizes and layout, all on the
same split. Balanced accuracy: the mean of the shares of failures and of successes that are told.
Cells with both outcomes and layouts with more stages than layers are left out. Axes: N rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.report import text
from hybridperf.training.steps.failures import endings
from hybridperf.training.steps.memory_fit import USABLE, fit_memory, peak_bytes, will_fail
from hybridperf.training.steps.rows import ResolvedRows
from hybridperf.validate.step_nulls import null_rows
from hybridperf.validate.step_splits import CELL, FOLDS, folds_of
from hybridperf.workloads.memory import MemoryKnobs

GOAL_BALANCED, GOAL_MEMORY = 0.96, 0.10
_GIGABYTE = 1e9  # `mem_gb`: a fit in GiB would want 7 % more than the counted bytes per parameter
_TREES = {
    "max_iter": 200,
    "learning_rate": 0.1,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 5,
    "l2_regularization": 1.0,
}


@dataclasses.dataclass(frozen=True)
class Judged:
    """One split. Shares."""

    name: str
    peaks: int
    mape: float
    median: float
    counts_mape: float  # of counts that nothing was fitted to
    outcomes: int
    balanced: float
    memory_alone: float
    counts_balanced: float
    trees_balanced: float


def judge(frame: pd.DataFrame, resolved: ResolvedRows, folds: int = FOLDS) -> list[Judged]:
    """Rows of one sweep that says which runs failed (`status`) and what the others took (`mem_gb`):
    unseen cells, each model unseen.
    """
    some = resolved.predictable
    frame, rows = frame.iloc[some].reset_index(drop=True), [resolved.rows[at] for at in some]
    configs = [row.config for row in rows if row.config is not None]
    failed = endings(frame).ne("ok").to_numpy()
    peak = pd.to_numeric(frame["mem_gb"]).to_numpy() * _GIGABYTE
    clean = np.array([not row.flags for row in rows])
    capacity = np.array([row.machine.memory_bytes for row in rows if row.machine is not None])
    counted, seen, kept = (
        peak_bytes(configs, MemoryKnobs()),
        null_rows(rows).layout,
        _kept(frame, failed),
    )
    found = []
    for name, parts in _splits(frame, folds):
        needed, trees = np.full(len(frame), np.nan), np.zeros(len(frame), bool)
        for given, judged in parts:
            ran = np.flatnonzero(given & ~failed & clean & np.isfinite(peak))
            needed[judged] = peak_bytes(
                [configs[at] for at in np.flatnonzero(judged)],
                fit_memory([configs[at] for at in ran], peak[ran]),
            )
            trees[judged] = _trees(seen[given & kept], failed[given & kept], seen[judged])
        here = np.any([judged for _, judged in parts], axis=0)
        ended = here & ~failed & clean & np.isfinite(peak)
        error, counts_error = (np.abs(one[ended] / peak[ended] - 1) for one in (needed, counted))
        told = here & kept
        outcomes = [will_fail(configs, one, capacity) for one in (needed, counted)]
        alone = needed > USABLE * capacity
        scores = [
            balanced(failed[told], one[told]) for one in (outcomes[0], alone, outcomes[1], trees)
        ]
        found.append(
            Judged(
                name,
                int(ended.sum()),
                float(error.mean()),
                float(np.median(error)),
                float(counts_error.mean()),
                int(told.sum()),
                *scores,
            )
        )
    return found


def balanced(failed: np.ndarray, predicted: np.ndarray) -> float:
    """Balanced accuracy; NaN where one of both outcomes never happened."""
    if failed.all() or not failed.any():
        return float("nan")
    return float((predicted[failed].mean() + (~predicted[~failed]).mean()) / 2)


def table(found: list[Judged]) -> str:
    """One line for each split."""
    lines = [
        [
            one.name,
            str(one.peaks),
            text.percent(one.mape),
            text.percent(one.median),
            text.percent(one.counts_mape),
            _reached(one.mape, GOAL_MEMORY, one.mape <= GOAL_MEMORY),
            str(one.outcomes),
            text.percent(one.balanced),
            text.percent(one.memory_alone),
            text.percent(one.counts_balanced),
            text.percent(one.trees_balanced),
            _reached(one.balanced, GOAL_BALANCED, one.balanced >= GOAL_BALANCED),
        ]
        for one in found
    ]
    headers = [
        "memory",
        "peaks",
        "MAPE",
        "median",
        "counts alone",
        "goal",
        "outcomes",
        "balanced",
        "memory alone",
        "counts",
        "trees",
        "goal",
    ]
    return text.table(headers, lines)


def _reached(value: float, goal: float, yes: bool) -> str:
    return "" if np.isnan(value) else f"{text.percent(goal)} {'yes' if yes else 'NO'}"


def _kept(frame: pd.DataFrame, failed: np.ndarray) -> np.ndarray:
    """Rows whose outcome is judged [N]."""
    cell = [frame[name] for name in (*CELL, "grad_accum", "sharding")]
    mixed = pd.Series(failed).groupby(cell).transform("nunique").to_numpy() > 1
    return np.asarray(
        ~mixed & (frame["pp"].astype(float) <= frame["layers"].astype(float)).to_numpy()
    )


def _splits(
    frame: pd.DataFrame, folds: int
) -> Iterator[tuple[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """(name, pairs of given and judged [N])."""
    fold = folds_of(frame, folds)
    yield "unseen cells", [(fold != one, fold == one) for one in range(folds)]
    for model in sorted(frame["model"].unique()):
        out = (frame["model"] == model).to_numpy()
        yield f"unseen {model}", [(~out, out)]


def _trees(seen: np.ndarray, failed: np.ndarray, asked: np.ndarray) -> np.ndarray:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError as error:
        raise InputError(
            "null models need scikit-learn; pip install 'hybridperf[validate]'"
        ) from error
    if failed.all() or not failed.any():
        return np.full(len(asked), bool(failed.all()))
    boosting: Any = HistGradientBoostingClassifier(**_TREES, early_stopping=False, random_state=0)
    return np.asarray(boosting.fit(seen, failed).predict(asked), bool)
