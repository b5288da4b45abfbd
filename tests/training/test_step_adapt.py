"""What measured rows teach: knobs and corrections that made steps are found again, and only as far
as rows tell.
"""

import dataclasses

import numpy as np
import pytest
from training.test_step_compose import block, some_row, with_weight_share

from hybridperf.engine.closed import step_seconds
from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.model import adapted_steps
from hybridperf.model.step_effects import NAMES, effects_of
from hybridperf.training.steps import adapt
from hybridperf.workloads.transformer.columns import FOLDED, SCHEDULES

GEMM, LAUNCH = NAMES.index("gemm"), NAMES.index("launch_s")


@pytest.fixture(scope="module")
def made():
    """(features, cells) of 240 rows in 12 cells: sizes, micro-batches,
    stages, GPU- and host-bound.
    """
    import jax

    rng = np.random.default_rng(1)
    cells, parts = [], []
    for hidden in (10, 11, 12):
        for tp in (0, 1):
            for micro_batch in (0, 2):
                scale = 2.0 ** (hidden - 11 - tp + micro_batch)
                for _ in range(20):
                    f = some_row()
                    layer = block(
                        gemm_s=1e-3 * scale * np.array([1, 0, 2]),
                        memory_s=3e-4 * scale * np.array([1, 0, 1]), kernels=(15, 0, 45),
                        tp_s=1e-4 * tp * np.array([1, 0, 1]), tp_calls=2 * tp * np.array([1, 0, 1]),
                    )  # fmt: skip
                    m, layers = float(rng.integers(4, 17)), float(rng.integers(1, 7))
                    sizes = {
                        name: np.array([layers])
                        for name in ("layers_first", "layers_last", "layers_most")
                    }
                    ends = {
                        "head": block(gemm_s=(1e-3, 0, 2e-3), kernels=(5, 0, 5)),
                        "embedding": block(memory_s=(1e-4, 0, 1e-4)),
                    }
                    sizes |= {
                        "crossing": np.zeros(1),
                        "stalls": np.zeros(1),
                        "micro_batches": np.array([m]),
                    }
                    parts.append(
                        dataclasses.replace(
                            f, layer=layer, layers=np.array([4 * layers]), **sizes, **ends
                        )
                    )
                    cells.append((hidden, tp, micro_batch + 10, 10))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *parts), np.array(cells, float)


def measured(features, theta, corrections=(0.0, 0.0, 0.0), noise=0.0):
    seconds = step_seconds(features, effects_of(theta), *corrections).step_s
    return seconds * np.exp(noise * np.random.default_rng(2).standard_normal(len(seconds)))


def test_knobs_that_made_the_rows_are_found_again(made):
    features, cells = made
    theta = adapted_steps.beliefs()[0]
    theta[LAUNCH] += 0.4
    theta[GEMM] -= 0.06
    found = adapt.fit(features, cells, measured(features, theta, noise=0.003))
    assert found.theta[LAUNCH] == pytest.approx(theta[LAUNCH], abs=0.1)
    assert found.theta[GEMM] == pytest.approx(theta[GEMM], abs=0.05)
    said = adapt.predict(found, features, cells)
    assert np.abs(np.exp(said.log_s) / measured(features, theta) - 1).mean() < 0.01


def test_what_no_knob_explains_becomes_the_correction_of_a_cell(made):
    features, cells = made
    odd = (cells == cells[0]).all(1)
    layer_log = np.where(odd, 0.2, 0.0)
    seconds = measured(features, adapted_steps.beliefs()[0], (layer_log, layer_log, 0.0))
    found = adapt.fit(features, cells, seconds)
    assert np.abs(found.corrections).max() > 0.03
    assert np.abs(adapt.predict(found, features, cells).log_s - np.log(seconds)).max() < 0.02


def test_slopes_of_all_effects_at_once_are_those_of_one_after_the_other(made):
    """Also of rows of every schedule, and of so many that not all effects move at once."""
    features, _ = made
    many = with_weight_share(features.picked(np.tile(np.arange(240), 4)), 0.4)
    codes = np.arange(960) % len(SCHEDULES)
    many = dataclasses.replace(
        many, schedule=codes.astype(float), folded=np.isin(codes, list(FOLDED)).astype(float),
        micro_batches=np.full(960, 8.0),
    )  # fmt: skip
    theta = adapted_steps.beliefs()[0]
    corrections = 0.01 * np.random.default_rng(3).standard_normal((adapt.BLOCKS, 960))
    here, by_theta, by_block = adapt.slopes(many, theta, corrections)

    def log_s(theta, corrections):
        logs = adapted_steps.logs_of(corrections)
        return np.log(step_seconds(many, effects_of(theta), *logs).step_s)

    np.testing.assert_array_equal(here, log_s(theta, corrections))
    for at, name in enumerate(NAMES):
        moved = theta + 1e-4 * np.eye(len(theta))[at]
        slope = (log_s(moved, corrections) - here) / 1e-4
        np.testing.assert_allclose(by_theta[:, at], slope, atol=1e-9, err_msg=name)
    for at, unit in enumerate(np.eye(adapt.BLOCKS)):
        slope = (log_s(theta, corrections + 1e-4 * unit[:, None]) - here) / 1e-4
        np.testing.assert_allclose(by_block[at], slope, atol=1e-9)


def test_no_rows_have_no_slopes(made):
    theta, none = adapted_steps.beliefs()[0], np.arange(0)
    found = adapt.slopes(made[0].picked(none), theta, np.zeros((adapt.BLOCKS, 0)))
    assert [one.shape for one in found] == [(0,), (0, len(theta)), (adapt.BLOCKS, 0)]


def test_corrections_are_bounded(made):
    features, cells = made
    found = adapt.fit(features, cells, 10 * measured(features, adapted_steps.beliefs()[0]))
    assert np.abs(found.corrections).max() <= adapted_steps.MOST_CORRECTION + 1e-12


def test_a_few_wild_rows_bend_nothing(made):
    features, cells = made
    seconds = measured(features, adapted_steps.beliefs()[0], noise=0.003)
    wild = seconds.copy()
    wild[::40] *= 5
    said = adapt.predict(adapt.fit(features, cells, wild), features, cells)
    assert np.median(np.abs(said.log_s - np.log(seconds))) < 0.01


def test_stalled_rows_say_how_long_a_stall_is_and_slow_no_other_row(made):
    features, cells = made
    features = dataclasses.replace(
        features, crossing=np.ones(len(cells)), tp_nodes=np.ones(len(cells))
    )
    rng = np.random.default_rng(3)
    stalled = rng.random(len(cells)) < 0.3
    theta = adapted_steps.beliefs()[0]
    theta[NAMES.index("stall_s")] = np.log(0.3)
    messages = np.where(np.asarray(features.stages) == 2, 2.0, 4.0)
    fast = measured(features, theta, noise=0.02)
    seconds = np.where(
        stalled, measured(dataclasses.replace(features, stalls=messages), theta, noise=0.02), fast
    )
    found = adapt.fit(features, cells, seconds)
    assert found.effects.stall_s == pytest.approx(0.3, rel=0.05)
    said = adapt.predict(found, features, cells)
    assert abs(np.median(said.log_s - np.log(fast))) < 0.005
    assert found.noise < 0.04


def test_an_interval_reaches_as_far_as_nine_of_ten_rows_of_a_noisy_sweep(made):
    features, cells = made
    rng = np.random.default_rng(4)
    scatter = np.where(rng.random(len(cells)) < 0.2, 0.2, 0.03)  # one row in five is far off
    seconds = measured(features, adapted_steps.beliefs()[0]) * np.exp(
        scatter * rng.standard_normal(len(cells))
    )
    found = adapt.fit(features, cells, seconds)
    said = adapt.predict(found, features, cells)
    inside = (np.abs(said.log_s - np.log(seconds)) < 1.645 * said.deviation).mean()
    assert 0.88 <= inside <= 0.95


def test_unseen_cells_are_less_sure_than_seen_ones_and_nothing_is_surer_without_rows(made):
    features, cells = made
    seen = cells[:, 1] == 0
    seconds = measured(features, adapted_steps.beliefs()[0], noise=0.005)
    found = adapt.fit(features.picked(seen), cells[seen], seconds[seen])
    before, after = (
        adapt.predict(one, features, cells).deviation
        for one in (adapted_steps.Adapted.before(), found)
    )
    assert after[seen].max() < 0.03
    assert np.median(after[~seen]) > 2 * np.median(after[seen])
    assert (after < before).all()


def test_nine_of_ten_rows_of_unseen_cells_lie_in_their_interval(made):
    """Cells drawn from the process itself: corrections of layers as it believes them."""
    features, cells = made
    rng = np.random.default_rng(5)
    known, of = np.unique(cells, axis=0, return_inverse=True)
    alike = adapted_steps.correlation(known, known, 0) + 1e-9 * np.eye(len(known))
    inside = []
    for _ in range(12):
        layer_log = (
            adapted_steps.OPEN_SPREAD[0]
            * np.linalg.cholesky(alike)
            @ rng.standard_normal(len(known))
        )
        seconds = measured(
            features,
            adapted_steps.beliefs()[0],
            (layer_log[of.reshape(-1)], layer_log[of.reshape(-1)], 0.0),
        )
        train = np.isin(of.reshape(-1), rng.choice(len(known), 8, replace=False))
        said = adapt.predict(
            adapt.fit(features.picked(train), cells[train], seconds[train]), features, cells
        )
        away = np.abs(said.log_s - np.log(seconds)) / said.deviation
        inside.append((away[~train] < 1.645).mean())
    assert 0.8 <= np.mean(inside) <= 1.0


def test_likelihood_tells_which_assumption_made_the_rows(made):
    """A third more products, as recomputation would add, against what made the rows."""
    features, cells = made
    gemm_s = np.array(features.layer.gemm_s)
    gemm_s[1] += gemm_s[0]
    more = dataclasses.replace(features, layer=dataclasses.replace(features.layer, gemm_s=gemm_s))
    seconds = measured(features, adapted_steps.beliefs()[0], noise=0.005)
    right, wrong = (
        adapt.fit(
            f, cells, seconds, limits=adapt.FitLimits(0.3, {"gemm": 0.05, "attention": 0.15})
        ).evidence
        for f in (features, more)
    )
    assert right > wrong + 3


def test_a_traced_host_moves_the_launch_cost():
    spread = lambda seconds: Spread(mean_s=seconds, std_s=0, median_s=seconds, count=9)  # noqa: E731
    each = lambda seconds: Overhead(shared=spread(seconds), by_kind={})  # noqa: E731
    host = Host(
        source="made", profiler_s=0, between_ops_s=spread(5e-6), before_launch_s=each(10e-6),
        after_launch_s=each(4e-6), launch_call_s=each(6e-6), between_launches_s=each(3e-6),
        without_launch_s=each(2e-6),
    )  # fmt: skip
    assert adapted_steps.launch_s(host) == pytest.approx(25e-6)
    assert adapted_steps.Adapted.before(host).effects.launch_s == pytest.approx(25e-6)
