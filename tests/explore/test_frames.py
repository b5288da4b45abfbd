"""Frames in, frames out: the functions say what the commands write, to the last digit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.fields import fields_of, frames
from hybridperf.fields.frames import question_of
from hybridperf.fields.registry import folded
from hybridperf.io import InputError
from hybridperf.runs.training_run import BELIEFS

OPS = [
    {"op": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": 512, "who": "a"},
    {"op": "softmax", "dtype": "fp32", "rows": 100, "cols": 1000, "who": "b"},
    {"op": "nonsense", "dtype": "bf16", "who": "c"},
    {"op": "gemm", "dtype": "bf16", "m": -1, "n": 4096, "k": 512, "who": "d"},
    {"op": "gemm", "dtype": "fp16", "m": 1, "n": 8192, "k": 512, "who": "e"},
]
COLLECTIVES = [
    {"collective": "all_reduce", "bytes": 1 << 20, "n_gpus": 8, "n_nodes": 1},
    {"collective": "alltoall", "bytes": 1 << 24, "n_gpus": 16, "n_nodes": 2},
    {"collective": "all_gather", "bytes": 0, "n_gpus": 8, "n_nodes": 1},
]
STEPS = [
    {"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": 8, "tp": tp, "global_batch": 16, "mine": tp}
    for tp in (1, 2, 3, 4)
]
SERVE = [
    {"model_path": "llama3-8b", "system": "h100_sxm", "backend": "vllm", "tp_size": tp,
     "isl": 512, "osl": 64, "concurrency": 8}
    for tp in (1, 2, 28)
]  # fmt: skip
RUNS = [
    {"step_time_s": 5.0, "steps": 1e5, "n_gpus": n, "gpu": "h100_sxm", "checkpoint": way}
    for n, way in ((1024, "async"), (4096, "memory"), (64, "elsewhere"))
]
RL = [
    {"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": 8, "rollouts": 64, "mean_length": mean,
     "max_length": 1024}
    for mean in (200, 400, 2000)
]  # fmt: skip
PLANS = [
    {"model": "llama3-8b", "system": "dgx_h100", "n_gpus": n, "global_batch": 64, "tp": tp}
    for n, tp in ((8, 2), (16, 2), (8, 3))
]
# rows, what predicts them, the command with its options
ASKED: dict[str, tuple[list[dict], Callable[..., pd.DataFrame], list[str]]] = {
    "ops": (OPS, lambda rows: hp.predict_ops(rows, "h100_sxm"), ["--model", "h100_sxm"]),
    "collectives": (
        COLLECTIVES, lambda rows: hp.predict_collectives(rows, "dgx_a100"), ["--model", "dgx_a100"],
    ),
    "steps": (STEPS, hp.predict_steps, []),
    "serve": (SERVE, hp.predict_serving, []),
    "run": (RUNS, hp.predict_runs, []),
    "rl": (RL, hp.predict_rl, []),
}  # fmt: skip


@pytest.mark.parametrize("command", ASKED)
def test_the_function_says_what_the_command_writes(command: str, run: Callable, tmp_path: Path):
    rows, predict, options = ASKED[command]
    table, out = tmp_path / "rows.csv", tmp_path / "out.parquet"
    pd.DataFrame(rows).to_csv(table, index=False)
    status, _, err = run(command, table, *options, "--out", out)
    assert status == 3, err  # some rows are wrong
    found = predict(hp.read_table(table))
    pd.testing.assert_frame_equal(pd.read_parquet(out), found, check_exact=True, check_dtype=False)


@pytest.mark.parametrize("question", [*ASKED, "plans"])
def test_rows_and_columns_stay_and_predictions_follow(question: str):
    rows, predict, _ = ASKED.get(question, (PLANS, hp.predict_plans, []))
    given = pd.DataFrame(rows, index=[f"row{at}" for at in range(len(rows))][::-1])
    found = predict(given)
    before = list(given.columns)
    assert list(found.columns[: len(before)]) == before
    pd.testing.assert_frame_equal(found[before], given)
    added = question_of({"run": "runs"}.get(question, question)).results()
    assert list(found.columns[len(before) :]) == list(added)
    # what is wrong has no numbers and says why
    wrong = found[question_of({"run": "runs"}.get(question, question)).seconds].isna()
    assert 0 < wrong.sum() < len(rows)
    assert (found["note"][wrong].str.len() > 0).all()
    pd.testing.assert_frame_equal(
        predict(rows).reset_index(drop=True), found.reset_index(drop=True), check_exact=True
    )


@pytest.mark.parametrize("question", [*ASKED, "plans"])
def test_parts_of_a_table_are_predicted_as_the_whole(
    question: str, monkeypatch: pytest.MonkeyPatch
):
    """Row numbers in messages are the table's, columns of one kind stay of one kind."""
    rows, predict, _ = ASKED.get(question, (PLANS, hp.predict_plans, []))
    frame = pd.DataFrame(rows + rows)
    whole = predict(frame)
    monkeypatch.setattr(frames, "_PART_S", 0.0)  # a row a part, after the first
    monkeypatch.setattr(frames, "_FIRST", 1)
    pd.testing.assert_frame_equal(predict(frame), whole, rtol=1e-12)  # sums of other lengths


def test_a_table_that_takes_long_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys):
    found = hp.predict_steps(STEPS)
    capsys.readouterr()
    monkeypatch.setattr(frames, "_FIRST", 1)
    hp.predict_steps(STEPS)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(frames, "_PART_S", 0.0)
    pd.testing.assert_frame_equal(hp.predict_steps(STEPS), found)
    assert "steps: 1 of 4" in capsys.readouterr().err


def test_measured_rows_move_the_others_and_remarks_come_with_the_frame():
    measured = pd.DataFrame(STEPS[:2] * 4).assign(global_batch=np.arange(16, 144, 16))
    believed = hp.predict_steps(measured)["predicted_s"]
    measured["step_time_s"] = 1.5 * believed
    found = hp.predict_steps(STEPS, fit_on=measured)
    assert found["predicted_s"][3] > 1.1 * hp.predict_steps(STEPS)["predicted_s"][3]
    assert isinstance(found.attrs["remarks"], tuple)
    with pytest.raises(InputError, match="rows to fit on or fitted knobs"):
        hp.predict_steps(STEPS, fit_on=measured, knobs="knobs.json")


def test_a_table_of_runs_takes_no_options_of_one_run(run: Callable, tmp_path: Path):
    table = tmp_path / "runs.csv"
    pd.DataFrame(RUNS).to_csv(table, index=False)
    for option in (["--gpus", "8"], ["--by-hand"], ["--shape", "llama3-8b"]):
        status, _, err = run("run", table, *option)
        assert status == 2
        assert f"expected {option[0]} without a table" in err


@pytest.mark.parametrize("question", ["plans", "runs"])
def test_a_name_of_a_plan_or_a_run_is_of_one_field(question: str):
    names = [folded(name) for field in fields_of(question) for name in field.names]
    assert len(names) == len({*names})
    own = [field for field in fields_of(question) if field.name not in fields_of("steps")]
    assert all(field.meaning and (field.example or field.words or field.kind == "flag")
               for field in own)  # fmt: skip
    assert fields_of(question)["tp"] is fields_of("steps")["tp"], "defined once"
    if question == "runs":
        assert {*fields_of("runs").of("beliefs")} == {*BELIEFS}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"n_gpus": 8, "step_time_s": 1.0}, "expected steps with step_time_s"),
        ({"n_gpus": 8, "step_time_s": 1.0, "steps": 10, "model": "llama3-8b"}, "got both"),
        ({"model": "llama3-8b", "tokens": "1B"}, "expected system, n_gpus"),
        (
            {"n_gpus": 8, "step_time_s": -1.0, "steps": 10},
            "a number of zero or more in step_time_s",
        ),
        ({"n_gpus": 2.5, "step_time_s": 1.0, "steps": 10}, "a whole number of 1 or more in n_gpus"),
        (
            {"n_gpus": 8, "step_time_s": 1.0, "steps": 10, "checkpoint": "moon"},
            "sync, async, memory",
        ),
        ({"n_gpus": 8, "step_time_s": 1.0, "steps": 10, "gpus": 16}, "say the same n_gpus"),
    ],
)
def test_a_run_that_cannot_be_says_why(row: dict, says: str):
    found = hp.predict_runs([row])
    assert np.isnan(found["predicted_days"][0])
    assert says in found["note"][0]


def test_what_is_no_table_is_refused():
    with pytest.raises(InputError, match="frame or a list of dicts"):
        hp.predict_steps("rows.csv")
    with pytest.raises(InputError, match="did you mean 'micro_batch'"):
        hp.predict_steps([STEPS[0] | {"micro_bach": 2}])
    with pytest.raises(InputError, match="no row of the table can be read"):
        hp.predict_ops([{"op": "nonsense", "dtype": "bf16"}], "h100_sxm")


def test_a_run_of_a_model_is_that_of_its_plan():
    row = {"model": "llama3-8b", "system": "dgx_h100", "n_gpus": 16, "global_batch": 64}
    found = hp.predict_runs([{**row, "tokens": "1B"}, row, {**row, "tokens": 1e9, "tp": 2}])
    asked = {"model": "llama3-8b", "system": "dgx_h100", "gpus": 16, "batch": 64}
    alone = hp.run_cost(tokens="1B", **asked)
    assert found["predicted_days"][0] == alone.row("days")[0]
    assert (found["usd_low"][0], found["usd_high"][0]) == alone.row("usd")[1:]
    assert "expected tokens" in found["note"][1]
    assert (
        found["predicted_days"][2]
        == hp.run_cost(tokens=1e9, only={"tp": 2}, **asked).row("days")[0]
    )
    best = hp.predict_plans([row | {"tp": 2, "tokens": 1e9}]).iloc[0]
    plan = hp.plan(**asked, only={"tp": 2}, tokens=1e9)
    assert best["predicted_s"] == plan.top(1)["time_s"].iloc[0]
    assert best["best_pp"] == plan.best.pp
    assert best["days"] == plan.top(1)["days"].iloc[0]
    assert found["predicted_step_s"][2] == best["predicted_s"]
