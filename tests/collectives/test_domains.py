"""Switches that join trays: a rack's ranks are one node; no answer is quicker than its ports."""

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.collectives import traffic
from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.hardware import load_system, system_names

RACKS = [name for name in system_names() if load_system(name).domain_accelerators]


@pytest.mark.parametrize("system", RACKS)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "alltoall", "reduce_scatter"])
def test_trays_of_a_domain_talk_over_its_switches(system: str, collective: str) -> None:
    """72 ranks take the same seconds whether a row counts 18 trays, one domain or says nothing."""
    row = {"collective": collective, "bytes": 2.0**28, "n_gpus": 72}
    rows = [row | {"n_nodes": nodes} for nodes in (18, 1, np.nan)]
    rows.append(row | {"n_nodes": 18, "gpus_per_node": 4})
    found = hp.predict_collectives(rows, system)
    assert found["predicted_s"].notna().all()
    assert found["predicted_s"].nunique() == 1
    spec = load_system(system)
    assert found["bus_bytes_per_s"][0] > 3 * spec.share_bytes_per_s  # what a network card carries


@pytest.mark.parametrize("system", RACKS)
def test_two_domains_meet_over_the_network(system: str) -> None:
    rows = [{"collective": "alltoall", "bytes": 2.0**30, "n_gpus": n} for n in (72, 144)]
    found = hp.predict_collectives(rows, system)
    across_s = 2.0**30 / 2 / load_system(system).share_bytes_per_s
    assert found["predicted_s"][0] < across_s / 2 < across_s <= found["predicted_s"][1] * 1.001


def test_a_racked_system_keeps_what_each_accelerator_has() -> None:
    spec = load_system("aic_gb200")
    rack = spec.racked()
    assert rack.accelerators_per_node == 72
    assert rack.racked() is rack
    assert rack.share_bytes_per_s == pytest.approx(spec.share_bytes_per_s)
    assert rack.racked(64).tray_accelerators == spec.accelerators_per_node
    assert load_system("aic_h100_sxm").racked() is load_system("aic_h100_sxm")


def test_no_answer_is_quicker_than_its_ports() -> None:
    """10,000 collectives on all systems, where nothing of their own was measured."""
    random, systems = np.random.default_rng(7), system_names()
    for system in systems:
        model, count = collectives_by_name(system), 10_000 // len(systems)
        per_node = model.system.accelerators_per_node
        nodes = random.choice([1, 1, 2, 4, 16, 64], count)
        ranks = nodes * random.integers(1, per_node + 1, count)
        frame = pd.DataFrame({
            "collective": random.choice([*COLLECTIVES], count),
            "bytes": 2 ** random.uniform(0, 36, count), "n_gpus": ranks, "n_nodes": nodes,
        })[ranks > 1]  # fmt: skip
        found = model.predict(frame)
        names, n = found["collective"].to_numpy(object), found["n_gpus"].to_numpy(float)
        nodes = found["n_nodes"].to_numpy(float)
        if model.system.tray_accelerators:  # few ranks on many trays are one domain
            nodes = np.where(n <= nodes * model.system.tray_accelerators, np.nan, nodes)
        inside, across, talking, _ = traffic.sent(names, n / nodes, nodes)
        size, share = found["bytes"].to_numpy(), traffic.unavoidable(names, n)
        parts = model.links().seconds(
            size * share * inside, size * share * across, talking,
            traffic.by_host(model.system, n / nodes),
        )  # fmt: skip
        least_s = np.maximum(*parts)
        quick = found["low_s"].to_numpy() < least_s * (1 - 1e-9)
        for one in model.measured:  # near to what rows of its own showed nothing bounds them
            apart = np.hypot(np.log2(n / nodes / one.ranks_per_node), np.log2(nodes / one.nodes))
            quick &= (names != one.group.split("|")[0]) | ~(apart < 0.5)
        assert not quick.any(), (system, found[quick].iloc[0].to_dict())
