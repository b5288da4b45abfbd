"""perftest, nvbandwidth and PyTorch's flight recorder as they print, with made-up numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.fit import fit_collectives
from hybridperf.io import InputError
from hybridperf.traces.collective_logs.files import read_collectives

WRITE_BW = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             391.13             390.96              0.745
 1048576    5000             392.10             392.00              0.047
 8388608    5000             392.20             384.00              0.006
---------------------------------------------------------------------------------------
"""
WRITE_LAT = """                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.90           4.20         2.00     \t       2.01        \t0.05   \t\t2.20    \t\t4.20
"""
NVBANDWIDTH = """nvbandwidth Version: v0.5
Device 0: NVIDIA H100 80GB HBM3
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.63     55.64

SUM host_to_device_memcpy_ce 111.27

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    390.00
 1    394.00       N/A

SUM device_to_device_memcpy_write_ce 784.00
"""


def entry(name: str, size: int, ms: float, **more: object) -> dict[str, object]:
    return {
        "profiling_name": f"nccl:{name}", "process_group": ["0", "default_pg"],
        "input_sizes": [[size]], "input_dtypes": ["BFloat16"], "output_sizes": [[8 * size]],
        "output_dtypes": ["BFloat16"], "state": "completed", "duration_ms": ms, **more,
    }  # fmt: skip


FLIGHT = {
    "version": "2.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(8)])}},
    "entries": [
        entry("all_reduce", 2**20, 0.9), entry("all_reduce", 2**20, 0.1),
        entry("_all_gather_base", 2**20, 0.2), entry("barrier", 1, 0.1),
        entry("all_reduce", 2**20, 0.01, state="started"),
    ],
}  # fmt: skip


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_queued_writes_tell_the_time_of_large_messages(tmp_path: Path) -> None:
    rows, remarks = read_collectives([written(tmp_path, "bw.log", WRITE_BW)])
    assert rows[["collective", "bytes", "n_gpus", "n_nodes"]].values.tolist() == [
        ["sendrecv", 2**20, 2, 2], ["sendrecv", 2**23, 2, 2],
    ]  # fmt: skip
    assert rows["time_s"].tolist() == pytest.approx([2**20 / 49e9, 2**23 / 48e9])
    assert remarks == ["bw.log: line 7: queued messages hide what each of them takes, skipped"]
    mib = WRITE_BW.replace("[Gb/sec]", "[MB/sec]")
    slow, _ = read_collectives([written(tmp_path, "mb.log", mib)])
    assert slow["time_s"][0] == pytest.approx(1 / 392)


def test_both_ways_at_once_are_skipped(tmp_path: Path) -> None:
    text = WRITE_BW.replace("RDMA_Write BW", "RDMA_Write Bidirectional BW")
    with pytest.raises(InputError, match=r"found none that can be used.*both ways at once"):
        read_collectives([written(tmp_path, "bw.log", text)])


def test_a_latency_is_of_one_way(tmp_path: Path) -> None:
    rows, _ = read_collectives([written(tmp_path, "lat.log", WRITE_LAT)])
    assert rows[["bytes", "time_s"]].values.tolist() == [[2, pytest.approx(2e-6)]]


def test_copies_between_gpus_are_sends(tmp_path: Path) -> None:
    rows, remarks = read_collectives([written(tmp_path, "nv.log", NVBANDWIDTH)])
    assert rows[["collective", "bytes", "n_gpus", "n_nodes"]].values.tolist() == [
        ["sendrecv", 2**29, 2, 1]
    ]
    assert rows["time_s"][0] == pytest.approx(2**29 / 392e9)
    assert "host_to_device_memcpy_ce is no copy between GPUs" in remarks[0]


def test_a_flight_recorder_counts_the_least_of_what_is_alike(tmp_path: Path) -> None:
    rows, remarks = read_collectives([written(tmp_path, "fr.json", json.dumps(FLIGHT))])
    found = rows[["collective", "bytes", "n_gpus", "n_nodes", "dtype"]].values.tolist()
    assert found == [
        ["all_reduce", 2**21, 8, 1, "bfloat16"], ["all_gather", 2**24, 8, 1, "bfloat16"],
    ]  # fmt: skip
    assert rows["time_s"].tolist() == pytest.approx([1e-4, 2e-4])
    assert len(remarks) == 2
    over, _ = read_collectives([tmp_path / "fr.json"], None, 8, 2)
    assert over["n_nodes"].tolist() == [2, 2]


@pytest.mark.parametrize(
    "spoilt", ['{"entries": 3, "profiling_name": 1}', '{"entries": [, "profiling_name"']
)
def test_a_dump_that_is_none_is_one_sentence(tmp_path: Path, spoilt: str) -> None:
    with pytest.raises(InputError, match="flight recorder") as error:
        read_collectives([written(tmp_path, "fr.json", spoilt)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [WRITE_BW, WRITE_LAT, NVBANDWIDTH, json.dumps(FLIGHT)])
def test_logs_cut_anywhere_are_read_or_refused(tmp_path: Path, text: str) -> None:
    random = np.random.default_rng(0)
    for cut in random.integers(0, len(text), 40):
        path, said, times = written(tmp_path, "cut.log", text[:cut]), "", [1.0]
        try:
            times = read_collectives([path])[0]["time_s"].tolist()
        except InputError as error:
            said = str(error)
        assert "\n" not in said
        assert min(times) > 0


@pytest.mark.parametrize(
    ("text", "nodes"), [(WRITE_BW, 2), (NVBANDWIDTH, 1)], ids=["ib_write_bw", "nvbandwidth"]
)
def test_a_system_is_fitted_from_any_of_them(tmp_path: Path, text: str, nodes: int) -> None:
    """A gather goes on being NCCL's, no quicker than its ports and at most twice as slow."""
    rows, _ = read_collectives([written(tmp_path, "one.log", text)])
    model, _ = fit_collectives(rows, "azure_nd_h100_v5")
    row = {"collective": "all_gather", "bytes": 2.0**32, "n_gpus": 8 * nodes, "n_nodes": nodes}
    said = hp.predict_collectives([row], model).iloc[0]
    usual = hp.predict_collectives([row], "azure_nd_h100_v5").iloc[0]
    assert "taken for nccl" in said["note"]
    assert said["predicted_s"] == pytest.approx(usual["predicted_s"], rel=0.6)
