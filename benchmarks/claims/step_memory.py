"""Memory of training steps: gigabytes of runs that ended, and which runs ran out.

A run is expected to fail where its peak is above what the device can give, or where its layout
cannot run: fewer micro-batches than a pipeline needs to fill, or no layer for some stage. Next to
it memory alone, counts that nothing was fitted to, and trees that see sizes and layout, all on the
same split. Balanced accuracy: the mean of the shares of failures and of successes that are found.
Cells with both outcomes and layouts with more stages than layers are left out. Axes: N rows.
"""

import numpy as np
import pandas as pd

from benchmarks.claims.harness import ResultLine
from benchmarks.claims.memory_fit import fit_memory, will_fail
from benchmarks.claims.step_splits import (
    CELL,
    FOLDS,
    baseline_rows,
    by_cell,
    by_model,
    failure_trees,
)
from hybridperf.training.steps.memory_fit import USABLE, endings, peak_bytes
from hybridperf.training.steps.rows import ResolvedRows
from hybridperf.workloads.memory import MemoryKnobs

GOAL_BALANCED, GOAL_MEMORY = 0.96, 0.10
_GIGABYTE = 1e9  # `mem_gb`: a fit in GiB would want 7 % more than the counted bytes per parameter


def judge(frame: pd.DataFrame, resolved: ResolvedRows, folds: int = FOLDS) -> pd.DataFrame:
    """Unseen cells and unseen models of one sweep with `status` (which failed) and `mem_gb`.

    A line for each: `name`, how many `peaks` were judged, their `mape`, `median` error and
    `counts_mape` (of counts that nothing was fitted to), how many `outcomes`, and the accuracies
    `balanced, memory_alone, counts_balanced, trees_balanced`.
    """
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
    every = np.ones(len(frame), bool)
    splits = [[*by_cell("unseen cells", frame, every, folds)]]
    splits += [[one] for one in by_model("unseen", frame, every)]
    found = []
    for parts in splits:
        needed, trees = np.full(len(frame), np.nan), np.zeros(len(frame), bool)
        here = np.zeros(len(frame), bool)
        for part in parts:
            fit_on, told = part.given[ran[part.given]], part.given[kept[part.given]]
            knobs = fit_memory([configs[at] for at in fit_on], peak[fit_on])
            needed[part.judged] = peak_bytes([configs[at] for at in part.judged], knobs)
            trees[part.judged] = failure_trees(seen[told], failed[told], seen[part.judged])
            here[part.judged] = True
        ended, told = here & ran, here & kept
        error, counts_error = (np.abs(one[ended] / peak[ended] - 1) for one in (needed, counted))
        outcomes = [will_fail(configs, one, capacity) for one in (needed, counted)]
        ways = (outcomes[0], needed > USABLE * capacity, outcomes[1], trees)
        names = ("balanced", "memory_alone", "counts_balanced", "trees_balanced")
        accuracy = [balanced(failed[told], one[told]) for one in ways]
        task = parts[0].task if len(parts) > 1 else f"unseen {parts[0].part}"
        found.append({
            "name": task, "peaks": int(ended.sum()), "mape": float(error.mean()),
            "median": float(np.median(error)), "counts_mape": float(counts_error.mean()),
            "outcomes": int(told.sum()), **dict(zip(names, accuracy, strict=True)),
        })  # fmt: skip
    return pd.DataFrame(found)


def balanced(failed: np.ndarray, predicted: np.ndarray) -> float:
    """Balanced accuracy; NaN where one of both outcomes never happened."""
    if failed.all() or not failed.any():
        return float("nan")
    return float((predicted[failed].mean() + (~predicted[~failed]).mean()) / 2)


def result_lines(found: pd.DataFrame) -> list[ResultLine]:
    """As `results.json` keeps them: errors of peaks, and shares of outcomes that were missed."""
    lines, goal, measure = [], 1 - GOAL_BALANCED, "1 - balanced accuracy"
    for one in found.itertuples():
        peak, outcome = f"memory, {one.name}: peak", f"memory, {one.name}: outcome"
        counts = {"counts alone": one.counts_mape}
        lines.append(ResultLine(peak, one.mape, one.peaks, GOAL_MEMORY, counts))
        accuracy = (one.memory_alone, one.counts_balanced, one.trees_balanced)
        others = dict(zip(("memory alone", "counts", "trees"), 1 - np.array(accuracy), strict=True))
        missed = 1 - one.balanced
        lines.append(ResultLine(outcome, missed, one.outcomes, goal, others, measure))
    return lines


def _kept(frame: pd.DataFrame, failed: np.ndarray) -> np.ndarray:
    """Rows whose outcome is judged [N]."""
    cell = [frame[name] for name in (*CELL, "grad_accum", "sharding")]
    mixed = pd.Series(failed).groupby(cell).transform("nunique").to_numpy() > 1
    has_layers = frame["pp"].astype(float) <= frame["layers"].astype(float)
    return np.asarray(~mixed & has_layers.to_numpy())
