"""Batches that cannot be, the best so far while a sweep runs."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.sweeps import words_of

import hybridperf as hp
from hybridperf.engine.batches import BatchPredictor
from hybridperf.explore.sweeps.front import BestPoints, BestRule
from hybridperf.hardware import load_device
from hybridperf.io import InputError, progress, write_json
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION, compile_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A program file and a CPU model."""
    made = tmp_path_factory.mktemp("program")
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    step = compile_program(jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).sum()), shape, shape)
    write_json(made / "step.json", "program", PROGRAM_SCHEMA_VERSION, step)
    facts = load_device("v100").model_dump() | {
        "id": "a_cpu",
        "kind": "cpu",
        "clock_hz": 3e9,
        "multiprocessors": 2,
    }
    dataclasses.replace(
        PerfModel.datasheet(type(load_device("v100"))(**facts)), provenance={"made_by": "a test"}
    ).save(made / "model")
    return made


@pytest.fixture(scope="module")
def model_and_step(folder):
    return hp.load_model(folder / "model"), hp.load_program(folder / "step.json")


def test_an_op_without_seconds_is_named(model_and_step):
    model, step = model_and_step
    broken = dataclasses.replace(
        model.knobs, compute_efficiency=np.nan * model.knobs.compute_efficiency
    )
    with pytest.raises(
        InputError,
        match=(
            r"first used by node \d+ '.*'\) can have no time: its knob compute_efficiency is"
            r" nan, exp"
        ),
    ):
        BatchPredictor(dataclasses.replace(model, knobs=broken), step)
    below = dataclasses.replace(model.knobs, floor_s=-1.0 + 0 * model.knobs.floor_s)
    with pytest.raises(InputError, match=r"its knob floor_s is -1\.0"):
        BatchPredictor(dataclasses.replace(model, knobs=below), step)
    sizes = dataclasses.replace(model.knobs, level_speedup=-1.0 + 0 * model.knobs.level_speedup)
    with pytest.raises(InputError, match=r"can have no time: its knob level_speedup is -1\.0"):
        BatchPredictor(dataclasses.replace(model, knobs=sizes), step)
    with pytest.raises(
        InputError,
        match=r"memory_bytes_per_s must be positive numbers from 1.2e-38 to 3.4e\+38, got 1e-50",
    ):
        BatchPredictor(model, step)(memory_bytes_per_s=[1e9, 1e-50])
    with pytest.raises(InputError, match="would take inf s in configuration 1; check"):
        BatchPredictor(model, step)(memory_bytes_per_s=[1e9, 1e-37], gemm__floor_s=[1e-6, 2e-6])


def test_the_best_so_far_is_shown_while_it_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    fields = {"op": "gemm", "dtype": "fp16", "n": 512, "k": 512,
              "m": {"min": 64, "max": 4096, "count": 60, "integer": True}}  # fmt: skip
    given = {"question": "ops", "fields": fields, "model": "a100_sxm4_40g", "chunk": 20}
    done = hp.sweep(**given, out=tmp_path / "out.parquet", minimise="predicted_s", maximise="m")
    message = capsys.readouterr().err
    rows = pd.read_parquet(done.out)
    assert re.search(r"40 of 60, .* points/s; \d+ on the front", message)
    assert len(pd.read_csv(done.front)) > 1
    hp.sweep(**given, out=tmp_path / "again.parquet")
    best = rows.head(40).sort_values(["predicted_s", "point"]).iloc[0]
    said = f"least predicted_s {best['predicted_s']:.4g} at point {best['point']:.0f}"
    assert said in capsys.readouterr().err


def test_best_of_tables_is_best_of_rows():
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "point": np.arange(500),
            "a": rng.integers(0, 9, 500) * 1.0,
            "b": rng.random(500),
            "word": "x",
        }
    )
    frame.loc[7, "a"] = np.nan
    best = BestRule(12, "a", ("a", "b"), ())
    kept = BestPoints(best)
    for start in (300, 0, 100, 400, 200):
        kept.see_table(pa.Table.from_pandas(frame.iloc[start : start + 100], preserve_index=False))
    assert (
        kept.top["point"].tolist() == frame.sort_values(["a", "point"])["point"].head(12).tolist()
    )
    assert kept.front["point"].tolist() == best.front(frame)["point"].tolist()
    assert (kept.top["word"] == "x").all()


def test_the_best_are_printed(run, tmp_path):
    sizes = {"m": [64, 128, 256, 512, 1024, 2048], "n": 64, "k": 64}
    words = words_of("ops", {"op": "gemm", "dtype": "fp16"} | sizes, "a100_sxm4_40g", top=10)
    status, message, _ = run(*words, "--out", tmp_path / "out.parquet")
    assert status == 0
    lines = message.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["point", "m"])
    asked = pd.DataFrame({"op": "gemm", "dtype": "fp16", **sizes})
    quickest = np.argsort(model_or_datasheet("a100_sxm4_40g").predict_ops(asked)["predicted_s"])
    # such small products take a few us each, so the largest need not be the slowest
    assert [int(line.split()[0]) for line in lines[head + 2 : head + 7]] == quickest[:5].tolist()
    assert "op gemm" in message
    assert "and 1 more" in message
