"""Which model a name means, and what a sweep says of it first."""

import numpy as np
import pandas as pd
import pytest
from support.sweeps import words_of

from hybridperf.explore.sweeps.target import Target
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

    def remarks(model):
        return Target(question, {"model": model}, (), tmp_path, extremes).remarks()

    assert says in remarks(datasheet)[0]
    assert remarks(measured) == []


def test_the_command_says_that_it_is_a_datasheet(run, tmp_path):
    fields = {"op": "gemm", "dtype": "bf16", "m": [1, 128], "n": 4096, "k": 4096}
    words = words_of("ops", fields, "a100_sxm4_40g", out=str(tmp_path / "out.parquet"))
    assert "priced by its datasheet" in run(*words)[2]


def test_a_misspelt_framework_is_suggested(tmp_path):
    rows = pd.DataFrame(
        [{"op": "gemm", "dtype": "bf16", "framework": "trtlm", "m": 128, "n": 4096, "k": 4096}]
    )
    assert "did you mean 'trtllm'" in load_model("h100_sxm").predict_ops(rows)["note"][0]
