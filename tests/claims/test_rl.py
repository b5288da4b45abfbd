"""Published steps of reinforcement learning; nothing is fitted."""

from benchmarks.claims import rl
from hybridperf.io import read_json


def test_published_steps(data_dir, tmp_path) -> None:
    rl.run(data_dir, tmp_path, say=lambda _: None)
    lines = {
        one["name"]: one
        for one in read_json(tmp_path / "results.json", "validate-results", 1)["lines"]
    }
    whole = lines["all steps"]
    assert whole["n"] == 13
    assert whole["ours"] < whole["goal"]
    for line in lines.values():
        assert line["ours"] < min(line["baselines"].values())
