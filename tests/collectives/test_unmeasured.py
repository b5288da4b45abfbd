"""What was not measured: rings and trees over nodes, boxes on PCIe, how wide an interval is."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.collectives.algorithms import COLLECTIVES, direct, ring, tree
from hybridperf.collectives.algorithms.told import before_trees
from hybridperf.collectives.fit import collectives_by_name, fit_collectives
from hybridperf.collectives.network import TREE_STEP_S
from hybridperf.collectives.price import collective_seconds
from hybridperf.collectives.rows import collective_rows
from hybridperf.hardware import load_system
from hybridperf_calibration.ship.link_prior import held

H100 = "aic_h100_sxm"  # measured on one node alone


def asked(name: str, sizes: np.ndarray, nodes: int, per_node: int = 8) -> pd.DataFrame:
    frame = pd.DataFrame({"collective": name, "bytes": sizes})
    return frame.assign(n_gpus=per_node * nodes, n_nodes=nodes)


@pytest.mark.parametrize(
    ("way", "of_one_node", "of_four"),
    [(ring, (7, 0), (28, 3)), (tree, (3, 0), (3, 2)), (direct, (1, 0), (1, 1))],
)
def test_steps_by_hand(way, of_one_node: tuple[int, int], of_four: tuple[int, int]) -> None:
    assert way.steps(8, 1) == of_one_node
    assert way.steps(8, 4) == of_four


def test_a_ring_brings_each_node_all_but_a_ranks_part() -> None:
    assert ring.across(8, 2) == 15 / 16
    assert ring.across(1, 2) == 1 / 2
    assert ring.across(8, 1) == 0


def test_an_all_reduce_takes_trees_where_these_carry_less() -> None:
    """Between two nodes: the buffer once, by trees; among four, not quite twice, by a ring."""
    across = COLLECTIVES["all_reduce"].across
    assert [across(8, nodes) for nodes in (1, 2, 4)] == [0, 1, 2 * 31 / 32]
    assert across(1, 3) == pytest.approx(4 / 3)


def test_small_all_gathers_over_nodes_grow_with_the_ranks() -> None:
    sizes, model = np.array([2.0**16]), collectives_by_name(H100)
    few, many = (model.predict(asked("all_gather", sizes, nodes)) for nodes in (4, 64))
    ratio = many["predicted_s"].item() / few["predicted_s"].item()
    assert 8 < ratio < 20  # 511 steps for 31


def test_over_a_network_nobody_measured_a_nodes_links_carry_what_they_do_alone() -> None:
    sizes, model = np.array([2.0**33]), collectives_by_name(H100)
    inside, across = (model.predict(asked("all_gather", sizes, nodes)) for nodes in (1, 10))
    rate = across["bus_bytes_per_s"].item()
    assert rate < inside["bus_bytes_per_s"].item()
    assert rate > 0.8 * 8 * 0.9 * 50e9  # of eight NICs at the share of RDMA


def test_over_two_nodes_nobody_measured_trees_fall_short_of_twice_a_ring() -> None:
    """Between what a ring carries of a buffer (16/30 of the rate) and what trees would (all)."""
    model, size = collectives_by_name(H100), np.array([2.0**34])
    seconds = [
        model.predict(asked("all_reduce", size, nodes))["predicted_s"].item() for nodes in (2, 3, 4)
    ]
    rate = size.item() / seconds[0] / (8 * 50e9)
    assert 0.9 * 16 / 30 < rate < 0.75 * 0.9
    assert seconds == sorted(seconds)


def test_over_a_network_nobody_measured_closed_forms_count_and_trees_step_as_nccl_says() -> None:
    model, size = fit_collectives(None, "marenostrum5_h100")[0], np.array([256.0])
    few, many = (
        model.predict(asked("all_reduce", size, nodes, per_node=4))["predicted_s"].item()
        for nodes in (4, 64)
    )
    assert many - few == pytest.approx(4 * TREE_STEP_S, rel=0.1)
    rows = asked("alltoall", 2.0 ** np.arange(10, 34), 4, per_node=4)
    table = model.table(rows)
    closed = dataclasses.replace(table, learned=None)
    plain = np.asarray(collective_seconds(closed, model.links()))
    assert model.predict(rows)["predicted_s"].to_numpy() == pytest.approx(plain, rel=0.02)


def test_all_gathers_of_simai_over_up_to_sixteen_nodes(data_dir: Path) -> None:
    """Shares of a bus bandwidth, here of eight NICs of 400 Gb/s. The prior saw none of them."""
    path = data_dir / "collectives/simai_nic_ratio.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    table, errors, plain = pd.read_csv(path), [], []
    for nodes, column in zip((2, 4, 8, 16), table.columns[2:6], strict=True):
        rows = asked("all_gather", table["Size"].to_numpy(float), nodes)
        ranks = 8 * nodes
        time_s = rows["bytes"] * (ranks - 1) / ranks / (table[column] * 8 * 50e9)
        said = collectives_by_name(H100).predict(rows)
        errors.append(np.abs(said["predicted_s"] / time_s - 1))
        plain.append(np.abs(said["roofline_s"] / time_s - 1))
    ours, datasheet = np.concatenate(errors).mean(), np.concatenate(plain).mean()
    assert ours < 0.25
    assert ours < 0.6 * datasheet


def test_the_least_width_that_holds_nine_of_ten_where_all_systems_count_alike() -> None:
    assert held([np.arange(1.0, 11.0)]) == 9
    # a thousand rows of one system weigh as much as two of another: half of the tenth is theirs
    assert held([np.full(1000, 0.1), np.array([1.0, 2.0])]) == 2.0
    assert held([np.full(8, 0.1), np.array([0.2, 0.3, 0.4, 0.5, 0.6])]) == 0.5


def half_width(system: str, nodes: int = 1) -> float:
    said = fit_collectives(None, system)[0].predict(asked("all_gather", np.array([2.0**20]), nodes))
    return float(np.log(said["high_s"] / said["low_s"]).item() / 2)


def test_intervals_without_rows_are_as_wide_as_systems_left_out_needed() -> None:
    """A near relative's are the narrowest, those of a network the widest."""
    near, stranger = half_width("aic_h200_sxm"), half_width("dgx_v100")
    box, network = half_width("aic_rtx_pro_6000_server"), half_width("dgx_v100", 4)
    assert near < stranger < box
    assert stranger < network


def test_a_box_on_pcie_has_the_latencies_of_the_measured_one() -> None:
    rows = asked("all_gather", np.array([1024.0]), 1, 2)
    box, known = (
        fit_collectives(None, "aic_rtx_pro_6000_server")[0], collectives_by_name("aic_l40s")
    )  # fmt: skip
    small = [float(model.predict(rows)["predicted_s"].item()) for model in (box, known)]
    assert small[0] == pytest.approx(small[1], rel=0.5)


def test_an_algorithm_that_nccl_was_told_has_its_own_steps_over_nodes() -> None:
    """A small all-reduce by trees is quick; told to go round a ring, it passes every rank."""
    rows = asked("all_reduce", np.array([2048.0] * 4), 32, 4)
    rows["variant"] = ["nccl-tests", "nccl_ring", "nccl_tree", "Baidu RingAllReduce"]
    system = load_system("marenostrum5_h100")
    assert collective_rows(rows, system).steps[:, :2].tolist() == [[2, 5], [96, 31], [3, 5], [2, 5]]
    alone = rows.assign(n_gpus=4, n_nodes=1)
    assert collective_rows(alone, system).steps[:, 0].tolist() == [2, 2, 2, 2]
    left, ring_s = fit_collectives(None, system)[0].predict(rows)["predicted_s"].iloc[:2]
    assert ring_s > 2 * left


def test_a_card_that_is_told_narrows_what_is_believed_of_a_network() -> None:
    """A network of cards that nobody told keeps the width of the prior."""
    sizes, halves = np.array([2.0**20]), {}
    for system in ("gcp_a3_ultra_h200", "galvatron_8gpu_nvlink"):
        said = collectives_by_name(system).predict(asked("all_gather", sizes, 2)).iloc[0]
        halves[system] = np.log(said["high_s"] / said["low_s"]) / 2
    told, untold = halves.values()
    assert told < 0.8 < untold


def test_messages_through_a_host_wait_for_it() -> None:
    """Small all-reduces over two nodes: InfiniBand, EFA of the first generation, a virtual card."""
    names = ("azure_nd_a100_v4", "aws_p4d_a100", "gcp_a2_highgpu_8g")
    frame = asked("all_reduce", np.array([1024.0]), 2)
    quick, efa, virtual = (
        collectives_by_name(name).predict(frame)["predicted_s"].item() for name in names
    )
    assert 60e-6 < efa - quick < 200e-6
    assert 2 * efa < virtual


def test_a_library_that_nobody_measured_is_taken_for_what_is_alike() -> None:
    """MSCCL++ is a kernel as engines' own all-reduces are; a host's messages take longer."""
    model = fit_collectives(None, "marenostrum5_h100")[0]

    def said(lib: str, nodes: int) -> pd.Series:
        rows = asked("all_reduce", np.array([8192.0]), nodes, 4).assign(lib=lib)
        return model.predict(rows).iloc[0]

    kernel, like = said("mscclpp", 1), said("vllm_custom_graph", 1)
    assert kernel["predicted_s"] == pytest.approx(like["predicted_s"], rel=1e-9)
    assert "taken for vllm_custom_graph" in kernel["note"]
    host, usual = said("openmpi", 8), said("nccl", 8)
    assert said("compiled", 8)["predicted_s"] == pytest.approx(usual["predicted_s"], rel=1e-9)
    assert host["predicted_s"] == pytest.approx(2.3 * usual["predicted_s"], rel=1e-6)
    assert "taken for nccl; 2.3 times as long as its" in host["note"]


def test_an_nccl_before_trees_goes_round_rings_over_nodes() -> None:
    versions = np.array(["NCCL 2.0 MPI", "2.3.7", "2.4.2", "2.27.3", "nccl"])
    assert before_trees(versions).tolist() == [True, True, False, False, False]
    rows = asked("all_reduce", np.array([2.0**30] * 3), 2)
    rows["lib"] = ["NCCL 2.0 MPI", "nccl", "nccl"]
    rows["variant"] = ["NCCL 2.0 MPI", "nccl_ring", "nccl-tests"]
    seconds = collective_rows(rows, load_system(H100)).seconds[:, 1]
    assert seconds == pytest.approx(seconds[2] * np.array([2 * 15 / 16, 2 * 15 / 16, 1.0]))


def test_what_is_fixed_is_less_known_than_what_bytes_take() -> None:
    """A system without references, and a network whose card is told, up to 64 nodes alike."""

    def halves(name: str, nodes: int) -> np.ndarray:
        rows = asked("all_gather", np.array([2.0**10, 2.0**33]), nodes)
        said = fit_collectives(None, name)[0].predict(rows)
        return np.log(said["high_s"] / said["low_s"]).to_numpy() / 2

    for name, nodes in (("8x_mi300x", 1), ("gcp_a3_ultra_h200", 2)):
        small, large = halves(name, nodes)
        assert small > 1.3 * large
    few, some, many = (halves("gcp_a3_ultra_h200", nodes)[0] for nodes in (4, 64, 256))
    assert some == pytest.approx(few, rel=0.05)
    assert many > 1.8 * some
