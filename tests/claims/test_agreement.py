"""A table of training steps, a plan and the graph of a step give one answer to one question."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from benchmarks.claims import agreement
from hybridperf.cli.app import main
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.model import load_model
from hybridperf.model.step_effects import NAMES
from hybridperf.ops import Gemm, OpCall
from hybridperf.training.plans.run import plan
from hybridperf.training.steps.predict import predict_steps

SYSTEM = "aic_h100_sxm"


@pytest.fixture(scope="module")
def layouts() -> pd.DataFrame:
    return agreement.compared(24, seed=3)


def test_a_table_says_what_a_plan_says(layouts) -> None:
    np.testing.assert_allclose(layouts["steps_s"], layouts["plan_s"], rtol=1e-9)
    assert layouts["same_fit"].all()


def test_the_closed_form_is_its_graph(layouts) -> None:
    off = np.abs(np.log(layouts["graph_s"] / layouts["plan_s"]))
    assert off.median() < 0.01
    assert off[layouts["exception"] == ""].max() < 0.05
    assert off.max() < 0.15


def status(arguments: list[str]) -> object:
    """Exit status of the command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def cut(model: str, **sizes: int) -> hp.TransformerShape:
    return dataclasses.replace(hp.load_shape(model), **sizes)


def test_a_winner_has_its_effects_among_its_elasticities_and_variations() -> None:
    """Each against a model whose effect is 1 % larger."""
    found = plan(cut("llama2-7b", layers=4), SYSTEM, 8, batch=32, framework="torchtitan")
    choice = found.choice(0)
    model, step = found.setup.prices.model, hp.transformer(found.config(choice))
    predicted = hp.predict(model, step)
    slopes = hp.elasticities(predicted).set_index("knob")["elasticity"]
    values = dict(zip(NAMES, model.platform("torchtitan").effects, strict=True))
    for name in ("gemm", "memory", "fixed_s"):
        around = values[name] * np.array([0.999, 1.001])
        times = hp.predict_batch(model, step, **{name: around})
        difference = np.diff(np.log(times))[0] / np.diff(np.log(around))[0]
        assert slopes[name] == pytest.approx(difference, abs=5e-3), name
        assert slopes[name] > 0
    builder = GraphBuilder()
    builder.op(1)
    single = Workload("single", builder.build(), (OpCall(Gemm("bf16", 64.0, 64.0, 64.0)),))
    with pytest.raises(hp.InputError, match="no training step, so gemm changes nothing"):
        hp.predict_batch(load_model("a100_sxm4_80g"), single, gemm=[1.0])


def test_what_rows_teach_reaches_the_graph_through_a_saved_model(tmp_path, capsys) -> None:
    """Rows that take 1.3 times what is believed: table and graph follow them alike."""
    rows = pd.DataFrame([
        {
            "model": "llama2-7b", "n_gpus": 8, "dp": 8, "tp": 1, "pp": 1, "sharding": "zero1",
            "micro_batch": size, "grad_accum": count, "precision": "bf16", "recompute": "none",
            "framework": "megatron_core", "gpu": "h100_sxm", "seq": 2048,
        }
        for size in (1, 2, 4) for count in (1, 2, 4)
    ])  # fmt: skip
    believed = predict_steps(rows, system=SYSTEM).frame["predicted_s"]
    rows.assign(step_time_s=1.3 * believed).to_csv(tmp_path / "measured.csv", index=False)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    asked = ["steps", str(tmp_path / "rows.csv"), "--system", SYSTEM]
    fitted = ["--fit-on", str(tmp_path / "measured.csv"), "--save", str(tmp_path / "model")]
    assert status([*asked, *fitted, "--out", str(tmp_path / "out.csv")]) == 0
    assert f"efficiencies in {tmp_path / 'model'}" in capsys.readouterr().out
    table_s = pd.read_csv(tmp_path / "out.csv")["predicted_s"]
    assert (table_s / believed).to_numpy() == pytest.approx(1.3, rel=0.05)
    loaded = hp.load_model(tmp_path / "model")
    layout = hp.Layout(dp=8, zero=1, micro_batch=2, accumulation=2)
    shape = cut("llama2-7b", seq=2048)
    step = hp.transformer(hp.TransformerConfig.run_by("megatron_core", shape, layout))
    graph_s = hp.predict(loaded, step).time_s
    assert graph_s == pytest.approx(table_s[4], rel=0.02)
    again = [*asked, "--knobs", str(tmp_path / "model"), "--out", str(tmp_path / "again.csv")]
    assert status(again) == 0
    assert pd.read_csv(tmp_path / "again.csv")["predicted_s"].to_numpy() == pytest.approx(
        table_s.to_numpy(), rel=1e-9
    )


def test_a_model_to_save_needs_measured_rows(tmp_path, capsys) -> None:
    pd.DataFrame([{"model": "llama2-7b"}]).to_csv(tmp_path / "rows.csv", index=False)
    asked = ["steps", str(tmp_path / "rows.csv"), "--save", str(tmp_path / "model")]
    assert status([*asked, "--out", str(tmp_path / "out.csv")]) == 2
    assert "expected --fit-on ROWS with --save" in capsys.readouterr().err
