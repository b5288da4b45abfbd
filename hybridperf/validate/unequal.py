"""Two and four processes of one training step on this machine, the last with a share of its core.

Measured: each process alone, and beside one on the other core; from these, of rounds interleaved
with them, the synchronous step of all is predicted, without and with the slowed one. All but the
last share a core and take turns; two cores that are both busy may slow each other down
(hyperthreads of one core do), until one has nothing left to do:

    A, B    seconds of the work on either core, nothing beside it; A', B' beside the other
    t       min(A', B'), the first to end; the other ends at t + (1 - t / B') B

Beside ours: the mean of the workers' own seconds, and the slowest one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import read_table
from hybridperf.model.fit.programs import run_program
from hybridperf.validate.harness import ResultLine, lines_table, write_results

PROGRAM = "hybridperf_calibration.training_steps.unequal"
GOAL = 0.15
_DRAWS = 4096
SHARES = {2: 0.25, 4: 0.2}  # of a core that the last of so many processes has


def run(
    out: Path, *, rounds: int = 6, workers: Sequence[int] = tuple(SHARES),
    say: Callable[[str], None] = print,
) -> list[ResultLine]:  # fmt: skip
    """Measure and predict; leaves tables and `results.json` in `out`."""
    lines = [line for count in workers for line in of(measured(out, count, rounds), count)]
    say(lines_table(lines, "steps", "error of the median step"))
    write_results(out, "unequal", lines)
    return lines


def measured(out: Path, workers: int, rounds: int) -> pd.DataFrame:
    """Seconds of steps: phase, worker, round, time_s."""
    path = out / f"unequal_{workers}.csv"
    sizes = ("--workers", str(workers), "--share", str(SHARES[workers]), "--rounds", str(rounds))
    run_program(PROGRAM, [*sizes, "--out", str(path)])
    return read_table(path)


def of(rows: pd.DataFrame, workers: int) -> list[ResultLine]:
    """Errors of both synchronous steps."""
    rng = np.random.default_rng(0)
    last, first = workers - 1, list(range(workers - 1))
    taken = {key: one.to_numpy(float) for key, one in rows.groupby(["phase", "worker"]).time_s}

    def drawn(phase: str, rank: int) -> np.ndarray:
        return rng.choice(taken[phase, rank], _DRAWS)

    lines = []
    for phase, beside, own in (
        ("together", "beside", "alone"), ("together_slowed", "slowed_beside", "slowed"),
    ):  # fmt: skip
        alone = np.sum([drawn("alone", rank) for rank in first], axis=0)
        # of the first beside the last; of the others in the same ratio
        ratio = np.median(taken[beside, 0]) / np.median(taken["alone", 0])
        cores = (alone, alone * ratio), (drawn(own, last), drawn(beside, last))
        ours = float(np.median(ends(*cores).max(axis=0)))
        true = float(np.median(taken[phase, 0]))
        each = np.array([*(np.median(taken["alone", rank]) for rank in first),
                         np.median(taken[own, last])])  # fmt: skip
        lines.append(ResultLine(
            f"{workers} processes, {'one slowed' if own == 'slowed' else 'alike'}",
            abs(ours / true - 1), len(taken[phase, 0]), GOAL,
            {"mean": abs(each.mean() / true - 1), "slowest alone": abs(each.max() / true - 1)},
            "error",
        ))  # fmt: skip
    return lines


def ends(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
    """When the work on either of two cores ends [2, D]; each as (alone, beside the other) [D]."""
    alone, beside = (np.array(of, float) for of in zip(one, other, strict=True))
    first_s = beside.min(axis=0)
    return np.where(beside == first_s, first_s, first_s + (1 - first_s / beside) * alone)
