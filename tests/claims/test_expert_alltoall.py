"""Knobs of kernels that send tokens to experts, fitted without a number of nodes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims.collectives import expert_lines
from hybridperf.collectives.experts import kernels
from hybridperf_calibration.ship import experts as expert_fit


def low_latency_table() -> pd.DataFrame:
    """As DeepEP's table has it, two systems on one to eight nodes; no times yet."""
    places = [(system, nodes, tokens) for system in ("aic_h100_sxm", "aic_b200_sxm")
              for nodes in (1, 2, 4, 8) for tokens in (1, 16, 64, 128, 256)]  # fmt: skip
    frame = pd.DataFrame(places, columns=["system", "node_num", "num_token"])
    return frame.assign(
        hidden_size=7168, num_topk=8, num_experts=256, version="0.5.12",
        dispatch_avg_t_s=1.0, combine_avg_t_s=1.0,
    )  # fmt: skip


def test_times_made_by_knobs_are_met_on_nodes_left_out(tmp_path: Path) -> None:
    folder, table = tmp_path / "collectives", low_latency_table()
    folder.mkdir()
    table.to_csv(folder / "deepep_ll.csv.gz", index=False)
    known = kernels()["deepep_low_latency"]
    for _, way, kernel, rows in expert_fit.kinds(tmp_path):
        table[f"{way}_avg_t_s"] = expert_fit.Asked(rows, kernel).seconds(getattr(known, way))
    table.to_csv(folder / "deepep_ll.csv.gz", index=False)
    found = {line.name: line for line in expert_lines(tmp_path)}
    assert len(found) == 2 * (2 + 4)
    for name, line in found.items():
        if "n_nodes 1 " not in name:  # inside a node nothing but a pull tells what links carry
            assert line.ours is not None
            assert line.ours < 0.06, name


def test_nodes_left_out_of_deepep(data_dir: Path) -> None:
    """Low latency over networks within 15 %: two, four and eight nodes, each left out."""
    if not (data_dir / "collectives/deepep_ll.csv.gz").is_file():
        pytest.skip("no table of DeepEP's kernels")
    errors = {}
    for name, way, kernel, rows in expert_fit.kinds(data_dir):
        if name == "deepep_low_latency":
            for what, part in expert_fit.left_out(rows, kernel, ("n_nodes",)):
                off = np.abs(part["predicted_s"] / part["time_s"] - 1)
                errors[way, what] = float(np.median(off))
    assert errors.keys() >= {("dispatch", f"n_nodes {nodes}") for nodes in (2, 4, 8)}
    assert all(error < 0.15 for (_, what), error in errors.items() if what != "n_nodes 1")
