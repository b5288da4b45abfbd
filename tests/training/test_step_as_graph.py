"""A row of training steps in words, and the graph of its step."""

import numpy as np
import pytest

from hybridperf.cli.ask import ask
from hybridperf.fields.columns import row_of
from hybridperf.io import InputError
from hybridperf.training.steps.as_graph import step_graph
from hybridperf.training.steps.predict import predict_steps

WORDS = ("model=llama2-7b", "gpu=h100_sxm", "system=dgx_h100", "n_gpus=4", "tp=2", "pp=2",
         "micro_batch=1", "global_batch=16", "sharding=none", "precision=bf16",
         "framework=megatron_core")  # fmt: skip
KNOB = "memory_bytes_per_s"


def test_the_graph_of_a_row_is_its_closed_form_and_holds_its_memory() -> None:
    row = predict_steps(row_of(WORDS, "steps")).frame.iloc[0]
    step = step_graph(*WORDS)
    assert step.prediction.time_s == pytest.approx(row["predicted_s"], rel=0.02)
    assert len(step.memory()) == 2
    assert step.memory().sum(axis=1).max() == pytest.approx(row["memory_bytes"], rel=1e-6)


def test_a_number_of_the_machine_is_varied_as_its_elasticity_says() -> None:
    step = step_graph(*WORDS)
    time_s, listed = step.prediction.time_s, step.elasticities.set_index("knob")
    assert listed.loc[KNOB, "varied"]
    assert step.what_if({}) == pytest.approx(time_s, rel=1e-5)
    more, less = (step.what_if({KNOB: 1.0 + way * 0.02}) for way in (1, -1))
    slope = np.log(more / less) / np.log(1.02 / 0.98)
    assert slope == pytest.approx(listed.loc[KNOB, "elasticity"], rel=0.03)
    both = {KNOB: 2.0, "gemm__compute_efficiency": 1.5}
    assert step.what_if(both) < step.what_if({KNOB: 2.0}) < time_s


def test_a_step_costs_its_rent() -> None:
    step = step_graph(*WORDS)
    found, time_s = step.money(), step.prediction.time_s
    assert found["usd"] == pytest.approx(4 * time_s * found["usd_per_hour"] / 3600)
    millions = 16 * step.config.shape.seq / 1e6
    assert found["usd_per_million_tokens"] == pytest.approx(found["usd"] / millions)
    assert f"h100_usd_per_hour {found['usd_per_hour']:g}" in found["note"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ((*WORDS, "tp=2"), "each column once"),
        ((*WORDS, "dept=3"), "unknown column 'dept'"),
        (("tp=2", "pp"), "expected NAME=VALUE such as tp=2, got 'pp'"),
    ],
)
def test_words_that_make_no_row_are_refused(command: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        row_of(command, "steps")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--knob", "speed=2"), "unknown knob 'speed'"),
        (("--knob", f"{KNOB}=-1"), "expected a factor above 0"),
        (("--knob", "two"), "expected --knob NAME=TIMES"),
        (("--model", "h100_sxm"), "expected no --model"),
    ],
)
def test_predict_refuses_what_a_row_has_not(more: tuple[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ask("predict", *WORDS, *more)


def test_what_runs_when_adds_up_to_the_critical_path() -> None:
    found = ask("predict", *WORDS, "--why")
    path_s = sum(one["seconds"] for one in found["critical"])
    assert path_s == pytest.approx(found["time_s"], rel=1e-6)
    assert max(one["end_s"] for one in found["timeline"]) == pytest.approx(found["time_s"])
    assert {"forward pass", "backward pass"} <= {one["group"] for one in found["timeline"]}
    assert {one["what"] for one in found["critical"]} >= {"gemm"}
    longest = found["explained"]
    totals = [one["seconds"] for one in longest]
    assert totals == sorted(totals, reverse=True)
    of_gemm = sum(one["seconds"] for one in longest if one["op"].startswith("gemm"))
    (gemm_s,) = [one["seconds"] for one in found["breakdown"] if one["group"] == "gemm"]
    assert 0.5 * gemm_s < of_gemm <= gemm_s * (1 + 1e-6)
    assert all("roofline" in one["price"] for one in longest)
