"""The main job, for real: what the README promises of it, held to this machine, today."""

import json

import pytest

from hybridperf.validate import demo


@pytest.mark.slow
def test_demo_measures_predicts_and_compares(tmp_path):
    said: list[str] = []
    demo.run(tmp_path, say=said.append)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert len(summary["steps"]) == 6
    assert summary["mean_error"] <= 0.25
    assert summary["mean_error"] <= 0.5 * summary["baselines"]["datasheet roofline"]
    assert summary["batch"]["configurations"] == 10_000
    assert summary["elapsed_s"] < 300
    for step in summary["steps"]:
        assert step["low_s"] < step["predicted_s"] < step["high_s"]
    for name in ("roofline.png", "steps.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    ops = [event for event in events if event["ph"] == "X"]
    last_s = max(event["ts"] + event["dur"] for event in ops) / 1e6
    assert last_s == pytest.approx(summary["steps"][-1]["predicted_s"], rel=1e-5)
    assert "mean of 6, absolute" in said[-2]
    assert said[-1] == summary["verdict"]
    beats = summary["mean_error"] <= min(summary["baselines"].values())
    assert summary["beats_baselines"] in ((True,) if beats else (False, None))
