"""Lookups as ops: bytes by hand, what a table says where a row says nothing, fused tables,
optimizers, gradients.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.ops import (
    GROUPS,
    EmbeddingBag,
    EmbeddingBagBackward,
    Gather,
    Gpu,
    columns,
    lookup_calls,
)
from hybridperf.ops.embedding import Histogram, Indices, Table, Uniform, Zipf
from hybridperf.ops.inputs import gpu_inputs
from hybridperf.ops.roofline import RooflineKnobs, level_shares, op_seconds
from hybridperf.ops.table import parse_ops

BATCH, POOLING, ROWS, DIM = 100.0, 8.0, 5000.0, 64.0
BAG = EmbeddingBag("fp32", BATCH, POOLING, ROWS, DIM)


def test_a_bag_reads_every_row_and_writes_the_sums_only() -> None:
    work = BAG.work()
    rows, sums, indices, offsets = 800 * 64, 100 * 64, 800, 100
    assert float(work.bytes) == 4 * (rows + sums + indices + offsets)
    assert float(work.flops) == 800 * 64
    assert float(work.steps) == 800


def test_a_gather_that_pools_reads_as_many_bytes_and_forgets_the_sums() -> None:
    gathered = Gather("fp32", 800.0, DIM, ROWS, pooled=1.0).work()
    assert float(BAG.work().bytes - gathered.bytes) == 4 * (100 * 64 + 100)  # sums and offsets


@pytest.mark.parametrize(
    ("optimizer", "state", "flops", "roots"),
    [("sgd", 0, 2, 0), ("adagrad", 64 * 4, 5, 64), ("rowwise_adagrad", 32, 4, 1)],
)
def test_merged_gradients_update_each_row_once(
    optimizer: str, state: float, flops: float, roots: float
) -> None:
    work = EmbeddingBagBackward(
        "fp32", BATCH, POOLING, ROWS, DIM, unique=700.0, distance=300.0, optimizer=optimizer
    ).work()
    # gradients, indices, their sort, rows
    assert float(work.bytes) == 4 * (100 * 64 + 800 + 100) + 64 * 800 + 2 * 700 * (256 + state)
    assert float(work.flops) == 800 * 64 + flops * 700 * 64
    assert float(work.transcendentals) == roots * 700
    # all others lie between two updates of a row, though its lookups are nearer
    assert float(work.reuse_bytes) == 700 * 256


def test_unmerged_gradients_are_added_lookup_by_lookup() -> None:
    op = EmbeddingBagBackward(
        "fp32",
        BATCH,
        POOLING,
        ROWS,
        DIM,
        unique=700.0,
        distance=300.0,
        spread=1.5,
        duplicates="each",
    )
    work = op.work()
    assert float(work.bytes) == 4 * (100 * 64 + 800 + 100) + 2 * 800 * 256
    assert (float(work.reuse_bytes), float(work.reuse_spread)) == (300 * 256, 1.5)
    assert GROUPS[op.group_index()] == "embedding_bag_scatter"
    assert (
        GROUPS[dataclasses.replace(op, duplicates="merged").group_index()]
        == "embedding_bag_backward"
    )


def test_a_row_that_says_nothing_means_uniform_access() -> None:
    access, table = BAG.access(), lookup_calls([Table("ads", ROWS, DIM, POOLING)], BATCH).op
    assert isinstance(table, EmbeddingBag)
    assert float(access["unique"]) == pytest.approx(float(table.unique), rel=1e-9)
    assert float(access["distance"]) == pytest.approx(float(table.distance), rel=0.01)
    assert float(access["spread"]) == pytest.approx(float(table.spread), abs=0.01)
    # Poisson for binomial
    assert float(access["once"]) == pytest.approx(float(table.once), abs=0.002)
    few = dataclasses.replace(BAG, rows=60.0)  # 13 lookups of each row
    hot = lookup_calls([Table("ads", 60, DIM, POOLING)], BATCH).op
    assert float(few.access()["hot"]) == pytest.approx(float(hot.hot), abs=0.03)
    assert float(hot.hot) == pytest.approx(_hot_lookups(60, 800), abs=0.03)


def _hot_lookups(rows: int, lookups: int) -> float:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        times = np.bincount(rng.integers(0, rows, lookups))
        shares.append(times[times > 16].sum() / lookups)
    return float(np.mean(shares))


def test_hot_lookups_of_a_skewed_table_by_counting() -> None:
    p = (np.arange(1, 20_001) + 5.0) ** -1.1
    reached, rng = np.cumsum(p / p.sum()), np.random.default_rng(0)
    times = np.bincount(np.searchsorted(reached, rng.random(60_000)))
    op = lookup_calls([Table("ads", 20_000, 16, 60, access=Zipf(1.1, 5.0))], 1000).op
    assert float(op.hot) == pytest.approx(times[times > 16].sum() / 60_000, abs=0.02)
    assert float(op.once) == pytest.approx((times == 1).sum() / (times > 0).sum(), abs=0.01)


TABLES = [
    Table("small", 300, 32, 4, access=Zipf(0.8)),
    Table("wide", 40_000, 128, 20),
    Table("hot", 1e6, 16, 3.5, access=Zipf(1.2, 10.0)),
]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_fused_lookup_moves_what_its_tables_move(direction: str) -> None:
    """Bytes, flops and steps add up; only where a row is found again depends on the others."""
    fused = lookup_calls(TABLES, 512, direction).op.work()
    alone = [lookup_calls([table], 512, direction).op.work() for table in TABLES]
    for name in ("bytes", "steps"):
        assert float(getattr(fused, name)) == pytest.approx(
            sum(float(getattr(work, name)) for work in alone), rel=1e-9
        )
    if direction == "forward":
        assert float(fused.flops) == pytest.approx(
            sum(float(work.flops) for work in alone), rel=1e-9
        )
    op = lookup_calls(TABLES, 512, direction).op
    assert (op.tables, op.width, op.pooling, op.rows) == (3, 176, 27.5, 1_040_300)
    assert float(op.unique) == pytest.approx(sum(float(table.unique_rows(512)) for table in TABLES))
    assert 0 < float(op.once) < 1
    assert 0 < float(op.hot) < 1


def test_skew_brings_rows_nearer_and_time_down() -> None:
    device = load_device("here")
    knobs = RooflineKnobs(
        1e-6,
        0.5,
        0.5,
        10.0,
        3.0,
        1e-9,
        0.5,
        np.array([6.0, 3.0, 2.0, 1.0]),
        np.array([1e-9, 3e-9, 9e-9, 3e-8]),
        np.ones(4),
    )
    works = [
        lookup_calls([Table("ads", 1e6, 64, 20, access=Zipf(s))], 1024).op.work()
        for s in (0.0, 0.5, 0.9, 1.2, 1.5)
    ]
    distances = [float(work.reuse_bytes) for work in works]
    assert (np.diff(distances) < 0).all()
    times = [float(op_seconds(work, device.device(), knobs)) for work in works]
    assert (np.diff(times) < 0).all()


def test_other_ways_to_say_the_same_access() -> None:
    """A histogram of the batch and the recorded rows lead to nearly the op that the distribution
    leads to.

    How far apart lookups of a row are depends on rows that one batch does not meet: the recorded
    ones know a smaller table.
    """
    p = (np.arange(1, 30_001) + 50.0) ** -0.9
    rows = np.searchsorted(np.cumsum(p / p.sum()), np.random.default_rng(0).random(40_000))
    exact = lookup_calls([Table("ads", 30_000, 32, 40, access=Zipf(0.9, 50.0))], 1000).op
    recorded = lookup_calls([Table("ads", 30_000, 32, 40, access=Indices(rows))], 1000).op
    shares = Indices(rows).histogram(40_000, 30_000)
    told = lookup_calls(
        [Table("ads", 30_000, 32, 40, access=Histogram(shares, 40_000 / len(np.unique(rows))))],
        1000,
    ).op
    for op in (recorded, told):
        assert float(op.unique) == pytest.approx(float(exact.unique), rel=0.01)
        assert float(op.once) == pytest.approx(float(exact.once), abs=0.01)
        assert float(op.hot) == pytest.approx(float(exact.hot), abs=0.02)
        assert np.log(float(op.distance)) == pytest.approx(np.log(float(exact.distance)), abs=0.4)
        assert float(op.spread) == pytest.approx(float(exact.spread), abs=0.25)


def test_spread_flattens_the_memory_levels() -> None:
    capacity = np.array([3e4, 1e6, 3e7, np.inf])
    sharp, wide = (np.asarray(level_shares(1e5, capacity, spread)) for spread in (0.0, 3.0))
    assert sharp.sum() == pytest.approx(1)
    assert wide.sum() == pytest.approx(1)
    assert (wide[[0, 2, 3]] > sharp[[0, 2, 3]]).all()
    logs = np.random.default_rng(0).normal(np.log(1e5), 3.0, 20_000)
    averaged = np.asarray(jax.vmap(lambda d: level_shares(d, capacity))(jnp.exp(logs))).mean(0)
    assert wide == pytest.approx(averaged, abs=0.02)


def test_rows_of_a_table_price_like_single_ops() -> None:
    model = PerfModel.datasheet(load_device("a100_sxm4_40g"))
    calls = [lookup_calls(TABLES, 512, direction) for direction in ("forward", "backward")]
    frame = pd.DataFrame(
        [
            {
                name: getattr(value, "item", lambda v=value: v)()
                for name, value in columns(call.op).items()
            }
            for call in calls
        ]
    )
    priced = model.predict_ops(frame)
    assert priced["predicted_s"].to_numpy() == pytest.approx(
        model.op_seconds(model.table(calls)), rel=1e-6
    )


def test_unknown_words_are_refused() -> None:
    row = {
        "op": "embedding_bag_backward",
        "dtype": "fp32",
        "batch": 8,
        "pooling": 2,
        "rows": 100,
        "dim": 8,
    }
    parsed = parse_ops(pd.DataFrame([{**row, "optimizer": "adam"}, row]), load_device("here"))
    known = "known are sgd, adagrad, rowwise_adagrad"
    assert parsed.problem[0].startswith("embedding_bag_backward: unknown optimizer 'adam'")
    assert parsed.problem[0].endswith(known)
    with pytest.raises(InputError, match="unknown duplicates 'lost'"):
        lookup_calls(TABLES, 8, "backward", duplicates="lost")
    with pytest.raises(InputError, match="expected merged duplicates with adagrad"):
        lookup_calls(TABLES, 8, "backward", optimizer="adagrad", duplicates="each")
    with pytest.raises(InputError, match="expected a direction of forward or backward, got 'up'"):
        lookup_calls(TABLES, 8, "up")
    for batch in (0, -1, float("nan"), float("inf"), "x", [1, 2]):
        with pytest.raises(
            InputError, match="expected a batch of more than zero samples to look up in small"
        ):
            lookup_calls(TABLES, batch)
    with pytest.raises(InputError, match="table b: expected fp32 as in a, got fp16"):
        lookup_calls([Table("a", 10, 8, 1), Table("b", 10, 8, 1, dtype="half")], 8)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("argument", ["exponent", "shift", "batch", "pooling", "dim"])
def test_gradients_reach_the_distribution_and_the_sizes(direction: str, argument: str) -> None:
    start = {"exponent": 0.9, "shift": 30.0, "batch": 512.0, "pooling": 10.0, "dim": 64.0}

    def seconds(x):
        at = {**start, argument: x}
        tables = [
            Table("a", 1e5, at["dim"], at["pooling"], access=Zipf(at["exponent"], at["shift"])),
            Table("b", 1e4, 32.0, 3.0, access=Uniform()),
        ]
        op = lookup_calls(tables, at["batch"], direction).op
        work, inputs = op.work(), gpu_inputs(op, Gpu(100.0, 4e7))
        return (
            work.bytes / 1e6
            + jnp.log(work.reuse_bytes)
            + work.reuse_spread
            + inputs["once"]
            + inputs["hot"]
        )

    with jax.enable_x64(True):
        x, step = start[argument], 1e-5 * start[argument]
        difference = (jax.jit(seconds)(x + step) - jax.jit(seconds)(x - step)) / (2 * step)
        assert float(jax.grad(seconds)(x)) == pytest.approx(float(difference), rel=1e-4)


def test_tables_beside_come_between_two_lookups_of_a_row() -> None:
    one, other = Table("one", 5000, 64, 8, access=Zipf(0.9)), Table("other", 9000, 64, 8)
    alone, beside = (lookup_calls([one], 100, beside=rest).op for rest in ([], [other]))
    assert beside.distance > 1.5 * alone.distance
    assert (beside.pooling, beside.unique, beside.rows) == (alone.pooling, alone.unique, alone.rows)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_equal_tables_are_one_that_stands_for_them(direction: str) -> None:
    """In each its own rows lie between two lookups of a batch, not those of the others."""
    sizes, beside = (1e6, 64, 20), [Table("users", 1e5, 32, 4)]
    tables = [Table(f"t{at}", *sizes, access=Zipf(0.9, 100.0)) for at in range(5)]
    options: dict[str, Any] = {"beside": beside, "in_step": True}
    listed = lookup_calls(tables, 2048, direction, **options).op
    counted = lookup_calls(tables[:1], 2048, direction, **options, alike=5).op
    for name, size in dataclasses.asdict(listed).items():
        expected = size if isinstance(size, str) else pytest.approx(size, rel=1e-9)
        assert getattr(counted, name) == expected, name


def test_an_update_in_a_step_finds_what_its_lookup_touched() -> None:
    """Rows of a large table hardly come twice: by itself the update waits for memory, after the
    lookup no batch's rows lie between.
    """
    table = Table("large", 10**7, 64, 8)
    by_itself, in_step = (
        lookup_calls([table], 100, "backward", duplicates="each", in_step=flag).op
        for flag in (False, True)
    )
    assert by_itself.distance > 10**6
    assert in_step.distance <= in_step.unique * (1 + 1e-6)
    assert (
        lookup_calls([table], 100, in_step=True).op.distance
        == lookup_calls([table], 100).op.distance
    )  # forward: another batch's


def test_an_update_after_recorded_lookups_has_their_rows_between() -> None:
    """No more than the recorded batch's different rows, not what an endless stream of its counts
    would draw.
    """
    rows = np.random.default_rng(0).integers(0, 10**6, 4000)
    op = lookup_calls(
        [Table("t", 10**6, 64, 40, access=Indices(rows))],
        100,
        "backward",
        duplicates="each",
        in_step=True,
    ).op
    assert op.unique == len(np.unique(rows))
    assert op.distance == pytest.approx(op.unique, rel=0.01)
