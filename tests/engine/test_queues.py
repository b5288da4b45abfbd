"""Closed forms of queues: textbook limits, and queues simulated request by request."""

import jax
import numpy as np
import pytest

from hybridperf.engine.queues import (
    erlang_b,
    erlang_c,
    falling_root,
    latency_over,
    latency_percentile_s,
    mean_wait_s,
    sources_wait,
    wait_percentile_s,
)


def simulated(gaps: np.ndarray, service_s: np.ndarray, servers: int) -> np.ndarray:
    """Waits of a first-come queue (Kiefer and Wolfowitz's recursion)."""
    free, now, waits = np.zeros(servers), 0.0, []
    for gap, service in zip(gaps, service_s, strict=True):
        now += gap
        at = int(free.argmin())
        begins = max(now, free[at])
        waits.append(begins - now)
        free[at] = begins + service
    return np.array(waits)


def test_one_server_is_the_textbook_one() -> None:
    """M/M/1: wait u / (1 - u) services; M/D/1 half of it; exponential waits."""
    assert mean_wait_s(0.8, 1.0) == pytest.approx(4.0)
    assert mean_wait_s(0.8, 1.0, service_cv2=0.0) == pytest.approx(2.0)
    assert erlang_c(1, 0.8) == pytest.approx(0.8)
    assert wait_percentile_s(0.8, 1.0, 1, 0.9) == pytest.approx(np.log(8) / 0.2)
    assert mean_wait_s(1.0, 1.0) == np.inf


@pytest.mark.parametrize(("servers", "busy"), [(2, 1.0), (10, 8.0), (100, 90.0)])
def test_many_servers_are_the_sum_over_states(servers: int, busy: float) -> None:
    """Erlang C as its sum: busy^k / k! k / (k - busy) over all states."""
    terms = np.cumprod([1.0, *(busy / np.arange(1, servers + 1))])
    last = terms[-1] * servers / (servers - busy)
    assert erlang_c(servers, busy) == pytest.approx(last / (terms[:-1].sum() + last))


def test_a_simulated_queue_waits_as_long() -> None:
    rng = np.random.default_rng(0)
    gaps, service_s = rng.exponential(1 / 2.4, 60_000), rng.exponential(1.0, 60_000)
    waits = simulated(gaps, service_s, 3)
    assert waits.mean() == pytest.approx(float(mean_wait_s(2.4, 1.0, 3)), rel=0.1)
    assert np.quantile(waits, 0.9) == pytest.approx(
        float(wait_percentile_s(2.4, 1.0, 3, 0.9)), rel=0.1
    )


def test_waits_have_slopes() -> None:
    slope = jax.grad(lambda rate: mean_wait_s(rate, 1.0, 4))(3.0)
    step = 1e-4
    found = (mean_wait_s(3.0 + step, 1.0, 4) - mean_wait_s(3.0 - step, 1.0, 4)) / (2 * step)
    assert float(slope) == pytest.approx(float(found), rel=1e-3)


def test_waits_of_published_vectors() -> None:
    """Waits over service at utilisations of 0.5, 0.7, 0.9; the chance to wait of five servers."""
    for servers, waits in (
        (1, (1.0, 2.3333, 9.0)), (5, (0.0521, 0.2519, 1.5250)), (10, (0.0072, 0.0739, 0.6687)),
    ):  # fmt: skip
        rates = servers * np.array([0.5, 0.7, 0.9])
        np.testing.assert_allclose(mean_wait_s(rates, 1.0, servers), waits, atol=6e-5)
    np.testing.assert_allclose(erlang_c(5, [2.5, 3.5, 4.5]), [0.1304, 0.3778, 0.7625], atol=6e-5)


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.7), (2, 1.0), (3, 2.0), (8, 6.5)])
def test_latencies_are_waits_and_services_together(servers: int, busy: float) -> None:
    """The tail's integral is the mean, with gaps of 1 among them, where the formula's limit counts;
    of one server it is exponential."""
    at = np.linspace(0, 400, 400_001)
    over = latency_over(at, busy, 1.0, servers)
    assert (np.diff(over) <= 1e-15).all()
    mean_s = float(np.trapezoid(over, at))
    assert mean_s == pytest.approx(1.0 + float(mean_wait_s(busy, 1.0, servers)), rel=1e-4)
    found = latency_percentile_s(busy, 1.0, servers, 0.99)
    assert float(latency_over(found, busy, 1.0, servers)) == pytest.approx(0.01)
    if servers == 1:
        assert found == pytest.approx(np.log(100) / (1 - busy))
    assert latency_percentile_s(servers, 1.0, servers, 0.9) == np.inf


def test_sources_that_begin_anywhere_wait_by_erlang_s_loss() -> None:
    """Where their periods differ by far more than a service no order remains."""
    for others, period in ((1, 3.0), (4, 5.0), (30, 25.0), (200, 260.0)):
        lost = erlang_b(others, period)
        wait = float(sources_wait(float(others), period, 1e9))
        assert wait == pytest.approx(float(1.0 / lost - 1.0) / 2.0, rel=1e-5)


def test_a_root_has_the_slope_of_what_it_solves() -> None:
    """x + x^2 / 10 = a, beside the slope of the implicit function."""
    root = lambda a: falling_root(lambda x: a - x - x * x / 10.0, 0.0 * a)  # noqa: E731
    value, slope = jax.value_and_grad(root)(2.0)
    exact = 5.0 * (1.8**0.5 - 1.0)
    assert float(value) == pytest.approx(exact, rel=1e-5)
    assert float(root(np.float64(2.0))) == pytest.approx(exact, rel=1e-9)
    assert float(slope) == pytest.approx(1.0 / (1.0 + exact / 5.0), rel=1e-3)
