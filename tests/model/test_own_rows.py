"""Ops that we measured ourselves on lent GPUs, in their shipped calibrations."""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.io import read_table
from hybridperf.model.batch import stacked
from hybridperf.model.price import price
from hybridperf.model.stages.borrowed import reference_device
from hybridperf.ops import EmbeddingBag, Norm, Softmax
from hybridperf.ops.base import OpCall
from hybridperf.ops.rows import KERNEL_S
from hybridperf_calibration.ship.devices import OWN_FAMILIES, OWN_GROUPS, own_table

BAGS = EmbeddingBag("fp32", tables=4.0, rows=1e6, dim=64.0, batch=4096.0, pooling=16.0)


@pytest.mark.parametrize("device", ["h100_sxm", "h200_sxm"])
def test_a_shipped_calibration_says_which_rows_of_ours_it_has(device: str) -> None:
    own = hp.load_model(device).provenance["own"]
    rows = read_table(own_table(device))
    if "order" in rows:
        rows = rows[(rows["op"] != "conv") | (rows["order"] == "channels last")]
    assert own["rows"]
    for op, count in own["rows"].items():
        assert count == (rows["op"] == op).sum()
    held_out = {line["op"]: line["median_ape"] for line in own["fit"]["ops"]}
    assert set(held_out) <= {*OWN_GROUPS, *OWN_FAMILIES}
    assert held_out["softmax"] < 0.15
    for line in own["fit"]["ops"]:
        assert line["median_ape"] < 0.5 * line["roofline_ape"]
        assert 0.85 < line["coverage"] < 0.95


def test_lookups_of_an_unseen_row_are_near_on_the_gpu_that_was_measured() -> None:
    """Each row by a fit that had not seen it."""
    own = hp.load_model("h200_sxm").provenance["own"]["fit"]["ops"]
    (bags,) = [line for line in own if line["op"] == "embedding_bag"]
    assert bags["rows"] == 240
    assert bags["median_ape"] < 0.1 < bags["roofline_ape"]
    assert 0.85 < bags["coverage"] < 0.95


def whose(device: str, models: list[hp.PerfModel]) -> hp.PerfModel | None:
    spec = hp.load_device(device)
    (batch,) = stacked([OpCall(BAGS)], spec)
    return reference_device(spec, batch, models)


def test_lookups_of_another_architecture_stay_with_what_caches_show() -> None:
    """Those of the same one were measured: `test_lookup_prior.py`."""
    shipped = [hp.load_model(name) for name in ("h100_sxm", "h200_sxm")]
    assert whose("a100_sxm4_80g", shipped) is None
    near = whose("h100_sxm", shipped)
    assert near is not None
    assert near.device.id == "h200_sxm"


def test_a_small_softmax_takes_no_less_than_a_kernel_does() -> None:
    """The A100's own form factor has none measured, its twin 27 us with the launch."""
    small = OpCall(Softmax("bf16", 64.0, 256.0), issued_apart=True)
    for device in ("h100_sxm", "h200_sxm", "a100_sxm4_80g", "v100_pcie_32g"):
        seconds = price(hp.load_model(device), [small]).seconds
        assert np.all((seconds > 0.8e-6) & (seconds < 5e-6))


@pytest.mark.parametrize("op", [Norm("fp32", 512.0, 1024.0), Softmax("fp32", 512.0, 512.0)])
def test_what_is_issued_apart_pays_no_launch(op) -> None:
    """Tables of a V100 time each op with its launch, of some 30 and 60 us; a step has it apart."""
    model = hp.load_model("v100_pcie_32g")
    calls = [OpCall(op, issued_apart=apart, framework="pytorch") for apart in (False, True)]
    timed, apart = price(model, calls).seconds
    moved_s = float(op.work().bytes) / model.device.memory_bytes_per_s
    assert timed > 25e-6
    assert 0.8 * (KERNEL_S + moved_s) < apart < 3 * (KERNEL_S + moved_s)  # of 2 MB: in L2
