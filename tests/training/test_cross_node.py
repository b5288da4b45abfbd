"""What a pipeline over several nodes adds to a step, for the rows of the one framework that shows
it.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.engine.closed import step_seconds
from hybridperf.model.step_effects import StepEffects, larger_s
from hybridperf.model.variance import beyond_by_stalls
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.cross_node import (
    as_stalled,
    chanced_s,
    stalled,
    stalled_s,
    with_stalled,
)
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer.passes import launches
from hybridperf.workloads.transformer.update import optimizer_passes, summed
from hybridperf.workloads.transformer.weights import stage_weights

ROW = {
    "source": "ultrascale_playbook", "model": "made", "family": "llama", "hidden": 2048,
    "heads": 32, "layers": 16, "ffn": 8192, "vocab": 32768, "gpu": "H100-SXM5-80GB", "n_gpus": 16,
    "gpus_per_node": 8, "seq": 1024, "micro_batch": 1, "grad_accum": 16, "tp": 4, "pp": 2, "dp": 2,
    "sharding": "zero1", "recompute": "none", "precision": "bf16",
}  # fmt: skip


@pytest.fixture(scope="module")
def cache():
    return PriceCache()


def batch(cache, *changes):
    return cache.understand(pd.DataFrame([{**ROW, **one} for one in changes]))


def test_a_crossing_pipeline_waits_in_proportion_to_tensor_parallelism(cache) -> None:
    found = batch(
        cache,
        {"tp": 2, "dp": 4},
        {"tp": 4, "dp": 2},
        {"tp": 8, "dp": 1},
        {"tp": 4, "pp": 1, "dp": 4},
    )
    knobs = dataclasses.replace(
        StepEffects(), crossing_tp_s=1.0, stall_s=1e-12
    )  # so long that nothing else counts
    layer_s = step_seconds(found.features, knobs).layer_s
    np.testing.assert_allclose(layer_s[:3], [2.0, 4.0, 8.0], rtol=0.02)
    assert layer_s[3] < 0.1


def test_a_pipeline_inside_a_node_does_not_wait(cache) -> None:
    found = batch(cache, {"n_gpus": 8, "dp": 1}, {"source": "torchtitan"})
    assert found.features.crossing.tolist() == [0.0, 0.0]
    assert batch(cache, {}).features.crossing.tolist() == [1.0]


def test_wide_tensor_parallelism_surely_stalls_and_takes_so_much_longer(cache) -> None:
    rows = batch(
        cache, {"tp": 32, "n_gpus": 64, "dp": 1}, {"tp": 32, "n_gpus": 128, "pp": 4, "dp": 1}, {}
    )
    assert rows.features.stalls.tolist() == [2.0, 4.0, 0.0]
    assert rows.features.stall_chance[:2].tolist() == [0.0, 0.0]
    slow = step_seconds(rows.features, dataclasses.replace(StepEffects(), stall_s=0.5)).step_s
    fast = step_seconds(rows.features, dataclasses.replace(StepEffects(), stall_s=0.25)).step_s
    # m + p - 1 slots of 2 or 4 messages
    np.testing.assert_allclose((slow - fast)[:2], [0.25 * 2 * 17, 0.25 * 4 * 19], rtol=1e-6)
    assert slow[2] == fast[2]


def test_stalls_by_chance_grow_with_nodes_and_need_replicas(cache) -> None:
    rows = batch(cache, {}, {"n_gpus": 256, "dp": 32}, {"tp": 8, "dp": 1}, {"pp": 1, "dp": 4})
    chance = rows.features.stall_chance
    assert 0 < chance[0] < chance[1] <= 0.5
    assert chance[2:].tolist() == [0.0, 0.0]
    extra = stalled_s(rows.features, StepEffects(), rows.rows)
    np.testing.assert_allclose(extra[0], 0.25 * 2 * (16 + 0.5))


def test_an_interval_ends_where_one_step_in_twenty_does_in_the_branch_that_stalls(cache) -> None:
    """Drawn by hand: a stalled step or none, its log as unsure as another's."""
    rows = batch(cache, {"n_gpus": 256, "dp": 32}, {"pp": 1, "dp": 4})
    f, step_s, deviation = rows.features, np.array([0.5, 0.5]), np.array([0.1, 0.1])
    stalled = chanced_s(f, StepEffects())
    found = beyond_by_stalls(f.stall_chance, stalled, step_s, deviation)
    chance, extra = f.stall_chance[0], stalled_s(f, StepEffects(), rows.rows)[0]
    random = np.random.default_rng(0)
    stalls = random.random(100_000) < chance
    logs = np.log(step_s[0] + extra * stalls) + deviation[0] * random.standard_normal(100_000)
    assert found[0] == pytest.approx(np.quantile(logs, 0.95) - np.log(step_s[0]), abs=0.01)
    assert found[1] == 0.0


def test_rows_nearer_to_a_stalled_step_than_to_the_expected_one_are_marked(cache) -> None:
    rows = batch(
        cache, {}, {}, {"pp": 4, "dp": 1}, {"pp": 1, "dp": 4}, {"tp": 32, "n_gpus": 64, "dp": 1}
    )
    knobs = StepEffects()
    expected_s = np.asarray(step_seconds(rows.features, knobs).step_s)
    stall_s = stalled_s(rows.features, knobs, rows.rows)
    measured_s = (
        expected_s
        + np.array([0.4, 0.6, 0.9, 0.0, 0.0]) * stall_s
        + np.array([0.0, 0.0, 0.0, 100.0, 0.0])
    )
    marked = with_stalled(rows.features, knobs, expected_s, measured_s)
    assert marked.stalls.tolist() == [
        0.0,
        2.0,
        4.0,
        0.0,
        2.0,
    ]  # inside a node never, of wide tensor parallelism always


def test_a_run_stalled_that_reaches_a_quarter_of_the_rate_on_fewer_devices(cache) -> None:
    # 16 slots of 0.1 s with a bubble of one; on twice the devices half of the micro-batches each
    wide = {"n_gpus": 32, "dp": 4}
    rows = batch(cache, {}, wide, wide, wide, {"pp": 1, "dp": 4}, {**wide, "pp": 1, "dp": 8})
    slots_s = np.array([0.1, 0.13, 0.46, 0.6, 0.1, 2.0])
    marks = stalled(rows.configs, slots_s * np.array([17, 17, 17, 17, 16, 16]))
    # the third needs no half second a micro-batch; without a pipeline none stalls
    assert marks.tolist() == [False, False, False, True, False, False]
    assert as_stalled(rows.features, marks).stalls.tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, 0.0]


def test_marking_knows_no_model_and_no_unit_of_rows_alone(cache) -> None:
    rows = batch(cache, {}, {"n_gpus": 32, "dp": 4, "hidden": 4096})
    # another model; and alone
    assert not stalled(rows.configs, np.array([1.0, 1e3])).any()
    assert not stalled(rows.configs[:1], np.array([1e3])).any()


def test_an_interval_holds_both_modes_and_the_note_says_which_is_predicted(cache) -> None:
    asked = [{**ROW, "n_gpus": 256, "dp": 32}, {**ROW, "tp": 32, "n_gpus": 64, "dp": 1}]
    found = predict_steps(pd.DataFrame(asked), cache=cache).frame
    rows = batch(cache, *asked)
    both_s = found["predicted_s"] + [stalled_s(rows.features, StepEffects(), rows.rows)[0], 0.0]
    assert (found["low_s"] < found["predicted_s"]).all()
    assert (both_s <= found["high_s"]).all()
    assert "predicted as a run that does not stall; one run in" in found["note"][0]
    assert "predicted as a run that stalls" in found["note"][1]


def test_updated_weights_or_whole_gradients_go_around_a_ring_of_all_data_ranks(cache) -> None:
    rows = batch(
        cache,
        {"tp": 1, "dp": 8},
        {"tp": 1, "dp": 64, "n_gpus": 128},
        {"tp": 8, "dp": 1},
        {"dp": 2, "sharding": "zero0"},
    )
    np.testing.assert_array_equal(
        rows.features.gathered_layers, rows.features.layers_first * [8, 64, 0, 2]
    )


def test_gradients_are_reduced_beside_the_backward_pass_where_no_optimizer_is_sharded(
    cache,
) -> None:
    rows = batch(
        cache,
        {"sharding": "zero0"},
        {"sharding": "zero1"},
        {"sharding": "zero0", "source": "vtrain_multi_node"},
    )
    assert rows.features.reduction_hidden.tolist() == [1.0, 0.0, 0.0]


def test_nanotron_sums_whole_gradients_whatever_is_sharded(cache) -> None:
    rows = batch(cache, {}, {"source": "vtrain_multi_node", "precision": "fp16"})
    sums = [[one.collective.collective for one in summed(config, stage_weights(config, 0))]
            for config in rows.configs]  # fmt: skip
    assert sums == [["all_reduce"], ["reduce_scatter"]]


def test_nanotron_clips_and_clears_what_is_no_shard_tensor_by_tensor(cache) -> None:
    """With ZeRO-1 on two ranks: norms of all gradients, of which another optimizer norms half, and
    12 bytes a number read, scaled and cleared besides; 18 launches a layer.
    """
    row = {"n_gpus": 2, "sharding": "zero1", "dp": 2, "tp": 1, "pp": 1}
    rows = batch(cache, row, {**row, "framework": "eager_pytorch"})
    ours, plain = (optimizer_passes(config) for config in rows.configs)
    assert [step.name for step in ours] == ["gradient norm", "gradients scaled", "adam"]
    assert [step.name for step in plain] == ["gradient norm", "adam"]
    layers = rows.configs[0].shape.layers
    assert launches(ours) - launches(plain[1:]) == 18 * layers
    weights = stage_weights(rows.configs[0], 0).total
    assert float(ours[1].op.work().bytes) == pytest.approx(12.0 * weights)
    assert float(ours[0].op.work().bytes) == pytest.approx(4.0 * weights, rel=1e-3)


def test_latency_and_bytes_hide_each_other() -> None:
    both = larger_s(np.array([1.0, 1.0, 1e-3]), np.array([1.0, 1e-3, 1.0]))
    np.testing.assert_allclose(both, [2 ** (1 / 3), 1.0, 1.0], rtol=1e-6)
