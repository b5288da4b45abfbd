"""Quantised products as a training step has them: a shipped H100's own tables, without making their
input narrow.
"""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.model import PerfModel, load_model
from hybridperf.model.stages.family import kernel_tables
from hybridperf.model.step_table import alone_seconds, step_table
from hybridperf.ops import Gemm, OpCall, Quantise

SIZES = ((8192, 12288, 4096), (4096, 8192, 16384), (1024, 9216, 14336), (2048, 2048, 1024))


@pytest.fixture(scope="module")
def h100():
    return load_model("h100_sxm")


def seconds(model, ops, **fields):
    calls = [OpCall(op, **fields) for op in ops]
    return alone_seconds(model, step_table(model, calls))


@pytest.mark.parametrize("quant", ["fp8", "fp8_block"])
def test_a_step_prices_them_as_tables_that_name_what_multiplies(h100, quant):
    wide, narrow = (
        seconds(h100, [Gemm(dtype, *map(float, size), quant=quant) for size in SIZES])
        for dtype in ("bf16", "fp8")
    )
    np.testing.assert_allclose(wide, narrow)


def test_issued_apart_they_make_nothing_narrow_and_beat_wide_products(h100):
    """One scale a tensor takes no longer than finer ones, either."""
    layer, finer = (
        [Gemm("bf16", *map(float, size), quant=quant) for size in SIZES]
        for quant in ("fp8", "fp8_block")
    )
    wide_s = seconds(h100, [Gemm("bf16", *map(float, size)) for size in SIZES])
    whole_s, alone_s = seconds(h100, layer), seconds(h100, layer, issued_apart=True)
    assert (alone_s < whole_s).all()
    assert (alone_s <= wide_s * (1 + 1e-9)).all()

    def left_s(ops):
        made = [Quantise(op.dtype, op.m, op.k, quant=op.quant) for op in ops]
        return np.maximum(seconds(h100, ops) - seconds(h100, made), seconds(h100, ops) / 2)

    expected_s = np.minimum(np.minimum(left_s(layer), left_s(finer)), wide_s)
    np.testing.assert_allclose(alone_s, expected_s)


def test_a_step_multiplies_by_the_library_of_its_framework(h100):
    """On Hopper cuBLAS' products in 8 bits take 0.875 of those of tables; experts' are others, of
    ragged groups.
    """
    layer = [Gemm("bf16", *map(float, size), quant="fp8") for size in SIZES]
    plain_s, by_library_s, experts_s = (
        seconds(h100, layer, issued_apart=True, **fields)
        for fields in (
            {},
            {"framework": "cublas_12"},
            {"framework": "cublas_12", "variant": "experts"},
        )
    )
    np.testing.assert_allclose(by_library_s, 0.875 * plain_s)
    np.testing.assert_allclose(
        experts_s, kernel_tables()["variants"]["experts"]["narrow"] * plain_s
    )


def test_schemes_without_rows_go_by_the_kernels_of_their_like():
    """MXFP8 by those of finer scales, and no quicker than with one scale a tensor, as published
    kernels and steps on Blackwell have it; weights of llama.cpp move their own bytes.
    """
    b200 = load_model("b200_sxm")
    sizes = [{"op": "gemm", "dtype": "bf16", "m": m, "n": 8192, "k": 8192} for m in (1, 64, 8192)]

    def told(quant):
        return b200.predict_ops(pd.DataFrame([one | {"quant": quant} for one in sizes]))

    coarse, fine, micro = (told(quant)["predicted_s"] for quant in ("fp8", "fp8_block", "mxfp8"))
    np.testing.assert_allclose(micro, np.maximum(coarse, fine), rtol=0.01)
    assert told("mxfp8")["note"].str.contains("no mxfp8 was measured: by fp8_block").all()
    four, in_blocks = (told(quant)["predicted_s"] for quant in ("mxfp4", "nvfp4"))
    np.testing.assert_allclose(four, in_blocks, rtol=0.05)
    small, large = (told(quant)["predicted_s"][0] for quant in ("q2_k", "q6_k"))
    assert small < told("q4_k")["predicted_s"][0] < large < told("bfloat16")["predicted_s"][0]


def test_in_a_step_mxfp8_takes_what_finer_scales_take():
    """Its inputs are made narrow apart, as fp8's are."""
    b200 = load_model("b200_sxm")
    fine_s, micro_s = (
        seconds(b200, [Gemm("bf16", *map(float, size), quant=quant) for size in SIZES],
                issued_apart=True)
        for quant in ("fp8_block", "mxfp8")
    )  # fmt: skip
    np.testing.assert_allclose(micro_s, fine_s, rtol=0.02)


def test_measured_layers_are_met(h100, data_dir):
    """Large products of TensorRT-LLM's layers in 8 bits, within a few percent in the median."""
    rows = pd.read_csv(data_dir / "compute/aiconfigurator_gemm.csv.gz")
    rows = rows[rows["device"].eq("h100_sxm") & rows["quant"].isin(["fp8", "fp8_block"])]
    rows = rows[(rows[["m", "n", "k"]].min(axis=1) >= 2048)].iloc[::8]
    ops = [Gemm("bf16", *map(float, (r.m, r.n, r.k)), quant=r.quant) for r in rows.itertuples()]
    ratio = seconds(h100, ops) / rows["time_s"].to_numpy(float)
    assert len(rows) > 50
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)


def test_kernels_of_groups_take_no_less_than_their_arithmetic():
    """Fused ones are quicker than a library's, but where that is at the peak already."""
    sizes = [(256, 1024, 2048), (32768, 16384, 16384)]
    ops = [Gemm("bf16", *map(float, size), quant="fp8_block") for size in sizes]
    measured, bare = load_model("b200_sxm"), PerfModel.datasheet(load_device("b200_sxm"))
    flops = np.array([2.0 * math.prod(size) for size in sizes])
    for model in (measured, bare):
        plain_s, fused_s = (
            seconds(model, ops, framework="cublas_12", variant=variant)
            for variant in ("", "fused_experts")
        )
        assert (fused_s <= plain_s * (1 + 1e-9)).all()
        assert (fused_s >= flops / model.device.peak("fp8", "matrix") * (1 - 1e-9)).all()
    assert seconds(measured, ops, variant="fused_experts")[0] < 0.9 * seconds(measured, ops)[0]


@pytest.mark.parametrize("quant", ["", "int4_wo", "int8_wo", "fp8"])
def test_a_cache_keeps_what_it_holds_of_a_product(quant):
    """The L40S' tables repeat products of up to 96 MB from its cache; it has none of int4."""
    card = load_model("l40s")
    op = Gemm("bf16", 1.0, 57344.0, 8192.0, quant=quant)
    passing = op.work().bytes - card.device.l2_bytes
    (took_s,) = seconds(card, [op])
    assert took_s >= passing / card.device.memory_bytes_per_s * (1 - 1e-9)


def test_frameworks_that_stream_narrow_weights_take_their_bytes():
    """Whatever the card's tables say of other kernels; with many rows these count."""
    known = kernel_tables()["streams"]
    card, (framework, *_) = load_model("rtx_4090"), known["frameworks"]
    op = Gemm("bf16", 1.0, 28672.0, 8192.0, quant="q4_k_m")
    (took_s,) = seconds(card, [op], framework=framework)
    read_s = op.work().bytes / (known["share"] * card.device.memory_bytes_per_s)
    assert took_s == pytest.approx(known["start_s"] + read_s)
    columns = {"op": "gemm", "dtype": "bf16", "quant": "q4_k_m", "m": 1, "n": 28672, "k": 8192}
    rows = pd.DataFrame([{**columns, "framework": framework}])
    assert card.predict_ops(rows)["predicted_s"][0] == pytest.approx(took_s)
    many = [Gemm("bf16", 4096.0, 28672.0, 8192.0, quant="q4_k_m")]
    assert seconds(card, many, framework=framework) == seconds(card, many)
    sizes = (1.0, 8.0, 32.0, 33.0, 64.0, 256.0, 4096.0)
    quick = load_model("l40s")  # whose tables have other kernels quicker
    took_s = seconds(quick, [dataclasses.replace(op, m=m) for m in sizes], framework=framework)
    assert (np.diff(took_s) >= 0).all()
