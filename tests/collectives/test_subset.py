"""Rings, trees and uplinks of sets of GPUs."""

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.claims.topology import dgx1v
from hybridperf.collectives.subset import (
    _grown_cycle,
    ring,
    share,
    share_model,
    widest_cycle,
    widest_tree,
)
from hybridperf.hardware import load_system
from hybridperf.hardware.topology import Topology, load_topology, of_words


def brute(rates: np.ndarray) -> float:
    cycles = ([0, *rest] for rest in itertools.permutations(range(1, len(rates))))
    return max(float(rates[one, np.roll(one, -1)].min()) for one in cycles)


def test_the_widest_cycle_is_that_of_all_cycles() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 4, 5, 6, 7) * 4:
        rates = rng.choice([0.0, 10.0, 25.0, 50.0], (n, n))
        rates = np.triu(rates, 1) + np.triu(rates, 1).T
        rate, cycle = widest_cycle(rates)
        assert rate == brute(rates)
        assert sorted(cycle) == list(range(n))
        if rate:
            assert rates[cycle, np.roll(cycle, -1)].min() == rate
        grown = _grown_cycle(rates)[0]
        assert grown <= rate
        widths = [rates[i, j] for i, j in widest_tree(rates)]
        assert min(widths) >= rate  # a cycle less a link is a tree


def test_rings_of_a_dgx1v_by_hand() -> None:
    topology = dgx1v()
    assert ring(topology, (0, 3)).bytes_per_s == 50e9
    assert ring(topology, (0, 5)).through_host
    # both ways round of double links, then of single ones: all six links of each GPU
    assert ring(topology, tuple(range(8))).bytes_per_s == 150e9
    # GPU 4 has links to 0 alone: a chain carries sums up and results down
    assert ring(topology, (0, 1, 4)).bytes_per_s == pytest.approx(4 / 3 * 25e9)


def test_wider_links_are_never_slower() -> None:
    topology = dgx1v()
    rng = np.random.default_rng(1)
    for _ in range(10):
        i, j = rng.choice(8, 2, replace=False)
        rates, host = topology.rates.copy(), topology.through_host.copy()
        rates[i, j] = rates[j, i] = 100e9
        host[i, j] = host[j, i] = False
        wider = dataclasses.replace(topology, rates=rates, through_host=host)
        for some in itertools.combinations(range(8), 4):
            assert ring(wider, some).bytes_per_s >= ring(topology, some).bytes_per_s - 1e-3


def cluster(oversubscription: float, rails: bool = False) -> Topology:
    node = load_topology("dgx_h100")
    return dataclasses.replace(
        node, nodes=8, nodes_per_leaf=4, oversubscription=oversubscription, rails=rails
    )


def test_jobs_share_uplinks() -> None:
    topology = cluster(4.0)
    node_s = topology.system.node_bytes_per_s
    under_one_leaf, over_two = range(32), [*range(8), *range(32, 40)]
    assert share(topology, under_one_leaf).node_bytes_per_s == node_s
    assert share(topology, over_two).node_bytes_per_s == node_s
    other = [*range(8, 16), *range(40, 48)]
    assert share(topology, over_two, [other]).node_bytes_per_s == node_s / 2
    assert share(topology, over_two, [range(8, 24)]).node_bytes_per_s == node_s
    assert share(cluster(8.0), over_two).node_bytes_per_s == node_s / 2


def test_other_places_on_rails_meet_in_the_spine() -> None:
    topology = cluster(4.0, rails=True)
    aligned, crossed = [0, 1, 8, 9], [0, 1, 10, 11]
    node_s = topology.system.node_bytes_per_s
    assert share(topology, aligned).node_bytes_per_s == node_s
    assert share(topology, crossed).node_bytes_per_s == node_s / 2


def test_jobs_share_a_host() -> None:
    topology = dgx1v()
    alone = share(topology, (0, 5))
    beside = share(topology, (0, 5), [(1, 4), (2, 3)])  # 2 and 3 have links of their own
    assert beside.inside_bytes_per_s == alone.inside_bytes_per_s / 2


def test_a_whole_switched_node_is_the_system_itself() -> None:
    node = load_topology("dgx_h100")
    model = share_model(node, share(node, range(8)))
    assert model.system == load_system("dgx_h100")


def test_one_gpu_is_a_topology() -> None:
    topology = of_words([["X"]], load_system("dgx_h100"))
    assert share(topology, [0]).ranks == 1
