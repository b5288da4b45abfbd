"""What a step's time hangs on: names, signs, and agreement with predictions of machines that are a
percent better.
"""

import dataclasses

import jax
import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.batches import predict_batch
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import LEVELS, load_device
from hybridperf.model import PerfModel
from hybridperf.ops import (
    GROUPS,
    Call,
    Elementwise,
    Gather,
    Gemm,
    OpCall,
    Softmax,
    Transpose,
    op_by_name,
)
from hybridperf.ops.roofline import RooflineKnobs


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
    for knob, base in (
        ("memory_bytes_per_s", model.device.memory_bytes_per_s),
        ("peak_flops_scale", 1.0),
    ):
        more = predict_batch(model, step, **{knob: np.array([base * 1.01])})[0]
        assert table[knob] == pytest.approx(np.log(more / usual) / np.log(1.01), rel=0.02)
        assert table[knob] < 0
    assert table["memory_bytes_per_s"] + table["peak_flops_scale"] == pytest.approx(-1, abs=0.02), (
        "twice of both is half the time"
    )


def test_a_group_has_its_own_knobs_and_the_strongest_come_first(step: Workload) -> None:
    model = PerfModel.datasheet(load_device("a100_sxm4_80g"))
    table = hp.elasticities(predict(model, step))
    assert table["elasticity"].abs().is_monotonic_decreasing
    of = table.set_index("knob")["elasticity"]
    assert of["gemm__compute_efficiency"] == pytest.approx(of["peak_flops_scale"], rel=0.05)
    assert "convolution__compute_efficiency" not in of, "the step has none"


@pytest.fixture(scope="module")
def two_streams() -> Workload:
    """Two streams that wait for each other, each op launched by the host: something else holds the
    step up at each point.
    """
    calls = (
        OpCall(Gemm("fp32", 2048.0, 2048.0, 2048.0)),
        OpCall(Elementwise("fp32", 4096.0, 4096.0, 2.0, 3.0, 1.0), times=3.0),
        OpCall(Softmax("fp32", 4096.0, 4096.0)), OpCall(Transpose("fp32", 2048.0, 1024.0)),
        OpCall(Gather("fp32", 1e5, 64.0, 1e6)), OpCall(Call("fp32", 8.0)),
    )  # fmt: skip
    builder = GraphBuilder()
    first = builder.op(1, stream="compute", launch_row=6)
    builder.op(2, stream="memory", launch_row=6, after=[first])
    moved = builder.op(4, stream="memory", launch_row=6)
    builder.op(3, stream="compute", launch_row=6)
    looked_up = builder.op(5, stream="memory", launch_row=6, after=[moved])
    builder.op(3, stream="compute", launch_row=6, after=[looked_up], blocking=True)
    builder.op(1, stream="compute", launch_row=6)
    return Workload("two streams", builder.build(), calls)


def test_every_knob_it_lists_against_differences_of_predictions(two_streams: Workload) -> None:
    """In double precision, on a machine with caches whose knobs are all its own."""
    rng = np.random.default_rng(0)
    n = len(GROUPS)
    knobs = RooflineKnobs(
        floor_s=rng.uniform(1e-6, 5e-6, n), compute_efficiency=rng.uniform(0.4, 0.9, n),
        memory_efficiency=rng.uniform(0.4, 0.9, n), transcendental_flops=rng.uniform(5, 30, n),
        strided_factor=rng.uniform(0.5, 2, n), step_s=rng.uniform(1e-11, 1e-10, n),
        smoothing=rng.uniform(0.05, 0.6, n), level_speedup=np.array([7.0, 3.0, 3.0, 1.5]),
        line_s=np.array([3e-10, 1e-9, 4e-9, 2e-8]), level_capacity=np.array([0.9, 0.8, 0.3, 1.0]),
    )  # fmt: skip
    device = load_device("v100").model_copy(
        update={"l1_bytes": 1e6, "l2_bytes": 8e6, "l3_bytes": 5e7}
    )
    model = PerfModel(device, knobs)
    with jax.enable_x64(True):
        listed = hp.elasticities(predict(model, two_streams)).set_index("knob")
        for knob, (value, elasticity) in listed.iterrows():
            more, less = (
                predict(with_number(model, knob, value * (1 + way * 1e-5)), two_streams).time_s
                for way in (1, -1)
            )
            assert elasticity == pytest.approx(np.log(more / less) / 2e-5, rel=1e-4, abs=1e-7), knob
    wanted = {
        "memory_bytes_per_s",
        "peak_flops_scale",
        "l2__level_bytes",
        "l3__level_capacity",
        "memory__line_s",
        "call__floor_s",
    }
    wanted |= {
        "elementwise__transcendental_flops",
        "transpose__strided_factor",
        "gather__step_s",
        "softmax__smoothing",
    }
    assert wanted <= {*listed.index}


def with_number(model: PerfModel, name: str, value: float) -> PerfModel:
    """A model one of whose numbers is another, by the name that elasticities have for it."""
    device, (of, _, knob) = model.device, name.rpartition("__")
    if name == "peak_flops_scale":
        change = {
            "peak_flops_per_s": {
                dtype: rate * value for dtype, rate in device.peak_flops_per_s.items()
            }
        }
        return dataclasses.replace(model, device=device.model_copy(update=change))
    if name == "memory_bytes_per_s":
        return dataclasses.replace(model, device=device.model_copy(update={name: value}))
    if knob == "level_bytes":
        return dataclasses.replace(model, device=device.model_copy(update={f"{of}_bytes": value}))
    numbers = np.array(getattr(model.knobs, knob))
    numbers[GROUPS.index(of) if of in GROUPS else LEVELS.index(of)] = value
    return dataclasses.replace(model, knobs=dataclasses.replace(model.knobs, **{knob: numbers}))
