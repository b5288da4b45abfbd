"""Two measured runs of vLLM, request by request; nothing is fitted."""

from benchmarks.claims import requests
from hybridperf.io import read_json


def test_percentiles_of_measured_runs(data_dir, tmp_path) -> None:
    requests.run(data_dir, tmp_path, say=lambda _: None)
    lines = {
        one["name"]: one
        for one in read_json(tmp_path / "results.json", "validate-results", 1)["lines"]
    }
    assert len(lines) == 4
    for line in lines.values():
        assert line["n"] == 300
        assert line["ours"] < line["baselines"]["datasheet"]
        assert line["ours"] < line["baselines"]["no limits"]
    # the goals; tokens of the second GPU, of which no row was fitted, are 5.4 % off at the most
    assert lines.pop("rtxpro6000_llama31_8b, TPOT")["ours"] < 0.06
    for line in lines.values():
        assert line["ours"] < line["goal"]
