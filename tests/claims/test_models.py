"""Whole models of Hugging Face against the sum of their measured ops."""

import pytest

from benchmarks.claims import harness, models
from hybridperf.model import load_model
from hybridperf.ops import Gemm, OpCall


def test_a_model_has_as_many_ops_as_its_layers_say(data_dir) -> None:
    """GPT-2 of 36 layers: its four products with weights, two without, the head once."""
    shape = harness.facts("models.toml")["gpt2_large"]
    names = ("addmm", "addmm_1", "addmm_2", "addmm_3", "matmul", "matmul_1", "lm_head")
    assert [models._times(shape, name, "inf") for name in names] == [36] * 6 + [1]
    found = models.measured(data_dir)
    assert len(found) == 19
    assert (found["roofline_s"] < found["measured_s"]).all()


def test_from_torch_alone_is_nearer_than_the_roofline(data_dir, tmp_path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (`torch`)")
    pytest.importorskip("transformers", reason="transformers is not installed (`dev`)")
    said: list[str] = []
    tasks = ["inference"]
    models.run(data_dir, tmp_path, quick=True, tasks=tasks, say=said.append)
    found = harness.read_json(tmp_path / "results.json", harness.SCHEMA, harness.SCHEMA_VERSION)
    whole = found["lines"][0]
    assert whole["n"] == 4
    assert whole["ours"] < whole["baselines"]["neusight"] < whole["baselines"]["roofline"]


@pytest.mark.parametrize("device", ["v100_pcie_32g", "t4"])
def test_a_product_without_a_bias_takes_no_longer_than_with_one(device) -> None:
    """Tables of these GPUs have only the latter."""
    model = load_model(device)
    sizes = [(8192, 50257, 1280), (8192, 5120, 1280), (1024, 1024, 1024)]
    seconds = [
        model.op_seconds(
            model.table([OpCall(Gemm("fp32", m=m, n=n, k=k, bias=bias)) for m, n, k in sizes])
        )
        for bias in (0.0, 1.0)
    ]
    assert (seconds[0] <= seconds[1] * 1.001).all()
