"""Which model a name means, and what sweeps of steps and programs say of how
far to believe them.
"""

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.explore.sweeps.target import read_target
from hybridperf.explore.sweeps.written import TARGETS
from hybridperf.io import write_json
from hybridperf.model import load_model, model_or_datasheet
from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION, compile_program

GEMM = {"name": "g", "op": "gemm", "dtype": "bf16", "m": "tokens", "n": 4096, "k": 4096}


@pytest.mark.parametrize(
    ("name", "shipped"), [("h100", "h100_sxm"), ("H100 SXM5", "h100_sxm"), ("v100", "v100_sxm2")]
)
def test_other_names_find_the_shipped_calibration(name, shipped, run):
    expected = load_model(shipped).fingerprint()
    assert load_model(name).fingerprint() == model_or_datasheet(name).fingerprint() == expected
    assert run("show", name)[1] == run("show", shipped)[1]


def test_an_alias_gives_the_same_sweep(tmp_path):
    frames = []
    for name in ("h100", "h100_sxm"):
        spec = {
            "target": {"kind": "step", "model": name, "ops": [GEMM]},
            "parameters": {"tokens": [512, 4096]},
        }
        frames.append(pd.read_parquet(hp.sweep(spec, tmp_path / f"{name}.parquet", quiet=True).out))
    pd.testing.assert_frame_equal(*frames)


def test_this_machine_is_a_model_everywhere():
    assert load_model("here").device.id == model_or_datasheet("here").device.id == "here"


@pytest.mark.parametrize("target", [
    {"kind": "ops", "model": "a100_sxm4_40g"},
    {"kind": "step", "model": "a100_sxm4_40g", "ops": [GEMM]},
    {"kind": "collectives", "model": "deepbench_nv_v100"},
])  # fmt: skip
def test_a_datasheet_is_reported(target, tmp_path):
    extremes = {"op": np.array(["gemm"], object)}
    given = TARGETS[target["kind"]].model_validate(target)
    says = (
        "priced by what other systems showed"
        if target["kind"] == "collectives"
        else "a100_sxm4_40g is priced by its datasheet"
    )
    assert says in read_target(given, tmp_path, extremes).remarks()[0]
    measured = "h100" if target["kind"] != "collectives" else "dgx_h100"
    calibrated = given.model_copy(update={"model": measured})
    assert read_target(calibrated, tmp_path, extremes).remarks() == []


def test_the_command_says_that_it_is_a_datasheet(run, tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'schema = "hybridperf/sweep"\nschema_version = 1\n[target]\nkind = "ops"\nmodel ='
        ' "a100_sxm4_40g"\n[parameters]\nop = "gemm"\ndtype = "bf16"\nm = [1, 128]\nn = 4096\nk ='
        " 4096\n"
    )
    assert "priced by its datasheet" in run("sweep", spec, "--out", tmp_path / "out.parquet")[2]


def test_each_point_of_a_step_says_how_far_to_trust_it(tmp_path):
    spec = {
        "target": {
            "kind": "step",
            "model": "h100_sxm",
            "ops": [GEMM, {**GEMM, "name": "wide", "n": 2**24}],
        },
        "parameters": {"tokens": [512, 4096], "memory_bytes_per_s": [3.35e12, 6.7e12]},
    }
    rows = pd.read_parquet(hp.sweep(spec, tmp_path / "out.parquet", quiet=True).out)
    assert not rows["in_range"].any()
    assert (
        rows["note"]
        .str.contains(
            "g, wide: no framework given: taken for trtllm; wide: outside the measured range of"
            " matmul"
        )
        .all()
    )
    assert (
        rows["note"].str.contains("memory_bytes_per_s is 2 of the calibrated")
        == (rows["memory_bytes_per_s"] > 4e12)
    ).all()
    spec["target"]["ops"] = [GEMM]
    rows = pd.read_parquet(hp.sweep(spec, tmp_path / "one.parquet", quiet=True).out)
    assert (rows["in_range"] == (rows["memory_bytes_per_s"] < 4e12)).all()
    alone = load_model("h100_sxm").predict_ops(
        pd.DataFrame([{"op": "gemm", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096}])
    )
    assert bool(alone["in_range"][0])


def test_collectives_of_a_step_speak_too(tmp_path):
    reduce = {"name": "sum", "collective": "all_reduce", "bytes": "b", "n_gpus": 8}
    target = {"kind": "step", "model": "h100_sxm", "system": "aic_h100_sxm", "ops": [reduce]}
    spec = {"target": target, "parameters": {"b": [1e6, 1e13]}}
    rows = pd.read_parquet(hp.sweep(spec, tmp_path / "out.parquet", quiet=True).out)
    alone = hp.load_collectives("aic_h100_sxm").predict(
        pd.DataFrame({"collective": "all_reduce", "n_gpus": 8, "n_nodes": 1, "bytes": [1e6, 1e13]})
    )
    assert rows["in_range"].tolist() == alone["in_range"].tolist()
    assert all(theirs in ours for ours, theirs in zip(rows["note"], alone["note"], strict=True))


def test_each_point_of_a_program_says_how_far_to_trust_it(tmp_path):
    import jax
    import jax.numpy as jnp

    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    write_json(
        tmp_path / "step.json",
        "program",
        PROGRAM_SCHEMA_VERSION,
        compile_program(lambda x: jnp.tanh(x @ x), shape),
    )
    model = load_model("here")
    at = float(model.platform().memory_bytes_per_s)
    spec = {
        "target": {"kind": "program", "program": str(tmp_path / "step.json"), "model": "here"},
        "parameters": {"memory_bytes_per_s": [at, 3 * at]},
    }  # fmt: skip
    rows = pd.read_parquet(hp.sweep(spec, tmp_path / "out.parquet", quiet=True).out)
    assert not rows["in_range"].any()
    assert rows["note"].str.contains("datasheet roofline of here").all()
    assert rows["note"].str.contains("memory_bytes_per_s is 3 of the calibrated").tolist() == [
        False,
        True,
    ]
    found = hp.search({
        "target": spec["target"], "knobs": {"memory_bytes_per_s": {"min": at / 2, "max": 2 * at}},
        "objective": {"minimise": "memory_bytes_per_s"},
        "method": {"starts": 1, "rounds": 1, "steps": 2},
    })  # fmt: skip
    assert any("priced by its datasheet" in note for note in found.notes)
    assert found.trust.low_s is None


def test_a_misspelt_framework_is_suggested(tmp_path):
    rows = pd.DataFrame(
        [{"op": "gemm", "dtype": "bf16", "framework": "trtlm", "m": 128, "n": 4096, "k": 4096}]
    )
    assert "did you mean 'trtllm'" in load_model("h100_sxm").predict_ops(rows)["note"][0]
