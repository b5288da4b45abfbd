"""Pools, edge and cloud, tasks that share a machine: cases that are known or counted out."""

import itertools

import numpy as np
import pytest

from hybridperf.io import InputError
from hybridperf.runs.pools import (
    InstanceType,
    cheapest,
    cloud_s,
    edge_s,
    homogeneous,
    inversion,
    latencies,
    together_s,
)

QUICK = InstanceType("quick", 3.5, 0.010, 0.001)
SLOW = InstanceType("slow", 1.0, 0.020, 0.005)


def arrivals(rate: float, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.cumsum(rng.exponential(1 / rate, count)), rng.integers(1, 20, count).astype(float)


def test_requests_go_to_the_quickest_that_is_free() -> None:
    arrival_s, size = np.array([0.0, 0.0, 0.0]), np.array([10.0, 10.0, 10.0])
    np.testing.assert_allclose(
        latencies([SLOW, QUICK], [1, 1], arrival_s, size), [0.020, 0.070, 0.040]
    )


def test_a_mixed_pool_is_cheaper_than_any_of_one_type() -> None:
    arrival_s, size = arrivals(60.0, 1500)
    mixed = cheapest([QUICK, SLOW], arrival_s, size, 0.14, most=6)
    alone = homogeneous([QUICK, SLOW], arrival_s, size, 0.14, most=10)
    assert all(mixed.counts)
    assert mixed.within >= 0.99
    assert all(one is None or one.usd_per_hour > mixed.usd_per_hour for one in alone.values())
    assert [one.usd_per_hour for one in alone.values() if one] == [7.0, 7.0]


def test_nothing_cheaper_is_good_enough() -> None:
    arrival_s, size = arrivals(60.0, 600)
    found = cheapest([QUICK, SLOW], arrival_s, size, 0.08, most=4)
    for counts in itertools.product(range(5), repeat=2):
        if any(counts) and 3.5 * counts[0] + counts[1] < found.usd_per_hour:
            late = latencies([QUICK, SLOW], counts, arrival_s, size) > 0.08
            assert late.mean() > 0.01
    with pytest.raises(InputError, match="expected a pool of at most 1"):
        cheapest([SLOW], arrival_s, size, 0.08, most=1)


def test_edge_and_cloud_are_alike_where_they_turn() -> None:
    rate = inversion(5, 0.1, 0.03)
    assert 0 < rate < 10
    assert edge_s(rate, 0.1) == pytest.approx(cloud_s(rate, 5, 0.1, 0.03))
    assert edge_s(0.9 * rate, 0.1) < cloud_s(0.9 * rate, 5, 0.1, 0.03)
    assert edge_s(1.1 * rate, 0.1) > cloud_s(1.1 * rate, 5, 0.1, 0.03)
    # one site: the same queue, so the way decides; farther away turns later
    assert inversion(1, 0.1, 0.03) == np.inf
    assert inversion(5, 0.1, 0.0) == 0.0
    assert inversion(5, 0.1, 0.06) > rate


def test_tasks_together_take_between_the_busiest_resource_and_all() -> None:
    tasks = [{"compute": 3.0, "memory": 1.0}, {"compute": 1.0, "memory": 4.0}]
    assert together_s(tasks) == (5.0, 9.0)
    assert together_s([]) == (0.0, 0.0)


def test_the_command_finds_the_pool(run, refused, tmp_path) -> None:
    types, requests = tmp_path / "types.csv", tmp_path / "requests.csv"
    types.write_text("name,usd_per_hour,fixed_s,each_s\nquick,3.5,.01,.001\nslow,1,.02,.005\n")
    arrival_s, size = arrivals(60.0, 1500)
    rows = zip(arrival_s, size, strict=True)
    requests.write_text("arrival_s,size\n" + "".join(f"{one},{many}\n" for one, many in rows))
    status, text, _ = run("pool", types, requests, "--limit", "140ms", "--most", "7")
    assert status == 0
    assert "1 x quick, 3 x slow: 6.5 USD/h" in text
    assert "2 x quick: 7 USD/h" in text
    assert "expected a time" in refused("pool", types, requests, "--limit", "soon")
    assert "expected columns arrival_s, size" in refused("pool", types, types, "--limit", "1s")
    assert "expected columns name" in refused("pool", requests, requests, "--limit", "1s")
