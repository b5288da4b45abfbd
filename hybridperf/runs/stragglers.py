"""How much longer a step takes for the slowest of n noisy workers.

In an iteration workers take log-normal times of one width sigma: the log of each is normal. What is
recorded in production is often the coefficient of variation (cv) alone, of the times of m workers;
of m log-normal times it goes from about sigma to sqrt(m), where one worker takes all the time, and
(slowest / mean - 1) / cv from that of m normal numbers (1.6 for ten) to (m - 1) / sqrt(m) (2.85):
the two limits that are known. So a recorded cv tells sigma, and sigma the slowest
of any other number of workers. Between iterations and jobs cv varies by far more than within: the
law of a job is the recorded cvs themselves, each as likely; that of unknown jobs a Gumbel law of
log cv with the mean and deviation of other jobs (few jobs tell no tail by themselves).

    cv of m workers  ->  sigma  ->  n log-normal factors, mean 1  ->  rows of the step's graph

Axes: I recorded iterations, D drawn iterations, n workers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from hybridperf.engine.unlike import UnlikeStep
from hybridperf.io import InputError, shipped_toml

DRAWS = 4096
_SIGMAS = np.geomspace(1e-4, 30.0, 200)
_SAMPLES = 4000
_LEAST_CV, _QUANTILES = 1e-3, 400


@dataclasses.dataclass(frozen=True)
class WorkerNoise:
    """How the times of workers of one job scatter within an iteration."""

    cv: np.ndarray  # recorded coefficients of variation (divisor m - 1), each as likely [I]
    workers: int = 10  # m, that each was recorded over

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise InputError(f"expected variation over 2 workers or more, got {self.workers}")
        cv = np.asarray(self.cv, float)
        most = np.sqrt(self.workers)
        if cv.ndim != 1 or not cv.size or not ((cv >= 0) & (cv <= most * (1 + 1e-6))).all():
            raise InputError(
                f"expected coefficients of variation from 0 to {most:.4g}, the most that"
                f" {self.workers} workers can have; got {self.cv!r:.60}"
            )

    @classmethod
    def of_times(cls, times_s: ArrayLike) -> WorkerNoise:
        """From what each worker took in each iteration [I, m]."""
        times = np.asarray(times_s, float)
        if times.ndim != 2 or times.shape[1] < 2 or not (times > 0).all():
            raise InputError("expected times above zero [iterations, two workers or more]")
        return cls(times.std(axis=1, ddof=1) / times.mean(axis=1), times.shape[1])

    @classmethod
    def of_jobs(cls, cvs: Sequence[ArrayLike], workers: int = 10) -> WorkerNoise:
        """Of a job of which nothing is known, from cvs of others [jobs][I], each job as likely."""
        logs = [np.log(np.maximum(np.asarray(cv, float), _LEAST_CV)) for cv in cvs]
        mean = np.mean([one.mean() for one in logs])
        variance = np.mean([((one - mean) ** 2).mean() for one in logs])
        return cls._unknown(float(mean), float(np.sqrt(variance)), workers)

    @classmethod
    def _unknown(cls, mean: float, deviation: float, workers: int) -> WorkerNoise:
        law = scipy.stats.gumbel_r(mean - np.euler_gamma * (b := deviation * np.sqrt(6) / np.pi), b)
        cv = np.exp(law.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES))
        return cls(np.minimum(cv, np.sqrt(workers)), workers)

    @classmethod
    def production(cls) -> WorkerNoise:
        """What production jobs show: 52 of 10 workers each on shared GPUs, each job as likely."""
        law = shipped_toml(__package__, "stragglers.toml")
        return cls._unknown(law["log_cv_mean"], law["log_cv_deviation"], law["workers"])

    def factors(self, workers: int, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
        """What each of so many workers takes over their mean [n, D]."""
        if workers < 1:
            raise InputError(f"expected 1 worker or more, got {workers}")
        rng = np.random.default_rng(seed)
        # each recorded iteration equally often
        cv = np.quantile(self.cv, rng.permutation((np.arange(draws) + 0.5) / draws))
        sigma = np.exp(np.interp(cv, simulated(self.workers)[0], np.log(_SIGMAS)))
        logs = sigma * rng.standard_normal((workers, draws))
        times = np.exp(logs - logs.max(axis=0))
        return times / times.mean(axis=0)

    def slow_down(self, workers: int, draws: int = DRAWS) -> np.ndarray:
        """The slowest over the mean, drawn [D]."""
        return self.factors(workers, draws).max(axis=0)

    def step_s(self, step: UnlikeStep, draws: int = DRAWS) -> np.ndarray:
        """Seconds of a synchronous step whose workers scatter so, drawn [D], by its graph.

        A worker's own time stays as it is priced in the mean over workers.
        """
        return step.times(np.maximum(self.factors(len(step.names), draws), 1e-9))


@functools.cache
def simulated(workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean cv of so many log-normal times, and mean (slowest / mean - 1) / cv, by `_SIGMAS`."""
    normal = np.random.default_rng(0).standard_normal((_SAMPLES, workers))
    cv, slope = [], []
    for sigma in _SIGMAS:
        times = np.exp(sigma * (normal - normal.max(axis=1, keepdims=True)))
        mean = times.mean(axis=1)
        cv.append((of_one := times.std(axis=1, ddof=1) / mean).mean())
        slope.append(((1 / mean - 1) / of_one).mean())
    return np.maximum.accumulate(cv), np.array(slope)
