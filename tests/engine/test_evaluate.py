"""The evaluator against the meaning of a graph, written down once more in plain Python as
`reference`.
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.engine import evaluate
from hybridperf.engine.evaluate import Timeline, check_durations, critical_path, makespan, timeline
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.lower import (
    MOST_USES,
    NO_STEP,
    TRASH_SLOT,
    ZERO_ROW,
    ZERO_SLOT,
    Lowered,
    StepProgram,
    lower,
)

ROWS = 12  # of every random graph's duration table, so that few shapes are compiled


def reference(graph: Graph, durations: np.ndarray) -> Timeline:
    """When each node runs, one node after the other, in float64."""
    seconds = {0: 0.0, **{row: float(value) for row, value in enumerate(durations, start=1)}}
    host_free: dict[int, float] = {}
    stream_free: dict[tuple[int, int], float] = {}
    times: dict[str, dict[int, float]] = {
        "start": {},
        "end": {},
        "launch_start": {},
        "launch_end": {},
    }
    node = 0
    while node < len(graph):
        together = [node]
        if graph.collective[node] != Graph.NO_COLLECTIVE:
            together = [
                other
                for other in range(len(graph))
                if graph.collective[other] == graph.collective[node]
            ]
        ready = 0.0
        for member in together:
            rank, stream = (
                int(graph.rank[member]),
                (int(graph.rank[member]), int(graph.stream[member])),
            )
            times["launch_start"][member] = host_free.get(rank, 0.0)
            host_free[rank] = times["launch_end"][member] = (
                times["launch_start"][member] + seconds[int(graph.launch_row[member])]
            )
            waits = [times["end"][int(other)] for other in graph.waits_for(member)]
            ready = max([ready, host_free[rank], stream_free.get(stream, 0.0), *waits])
        for member in together:
            rank, stream = (
                int(graph.rank[member]),
                (int(graph.rank[member]), int(graph.stream[member])),
            )
            times["start"][member] = ready
            times["end"][member] = stream_free[stream] = ready + seconds[int(graph.row[member])]
            if graph.blocking[member]:
                host_free[rank] = times["end"][member]
        node += len(together)
    return Timeline(*(np.array([of[i] for i in range(len(graph))]) for of in times.values()))


def a_graph(integer: Callable[[int, int], int], *, most_nodes: int = 30) -> Graph:
    """A graph of up to 3 ranks with launches, waits, collectives and blocking ops, as `integer(low,
    high)` decides.
    """
    builder = GraphBuilder()
    ranks, streams, issued = integer(1, 3), "abc"[: integer(1, 3)], 0
    for _ in range(integer(1, most_nodes)):
        waits = [integer(0, issued - 1) for _ in range(integer(0, 3) if issued else 0)]
        row, launch_row = integer(0, ROWS), integer(0, 1) * integer(0, ROWS)
        stream = streams[integer(0, len(streams) - 1)]
        if integer(0, 4) == 4:
            members = [rank for rank in range(ranks) if integer(0, 1)] or [0]
            builder.collective(
                row, label="c", ranks=members, stream=stream, after=waits, launch_row=launch_row
            )
            issued += len(members)
        else:
            rank, blocking = integer(0, ranks - 1), integer(0, 5) == 5
            builder.op(
                row, rank=rank, stream=stream, after=waits, launch_row=launch_row, blocking=blocking
            )
            issued += 1
    return builder.build()


def random_graph(seed: int, **kwargs: int) -> Graph:
    rng = np.random.default_rng(seed)
    return a_graph(lambda low, high: int(rng.integers(low, high + 1)), **kwargs)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    return a_graph(lambda low, high: draw(st.integers(low, high)))


def random_durations(seed: int, batch: int) -> np.ndarray:
    """Seconds [ROWS, batch], a quarter of them 0 and many equal, so that paths tie."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 9, (ROWS, batch)) * rng.choice(
        [0.0, 0.25, 1.0, rng.random()], (ROWS, batch)
    )


def total(durations: jax.Array, program: StepProgram) -> jax.Array:
    return makespan(program, durations).sum()


gradient_of_total = jax.jit(jax.grad(total))


def test_a_step_by_hand():
    """Rank 0 is slow to compute, rank 1 waits for it in the all-reduce; a blocking read holds up
    its next launch.
    """
    gemm, slow_gemm, reduce, read, launch = 1, 2, 3, 4, 5
    builder = GraphBuilder()
    g0 = builder.op(slow_gemm, label="gemm", rank=0, launch_row=launch)
    g1 = builder.op(gemm, label="gemm", rank=1, launch_row=launch)
    both = builder.collective(reduce, label="sum", ranks=[0, 1], after=[g0, g1], launch_row=launch)
    loss = builder.op(
        read, label="loss", rank=0, stream="d2h", after=[g0], launch_row=launch, blocking=True
    )
    update = builder.op(gemm, label="update", rank=0, after=[both[0]], launch_row=launch)
    lowered = lower(builder.build())
    durations = np.array([10.0, 20.0, 5.0, 30.0, 1.0])

    times = timeline(lowered, durations)
    np.testing.assert_array_equal(times.launch_start_s, [0, 0, 1, 1, 2, 51])
    np.testing.assert_array_equal(times.launch_end_s, [1, 1, 2, 2, 3, 52])
    np.testing.assert_array_equal(times.start_s, [1, 1, 21, 21, 21, 52])
    np.testing.assert_array_equal(times.end_s, [21, 11, 26, 26, 51, 62])

    assert makespan(lowered.program, durations[:, None]).tolist() == [62.0]
    path = critical_path(lowered, durations)
    assert path.node.tolist() == [g0, g0, loss, update, update]
    assert path.is_launch.tolist() == [True, False, False, True, False]
    gradient = gradient_of_total(jnp.asarray(durations)[:, None], lowered.program)
    assert gradient[:, 0].tolist() == [1, 1, 0, 1, 2]  # times each row is on that path


def test_a_collective_is_on_the_critical_path_as_the_rank_that_came_last():
    builder = GraphBuilder()
    for rank, row in enumerate([1, 2, 1]):
        builder.op(row, rank=rank, stream="comm")
    both = builder.collective(1, label="sum", ranks=[0, 1, 2])
    assert critical_path(lower(builder.build()), [1.0, 2.0]).node.tolist() == [1, both[1]]


def test_a_host_that_waits_for_a_stream_is_a_blocking_op_of_row_0():
    builder = GraphBuilder()
    builder.op(1, launch_row=2)
    builder.op(0, blocking=True)
    builder.op(1, stream="other", launch_row=2)
    assert timeline(lower(builder.build()), [5.0, 1.0]).launch_start_s.tolist() == [0, 1, 6]


def test_limits_of_one_stream():
    """Free launches leave the sum of the ops; endless launches leave the sum of the launches and
    the last op.
    """
    builder = GraphBuilder()
    for _ in range(10):
        builder.op(1, launch_row=2)
    program = lower(builder.build()).program
    ends = makespan(program, np.array([[3.0, 3.0, 0.0], [0.0, 1e6, 0.0]]))
    assert ends.tolist() == [30.0, 10 * 1e6 + 3, 0.0]


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_makespan_and_timeline_are_those_of_the_reference(graph: Graph, seed: int):
    assert_as_reference(graph, seed)


def test_makespan_and_timeline_are_those_of_the_reference_on_2000_more_graphs():
    for seed in range(2000):
        assert_as_reference(random_graph(seed), seed)


def assert_as_reference(graph: Graph, seed: int) -> None:
    durations, lowered = random_durations(seed, batch=3), lower(graph)
    expected = [reference(graph, column) for column in durations.T]
    ends = makespan(lowered.program, durations.astype(np.float32))
    np.testing.assert_allclose(ends, [times.end_s.max() for times in expected], rtol=1e-5)
    times = timeline(lowered, durations[:, 0])
    for name, got, want in zip(Timeline._fields, times, expected[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=name)


def test_a_long_graph_of_many_ranks_is_that_of_the_reference():
    builder = GraphBuilder()
    rng = np.random.default_rng(0)
    for _ in range(40):
        last = [
            builder.op(
                int(rng.integers(1, ROWS)), rank=r, launch_row=ROWS if rng.random() < 0.7 else 0
            )
            for r in range(16)
        ]
        builder.collective(1, label="a", ranks=range(16), after=last, launch_row=ROWS)
    graph = builder.build()
    durations = rng.random((ROWS, 5))
    expected = [reference(graph, column).end_s.max() for column in durations.T]
    np.testing.assert_allclose(
        makespan(lower(graph).program, durations.astype(np.float32)), expected, rtol=1e-5
    )


@pytest.mark.parametrize("seed", range(40))
def test_gradient_is_that_of_finite_differences_and_obeys_euler(seed: int):
    """Where no paths tie; the makespan is homogeneous of degree 1, so sum(gradient * durations) =
    makespan.
    """
    step = 1e-6
    graph = random_graph(seed)
    program = lower(graph).program
    durations = np.random.default_rng(seed).random((ROWS, 2)) + 0.01
    with jax.enable_x64(True):
        gradient = np.asarray(gradient_of_total(durations, program))
        assert gradient.dtype == np.float64
        shifts = step * np.eye(ROWS)  # one row at a time, all of them in one batch
        up, down = (durations[:, :1] + sign * shifts for sign in (1, -1))
        differences = (makespan(program, up) - makespan(program, down)) / (2 * step)
        ends = makespan(program, durations)
    np.testing.assert_allclose(gradient[:, 0], differences, atol=1e-7)
    np.testing.assert_allclose((gradient * durations).sum(axis=0), ends, rtol=1e-12)


def test_gradient_with_ties_is_still_a_path():
    for seed in range(100):
        durations, program = (
            random_durations(seed, batch=3).astype(np.float32),
            lower(random_graph(seed)).program,
        )
        gradient = gradient_of_total(durations, program)
        np.testing.assert_allclose(
            (gradient * durations).sum(axis=0), makespan(program, durations), rtol=1e-5
        )


@pytest.mark.parametrize("ops", [31, 32, 62, 63, 40_000])
def test_gradient_counts_a_row_however_often_the_path_passes_it(ops: int):
    """A count holds 31 uses; what is used more often has several."""
    builder = GraphBuilder()
    for _ in range(ops):
        builder.op(1, launch_row=2)
    # held up by ops in the first, by launches in the second
    durations = np.array([[3.0, 1.0], [1.0, 3.0]], np.float32)
    gradient = gradient_of_total(durations, lower(builder.build()).program)
    np.testing.assert_array_equal(gradient, [[ops, 1], [1, ops]])


def test_gradient_where_slots_and_clocks_need_two_bytes():
    """150 ranks that all do something else: more than 256 places where the path may be."""
    builder, rng = GraphBuilder(), np.random.default_rng(0)
    for _ in range(3):
        rows = rng.integers(1, ROWS, (2, 150)).tolist()
        last = [builder.op(row, rank=rank, launch_row=ROWS) for rank, row in enumerate(rows[0])]
        last = [builder.op(row, rank=rank, launch_row=1) for rank, row in enumerate(rows[1])]
        builder.collective(1, label="sum", ranks=range(150), after=last, launch_row=ROWS)
    program = lower(builder.build()).program
    assert program.slots + program.hosts > 256
    durations = (rng.random((ROWS, 4)) + 0.01).astype(np.float32)
    durations[-1] *= [0.1, 1, 3, 10]  # held up by launches in the last
    gradient = gradient_of_total(durations, program)
    ends = makespan(program, durations)
    np.testing.assert_allclose((gradient * durations).sum(axis=0), ends, rtol=1e-5)
    more = 1.001 * np.eye(ROWS, dtype=np.float32) + (1 - np.eye(ROWS, dtype=np.float32))
    up = makespan(program, durations[:, :1] * more)
    np.testing.assert_allclose(
        (up - ends[0]) / (0.001 * durations[:, 0]), gradient[:, 0], atol=0.02
    )


def test_gradient_flows_to_what_durations_are_made_of():
    """Weights of the configurations and a knob behind the durations; forward values stay those
    without a gradient.
    """
    lowered, durations = lower(random_graph(5)), random_durations(5, batch=3).astype(np.float32)
    weights = np.array([1.0, -2.0, 0.5], np.float32)

    def weighted(knob: jax.Array) -> jax.Array:
        return (weights * makespan(lowered.program, durations / knob)).sum()

    value, slope = jax.value_and_grad(weighted)(2.0)
    assert value == weighted(2.0)
    # makespan(durations / knob) = makespan(durations) / knob
    np.testing.assert_allclose(slope, -value / 2.0, rtol=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_critical_path_adds_up_to_the_makespan_without_gaps(seed: int):
    graph, durations = random_graph(seed), random_durations(seed, batch=1)[:, 0]
    lowered = lower(graph)
    node, is_launch = critical_path(lowered, durations)
    times = timeline(lowered, durations)
    starts = np.where(is_launch, times.launch_start_s[node], times.start_s[node])
    ends = np.where(is_launch, times.launch_end_s[node], times.end_s[node])
    # each begins as the one before ends
    np.testing.assert_allclose(starts, [0.0, *ends[:-1]], rtol=1e-12)
    assert ends[-1] == times.end_s.max()
    assert (graph.launch_row[node[is_launch]] > 0).all()  # a free launch is no entry


def test_configurations_do_not_touch_each_other():
    program, durations = (
        lower(random_graph(1)).program,
        random_durations(1, batch=6).astype(np.float32),
    )
    value_and_grad = jax.value_and_grad(total)
    ends, gradient = makespan(program, durations), value_and_grad(durations, program)[1]
    order = np.array([3, 1, 5, 0, 2, 4])
    np.testing.assert_array_equal(makespan(program, durations[:, order]), ends[order])
    np.testing.assert_array_equal(
        value_and_grad(durations[:, order], program)[1], gradient[:, order]
    )
    altered = durations.copy()
    altered[:, 1:] *= 7
    altered[:, 2] = np.nan
    assert makespan(program, altered)[0] == ends[0]
    np.testing.assert_array_equal(value_and_grad(altered, program)[1][:, 0], gradient[:, 0])


@pytest.mark.parametrize("row", range(ROWS))
def test_nan_in_any_row_is_nan_for_its_configuration_only(row: int):
    """The comparisons of a step alone would lose it where it comes first."""
    durations = random_durations(row, batch=4).astype(np.float32)
    durations[row, 2] = np.nan
    ends = makespan(lower(random_graph(row)).program, durations)
    assert np.isnan(ends).tolist() == [False, False, True, False]


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 17])
def test_blocks_do_not_show(batch: int, monkeypatch: pytest.MonkeyPatch):
    program, durations = (
        lower(random_graph(2)).program,
        random_durations(2, batch=17).astype(np.float32),
    )
    ends, gradient = makespan(program, durations), gradient_of_total(durations, program)
    monkeypatch.setattr(evaluate, "BLOCK", 4)
    monkeypatch.setattr(evaluate, "LINE", 2)
    # a new function: the compiled one keeps its block
    in_blocks = jax.jit(jax.vmap(jax.grad(total), (0, None)))
    jax.clear_caches()
    np.testing.assert_array_equal(makespan(program, durations[:, :batch]), ends[:batch])
    np.testing.assert_array_equal(
        in_blocks(durations[None, :, :batch], program)[0], gradient[:, :batch]
    )
    jax.clear_caches()  # the next test finds no function compiled with blocks of 4


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_that_of_durations(dtype: type):
    program = lower(random_graph(3)).program
    durations = random_durations(3, batch=2).astype(dtype)
    with jax.enable_x64(True):
        assert makespan(program, durations).dtype == dtype
        assert jax.grad(total)(jnp.asarray(durations), program).dtype == dtype


def test_one_trace_for_a_grid_of_graphs_and_for_changing_durations():
    traces = 0

    @jax.jit
    def value_and_grad(program: StepProgram, durations: jax.Array) -> tuple[jax.Array, jax.Array]:
        nonlocal traces
        traces += 1
        return jax.value_and_grad(total)(durations, program)

    def depth(layers: int, ranks: int) -> StepProgram:
        builder = GraphBuilder()
        for _ in range(layers):
            for rank in range(ranks):
                builder.op(1, label=f"{layers} layers", rank=rank, launch_row=2)
            builder.collective(3, label="sum", ranks=range(ranks))
        return lower(builder.build()).program

    grid = [(1, 1), (5, 1), (12, 1), (3, 2), (8, 2)]  # up to 64 steps and 8 slots
    ends = set()
    for (layers, ranks), scale in itertools.product(grid, [1.0, 2.0, 3.5]):
        ends.add(
            float(value_and_grad(depth(layers, ranks), scale * np.ones((3, 4), np.float32))[0])
        )
    assert traces == 1
    assert len(ends) > 10  # and yet the results differ
    value_and_grad(depth(90, 1), np.ones((3, 4), np.float32))
    assert traces == 2  # the next bucket: the count counts


@pytest.mark.parametrize("seed", range(200))
def test_programs_keep_their_promises(seed: int):
    """Replayed in slots: every read finds the step it means, slot 0 and padding stay out of it."""
    lowered = lower(random_graph(seed, most_nodes=60))
    program = lowered.program
    steps = len(program.row)
    assert program.pred_slot.shape == program.pred_step.shape == (steps, 2)
    assert program.out_slot.shape == program.row.shape == (steps,)
    assert {leaf.dtype for leaf in jax.tree.leaves(program)} == {np.dtype(np.int32)}
    assert steps in {64, 256, 512, 1024, 2048, 4096}
    assert program.slots in {8, 16, 32, 64}

    padding = program.out_slot == TRASH_SLOT
    live = ~padding
    assert (np.diff(live.astype(int)) >= 0).all()  # all of it in front
    assert (program.row[padding] == ZERO_ROW).all()
    assert (program.pred_slot[padding] == ZERO_SLOT).all()
    assert (program.pred_step[padding] == NO_STEP).all()
    assert live[lowered.step_of_node].all()
    np.testing.assert_array_equal(program.row[lowered.step_of_node], lowered.graph.row)

    holds = np.full(program.slots, NO_STEP)  # the step whose end a slot has
    for step in np.flatnonzero(live):
        np.testing.assert_array_equal(holds[program.pred_slot[step]], program.pred_step[step])
        holds[program.out_slot[step]] = step
    assert holds[ZERO_SLOT] == holds[TRASH_SLOT] == NO_STEP
    own_rows = np.stack([program.lead_row, program.launch_row, program.row], axis=1)
    np.testing.assert_array_equal(program.counted[program.count[live]], own_rows[live])
    assert np.bincount(program.count[live]).max() <= MOST_USES
    assert program.count[live].min() == program.first_counted
    assert program.out_slot.max() < program.slots


@pytest.mark.parametrize("seed", range(100))
def test_no_read_is_implied_by_another_and_all_lead_to_the_last_step(seed: int):
    pred_step = lower(random_graph(seed, most_nodes=60)).program.pred_step
    before: list[set[int]] = []  # all steps that end before each starts
    for pair in pred_step.tolist():
        preds = {pred for pred in pair if pred != NO_STEP}
        assert not any(pred in before[other] for pred in preds for other in preds)
        before.append(preds.union(*(before[pred] for pred in preds)))
    live = range(min(before[-1], default=len(before) - 1), len(before) - 1)
    assert before[-1] == set(live)


@pytest.mark.parametrize(
    ("launch_row", "ranks", "folded", "unfolded"),
    [(0, 1, 1, 1), (0, 8, 1, 1), (2, 1, 1, 1), (2, 8, 1, 8)],
)
def test_an_op_is_a_step_and_a_collective_one_per_host_that_launches_it(
    launch_row: int, ranks: int, folded: int, unfolded: int
):
    builder = GraphBuilder()
    builder.collective(1, label="sum", ranks=range(ranks), launch_row=launch_row)
    assert [live_steps(builder.build(), fold_ranks=fold) for fold in (True, False)] == [
        folded,
        unfolded,
    ]


def test_launches_after_a_host_has_waited_are_steps_unless_free():
    builder = GraphBuilder()
    builder.op(1, launch_row=2, blocking=True)
    builder.op(1, launch_row=2)
    builder.op(1)
    assert live_steps(builder.build()) == 1 + 2 + 1


def live_steps(graph: Graph, **kwargs: bool) -> int:
    return int((lower(graph, **kwargs).program.out_slot != TRASH_SLOT).sum())


def replicas(pipelines: int, odd: bool) -> Graph:
    """A pipeline of two stages, several of it in step; if `odd`, the last replica's last op is
    another.
    """
    builder = GraphBuilder()
    for step in range(3):
        for replica in range(pipelines):
            first, second = 2 * replica, 2 * replica + 1
            forward = builder.op(1, rank=first, launch_row=5)
            sent = builder.collective(
                2, label="send", ranks=[first, second], after=[forward], launch_row=5
            )
            row = 4 if odd and step == 2 and replica == pipelines - 1 else 3
            builder.op(row, rank=second, after=[sent[second]], launch_row=6)
    builder.collective(7, label="sum", ranks=range(0, 2 * pipelines, 2))
    return builder.build()


def test_replicas_of_a_stage_are_folded_into_one():
    assert live_steps(replicas(8, odd=False)) == live_steps(replicas(1, odd=False))
    one_odd = live_steps(replicas(8, odd=True))
    assert (
        live_steps(replicas(1, odd=True))
        < one_odd
        < live_steps(replicas(3, odd=True), fold_ranks=False)
    )


@pytest.mark.parametrize("odd", [False, True])
def test_folded_replicas_are_those_of_the_reference(odd: bool):
    for seed in range(5):
        assert_as_reference(replicas(4, odd), seed)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_folding_ranks_changes_no_result(graph: Graph, copies: int, seed: int):
    """Copies of a graph on ranks of their own, in step with each other, and one more op on one
    rank.
    """
    graph = copied(graph, copies)
    folded, unfolded = lower(graph), lower(graph, fold_ranks=False)
    durations = random_durations(seed, batch=3).astype(np.float32)
    np.testing.assert_allclose(
        makespan(folded.program, durations), makespan(unfolded.program, durations), rtol=1e-6
    )
    for got, want in zip(
        timeline(folded, durations[:, 0]), timeline(unfolded, durations[:, 0]), strict=True
    ):
        np.testing.assert_array_equal(got, want)
    assert_as_reference(graph, seed)
    node, is_launch = critical_path(folded, durations[:, 0])
    rows = np.where(is_launch, graph.launch_row[node], graph.row[node])
    seconds = np.append(durations[:, 0], 0.0)[rows - 1]  # row 0 takes no time
    np.testing.assert_allclose(
        seconds.sum(dtype=np.float64), timeline(folded, durations[:, 0]).end_s.max(), rtol=1e-6
    )


def copied(graph: Graph, copies: int) -> Graph:
    builder = GraphBuilder()
    ids: list[dict[int, int]] = [{} for _ in range(copies)]
    ranks = int(graph.rank.max()) + 1
    nodes = 0
    while nodes < len(graph):
        size = int((graph.collective == nodes).sum()) or 1
        for copy, new in enumerate(ids):
            waits = [new[int(other)] for other in graph.waits_for(nodes)]
            common = dict(
                label="n",
                stream=graph.stream_names[graph.stream[nodes]],
                after=waits,
                launch_row=int(graph.launch_row[nodes]),
            )
            members = [int(rank) + copy * ranks for rank in graph.rank[nodes : nodes + size]]
            if graph.collective[nodes] == nodes:
                added = builder.collective(int(graph.row[nodes]), ranks=members, **common)
                new.update(zip(range(nodes, nodes + size), added.values(), strict=True))
            else:
                blocking = bool(graph.blocking[nodes])
                new[nodes] = builder.op(
                    int(graph.row[nodes]), rank=members[0], blocking=blocking, **common
                )
        nodes += size
    builder.op(1, label="odd", rank=ranks, launch_row=2)
    return builder.build()


def test_a_graph_that_waits_in_a_circle_is_refused():
    builder = GraphBuilder()
    builder.op(1, label="a")
    builder.op(2, label="b", stream="other", after=[0])
    graph = dataclasses.replace(
        builder.build(), after=np.array([1, 0], np.int32), after_start=np.array([0, 1, 2], np.int32)
    )
    with pytest.raises(ValueError, match=r"Node 0 'a' waits for node 1, expected an earlier one"):
        lower(graph)


def test_slots_do_not_grow_with_the_graph():
    def slots(layers: int) -> int:
        builder = GraphBuilder()
        for _ in range(layers):
            forward = builder.op(1, launch_row=3)
            builder.collective(2, label="sum", ranks=[0], after=[forward], launch_row=3)
        return lower(builder.build()).program.slots

    assert slots(1000) == slots(10) == 8


@pytest.fixture
def two_ops() -> Lowered:
    builder = GraphBuilder()
    builder.op(1, label="gemm")
    builder.op(3, label="softmax")
    return lower(builder.build())


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        (np.ones(2), r"shape \[2\], expected \[U\] or \[U, batch\] with U at least 3"),
        (np.ones((3, 1, 1)), r"shape \[3, 1, 1\], expected"),
        (
            np.array([1.0, 1.0, np.nan]),
            r"Row 3 \(first used by node 1 'softmax'\) has duration nan, expected finite",
        ),
        (
            np.array([[1.0, -2.0], [1, 1], [1, 1]]),
            r"Row 1 .*'gemm'\) has duration -2.0 in configuration 1, expected",
        ),
        (np.array([1.0, np.inf, 1.0]), r"Row 2 \(used by no node\) has duration inf"),
    ],
)
def test_refused_durations_are_named(two_ops: Lowered, durations: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        check_durations(two_ops, durations)


def test_good_durations_pass_unchanged(two_ops: Lowered):
    durations = np.array([[0.0], [1.0], [2.0]], np.float32)
    assert check_durations(two_ops, durations) is durations


@pytest.mark.parametrize("ask", [timeline, critical_path])
def test_reports_refuse_what_they_cannot_read(two_ops: Lowered, ask: Callable):
    with pytest.raises(
        ValueError, match=r"shape \[3, 1\], expected \[U\], one configuration; take one column"
    ):
        ask(two_ops, np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"Row 1 .*'gemm'\) has duration -1.0"):
        ask(two_ops, -np.ones(3))


@pytest.mark.parametrize("durations", [np.ones(3, np.float32), np.ones((3, 1), np.int32)])
def test_makespan_refuses_a_table_it_cannot_batch_or_differentiate(
    two_ops: Lowered, durations: np.ndarray
):
    with pytest.raises(
        ValueError, match=r"expected floating-point seconds \[rows, batch\]; give a single"
    ):
        makespan(two_ops.program, durations)
