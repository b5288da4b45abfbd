"""Which model a name means, and what a sweep says of it first."""

import numpy as np
import pandas as pd
import pytest

from hybridperf.explore.sweeps.target import Target
from hybridperf.explore.sweeps.written import Asked
from hybridperf.model import load_model, model_or_datasheet


@pytest.mark.parametrize(
    ("name", "shipped"), [("h100", "h100_sxm"), ("H100 SXM5", "h100_sxm"), ("v100", "v100_sxm2")]
)
def test_other_names_find_the_shipped_calibration(name, shipped, run):
    expected = load_model(shipped).fingerprint()
    assert load_model(name).fingerprint() == model_or_datasheet(name).fingerprint() == expected
    assert run("show", name)[1] == run("show", shipped)[1]


def test_this_machine_is_a_model_everywhere():
    assert load_model("here").device.id == model_or_datasheet("here").device.id == "here"


@pytest.mark.parametrize(
    ("question", "datasheet", "measured", "says"),
    [
        ("ops", "a100_sxm4_40g", "h100", "a100_sxm4_40g is priced by its datasheet"),
        ("collectives", "deepbench_nv_v100", "dgx_h100", "priced by what other systems showed"),
    ],
)
def test_a_datasheet_is_reported(question, datasheet, measured, says, tmp_path):
    extremes = {"op": np.array(["gemm"], object)}
    asked = Asked(question=question, model=datasheet)
    assert says in Target(asked, tmp_path, extremes).remarks()[0]
    asked = Asked(question=question, model=measured)
    assert Target(asked, tmp_path, extremes).remarks() == []


def test_the_command_says_that_it_is_a_datasheet(run, tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'schema = "hybridperf/sweep"\nschema_version = 1\n[target]\nquestion = "ops"\nmodel ='
        ' "a100_sxm4_40g"\n[parameters]\nop = "gemm"\ndtype = "bf16"\nm = [1, 128]\nn = 4096\nk ='
        " 4096\n"
    )
    assert "priced by its datasheet" in run("sweep", spec, "--out", tmp_path / "out.parquet")[2]


def test_a_misspelt_framework_is_suggested(tmp_path):
    rows = pd.DataFrame(
        [{"op": "gemm", "dtype": "bf16", "framework": "trtlm", "m": 128, "n": 4096, "k": 4096}]
    )
    assert "did you mean 'trtllm'" in load_model("h100_sxm").predict_ops(rows)["note"][0]
