"""What a step's time hangs on: names, signs, and agreement with predictions of machines that are a percent better."""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.graph import GraphBuilder
from hybridperf.hardware import load_device
from hybridperf.model import PerfModel
from hybridperf.ops import OpCall, op_by_name
from hybridperf.prediction import predict, predict_batch
from hybridperf.workload import Workload


@pytest.fixture(scope="module")
def step() -> Workload:
    """A large product, then a large copy: arithmetic, then traffic."""
    gemm = op_by_name("gemm")[0](m=4096, n=4096, k=4096, dtype="fp32")
    softmax = op_by_name("softmax")[0](rows=65536, cols=4096, dtype="fp32")
    builder = GraphBuilder()
    builder.op(1, label="gemm")
    builder.op(2, label="softmax")
    return Workload("step", builder.build(), (OpCall(gemm), OpCall(softmax)))


def test_a_percent_more_bandwidth_or_rate(step: Workload) -> None:
    model = PerfModel.datasheet(load_device("a100_sxm4_80g"))
    table = hp.elasticities(predict(model, step)).set_index("knob")["elasticity"]
    usual = predict(model, step).time_s
    for knob, base in (("memory_bytes_per_s", model.device.memory_bytes_per_s), ("peak_flops_scale", 1.0)):
        more = predict_batch(model, step, **{knob: np.array([base * 1.01])})[0]
        assert table[knob] == pytest.approx(np.log(more / usual) / np.log(1.01), rel=0.02)
        assert table[knob] < 0
    assert table["memory_bytes_per_s"] + table["peak_flops_scale"] == pytest.approx(-1, abs=0.02), "twice of both is half the time"


def test_a_group_has_its_own_knobs_and_the_strongest_come_first(step: Workload) -> None:
    model = PerfModel.datasheet(load_device("a100_sxm4_80g"))
    table = hp.elasticities(predict(model, step))
    assert table["elasticity"].abs().is_monotonic_decreasing
    of = table.set_index("knob")["elasticity"]
    assert of["gemm__compute_efficiency"] == pytest.approx(of["peak_flops_scale"], rel=0.05)
    assert "convolution__compute_efficiency" not in of, "the step has none"
