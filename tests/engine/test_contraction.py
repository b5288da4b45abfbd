"""Runs of steps as one step each against the program that they come from."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.engine import contraction
from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.lower import StepProgram, lower

ROWS = 6  # few, so that pairs of rows repeat


@pytest.fixture
def whatever_repeats_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "FEWEST_USES", 1)
    monkeypatch.setattr(contraction, "WORTH", np.inf)


def a_graph(integer: Callable[[int, int], int]) -> Graph:
    """Stretches of up to 6 ops on a stream and rank, which wait for an earlier one now and then."""
    builder = GraphBuilder()
    nodes: list[int] = []
    for _ in range(integer(1, 12)):
        rank, stream, size = integer(0, 1), "abc"[integer(0, 2)], integer(1, 6)
        launched, waits = integer(0, 3), integer(0, 1)
        after = [nodes[integer(0, len(nodes) - 1)]] if nodes and waits else []
        if integer(0, 5) == 5:
            row, ranks = integer(0, ROWS), range(2)
            both = builder.collective(row, label="c", ranks=ranks, after=after, launch_row=1)
            nodes += both.values()
            continue
        for _ in range(size):
            row, launch_row = integer(0, ROWS), integer(1, ROWS) if launched else 0
            blocking = integer(0, 19) == 19
            nodes.append(
                builder.op(
                    row, rank=rank, stream=stream, after=after, launch_row=launch_row,
                    blocking=blocking,
                )
            )  # fmt: skip
            after = []
    return builder.build()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    return a_graph(lambda low, high: draw(st.integers(low, high)))


@jax.jit
def value_and_gradient(program: StepProgram, durations: jax.Array) -> tuple[jax.Array, jax.Array]:
    ends, back = jax.vjp(lambda some: makespan(program, some), durations)
    return ends, back(jnp.ones_like(ends))[0]


def assert_the_same(graph: Graph, seed: int) -> bool:
    """Ends, and gradients where no paths tie; where they do the gradient is still a path."""
    program = lower(graph).program
    short = contracted(program)
    rng = np.random.default_rng(seed)
    apart = rng.random((ROWS, 2)) + 0.01
    tied = rng.integers(0, 3, (ROWS, 2)).astype(float)
    durations = np.concatenate([apart, tied], axis=1)
    with jax.enable_x64(True):
        (ends, gradient), (short_ends, short_gradient) = (
            map(np.asarray, value_and_gradient(one, durations)) for one in (program, short)
        )
    np.testing.assert_allclose(short_ends, ends, rtol=1e-12)
    np.testing.assert_array_equal(short_gradient[:, :2], gradient[:, :2])
    np.testing.assert_allclose((short_gradient * durations).sum(axis=0), ends, rtol=1e-12)
    return short is not program


@pytest.mark.usefixtures("whatever_repeats_or_not")
def test_random_graphs_are_those_of_every_step():
    contracts = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        graph = a_graph(lambda low, high, rng=rng: int(rng.integers(low, high + 1)))
        contracts += assert_the_same(graph, seed)
    assert contracts > 30


@pytest.mark.usefixtures("whatever_repeats_or_not")
@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_drawn_graphs_are_those_of_every_step(graph: Graph, seed: int):
    assert_the_same(graph, seed)


def live(program: StepProgram) -> int:
    return len(program.row) - int(program.first)


def layers(times: int, inner: int = 4) -> Graph:
    """So many layers of `inner` pairs of kernels, one late to launch, and a collective."""
    builder = GraphBuilder()
    for _ in range(times):
        last = 0
        for _ in range(inner):
            builder.op(1, launch_row=4)
            last = builder.op(2, launch_row=5)
        builder.collective(3, label="sum", ranks=[0], after=[last], launch_row=4)
    return builder.build()


def test_a_layer_by_hand():
    """Two kernels four times, held up by the stream, by the launches, by one launch in the middle;
    the second launch of a pair comes before the first kernel's end if that takes as long.
    """
    program = lower(layers(10)).program
    short = contracted(program)
    assert (live(program), live(short)) == (90, 20)  # the kernels of a layer, and the collective
    durations = np.array(
        [[2.0, 0.0, 1.0], [3.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.25], [0.5, 1.0, 4.0]],
        np.float32,
    )
    # the stream; all launches; all launches but the last and what they do not hide
    np.testing.assert_allclose(makespan(short, durations), makespan(program, durations), rtol=1e-6)
    assert makespan(short, durations)[0] == 0.5 + 10 * 4 * 5 + 1 - 0.5


def test_stretches_within_stretches_are_found_once():
    """A run of 4,096 equal kernels is at most twelve doublings."""
    builder = GraphBuilder()
    for _ in range(4096):
        builder.op(1, launch_row=2)
    builder.op(1, launch_row=2)
    short = contracted(lower(builder.build()).program)
    assert live(short) < 8
    assert short.made.any(axis=1).sum() <= 12 * 5  # rows of a run, its lead being the lesser of two
    ends = makespan(short, np.array([[3.0, 1.0], [1.0, 2.0]], np.float32))
    assert ends.tolist() == [3 * 4097 + 1, 2 * 4097 + 1]


def test_gradient_counts_further_than_steps():
    """The few steps that are left are numbered in two bytes, what a path passes is more."""
    builder, ops = GraphBuilder(), 33_000
    for _ in range(ops):
        builder.op(1, launch_row=2)
    durations = np.array([[3.0, 1.0], [1.0, 3.0]], np.float32)
    gradient = value_and_gradient(contracted(lower(builder.build()).program), durations)[1]
    np.testing.assert_array_equal(gradient, [[ops, 1], [1, ops]])


def test_configurations_do_not_touch_each_other_and_nan_and_infinity_are_kept():
    short = contracted(lower(layers(50)).program)
    durations = np.random.default_rng(0).random((5, 4)).astype(np.float32)
    ends = np.asarray(makespan(short, durations))
    for row in range(5):
        for value in (np.nan, np.inf):
            altered = durations.copy()
            altered[row, 2] = value
            got = np.asarray(makespan(short, altered))
            np.testing.assert_array_equal(got, [*ends[:2], value, ends[3]])


def test_what_does_not_repeat_stays_as_it_is():
    builder = GraphBuilder()
    for row in range(1, 500):
        builder.op(row, launch_row=row)
    program = lower(builder.build()).program
    assert contracted(program) is program


def test_one_bucket_for_a_grid_over_depth():
    shapes = {
        tuple(leaf.shape for leaf in jax.tree.leaves(contracted(lower(layers(depth)).program)))
        for depth in (6, 12, 20, 31)
    }
    assert len(shapes) == 1


def test_ten_thousand_steps_are_contracted():
    assert live(contracted(lower(layers(1_200)).program)) == 2_400
