"""Edge and cloud: where they turn, by published vectors, by symmetry and by simulation."""

import numpy as np
import pytest
from papers.edge import by_rate, inversion, latency_s

from hybridperf.engine.queues import latency_percentile_s, mean_wait_s
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


@pytest.mark.parametrize("servers", [1, 3])
def test_percentiles_are_the_library_s(servers) -> None:
    found = latency_s(0.8 * servers, servers, 1.0, share=0.95)
    assert found == pytest.approx(latency_percentile_s(0.8 * servers, 1.0, servers, 0.95), rel=1e-9)
    mean = latency_s(0.8 * servers, servers, 1.0, service_cv2=0.0)
    assert mean == pytest.approx(1.0 + mean_wait_s(0.8 * servers, 1.0, servers, service_cv2=0.0))


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
