"""Goodput and spares: cases by hand, limits, slopes, and closed forms against events."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from papers.edge import busy_chance
from scipy.special import lambertw
from support.run_events import Run

from hybridperf.engine.queues import erlang_b, erlang_b_between
from hybridperf.runs.goodput import (
    SHARES,
    FailureCycle,
    Spares,
    best_interval,
    best_spares,
    goodput,
    with_spares,
    young_interval_s,
)

HOUR_S = 3600.0
USUAL = FailureCycle(
    failures_per_s=1 / (3 * HOUR_S), interval_s=1800.0, checkpoint_s=30.0, detection_s=300.0,
    restart_s=400.0, lag_s=120.0, survived=0.4, memory_restart_s=100.0, checkpoints_per_write=3.0,
    write_s=20.0, planned_per_s=1 / (30 * HOUR_S), planned_s=900.0, evaluation_share=0.02,
    stalls_per_s=1 / (20 * HOUR_S), stall_s=1200.0,
)  # fmt: skip


def random_cycle(rng: np.random.Generator, memory: bool) -> FailureCycle:
    """A cycle in units of its mean time between failures, unlike in everything."""
    interval = rng.uniform(0.05, 0.2 if memory else 0.35)
    lag_s = interval * rng.choice([0.0, rng.uniform(0.1, 0.9)])
    more = dict(
        survived=rng.uniform(0.2, 0.9), memory_restart_s=rng.uniform(0, 0.1),
        checkpoints_per_write=float(rng.integers(2, 5)), write_s=rng.uniform(0, 0.03),
    ) if memory else dict(
        lag_s=lag_s, stall_s=rng.uniform(0, 0.2), stalls_per_s=rng.choice([0.0, 0.3]),
        evaluation_share=rng.choice([0.0, 0.05]), planned_per_s=rng.choice([0.0, 0.2]),
        planned_s=lag_s + rng.uniform(0, 0.2),
    )  # fmt: skip
    return FailureCycle(
        1.0, interval, rng.uniform(0.002, 0.05), rng.uniform(0, 0.2), rng.uniform(0, 0.2), **more
    )


def test_without_failures_only_checkpoints_cost() -> None:
    found = goodput(FailureCycle(0.0, 100.0, 10.0, 50.0, 50.0))
    assert found.useful == pytest.approx(100 / 110)
    assert found.checkpoints == pytest.approx(10 / 110)
    assert found.failures_per_s < 1e-15


def test_one_level_is_dalys() -> None:
    """Daly 2006: M e^(R/M) (e^((tau + delta) / M) - 1) per tau, where detection takes no time."""
    rate, interval_s, pause_s, restart_s = 1 / 5000.0, 700.0, 60.0, 240.0
    daly_s = np.exp(rate * restart_s) * np.expm1(rate * (interval_s + pause_s)) / rate
    found = goodput(FailureCycle(rate, interval_s, pause_s, restart_s=restart_s))
    assert found.useful == pytest.approx(interval_s / daly_s, rel=1e-12)


def test_shares_are_all_of_the_time() -> None:
    shares = goodput(USUAL).shares()
    assert set(shares) == set(SHARES)
    assert sum(map(float, shares.values())) == pytest.approx(1.0)
    assert all(0 < float(share) < 1 for share in shares.values())


def test_memory_that_loses_everything_is_storage_alone() -> None:
    """A copy in memory that no failure leaves behind is a pause and nothing else."""
    lost = FailureCycle(1e-4, 500.0, 5.0, 60.0, 90.0, checkpoints_per_write=4.0, write_s=8.0)
    alone = FailureCycle(1e-4, 2000.0, 28.0, 60.0, 90.0)
    assert goodput(lost).useful == pytest.approx(goodput(alone).useful, rel=1e-12)
    kept = dataclasses.replace(lost, survived=1.0, memory_restart_s=90.0)
    near = FailureCycle(1e-4, 500.0, 7.0, 60.0, 90.0)
    assert goodput(kept).useful == pytest.approx(goodput(near).useful, rel=1e-6)


# cases and failures of each; 2,500 tell a run with copies in memory to 0.6 %, so that of 200 cases
# by as many some would be 1 % off their own mean
FEW = 70, 2500


def all_cases(failures: int) -> Any:
    return pytest.param((200, failures), marks=pytest.mark.slow)


def close(apart: list[float]) -> bool:
    print(f"mean {np.mean(apart):+.3%}, worst {np.max(np.abs(apart)):.3%}")
    return bool(np.max(np.abs(apart)) < 0.01)


def test_closed_form_of_storage_is_what_events_say() -> None:
    rng, apart = np.random.default_rng(7), []
    for seed in range(200):
        cycle = random_cycle(rng, memory=False)
        apart.append(float(goodput(cycle).useful) / Run(cycle, seed, 1200).useful_share() - 1)
    assert close(apart)


@pytest.mark.parametrize("effort", [FEW, all_cases(20_000)])
def test_closed_form_of_copies_in_memory_is_what_events_say(effort: tuple[int, int]) -> None:
    rng, apart = np.random.default_rng(7), []
    for seed in range(effort[0]):
        cycle = random_cycle(rng, memory=True)
        apart.append(float(goodput(cycle).useful) / Run(cycle, seed, effort[1]).useful_share() - 1)
    assert close(apart)


@pytest.mark.parametrize("effort", [FEW, all_cases(5000)])
def test_spares_are_what_events_say(effort: tuple[int, int]) -> None:
    """Detection up to a twentieth of the time between failures: while the job lies nothing fails,
    and Erlang's arrivals without memory become too bursty (1.5 % of goodput at a fifth).
    """
    rng, apart = np.random.default_rng(11), []
    for seed in range(effort[0]):
        cycle = random_cycle(rng, memory=False)
        cycle = dataclasses.replace(
            cycle, planned_per_s=0.0, stalls_per_s=0.0, lag_s=0.0, evaluation_share=0.0,
            detection_s=cycle.detection_s / 4,
        )  # fmt: skip
        spares = Spares(float(rng.integers(0, 6)), rng.uniform(0.2, 1.5), rng.uniform(0.3, 1.0))
        simulated = Run(cycle, seed, effort[1], spares).useful_share()
        apart.append(float(with_spares(cycle, spares)[0].useful) / simulated - 1)
    assert close(apart)


@pytest.mark.parametrize("knob", [one.name for one in dataclasses.fields(FailureCycle)])
def test_slopes_are_finite_differences(knob: str) -> None:
    def useful(value: float) -> float:
        return goodput(dataclasses.replace(USUAL, **{knob: value})).useful

    at = getattr(USUAL, knob)
    with jax.enable_x64(True):
        slope = float(jax.grad(useful)(at))
    step = 1e-4 * at
    found = (useful(at + step) - useful(at - step)) / (2 * step)
    assert slope == pytest.approx(float(found), rel=1e-5)
    assert slope != 0


def test_best_interval_by_gradient_is_the_exact_one() -> None:
    """Young is near where checkpoints are short; Daly nearer; the gradient finds Lambert's."""
    for pause_s in (5.0, 60.0, 900.0):
        cycle = FailureCycle(1 / 9000.0, 1.0, pause_s, 200.0, 300.0)
        # least of (e^(r (interval + checkpoint)) - 1) / interval, by Lambert's W
        exact_s = 9000.0 * (1.0 + float(lambertw(-np.exp(-pause_s / 9000.0 - 1.0)).real))
        assert best_interval(cycle).interval_s == pytest.approx(exact_s, rel=1e-3)
        young_s, half = float(young_interval_s(1 / 9000.0, pause_s)), pause_s / 18000.0
        daly_s = young_s * (1.0 + half**0.5 / 3.0 + half / 9.0) - pause_s
        assert daly_s == pytest.approx(exact_s, rel=0.01)
        assert abs(young_s / exact_s - 1) > abs(daly_s / exact_s - 1)


def test_best_of_two_levels_is_the_best_of_a_grid() -> None:
    bounds = {"checkpoints_per_write": (1.0, 40.0)}
    found = best_interval(USUAL, ("checkpoints_per_write",), bounds)
    grid = [
        float(goodput(dataclasses.replace(USUAL, interval_s=a, checkpoints_per_write=b)).useful)
        for a in np.geomspace(120.0, 20000.0, 80)
        for b in np.geomspace(1.0, 40.0, 80)
    ]
    assert float(goodput(found).useful) >= max(grid) - 1e-9


def test_erlangs_loss_is_the_textbook_one() -> None:
    """Vectors of any table, and B from C: B = (k - a) C / (k - a C)."""
    assert erlang_b_between(8, 4.0) == pytest.approx(0.03042, abs=5e-6)
    assert erlang_b_between(16, 12.0) == pytest.approx(0.06041, abs=5e-6)
    for places, load in ((0, 3000.0), (100, 2000.0), (3, 700.0), (1500, 2000.0)):
        assert erlang_b_between(places, load) == pytest.approx(erlang_b(places, load), rel=1e-9)
    waits = busy_chance(7.0, 1.0, 10)
    assert erlang_b_between(10, 7.0) == pytest.approx((10 - 7) * waits / (10 - 7 * waits), rel=1e-9)
    with jax.enable_x64(True):
        slope = float(jax.grad(lambda count: erlang_b_between(count, 3.0))(4.5))
    step = 1e-5
    found = (erlang_b_between(4.5 + step, 3.0) - erlang_b_between(4.5 - step, 3.0)) / (2 * step)
    assert slope == pytest.approx(float(found), rel=1e-4)


def test_best_spares_by_gradient_are_the_best_of_all() -> None:
    for nodes, repair_s in ((16, 24 * HOUR_S), (256, 48 * HOUR_S), (2048, 12 * HOUR_S)):
        cycle = FailureCycle(nodes / (2000 * HOUR_S), 1800.0, 20.0, 300.0, 300.0)
        found = best_spares(cycle, Spares(0.0, repair_s, 0.8), nodes)
        each = [
            float(with_spares(cycle, Spares(float(count), repair_s, 0.8))[0].useful)
            / (nodes + count)
            for count in range(120)
        ]
        assert found == int(np.argmax(each)), (nodes, found, int(np.argmax(each)))
