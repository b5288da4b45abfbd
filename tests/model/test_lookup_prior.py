"""Lookups on a GPU that never measured one: the knobs of its caches, their widths, the interval."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.hardware import load_device
from hybridperf.io import read_table
from hybridperf.model import PerfModel, load_model
from hybridperf.model.lookup_prior import MEASURED, LookupPrior, is_lookup, lookup_prior
from hybridperf.ops import Op, OpCall
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import lookup_calls
from hybridperf_calibration.ship.devices import own_table

H100 = load_device("h100_sxm")


def forward(rows: float, batch: float = 4096.0) -> Op:
    return lookup_calls([Table("t", rows, 64, 20)], batch).op


def test_by_hand_from_memory_and_from_cache() -> None:
    prior = lookup_prior()
    share, l2, _, factor, update = np.exp(prior.mean)
    large, small = forward(1e9), forward(1e3)
    large_s, small_s = (np.exp(prior.log_seconds(H100, op)[0]) for op in (large, small))
    from_memory = factor * large.work().bytes / (share * H100.memory_bytes_per_s)
    from_l2 = factor * small.work().bytes / (l2 * H100.clock_hz * H100.multiprocessors)
    assert large_s == pytest.approx(from_memory, rel=0.01)
    assert small_s == pytest.approx(from_l2, rel=0.05)
    assert small_s < 0.7 * large_s
    back = lookup_calls([Table("t", 1e9, 64, 20)], 4096.0, "backward").op
    ratio = np.exp(prior.log_seconds(H100, back)[0] - prior.log_seconds(H100, large)[0])
    assert ratio == pytest.approx(update * back.work().bytes / large.work().bytes, rel=0.01)


def test_widths_are_of_the_knobs_that_a_lookup_depends_on() -> None:
    prior = lookup_prior()
    large, small = (prior.log_seconds(H100, forward(rows))[1] for rows in (1e9, 1e3))
    memory, l2, _, factor, _ = prior.width
    assert large == pytest.approx(math.hypot(memory, factor), rel=0.02)
    assert small == pytest.approx(math.hypot(l2, factor), rel=0.05)
    middle = forward(H100.l2_bytes / 256)
    assert prior.log_seconds(H100, middle)[1] > factor


def test_a_gpu_without_a_clock_goes_by_the_ratio_of_bandwidths() -> None:
    prior = lookup_prior()
    bare = H100.model_copy(update={"clock_hz": None})
    log_s, width = prior.log_seconds(bare, forward(1e3))
    l2_bytes_per_s = math.exp(prior.l2_over_memory[0]) * H100.memory_bytes_per_s
    by_hand = math.exp(prior.mean[3]) * forward(1e3).work().bytes / l2_bytes_per_s
    assert math.exp(log_s) == pytest.approx(by_hand, rel=0.05)
    assert width > prior.log_seconds(H100, forward(1e3))[1]


def test_what_is_left_out_has_no_say_and_fewer_gpus_tell_less() -> None:
    every, without = LookupPrior.of(), LookupPrior.of(["v100_sxm2", "quadro_gv100"])
    assert without.mean[0] != every.mean[0]
    assert without.width[3] > every.width[3]
    one = MEASURED["a100_sxm4_40g"]
    rate = load_device("a100_sxm4_40g").memory_bytes_per_s
    alone = [name for name in MEASURED if name not in ("a100_sxm4_40g", "titanxp")]
    assert min(LookupPrior.of(alone).mean[0], 0.0) < math.log(one.memory_bytes_per_s / rate) + 0.2


def test_a_dlrm_on_a_shipped_gpu_has_an_interval_that_holds_its_lookups() -> None:
    tables = tuple(Table(f"t{i}", 1e6, 64, 100) for i in range(8))
    config = hp.DlrmConfig(2048, 512, (512, 64), (1024, 1024, 1), tables)
    model = load_model("a100_pcie_40g")  # whose lookups nobody measured
    step = hp.dlrm(config)
    found = hp.predict(model, step)
    of_groups = found.breakdown().set_index("group")
    lookups_s = of_groups.loc[["embedding_bag", "embedding_bag_backward"], "seconds"].sum()
    assert lookups_s > 0.2 * found.time_s
    assert found.low_s < found.time_s < found.high_s
    # the other ops' interval alone is narrower than what lookups may be off
    off = lookup_prior().width.max() * lookups_s
    assert found.high_s - found.time_s > off
    assert sum("that other GPUs show (a wide belief)" in note for note in found.notes) == 2
    prices = hp.price(model, step.calls)
    believed = np.isfinite(prices.spread) & np.isinf(prices.outside)
    ours = [isinstance(one, OpCall) and is_lookup(one.op) for one in step.calls]
    assert sum(ours) == 2
    assert believed[ours].all()


def test_measured_lookups_are_not_believed() -> None:
    model, step = load_model("h100_sxm"), hp.dlrm(hp.DlrmConfig(64, 8, (8,), (1,), (
        Table("t", 1e5, 8, 4),)))  # fmt: skip
    report = dataclasses.replace(next(iter(model.groups.values())), dtypes=("fp32",))
    kinds = ("embedding_bag", "embedding_bag_backward")
    measured = dataclasses.replace(model, groups={**model.groups, **dict.fromkeys(kinds, report)})
    assert not any("other GPUs show" in note for note in hp.predict(measured, step).notes)
    datasheet = PerfModel.datasheet(H100)
    assert not any("other GPUs show" in note for note in hp.predict(datasheet, step).notes)


def test_a_table_of_lookups_says_the_same_as_a_step() -> None:
    model, op = load_model("a100_sxm4_80g"), forward(1e6)
    rows = [{"op": "embedding_bag", "dtype": "fp32", "batch": 4096, "pooling": 20, "rows": r,
             "dim": 64} for r in (1e3, 1e6)]  # fmt: skip
    found = model.predict_ops(pd.DataFrame(rows))
    assert found["note"].str.contains("other GPUs show").all()
    price = hp.price(model, [OpCall(op)])
    # uniform access by its closed form here, by classes of rows there
    assert found["predicted_s"][1] == pytest.approx(price.seconds[0], rel=0.1)
    assert (found["low_s"] < found["predicted_s"]).all()
    assert (found["high_s"] > found["predicted_s"]).all()


def test_lookups_of_a_gpu_that_measured_none_go_by_one_of_its_architecture() -> None:
    """Twenty of PyTorch's embedding bags on an H100, of whose lookups its model knows nothing, by
    what an H200 took.
    """
    path = own_table("h100_sxm")
    assert path is not None
    rows = read_table(path)
    rows = rows[rows["op"] == "embedding_bag"].reset_index(drop=True)
    found = load_model("h100_sxm").predict_ops(rows.drop(columns="time_s"))
    assert found["note"].str.contains("lookups of h200_sxm").all()
    ratio = found["predicted_s"] / rows["time_s"]
    assert abs(ratio - 1).median() < 0.1
    assert rows["time_s"].between(found["low_s"], found["high_s"]).mean() > 0.8
    alone = lookup_prior().log_seconds(H100, forward(1e6))[0]
    assert hp.price(load_model("h100_sxm"), [OpCall(forward(1e6))]).seconds[0] >= np.exp(alone)
