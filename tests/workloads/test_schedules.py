"""Schedules: published makespans, graphs against closed forms, what is in flight, orders that are
refused.
"""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.schedule_graphs import (
    UPSTREAM,
    checked,
    graph_seconds,
    in_flight_of,
    schedule_graph,
    stage_seconds,
)
from support.unlike_stages import gpipe_s, stage_max_s

from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.workloads import schedules as hs
from hybridperf.workloads.schedules.names import KINDS

SECONDS = st.floats(0.05, 4.0)
EXACT = {"rel": 2e-6}  # graphs are evaluated in float32


def replayed_s(schedule, forward_s, backward_s, weight_s=0.0):
    """Independently of graphs: tasks of stages that are all alike, one after the other."""
    of_kind = {
        "F": forward_s,
        "B": backward_s - (weight_s if schedule.splits_backward else 0.0),
        "W": weight_s,
    }
    return max(
        each.end_s
        for each in schedule.replay(lambda task: of_kind[task.kind] / schedule.chunks).values()
    )


def chunk_seconds(schedule, forward_s, backward_s, **options):
    return graph_seconds(
        schedule, forward_s / schedule.chunks, backward_s / schedule.chunks, **options
    )


def bubble_over_total(total_s, busy_s):
    """Share of the step in which a worker waits (Chimera's definition)."""
    return 1 - busy_s / total_s


# --- published makespans --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("p", "m", "equal", "double"),
    [(4, 4, 14, 21), (4, 8, 22, 33), (6, 6, 22, 33), (8, 8, 30, 45), (8, 32, 78, 117)],
)
def test_one_pipe_makespans(name, p, m, equal, double) -> None:
    schedule = checked(hs.schedule(name, p, m))
    assert [graph_seconds(schedule, 1, b) for b in (1, 2)] == [equal, double]
    assert [hs.closed_form_s(name, p, m, 1, b) for b in (1, 2)] == [equal, double]
    assert bubble_over_total(equal, 2 * m) == pytest.approx((p - 1) / (m + p - 1))
    assert double / (3 * m) - 1 == pytest.approx((p - 1) / m)


@pytest.mark.parametrize(
    ("d", "equal", "share", "double", "double_share"),
    [
        (4, 10, 0.2, 16, 0.25),
        (6, 16, 0.25, 26, 0.3077),
        (8, 22, 0.2727, 36, 0.3333),
        (16, 46, 0.3043, 76, 0.3684),
        (32, 94, 0.3191, 156, 0.3846),
    ],
)
def test_chimera_makespans(d, equal, share, double, double_share) -> None:
    schedule = checked(hs.schedule("chimera", d, d))
    assert [graph_seconds(schedule, 1, b) for b in (1, 2)] == [equal, double]
    assert [hs.closed_form_s("chimera", d, d, 1, b) for b in (1, 2)] == [equal, double]
    assert bubble_over_total(equal, 2 * d) == pytest.approx(share, abs=5e-5)
    assert bubble_over_total(double, 3 * d) == pytest.approx(double_share, abs=5e-5)
    assert bubble_over_total(equal, 2 * d) == pytest.approx((d - 2) / (2 * d + d - 2))
    assert bubble_over_total(double, 3 * d) == pytest.approx((d - 2) / (1.5 * d + d - 2))


def test_chimera_over_1f1b_as_published() -> None:
    assert hs.closed_form_s("1f1b", 6, 6, 1, 2) / hs.closed_form_s(
        "chimera", 6, 6, 1, 2
    ) == pytest.approx(1.269, abs=5e-4)


@pytest.mark.parametrize(
    ("p", "m", "v", "seconds"),
    [(4, 8, 2, 28.5), (8, 32, 2, 106.5), (8, 64, 3, 199.0), (4, 4, 2, 16.5)],
)
def test_interleaved_makespans(p, m, v, seconds) -> None:
    schedule = checked(hs.schedule("interleaved", p, m, v))
    assert chunk_seconds(schedule, 1.0, 2.0) == pytest.approx(seconds, **EXACT)
    assert hs.closed_form_s("interleaved", p, m, 1, 2, chunks=v) == pytest.approx(seconds)
    assert seconds / (3 * m) - 1 == pytest.approx((p - 1) / (v * m))


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 7), (4, 12), (8, 32)])
def test_zb_v_waits_for_its_first_pass_alone(p, m) -> None:
    """F = I = W = 1 of a stage: the optimum of Qi et al. 2024."""
    total_s = graph_seconds(checked(hs.schedule("zb_v", p, m)), 1, 2, weight_s=1)
    assert total_s == 6 * m + p - 1
    assert hs.closed_form_s("zb_v", p, m, 2, 4, weight_s=2) == total_s


@pytest.mark.parametrize(("p", "m"), [(8, 20), (8, 40), (16, 40)])
def test_dualpipe_bubble_is_the_published_one(p, m) -> None:
    """(p/2 - 1)(F&B + B - 3W) of DeepSeek-V3's Table 2, but for F of the middle's first pair."""
    forward_s, input_s, weight_s = 1.0, 3.0, 0.7
    backward_s, half = input_s + weight_s, p // 2
    assert (half - 1) * input_s > half * forward_s

    def total_s(joint_s):
        return hs.closed_form_s(
            "dualpipe", p, m, forward_s, backward_s, weight_s=weight_s, joint_s=joint_s
        )

    both_s = forward_s + backward_s
    bubble_s = (half - 1) * (both_s + backward_s - 3 * weight_s) - forward_s
    assert total_s(both_s) - m * both_s == pytest.approx(bubble_s)
    # all but the passes that fill and drain are in pairs
    assert total_s(both_s) - total_s(4.2) == pytest.approx((m - half - 2) * (both_s - 4.2))
    assert total_s(both_s) < hs.closed_form_s("1f1b", p, m, forward_s, backward_s)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["dualpipe", "dualpipe_v"]), st.integers(1, 4), st.integers(0, 6), SECONDS,
    SECONDS, SECONDS, st.floats(0.0, 1.0),
)  # fmt: skip
def test_pairs_beside_each_other(name, half, more, forward_s, input_s, weight_s, overlap) -> None:
    """Replayed with pairs that take between the longer pass and both one after the other."""
    p, m = (2 * half, 4 * half + 2 * more) if name == "dualpipe" else (half, 2 * half + more)
    schedule = hs.schedule(name, p, m)
    backward_s = input_s + weight_s
    joint_s = max(forward_s, backward_s) + min(forward_s, backward_s) * overlap
    of_kind = {"F": forward_s, "B": input_s, "W": weight_s}

    def seconds(task):
        return joint_s / 3 if len(schedule.block(task)) == 3 else of_kind[task.kind]

    end_s = max(each.end_s for each in schedule.replay(seconds).values())
    v = schedule.chunks
    assert end_s == pytest.approx(
        hs.closed_form_s(
            name,
            p,
            m,
            v * forward_s,
            v * (input_s + weight_s),
            weight_s=v * weight_s,
            joint_s=v * joint_s,
        )
    )


# --- graph = closed form --------------------------------------------------------------------------


@st.composite
def sized(draw):
    """A schedule's name with sizes that suit it: (name, workers, micro-batches, chunks)."""
    name = draw(st.sampled_from(hs.NAMES))
    p = draw(st.integers(1, 8))
    if name == "chimera":
        d = 2 * draw(st.integers(1, 5))
        return name, d, draw(st.sampled_from([*range(2, d, 2), d, 2 * d, 3 * d, 4 * d])), 1
    if name == "interleaved":
        return name, p, p * draw(st.integers(1, 4)), draw(st.integers(1, 4))
    if name == "dualpipe":
        half = draw(st.integers(1, 4))
        return name, 2 * half, 4 * half + 2 * draw(st.integers(0, 8)), 1
    if name in ("zb_v", "dualpipe_v"):
        return name, p, 2 * p - (name == "zb_v") + draw(st.integers(0, 12)), 2
    return name, p, draw(st.integers(1, 24)), 1


@settings(max_examples=40, deadline=None)
@given(sized(), SECONDS, SECONDS, SECONDS)
@example(("zb_v", 2, 3, 2), 3.5, 3.0, 1.0)  # forward passes wait for those of the other chunk
def test_graph_replay_and_closed_form_agree_for_uniform_stages(
    sizes, forward_s, input_s, weight_s
) -> None:
    name, p, m, v = sizes
    schedule = checked(hs.schedule(name, p, m, v))
    backward_s = input_s + weight_s
    by_graph = chunk_seconds(schedule, forward_s, backward_s, weight_s=weight_s / v)
    replayed = replayed_s(schedule, forward_s, backward_s, weight_s)
    closed = hs.closed_form_s(name, p, m, forward_s, backward_s, chunks=v, weight_s=weight_s)
    assert closed == pytest.approx(replayed, rel=1e-12)
    # each addition of the longest path rounds by up to half a unit in the last place of float32
    additions = max(len(order) for order in schedule.orders) + 2 * schedule.stages
    assert by_graph == pytest.approx(closed, rel=max(EXACT["rel"], additions * 2.0**-24))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gpipe", "1f1b"]),
    st.integers(1, 7),
    st.integers(1, 20),
    SECONDS,
    SECONDS,
    st.floats(0.0, 1.0),
)
def test_transfers_beside_computations(name, p, m, forward_s, backward_s, share) -> None:
    send_s = share * min(forward_s, backward_s)
    by_graph = graph_seconds(hs.schedule(name, p, m), forward_s, backward_s, send_s=send_s)
    assert by_graph == pytest.approx(
        hs.closed_form_s(name, p, m, forward_s, backward_s, send_s=send_s), **EXACT
    )


def test_closed_forms_take_columns_and_jax() -> None:
    p, m = np.array([4, 4, 8]), np.array([4, 8, 32])
    assert hs.closed_form_s("1f1b", p, m, 1.0, 1.0).tolist() == [14, 22, 78]
    for name in hs.NAMES:
        numbers = {"forward_s": 1.5, "backward_s": 2.5, "weight_s": 0.5}

        def seconds(numbers, name=name):
            return hs.closed_form_s(name, 4, 8, chunks=1, **numbers)

        plain = float(seconds(numbers))
        assert float(jax.jit(seconds)(numbers)) == pytest.approx(plain, rel=1e-6)
        slope = jax.grad(seconds)(numbers)
        for key in numbers:
            step = (
                seconds({**numbers, key: numbers[key] + 1e-3})
                - seconds({**numbers, key: numbers[key] - 1e-3})
            ) / 2e-3
            assert float(slope[key]) == pytest.approx(step, rel=1e-4), (name, key)


# --- stages that differ ---------------------------------------------------------------------------


@st.composite
def unlike(draw, same_stage_is_longest: bool):
    p = draw(st.integers(1, 6))
    seconds = st.lists(SECONDS, min_size=p, max_size=p)
    forward_s, backward_s = np.array(draw(seconds)), np.array(draw(seconds))
    if same_stage_is_longest:
        at = int(forward_s.argmax())
        backward_s[[at, backward_s.argmax()]] = backward_s[[backward_s.argmax(), at]]
    return forward_s, backward_s, draw(st.integers(1, 16)), draw(st.floats(0.0, 0.5))


@settings(max_examples=40, deadline=None)
@given(unlike(same_stage_is_longest=False))
def test_gpipe_of_unlike_stages_is_exact_and_1f1b_no_slower(stages) -> None:
    forward_s, backward_s, m, send_s = stages
    bound = gpipe_s(forward_s, backward_s, m, send_s=send_s)
    p = len(forward_s)
    assert graph_seconds(
        hs.schedule("gpipe", p, m), forward_s, backward_s, send_s=send_s, blocking=True
    ) == pytest.approx(bound, **EXACT)
    assert graph_seconds(
        hs.schedule("1f1b", p, m), forward_s, backward_s, send_s=send_s, blocking=True
    ) <= bound * (1 + 1e-6)
    assert stage_max_s(forward_s, backward_s, m, send_s=send_s) <= bound * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(unlike(same_stage_is_longest=True))
def test_max_and_sum_is_a_bound_where_one_stage_is_longest_both_ways(stages) -> None:
    forward_s, backward_s, m, _ = stages
    bound = stage_max_s(forward_s, backward_s, m)
    p = len(forward_s)
    assert graph_seconds(hs.schedule("gpipe", p, m), forward_s, backward_s) == pytest.approx(
        bound, **EXACT
    )
    assert graph_seconds(hs.schedule("1f1b", p, m), forward_s, backward_s) <= bound * (1 + 1e-6)


def test_max_and_sum_is_exact_where_the_last_stage_is_longest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        p, m = rng.integers(1, 7), rng.integers(1, 20)
        forward_s, backward_s = np.sort(rng.uniform(0.1, 2, (2, p)), -1)
        expected = stage_max_s(forward_s, backward_s, m)
        assert graph_seconds(hs.schedule("1f1b", p, m), forward_s, backward_s) == pytest.approx(
            expected, **EXACT
        )


def test_max_and_sum_of_several_chunks() -> None:
    """Exact for uniform stages; within a slot where the last worker's last chunk has a head
    besides.
    """
    for p, m, v in [(2, 4, 2), (4, 8, 2), (4, 16, 3), (8, 8, 4)]:
        alike = np.full(p, 1.0), np.full(p, 2.0)
        assert stage_max_s(*alike, m, chunks=v) == pytest.approx(
            hs.closed_form_s("interleaved", p, m, 1.0, 2.0, chunks=v)
        )
        forward_s, backward_s = np.full((v, p), 1.0 / v), np.full((v, p), 2.0 / v)
        forward_s[-1, -1], backward_s[-1, -1] = 1.5 / v, 3.0 / v
        by_graph = graph_seconds(
            hs.schedule("interleaved", p, m, v), forward_s.ravel(), backward_s.ravel()
        )
        assert stage_max_s(forward_s.sum(0), backward_s.sum(0), m, chunks=v) == pytest.approx(
            by_graph, rel=0.05
        )


def test_max_and_sum_bounds_nothing_else() -> None:
    """A stage long forward and another long backward: 1F1B takes longer; a long first stage: it
    takes less.
    """
    schedule = hs.schedule("1f1b", 3, 2)
    crossed = [10.0, 0.1, 0.1], [0.1, 10.0, 0.1]
    assert graph_seconds(schedule, *crossed) > stage_max_s(*map(np.array, crossed), 2) + 9
    first = [10.0, 1.0], [10.0, 1.0]
    assert (
        graph_seconds(hs.schedule("1f1b", 2, 8), *first) < stage_max_s(*map(np.array, first), 8) - 1
    )


def test_blocking_transfers_of_uniform_stages_are_bounded_by_max_and_sum() -> None:
    rng = np.random.default_rng(1)
    for p, m in rng.integers(1, 9, (15, 2)):
        bound = stage_max_s(np.full(p, 1.0), np.full(p, 2.0), m, send_s=0.3)
        blocking = graph_seconds(hs.schedule("1f1b", p, m), 1.0, 2.0, send_s=0.3, blocking=True)
        overlapped = graph_seconds(hs.schedule("1f1b", p, m), 1.0, 2.0, send_s=0.3)
        assert overlapped <= blocking * (1 + 1e-6) <= bound * (1 + 2e-6)


# --- in flight, weights ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sized())
def test_counted_activations_are_those_of_the_formula(sizes) -> None:
    name, p, m, v = sizes
    schedule = hs.schedule(name, p, m, v)
    formula = KINDS[name].in_flight(np.arange(p), p, m, v)
    assert (np.array(in_flight_of(schedule)) / v).tolist() == pytest.approx(formula.tolist())
    assert schedule.pipes == (2 if name in ("chimera", "dualpipe") else 1)
    assert len(schedule.stages_of(0)) == v * schedule.pipes


def test_published_numbers_in_flight() -> None:
    assert in_flight_of(hs.schedule("gpipe", 8, 32))[0] == 32
    assert in_flight_of(hs.schedule("1f1b", 8, 32)) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert in_flight_of(hs.schedule("interleaved", 8, 32, 3))[0] / 3 == pytest.approx(
        8 * (1 + 7 / (8 * 3))
    )
    assert in_flight_of(hs.schedule("chimera", 8, 8)) == [5, 6, 7, 8, 8, 7, 6, 5]
    assert in_flight_of(hs.schedule("chimera", 8, 24)) == [8] * 8
    assert in_flight_of(hs.schedule("zero_bubble", 8, 32)) == [8] * 8
    assert in_flight_of(hs.schedule("zb_v", 8, 32)) == [2 * 8] * 8  # chunks: 1F1B's peak on all
    assert in_flight_of(hs.schedule("dualpipe", 8, 32)) == [8 + 1] * 8
    assert in_flight_of(hs.schedule("dualpipe_v", 4, 16)) == [8 + 1] * 4


# --- graphs ---------------------------------------------------------------------------------------


def test_a_transfer_occupies_its_link_and_not_the_worker() -> None:
    schedule = hs.schedule("1f1b", 2, 2)
    graph = schedule_graph(schedule)
    seconds = stage_seconds(schedule, [1.0, 1.0], [1.0, 1.0], send_s=0.25)
    when = timeline(lower(graph), seconds)
    ends = {label: end for label, end in zip(graph.labels, when.end_s, strict=True)}
    assert ends["F0 of stage 0"] == 1
    assert ends["F1 of stage 0"] == 2  # while activations travel
    assert ends["F0 of stage 1"] == 2.25
    assert ends["send B0 of stage 1"] == 3.5
    assert ends["B0 of stage 0"] == 4.5
    assert UPSTREAM in graph.stream_names


# --- orders that are none -------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(sized())
def test_every_schedule_is_one(sizes) -> None:
    name, p, m, v = sizes
    schedule = checked(hs.schedule(name, p, m, v))
    assert sum(map(len, schedule.orders)) == len(schedule.kinds) * p * v * m
    issued = {task: at for at, task in enumerate(schedule.issue_order())}
    assert all(issued[need] < issued[task] for task in issued for need in schedule.needs(task))


def spoiled(schedule, worker, change):
    orders = list(schedule.orders)
    orders[worker] = tuple(change(list(orders[worker])))
    return dataclasses.replace(schedule, orders=tuple(orders))


def test_orders_that_are_none_are_named() -> None:
    good = hs.schedule("1f1b", 3, 4)
    with pytest.raises(InputError, match="worker 0 waits before B3 of stage 0 for F3 of stage 0"):
        checked(spoiled(good, 0, lambda order: [order[-1], *order[:-1]]))
    with pytest.raises(InputError, match="has F0 of stage 1 0 times, expected once"):
        checked(spoiled(good, 1, lambda order: order[1:]))
    with pytest.raises(InputError, match="has B3 of stage 2 2 times"):
        checked(spoiled(good, 2, lambda order: [*order, order[-1]]))
    with pytest.raises(InputError, match="has F0 of stage 1 on worker 2, expected worker 1"):
        checked(spoiled(good, 2, lambda order: [hs.Task("F", 0, 1), *order]))
    with pytest.raises(
        InputError, match="a task W0 of stage 0 on worker 0, which it has no place for"
    ):
        checked(spoiled(good, 0, lambda order: [*order, hs.Task("W", 0, 0)]))
    with pytest.raises(InputError, match="has 2 orders, expected one for each of 3 workers"):
        checked(dataclasses.replace(good, orders=good.orders[:2]))
    both_ways = hs.schedule("chimera", 2, 2)

    def upwards(order):
        return [task._replace(pipe=1, stage=0) if task[:2] == ("F", 0) else task for task in order]

    with pytest.raises(InputError, match="sends micro-batch 0 through both pipes"):
        checked(spoiled(both_ways, 1, upwards))


def test_names_and_sizes_that_do_not_suit() -> None:
    with pytest.raises(
        InputError, match=r"unknown schedule '1f1bb'.*did you mean '1f1b'.*there are 1f1b, gpipe"
    ):
        hs.schedule("1f1bb", 2, 2)
    with pytest.raises(InputError, match="schedule 'v-half' is not built; there are 1f1b, gpipe"):
        hs.closed_form_s("v-half", 4, 4, 1, 1)
    with pytest.raises(InputError, match="1 or more workers in schedule 'gpipe', got 0"):
        hs.schedule("gpipe", 0, 2)
    with pytest.raises(InputError, match=r"1 or more micro-batches in schedule '1f1b', got 2\.5"):
        hs.schedule("1f1b", 2, 2.5)
    with pytest.raises(
        InputError,
        match="'interleaved' needs accumulation divisible by pp, got accumulation 6, pp 4",
    ):
        hs.schedule("interleaved", 4, 6, 2)
    with pytest.raises(InputError, match="1 chunk per worker in schedule '1f1b', got 2"):
        hs.schedule("1f1b", 4, 4, 2)
    with pytest.raises(InputError, match="'chimera' needs an even number of stages, got pp 3"):
        hs.schedule("chimera", 3, 4)
    with pytest.raises(
        InputError,
        match="needs up to pp micro-batches or a multiple of pp, got accumulation 6, pp 4",
    ):
        hs.schedule("chimera", 4, 6)
    with pytest.raises(
        InputError,
        match="'interleaved' needs accumulation divisible by pp, got accumulation 6, pp 4",
    ):
        hs.closed_form_s("interleaved", 4, np.array([4, 6]), 1.0, 1.0, chunks=2)
    with pytest.raises(
        InputError,
        match="needs up to pp micro-batches or a multiple of pp, got accumulation 6, pp 4",
    ):
        hs.closed_form_s("chimera", [4, 4, 8], [2, 6, 6], 1.0, 1.0)
    with pytest.raises(InputError, match="no closed form with transfers"):
        hs.closed_form_s("zero_bubble", 4, 4, 1, 1, send_s=0.1)


def test_more_micro_batches_never_raise_the_share_of_bubbles() -> None:
    for name in hs.NAMES:
        shares = []
        for m in range(16, 72, 8):
            total_s = hs.closed_form_s(
                name, 8, m, 1.0, 2.0, chunks=2 if name == "interleaved" else 1, weight_s=0.9
            )
            shares.append(float(bubble_over_total(total_s, 3.0 * m)))
        assert all(b <= a + 1e-12 for a, b in itertools.pairwise(shares)), name
