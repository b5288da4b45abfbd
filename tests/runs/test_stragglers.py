"""The slowest of n noisy workers: known limits, other numbers of workers, held-out jobs."""

import numpy as np
import pytest

from benchmarks.claims.stragglers import of_jobs, of_unknown, of_workers, slow_down_at
from hybridperf.io import InputError, read_table
from hybridperf.runs.stragglers import WorkerNoise


def test_the_two_known_limits() -> None:
    """Little noise: of ten normal times; most: one worker takes all the time."""
    small, most = slow_down_at([0.01, np.sqrt(10)])
    normal = np.random.default_rng(2).standard_normal((20_000, 10))
    expected = ((normal.max(axis=1) - normal.mean(axis=1)) / normal.std(axis=1, ddof=1)).mean()
    assert (small - 1) / 0.01 == pytest.approx(expected, rel=0.02)
    assert (most - 1) / np.sqrt(10) == pytest.approx(9 / np.sqrt(10), rel=0.02)


def test_variation_comes_back_and_more_workers_wait_longer() -> None:
    for cv in (0.03, 0.3, 1.5):
        noise = WorkerNoise(np.full(5, cv))
        times = noise.factors(10)
        assert times.mean(axis=0) == pytest.approx(1.0)
        assert (times.std(axis=0, ddof=1)).mean() == pytest.approx(cv, rel=0.05)
        slow = [noise.slow_down(count).mean() for count in (1, 2, 8, 64)]
        assert slow[0] == 1
        assert slow == sorted(slow)
    assert WorkerNoise(np.zeros(3)).slow_down(8).max() < 1.001


def test_times_and_their_variation_say_the_same() -> None:
    times = np.random.default_rng(0).lognormal(0, 0.1, (500, 6))
    noise = WorkerNoise.of_times(times)
    true = np.quantile(times.max(axis=1) / times.mean(axis=1), [0.5, 0.9])
    assert np.quantile(noise.slow_down(6), [0.5, 0.9]) == pytest.approx(true, rel=0.02)
    assert 1.05 < np.median(WorkerNoise.production().slow_down(10)) < 1.4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: WorkerNoise(np.array([-0.1])), "from 0 to"),
        (lambda: WorkerNoise(np.array([4.0])), "from 0 to 3.162"),
        (lambda: WorkerNoise(np.array([np.nan])), "from 0 to"),
        (lambda: WorkerNoise(np.array([0.1]), 1), "2 workers or more"),
        (lambda: WorkerNoise.of_times([[1.0, -1.0]]), "above zero"),
        (lambda: WorkerNoise(np.array([0.1])).factors(0), "1 worker or more"),
    ],
)
def test_wrong_numbers_are_a_sentence(call, said) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_held_out_production_jobs(data_dir) -> None:
    """Ours, and the baselines that it must beat; the second task is missed by a third of the jobs,
    whose first iterations tell nothing of their later ones.
    """
    folder = data_dir / "cluster"
    for line in of_workers(read_table(folder / "pai_worker_times.csv.gz")).lines:
        assert line.ours < line.goal
        assert line.ours < line.baselines["none"]
    rows = read_table(folder / "pai_worker_cv.csv.gz").sort_values(["job", "iteration"])
    cvs = {str(job): one.cv.to_numpy(float) for job, one in rows.groupby("job")}
    for line in of_jobs(cvs).lines:
        assert all(line.ours < other for other in line.baselines.values())
        if line.measure == "median error":
            assert line.ours < line.goal
    middle, tail = of_unknown(cvs).lines
    assert middle.ours < middle.goal
    # not known from 26 jobs, nor from all 52; but better known than from the jobs as recorded
    assert tail.goal < tail.baselines["all jobs, the judged among them"] < tail.ours
    assert all(
        tail.ours < tail.baselines[of] for of in ("jobs as recorded", "normal law", "constant")
    )


def test_the_law_of_unknown_jobs_has_the_mean_and_deviation_of_others() -> None:
    rng = np.random.default_rng(0)
    jobs = [np.exp(rng.normal(level, 0.3, 500)) for level in rng.normal(-2, 0.5, 40)]
    logs = np.log(np.concatenate(jobs))
    law = np.log(WorkerNoise.of_jobs(jobs).cv)
    assert law.mean() == pytest.approx(logs.mean(), abs=0.01)
    assert law.std() == pytest.approx(logs.std(), rel=0.03)
