"""The simulation of a stream of jobs against what is known in closed form."""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hybridperf.engine.queues import erlang_b
from hybridperf.runs.job_stream import Given, run_stream


def first_come(servers: int):
    def schedule(
        waiting: Sequence[int], running: Mapping[int, Given], *_: object
    ) -> Mapping[int, Given]:
        given = dict(running)
        for job in waiting:
            if len(given) < servers:
                given[job] = 1
        return given

    return schedule


def alike(given: Mapping[int, Given]) -> Mapping[int, float]:
    return dict.fromkeys(given, 1.0)


def test_first_come_first_served_on_200_random_streams() -> None:
    """Exact: each job starts on the server that is free first (Kiefer and Wolfowitz)."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        servers, count = int(rng.integers(1, 9)), 60
        arrival_s = np.cumsum(rng.exponential(1.0, count))
        work = rng.lognormal(0.0, 1.0, count) * servers * rng.uniform(0.3, 1.3)
        free, end_s = [0.0] * servers, []
        for when, takes in zip(arrival_s, work, strict=True):
            end_s.append(max(heapq.heappop(free), when) + takes)
            heapq.heappush(free, end_s[-1])
        found = run_stream(arrival_s, work, first_come(servers), alike)
        assert found.end_s == pytest.approx(end_s, rel=1e-9)


def evenly_exponential(rng: np.random.Generator, count: int) -> np.ndarray:
    """Exponential draws, one from each of as many equal parts of the law: the mean is the law's."""
    return rng.permutation(-np.log1p(-(np.arange(count) + rng.random(count)) / count))


def test_loss_on_200_random_systems_is_erlang_s() -> None:
    """Blocking within 1 % in the mean and within 0.01 for the median system; each by itself within
    four standard errors of its 1,000 arrivals: no more can be asked of so many.
    """
    found, expected, errors = [], [], []
    count = 1000
    for seed in range(200):
        rng = np.random.default_rng(seed)
        servers = int(rng.integers(1, 9))
        busy = servers * rng.uniform(0.5, 2.5)
        arrival_s = np.cumsum(evenly_exponential(rng, count)) / busy
        work = evenly_exponential(rng, count)
        one = run_stream(arrival_s, work, first_come(servers), alike, patient=False)
        found.append(one.blocking)
        expected.append(float(erlang_b(servers, busy)))
        errors.append(np.sqrt(expected[-1] * (1 - expected[-1]) * 2 / count))
    off = np.abs(np.array(found) - expected)
    assert (off <= 4 * np.array(errors)).all()
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.01)
    assert np.median(off) < 0.01


def test_equal_shares_are_processor_sharing() -> None:
    """Jobs that come together and share alike: the k-th shortest of n ends at
    sum of the shorter + (n - k + 1) x its own.
    """

    def everyone(
        waiting: Sequence[int], running: Mapping[int, Given], *_: object
    ) -> Mapping[int, Given]:
        return dict.fromkeys([*running, *waiting], 1)

    def shared(given: Mapping[int, Given]) -> Mapping[int, float]:
        return dict.fromkeys(given, 1.0 / max(len(given), 1))

    for seed in range(50):
        rng = np.random.default_rng(seed)
        work = np.sort(rng.exponential(1.0, int(rng.integers(1, 12))))
        n = len(work)
        expected = [work[:k].sum() + (n - k) * work[k] for k in range(n)]
        found = run_stream(np.zeros(n), work, everyone, shared)
        assert found.end_s == pytest.approx(expected)


def test_moving_a_job_costs_a_restart() -> None:
    """A job of 10 on two GPUs gives one up at 2, then waits a second before it goes on alone."""

    def schedule(
        waiting: Sequence[int], running: Mapping[int, Given], *_: object
    ) -> Mapping[int, Given]:
        jobs = [*running, *waiting]
        return dict.fromkeys(jobs, 2 // max(len(jobs), 1))

    def rates(given: Mapping[int, Given]) -> Mapping[int, float]:
        return {job: float(gpus) for job, gpus in given.items()}  # type: ignore[arg-type]

    found = run_stream(np.array([0.0, 2.0]), np.array([10.0, 2.0]), schedule, rates, restart_s=1.0)
    # 4 done by 2; from 3 on at 1 until the other ends at 4; from 5 on at 2
    assert found.end_s.tolist() == [5.0 + 5.0 / 2, 4.0]
    assert found.moves.tolist() == [2, 0]
