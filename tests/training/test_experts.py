"""Steps of mixtures of experts: what routed tokens cost beside their products, and what a release
made quicker; published steps of sources that no fit has seen.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer.zoo import load_shape

ROW = dict(
    gpu="gb200", n_gpus=64, tp=1, pp=1, ep=8, micro_batch=4, global_batch=512, seq=4096,
    framework="megatron_core", precision="mxfp8",
)  # fmt: skip
MODELS = ("qwen3-30b-a3b", "nemotron-3-nano", "gpt-oss-120b")


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


def seconds(cache, rows):
    """Predicted, of rows that change `ROW`."""
    return predict_steps(pd.DataFrame([ROW | row for row in rows]), cache=cache).frame[
        "predicted_s"
    ].to_numpy()  # fmt: skip


def test_a_release_that_fuses_gated_experts_leaves_others_as_they_were(cache):
    """Transformer Engine's fused kernel is for SwiGLU in MXFP8: not for squared ReLU, nor for gates
    with biases and a limit.
    """
    before, after = (
        seconds(cache, [{"model": model, "release": release} for model in MODELS])
        for release in ("26.04", "26.06")
    )
    assert after[0] / before[0] < 0.85
    assert (after[1:] / before[1:] > 0.92).all()  # messages alone are quicker
    in_bf16 = [
        {"model": MODELS[0], "precision": "bf16", "release": one} for one in ("26.04", "26.06")
    ]
    assert np.divide(*seconds(cache, in_bf16)[::-1]) > 0.92
    in_blocks = [one | {"precision": "fp8_block"} for one in in_bf16]  # Hopper's scheme, not MXFP8
    assert np.divide(*seconds(cache, in_blocks)[::-1]) > 0.92


def test_experts_of_a_narrower_state_have_fewer_parameters_and_two_products_more():
    """Nemotron 3 Super's experts work on a quarter of its hidden state."""
    shape = load_shape("nemotron-3-super")
    whole = dataclasses.replace(shape, expert_hidden=0)
    narrow = dataclasses.replace(whole, expert_hidden=shape.hidden)
    assert shape.active_parameters < whole.active_parameters < narrow.active_parameters
    layers = sum(kind.count for kind in shape.layer_kinds if kind.experts)
    assert narrow.parameters - whole.parameters == layers * 2 * shape.hidden**2


def test_a_gb300_is_quicker_than_a_gb200_by_what_its_power_allows(cache):
    """Published dense steps of one layout: 1.19 to 1.28 (Megatron-Bridge's tables)."""
    dense = {"model": "llama3-70b", "ep": 1, "pp": 4, "micro_batch": 1, "seq": 8192}
    rows = [dense | {"gpu": gpu, "precision": dtype}
            for dtype in ("bf16", "mxfp8") for gpu in ("gb200", "gb300")]  # fmt: skip
    gb200, gb300 = seconds(cache, rows).reshape(2, 2).T
    assert (gb200 / gb300 > 1.15).all()
    assert (gb200 / gb300 < 1.28).all()


def test_published_steps_of_mixtures(data_dir, cache):
    """Nothing fitted; GPT-OSS and models whose steps predict further tokens apart."""
    folder = data_dir / "added/training_steps"
    if not folder.is_dir():
        pytest.skip("the second delivery of measured steps is missing")
    grok = pd.read_csv(folder / "published_tables.csv.gz")
    grok = grok[grok["model_name"].astype(str).str.contains("grok")]
    bridge = pd.read_csv(folder / "train_steps.csv.gz", low_memory=False)
    bridge = bridge[
        bridge["source"].eq("nemo_megatron_bridge")
        & bridge["model"].astype(str).str.contains("Qwen3|DeepSeekV3|Kimi|Nemotron_3_Nano")
    ]
    for rows, goal in ((grok, 0.06), (bridge, 0.10)):
        found = predict_steps(rows.reset_index(drop=True), cache=cache).frame
        error = np.abs(found["predicted_s"] / found["step_time_s"] - 1)
        inside = found["step_time_s"].between(found["low_s"], found["high_s"])
        assert found["predicted_s"].notna().mean() > 0.97
        assert error.median() < goal
        assert inside.mean() > 0.85
