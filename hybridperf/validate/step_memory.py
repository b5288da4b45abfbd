"""Memory of training steps: gigabytes of runs that ended, and which runs ran out.

A run is expected to fail where its peak is above what the device can give, or where its layout
cannot run: fewer micro-batches than a pipeline needs to fill, or no layer for some stage. Next to
it memory alone, counts that nothing was fitted to, and trees that see sizes and layout, all on the
same split. Balanced accuracy: the mean of the shares of failures and of successes that are found.
Cells with both outcomes and layouts with more stages than layers are left out. Axes: N rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pandas as pd

from hybridperf.report import text
from hybridperf.training.steps.memory_fit import USABLE, endings, fit_memory, peak_bytes, will_fail
from hybridperf.training.steps.rows import ResolvedRows
from hybridperf.validate.harness import ResultLine
from hybridperf.validate.step_baselines import baseline_rows, failure_trees
from hybridperf.validate.step_scores import reached_text
from hybridperf.validate.step_splits import CELL, FOLDS, folds_of
from hybridperf.workloads.memory import MemoryKnobs

GOAL_BALANCED, GOAL_MEMORY = 0.96, 0.10
_GIGABYTE = 1e9  # `mem_gb`: a fit in GiB would want 7 % more than the counted bytes per parameter


@dataclasses.dataclass(frozen=True)
class MemoryScores:
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


def judge(frame: pd.DataFrame, resolved: ResolvedRows, folds: int = FOLDS) -> list[MemoryScores]:
    """Unseen cells and unseen models of one sweep with `status` (which failed) and `mem_gb`."""
    some = resolved.predictable
    frame, rows = frame.iloc[some].reset_index(drop=True), [resolved.rows[at] for at in some]
    configs = [row.config for row in rows if row.config is not None]
    failed = endings(frame).ne("ok").to_numpy()
    peak = pd.to_numeric(frame["mem_gb"]).to_numpy() * _GIGABYTE
    clean = np.array([not row.flags for row in rows])
    capacity = np.array([row.machine.memory_bytes for row in rows if row.machine is not None])
    counted, kept = peak_bytes(configs, MemoryKnobs()), _kept(frame, failed)
    seen = baseline_rows(rows).layout
    ran = ~failed & clean & np.isfinite(peak)
    found = []
    for name, parts in _splits(frame, folds):
        needed, trees = np.full(len(frame), np.nan), np.zeros(len(frame), bool)
        for given, judged in parts:
            fit_on = np.flatnonzero(given & ran)
            knobs = fit_memory([configs[at] for at in fit_on], peak[fit_on])
            needed[judged] = peak_bytes([configs[at] for at in np.flatnonzero(judged)], knobs)
            told = given & kept
            trees[judged] = failure_trees(seen[told], failed[told], seen[judged])
        here = np.any([judged for _, judged in parts], axis=0)
        ended, told = here & ran, here & kept
        error, counts_error = (np.abs(one[ended] / peak[ended] - 1) for one in (needed, counted))
        alone = needed > USABLE * capacity
        outcomes = [will_fail(configs, one, capacity) for one in (needed, counted)]
        ways = (outcomes[0], alone, outcomes[1], trees)
        found.append(
            MemoryScores(
                name,
                int(ended.sum()),
                float(error.mean()),
                float(np.median(error)),
                float(counts_error.mean()),
                int(told.sum()),
                *(balanced(failed[told], one[told]) for one in ways),
            )
        )
    return found


def balanced(failed: np.ndarray, predicted: np.ndarray) -> float:
    """Balanced accuracy; NaN where one of both outcomes never happened."""
    if failed.all() or not failed.any():
        return float("nan")
    return float((predicted[failed].mean() + (~predicted[~failed]).mean()) / 2)


def table(found: list[MemoryScores]) -> str:
    """One line for each split."""
    lines = []
    for one in found:
        memory = (one.mape, one.median, one.counts_mape)
        outcomes = (one.balanced, one.memory_alone, one.counts_balanced, one.trees_balanced)
        lines.append([
            one.name, str(one.peaks), *map(text.percent, memory),
            _reached(one.mape, GOAL_MEMORY, one.mape <= GOAL_MEMORY),
            str(one.outcomes), *map(text.percent, outcomes),
            _reached(one.balanced, GOAL_BALANCED, one.balanced >= GOAL_BALANCED),
        ])  # fmt: skip
    headers = [
        "memory", "peaks", "MAPE", "median", "counts alone", "goal",
        "outcomes", "balanced", "memory alone", "counts", "trees", "goal",
    ]  # fmt: skip
    return text.table(headers, lines)


def result_lines(found: list[MemoryScores]) -> list[ResultLine]:
    """As `results.json` keeps them: errors of peaks, and shares of outcomes that were missed."""
    lines = []
    for one in found:
        peak, outcome = f"memory, {one.name}: peak", f"memory, {one.name}: outcome"
        others = {"counts alone": one.counts_mape}
        lines.append(ResultLine(peak, one.mape, one.peaks, GOAL_MEMORY, others))
        others = {
            "memory alone": 1 - one.memory_alone,
            "counts": 1 - one.counts_balanced,
            "trees": 1 - one.trees_balanced,
        }
        missed, goal = 1 - one.balanced, 1 - GOAL_BALANCED
        measure = "1 - balanced accuracy"
        lines.append(ResultLine(outcome, missed, one.outcomes, goal, others, measure))
    return lines


def _reached(value: float, goal: float, yes: bool) -> str:
    return "" if np.isnan(value) else reached_text(goal, yes)


def _kept(frame: pd.DataFrame, failed: np.ndarray) -> np.ndarray:
    """Rows whose outcome is judged [N]."""
    cell = [frame[name] for name in (*CELL, "grad_accum", "sharding")]
    mixed = pd.Series(failed).groupby(cell).transform("nunique").to_numpy() > 1
    has_layers = frame["pp"].astype(float) <= frame["layers"].astype(float)
    return np.asarray(~mixed & has_layers.to_numpy())


def _splits(
    frame: pd.DataFrame, folds: int
) -> Iterator[tuple[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """(name, pairs of given and judged [N])."""
    fold = folds_of(frame, folds)
    yield "unseen cells", [(fold != one, fold == one) for one in range(folds)]
    for model in sorted(frame["model"].unique()):
        out = (frame["model"] == model).to_numpy()
        yield f"unseen {model}", [(~out, out)]
