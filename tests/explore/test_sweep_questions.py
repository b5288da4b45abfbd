"""Sweeps of any question: what a chunk holds is what the function of frames says, however it was
cut, killed, shared or drawn.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.sweeps import spec_of

import hybridperf as hp
from hybridperf.explore.sweeps.design import values_of
from hybridperf.io import InputError
from hybridperf.training.steps.frames import step_effects

STEPS = {
    "model": "llama3-8b", "gpu": "h100_sxm", "gpus": [8, 16], "tp": [1, 2, 4, 8], "pp": [1, 2],
    "global_batch": 64, "micro_batch": [1, 2],
}  # fmt: skip
FIELDS = {
    "steps": STEPS,
    "serve": {"model": "llama3-8b", "gpu": "h100_sxm", "backend": ["vllm", "sglang"], "tp": [1, 2],
              "isl": [512, 1024], "osl": 64, "concurrency": [1, 16]},
    "plans": {"model": "llama3-8b", "system": "dgx_h100", "n_gpus": [8, 16], "global_batch": 64},
    "runs": {"step_time_s": 5.0, "steps": 1e5, "n_gpus": "512..2048", "gpu": "h100_sxm",
             "checkpoint": "sync,async"},
    "rl": {"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": [8, 16], "rollouts": 64,
           "mean_length": 200, "max_length": 1024},
    "ops": {"op": "gemm", "dtype": ["bf16", "fp32"], "m": "256..1024", "n": 4096, "k": 512},
    "collectives": {"collective": "all_reduce", "bytes": "1024..1048576", "n_gpus": [2, 4],
                    "n_nodes": 1},
}  # fmt: skip
MODEL = {"ops": "h100_sxm", "collectives": "dgx_a100"}
PREDICT: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "steps": hp.predict_steps, "serve": hp.predict_serving, "plans": hp.predict_plans,
    "runs": hp.predict_runs, "rl": hp.predict_rl,
    "ops": lambda rows: hp.predict_ops(rows, MODEL["ops"]),
    "collectives": lambda rows: hp.predict_collectives(rows, MODEL["collectives"]),
}  # fmt: skip


def product(fields: dict) -> pd.DataFrame:
    """All combinations, the last field varying fastest."""
    several = [values_of(one) if isinstance(one, str) else one for one in fields.values()]
    lists = [one if isinstance(one, list) else [one] for one in several]
    return pd.DataFrame(itertools.product(*lists), columns=[*fields])


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Equal but for sums of arrays of other lengths, whatever files make of types."""
    found, expected = (
        one.assign(fits=one["fits"].astype("boolean")) if "fits" in one else one
        for one in (found, expected)
    )
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True), expected.reset_index(drop=True), rtol=1e-12,
        check_dtype=False, check_column_type=False,
    )  # fmt: skip


@pytest.mark.parametrize("question", FIELDS)
def test_a_sweep_is_the_function_of_frames_on_the_product(question: str, tmp_path: Path):
    fields, model = FIELDS[question], MODEL.get(question, "")
    done = hp.sweep(question, tmp_path / "grid.parquet", fields=fields, model=model, chunk=3,
                    quiet=True)  # fmt: skip
    expected = PREDICT[question](product(fields))
    same(done.frame().drop(columns="point"), expected)
    assert done.rows == done.points == len(expected)


def test_fitted_effects_are_those_of_the_function(tmp_path: Path):
    rows = product(STEPS | {"gpus": 8, "pp": 1})
    measured = rows.assign(step_time_s=1.5 * hp.predict_steps(rows)["predicted_s"])
    effects, _ = step_effects(measured, None)
    assert effects is not None
    knobs = tmp_path / "knobs.json"
    effects.save(knobs)
    done = hp.sweep("steps", tmp_path / "grid.parquet", fields=STEPS, knobs=knobs, quiet=True)
    expected = hp.predict_steps(product(STEPS), knobs=knobs)
    same(done.frame().drop(columns="point"), expected)
    believed = hp.predict_steps(product(STEPS))["predicted_s"]
    assert (expected["predicted_s"] > 1.1 * believed).any()
    with pytest.raises(InputError, match="another sweep"):  # by other effects
        hp.sweep("steps", tmp_path / "grid.parquet", fields=STEPS, quiet=True)


def test_questions_go_by_their_commands_names_too(tmp_path: Path):
    done = hp.sweep("run", tmp_path / "runs.parquet", fields=FIELDS["runs"], quiet=True)
    same(done.frame().drop(columns="point"), hp.predict_runs(product(FIELDS["runs"])))


def test_rows_of_a_frame_a_list_and_a_file_are_points(tmp_path: Path):
    rows = pd.DataFrame([
        {"model": "llama3-8b", "tp": 2, "recompute": "full", "mine": "a"},
        {"model": "llama2-7b", "tp": np.nan, "recompute": None, "mine": "b"},
        {"model": "nobody's", "tp": 3, "recompute": "none", "mine": "c"},
    ]).assign(gpu="h100_sxm", n_gpus=8, micro_batch=1, pp=1, global_batch=16)  # fmt: skip
    expected = hp.predict_steps(rows)
    assert expected["predicted_s"].notna().tolist() == [True, True, False]
    rows.to_parquet(tmp_path / "rows.parquet")
    ways = {"frame": rows, "list": rows.to_dict("records"), "file": tmp_path / "rows.parquet"}
    for name, given in ways.items():
        out = tmp_path / f"{name}.parquet"
        done = hp.sweep("steps", out, fields=given, chunk=2, quiet=True)
        same(done.frame().drop(columns="point"), expected)
        assert done.unpredicted == 1
    assert not [*tmp_path.glob("*.parts")]
    with pytest.raises(InputError, match="draw from these"):
        hp.sweep("steps", tmp_path / "new.parquet", fields=rows, sample=2, quiet=True)


def test_conditions_name_fields_and_results(tmp_path: Path):
    where = ["tp * pp <= 4", "fits == 1 and mfu > 0.2", "gpu == 'h100_sxm'"]
    done = hp.sweep("steps", tmp_path / "grid.parquet", fields=STEPS, where=where, quiet=True,
                    derived={"each": "tokens_per_s / gpus"}, minimise="predicted_s",
                    maximise=["each"])  # fmt: skip
    whole = hp.predict_steps(product(STEPS))
    kept = whole[
        (whole["tp"] * whole["pp"] <= 4) & whole["fits"].fillna(False) & (whole["mfu"] > 0.2)
    ]
    assert 0 < len(kept) < len(whole)
    found = done.frame().drop(columns=["point", "each"])
    ours = kept.drop(columns="note")
    same(found.drop(columns="note"), ours)
    front = pd.read_csv(done.front)
    assert len(front)
    for one in front.itertuples():
        better = (done.frame()["predicted_s"] < one.predicted_s) & (done.frame()["each"] > one.each)
        assert not better.any()


def test_a_row_that_cannot_be_predicted_stays_whatever_is_asked_of_results(tmp_path: Path):
    done = hp.sweep(
        "steps", tmp_path / "grid.parquet", fields=STEPS | {"gpu": ["h100_sxm", "h300_sxm"]},
        where=["mfu > 0.2", "tp == 1"], quiet=True,
    )  # fmt: skip
    refused = done.frame()[done.frame()["predicted_s"].isna()]
    assert len(refused) == done.unpredicted > 0
    assert {*refused["gpu"]} == {"h300_sxm"}
    assert {*refused["tp"]} == {1}  # a condition on fields counts for them, too
    assert "unknown gpu 'h300_sxm'" in done.refused
    assert (done.frame()["mfu"].dropna() > 0.2).all()


def test_a_sample_is_drawn_evenly_and_is_the_same_again(tmp_path: Path):
    fields = STEPS | {"tp": "1,2,4,8", "global_batch": {"min": 64, "max": 1024, "integer": True}}
    first, again, other = (
        hp.sweep("steps", tmp_path / f"{at}.parquet", fields=fields, sample=256, seed=seed,
                 quiet=True).frame()
        for at, seed in enumerate((1, 1, 2))
    )  # fmt: skip
    pd.testing.assert_frame_equal(first, again)
    assert (first["global_batch"] != other["global_batch"]).any()
    assert first["tp"].value_counts().to_dict() == {1: 64, 2: 64, 4: 64, 8: 64}
    assert first["global_batch"].between(64, 1024).all()
    assert first["global_batch"].nunique() > 100
    fields["global_batch"] = {"min": 64, "max": 1024}
    with pytest.raises(InputError, match="needs a count of its values"):
        hp.sweep("steps", tmp_path / "no.parquet", fields=fields, quiet=True)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", [8]), ("1,2,8", [1, 2, 8]), ("256..4096", [256, 512, 1024, 2048, 4096]),
        ("3..20", [4, 8, 16]), ("0.25..1", [0.25, 0.5, 1]), ("1..9:2", [1, 3, 5, 7, 9]),
        ("0..1:0.25", [0, 0.25, 0.5, 0.75, 1]), ("8..2:-3", [8, 5, 2]), ("1,4..8", [1, 4, 8]),
        ("bf16,fp8", ["bf16", "fp8"]), ("0,1,none", ["0", "1", "none"]), ("1e9", [1e9]),
        ("../my.toml", ["../my.toml"]), ("llama-3.1-8b", ["llama-3.1-8b"]),
    ],
)  # fmt: skip
def test_values_as_people_write_them(text: str, values: list):
    assert values_of(text) == values


@pytest.mark.parametrize(
    "text",
    ["", "5..7", "8..4", "0..8", "1..9:-1", "1..9:0", "256..", "1..x", "1..1e999", "9" * 5000],
    ids=lambda text: text[:9],
)
def test_ranges_that_hold_nothing_are_refused(text: str):
    with pytest.raises(InputError, match="expected"):
        values_of(text)


@pytest.mark.parametrize(
    ("question", "fields", "more", "says"),
    [
        ("steps", STEPS | {"tensr": 2}, {}, "no field of steps"),
        ("steps", STEPS | {"micro_bach": 2}, {}, "did you mean 'micro_batch'"),
        ("steps", STEPS, {"model": "h100_sxm"}, "model is no setting of steps"),
        ("steps", None, {}, "expected fields and their values"),
        ("ops", FIELDS["ops"], {}, "needs a model"),
        ("step", STEPS, {}, "known are ops, collectives, steps"),
        (3, STEPS, {}, "expected a question .*, got int"),
        ("steps", STEPS, {"where": "tp < nonsense"}, "nonsense"),
        ("steps", STEPS, {"where": "__import__('os')"}, "cannot stand in a formula"),
        ("steps", STEPS | {"tp": []}, {}, "no values|values of tp"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(
    question: Any, fields: dict | None, more: dict, says: str, tmp_path: Path
):
    with pytest.raises(InputError, match=says):
        hp.sweep(question, tmp_path / "grid.parquet", fields=fields, quiet=True, **more)
    assert not [*tmp_path.iterdir()]


def test_the_command_sweeps_a_question(run: Callable, tmp_path: Path):
    words = [
        "--model", "llama3-8b", "--gpu=h100_sxm", "--gpus", "8..16", "--tp", "1,2,4,8", "--pp",
        "1..2:1", "--global-batch", "64", "--micro-batch", "1,2",
    ]  # fmt: skip
    out, other = tmp_path / "grid.parquet", tmp_path / "by_hand.parquet"
    status, said, err = run("sweep", "steps", *words, "--out", out, "--where", "tp * pp <= 4")
    assert status == 0, err
    assert "20 rows of 32 points" in said
    done = hp.sweep("steps", other, fields=STEPS, where="tp * pp <= 4", quiet=True)
    same(pd.read_parquet(out).sort_index(axis=1), done.frame().sort_index(axis=1))
    table = tmp_path / "rows.csv"
    product(STEPS).to_csv(table, index=False)
    status, said, err = run("sweep", "steps", "--rows", table, "--out", tmp_path / "rows.parquet")
    assert "32 rows of 32 points" in said, err
    ops = ["--op", "gemm", "--dtype", "bf16,fp32", "--m", "256..1024", "--n", "4096", "--k", "512"]
    status, said, err = run(
        "sweep", "ops", "--model", "h100_sxm", *ops, "--out", tmp_path / "ops.parquet"
    )
    assert "6 rows of 6 points" in said, err
    page = tmp_path / "grid.html"
    status, said, err = run("sweep", "steps", *words, "--out", out, "--html", page, "--where",
                            "tp * pp <= 4")  # fmt: skip
    assert "page in" in said, err
    assert '"grid": [{"gpus": 8, ' in page.read_text()
    for more, says in (
        (["--tensr", "2"], "no field of steps"), (["--tp"], "expected --FIELD VALUES"),
        (["word"], "expected --FIELD VALUES"), (["--tp", "2"], "twice"),
    ):  # fmt: skip
        status, _, err = run("sweep", "steps", *words, *more, "--out", tmp_path / "no.parquet")
        assert (status, says in err) == (2, True), err


def test_an_interrupted_command_says_what_is_kept(tmp_path: Path):
    out = tmp_path / "grid.parquet"
    words = [
        "sweep", "steps", "--model", "llama3-8b", "--gpu", "h100_sxm", "--gpus", "8..4096",
        "--tp", "1..8", "--pp", "1..8", "--global-batch", "64..8192", "--micro-batch", "1..8",
        "--chunk", "20", "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "hybridperf.cli", *words], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 300
    while not [*tmp_path.glob("*.parts/*.parquet")] and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("hybridperf: interrupted; ")
    assert "grid.parquet.parts" in err.strip().splitlines()[-1]


def test_files_that_cells_name_are_part_of_what_a_sweep_is(tmp_path: Path):
    sizes = tmp_path / "mine.json"

    def identity(layers: int) -> str:
        sizes.write_text(f'{{"layers": {layers}}}')
        return str(spec_of("steps", {"model": str(sizes), "tp": [1, 2]}).identity())

    assert identity(2) == identity(2)
    assert identity(2) != identity(3)


def test_two_workers_write_what_one_process_writes(tmp_path: Path):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `distributed`)")
    rows = product(STEPS).assign(mine="x")
    for name, workers in (("one", None), ("two", 2)):
        hp.sweep("steps", tmp_path / f"{name}.parquet", fields=rows, chunk=4, workers=workers,
                 quiet=True)  # fmt: skip
    one, two = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    same(one, two)


def test_four_kills_lose_and_double_nothing_and_a_flipped_byte_is_computed_again(tmp_path: Path):
    words = [f"--{name}={','.join(map(str, one if isinstance(one, list) else [one]))}"
             for name, one in STEPS.items()]  # fmt: skip
    out, parts = tmp_path / "killed.parquet", tmp_path / "killed.parquet.parts"
    command = [sys.executable, "-m", "hybridperf.cli", "sweep", "steps", *words, "--global-batch",
               "64..1024", "--chunk", "2", "--top", "5", "--out", str(out)]  # fmt: skip
    command = [one for one in command if not one.startswith("--global_batch")]
    rng, seen = np.random.default_rng(0), list[int]()
    for _ in range(4):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        wanted = len(list(parts.glob("part-*"))) + int(rng.integers(1, 14))
        while process.poll() is None and len(list(parts.glob("part-*"))) < wanted:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.append(len(list(parts.glob("part-*"))))
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] < 80, "killed in the middle"
    damaged = sorted(parts.glob("part-*"))[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    assert f"{2 * (seen[-1] - 1):,} of 160 points were done before" in done.stderr
    found = pd.read_parquet(out)
    assert found["point"].tolist() == list(range(160))
    fields = {**STEPS, "global_batch": "64..1024"}
    order = [one for one in STEPS if one != "global_batch"] + ["global_batch"]
    expected = hp.predict_steps(product({name: fields[name] for name in order}))
    same(found.drop(columns="point")[list(expected)], expected)
    assert not parts.exists()
    order = {name: fields[name] for name in order}
    whole = hp.sweep("steps", tmp_path / "whole.parquet", fields=order, chunk=2, top=5, quiet=True)
    assert out.read_bytes() == whole.out.read_bytes()
    assert out.with_name("killed.top.csv").read_bytes() == whole.top.read_bytes()
