"""What claim `topology` finds of bandwidths and of measured pairs."""

from pathlib import Path

from benchmarks.claims import topology
from benchmarks.claims.harness import RESULTS, SCHEMA, SCHEMA_VERSION
from hybridperf.io import read_json


def found(out: Path) -> dict[str, dict]:
    lines = read_json(out / RESULTS, SCHEMA, SCHEMA_VERSION)["lines"]
    return {one["name"]: one for one in lines}


def test_bandwidth(tmp_path: Path) -> None:
    topology.run(None, tmp_path, tasks=["bandwidth"], say=lambda text: None)
    lines = found(tmp_path)
    sets = lines["bandwidth of sets"]
    assert sets["ours"] < 0.2  # the prior decides
    assert sets["ours"] < sets["baselines"]["slowest link"]


def test_the_chosen_pair_is_within_a_tenth_of_the_best_measured(
    data_dir: Path, tmp_path: Path
) -> None:
    topology.run(data_dir, tmp_path, tasks=["pairs"], say=lambda text: None)
    assert found(tmp_path)["chosen pair, short of the best measured"]["ours"] <= 0.1
