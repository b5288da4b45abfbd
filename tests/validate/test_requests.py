"""Two measured runs of vLLM, request by request; nothing is fitted."""

from hybridperf.io import read_json
from hybridperf.validate import requests


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
    # the goals, met on the first GPU; the second is priced too fast
    assert lines["rtx4090_llama31_8b, TTFT"]["ours"] < 0.15
    assert lines["rtx4090_llama31_8b, TPOT"]["ours"] < 0.05
