"""A served decoder as `validate here` judges it: a small one, really served; figures by hand."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import read_json
from hybridperf.model import GroupReport, PerfModel
from hybridperf.ops import GROUPS
from hybridperf.ops.base import Work
from hybridperf.validate import here, here_served

SMALL = {
    "width": 32, "layers": 1, "heads": 2, "vocab": 61, "context": 40, "batches": [2],
    "chunks": [8],
}  # fmt: skip


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """(folder, lines, what was said) of two dozen requests, by a model that is sure of nothing."""
    out, said = tmp_path_factory.mktemp("served"), []
    names = [field.name for field in dataclasses.fields(Work)]
    ends = {"lowest": dict.fromkeys(names, 0.0), "highest": dict.fromkeys(names, 1e18)}
    of_any = GroupReport(rows=10, half_width=1e5, **ends, errors=(-12.0, 12.0))
    groups = dict.fromkeys(GROUPS, of_any)
    model = dataclasses.replace(PerfModel.datasheet(load_device("here")), groups=groups)
    lines = here_served.run(model, out, config=SMALL, requests=24, rounds=1, say=said.append)
    return out, lines, "\n".join(said)


def test_every_run_has_its_percentiles_beside_the_roofline(judged) -> None:
    out, lines, said = judged
    frame = pd.read_csv(out / "served.csv")
    assert len(frame) == 4 * 2 * 2  # runs, latencies, percentiles
    seconds = frame[["measured_s", "predicted_s", "roofline_s"]].to_numpy()
    assert (seconds > 0).all()
    np.testing.assert_allclose(frame["error"], frame["predicted_s"] / frame["measured_s"] - 1)
    ttft, left_ttft, tpot, _, programs = lines
    assert left_ttft.name == "served here, TTFT when it left"
    assert (ttft.name, tpot.name) == ("served here, TTFT", "served here, TPOT")
    of_ttft = frame[frame["latency"] == "ttft_s"]
    assert (of_ttft["left_s"] < of_ttft["measured_s"]).all()
    assert ttft.ours == pytest.approx(of_ttft["error"].abs().mean())
    assert ttft.baselines["datasheet roofline"] == pytest.approx(
        of_ttft["roofline_error"].abs().mean()
    )
    inside = of_ttft["measured_s"].between(of_ttft["low_s"], of_ttft["high_s"])
    assert ttft.coverage == pytest.approx(inside.mean())
    assert (frame["low_s"] < frame["high_s"]).all()
    calls = pd.read_csv(out / "served_programs.csv")
    assert set(calls["program"]) == {"decode 2", "prefill 8"}
    assert programs.ours == pytest.approx(calls["error"].abs().mean())
    assert "served here, TPOT when it left" in said
    assert "outside the decoder" in said


def test_what_was_served_is_what_was_asked(judged) -> None:
    out, _, _ = judged
    content = read_json(out / "served" / "served.json", "served", 3)
    runs = [here_served.ServedRun.of(one) for one in content["runs"]]
    assert [run.name for run in runs][:2] == ["1 client", "2 clients"]
    for run in runs:
        assert len(run.requests) == 24
        assert (run.ttft_s > 0).all()
        assert np.isfinite(run.tpot_s[run.requests.output > 1]).all()
    alone, both, half, most = runs
    np.testing.assert_array_equal(alone.requests.prompt, most.requests.prompt)
    assert (alone.requests.after == np.arange(-1, 23)).all()
    # open loops are sent at their own seconds, the busier one sooner
    assert (half.requests.after == -1).all()
    assert half.requests.arrival_s[-1] > 1.3 * most.requests.arrival_s[-1]
    assert np.median(both.ttft_s) > np.median(alone.ttft_s) / 2


def test_what_a_request_waits_besides_is_measured_without_a_decoder(judged) -> None:
    out, _, _ = judged
    content = read_json(out / "served" / "served.json", "served", 3)
    way_s = content["way_s"]
    assert 0 < way_s["left"] < way_s["seen"] < 1
    frame = pd.read_csv(out / "served.csv")
    first = frame["latency"] == "ttft_s"
    np.testing.assert_allclose(frame["back_s"][first], way_s["seen"] - way_s["left"], rtol=1e-6)
    assert (frame["back_s"][~first] == 0).all()


def test_a_model_of_another_kind_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="gpu"):
        here.run(PerfModel.datasheet(load_device("h100_sxm")), tmp_path, tasks=("served",))
