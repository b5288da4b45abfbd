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

from hybridperf.io import read_table
from hybridperf.runs.stragglers import WorkerNoise, slow_down_at
from hybridperf.validate.harness import Found, ResultLine, claim

TASKS = ("workers", "jobs", "unknown")
GOAL, FIRST = 0.1, 30
_ENDS = (0.5, 0.9)
_NAMES = ("P50", "P90")
_HALVES, _SUBSETS = 100, 30


@claim("stragglers", TASKS)
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
        noise = WorkerNoise.of_times(times)
        found = []
        for count in range(2, times.shape[1] + 1):
            some = [rng.permutation(times.shape[1])[:count] for _ in range(_SUBSETS)]
            true = np.concatenate([
                times[:, one].max(axis=1) / times[:, one].mean(axis=1) for one in some
            ])  # fmt: skip
            measured = np.quantile(true, _ENDS)
            ours = np.quantile(noise.slow_down(count), _ENDS)
            normal = np.quantile(_normal(float(noise.cv.mean()), count), _ENDS)
            found.append(np.abs(np.stack([ours, normal, np.ones(2)]) / measured - 1))
            cells.append([f"job {job}", count, *measured, *ours])
        errors = np.array(found).max(axis=0)
        for at, name in enumerate(_NAMES):
            lines.append(ResultLine(
                f"job {job}, {name} of 2 to 10 workers", float(errors[0, at]), len(found), GOAL,
                {"normal law": float(errors[1, at]), "none": float(errors[2, at])}, "worst error",
            ))  # fmt: skip
    head = ["job", "workers", "measured_p50", "measured_p90", "by_cv_p50", "by_cv_p90"]
    return Found("", {"workers": pd.DataFrame(cells, columns=head)}, lines, "n")


def of_jobs(cvs: dict[str, np.ndarray]) -> Found:
    """Each job by iterations of its own."""
    lines, tables = [], []
    slow = {job: slow_down_at(cv) for job, cv in cvs.items()}
    for how in ("first", "spread"):
        rows = []
        for job, cv in cvs.items():
            given = np.arange(FIRST)
            if how == "spread":
                given = np.linspace(0, len(cv) - 1, FIRST).astype(int)
            rest = np.quantile(np.delete(slow[job], given), _ENDS)
            ours = np.quantile(slow[job][given], _ENDS)
            normal = np.quantile(_normal(float(cv[given].mean()), 10), _ENDS)
            others = [np.quantile(one, _ENDS) for other, one in slow.items() if other != job]
            errors = np.stack([ours, normal, np.median(others, axis=0)]) / rest - 1
            rows.append((job, how, *rest, *ours, *errors.ravel()))
        frame = pd.DataFrame(rows, columns=[
            "job", "given", "p50", "p90", "predicted_p50", "predicted_p90", "error_p50",
            "error_p90", "normal_error_p50", "normal_error_p90", "constant_error_p50",
            "constant_error_p90",
        ])  # fmt: skip
        tables.append(frame)
        for name in ("p50", "p90"):
            prefixes = {"": "", "normal law": "normal_", "constant": "constant_"}
            errors = {key: frame[f"{prefix}error_{name}"].abs() for key, prefix in prefixes.items()}
            middle = {key: float(one.median()) for key, one in errors.items()}
            within = {key: float((one > GOAL).mean()) for key, one in errors.items()}
            what = f"{name.upper()} by {FIRST} {'first' if how == 'first' else 'spread'} iterations"
            for measure, of in (("median error", middle), (f"jobs off by > {GOAL:.0%}", within)):
                lines.append(ResultLine(
                    what, of.pop(""), len(frame), GOAL if measure == "median error" else None, of,
                    measure,
                ))  # fmt: skip
    return Found("", {"jobs": pd.concat(tables)}, lines, "n")


def of_unknown(cvs: dict[str, np.ndarray]) -> Found:
    """Half of the jobs by the other half, at random, many times."""
    rng, errors = np.random.default_rng(0), []
    jobs = list(cvs)
    parts = (np.arange(200) + 0.5) / 200  # each job as likely
    each = {job: np.quantile(slow_down_at(cv), parts) for job, cv in cvs.items()}
    mean = {job: float(cv.mean()) for job, cv in cvs.items()}
    every = np.quantile(np.concatenate(list(each.values())), _ENDS)
    for _ in range(_HALVES):
        some = rng.permutation(jobs)
        given, judged = some[: len(jobs) // 2], some[len(jobs) // 2 :]
        true = np.quantile(np.concatenate([each[job] for job in judged]), _ENDS)
        ours = np.quantile(slow_down_at(WorkerNoise.of_jobs([cvs[job] for job in given]).cv), _ENDS)
        as_recorded = np.quantile(np.concatenate([each[job] for job in given]), _ENDS)
        normal = np.quantile(_normal(float(np.mean([mean[job] for job in given])), 10), _ENDS)
        constant = np.full(2, np.median([each[job][len(parts) // 2] for job in given]))
        errors.append(np.abs(np.stack([ours, normal, constant, as_recorded, every]) / true - 1))
    found = np.median(errors, axis=0)
    lines = [
        ResultLine(
            f"{name} of unknown jobs, by others", float(found[0, at]), _HALVES, GOAL,
            {
                "normal law": float(found[1, at]), "constant": float(found[2, at]),
                "jobs as recorded": float(found[3, at]),
                "all jobs, the judged among them": float(found[4, at]),
            }, "median error",
        )
        for at, name in enumerate(_NAMES)
    ]  # fmt: skip
    return Found("", {}, lines, "n")


def _normal(cv: float, workers: int) -> np.ndarray:
    """Slowest over mean where times are normal, drawn."""
    return 1 + cv * np.random.default_rng(0).standard_normal((workers, 4000)).max(axis=0)
