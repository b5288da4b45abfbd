"""Topologies are read as nvidia-smi, matrices and cluster files tell them, or refused."""

from pathlib import Path

import numpy as np
import pytest

from hybridperf.hardware import load_system
from hybridperf.hardware.topology import load_topology, of_words, smi_words
from hybridperf.io import InputError

V100 = "deepbench_nv_v100"
SMI = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV2\tNV1\tSYS\tPIX\t0-19\t0
GPU1\tNV2\t X \tSYS\tPHB\tPIX\t0-19\t0
GPU2\tNV1\tSYS\t X \tNV2\tSYS\t20-39\t1
GPU3\tSYS\tPHB\tNV2\t X \tSYS\t20-39\t1
NIC0\tPIX\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
"""


def test_what_nvidia_smi_prints(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(SMI)
    topology = load_topology(path, V100)
    assert topology.rates[0].tolist()[:3] == [0.0, 50e9, 25e9]
    assert topology.through_host[0].tolist() == [False, False, False, True]
    assert topology.rates[1, 3] > topology.rates[0, 3] > 0  # PHB is nearer than SYS
    assert not topology.switched


def test_many_links_to_all_are_a_switch() -> None:
    words = [["X" if i == j else "NV12" for j in range(8)] for i in range(8)]
    topology = of_words(words, load_system("aic_a100_sxm"))
    assert topology.switched
    assert topology.rates[0, 1] == 300e9


@pytest.mark.parametrize("name", ["csv", "headed csv", "json", "rates", "zeros"])
def test_the_same_matrix_in_other_files(tmp_path: Path, name: str) -> None:
    words = smi_words(SMI)
    if name in ("rates", "zeros"):
        reference, itself = (
            of_words(words, load_system(V100)).rates,
            "X" if name == "rates" else "0",
        )
        words = [[itself if not rate else str(rate) for rate in row] for row in reference]
    lines = [",".join(row) for row in words]
    if name == "headed csv":
        lines = ["gpu,0,1,2,3", *(f"GPU{at},{line}" for at, line in enumerate(lines))]
    path = tmp_path / ("m.json" if name == "json" else "m.csv")
    quoted = ", ".join("[" + ", ".join(f'"{word}"' for word in row) + "]" for row in words)
    path.write_text(f'{{"links": [{quoted}]}}' if name == "json" else "\n".join(lines))
    expected = of_words(smi_words(SMI), load_system(V100)).rates
    assert np.array_equal(load_topology(path, V100).rates, expected)


def test_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('system = "dgx_h100"\nnodes = 8\nnodes_per_leaf = 4\noversubscription = 4.0\n')
    cluster = load_topology(path)
    assert cluster.gpus == 64
    assert cluster.leaf_of(cluster.node_of(33)) == 1
    assert cluster.uplink_bytes_per_s == cluster.system.node_bytes_per_s


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.txt", "nonsense", "nvidia-smi topo -m"),
        ("t.csv", "X,NV1\nNV2,X", "the same link"),
        ("t.csv", "X,NV1\nNV1,X\nNV1,NV1", "square matrix"),
        ("t.csv", "X,25\n25,X", "25e9"),
        ("t.csv", "X,-25e9\n-25e9,X", "25e9"),
        ("t.csv", "X,NV9\nNV9,X", "at most 6 NVLinks"),
        ("t.csv", "NV1,NV1\nNV1,X", "expected X"),
        ("t.json", "{}", "links"),
        ("t.toml", 'system = "dgx_h100"\nnodes = 0', "nodes"),
        ("t.toml", 'system = "dgx_h100"\nnodes = 7\nnodes_per_leaf = 2', "divides 7"),
        ("t.toml", 'system = "dgx_h100"\noversubscription = 0.5', "oversubscription"),
        ("t.toml", "system = ", "TOML"),
    ],
)
def test_refused_in_a_sentence(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        load_topology(path, V100)


def test_a_matrix_needs_a_system(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("X,NV1\nNV1,X")
    with pytest.raises(InputError, match="--system"):
        load_topology(path)
