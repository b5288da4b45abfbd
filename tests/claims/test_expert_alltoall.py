"""Expert all-to-alls of other kernels next to the calibrated one."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.claims.collectives import expert_lines
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.workloads.transformer.parallel import distinct


def said_s(sent: float, ranks: int, nodes: int) -> float:
    row = {"collective": "alltoall", "bytes": [sent], "n_gpus": ranks, "n_nodes": nodes}
    return float(collectives_by_name("aic_h100_sxm").predict(pd.DataFrame(row))["predicted_s"][0])


def test_bytes_by_hand(tmp_path: Path) -> None:
    """Times made of the bytes by hand are met; half of one is missed by half."""
    folder = tmp_path / "collectives"
    folder.mkdir()
    token = 7168 * (1 + 4 / 128)
    low = {
        "system": "aic_h100_sxm", "kernel_source": "deepep", "node_num": 2,
        "hidden_size": 7168, "num_token": 128, "num_topk": 8, "num_experts": 256,
        "dispatch_avg_t_s": said_s(128 * 8 * token, 16, 2),
        "combine_avg_t_s": 0.5 * said_s(128 * 8 * 7168 * 2, 16, 2),
    }  # fmt: skip
    pd.DataFrame([low]).to_csv(folder / "deepep_ll.csv.gz", index=False)
    normal = {
        **low, "node_num": 1, "dispatch_sms": 20, "combine_sms": 20,
        "dispatch_transmit_s": said_s(128 * distinct(8, 8) * token, 8, 1),
        "dispatch_notify_s": 0.0, "combine_transmit_s": 1.0, "combine_notify_s": 0.0,
    }  # fmt: skip
    fewer = {**normal, "dispatch_sms": 4, "combine_sms": 4, "dispatch_transmit_s": 1.0}
    pd.DataFrame([fewer, normal]).to_csv(folder / "deepep_normal.csv.gz", index=False)
    found = {line.name: line for line in expert_lines(tmp_path)}
    assert found["experts: DeepEP low latency, dispatch, 2 nodes"].ours == pytest.approx(0)
    assert found["experts: DeepEP low latency, combine, 2 nodes"].ours == pytest.approx(1)
    most = found["experts: DeepEP, dispatch, one node"]
    assert (most.ours, most.n, most.coverage) == (pytest.approx(0), 1, 1.0)


def test_low_latency_kernels_of_one_node_take_about_as_long_as_an_all_to_all(
    data_dir: Path,
) -> None:
    if not (data_dir / "collectives/deepep_ll.csv.gz").is_file():
        pytest.skip("no table of DeepEP's kernels")
    for line in expert_lines(data_dir):
        if "low latency" in line.name and line.name.endswith("one node"):
            assert line.ours is not None
            assert line.ours < 0.2
            assert line.ours < 0.6 * line.baselines["datasheet"]
