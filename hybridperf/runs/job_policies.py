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
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybridperf.io import unknown
from hybridperf.runs.job_stream import Given, Schedule, StreamResult, run_stream
from hybridperf.runs.job_times import JobTimes
from hybridperf.runs.queues import erlang_b

POLICIES = ("fifo", "srtf", "gittins", "elastic")
_Left = Callable[[int], float]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """J jobs on so many GPUs."""

    gpus: int
    times: Sequence[JobTimes]
    steps: np.ndarray  # [J]
    arrival_s: np.ndarray  # rising [J]
    asked: np.ndarray  # GPUs that each asks for [J]
    restart_s: float = 0.0  # without work, when a job that runs is given other GPUs

    def run(self, policy: str) -> StreamResult:
        """The stream under one of `POLICIES`."""
        schedules: dict[str, Callable[[], Schedule]] = {
            "fifo": lambda: self._in_order(None),
            "srtf": lambda: self._in_order(self._remaining_s),
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

    def _remaining_s(self, job: int, left: _Left) -> float:
        return left(job) / self.times[job].rate(int(self.asked[job]))

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
