"""How parts make a step: cases by hand, limits, and slopes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.schedule_graphs import graph_seconds

from hybridperf.engine.closed import step_seconds, whole_seconds
from hybridperf.engine.step_features import Alike, BlockPrices, StepFeatures
from hybridperf.model.adapted_steps import beliefs
from hybridperf.model.step_effects import (
    BELIEFS,
    NAMES,
    StepEffects,
    effects_of,
    slowest_of,
)
from hybridperf.workloads.schedules import schedule
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD
from hybridperf.workloads.schedules.pace import pace
from hybridperf.workloads.transformer.columns import FOLDED, SCHEDULES

FREE = StepEffects(
    **{name: 1e-12 if name.endswith(("_s", "_shown", "_gpus")) else 1.0 for name in NAMES}
)  # nothing is launched, awaited or exposed


def passes(amount):
    """Both passes [P, N] of (forward, recomputed, backward) [3, N]: the backward one recomputes."""
    forward, recomputed, backward = np.array(amount, float).reshape(3, -1)
    return np.stack([forward, recomputed + backward])


def block(**amounts):
    """A block of one row: [P, 1]; amounts are (forward, recomputed, backward)."""
    zero = {field.name: np.zeros((2, 1)) for field in dataclasses.fields(BlockPrices)}
    return BlockPrices(**zero | {name: passes(amount) for name, amount in amounts.items()})


def row(**changes):
    """Four layers of 1 s forward and 2 s backward, nothing else."""
    fields = {field.name: np.zeros(1) for field in dataclasses.fields(StepFeatures)}
    fields |= {"pace": pace, "alike": None}
    fields |= {"layer": block(gemm_s=(1, 0, 2)), "embedding": block(), "head": block()}
    fields |= {
        name: np.array([value], float)
        for name, value in dict(layers_first=4, layers_last=4, layers_most=4, layers=4).items()
    }
    fields |= {name: np.ones(1) for name in ("stages", "micro_batches", "chunks", "tp_nodes", "tp")}
    return StepFeatures(
        **fields
        | {k: v if isinstance(v, BlockPrices) else np.array([v], float) for k, v in changes.items()}
    )


def pipeline(stages, **changes):
    """The same, a layer per stage."""
    layers = {"layers_first": 1, "layers_last": 1, "layers_most": 1, "layers": stages}
    return row(stages=stages, **layers | changes)


def of_schedule(name):
    return {"schedule": SCHEDULES.index(name), "folded": float(SCHEDULES.index(name) in FOLDED)}


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
    """m (F + B) (1 + (p - 1) / (v m))."""
    assert time(pipeline(4, micro_batches=8, chunks=2)) == pytest.approx(8 * 3 * (1 + 3 / (2 * 8)))


@pytest.mark.parametrize(
    ("stages", "chunks", "batches"), [(2, 4, 2), (2, 2, 8), (4, 2, 8), (4, 3, 16), (8, 2, 16)]
)
@pytest.mark.parametrize("embedding_s", [0.0, 0.8])
@pytest.mark.parametrize("head_s", [0.8, 4.0])
def test_embedding_and_head_weigh_on_one_chunk_each(stages, chunks, batches, embedding_s, head_s):
    """An interleaved pipeline's replay, with an embedding no longer than the head: both begin and
    end a chunk of one stage, forward and backward.
    """
    order = schedule("interleaved", stages, batches, chunks)
    ends_s = {0: embedding_s, order.stages - 1: head_s}
    turns = {FORWARD: 1.0, BACKWARD: 2.0}
    replayed = order.replay(lambda task: turns[task.kind] * (1 + ends_s.get(task.stage, 0.0)))
    row = pipeline(
        stages, micro_batches=batches, chunks=chunks, layers_first=chunks, layers_last=chunks,
        layers_most=chunks, layers=stages * chunks,
        embedding=block(gemm_s=(embedding_s, 0, 2 * embedding_s)),
        head=block(gemm_s=(head_s, 0, 2 * head_s)),
    )  # fmt: skip
    assert time(row) == pytest.approx(max(done.end_s for done in replayed.values()), rel=1e-9)


def test_the_slowest_stage_sets_the_pace():
    """(m - 1) max + sum, the head on the last stage."""
    f = pipeline(3, micro_batches=6, head=block(gemm_s=(1, 0, 1)))
    assert time(f) == pytest.approx(5 * 5.0 + (3 + 3 + 5))
    assert float(step_seconds(f, FREE).bubble_s[0]) == pytest.approx(6.0)


def larger(host_s, gpu_s):
    """Within 3 % the larger, as a p-norm of 24."""
    return (host_s**24 + gpu_s**24) ** (1 / 24)


def test_host_and_gpu_do_not_add_up():
    """The larger of both counts, forward and backward apart: launches of 1 s a pass hide under 1 s
    and 2 s of GPU but for the first of four layers, those of 2 s do not hide forward. A block
    without kernels waits for a launch, too.
    """
    counted = row(layer=block(gemm_s=(1, 0, 2), kernels=(5, 0, 5)))
    ends = 4  # embedding and head, both ways
    short, long = (dataclasses.replace(FREE, launch_s=launch_s) for launch_s in (0.2, 0.4))
    forward_s, backward_s = larger(4.0, 4 + 0.2), larger(4.0, 8 + 0.2)
    assert time(counted, short) == pytest.approx(forward_s + backward_s + (ends + 1) * 0.2)
    forward_s, backward_s = larger(8.0, 4 + 0.4), larger(8.0, 8 + 0.4)
    assert time(counted, long) == pytest.approx(forward_s + backward_s + (ends + 1) * 0.4)


def test_gathers_of_shards_hide_beside_the_computation():
    short, long = (
        row(
            layer=block(gemm_s=(1, 0, 2), gather_s=(size, 0, size), gather_calls=(1, 0, 1)),
            gathers_hidden=1,
        )
        for size in (0.5, 4.0)
    )
    # each pass begins with a gather that nothing hides, and ends with a layer beside none
    assert time(short) == pytest.approx(12.0 + 2 * 0.5, rel=1e-3)
    assert time(long) == pytest.approx((4 * 4.0 + 1.0) + (4 * 4.0 + 2.0), rel=1e-3)


def test_gradients_of_shards_are_scattered_beside_the_layer_behind():
    """Forward as without; backward, each layer but the first has 3 s of scattering beside its 2 s,
    and the embedding, of none, those of the last.
    """
    f = row(layer=block(gemm_s=(1, 0, 2), scatter_s=(0, 0, 3.0)), gathers_hidden=1)
    assert time(f) == pytest.approx(4.0 + 2.0 + 3 * 3.0 + 3.0, rel=1e-3)


def test_tensor_parallel_messages_are_exposed():
    f = row(layer=block(gemm_s=(1, 0, 2), tp_s=(0.25, 0, 0.25), tp_calls=(2, 0, 2)))
    assert time(f) == pytest.approx(14.0)
    assert float(step_seconds(f, FREE).exposed_comm_s[0]) == pytest.approx(2.0)
    assert time(f, dataclasses.replace(FREE, tp_arrival_s=0.1)) == pytest.approx(15.6)


def test_gradients_are_reduced_behind_the_backward_or_beside_it():
    assert time(row(reduction_s=3.0)) == pytest.approx(15.0)
    # buckets are full behind each of four layers of 2 s: three of them hide, the last one does not
    short, long = (
        row(
            reduction_s=4 * size, reduction_tail_s=size, reduction_last_s=size, hiding_layers=3,
            reduction_hidden=1,
        )
        for size in (0.3, 5.0)
    )  # fmt: skip
    assert time(short) == pytest.approx(12.3)
    assert time(long) == pytest.approx(12.0 + 4 * 5.0 - 3 * 2.0)


def test_what_is_reduced_beside_kernels_slows_them_down():
    sizes = {"reduction_tail_s": 0.3, "reduction_last_s": 0.3, "hiding_layers": 3}
    f = row(reduction_s=1.2, reduction_hidden=1, **sizes)
    # of 1.2 s the last bucket's 0.3 have nothing beside them
    slowed = dataclasses.replace(FREE, overlap_shown=0.2)
    assert time(f, slowed) == pytest.approx(12.3 + 0.2 * 0.9)


def test_all_wait_for_the_slowest_of_as_many_gpus():
    """Products alone take longer; the slowest of eight is 1.42 deviations slow on average, that of
    a thousand 3.24 (tables of normal order statistics).
    """
    assert [slowest_of(gpus) for gpus in (1, 8, 1000)] == pytest.approx(
        [0.0, 1.424, 3.241], rel=0.01
    )
    alike = row(optimizer_s=2.0)
    unlike = dataclasses.replace(FREE, unlike_gpus=0.02)
    f = dataclasses.replace(alike, slowest=np.array([slowest_of(1000)]))
    assert [time(f), time(alike, unlike)] == pytest.approx([14.0, 14.0])
    assert time(f, unlike) == pytest.approx(12 * (1 + 0.02 * 3.241) + 2.0, rel=1e-3)


def test_gradients_summed_layer_by_layer_wait_for_each_other():
    """Four layers' sums of 0.3 s and as many waits of 0.5 s each, beside all backward passes but
    the first one's: hidden, but for the last layer's.
    """
    sizes = {"reduction_tail_s": 0.3, "reduction_last_s": 0.3, "hiding_layers": 3}
    f = row(reduction_s=1.2, reduction_hidden=1, gathered_layers=8, **sizes)
    waits = dataclasses.replace(FREE, layer_gather_s=0.25)
    assert time(f, waits) == pytest.approx(12.3 + 8 / 4 * 0.25)
    long = dataclasses.replace(FREE, layer_gather_s=2.0)
    assert time(f, long) == pytest.approx(12.0 + 1.2 + 8 * 2.0 - 3 * 2.0)
    assert time(row(gathered_layers=8), waits) == pytest.approx(14.0)


def test_chunks_of_an_interleaved_pipeline_are_exchanged_while_others_run():
    """Two stages of two chunks of two layers, of 1 s forward and 2 s backward each: between a
    chunk's last backward pass and the next chunk's lie the other stage's and its own.
    """
    sizes = {"reduction_tail_s": 1.0, "reduction_last_s": 1.0, "hiding_layers": 3}
    reduced = {"reduction_s": 4.0, "reduction_hidden": 1, **sizes}
    gathered = {"updated_s": 4.0, "updates_hidden": 1}

    def exposed_s(**changes):
        plain, one = (
            row(stages=2, layers=8, micro_batches=2, chunks=2, **some) for some in ({}, changes)
        )
        return time(one) - time(plain)

    assert exposed_s(**reduced) == pytest.approx(1.0)
    assert exposed_s(**gathered) == pytest.approx(1.0)
    # 40 s of them: 4 layers of 2 s and of 1 s lie between the chunks' passes, one within each
    slow = {name: 10 * seconds for name, seconds in sizes.items() if name != "hiding_layers"}
    assert exposed_s(**reduced | slow | {"reduction_s": 40.0}) == pytest.approx(40 - 8 - 2)
    assert exposed_s(**gathered | {"updated_s": 40.0}) == pytest.approx(40 - 4 - 1)


def test_recomputation_is_forward_work_again():
    assert time(row(layer=block(gemm_s=(1, 1, 2)))) == pytest.approx(16.0)


# --- parts ----------------------------------------------------------------------------------------


def with_weight_share(f, share):
    """The same with so much of a layer's passes for gradients of weights."""
    names = ("gemm_s", "experts_s", "attention_s", "memory_s")
    ops_s = sum(getattr(f.layer, name) for name in names)
    return dataclasses.replace(f, layer=dataclasses.replace(f.layer, weights_s=share * ops_s))


def parts(features, knobs=FREE, **corrections):
    return {
        name: float(values[0])
        for name, values in step_seconds(features, knobs, **corrections)._asdict().items()
    }


def mixed_rows(count=2000, seed=1):
    """Rows in which everything takes time, and each of GPU, host and gathers is now and then the
    longest.
    """
    rng = np.random.default_rng(seed)

    def some():
        amounts = {
            field.name: passes(10 ** rng.uniform(-5, -2.5, (3, count)))
            for field in dataclasses.fields(BlockPrices)
        }
        counts = ("kernels", "tp_calls", "gather_calls", "exchange_calls")
        return BlockPrices(
            **amounts | {name: passes(rng.integers(0, 40, (3, count))) for name in counts}
        )

    columns = {
        field.name: rng.uniform(0.0, 0.05, count) for field in dataclasses.fields(StepFeatures)
    }
    stages = rng.choice([1.0, 2.0, 4.0, 8.0], count)
    held = rng.integers(1, 6, (3, count)).astype(float)
    held[1:, stages == 1] = held[0, stages == 1]
    code = rng.choice([0, 3, 4], count) * (stages > 1)
    columns |= {
        "layer": some(),
        "embedding": some(),
        "head": some(),
        "stages": stages,
        "layers_first": held[0],
        "layers_last": held[1],
        "layers_most": held[2],
        "layers": np.where(
            stages == 1, held[0], held[0] + held[1] + np.maximum(stages - 2, 0) * held[2]
        ),
        "micro_batches": stages * rng.choice([2.0, 4.0], count),
        "chunks": np.ones(count),
        "sends_hidden": rng.choice([0.0, 1.0], count),
        "reduction_hidden": rng.choice([0.0, 1.0], count),
        "schedule": code,
        "folded": np.zeros(count),
        "tp_nodes": rng.choice([1.0, 2.0], count),
        "crossing": np.zeros(count),
    }
    f = with_weight_share(
        StepFeatures(**columns | {"pace": pace, "alike": None}), rng.uniform(0.3, 0.6, count)
    )
    return f, rng.normal(0, 0.3, (3, count))


def test_the_parts_of_a_step_add_up_to_it():
    f, logs = mixed_rows()
    found = step_seconds(f, StepEffects(), *logs)
    four = [found.compute_s, found.exposed_comm_s, found.bubble_s, found.host_s]
    assert np.sum(four, 0) == pytest.approx(found.step_s, rel=1e-12)
    assert min(one.min() for one in four) >= 0
    assert (
        found.host_s > 0.01 * found.step_s
    ).mean() > 0.2  # not what is left over by clipping the others
    assert (found.exposed_comm_s > 0.01 * found.step_s).all()


def test_jax_finds_the_same_parts_and_slopes_that_add_up():
    f, logs = mixed_rows(50)
    of = lambda theta: step_seconds(f, effects_of(theta), *logs)  # noqa: E731
    theta = beliefs()[0]
    with jax.enable_x64(True):
        traced, slopes = jax.jit(of)(jnp.asarray(theta)), jax.jacobian(of)(jnp.asarray(theta))
    for name, values, others in zip(traced._fields, of(theta), traced, strict=True):
        assert np.asarray(others) == pytest.approx(values, rel=1e-9, abs=1e-12), name
    whole, four = np.asarray(slopes.step_s), np.sum(np.asarray(slopes[1:5]), 0)
    assert np.isfinite(whole).all()
    assert four == pytest.approx(whole, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("end", "first"), [("head", False), ("embedding", True)])
def test_parts_are_those_of_the_slowest_stage(end, first):
    """Three stages of 3 s and an end of 2 s with 0.5 s of messages: its stage computes 5 s of each
    micro-batch.
    """
    f = pipeline(
        3,
        micro_batches=6,
        **{end: block(gemm_s=(1, 0, 1), tp_s=(0.25, 0, 0.25), tp_calls=(1, 0, 1))},
    )
    found, more = parts(f), (1.25, 0, 0) if first else (0, 0, 1.25)
    expected = graph_seconds(schedule("1f1b", 3, 6), 1.0 + np.array(more), 2.0 + np.array(more))
    assert found["step_s"] == pytest.approx(expected, rel=1e-5)
    assert found["compute_s"] == pytest.approx(6 * 5.0)
    assert found["exposed_comm_s"] == pytest.approx(6 * 0.5)
    assert found["bubble_s"] == pytest.approx(expected - 6 * 5.5, rel=1e-4)
    assert found["host_s"] == pytest.approx(0.0, abs=1e-9)


def test_a_full_stage_in_the_middle_is_the_slowest():
    found = parts(
        row(stages=3, layers_first=1, layers_last=1, layers_most=3, layers=5, micro_batches=4)
    )
    sizes = np.array([1.0, 3.0, 1.0])
    expected = graph_seconds(schedule("1f1b", 3, 4), sizes, 2 * sizes)
    assert found["step_s"] == pytest.approx(expected, rel=1e-5)
    assert found["compute_s"] == pytest.approx(4 * 9.0)


def test_gathers_that_outlast_the_computation_are_exposed():
    """8 s beside 3 s of a layer: the GPU waits for messages, not for its host, whose 6 s hide
    beside them.
    """
    layer = dict(gemm_s=(1, 0, 2), gather_s=(4.0, 0, 4.0), gather_calls=(1, 0, 1))
    found = parts(row(layer=block(**layer), gathers_hidden=1))
    assert found["exposed_comm_s"] == pytest.approx(35.0 - 12.0, rel=1e-3)
    assert found["host_s"] == pytest.approx(0.0, abs=1e-6)
    busy = parts(
        row(layer=block(**layer, kernels=(60, 0, 60)), gathers_hidden=1),
        dataclasses.replace(FREE, launch_s=6 / 120),
    )
    assert busy["exposed_comm_s"] == pytest.approx(35.0 - 12.0, rel=1e-3)
    assert busy["host_s"] < 0.02 * busy["step_s"]


def test_optimizer_and_fixed_seconds_have_their_parts():
    """The update computes, its launches and what is fixed are the host's, weights that come back
    are messages.
    """
    f = row(optimizer_s=2.0, optimizer_kernels=10, gathered_layers=3)
    knobs = dataclasses.replace(FREE, launch_s=0.1, layer_gather_s=0.5, fixed_s=0.25)
    found, without = parts(f, knobs), parts(row(), dataclasses.replace(FREE, launch_s=0.1))
    assert found["compute_s"] - without["compute_s"] == pytest.approx(2.0)
    assert found["exposed_comm_s"] - without["exposed_comm_s"] == pytest.approx(1.5)
    # its ten launches hide beside 2 s of work, forty do not
    assert found["host_s"] - without["host_s"] == pytest.approx(0.25)
    f = dataclasses.replace(f, optimizer_kernels=np.array([40.0]))
    assert parts(f, knobs)["step_s"] - found["step_s"] == pytest.approx(4.0 - 2.1)


# --- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "p", "m"),
    [
        ("chimera", 4, 4),
        ("chimera", 8, 6),
        ("chimera", 4, 16),
        ("zero_bubble", 4, 8),
        ("zero_bubble", 8, 3),
        ("zb_v", 4, 9),
        ("dualpipe", 6, 14),
        ("dualpipe_v", 4, 9),
    ],
)
@pytest.mark.parametrize(
    ("there", "back", "share"), [(1.0, 2.0, 0.5), (2.0, 1.5, 0.4), (1.0, 1.0, 0.9)]
)
def test_uniform_stages_take_what_the_schedule_s_graph_takes(name, p, m, there, back, share):
    order = schedule(name, p, m)
    v = order.chunks
    f = pipeline(
        p, micro_batches=m, layer=block(gemm_s=(there, 0, back)), **of_schedule(name),
        chunks=v,
    )  # fmt: skip
    f = with_weight_share(f, share)
    assert time(f) == pytest.approx(
        graph_seconds(order, there / v, back / v, weight_s=share * back / v), rel=1e-5
    )
    found = parts(f)
    assert found["compute_s"] == pytest.approx(m * (there + back))
    assert found["bubble_s"] == pytest.approx(found["step_s"] - found["compute_s"])


def test_a_chimera_worker_has_half_of_both_ends():
    """A head of 2 s on one stage of four: the outer workers have it for half
    of the micro-batches.
    """
    f = pipeline(
        4, micro_batches=4, head=block(gemm_s=(1, 0, 1)), schedule=SCHEDULES.index("chimera")
    )
    assert parts(f)["compute_s"] == pytest.approx(4 * (3.0 + 1.0))


@pytest.mark.parametrize("ends", [{"head": 1.0}, {"head": 2.0}, {"head": 2.0, "embedding": 0.5}])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4), (4, 16), (8, 8), (8, 32)])
@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("1f1b", 1e-5), ("zero_bubble", 1e-5), ("chimera", 0.06), ("zb_v", 0.05),
        ("dualpipe", 0.06), ("dualpipe_v", 0.05),
    ],
)  # fmt: skip
def test_a_heavy_last_stage_takes_about_what_the_schedule_s_graph_takes(name, p, m, ends, within):
    m = 2 * p if name in ("dualpipe", "dualpipe_v", "zb_v") and m < 2 * p else m
    order = schedule(name, p, m)
    v = order.chunks
    forward, backward = np.full(v * p, 1.0 / v), np.full(v * p, 2.0 / v)
    for end, at in (("embedding", 0), ("head", -1)):
        forward[at] += ends.get(end, 0.0) / 3
        backward[at] += ends.get(end, 0.0) * 2 / 3
    blocks = {end: block(gemm_s=(size / 3, 0, size * 2 / 3)) for end, size in ends.items()}
    f = pipeline(p, micro_batches=m, chunks=v, **blocks, **of_schedule(name))
    f = with_weight_share(f, 0.5)
    assert time(f) == pytest.approx(
        graph_seconds(order, forward, backward, weight_s=backward / 2), rel=within
    )


@pytest.mark.parametrize("name", ["chimera", "zero_bubble"])
def test_a_host_that_is_slower_one_way_changes_the_bubble(name):
    """A layer whose host takes 3 s there and 3 s back is as long both ways,
    whatever its GPU does.
    """
    layer = block(gemm_s=(0.5, 0, 1.0), kernels=(30, 0, 30))
    f = pipeline(4, micro_batches=4, layer=layer, **of_schedule(name))
    f = with_weight_share(f, 0.5)
    expected = graph_seconds(schedule(name, 4, 4), 3.0, 3.0, weight_s=1.5)
    # 0.1 s each for the embedding's and the head's first launch, both ways, and for the update's
    found = time(f, dataclasses.replace(FREE, launch_s=0.1))
    assert expected < found < expected + 4 * 4 * 0.1 + 0.2


def test_corrections_scale_layers_and_ends():
    f = row(head=block(gemm_s=(1, 0, 1)))
    assert time(f, gpu_log=np.log([1.5])) == pytest.approx(20.0)
    assert time(f, outer_log=np.log([1.5])) == pytest.approx(15.0)


def some_row():
    """A row with everything that a step effect multiplies."""
    rng = np.random.default_rng(0)

    def of():
        names = [field.name for field in dataclasses.fields(BlockPrices)]
        scales = {name: 1e-3 if name.endswith("_s") else 5 for name in names}
        made = {name: rng.uniform(0.5, 1.5, 3) * scales[name] for name in names}
        # messages travel beside a part of attention, whose gradient makes none of weights
        return made | {"hiding_s": made["attention_s"] / 4}

    sizes = dict(
        micro_batches=6, sends_s=1e-3, tp_nodes=1, reduction_s=2e-2, tied_s=1e-3,
        updated_s=1e-3, optimizer_s=1e-3, optimizer_kernels=3, tp=2, crossing=1, stalls=1,
        gathered_layers=2,
    )  # fmt: skip
    layers = {"gather_s": np.full(3, 1e-9), "scatter_s": np.full(3, 1e-9)}
    return pipeline(
        4,
        layer=block(**of() | layers),
        embedding=block(**of() | layers),
        head=block(**of() | layers),
        **sizes,
    )


@pytest.mark.parametrize(
    ("tp_nodes", "name"),
    [(1, "1f1b"), (2, "1f1b"), (1, "chimera"), (1, "zero_bubble"), (1, "zb_v")],
)
def test_slopes_over_knobs_are_those_of_differences(tp_nodes, name):
    f = dataclasses.replace(
        some_row(),
        tp_nodes=np.array([float(tp_nodes)]),
        **{key: np.array([value]) for key, value in of_schedule(name).items()},
    )
    f = with_weight_share(dataclasses.replace(f, micro_batches=np.array([8.0])), 0.45)
    theta = beliefs()[0]
    with jax.enable_x64(True):
        slope = np.asarray(
            jax.grad(lambda t: jnp.log(step_seconds(f, effects_of(t)).step_s[0]))(
                jnp.asarray(theta)
            )
        )
    for at in range(len(theta)):
        moved = 1e-6 * np.eye(len(theta))[at]
        difference = (
            np.log(time(f, effects_of(theta + moved))) - np.log(time(f, effects_of(theta - moved)))
        ) / 2e-6
        assert slope[at] == pytest.approx(difference, abs=1e-6), NAMES[at]
    assert (slope >= -1e-9).all()  # nothing gets faster by a dearer part


def test_rows_are_independent():
    one, two = some_row(), row()
    both = jax.tree.map(lambda a, b: np.concatenate([a, b], -1), one, two)
    assert step_seconds(both, StepEffects()).step_s == pytest.approx(
        [time(one, StepEffects()), time(two, StepEffects())]
    )


def test_every_belief_says_where_it_comes_from():
    assert set(BELIEFS) == set(NAMES)
    for name, belief in BELIEFS.items():
        assert belief.median > 0, name
        assert 0 < belief.width <= 2, name
        assert len(belief.source) > 5, name


def test_rows_with_the_same_blocks_take_what_each_takes_by_itself():
    """Also some of them, and put together again; seconds alone are those of all parts."""
    f, logs = mixed_rows(40)
    places = np.arange(120) % 40
    logs, every = logs[:, places], f.picked(places)
    every = dataclasses.replace(every, micro_batches=every.micro_batches * (1 + np.arange(120) % 7))
    blocks = {"layer": f.layer, "embedding": f.embedding, "head": f.head}
    shared = dataclasses.replace(every, **blocks, alike=Alike.of_keys(places))
    parts = [(shared.picked(some), some) for some in (places > 30, places <= 30)]
    again = StepFeatures.joined([(one, np.flatnonzero(some)) for one, some in parts], 120)
    expected = step_seconds(every, StepEffects(), *logs)
    for one in (shared, again):
        found = step_seconds(one, StepEffects(), *logs)
        for name, values in expected._asdict().items():
            np.testing.assert_allclose(getattr(found, name), values, rtol=1e-12, err_msg=name)
        np.testing.assert_array_equal(whole_seconds(one, StepEffects(), *logs), found.step_s)
