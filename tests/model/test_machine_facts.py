"""Facts of a device's datasheet that move the knobs it starts with."""

import dataclasses

import pytest

from hybridperf.hardware import load_device
from hybridperf.learning.prior.form import NO_FACTS, Machine
from hybridperf.model.machine_facts import machine_of, machines_of


@pytest.mark.parametrize("device", ["v100_pcie_32g", "p100_pcie_16g", "h100_sxm", "a100_pcie_40g"])
def test_large_boards_hold_their_peak(device: str) -> None:
    found = machine_of(load_device(device), "matmul_fp32")
    assert dataclasses.replace(found, takes_kernels=False) == NO_FACTS


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
    assert 0 < held[0] < held[1] < 1 == held[-1]
    assert machine_of(card.model_copy(update={"tdp_w": None}), "matmul_fp32") == NO_FACTS


def test_the_clock_counts_where_no_host_launches() -> None:
    device = load_device("a100_sxm4_80g")
    assert machine_of(device, "moe") == Machine(device.clock_hz)
    assert machine_of(device, "elementwise") == NO_FACTS
    assert machines_of(["nobody"], "moe") == {"nobody": NO_FACTS}
