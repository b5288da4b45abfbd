"""A table of jobs under each scheduler, with the interval that their step times give; and the loss
system by degree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.runs.job_policies import POLICIES, Cluster, blocking_by_degree, just_enough
from hybridperf.runs.job_times import JobTimes, TrainingJob

ENDS = ("", "low", "high")  # of all step times together: one machine errs one way


@dataclasses.dataclass(frozen=True)
class JobStudy:
    """What `study` finds."""

    # a row per policy: `policy, mean_completion_s, low_s, high_s, p95_completion_s, mean_wait_s,
    # moves, busy_share`
    policies: pd.DataFrame
    # a row per degree of the loss system, and for `just enough`: `gpus, blocking, low_blocking,
    # high_blocking, closed_form`
    degrees: pd.DataFrame
    rows: pd.DataFrame  # a row per job, with what each policy gives


def study(
    jobs: Sequence[TrainingJob], times: Sequence[JobTimes], gpus: int, restart_s: float = 0.0,
    limit: float = 1.0,
) -> JobStudy:  # fmt: skip
    """Schedulers compared on one stream of jobs.

    Args:
        jobs: by arrival.
        times: what each reaches, by GPUs.
        gpus: of the cluster.
        restart_s: without work, when a job that runs is given other GPUs.
        limit: of the loss system: the longest a job may take, as a share of its time alone.
    """
    fit = [at for at, (job, one) in enumerate(zip(jobs, times, strict=True))
           if one.rate(_asked(job, one)) > 0]  # fmt: skip
    if not fit:
        raise InputError(
            "expected a job that fits on the GPUs it asks for, got none; give more GPUs or smaller"
            " models"
        )
    clusters = {
        end: cluster([jobs[at] for at in fit], [times[at].at(end) for at in fit], gpus, restart_s)
        for end in ENDS
    }
    one = clusters[""]
    rows = pd.DataFrame([dataclasses.asdict(job) for job in jobs])
    rows["note"] = [
        job.note or ("" if at in fit else "no layout fits on the GPUs it asks for")
        for at, job in enumerate(jobs)
    ]
    found = []
    for policy in POLICIES:
        ends = {end: each.run(policy) for end, each in clusters.items()}
        result, means = ends[""], [one.mean_completion_s() for one in ends.values()]
        rows.loc[fit, f"{policy}_completion_s"] = result.completion_s
        span_s = float(result.end_s.max() - result.arrival_s.min())
        alone_s = one.steps / np.array([x.rate(int(n)) for x, n in zip(one.times, one.asked,
                                                                      strict=True)])  # fmt: skip
        found.append({
            "policy": policy, "mean_completion_s": result.mean_completion_s(),
            # a schedule may turn round where steps take longer: the ends hold the middle, too
            "low_s": min(means), "high_s": max(means),
            "p95_completion_s": float(np.percentile(result.completion_s, 95)),
            "mean_wait_s": float(np.mean(result.start_s - result.arrival_s)),
            "moves": int(result.moves.sum()),
            "asked_share": float((alone_s * one.asked).sum() / (gpus * span_s)),
        })  # fmt: skip
    return JobStudy(pd.DataFrame(found), _degrees(clusters, gpus, limit), rows)


def _asked(job: TrainingJob, times: JobTimes) -> int:
    """GPUs as its user says, or as many as make its steps quickest."""
    return job.gpus or times.quickest


def cluster(
    jobs: Sequence[TrainingJob], times: Sequence[JobTimes], gpus: int, restart_s: float = 0.0
) -> Cluster:
    """Jobs on a cluster."""
    asked = [_asked(job, one) for job, one in zip(jobs, times, strict=True)]
    return Cluster(
        gpus, times, np.array([job.steps for job in jobs]),
        np.array([job.arrival_s for job in jobs]), np.array(asked), restart_s,
    )  # fmt: skip


def _degrees(clusters: dict[str, Cluster], gpus: int, limit: float) -> pd.DataFrame:
    """Blocking by degree, by simulation; beside it Erlang's formula where all jobs are alike."""
    one = clusters[""]
    alike = len({(x.gpus.tobytes(), x.steps_per_s.tobytes()) for x in one.times}) == 1
    rate = (len(one.steps) - 1) / max(float(np.ptp(one.arrival_s)), 1e-12)
    closed: dict[str, float] = {}
    if alike and len(one.steps) > 1:
        found = blocking_by_degree(one.times[0], float(one.steps.mean()), gpus, rate, limit)
        closed = {str(n): share for n, share in found.items()}
    most = max(x.quickest for x in one.times)
    degrees = [n for n in one.times[0].gpus.tolist() if n <= most]
    wanted: dict[str, Callable[[JobTimes], int | None]] = {str(n): _at_most(n) for n in degrees}
    wanted["just enough"] = lambda times: just_enough(times, limit)
    rows = []
    for name, wants in wanted.items():
        shares = {end: _lossy(each, wants, limit) for end, each in clusters.items()}
        rows.append({
            "gpus": name, "blocking": shares[""], "low_blocking": min(shares.values()),
            "high_blocking": max(shares.values()), "closed_form": closed.get(name),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _at_most(gpus: int) -> Callable[[JobTimes], int]:
    return lambda times: min(gpus, times.quickest)


def _lossy(one: Cluster, wants: Callable[[JobTimes], int | None], limit: float) -> float:
    def degree(job: int) -> int | None:
        times = one.times[job]
        n = max(wants(times) or 0, times.fewest)
        return None if times.late(n, limit) else n

    return one.lossy(degree).blocking
