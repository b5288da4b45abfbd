"""Files of rccl-tests' -x: each layout found in its sources, with made-up numbers; packed logs."""

import gzip
import json
from pathlib import Path

import pytest

from hybridperf.io import InputError
from hybridperf.traces.collective_logs.files import read_collectives

# a version of 2024 with MPI: `nodes` is not in its header; two nodes of four ranks
OLD = """collective, ranks, rankspernode, gpusperrank, size, type, redop, inplace, time, algbw, busbw, #wrong
"AllReduce", 2, 8, 4, 1, 1048576, "float", "sum", 0, 100.000000, 10.485760, 18.350080, "0"
"AllReduce", 2, 8, 4, 1, 1048576, "float", "sum", 1, 50.000000, 20.971520, 36.700160, "N/A"
"""
NEW = """numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong
0,"ReduceScatter",4,1024,"half","sum",0,10.000000,0.409600,0.307200,"0"
"""
ROW = {
    "numCycle": 0, "name": "AlltoAll", "nodes": 1, "ranks": 2, "ranksPerNode": 2, "gpusPerRank": 4,
    "size": 8000, "type": "int8", "redop": "none", "inPlace": 0, "time": 8.0, "algBw": 1.0,
    "busBw": 0.875, "wrong": "0",
}  # fmt: skip
LOG = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#  Rank  0 Group  0 Pid   6899 on one device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6899 on one device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1   100.00   10.49   10.49      0
"""


def written(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_csv_whose_header_lacks_a_column_is_read_by_its_values(tmp_path: Path) -> None:
    rows, remarks = read_collectives([written(tmp_path, "x.csv", OLD)])
    assert remarks == []
    assert rows["time_s"].tolist() == pytest.approx([1e-4, 5e-5])
    assert rows["in_place"].tolist() == [0, 1]
    first = rows.iloc[0].to_dict()
    assert (first["collective"], first["bytes"], first["dtype"]) == ("all_reduce", 2**20, "float")
    assert (first["n_gpus"], first["n_nodes"], first["lib"], first["link"]) == (
        8,
        2,
        "rccl",
        "inter",
    )


def test_a_reduce_scatter_has_the_bytes_of_all_ranks(tmp_path: Path) -> None:
    rows, _ = read_collectives([written(tmp_path, "report.txt", NEW)])
    assert rows[["collective", "bytes", "n_gpus", "n_nodes"]].values.tolist() == [
        ["reduce_scatter", 4096, 4, 1]
    ]


@pytest.mark.parametrize("text", [json.dumps(ROW) + "\n" + json.dumps(ROW), json.dumps([ROW, ROW])])
def test_json_by_lines_or_as_a_list(tmp_path: Path, text: str) -> None:
    rows, _ = read_collectives([written(tmp_path, "x.json", text)])
    assert rows["collective"].tolist() == ["alltoall", "alltoall"]
    assert rows["n_gpus"].tolist() == [8, 8]
    assert rows["bytes"].tolist() == [8000, 8000]


def test_wrong_results_and_damaged_lines_are_named(tmp_path: Path) -> None:
    lines = OLD.splitlines()
    text = "\n".join([*lines, lines[1].replace('"0"', '"3"'), '"AllReduce", 2, 8, 4'])
    rows, remarks = read_collectives([written(tmp_path, "x.csv", text)])
    assert len(rows) == 2
    assert remarks == [
        "x.csv: result 4: damaged (cut off, or of another version), skipped",
        "x.csv: result 3: the test found wrong results, skipped",
    ]


def test_numbers_that_disagree_are_not_believed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result 1: size, time and bandwidths .* disagree"):
        read_collectives([written(tmp_path, "x.csv", NEW.replace("10.000000", "20.000000"))])


def test_json_cut_off_is_one_sentence(tmp_path: Path) -> None:
    text = json.dumps([ROW, ROW])[:-10]
    with pytest.raises(InputError, match=r"cut off or damaged .*; check the file"):
        read_collectives([written(tmp_path, "x.json", text)])


def test_a_packed_log_and_a_packed_report_are_unpacked(tmp_path: Path) -> None:
    log = written(tmp_path, "run.log.gz", gzip.compress(LOG.encode()))
    report = written(tmp_path, "x.csv.gz", gzip.compress(OLD.encode()))
    rows, _ = read_collectives([log, report])
    assert rows["time_s"].tolist() == pytest.approx([1e-4, 1e-4, 5e-5])
    assert rows["n_gpus"].tolist() == [2, 8, 8]


def test_a_packed_log_that_is_cut_off_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, "run.log.gz", gzip.compress(LOG.encode())[:-20])
    with pytest.raises(InputError, match="packed by gzip and cut off or damaged"):
        read_collectives([path])
