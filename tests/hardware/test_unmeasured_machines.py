"""Machines that nobody measured here: what their facts alone make of an op and of a collective."""

import math

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.hardware import device_names, load_device, load_system
from hybridperf.model import is_shipped, load_model, model_or_datasheet, unmeasured_device
from hybridperf.model.batch import stacked
from hybridperf.model.families import gpu_of
from hybridperf.model.machine_facts import has_gddr
from hybridperf.model.stages.borrowed import reference_device
from hybridperf.ops import Gemm, OpCall
from hybridperf.ops.images import ABOVE_PEAK

# compared pairwise below; others share their links on purpose (one box, many owners)
SYSTEMS = [
    "aic_h100_sxm", "hgx_h800", "aic_a100_sxm", "hgx_a800", "8x_l20_pcie", "8x_rtx_5090",
    "8x_mi300x", "8x_mi355x", "hls_2", "hls_3", "aws_trn2", "piz_daint",
]  # fmt: skip
UNMEASURED = [
    name for name in device_names() if load_device(name).kind == "gpu" and not is_shipped(name)
]


def gemm(name, **size):
    """A product of three equal sides in the device's own 16-bit format, or in fp32."""
    peaks = load_device(name).peak_flops_per_s
    dtype = next(one for one in ("bf16", "fp16", "fp32") if one in peaks)
    return pd.DataFrame([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": dtype} | size])


@pytest.mark.parametrize("name", ["l40s", "rtx_4090"])
def test_what_no_relative_of_a_calibrated_card_measured_is_priced_as_of_an_uncalibrated_one(name):
    """In single precision these took the share of a T4's peak, which 70 W hold."""
    rows = gemm(name, dtype="fp32")
    told, without = (
        model.predict_ops(rows).iloc[0]
        for model in (load_model(name), unmeasured_device(load_device(name)))
    )
    assert told["predicted_s"] == pytest.approx(without["predicted_s"], rel=1e-9)
    assert "no matmul_fp32 of" in told["note"]
    assert 0.6 < told["roofline_s"] / told["predicted_s"] < 0.9


def is_relative_free(name, dtype):
    """Whether no device of its generation was measured in products of a number format."""
    family = "matmul_fp32" if dtype == "fp32" else "matmul"
    return family in model_or_datasheet(name).families


@pytest.mark.parametrize("name", UNMEASURED)
def test_a_device_of_any_class_has_an_interval_that_says_whose_it_is(name):
    """Between as fast as the roofline and three times as slow; by relatives, else by what all GPUs
    show; cards whose tensor cores sum in 32 bits at half rate by a form of their own, a little
    above the datasheet's clock.
    """
    row, half_rate = model_or_datasheet(name).predict_ops(gemm(name)).iloc[0], 1.0
    by = "share of the roofline that"
    if load_device(name).fp32_sums_rate < 1 and row["dtype"] in ("bf16", "fp16"):
        half_rate, by = ABOVE_PEAK, "a closed form of such kernels"
    assert row.roofline_s / half_rate <= row.predicted_s < 3 * row.roofline_s
    assert row.low_s < row.predicted_s < row.high_s < 6 * row.low_s
    if half_rate == 1 and is_relative_free(name, row["dtype"]):
        by = f"prior alone: no matmul{'_fp32' * (row['dtype'] == 'fp32')} of {name} was measured"
    assert by in row.note
    assert row.in_range == by.startswith("prior alone")


@pytest.mark.parametrize("name", UNMEASURED)
def test_a_datasheet_prices_a_product_at_its_roofline_and_says_so(name):
    spec = load_device(name)
    row = hp.PerfModel.datasheet(spec).predict_ops(gemm(name)).iloc[0]
    assert row.predicted_s == pytest.approx(
        2 * 8192**3 / spec.peak(row["dtype"], "matrix"), rel=0.01
    )
    assert "datasheet roofline" in row.note
    assert np.isnan(row.low_s)


@pytest.mark.parametrize("name", [name for name in UNMEASURED if gpu_of(load_device(name))])
def test_without_rows_a_device_is_less_certain_than_a_measured_one(name):
    """The prior over devices alone: slower than the roofline, wider than the H100's interval; cards
    at half rate by their form, as by their name.
    """
    measured = load_model("h100_sxm").predict_ops(gemm("h100_sxm")).iloc[0]
    row = hp.fit(None, name)[0].predict_ops(gemm(name)).iloc[0]
    assert row.high_s / row.low_s > measured.high_s / measured.low_s
    if load_device(name).fp32_sums_rate < 1:
        by_name = model_or_datasheet(name).predict_ops(gemm(name)).iloc[0]
        assert row.predicted_s == by_name.predicted_s
        assert "a closed form of such kernels" in row.note
        return
    assert row.predicted_s > row.roofline_s
    assert "prior alone" in row.note


def seconds(system, ranks, size=2**28):
    """Of an all-reduce by the prior over systems, the nodes filled."""
    nodes = math.ceil(ranks / load_system(system).accelerators_per_node)
    row = {"collective": "all_reduce", "bytes": size, "n_gpus": ranks, "n_nodes": nodes}
    return float(hp.fit_collectives(None, system)[0].predict(pd.DataFrame([row])).predicted_s[0])


def test_an_h800s_and_an_a800s_nvlink_is_slower():
    """400 GB/s in both directions, of 900 and 600; between nodes they have the same cards."""
    assert seconds("hgx_h800", 8) > 1.5 * seconds("aic_h100_sxm", 8)
    assert seconds("hgx_a800", 8) > 1.2 * seconds("aic_a100_sxm", 8)
    assert (
        load_system("hgx_h800").share_bytes_per_s == load_system("aic_h100_sxm").share_bytes_per_s
    )


def test_two_networks_give_two_answers():
    answers = {name: (seconds(name, 8), seconds(name, 32)) for name in SYSTEMS}
    assert len(set(answers.values())) == len(SYSTEMS), answers
    # a GPU a node sends over Aries what those of a box send over NVLink
    assert seconds("piz_daint", 8) > 5 * seconds("hgx_a800", 8)


@pytest.mark.parametrize("name", ["8x_l20_pcie", "8x_a10_pcie", "nvidia_4x_l40s", "8x_rtx_5090"])
def test_a_box_on_pcie_keeps_half_of_its_generations_rate_among_four(name):
    """One measured box of L40S carries a sixth: its host's doing, not its accelerators'."""
    ranks, size = 4, 2**28
    bus_bytes_per_s = 2 * (ranks - 1) / ranks * size / seconds(name, ranks, size)
    assert 0.4 < bus_bytes_per_s / load_system(name).intra_bytes_per_s < 0.8


def test_a_newer_blackwell_is_no_slower():
    """By the calibration of the B200: peaks in bf16 and memory of GB300 and B300 are no lower."""
    calls = [
        OpCall(Gemm(m=8192, n=8192, k=8192, dtype="bf16")),
        OpCall(Gemm(m=32, n=8192, k=8192, dtype="bf16")),  # decoding: weights are read
    ]
    b200, gb200, b300, gb300 = (
        hp.price(load_model("b200_sxm").on(load_device(name)), calls)
        for name in ("b200_sxm", "gb200", "b300_sxm", "gb300")
    )
    no_slower = 1 + 1e-6  # a correction to another roofline rounds otherwise
    assert np.all(gb300.seconds <= b300.seconds * no_slower)
    assert np.all(b300.seconds <= b200.seconds * no_slower)
    assert np.all(gb300.seconds <= gb200.seconds * no_slower)
    assert gb300.roofline_s[0] < 0.95 * b300.roofline_s[0]
    assert b300.roofline_s[0] == pytest.approx(b200.roofline_s[0])


def test_by_other_gpus_alone_a_gb300_is_quicker_where_its_peak_is_higher():
    """2.5 PFLOP/s in bf16 to the B300's 2.25, which is the B200's, and the same memory."""
    large, small = gemm("gb300"), gemm("gb300", m=32)
    gb300, b300 = (hp.fit(None, name)[0] for name in ("gb300", "b300_sxm"))
    assert gb300.predict_ops(large).predicted_s[0] < 0.95 * b300.predict_ops(large).predicted_s[0]
    # few rows wait for steps of the clock, which is 4.9 % quicker, and for the same memory
    slower = b300.predict_ops(small).predicted_s[0] / gb300.predict_ops(small).predicted_s[0]
    assert 0.97 < slower < 1.01 * load_device("gb300").clock_hz / load_device("b300_sxm").clock_hz
    measured = load_model("b200_sxm").predict_ops(large).predicted_s[0]
    row = b300.predict_ops(large).iloc[0]
    assert row.low_s < measured < row.high_s
    # as the GB300, of its architecture, which reaches more of its peak: 1.19 to 1.28 times a GB200
    # are published
    assert row.predicted_s == pytest.approx(measured / 1.17, rel=0.03)


def test_peaks_and_bandwidths_follow_the_generations():
    """Twice the rate per half of the bytes, and the order in which vendors sell them."""
    for name in device_names():
        peaks = load_device(name).peak_flops_per_s
        if "fp8" in peaks and "bf16" in peaks:
            assert peaks["fp8"] in (
                pytest.approx(2 * peaks["bf16"], rel=0.03), peaks["bf16"]
            ), name  # fmt: skip
        # an EPYC multiplies in bf16 alone, and in fp16 after conversion to fp32
        if "fp16" in peaks and "bf16" in peaks and name not in ("mi100", "epyc_9755"):
            assert peaks["fp16"] == peaks["bf16"], name
    fp4 = [load_device(name).peak("fp4", "matrix") for name in ("b200_sxm", "b300_sxm", "gb300")]
    assert fp4 == sorted(fp4)
    assert load_device("gb300").peak("fp4", "matrix") > load_device("gb200").peak("fp4", "matrix")
    for lesser, greater in (
        ("tpu_v5e", "tpu_v6e"), ("gaudi2", "gaudi3"), ("mi325x", "mi355x"), ("h20_sxm", "h800_sxm"),
        ("l20", "rtx_6000_ada"), ("a10", "rtx_a6000"), ("rtx_4090", "rtx_5090"),
    ):  # fmt: skip
        one, other = load_device(lesser), load_device(greater)
        assert one.peak("bf16", "matrix") < other.peak("bf16", "matrix")
        assert one.memory_bytes_per_s <= other.memory_bytes_per_s or greater == "h800_sxm"


@pytest.mark.parametrize("name", ["tpu_v5e", "tpu_v5p", "tpu_v6e", "trainium1", "trainium2"])
def test_a_device_without_relatives_borrows_from_its_kind_of_memory(name):
    """What a card with GDDR keeps up at its watts says nothing of an accelerator with HBM."""
    device, model = load_device(name), model_or_datasheet(name)
    (batch,) = stacked([OpCall(Gemm("bf16", 8192.0, 8192.0, 8192.0))], device)
    assert model.references is not None
    found = reference_device(device, batch, model.references())
    assert found is not None
    assert not has_gddr(found.device)
