"""Folded layers against the plain evaluator, on random layers repeated."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.engine import folding
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.folding import FoldedProgram, folded, makespan_of
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.lower import lower

ROWS = 12  # of every random graph's duration table, so that few shapes are compiled


class Op(NamedTuple):
    """One of a layer's ops or collectives, and what it waits for: how many
    layers and ops before.
    """

    row: int
    launch_row: int
    stream: str
    ranks: list[int]
    blocking: bool
    waits: list[tuple[int, int]]


def a_layer(integer: Callable[[int, int], int]) -> list[Op]:
    """Up to 6 ops of up to 3 ranks; a wait for the layer itself counts if the op comes earlier in
    it.
    """
    ranks, size = integer(1, 3), integer(1, 6)
    return [
        Op(
            row=integer(0, ROWS),
            launch_row=integer(0, 1) * integer(0, ROWS),
            stream="abc"[integer(0, 2)],
            ranks=[rank for rank in range(ranks) if integer(0, 1)] or [0],
            blocking=integer(0, 7) == 7,
            waits=[(integer(0, 2), integer(0, size - 1)) for _ in range(integer(0, 2))],
        )
        for _ in range(size)
    ]


def repeated(layer: list[Op], times: int) -> Graph:
    """The layer `times` times between an op before and one behind, that waits for the op before."""
    builder = GraphBuilder()
    head = builder.op(1, stream="head", launch_row=2)
    issued: list[list[list[int]]] = []
    for _ in range(times):
        issued.append([])
        for op in layer:
            after = [
                n
                for back, at in op.waits
                if back < len(issued) and at < len(issued[-1 - back])
                for n in issued[-1 - back][at]
            ]
            after = after or [head]
            if len(op.ranks) > 1:
                nodes = builder.collective(
                    op.row,
                    label="c",
                    ranks=op.ranks,
                    stream=op.stream,
                    after=after,
                    launch_row=op.launch_row,
                )
                issued[-1].append([*nodes.values()])
            else:
                given = dict(
                    stream=op.stream, after=after, launch_row=op.launch_row, blocking=op.blocking
                )
                issued[-1].append([builder.op(op.row, rank=op.ranks[0], **given)])
    builder.op(3, rank=1, stream="tail", after=[head, *issued[-1][-1]])
    return builder.build()


def some_seconds(seed: int, batch: int) -> np.ndarray:
    """Seconds [ROWS, batch], a quarter of them 0 and many equal, so that paths tie."""
    rng = np.random.default_rng(seed)
    return (
        rng.integers(1, 9, (ROWS, batch))
        * rng.choice([0.0, 0.25, 1.0, rng.random()], (ROWS, batch))
    ).astype(np.float32)


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "WORTH", np.inf)


@st.composite
def layers(draw: st.DrawFn) -> list[Op]:
    return a_layer(lambda low, high: draw(st.integers(low, high)))


def assert_folds_right(layer: list[Op], times: int, seed: int) -> FoldedProgram | None:
    lowered = lower(repeated(layer, times))
    found = folded(lowered)
    if found is not None:
        durations = some_seconds(seed, batch=3)
        np.testing.assert_allclose(
            makespan_of(found, durations), makespan(lowered.program, durations), rtol=1e-5
        )
    return found


@pytest.mark.usefixtures("always_worth_it")
def test_random_layers_are_those_of_the_plain_evaluator():
    """Most random layers fold, and those that do are right for every count."""
    rng = np.random.default_rng(0)
    found = 0
    for seed in range(60):
        layer = a_layer(lambda low, high: int(rng.integers(low, high + 1)))
        found += assert_folds_right(layer, int(rng.integers(4, 60)), seed) is not None
    assert found > 50


@pytest.mark.usefixtures("always_worth_it")
@settings(max_examples=100, deadline=None)
@given(layers(), st.integers(2, 70), st.integers(0, 2**32 - 1))
def test_drawn_layers_are_those_of_the_plain_evaluator(layer: list[Op], times: int, seed: int):
    assert_folds_right(layer, times, seed)


def layers_of_two_streams(times: int) -> Graph:
    """Each layer's reduction is waited for by the layer after the next."""
    builder = GraphBuilder()
    reduced: list[int] = []
    for _ in range(times):
        builder.op(1, launch_row=4, after=reduced[-2:-1])
        done = builder.op(2, launch_row=4)
        reduced.append(builder.op(3, stream="comm", after=[done], launch_row=5))
    return builder.build()


def test_a_stack_by_hand():
    """Held up by the compute stream, by the other stream, by the launches."""
    found = folded(lower(layers_of_two_streams(1000)))
    assert found is not None
    assert len(found.program.row) == 64  # a bucket: what stays is the same for every depth
    durations = np.array(
        [[2.0, 2.0, 0.0], [3.0, 3.0, 0.0], [1.0, 7.0, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 2.0]],
        np.float32,
    )
    assert makespan_of(found, durations).tolist() == [1000 * 5 + 1, 5 + 1000 * 7, 1000 * 4 + 0.5]


def test_what_is_not_worth_folding():
    """Few layers; ops without an order to them; a state so large that its powers cost more than
    they save.
    """
    assert folded(lower(layers_of_two_streams(5))) is None
    builder = GraphBuilder()
    for row in np.random.default_rng(0).integers(1, ROWS, 3000).tolist():
        builder.op(row, launch_row=ROWS)
    assert folded(lower(builder.build())) is None
    builder = GraphBuilder()
    for _ in range(200):
        for rank in range(30):
            builder.op(1 + rank % 11, rank=rank, launch_row=1 + rank % 7)
        builder.collective(ROWS, label="c", ranks=range(30))
    assert folded(lower(builder.build(), fold_ranks=False)) is None


@pytest.mark.usefixtures("always_worth_it")
def test_ends_that_pile_up_are_not_folded():
    """Each layer runs on a rank of its own and the last op waits for all of them."""
    builder = GraphBuilder()
    ends = [builder.op(1, rank=rank, launch_row=2) for rank in range(100)]
    builder.op(2, rank=0, after=ends)
    assert folded(lower(builder.build(), fold_ranks=False)) is None


def test_one_trace_for_a_grid_over_depth():
    traces = 0

    @jax.jit
    def counted(found: FoldedProgram, durations: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return makespan_of(found, durations)

    for times, scale in itertools.product([100, 101, 127, 128, 1000, 5000], [1.0, 2.0]):
        found = folded(lower(layers_of_two_streams(times)))
        assert found is not None
        ends = counted(found, scale * np.array([[2.0], [3.0], [1.0], [0.0], [0.0]], np.float32))
        assert ends.tolist() == [scale * (5 * times + 1)]
    assert traces == 1


def test_configurations_in_blocks_do_not_touch_each_other():
    lowered = lower(layers_of_two_streams(300))
    found = folded(lowered)
    assert found is not None
    durations = some_seconds(0, 2 * folding.FOLD_BLOCK + 37)
    ends = np.asarray(makespan_of(found, durations))
    np.testing.assert_allclose(ends, makespan(lowered.program, durations), rtol=1e-5)
    durations[:, 1:-1] *= 7
    durations[5, 3] = np.nan
    altered = np.asarray(makespan_of(found, durations))
    assert (altered[[0, -1]] == ends[[0, -1]]).all()
    assert np.flatnonzero(np.isnan(altered)).tolist() == [3]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_that_of_durations(dtype: type):
    found = folded(lower(layers_of_two_streams(300)))
    assert found is not None
    with jax.enable_x64(True):
        ends = makespan_of(found, np.full((5, 2), 0.25, dtype))
    assert ends.dtype == dtype
    # 3 launches a layer, and the last reduction
    np.testing.assert_allclose(ends, 300 * 0.75 + 0.25, rtol=1e-2)


def test_what_cannot_be_asked_of_folded_layers_is_refused():
    found = folded(lower(layers_of_two_streams(300)))
    assert found is not None
    with pytest.raises(
        ValueError, match=r"expected floating-point seconds \[rows, batch\]; give a single"
    ):
        makespan_of(found, np.ones(5, np.float32))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(lambda d: makespan_of(found, d).sum())(np.ones((5, 1), np.float32))
