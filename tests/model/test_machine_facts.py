"""Facts of a device's datasheet that move the knobs it starts with."""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.hardware import load_device
from hybridperf.learning.prior.form import NO_FACTS, Machine
from hybridperf.learning.prior.shipped import DEFAULT_PRIOR, load_prior
from hybridperf.model.machine_facts import machine_of, machines_of


@pytest.mark.parametrize("device", ["v100_pcie_32g", "p100_pcie_16g", "h100_sxm", "a100_pcie_40g"])
def test_large_boards_hold_their_peak(device: str) -> None:
    found = machine_of(load_device(device), "matmul_fp32")
    assert dataclasses.replace(found, takes_kernels=False, laboratory_sd=0.0) == NO_FACTS


@pytest.mark.parametrize(
    ("device", "takes"),
    [("h100_sxm", True), ("b300_sxm", True), ("rtx_pro_6000_server", False), ("l40s", False)],
)
def test_kernels_of_another_library_are_made_for_servers(device: str, takes: bool) -> None:
    """TensorRT-LLM's of Hopper and of Blackwell in data centres; not of workstations' Blackwell."""
    assert machine_of(load_device(device), "decode_attention").takes_kernels is takes


def test_small_cards_do_not_and_more_power_is_never_less() -> None:
    card = load_device("l4")
    watts = [40.0, 72.0, 120.0, 1000.0]
    held = [
        machine_of(card.model_copy(update={"tdp_w": one}), "matmul_fp32").sustained.get("fp32", 1.0)
        for one in watts
    ]
    assert held == sorted(held)
    assert 0 < held[0] < held[1] < held[-1] == 0.66  # which is its lanes', whatever the power
    unlimited = machine_of(card.model_copy(update={"tdp_w": None}), "matmul_fp32")
    assert unlimited.sustained == {"fp32": 0.66}


@pytest.mark.parametrize(
    ("device", "size", "best"), [("rtx_a6000", 4096, 23.2), ("rtx_4090", 8192, 57.55)]
)
def test_doubled_lanes_reach_less_of_their_peak(device: str, size: int, best: float) -> None:
    """cuBLAS on an RTX A6000 and an RTX 4090: 23.2 TFLOP/s of 38.7, 57.55 of 82.6; an A100's rows
    alone would have the former at 37.5.
    """
    row = {"op": "gemm", "dtype": "fp32", "m": size, "n": size, "k": size}
    told_s = hp.predict_ops([row], device)["predicted_s"].item()
    assert 2e-12 * size**3 / told_s == pytest.approx(best, rel=0.1)


def test_a_watt_of_28_nm_feeds_less_than_one_of_16() -> None:
    held = {
        name: machine_of(load_device(name), "matmul_fp32").sustained.get("fp32", 1.0)
        for name in ("m40", "titanx_maxwell", "gtx1080ti", "p100_sxm2")
    }
    assert held["m40"] < 0.9
    assert held["titanx_maxwell"] < 0.9
    assert held["gtx1080ti"] == held["p100_sxm2"] == 1.0  # as many watts, a later process


@pytest.mark.parametrize(
    ("device", "least", "most"),
    [("l40s", 0.65, 0.75), ("t4", 0.7, 0.9), ("l20", 1, 1), ("rtx_4090", 1, 1), ("h100_sxm", 1, 1)],
)
def test_cards_with_gddr_hold_what_their_watts_feed(device: str, least: float, most: float) -> None:
    """T4 and L40S hold 0.56 and 0.59 TFLOP/s a watt in 16 bits; L20 and RTX 4090 need no more."""
    held = machine_of(load_device(device), "matmul").sustained.get("fp16", 1.0)
    assert least <= held <= most


def test_amds_products_reach_a_smaller_share_of_the_matrix_peak() -> None:
    card = load_device("mi210")
    assert (card.peak("fp32", "matrix"), card.peak("fp32", "vector")) == (45.3e12, 22.6e12)
    assert machine_of(card, "matmul_fp32").sustained["fp32"] == 0.69
    assert {machine_of(card, family).kind for family in ("matmul", "matmul_fp32")} == {"AMD"}


@pytest.mark.parametrize(
    ("device", "dtype", "best", "m", "n", "k"),
    [  # TFLOP/s: AMD, "Measuring Max-Achievable FLOPs"; Bekman; HipKittens (hipBLASLt's of MI350X)
        ("mi300x", "bf16", 708, 4096, 4864, 32896), ("mi300x", "fp16", 654, 4096, 4864, 32896),
        ("mi300x", "fp8", 1273, 4096, 4864, 32896), ("mi300x", "bf16", 668, 10240, 15360, 8192),
        ("mi325x", "bf16", 831, 4096, 4864, 32896), ("mi325x", "bf16", 785, 13312, 10240, 8192),
        ("mi325x", "fp8", 1408, 4096, 3648, 32896), ("mi250", "bf16", 147, 1024, 19968, 14080),
        ("mi350x", "bf16", 1038, 4096, 4096, 4096), ("mi350x", "bf16", 1117, 8192, 8192, 8192),
    ],
)  # fmt: skip
def test_best_shapes_of_amds_published_products(
    device: str, dtype: str, best: float, m: int, n: int, k: int
) -> None:
    """By the line that their watts follow within 18 %; ours lie below, as usual shapes do."""
    row = {"op": "gemm", "dtype": dtype, "m": m, "n": n, "k": k}
    told = hp.predict_ops([row], device)["predicted_s"].item()
    assert 0.82 < 2e-12 * m * n * k / told / best < 1.06


@pytest.mark.parametrize(("dtype", "best"), [("bf16", 179.2), ("fp8", 354.3), ("int8", 676.0)])
def test_a_geforce_card_is_not_held_as_a_server_card_of_fewer_watts(
    dtype: str, best: float
) -> None:
    """cuBLASLt's best TFLOP/s on an RTX 4090 (xzwgit, "gpu-flops-bench", 2026); by the share that
    an L40S of 350 W holds of its peak it would be 156 in FP8 and 350 in int8.
    """
    row = {"op": "gemm", "dtype": dtype, "m": 8192, "n": 8192, "k": 8192}
    told = hp.predict_ops([row], "rtx_4090")["predicted_s"].item()
    assert 0.75 < 2e-12 * 8192**3 / told / best < 1.1


def test_attention_on_cdna_4_lies_among_its_libraries() -> None:
    """16 sequences of 8,192 tokens, 16 heads of 128, on an MI355X: Composable Kernel 834 TFLOP/s
    causal and 896 not, Triton 733 and 1,001 (HipKittens' tables); NVIDIA's share would be 1,290.
    """
    sizes = {"batch": 16, "q_len": 8192, "kv_len": 8192, "heads": 16, "kv_heads": 16}
    one = {"op": "context_attention", "dtype": "bf16", "head_dim": 128, **sizes}
    seconds = hp.predict_ops([{**one, "causal": 1}, {**one, "causal": 0}], "mi355x")["predicted_s"]
    flops = 4 * 16 * 16 * 8192.0**2 * 128
    causal, full = (flops / np.array([2, 1]) / seconds.to_numpy() / 1e12).tolist()
    assert 733 * 0.95 < causal < 834 * 1.2
    assert 896 * 0.95 < full < 1001 * 1.1


def test_no_card_with_gddr_holds_less_than_was_seen() -> None:
    """An L4 of 72 W reaches 91 TFLOP/s at its best shape: the watts of a T4 would feed 42."""
    held = machine_of(load_device("l4"), "matmul").sustained["fp16"]
    assert 45e12 < held * 0.83 * load_device("l4").peak("fp16", "matrix") < 91e12


def test_a_class_without_rows_is_less_sure_and_every_other_laboratory() -> None:
    population = load_prior(DEFAULT_PRIOR).families["matmul"].population
    usual, other = (
        population.on(machine_of(load_device(one), "matmul")).stranger_sd
        for one in ("h100_sxm", "mi300x")
    )
    assert 0 < usual < other < 0.4


def test_the_clock_counts_where_no_host_launches() -> None:
    device = load_device("a100_sxm4_80g")
    assert machine_of(device, "moe") == Machine(device.clock_hz, laboratory_sd=0.2)
    assert machine_of(device, "elementwise") == Machine(laboratory_sd=0.06)
    assert machines_of(["nobody"], "moe") == {"nobody": NO_FACTS}
