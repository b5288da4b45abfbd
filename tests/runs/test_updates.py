"""Workers that differ: closed forms against the engine's graph on random cases; best shares of a
batch against a gradient through the evaluator.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridperf.engine.evaluate import makespan, timeline
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.runs.updates import (
    accumulation,
    best_shares,
    iterations,
    updates_per_s,
)

CASES = 200


def cases(seed: int, count: int = CASES):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng, rng.lognormal(-3.5, 0.8, rng.integers(2, 9))


def test_a_round_takes_as_long_as_the_slowest_by_hand() -> None:
    ends = iterations([[1.0, 1.0], [3.0, 3.0]])
    assert ends.tolist() == [[1.0, 4.0], [3.0, 6.0]]
    assert iterations([[1.0, 1.0], [3.0, 3.0]], None).tolist() == [[1.0, 2.0], [3.0, 6.0]]
    assert iterations([[1.0, 1.0], [3.0, 3.0]], 1).tolist() == [[1.0, 2.0], [3.0, 6.0]]


@pytest.mark.parametrize("staleness", [0, 1, 3, None])
def test_steady_workers_end_when_the_graph_says(staleness: int | None) -> None:
    for rng, each_s in cases(0, CASES // 4):
        count = int(rng.integers(2, 9))
        graph = iterations(np.tile(each_s[:, None], count), staleness)
        at = np.arange(count)
        steady = (at + 1) * each_s[:, None]  # as the module's docstring has it
        if staleness is not None:
            ahead = np.maximum(at - staleness, 0) * each_s.max() + each_s[:, None]
            steady = np.maximum(steady, ahead)
        assert steady == pytest.approx(graph, rel=1e-9)


def test_staleness_hides_noise_and_no_steady_slowness() -> None:
    rng = np.random.default_rng(1)
    noisy = 0.03 * rng.lognormal(0, 0.4, (4, 40))
    ends = [iterations(noisy, s).max() for s in (0, 1, 4, None)]
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > 1.1 * ends[2]
    steady = np.tile([[0.03], [0.06]], 20)
    assert iterations(steady, 0).max() == pytest.approx(iterations(steady, 4).max())


def test_rates_of_tiers_are_those_of_graphs() -> None:
    """A tier is a synchronous graph of its own; among tiers nobody waits."""
    for rng, each_s in cases(2):
        tiers = rng.integers(0, 3, len(each_s))
        rate = 0.0
        for tier in np.unique(tiers):
            mine = each_s[tiers == tier]
            rate += 12 / iterations(np.tile(mine[:, None], 12)).max()
        assert updates_per_s(each_s, tiers.tolist()) == pytest.approx(rate, rel=0.01)
    assert updates_per_s([0.5, 0.25]) == pytest.approx(6.0)


def test_shares_end_together_and_no_whole_one_is_better() -> None:
    for rng, slope in cases(3):
        fixed = rng.uniform(0, 0.2, len(slope))
        batch = int(rng.integers(3, 60))
        share, end_s = best_shares(slope, batch, fixed, whole=False)
        assert share.sum() == pytest.approx(batch)
        ends = (fixed + share * slope)[share > 0]
        assert ends == pytest.approx(end_s, rel=1e-6)
        whole, whole_s = best_shares(slope, batch, fixed)
        assert whole.sum() == batch
        assert whole_s >= end_s * (1 - 1e-9)
        # a step is a graph of workers that meet: its makespan
        builder = GraphBuilder()
        nodes = [builder.op(1 + at, rank=at) for at in range(len(slope))]
        builder.collective(0, label="update", ranks=range(len(slope)), after=nodes)
        took = np.where(whole > 0, fixed + whole * slope, 0.0)
        end_s = timeline(lower(builder.build()), took).end_s.max()
        assert end_s == pytest.approx(whole_s, rel=1e-6)
        for to in range(len(slope)):  # moving one sample never helps
            for of in np.flatnonzero(whole):
                moved = whole.copy()
                moved[of], moved[to] = moved[of] - 1, moved[to] + 1
                assert (fixed + moved * slope)[moved > 0].max() >= whole_s * (1 - 1e-12)


def test_a_gradient_through_the_evaluator_finds_the_same_shares() -> None:
    slope, fixed, batch = np.array([0.01, 0.02, 0.05]), np.array([0.03, 0.01, 0.02]), 64.0
    builder = GraphBuilder()
    for at in range(3):
        builder.op(1 + at, rank=at)
    program = lower(builder.build()).program

    def seconds(logits):
        share = batch * jax.nn.softmax(logits)
        return makespan(program, (fixed + share * slope)[:, None])[0]

    schedule = optax.exponential_decay(0.1, 50, 0.5)
    solver = optax.adam(schedule)
    logits = jnp.zeros(3)
    state, step = solver.init(logits), jax.jit(jax.value_and_grad(seconds))
    for _ in range(400):
        _, slopes = step(logits)
        moved, state = solver.update(slopes, state)
        logits = optax.apply_updates(logits, moved)
    share, end_s = best_shares(slope, batch, fixed, whole=False)
    assert float(seconds(logits)) == pytest.approx(end_s, rel=0.01)
    assert batch * jax.nn.softmax(logits) == pytest.approx(share, rel=0.05)


def test_accumulation_is_the_least_that_keeps_the_share() -> None:
    """Against the graph: k micro-batches, then what of the all-reduce outlasts the last one."""
    rng = np.random.default_rng(4)
    for _ in range(CASES):
        micro_s, reduce_s, hidden = rng.uniform(0.01, 0.1), rng.uniform(0, 0.4), rng.uniform(0, 1)
        best = accumulation(micro_s, reduce_s, hidden * micro_s, share=0.1)
        for k in {best, max(best - 1, 1)}:
            builder = GraphBuilder()
            nodes = [builder.op(1) for _ in range(k - 1)] + [builder.op(2)]
            builder.op(3)
            builder.op(4, stream="comm", after=[nodes[-1]])
            took = [micro_s, (1 - hidden) * micro_s, hidden * micro_s, reduce_s]
            step_s = timeline(lower(builder.build()), took).end_s.max()
            exposed = 1 - k * micro_s / step_s
            assert (exposed <= 0.1 + 1e-9) == (k == best or best == 1), (k, best)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: best_shares([0.1, -1], 8), "above zero"),
        (lambda: best_shares([0.1], 0), "batch of"),
        (lambda: best_shares([0.1], 2.5), "whole samples"),
        (lambda: iterations([[1.0, float("nan")]]), "zero or more"),
        (lambda: iterations([[1.0]], -1), "staleness"),
        (lambda: updates_per_s([1.0, 2.0], [0]), "a tier for each"),
        (lambda: accumulation(0.0, 1.0), "above zero"),
    ],
)
def test_wrong_numbers_are_a_sentence(call, said) -> None:
    with pytest.raises(InputError, match=said):
        call()
