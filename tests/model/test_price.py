"""The one price: what calls cost, how sure that is, what was assumed."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from support.part_calls import calls_of

import hybridperf as hp
from hybridperf.model import PerfModel, shipped
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.model.sources import Code
from hybridperf.model.stages.borrowed import ATTENTION_WIDTH, PRODUCTS_WIDTH, ROW_WIDTH
from hybridperf.ops import Convolution, EncoderAttention, Gemm, OpCall, RmsNorm, run_on
from hybridperf.ops.table import parse_ops

PRODUCT = Gemm("bf16", 4096.0, 4096.0, 4096.0)
NORM = RmsNorm("bf16", 8192.0, 4096.0)


@pytest.fixture(scope="module")
def model() -> PerfModel:
    return hp.load_model("h100_sxm").with_collectives(hp.load_collectives("aic_h100_sxm"))


def test_it_is_what_tables_of_ops_and_of_collectives_say(model) -> None:
    message = CollectiveCall("all_reduce", 1e8, 8)
    found = hp.price(model, [OpCall(PRODUCT), message, GivenSeconds(0.25)])
    op = {"op": "matmul", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096}
    (by_table,) = model.predict_ops(pd.DataFrame([op]))["predicted_s"]
    row = {"collective": "all_reduce", "bytes": 1e8, "n_gpus": 8, "n_nodes": 1}
    by_links = model.collectives.predict(pd.DataFrame([row])).iloc[0]
    assert found.seconds == pytest.approx([by_table, by_links["predicted_s"], 0.25], rel=1e-4)
    width = np.log(by_links["high_s"] / by_links["low_s"]) / 2 / 1.6449
    assert found.spread[1] == pytest.approx(width, rel=1e-3)
    assert 0.01 < found.spread[0] < 0.2
    assert found.in_range.all()
    assert (found.roofline_s[:2] < found.seconds[:2]).all()


def test_it_is_what_tables_say_of_ops_that_nobody_measured() -> None:
    """In formats, by names and of kinds that its rows lack: a T4's have neither fp16 nor norms."""
    model, size = hp.load_model("t4"), 4096
    rows = [
        {"op": name, "dtype": dtype, "m": size, "n": size, "k": size}
        for name, dtype in (("gemm", "fp16"), ("matmul", "fp16"), ("matmul", "fp64"))
        if dtype in model.device.peak_flops_per_s
    ] + [{"op": "rms_norm", "dtype": "fp16", "rows": size, "cols": size},
         {"op": "embedding_bag", "dtype": "fp32", "rows": 1e6, "dim": 64, "batch": size,
          "pooling": 20}]  # fmt: skip
    table = model.predict_ops(pd.DataFrame(rows))
    parts = parse_ops(pd.DataFrame(rows), model.device).parts
    for part in parts:
        calls = calls_of(part)
        found = hp.price(model, calls)
        seconds = table["predicted_s"].to_numpy()[part.rows]
        assert found.seconds == pytest.approx(seconds, rel=1e-5), part.name
        assert (found.in_range == table["in_range"].to_numpy()[part.rows]).all()
    product = table.iloc[0]
    assert product["predicted_s"] > 1.2 * product["roofline_s"]  # a share of it, as others reach
    assert product["low_s"] < product["predicted_s"] < product["high_s"]
    assert "no gemm in fp16 was measured" in product["note"]
    assert "the share of the roofline that" in product["note"]


def test_a_convolution_in_single_precision_is_tf32_where_there_is_such() -> None:
    """For whoever measures it, for tables and for calls: rows in fp32 teach what both say."""
    op = Convolution("fp32", 32.0, 64.0, 64.0, 56.0, 56.0, 3.0)
    sizes = {"op": "conv", "dtype": "fp32", "c_in": 64, "h_in": 56, "h_out": 56, "kh": 3}
    rows = pd.DataFrame([
        sizes | {"batch": batch, "c_out": c_out, "time_s": 1e-9 * batch * c_out * 56**2 / 100}
        for batch in (8, 16, 32, 64, 128) for c_out in (32, 64, 96, 128, 192, 256)
    ])  # fmt: skip
    asked = pd.DataFrame([sizes | {"batch": 32, "c_out": 64}])
    for device, peak in (("a100_sxm4_80g", "tf32"), ("v100_sxm2", "fp32")):
        spec = hp.load_device(device)
        assert run_on(op, spec).dtype == peak
        model, _ = hp.fit(rows, device, prior="none")
        (by_table,) = model.predict_ops(asked)["predicted_s"]
        for dtype in ("fp32", peak):
            call = OpCall(dataclasses.replace(op, dtype=dtype))
            assert hp.price(model, [call]).seconds == pytest.approx([by_table], rel=1e-4)


def test_tensor_cores_that_were_not_measured_go_by_those_that_were() -> None:
    """An A100's convolutions were measured in fp32; an H200's in TF32, whose share of the peak
    tells of the A100's more than the A100's lanes do.
    """
    model = hp.load_model("a100_pcie_80g")
    op = Convolution("fp32", 32.0, 256.0, 256.0, 28.0, 28.0, 3.0)
    found = hp.price(model, [OpCall(op), OpCall(dataclasses.replace(op, dtype="fp16"))])
    assert [(one.code, one.device) for one in found.sources] == [
        (Code.BORROWED, "h200_sxm"), (Code.OWN_ROWS, ""),
    ]  # fmt: skip


def test_a_fused_norm_takes_its_bytes_and_a_single_one_what_was_measured(model) -> None:
    """The kernel that was measured is vLLM's of 2023, whose lanes load single numbers."""
    single = OpCall(NORM, framework="vllm_2023")
    fused, single = hp.price(model, [OpCall(NORM, kernel="fused"), single]).seconds
    moved_s = float(NORM.work().bytes) / model.device.memory_bytes_per_s
    assert fused == pytest.approx(moved_s, rel=1e-5)
    assert single > 1.5 * fused


def test_nothing_unmeasured_costs_less_than_its_arithmetic_at_the_peak() -> None:
    """Loops, norms and attention of a T4, which was measured in none of these numbers."""
    model = hp.load_model("t4")
    attention = EncoderAttention("fp16", 1.0, 4096.0, 16.0, 128.0)
    found = hp.price(model, [OpCall(attention), OpCall(Gemm("fp16", 4096.0, 4096.0, 4096.0))])
    assert (found.seconds >= found.roofline_s).all()
    assert not found.in_range.any()
    assert found.components.names == ("class: ops",)  # which a training step shares, too
    assert found.components.shared[0] == pytest.approx([ATTENTION_WIDTH, PRODUCTS_WIDTH])
    assert found.spread == pytest.approx([ROW_WIDTH] * 2)  # each by itself, as a row of a table


def test_a_gpu_tells_nothing_of_a_cpu() -> None:
    """What a CPU was not measured in takes its datasheet's roofline, whatever is shipped."""
    here = hp.PerfModel.datasheet(hp.load_device("here"))
    referring = dataclasses.replace(here, references=shipped)
    calls = [OpCall(Gemm("fp32", 512.0, 512.0, 512.0)), OpCall(RmsNorm("fp32", 512.0, 512.0))]
    assert hp.price(referring, calls).seconds == pytest.approx(hp.price(here, calls).seconds)


def test_a_call_that_nobody_can_price_is_named() -> None:
    with pytest.raises(hp.InputError, match=r"expected a model with collectives .* all_reduce"):
        hp.price(hp.load_model("t4"), [CollectiveCall("all_reduce", 1e6, 8)])
