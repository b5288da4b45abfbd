"""Products whose rows tensor cores cannot load whole."""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.io import read_table
from hybridperf.model.price import price
from hybridperf.ops import BatchedGemm, Convolution, Gemm, OpCall
from hybridperf.ops.operand_order import (
    is_channels_first,
    order_seconds,
    row_kernel,
    turning_seconds,
)
from hybridperf_calibration.ship.devices import own_table

H200 = hp.load_model("h200_sxm")


def seconds(model, *calls):
    return model.op_seconds(model.table(calls))


@pytest.mark.parametrize(
    ("op", "tokens", "kernel"),
    [
        (Gemm("bf16", 4096, 50304, 768), "m", ""),
        (Gemm("bf16", 4095, 50304, 768), "m", ""),
        (Gemm("bf16", 4095, 50304, 768), "", "rows of 2 bytes"),
        (Gemm("fp16", 4096, 50257, 768), "m", "rows of 2 bytes"),
        (Gemm("fp16", 4096, 30522, 768), "m", "rows of 4 bytes"),
        (BatchedGemm("bf16", 96, 77, 64, 77), "m", "rows of 2 bytes"),
        (Gemm("fp32", 4096, 50257, 768), "m", ""),
        (Gemm("fp8", 4096, 50257, 768), "m", ""),
    ],
)
def test_rows_choose_their_kernel(op, tokens, kernel) -> None:
    assert row_kernel(op, tokens) == kernel


@pytest.mark.parametrize(
    ("changes", "strides", "turned"),
    [
        ({}, (802_816, 12_544, 112, 1), True),
        ({}, (802_816, 1, 7168, 64), False),
        ({}, (), False),
        ({"kh": 1.0}, (802_816, 12_544, 112, 1), False),
        ({"groups": 64.0}, (802_816, 12_544, 112, 1), False),
        ({"dtype": "fp32"}, (802_816, 12_544, 112, 1), False),
    ],
)
def test_images_are_turned(changes, strides, turned) -> None:
    op = Convolution("bf16", 32.0, 64.0, 64.0, 112.0, 112.0, 3.0)
    op = dataclasses.replace(op, channels_first=float(is_channels_first(op, strides)), **changes)
    assert (turning_seconds(op, 1e12) > 0) == turned


def test_turning_images_takes_twice_their_bytes() -> None:
    op = Convolution("bf16", 32.0, 64.0, 64.0, 112.0, 112.0, 3.0)
    planes = dataclasses.replace(op, channels_first=1.0)
    plain_s, turned_s = seconds(H200, OpCall(op), OpCall(planes))
    twice_s = 2 * float(op.work().bytes) / H200.device.memory_bytes_per_s
    assert twice_s < turned_s - plain_s < 1.5 * twice_s


@pytest.mark.parametrize("kernel", ["rows of 2 bytes", "rows of 4 bytes"])
def test_products_that_an_h200_ran(kernel) -> None:
    """In the median as close as the module says, and nothing like the aligned product's price."""
    path = own_table("h200_sxm")
    assert path is not None
    rows = read_table(path)
    widths = rows["key"].str.extract(r"^layer (?:inputs |weights )?\d+ (\d+) (\d+) ")
    errors, plain = [], []
    for at in widths.dropna().index:
        row, (wide, narrow) = rows.loc[at], widths.loc[at].astype(float)
        op = Gemm(str(row["dtype"]), *(float(n) for n in (row.m, row.n, row.k)))
        if row_kernel(Gemm(op.dtype, 8.0, wide, narrow), "m") != kernel:
            continue
        alone_s, with_s = seconds(H200, OpCall(op), OpCall(op, kernel=kernel))
        errors.append(with_s / row.time_s - 1)
        plain.append(alone_s / row.time_s - 1)
    assert len(errors) > 25
    assert np.median(np.abs(errors)) < 0.2
    assert np.median(np.abs(plain)) > 0.5


def test_a_product_s_rows_are_told_and_widen_its_interval() -> None:
    op = Gemm("bf16", 8192.0, 50257.0, 1024.0)
    for device, source in (("h200_sxm", "an H200"), ("a100_sxm4_80g", "nanoGPT")):
        model = hp.load_model(device)
        whole, odd = (price(model, [OpCall(op, kernel=one)]) for one in ("", "rows of 2 bytes"))
        assert source not in whole.remarks[0]
        assert source in odd.remarks[0]
        assert odd.spread[0] > whole.spread[0]


@pytest.mark.parametrize("device", ["v100_sxm2", "a100_sxm", "h100_sxm", "b200"])
def test_narrower_rows_are_never_quicker(device) -> None:
    spec = hp.load_model(device).device
    op = Gemm("fp16", 8192.0, 50257.0, 1024.0)
    four, two = (
        order_seconds(kernel, op.work(), spec, spec.peak("fp16", "matrix"))
        for kernel in ("rows of 4 bytes", "rows of 2 bytes")
    )
    assert 0 < four <= two
