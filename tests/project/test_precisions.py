"""Whatever JAX may trace serves both precisions in one process, in either order.

JAX keeps a NumPy array that outlives a trace in the precision it first had there (`either.py`), so
what one test traces in float32 could break what the next asks in float64. Each case closes over
arrays that live on, as models and tables do.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.made_sharding import made_cost

from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.price import collective_seconds
from hybridperf.engine.closed import step_seconds
from hybridperf.engine.step_features import BlockPrices, StepFeatures
from hybridperf.explore.sharding import methods
from hybridperf.hardware import load_device, load_system
from hybridperf.model import PerfModel, canonical
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.model.platform import durations
from hybridperf.model.step_effects import StepEffects
from hybridperf.model.step_table import step_durations, step_table
from hybridperf.ops import Elementwise, OpCall
from hybridperf.ops.embedding import Histogram, Table, Zipf
from hybridperf.ops.gemm import Gemm
from hybridperf.ops.roofline import Work, op_seconds
from hybridperf.workloads.memory import MemoryKnobs, memory
from hybridperf.workloads.schedules.pace import pace
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.zoo import load_shape

CASES: dict[str, Callable[[], tuple[Callable[[Any], Any], float]]] = {}


def case(
    made: Callable[[], tuple[Callable[[Any], Any], float]],
) -> Callable[[], tuple[Callable[[Any], Any], float]]:
    """A function of one number over arrays of its own, and where to ask it."""
    CASES[made.__name__] = made
    return made


def fabric() -> CollectiveModel:
    return CollectiveModel.datasheet(load_system("aws_p4d_a100"))


def machine() -> PerfModel:
    """Knobs away from what they are without calibration, and none a number that float32 holds."""
    bare = PerfModel.datasheet(load_device("a100_sxm_80gb")).with_collectives(fabric())
    return dataclasses.replace(
        bare, knobs=jax.tree.map(lambda knob: 0.1 + 0.7 * np.asarray(knob), bare.knobs)
    )


CALLS = [
    OpCall(Gemm("bf16", 301.0, 1100.0, 700.0)),
    OpCall(Elementwise("fp32", 700.0, 900.0), times=3),
]


@case
def collectives():
    frame = pd.DataFrame(
        {
            "collective": ["all_reduce", "alltoall"],
            "bytes": [1e6 / 3, 1e9 / 7],
            "n_gpus": [8, 16],
            "n_nodes": [1, 2],
        }
    )
    model = fabric()
    table, links = model.table(frame), model.links()
    return lambda rate: collective_seconds(
        table, dataclasses.replace(links, intra_bytes_per_s=rate)
    ).sum(), 2.3e11


@case
def ops():
    model = machine()
    table, platform = model.table(CALLS), model.platform()
    return lambda rate: durations(
        table, dataclasses.replace(platform, memory_bytes_per_s=rate)
    ).sum(), 1.3e12


@case
def ops_in_one_precision():
    model = machine()
    table, platform = model.table(CALLS), model.platform()
    return lambda rate: durations(
        canonical(table), dataclasses.replace(canonical(platform), memory_bytes_per_s=rate)
    ).sum(), 1.3e12


@case
def steps_of_ops_and_collectives():
    model = machine()
    table = step_table(
        model, [*CALLS, CollectiveCall("all_reduce", 1e8 / 3, 8), GivenSeconds(1e-5 / 3)]
    )
    platform = model.platform()
    return lambda rate: step_durations(
        table, dataclasses.replace(platform, memory_bytes_per_s=rate)
    ).sum(), 1.3e12


@case
def the_roofline():
    knobs = dataclasses.replace(
        machine().knobs,
        **{name: 0.7 for name in ("compute_efficiency", "memory_efficiency", "smoothing")},
    )
    knobs = dataclasses.replace(
        knobs,
        **{name: 0.3 for name in ("floor_s", "transcendental_flops", "strided_factor", "step_s")},
    )
    device = dataclasses.replace(
        load_device("a100_sxm_80gb").device("bf16", "matrix"),
        level_bytes=np.array([1e5 / 3, 4e7 / 7, 0.0, np.inf]),
    )
    return lambda flops: op_seconds(
        Work(flops, bytes=1e7 / 3, reuse_bytes=1e6 / 3, strided_reads=1e4 / 3), device, knobs
    ), 1e9 / 3


@case
def placements_between_placements():
    cost, logits = made_cost(7, 4, 2), np.random.default_rng(0).normal(0, 1, (7, 4))
    return lambda power: methods.loss(cost, logits, 0.5, power), 20.3


@case
def steps_of_transformers():
    rng = np.random.default_rng(0)
    blocks = [
        BlockPrices(*rng.uniform(0.1, 1, (len(dataclasses.fields(BlockPrices)), 2, 1)))
        for _ in range(3)
    ]
    features = StepFeatures(
        *blocks, *rng.uniform(1, 2, (len(dataclasses.fields(StepFeatures)) - 5, 1)), pace=pace
    )
    return lambda gemm: step_seconds(
        features, dataclasses.replace(StepEffects(), gemm=gemm)
    ).step_s.sum(), 1.1


@case
def peak_memory():
    layouts, shape = (
        Layout(tp=2, pp=4, dp=2, micro_batch=3, accumulation=5).columns,
        load_shape("llama2-7b"),
    )
    layouts = type(layouts)(*(np.array([column]) for column in layouts))
    return lambda head: memory(
        shape, layouts, knobs=dataclasses.replace(MemoryKnobs(), head=head)
    ).peak_bytes.sum(), 1 / 3


@case
def rows_of_a_histogram():
    shares = np.arange(17, 0, -1) / 153
    table = Table("t", 1e6, 64.0, 10.0, access=Histogram(shares))
    return lambda batch: table.histogram(batch) @ np.arange(17.0) + table.unique_rows(batch), 1000.3


@case
def rows_of_a_skewed_table():
    table = Table("t", 1e6, 64.0, 10.0, access=Zipf(1 / 1.1, 3.0))
    return (
        lambda batch: (
            table.histogram(batch).max() + table.unique_rows(batch) + table.hits(batch, 1e7)
        ),
        1000.3,
    )


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_float32_first(made) -> None:
    wanted = in_double(*made())
    function, at = made()
    steps = jax.jit(
        lambda x: jax.lax.scan(lambda total, _: (total + function(x), None), 0.0 * x, None, 3)[0]
    )
    assert float(steps(jnp.float32(at))) == pytest.approx(3 * wanted, rel=1e-4)
    assert in_double(function, at) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_float64_first(made) -> None:
    function, at = made()
    kept = jax.jit(function)
    with jax.enable_x64(True):
        wanted = float(kept(jnp.float64(at)))
    single = jax.jit(lambda x: jax.value_and_grad(function)(x))(jnp.float32(at))
    assert {one.dtype for one in single} == {np.dtype(np.float32)}
    assert float(single[0]) == pytest.approx(wanted, rel=1e-4)


def in_double(function: Callable[[Any], Any], at: float) -> float:
    with jax.enable_x64(True):
        return float(jax.jit(function)(jnp.float64(at)))
