"""Who gets how many of a cluster's GPUs: jobs that wait, and jobs that are refused.

    fifo      first come first served, each on the GPUs it asks for
    srtf      shortest remaining time first, the running ones give way
    gittins   who is likeliest to end soon for the GPU seconds it has had, by the sizes of all jobs
              (Gittins' index, as Tiresias takes it: Gu et al., NSDI 2019), without knowing its own
    elastic   all that can run do, each on few GPUs; the next GPUs go where they save the most time
              of all, batch with them (the question of ONES: Bian et al., SC 2021)

A loss system refuses what it cannot start at once, or what would take longer than `limit` of its
time on one GPU (PAC-ML: Parsonson et al., arXiv 2301.13799). How far to parallelise: a degree d
takes T(d) and leaves N / d places, so that for jobs alike Erlang's loss formula says what is
refused, whatever the law of their sizes:

    blocking(d) = B(floor(N / d), arrivals a second x T(d))

`study` runs a table of jobs under each scheduler, at both ends of the interval of their step times.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.engine.queues import erlang_b
from hybridperf.io import InputError, unknown
from hybridperf.runs.job_stream import Given, Schedule, StreamResult, run_stream
from hybridperf.runs.job_times import JobTimes, TrainingJob

POLICIES = ("fifo", "srtf", "gittins", "elastic")
_Left = Callable[[int], float]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """J jobs on so many GPUs, and the policies that deal these out."""

    gpus: int
    times: Sequence[JobTimes]
    steps: np.ndarray  # [J]
    arrival_s: np.ndarray  # rising [J]
    asked: np.ndarray  # GPUs that each asks for [J]
    restart_s: float = 0.0  # without work, when a job that runs is given other GPUs

    def run(self, policy: str) -> StreamResult:
        """The stream under one of `POLICIES`."""
        rate = lambda job: self.times[job].rate(int(self.asked[job]))  # noqa: E731
        schedules: dict[str, Callable[[], Schedule]] = {
            "fifo": lambda: self._in_order(None),
            "srtf": lambda: self._in_order(lambda job, left: left(job) / rate(job)),
            "gittins": self._gittins,
            "elastic": lambda: self._elastic,
        }
        if policy not in schedules:
            raise unknown("policy", policy, POLICIES, f"known are {', '.join(POLICIES)}")
        return run_stream(self.arrival_s, self.steps, schedules[policy](), self._rates,
                          restart_s=self.restart_s)  # fmt: skip

    def lossy(self, degree: Callable[[int], int | None]) -> StreamResult:
        """The stream where who cannot start at once, on the GPUs its degree says, is refused.

        `degree` of a job: None where it is refused whatever is free.
        """

        def schedule(
            waiting: Sequence[int], running: Mapping[int, Given], *_: object
        ) -> Mapping[int, Given]:
            given = dict(running)
            free = self.gpus - sum(map(_gpus, given.values()))
            for job in waiting:
                wants = degree(job)
                if wants is not None and wants <= free:
                    given[job] = wants
                    free -= wants
            return given

        return run_stream(self.arrival_s, self.steps, schedule, self._rates, patient=False)

    def _rates(self, given: Mapping[int, Given]) -> Mapping[int, float]:
        return {job: self.times[job].rate(_gpus(has)) for job, has in given.items()}

    def _in_order(self, rank: Callable[[int, _Left], float] | None) -> Schedule:
        """Jobs on the GPUs they ask for, the lowest rank first; None: as they came."""

        def schedule(
            waiting: Sequence[int], running: Mapping[int, Given], left: _Left, now: float
        ) -> Mapping[int, Given]:
            del now
            given: dict[int, Given] = {} if rank else dict(running)
            free = self.gpus - sum(map(_gpus, given.values()))
            jobs = (
                sorted([*running, *waiting], key=lambda job: rank(job, left)) if rank else waiting
            )
            for job in jobs:
                wants = int(self.asked[job])
                if wants <= free:
                    given[job] = wants
                    free -= wants
                elif not rank:
                    break
            return given

        return schedule

    def _gittins(self) -> Schedule:
        seconds = [self.steps[job] / self.times[job].rate(int(n)) * n
                   for job, n in enumerate(self.asked)]  # fmt: skip
        sizes = np.sort(np.array(seconds))

        def rank(job: int, left: _Left) -> float:
            attained = seconds[job] * (1 - left(job) / self.steps[job])
            return -gittins_index(sizes, attained)

        return self._in_order(rank)

    def _elastic(
        self, waiting: Sequence[int], running: Mapping[int, Given], left: _Left, now: float
    ) -> Mapping[int, Given]:
        del now
        jobs = sorted(
            [*running, *waiting],
            key=lambda job: left(job) / self.times[job].rate(self.times[job].fewest),
        )
        given: dict[int, Given] = {}
        free = self.gpus
        for job in jobs:
            if (least := self.times[job].fewest) <= free:
                given[job] = least
                free -= least
        while True:  # the doubling that saves most seconds for a GPU
            best, saves = None, 0.0
            for job, has in given.items():
                n, times = _gpus(has), self.times[job]
                if n <= free and 2 * n <= times.gpus[-1]:
                    seconds = left(job) * (1 / times.rate(n) - 1 / times.rate(2 * n)) / n
                    if seconds > saves:
                        best, saves = job, seconds
            if best is None:
                return given
            free -= _gpus(given[best])
            given[best] = 2 * _gpus(given[best])


def _gpus(has: Given) -> int:
    assert isinstance(has, int)
    return has


def gittins_index(sizes: np.ndarray, attained: float) -> float:
    """The best chance to end per second of service, over all that may be given.

    Args:
        sizes: of jobs, rising [N]: what they took in all.
        attained: service so far.
    """
    more = sizes[sizes > attained * (1 + 1e-9)] - attained
    if not len(more):
        return 0.0
    ended = np.arange(1, len(more) + 1)
    # sum of min(size, given) over jobs, for given = each of their sizes
    served = np.cumsum(more) + more * (len(more) - ended)
    return float((ended / served).max())


def just_enough(times: JobTimes, limit: float) -> int | None:
    """The fewest GPUs on which a job takes at most `limit` of its time on the fewest it fits on."""
    return next((n for n in times.gpus.tolist() if not times.late(n, limit)), None)


def blocking_by_degree(
    times: JobTimes, steps: float, gpus: int, arrivals_per_s: float, limit: float = 1.0
) -> dict[int, float]:
    """Share of Poisson arrivals of a job that are refused, by how many GPUs each is given.

    Degrees whose job takes longer than `limit` of its time on the fewest GPUs refuse all.
    """
    found = {}
    for n in times.gpus.tolist():
        if n <= gpus and times.rate(n) > 0:
            busy = arrivals_per_s * steps / times.rate(n)
            found[n] = 1.0 if times.late(n, limit) else float(erlang_b(gpus // n, busy))
    return found


ENDS = ("", "low", "high")  # of all step times together: one machine errs one way


@dataclasses.dataclass(frozen=True)
class JobStudy:
    """Streams of jobs under several policies, side by side."""

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
    """A cluster whose jobs have known rates by GPUs."""
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
    wanted: dict[str, Callable[[JobTimes], int | None]] = {
        str(n): functools.partial(_at_most, n) for n in degrees
    }
    wanted["just enough"] = lambda times: just_enough(times, limit)
    rows = []
    for name, wants in wanted.items():
        shares = {end: _lossy(each, wants, limit) for end, each in clusters.items()}
        rows.append({
            "gpus": name, "blocking": shares[""], "low_blocking": min(shares.values()),
            "high_blocking": max(shares.values()), "closed_form": closed.get(name),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _at_most(n: int, times: JobTimes) -> int:
    return min(n, times.quickest)


def _lossy(one: Cluster, wants: Callable[[JobTimes], int | None], limit: float) -> float:
    def degree(job: int) -> int | None:
        times = one.times[job]
        n = max(wants(times) or 0, times.fewest)
        return None if times.late(n, limit) else n

    return one.lossy(degree).blocking
