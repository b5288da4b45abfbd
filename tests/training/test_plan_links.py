"""Links of a plan: groups that nodes do not divide, faster and quicker links of a system that
nobody measured.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.model import load_collectives
from hybridperf.hardware import load_system
from hybridperf.model.calls import CollectiveCall
from hybridperf.model.step_table import collective_frame
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.sensitivity import lever_effects
from hybridperf.workloads.transformer import load_shape

PLACES = ((2, 1), (4, 1), (8, 1), (8, 2), (8, 8), (1, 4))


@pytest.fixture(scope="module")
def shape():
    return dataclasses.replace(load_shape("gpt3-1.3b"), name="eight layers", layers=8)


@pytest.fixture(scope="module")
def unmeasured():
    return load_system("aws_p5_h100")


@pytest.fixture(scope="module")
def frame():
    return pd.DataFrame(
        [
            {"collective": name, "bytes": size, "n_gpus": ranks * nodes, "n_nodes": nodes}
            for name in ("all_reduce", "all_gather", "alltoall")
            for size in (1e5, 1e7, 1e9)
            for ranks, nodes in PLACES
        ]
    )


@pytest.mark.parametrize(("gpus", "batch"), [(24, 48), (56, 56), (3 * 8, 24)])
def test_any_number_of_nodes_has_a_plan(shape, gpus, batch):
    found = plan(
        shape, "aic_h100_sxm", gpus, batch=batch, only={"zero": [1], "recompute": ["none"]}
    )
    assert len(found)
    assert np.isfinite(found.cases[0].parts.step_s).all()


def test_an_uneven_group_costs_what_an_even_one_that_holds_it_costs():
    uneven, even = CollectiveCall("all_reduce", 1e8, 4, 3), CollectiveCall("all_reduce", 1e8, 6, 3)
    said = (
        load_collectives("aic_h100_sxm")
        .predict(collective_frame([uneven, even]))["predicted_s"]
        .to_numpy()
    )
    assert uneven.ranks_per_node == 2
    assert said[0] == said[1] > 0


@pytest.mark.parametrize("name", ["node_bytes_per_s", "intra_bytes_per_s", "latency_s"])
def test_better_links_of_an_unmeasured_system_make_nothing_slower(unmeasured, frame, name):
    times = []
    for factor in (1.0, 1.1, 1.5, 2.0, 3.0, 8.0):
        better = 1 / factor if name == "latency_s" else factor
        also = (
            {"nic_bytes_per_s": unmeasured.nic_bytes_per_s * factor}
            if name == "node_bytes_per_s"
            else {}
        )
        system = unmeasured.model_copy(update={name: getattr(unmeasured, name) * better, **also})
        times.append(fit_collectives(None, system)[0].predict(frame)["predicted_s"].to_numpy())
    assert (np.diff(times, axis=0) <= 1e-12).all()
    assert (times[-1] < times[0]).any()
    if name == "node_bytes_per_s":
        inside = frame["n_nodes"].to_numpy() == 1
        np.testing.assert_allclose(
            times[-1][inside], times[0][inside], err_msg="nothing leaves the node"
        )


def test_what_was_learned_elsewhere_is_saved(unmeasured, frame, tmp_path):
    model = fit_collectives(None, unmeasured.model_copy(update={"latency_s": 2e-6}))[0]
    model.save(tmp_path)
    again = load_collectives(tmp_path)
    np.testing.assert_allclose(
        again.predict(frame)["predicted_s"], model.predict(frame)["predicted_s"]
    )


def test_quicker_links_are_among_the_levers(shape):
    found = plan(
        shape, "aic_h100_sxm", 16, batch=32, only={"tp": [4], "cp": [1], "recompute": ["none"]}
    )
    quick = next(one for one in lever_effects(found) if one.lever == "link latency")
    assert quick.elasticity < 0
