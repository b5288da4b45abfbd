"""Mixtures of graphs against one graph at a time."""

import jax
import numpy as np
import pytest

from hybridperf.engine import mixtures
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.lower import Lowered, lower
from hybridperf.engine.mixtures import makespans


def stack(layers: int, ranks: int = 1, row: int = 1) -> Lowered:
    builder = GraphBuilder()
    for _ in range(layers):
        for rank in range(ranks):
            builder.op(row + rank, label="gemm", rank=rank, launch_row=row + 1)
        builder.collective(row + 2, label="sum", ranks=range(ranks))
    return lower(builder.build())


def some_seconds(seed: int, rows: int, batch: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, batch)).astype(dtype)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each trace of the function that evaluates a bucket."""
    counted: list[int] = []
    inner = mixtures._each.__wrapped__

    def each(programs, durations, count):
        counted.append(durations.shape[0])
        return inner(programs, durations, count)

    monkeypatch.setattr(mixtures, "_each", jax.jit(each))
    return counted


def test_two_graphs_by_hand():
    one, other = makespans(
        [stack(2), stack(3)],
        [np.array([[1.0], [0.0], [0.5]]), np.array([[2.0, 0.0], [1.0, 4.0], [0.0, 1.0]])],
    )
    assert one.tolist() == [2.0]
    assert other.tolist() == [7.0, 13.0]
    assert makespans([], []) == []


def test_a_mixture_is_each_graph_alone_in_the_order_given(traces: list[int]):
    rng = np.random.default_rng(0)
    graphs = [
        stack(int(rng.integers(1, 15)), int(rng.integers(1, 3)), row=int(rng.integers(1, 9)))
        for _ in range(30)
    ]
    durations = [
        some_seconds(seed, int(rng.choice([12, 40])), int(rng.choice([1, 40])))
        for seed in range(30)
    ]
    together = makespans(graphs, durations)
    for graph, table, ends in zip(graphs, durations, together, strict=True):
        assert ends.dtype == np.float32
        np.testing.assert_array_equal(ends, makespan(graph.program, table))
    assert 2 <= len(traces) <= 8


def test_one_trace_for_a_bucket(traces: list[int]):
    """Other graphs, rows and configurations of the same bucket, and as many of them or fewer, up to
    half.
    """
    for count, seed in ((8, 0), (8, 1), (5, 2), (7, 3)):
        graphs = [stack(layers, row=1 + layers % 3) for layers in range(10, 10 + count)]
        durations = [
            some_seconds(seed + number, 5 + number % 7, 33 + number) for number in range(count)
        ]
        for graph, table, ends in zip(graphs, durations, makespans(graphs, durations), strict=True):
            np.testing.assert_array_equal(ends, makespan(graph.program, table))
    assert traces == [8]
    makespans([stack(10), stack(100)], [some_seconds(0, 5, 40)] * 2)
    assert traces == [8, 1, 1]  # two buckets: the count counts


def test_a_stack_too_large_is_evaluated_in_parts(
    traces: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mixtures, "LARGEST_STACK", 4 * 64 * 48 + 1)
    graphs, durations = (
        [stack(layers) for layers in range(1, 12)],
        [some_seconds(seed, 3, 40) for seed in range(11)],
    )
    for graph, table, ends in zip(graphs, durations, makespans(graphs, durations), strict=True):
        np.testing.assert_array_equal(ends, makespan(graph.program, table))
    assert traces == [4]


def test_dtypes_do_not_mix():
    with jax.enable_x64(True):
        ends = makespans(
            [stack(3), stack(3)], [some_seconds(0, 3, 2), some_seconds(0, 3, 2, np.float64)]
        )
    assert [one.dtype for one in ends] == [np.float32, np.float64]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        (
            np.array([[1.0, 1.0], [1.0, np.nan], [1.0, 1.0]]),
            r"^Graph 1: Row 2 .*'gemm'\) has duration nan in configuration 1, expected",
        ),
        (
            np.array([[1.0], [1.0], [-3.0]]),
            r"^Graph 1: Row 3 .*'sum'\) has duration -3.0 in configuration 0, expected",
        ),
        (np.array([[1.0], [np.inf], [1.0]]), r"^Graph 1: Row 2 .* has duration inf"),
        (np.ones((2, 1)), r"^Graph 1: durations have shape \[2, 1\], expected .* U at least 3"),
        (np.ones(3), r"^Graph 1: durations are float64\[3\], expected floating-point seconds"),
        (
            np.ones((3, 1), int),
            r"^Graph 1: durations are int64\[3, 1\], expected floating-point seconds",
        ),
        (np.ones((3, 0)), r"^Graph 1: durations are float64\[3, 0\], expected"),
    ],
)
def test_bad_seconds_are_named_before_anything_is_compiled(
    traces: list[int], durations: np.ndarray, message: str
):
    with pytest.raises(ValueError, match=message):
        makespans([stack(1), stack(1)], [np.ones((3, 1)), durations])
    assert not traces


def test_a_table_too_few_is_refused():
    with pytest.raises(ValueError, match="2 graphs came with 1 tables of durations, expected one"):
        makespans([stack(1), stack(1)], [np.ones((3, 1))])
