"""How parts make a step: cases by hand, limits, and slopes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.steps.compose import Block, Features, step_seconds
from hybridperf.steps.knobs import BELIEFS, NAMES, Knobs, knobs_of, medians, theta_of

FREE = Knobs(**{name: 1e-12 if name.endswith("_s") else 1.0 for name in NAMES})  # nothing is launched, awaited or exposed


def block(**amounts):
    """A block of one row: [P, 1]; amounts are (forward, recomputed, backward)."""
    zero = {field.name: np.zeros((3, 1)) for field in dataclasses.fields(Block)}
    return Block(**zero | {name: np.array(amount, float).reshape(3, 1) for name, amount in amounts.items()})


def row(**changes):
    """Four layers of 1 s forward and 2 s backward, nothing else."""
    fields = {field.name: np.zeros(1) for field in dataclasses.fields(Features)}
    fields |= {"layer": block(gemm_s=(1, 0, 2)), "embedding": block(), "head": block()}
    fields |= {name: np.array([value], float) for name, value in dict(layers_first=4, layers_last=4, layers_most=4, layers=4).items()}
    fields |= {name: np.ones(1) for name in ("stages", "micro_batches", "fill", "tp_nodes", "stage_nodes", "tp")}
    return Features(**fields | {k: v if isinstance(v, Block) else np.array([v], float) for k, v in changes.items()})


def pipeline(stages, **changes):
    """The same, a layer per stage."""
    return row(stages=stages, layers_first=1, layers_last=1, layers_most=1, layers=stages, **changes)


def time(features, knobs=FREE, **corrections):
    return float(step_seconds(features, knobs, **corrections).step_s[0])


def test_one_stage_is_its_layers_times_micro_batches():
    assert time(row()) == pytest.approx(12.0)
    assert time(row(micro_batches=5)) == pytest.approx(60.0)


@pytest.mark.parametrize(("stages", "m"), [(2, 1), (4, 8), (4, 2)])
def test_equal_stages_give_the_closed_form_of_1f1b(stages, m):
    """(m + p - 1)(F + B)."""
    assert time(pipeline(stages, micro_batches=m)) == pytest.approx((m + stages - 1) * 3.0)


def test_interleaving_shows_only_a_share_of_the_filling():
    """m (F + B) (1 + (p - 1) / (v m)): formulas.md 3.2."""
    assert time(pipeline(4, micro_batches=8, fill=0.5)) == pytest.approx(8 * 3 * (1 + 3 / (2 * 8)))


def test_the_slowest_stage_sets_the_pace():
    """(m - 1) max + sum, the head on the last stage."""
    f = pipeline(3, micro_batches=6, head=block(gemm_s=(1, 0, 1)))
    assert time(f) == pytest.approx(5 * 5.0 + (3 + 3 + 5))
    assert float(step_seconds(f, FREE).bubble_s[0]) == pytest.approx(6.0)


def test_host_and_gpu_do_not_add_up():
    """The larger of both counts: launches of 2 s a layer hide under 3 s of GPU, 4 s do not."""
    counted = row(layer=block(gemm_s=(1, 0, 2), kernels=(5, 0, 5)))
    assert time(counted, dataclasses.replace(FREE, launch_s=0.2)) == pytest.approx(12.0, rel=2e-3)
    assert time(counted, dataclasses.replace(FREE, launch_s=0.4)) == pytest.approx(16.0, rel=5e-3)


def test_gathers_of_shards_hide_beside_the_computation():
    short, long = (row(layer=block(gemm_s=(1, 0, 2), gather_s=(size, 0, size), gather_calls=(1, 0, 1))) for size in (0.5, 4.0))
    assert time(short) == pytest.approx(12.0, rel=1e-3)
    assert time(long) == pytest.approx(32.0, rel=1e-3)


def test_tensor_parallel_messages_are_exposed():
    f = row(layer=block(gemm_s=(1, 0, 2), tp_s=(0.25, 0, 0.25), tp_calls=(2, 0, 2)))
    assert time(f) == pytest.approx(14.0)
    assert float(step_seconds(f, FREE).exposed_comm_s[0]) == pytest.approx(2.0)
    assert time(f, dataclasses.replace(FREE, tp_arrival_s=0.1)) == pytest.approx(15.6)


def test_gradients_are_reduced_behind_the_backward_or_beside_it():
    assert time(row(reduction_s=3.0)) == pytest.approx(15.0)
    assert time(row(reduction_s=3.0, reduction_hidden=1)) == pytest.approx(12.3)  # the last bucket has nothing to hide under
    assert time(row(reduction_s=20.0, reduction_hidden=1)) == pytest.approx(24.0)


def test_recomputation_is_forward_work_again():
    assert time(row(layer=block(gemm_s=(1, 1, 2)))) == pytest.approx(16.0)


def test_corrections_scale_layers_and_ends():
    f = row(head=block(gemm_s=(1, 0, 1)))
    assert time(f, gpu_log=np.log([1.5])) == pytest.approx(20.0)
    assert time(f, ends_log=np.log([1.5])) == pytest.approx(15.0)


def some_row():
    """Everything that a knob speaks of is there."""
    rng = np.random.default_rng(0)
    of = lambda: {field.name: rng.uniform(0.5, 1.5, 3) * (1e-3 if field.name.endswith("_s") else 5) for field in dataclasses.fields(Block)}  # noqa: E731
    sizes = dict(
        micro_batches=6, fill=1, sends_s=1e-3, tp_nodes=1, reduction_s=2e-2, reduction_calls=2, optimizer_s=1e-3, optimizer_kernels=3, tp=2,
        crossing=1, stalls=1, gathered_layers=2,
    )  # fmt: skip
    layers = {"gather_s": np.full(3, 1e-9)}
    return pipeline(4, layer=block(**of() | layers), embedding=block(**of() | layers), head=block(**of() | layers), **sizes)


@pytest.mark.parametrize("tp_nodes", [1, 2])
def test_slopes_over_knobs_are_those_of_differences(tp_nodes):
    f = dataclasses.replace(some_row(), tp_nodes=np.array([float(tp_nodes)]))
    theta = theta_of(medians())
    with jax.enable_x64(True):
        slope = np.asarray(jax.grad(lambda t: jnp.log(step_seconds(f, knobs_of(t)).step_s[0]))(jnp.asarray(theta)))
    for at in range(len(theta)):
        moved = 1e-6 * np.eye(len(theta))[at]
        difference = (np.log(time(f, knobs_of(theta + moved))) - np.log(time(f, knobs_of(theta - moved)))) / 2e-6
        assert slope[at] == pytest.approx(difference, abs=1e-6), NAMES[at]
    assert (slope >= -1e-9).all()  # nothing gets faster by a dearer part


def test_rows_are_independent():
    one, two = some_row(), row()
    both = jax.tree.map(lambda a, b: np.concatenate([a, b], -1), one, two)
    assert step_seconds(both, medians()).step_s == pytest.approx([time(one, medians()), time(two, medians())])


def test_every_belief_says_where_it_comes_from():
    assert set(BELIEFS) == set(NAMES)
    for name, belief in BELIEFS.items():
        assert belief.median > 0, name
        assert 0 < belief.width <= 2, name
        assert len(belief.source) > 5, name
