"""NCCL's own estimate, by hand: which algorithm and protocol, and how long."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims.nccl_switch import estimate, fitted


def rows(name: str, sizes: list[float], ranks: int = 8, nodes: int = 1, **more) -> pd.DataFrame:
    given = {"system": "aic_h100_sxm", "collective": name, "implementation": "nccl"} | more
    return pd.DataFrame({"bytes": sizes}).assign(n_gpus=ranks, n_nodes=nodes, **given)


def test_small_ones_take_the_quick_protocol_large_ones_the_switch() -> None:
    found = estimate(rows("all_reduce", [2048.0, 2.0**30]))
    assert found["taken"].tolist() == ["ring LL", "nvls Simple"]
    small = (6.6 + 14 * 0.6) * 1e-6 + 2048 / (141e9 * 8 / 14)
    large = 25e-6 + 2.0**30 / (0.85 * 15 / 16 * 2 * 0.82 * 450e9 * 8 / 14)
    assert found["seconds"].tolist() == pytest.approx([small, large])
    halves = estimate(rows("all_gather", [2048.0, 2.0**30], system="aic_a100_sxm"))
    assert halves["taken"].tolist() == ["ring LL", "ring Simple"]
    large = (8.4 + 7 * 3.4) * 1e-6 + 2.0**30 / (0.82 * 300e9 * 8 / 7)
    assert halves["seconds"].iloc[1] == pytest.approx(large)


def test_over_nodes_small_ones_go_by_trees() -> None:
    found = estimate(rows("all_reduce", [1024.0], ranks=64, nodes=8))
    assert found["taken"].item() == "tree LL"
    latency = 6.8 + 2 * (7 * 0.6 + 3 * 5.0)
    assert found["seconds"].item() == pytest.approx(1e-6 * latency, rel=0.01)


def test_boxes_on_pcie_have_no_protocol_of_128_bytes() -> None:
    sizes = (2.0 ** np.arange(9, 30)).tolist()
    taken = estimate(rows("all_reduce", sizes, system="aic_l40s"))["taken"]
    assert set(taken) <= {"ring LL", "tree LL", "ring Simple", "tree Simple"}
    assert {one.split()[1] for one in taken} == {"LL", "Simple"}


def test_factors_of_other_systems_and_nothing_of_other_libraries() -> None:
    others = rows("all_reduce", (2.0 ** np.arange(9, 30)).tolist())
    others["time_s"] = 3 * estimate(others)["seconds"]
    asked = rows("all_reduce", [2048.0], system="aic_h200_sxm")
    said = fitted(others.iloc[:0], others, ["aic_h100_sxm"])(asked)
    assert np.exp(said) == pytest.approx(3 * estimate(asked)["seconds"])
    assert np.isnan(fitted(asked.iloc[:0], others, [])(asked.assign(implementation="trtllm")))
    assert np.isnan(estimate(rows("alltoall", [1.0]))["seconds"].item())
