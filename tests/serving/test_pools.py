"""Pools of unlike machines: cases that are known or counted out."""

import io
import itertools

import numpy as np
import pandas as pd
import pytest
import simpy
from papers.edge import latency_s

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.serving.pools import (
    InstanceType,
    _by_cost,
    cheapest,
    homogeneous,
    latencies,
    read_requests,
    read_types,
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
    within = (latencies([QUICK], [1], arrival_s, size) <= 0.08).mean()
    with pytest.raises(InputError, match=f"got {within:.1%} at best"):
        cheapest([QUICK], arrival_s, size, 0.08, most=1)


def test_pools_come_by_rising_cost_each_once() -> None:
    usd, pools = (3.5, 1.0, 1.0), list(_by_cost((3.5, 1.0, 1.0), 2))
    assert np.diff([cost for cost, _ in pools]).min() >= 0
    assert all(cost == np.dot(usd, counts) for cost, counts in pools)
    assert sorted(counts for _, counts in pools) == [*itertools.product(range(3), repeat=3)][1:]


def test_of_many_types_only_the_cheapest_pools_are_looked_at() -> None:
    """Of 9^10 - 1 pools; a limit shorter than any service needs none."""
    types = [InstanceType(f"{usd}", 1.0 + usd, 0.010, 0.001) for usd in range(10)]
    arrival_s, size = arrivals(60.0, 400)
    assert cheapest(types, arrival_s, size, 0.14).counts[0] == 2
    with pytest.raises(InputError, match=r"got 0\.0% at best"):
        cheapest(types, arrival_s, size, 0.001)


def test_a_pool_of_one_type_is_a_resource_of_simpy() -> None:
    arrival_s, size = arrivals(100.0, 1500)
    ended_s = np.zeros(len(size))
    environment = simpy.Environment()
    machines = simpy.Resource(environment, 3)

    def request(at: int):
        yield environment.timeout(arrival_s[at])
        with machines.request() as free:
            yield free
            yield environment.timeout(QUICK.seconds(size[at]))
        ended_s[at] = environment.now

    for at in range(len(size)):
        environment.process(request(at))
    environment.run()
    found = latencies([QUICK], [3], arrival_s, size)
    np.testing.assert_allclose(found, ended_s - arrival_s, rtol=1e-9)
    assert found.max() > 1.5 * QUICK.seconds(size).max()  # some waited


@pytest.mark.parametrize(("servers", "utilisation"), [(1, 0.5), (4, 0.7), (10, 0.8)])
def test_a_pool_of_one_type_is_the_queue_of_the_textbook(servers, utilisation) -> None:
    """M/M/k: means and a tail of simulated latencies within 2 %."""
    rng, count = np.random.default_rng(servers), 250_000
    rate = utilisation * servers
    gaps, size = rng.exponential(1.0, (2, count))  # their means are made exact: less noise
    arrival_s, size = np.cumsum(gaps / gaps.mean() / rate), size / size.mean()
    found = latencies([InstanceType("", 1.0, 0.0, 1.0)], [servers], arrival_s, size)
    assert found.mean() == pytest.approx(latency_s(rate, servers, 1.0), rel=0.02)
    assert np.quantile(found, 0.95) == pytest.approx(
        latency_s(rate, servers, 1.0, share=0.95), rel=0.02
    )


ENGINES = """name,usd_per_hour,model,gpu,backend,tp,precision,isl,osl
quick,3.5,llama3-8b,h100_sxm,vllm,1,bf16,512,128
slow,1,llama3-8b,rtx_a6000,vllm,1,bf16,512,128
"""


def test_instances_are_priced_as_serve_prices_them(tmp_path) -> None:
    frame = pd.read_csv(io.StringIO(ENGINES))
    rows = frame.drop(columns=["name", "usd_per_hour"]).assign(concurrency=1)
    served = hp.predict_serving(rows)
    for kind, (_, one) in zip(read_types(frame), served.iterrows(), strict=True):
        whole_s = one["predicted_ttft_s"] + 127 * one["predicted_tpot_s"]
        assert kind.seconds(np.array([128.0]))[0] == pytest.approx(whole_s, rel=1e-12)
    with pytest.raises(InputError, match=r"can be priced, got slow: .*fp4"):
        read_types(frame.assign(precision=["bf16", "fp4"]))
    with pytest.raises(InputError, match="got quick twice"):
        read_types(frame.assign(name="quick"))
    with pytest.raises(InputError, match="in usd_per_hour of instance 1, got 'inf'"):
        read_types(frame.assign(usd_per_hour=np.inf))


PRICED = """name,usd_per_hour,model,gpu,backend,tp,precision,isl,osl
h100,3.0,llama3-8b,h100_sxm,vllm,1,bf16,512,128
a100,1.6,llama3-8b,a100_sxm4_80g,vllm,1,bf16,512,128
l40s,0.9,llama3-8b,l40s,vllm,1,bf16,512,128
"""


def test_mixed_pools_of_priced_engines_save_as_little_as_was_published() -> None:
    """RIBBON (Li et al., SC21): up to 16 % less cost than the best pool of one type. Service times
    are what we price an engine at; rates of money, requests and limits are made up.
    """
    types, rng = read_types(pd.read_csv(io.StringIO(PRICED))), np.random.default_rng(0)
    size = np.maximum(rng.lognormal(4.0, 0.6, 1000).round(), 1)
    savings = []
    for rate in (1.0, 2.0, 4.0):
        arrival_s = np.cumsum(rng.exponential(1 / rate, 1000))
        for limit_s in (6.0, 10.0, 14.0):
            mixed = cheapest(types, arrival_s, size, limit_s, most=8)
            alone = homogeneous(types, arrival_s, size, limit_s, most=12)
            best = min(one.usd_per_hour for one in alone.values() if one)
            savings.append(1 - mixed.usd_per_hour / best)
    assert min(savings) >= -1e-12
    assert 0.02 < max(savings) < 0.16


def test_the_command_finds_the_pool(run, refused, tmp_path) -> None:
    types, requests = tmp_path / "types.csv", tmp_path / "requests.csv"
    types.write_text(ENGINES)
    rng = np.random.default_rng(0)
    arrival_s, size = np.cumsum(rng.exponential(1 / 2.2, 600)), rng.integers(32, 256, 600)
    rows = zip(arrival_s, size, strict=True)
    requests.write_text("arrival_s,size\n" + "".join(f"{one},{many}\n" for one, many in rows))
    asked = ("pool", types, requests, "--limit", "10s", "--most", "7")
    status, text, _ = run(*asked, "--out", tmp_path / "pools.csv")
    assert status == 0
    pools = pd.read_csv(tmp_path / "pools.csv").set_index("pool")
    mixed = pools.loc["mixed"]
    assert mixed[["quick", "slow"]].tolist() == [2, 1]
    assert (mixed["usd_per_hour"], pools.loc["quick", "usd_per_hour"]) == (8.0, 10.5)
    assert "mixed, it costs 23.8% less" in text
    assert mixed["within"] >= 0.99
    assert "expected a time" in refused("pool", types, requests, "--limit", "soon")
    assert "expected columns arrival_s, size" in refused("pool", types, types, "--limit", "1s")
    assert "expected columns name" in refused("pool", requests, requests, "--limit", "1s")


@pytest.mark.parametrize(("size", "arrival_s"), [(-1.0, 0.0), (np.inf, 0.0), (1.0, np.inf)])
def test_requests_of_less_than_nothing_are_refused(size, arrival_s) -> None:
    frame = pd.DataFrame({"arrival_s": [0.0, arrival_s], "size": [1.0, size]})
    with pytest.raises(InputError, match="of request 2"):
        read_requests(frame)
