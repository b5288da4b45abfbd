"""Two and four processes of one training step on this machine, the last with a share of its core.

Measured: each process alone, and beside one on the other core; from these, of rounds interleaved
with them, the synchronous step of all is predicted, without and with the slowed one. All but the
last share a core and take turns; two cores that are both busy may slow each other down
(hyperthreads of one core do), until one has nothing left to do. The engine's unlike workers compose
the step (`engine/unlike.py`).

Beside ours: the mean of the workers' own seconds, and the slowest one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.unlike import Worker, unlike, while_both_work
from hybridperf.engine.workload import Workload
from hybridperf.hardware.this_machine import this_cpu
from hybridperf.io import read_table
from hybridperf.model import PerfModel
from hybridperf.model.calls import GivenSeconds
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
    median = {key: float(np.median(one)) for key, one in taken.items()}

    def drawn(phase: str, rank: int) -> np.ndarray:
        return rng.choice(taken[phase, rank], _DRAWS)

    lines = []
    for phase, beside, own in (
        ("together", "beside", "alone"), ("together_slowed", "slowed_beside", "slowed"),
    ):  # fmt: skip
        each = np.array([*(median["alone", rank] for rank in first), median[own, last]])
        in_turn = np.sum([drawn("alone", rank) for rank in first], axis=0)
        alone = np.stack([in_turn, drawn(own, last)])
        # of the first beside the last; of the others in the same ratio
        ratio = median[beside, 0] / median["alone", 0]
        next_to = np.stack([alone[0] * ratio, drawn(beside, last)])
        cores = each[first].sum(), each[last]
        scatter = alone / np.array(cores)[:, None]
        step = unlike([_in_turn(each[first]), _in_turn(each[[last]])])
        ours = float(np.median(step.times(while_both_work(alone, next_to) * scatter)))
        true = median[phase, 0]
        lines.append(ResultLine(
            f"{workers} processes, {'one slowed' if own == 'slowed' else 'alike'}",
            abs(ours / true - 1), len(taken[phase, 0]), GOAL,
            {"mean": abs(each.mean() / true - 1), "slowest alone": abs(each.max() / true - 1)},
            "error",
        ))  # fmt: skip
    return lines


def _in_turn(seconds: np.ndarray) -> Worker:
    """Processes that share a core [n], one after the other, as one worker of a step."""
    builder, before = GraphBuilder(), list[int]()
    for row in range(len(seconds)):
        before = [builder.op(row + 1, after=before)]
    calls = tuple(GivenSeconds(float(one)) for one in seconds)
    model = PerfModel.datasheet(this_cpu())
    return Worker(Workload("processes of one core", builder.build(), calls), model)
