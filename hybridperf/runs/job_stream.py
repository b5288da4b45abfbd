"""A stream of jobs on a cluster, event by event: who waits, who runs where, who ends when.

A job is so much work (samples, steps) and runs at a rate that hangs on what it has been given, and
may hang on who runs beside it. Whenever a job comes or ends, a schedule says again what each has;
rates are asked again, and what was done until then stays done. simpy keeps the clock and the order
of events; where the rates come from is the caller's (the engine's step times).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import simpy

Given = Hashable  # what a job has: a number of GPUs, a set of them
# by job: what each that shall run has; of (waiting, running, work left of each, now)
Schedule = Callable[
    [Sequence[int], Mapping[int, Given], Callable[[int], float], float], Mapping[int, Given]
]
Rates = Callable[[Mapping[int, Given]], Mapping[int, float]]  # work a second of each that runs


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """What became of J jobs; NaN where a job was refused."""

    arrival_s: np.ndarray
    start_s: np.ndarray  # when it first ran
    end_s: np.ndarray
    moves: np.ndarray  # how often it was given something else, or stopped, while it ran

    @property
    def refused(self) -> np.ndarray:
        return np.isnan(self.end_s)

    @property
    def completion_s(self) -> np.ndarray:
        """Seconds from arrival to end of each job [J]."""
        return self.end_s - self.arrival_s

    @property
    def blocking(self) -> float:
        """Share of the jobs that were refused."""
        return float(self.refused.mean())

    def mean_completion_s(self) -> float:
        """Mean seconds from arrival to end of the jobs that ended."""
        return float(np.nanmean(self.completion_s))


def run_stream(
    arrival_s: np.ndarray, work: np.ndarray, schedule: Schedule, rates: Rates, *,
    patient: bool = True, restart_s: float = 0.0,
) -> StreamResult:  # fmt: skip
    """Jobs from the first arrival until all have ended.

    Args:
        arrival_s: rising [J].
        work: of each job [J].
        schedule: what each job shall have, asked at each arrival and end.
        rates: work a second by what all that run have.
        patient: jobs wait; if not, one that the schedule does not start when it comes is refused.
        restart_s: seconds without work whenever a job that runs is given something else.
    """
    stream = _Stream(np.asarray(arrival_s, float), np.asarray(work, float), schedule, rates,
                     patient, restart_s)  # fmt: skip
    stream.env.process(stream.arrivals())
    stream.env.run()
    return StreamResult(stream.arrival_s, stream.start_s, stream.end_s, stream.moves)


class _Stream:
    """The state between events."""

    def __init__(
        self, arrival_s: np.ndarray, work: np.ndarray, schedule: Schedule, rates: Rates,
        patient: bool, restart_s: float,
    ):  # fmt: skip
        self.env = simpy.Environment()
        self.arrival_s, self.schedule, self.rates = arrival_s, schedule, rates
        self.patient, self.restart_s = patient, restart_s
        self.start_s, self.end_s = (np.full(len(work), np.nan) for _ in range(2))
        self.moves = np.zeros(len(work), int)
        self.left = work.tolist()
        self.waiting: list[int] = []
        self.running: dict[int, Given] = {}
        self.rate: dict[int, float] = {}
        self.since: dict[int, float] = {}  # from when on each works at its rate
        self.timer: dict[int, Any] = {}  # the end that counts; others are out of date

    def arrivals(self) -> Any:
        for job, when in enumerate(self.arrival_s.tolist()):
            yield self.env.timeout(max(when - self.env.now, 0.0))
            self.waiting.append(job)
            self._settle_all()

    def left_of(self, job: int) -> float:
        """Work that is left of a job now."""
        if job not in self.running:
            return float(self.left[job])
        done = max(self.env.now - self.since[job], 0.0) * self.rate[job]
        return max(float(self.left[job]) - done, 0.0)

    def _ended(self, timer: Any) -> None:
        job = timer.value
        if self.timer.get(job) is timer:
            self.end_s[job] = self.env.now
            self._stop(job)
            self._settle_all()

    def _stop(self, job: int) -> None:
        for state in (self.running, self.rate, self.since, self.timer):
            del state[job]

    def _settle_all(self) -> None:
        """Ask who shall have what, and at what rates they go on."""
        now, before = self.env.now, self.running
        given = self.schedule(self.waiting, before, self.left_of, now)
        for job in [one for one in before if one not in given]:
            self.left[job] = self.left_of(job)
            self._stop(job)
            self.moves[job] += 1
            self.waiting.append(job)
        rates = self.rates(given)
        for job, has in given.items():
            ran = job in before
            if ran and before[job] == has and self.rate[job] == rates[job]:
                continue
            self.left[job] = self.left_of(job)
            moved = ran and before[job] != has
            begins = now + self.restart_s * (moved or (not ran and self.moves[job] > 0))
            if ran:
                begins = max(begins, self.since[job])
            self.moves[job] += moved
            if not ran and not self.moves[job]:
                self.start_s[job] = now
            self.running[job], self.rate[job], self.since[job] = has, rates[job], begins
            timer = self.env.timeout(begins - now + self.left[job] / rates[job], job)
            timer.callbacks.append(self._ended)
            self.timer[job] = timer
        self.waiting = [job for job in self.waiting if job not in given] if self.patient else []
