"""The slowest of n workers, judged on production jobs that the law has not seen.

    workers   two jobs whose times are recorded worker by worker: from their cv over all ten alone,
              the slowest of any 2 to 10 of them
    jobs      52 jobs of which the cv over ten workers is recorded: each predicted from its first
              iterations, and from as many spread over the whole job. What is judged is the expected
              slow-down at the recorded cv, since nothing else was recorded
    unknown   jobs of which nothing is known, predicted from the other half of the jobs; beside it
              what is left of the error where the law is that of all jobs, the judged among them

Beside ours: the normal law at the same cv, and a constant (of the other jobs; none: 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from benchmarks.claims.harness import Found, ResultLine, claim
from hybridperf.io import read_table
from hybridperf.runs.stragglers import WorkerNoise, simulated

TASKS = ("workers", "jobs", "unknown")
GOAL, FIRST = 0.1, 30
_ENDS = (0.5, 0.9)
_NAMES = ("P50", "P90")
_HALVES, _SUBSETS = 100, 30


@claim("stragglers", TASKS, by_data=True)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """The tasks; they take seconds, `quick` or not."""
    del quick
    folder = Path(data or "") / "cluster"
    for task in tasks:
        if task == "workers":
            yield of_workers(read_table(folder / "pai_worker_times.csv.gz"))
            continue
        rows = read_table(folder / "pai_worker_cv.csv.gz").sort_values(["job", "iteration"])
        cvs = {str(job): one.cv.to_numpy(float) for job, one in rows.groupby("job")}
        yield of_jobs(cvs) if task == "jobs" else of_unknown(cvs)


def of_workers(rows: pd.DataFrame) -> Found:
    """Jobs with the times of each worker."""
    rng, cells, lines = np.random.default_rng(0), [], []
    for job, of_job in rows.groupby("job"):
        table = of_job.pivot_table(index="iteration", columns="worker", values="time_relative")
        times = table.dropna().to_numpy(float)
        noise, found = WorkerNoise.of_times(times), []
        for count in range(2, times.shape[1] + 1):
            some = [rng.permutation(times.shape[1])[:count] for _ in range(_SUBSETS)]
            true = [times[:, one].max(axis=1) / times[:, one].mean(axis=1) for one in some]
            measured, ours = _ends(np.concatenate(true)), _ends(noise.slow_down(count))
            others = _ends(_normal(float(noise.cv.mean()), count)), np.ones(2)
            found.append(np.abs(np.stack([ours, *others]) / measured - 1))
            cells.append([f"job {job}", count, *measured, *ours])
        what, errors = f"job {job}, {{}} of 2 to 10 workers", np.max(found, axis=0)
        lines += _lines(what, errors, len(found), ("normal law", "none"), "worst error")
    head = ["job", "workers", "measured_p50", "measured_p90", "by_cv_p50", "by_cv_p90"]
    return Found("", {"workers": pd.DataFrame(cells, columns=head)}, lines, "n")


def of_jobs(cvs: dict[str, np.ndarray]) -> Found:
    """Each job by iterations of its own."""
    lines, tables, others = [], [], ("normal law", "constant")
    slow = {job: slow_down_at(cv) for job, cv in cvs.items()}
    ends = {job: _ends(one) for job, one in slow.items()}
    for how in ("first", "spread"):
        rows, found = [], []
        for job, cv in cvs.items():
            given = np.arange(FIRST)
            if how == "spread":
                given = np.linspace(0, len(cv) - 1, FIRST).astype(int)
            rest, ours = _ends(np.delete(slow[job], given)), _ends(slow[job][given])
            normal = _ends(_normal(float(cv[given].mean()), 10))
            constant = np.median([one for other, one in ends.items() if other != job], axis=0)
            found.append(np.stack([ours, normal, constant]) / rest - 1)
            rows.append((job, how, *rest, *ours, *found[-1].ravel()))
        tables.append(pd.DataFrame(rows, columns=[
            "job", "given", "p50", "p90", "predicted_p50", "predicted_p90", "error_p50",
            "error_p90", "normal_error_p50", "normal_error_p90", "constant_error_p50",
            "constant_error_p90",
        ]))  # fmt: skip
        what, errors = f"{{}} by {FIRST} {how} iterations", np.abs(found)
        middle = _lines(what, np.median(errors, axis=0), len(rows), others, "median error")
        beyond = (errors > GOAL).mean(axis=0), len(rows), others, f"jobs off by > {GOAL:.0%}", None
        lines += [one for both in zip(middle, _lines(what, *beyond), strict=True) for one in both]
    return Found("", {"jobs": pd.concat(tables)}, lines, "n")


def of_unknown(cvs: dict[str, np.ndarray]) -> Found:
    """Half of the jobs by the other half, at random, many times."""
    rng, errors = np.random.default_rng(0), []
    jobs = list(cvs)
    parts = (np.arange(200) + 0.5) / 200  # each job as likely
    each = {job: np.quantile(slow_down_at(cv), parts) for job, cv in cvs.items()}
    mean = {job: float(cv.mean()) for job, cv in cvs.items()}
    every = _ends(np.concatenate(list(each.values())))
    for _ in range(_HALVES):
        some = rng.permutation(jobs)
        given, judged = some[: len(jobs) // 2], some[len(jobs) // 2 :]
        true = _ends(np.concatenate([each[job] for job in judged]))
        ours = _ends(slow_down_at(WorkerNoise.of_jobs([cvs[job] for job in given]).cv))
        as_recorded = _ends(np.concatenate([each[job] for job in given]))
        normal = _ends(_normal(float(np.mean([mean[job] for job in given])), 10))
        constant = np.full(2, np.median([each[job][len(parts) // 2] for job in given]))
        errors.append(np.abs(np.stack([ours, normal, constant, as_recorded, every]) / true - 1))
    others = "normal law", "constant", "jobs as recorded", "all jobs, the judged among them"
    what, found = "{} of unknown jobs, by others", np.median(errors, axis=0)
    return Found("", {}, _lines(what, found, _HALVES, others, "median error"), "n")


def _lines(
    what: str, errors: np.ndarray, n: int, others: Sequence[str], measure: str,
    goal: float | None = GOAL,
) -> list[ResultLine]:  # fmt: skip
    """A line of P50 and one of P90; `errors`: ours, then those of the others [1 + others, 2]."""
    return [
        ResultLine(what.format(name), ours, n, goal, dict(zip(others, rest, strict=True)), measure)
        for name, (ours, *rest) in zip(_NAMES, errors.T.tolist(), strict=True)
    ]


def _ends(values: np.ndarray) -> np.ndarray:
    """Their P50 and P90."""
    return np.quantile(values, _ENDS)


def _normal(cv: float, workers: int) -> np.ndarray:
    """Slowest over mean where times are normal, drawn."""
    return 1 + cv * np.random.default_rng(0).standard_normal((workers, 4000)).max(axis=0)


def slow_down_at(cv: ArrayLike, workers: int = 10) -> np.ndarray:
    """Expected slowest over mean of m workers whose coefficient of variation is known [I]."""
    cv = np.asarray(cv, float)
    return 1 + cv * np.interp(cv, *simulated(workers))
