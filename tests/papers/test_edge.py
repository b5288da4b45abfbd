"""Edge and cloud: where they turn, by published vectors, by symmetry and by simulation."""

import numpy as np
import pytest
from papers.edge import busy_chance, by_rate, inversion, latency_s

from hybridperf.serving.pools import InstanceType, latencies

SERVICE_S = 1 / 13


@pytest.mark.parametrize(
    ("sites", "utilisations"),
    [
        (2, (0.1881, 0.2964, 0.4924, 0.6288)),
        (5, (0.1634, 0.2467, 0.4013, 0.5248)),
        (10, (0.1632, 0.2453, 0.3944, 0.5118)),
    ],
)
def test_utilisation_of_inversion(sites, utilisations) -> None:
    """Ways 15, 25, 50, 80 ms longer, 13 requests/s an instance: "even moderate utilisation"."""
    ways_s = (0.015, 0.025, 0.050, 0.080)
    found = [inversion(sites, SERVICE_S, way_s) * SERVICE_S for way_s in ways_s]
    np.testing.assert_allclose(found, utilisations, atol=6e-5)


def test_edge_and_cloud_are_alike_where_they_turn() -> None:
    rate = inversion(5, 0.1, 0.03)
    assert 0 < rate < 10
    assert latency_s(rate, 1, 0.1) == pytest.approx(latency_s(5 * rate, 5, 0.1, 0.03))
    assert latency_s(0.9 * rate, 1, 0.1) < latency_s(4.5 * rate, 5, 0.1, 0.03)
    assert latency_s(1.1 * rate, 1, 0.1) > latency_s(5.5 * rate, 5, 0.1, 0.03)
    # one site: the same queue, so the way decides; farther away turns later
    assert inversion(1, 0.1, 0.03) == np.inf
    assert inversion(5, 0.1, 0.0) == 0.0
    assert inversion(5, 0.1, 0.06) > rate


def test_tails_turn_before_means() -> None:
    """Ali-Eldin et al.: the inversion comes at a lower load for high percentiles."""
    rates = [inversion(5, SERVICE_S, 0.05, share=share) for share in (0.0, 0.9, 0.99)]
    assert rates == sorted(rates, reverse=True)
    rows = by_rate(5, SERVICE_S, 0.05)
    cloud = rows.loc[rows["cloud_s"] < rows["edge_s"], "utilisation"]
    assert cloud.min() - 0.05 < rates[0] * SERVICE_S <= cloud.min()


def test_one_server_is_the_textbook_one() -> None:
    """M/M/1: wait u / (1 - u) services; M/D/1 half of it; exponential latencies."""
    assert latency_s(0.8, 1, 1.0) == pytest.approx(5.0)
    assert latency_s(0.8, 1, 1.0, service_cv2=0.0) == pytest.approx(3.0)
    assert latency_s(0.8, 1, 1.0, share=0.99) == pytest.approx(np.log(100) / 0.2)
    assert latency_s(1.0, 1, 1.0) == np.inf


@pytest.mark.parametrize(("servers", "busy"), [(2, 1.0), (10, 8.0), (100, 90.0)])
def test_many_servers_are_the_sum_over_states(servers: int, busy: float) -> None:
    """Erlang C as its sum: busy^k / k! k / (k - busy) over all states."""
    terms = np.cumprod([1.0, *(busy / np.arange(1, servers + 1))])
    last = terms[-1] * servers / (servers - busy)
    assert busy_chance(busy, 1.0, servers) == pytest.approx(last / (terms[:-1].sum() + last))


def test_waits_of_published_vectors() -> None:
    """Waits over service at utilisations of 0.5, 0.7, 0.9."""
    for servers, waits in (
        (1, (1.0, 2.3333, 9.0)), (5, (0.0521, 0.2519, 1.5250)), (10, (0.0072, 0.0739, 0.6687)),
    ):  # fmt: skip
        found = [latency_s(servers * u, servers, 1.0) - 1 for u in (0.5, 0.7, 0.9)]
        np.testing.assert_allclose(found, waits, atol=6e-5)


@pytest.mark.parametrize(("servers", "busy"), [(2, 1.0), (3, 2.0), (8, 6.5)])
def test_the_mean_is_the_integral_of_percentiles(servers: int, busy: float) -> None:
    shares = np.concatenate([np.linspace(0.0005, 0.9985, 999), 1 - np.geomspace(1e-3, 1e-9, 300)])
    found = [latency_s(busy, servers, 1.0, share=share) for share in shares]
    mean_s = float(np.trapezoid(found, shares))
    assert mean_s == pytest.approx(latency_s(busy, servers, 1.0), rel=2e-3)


def test_the_turn_is_that_of_simulated_requests() -> None:
    """At the solved rate both simulated means are alike, and 15 % away on either side not."""
    sites, way_s = 5, 0.05
    rate, rng = inversion(sites, SERVICE_S, way_s), np.random.default_rng(0)

    def simulated(rate: float, servers: int, count: int) -> float:
        gaps, size = rng.exponential(1.0, (2, count))  # their means are made exact: less noise
        arrival_s = np.cumsum(gaps / gaps.mean() / rate)
        size *= SERVICE_S / size.mean()
        return float(latencies([InstanceType("", 1, 0, 1)], [servers], arrival_s, size).mean())

    def gap(factor: float, count: int = 40_000) -> float:
        near_s = simulated(factor * rate, 1, count)
        far_s = simulated(sites * factor * rate, sites, count)
        return near_s / (far_s + way_s) - 1

    assert abs(gap(1.0, 120_000)) < 0.02
    assert gap(0.85) < -0.02
    assert gap(1.15) > 0.02
