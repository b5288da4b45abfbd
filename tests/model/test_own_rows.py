"""Ops that we measured ourselves on lent GPUs, in their shipped calibrations."""

import dataclasses

import numpy as np
import pytest
from support.part_calls import calls_of

import hybridperf as hp
from hybridperf.io import read_table
from hybridperf.model.batch import stacked
from hybridperf.model.price import price
from hybridperf.model.ship.devices import OWN_FAMILIES, OWN_GROUPS, own_table
from hybridperf.model.stages.borrowed import reference_device
from hybridperf.ops import EmbeddingBag, Softmax
from hybridperf.ops.base import OpCall
from hybridperf.ops.table import parse_ops

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


@pytest.mark.parametrize("device", ["h100_sxm", "h200_sxm"])
def test_norms_without_the_launch_are_nearer_to_those_we_measured(device: str) -> None:
    """Rows that no calibration was given; tables that have norms time them with their launch."""
    model, rows = hp.load_model(device), read_table(own_table(device))
    rows = rows[rows["op"] == "batchnorm"].reset_index(drop=True)
    errors = {True: np.full(len(rows), np.nan), False: np.full(len(rows), np.nan)}
    for part in parse_ops(rows, model.device).parts:
        calls = calls_of(part)
        for apart, error in errors.items():
            asked = [dataclasses.replace(call, issued_apart=apart) for call in calls]
            error[part.rows] = model.op_seconds(model.table(asked))
    median = {
        apart: np.median(np.abs(found / rows["time_s"] - 1)) for apart, found in errors.items()
    }
    assert median[True] < 0.45
    assert median[False] > 1.0
