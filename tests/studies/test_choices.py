"""Chimera's shape of a pipeline and KAISA's share of gradient workers."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridperf as hp
from hybridperf import studies as choices
from hybridperf.io import InputError
from hybridperf.studies.chimera import planned, rabenseifner_s, unoverlapped_s
from hybridperf.studies.kaisa import balanced
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.setup import training_setup
from hybridperf.workloads.memory import memory
from hybridperf.workloads.schedules import BACKWARD, closed_form_s, schedule
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.zoo import load_shape

BERT = load_shape("bert-large").replace(layers=32, seq=128)
LINK = {"latency_s": 5e-6, "bytes_per_s": 8e9}
H = 1024
LAYER = [choices.Factored(H, H)] * 4 + [choices.Factored(H, 4 * H), choices.Factored(4 * H, H)]
COSTS = choices.SecondOrderCosts.of_layer(
    LAYER, 0.1267, 0.0149, bytes_per_s=10e9
)  # measured on a P100 (KAISA, SC21)


def chosen(shape=BERT, **changes):
    options = {
        "workers": 16,
        "batch": 256,
        "capacity_bytes": 16e9,
        "layer_forward_s": lambda b: 1e-3 + 4e-4 * b,
        **LINK,
        **changes,
    }
    return choices.pipelines(shape, **options)


# Chimera
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [4, 6, 8, 16, 32])
def test_forwards_and_backwards_on_the_critical_path(d) -> None:
    """N = D and backwards that take longer: N and N + D - 2 of them; 6 and
    10 make the 26 of D = 6.
    """
    assert closed_form_s("chimera", d, d, 1.3, 2.9) == pytest.approx(1.3 * d + 2.9 * (2 * d - 2))
    assert closed_form_s("chimera", d, d, 1.0, 2.0) == 3 * d + 2 * (d - 2)


@pytest.mark.parametrize(("d", "n"), [(4, 4), (6, 6), (8, 8), (8, 16), (16, 16)])
@pytest.mark.parametrize("reduce_s", [0.5, 3.0, 40.0])
def test_what_sticks_out_covers_the_schedules_own_times(d, n, reduce_s) -> None:
    """Replayed: gradients of a stage are ready with its last backward; outer workers' two go out
    then, others' behind their worker.
    """
    order = schedule("chimera", d, n)
    times = order.replay(lambda task: 2.0 if task.kind == BACKWARD else 1.0)
    end_s = max(each.end_s for each in times.values())
    ready = {
        s: max(
            each.end_s for task, each in times.items() if task.stage == s and task.kind == BACKWARD
        )
        for s in range(d)
    }
    done = [
        max(each.end_s for task, each in times.items() if order.worker_of(task) == w)
        for w in range(d)
    ]
    last_s = []
    for worker in range(d):
        free_s = 0.0
        for stage in sorted(order.stages_of(worker), key=lambda s: ready[s]):
            may_s = ready[stage] if worker in (0, d - 1) else max(ready[stage], done[worker])
            free_s = max(free_s, may_s) + reduce_s
        last_s.append(free_s)
    assert max(last_s) - end_s == pytest.approx(unoverlapped_s(reduce_s, 2.0))


def test_a_choice_is_the_least_of_all_and_fits() -> None:
    found = chosen()
    assert [one.step_s for one in found] == sorted(one.step_s for one in found)
    assert {one.stages for one in found} == {2, 4, 8, 16}
    for one in found:
        assert one.replicas * one.stages == 16
        assert one.replicas * one.micro_batch * one.micro_batches == 256
        assert one.memory_bytes <= 16e9
        layout = Layout(
            pp=one.stages, dp=one.replicas, micro_batch=one.micro_batch,
            accumulation=one.micro_batches, schedule="chimera", recompute=one.recompute,
        )  # fmt: skip
        assert float(memory(BERT, layout, dtype="fp32").peak_bytes) == one.memory_bytes


def test_one_choice_by_hand() -> None:
    (one,) = [each for each in chosen(capacity_bytes=80e9) if each.stages == 8]
    forward_s = 4 * (1e-3 + 4e-4 * one.micro_batch)
    send_s = 5e-6 + one.micro_batch * 128 * 1024 * 4 / 8e9
    assert one.pipeline_s == pytest.approx(
        float(
            closed_form_s(
                "chimera", 8, one.micro_batches, forward_s + send_s, 2 * forward_s + send_s
            )
        )
    )
    reduce_s = rabenseifner_s(4, 4 * BERT.layer_parameters * 4, 5e-6, 8e9)
    assert reduce_s == pytest.approx(4 * 5e-6 + 1.5 * 16 * BERT.layer_parameters / 8e9)
    assert one.unoverlapped_s == pytest.approx(max(reduce_s, 2 * reduce_s - 2 * forward_s - send_s))


def test_a_law_of_plans_gives_their_seconds() -> None:
    setup = training_setup(BERT, "aic_a100_sxm")
    law = planned(setup)
    found = choices.pipelines(BERT, 16, 64, 80e9, law=law, schedule="1f1b", largest=False)
    best = found[0]
    only = {
        "pp": best.stages, "dp": best.replicas, "micro_batch": best.micro_batch, "tp": 1, "zero": 0,
        "schedule": "1f1b", "recompute": best.recompute,
    }  # fmt: skip
    by_plan = plan(BERT, "aic_a100_sxm", 16, batch=64, only=only)
    steps_s = [by_plan.step_s(by_plan.choice(rank)) for rank in range(len(by_plan))]
    assert min(abs(s / best.step_s - 1) for s in steps_s) < 1e-6
    with pytest.raises(InputError, match="expected layer_forward_s"):
        choices.pipelines(BERT, 16, 64, 80e9)


def test_less_memory_asks_for_smaller_micro_batches_and_then_for_recomputation() -> None:
    roomy, memory_headroom = chosen(capacity_bytes=80e9), chosen(capacity_bytes=9e9)
    batch = {one.stages: one.micro_batch for one in roomy}
    assert all(
        one.micro_batch <= batch[one.stages] for one in memory_headroom if one.recompute == "none"
    )
    long = {"shape": BERT.replace(seq=2048), "batch": 16}
    layouts = [Layout(pp=d, dp=16 // d, accumulation=d, schedule="chimera") for d in (2, 4, 8, 16)]
    least = min(float(memory(long["shape"], layout, dtype="fp32").peak_bytes) for layout in layouts)
    assert {one.recompute for one in chosen(capacity_bytes=0.9 * least, **long)} == {"full"}
    with pytest.raises(InputError, match="no pipeline fits"):
        chosen(capacity_bytes=0.9 * least, recompute=False, **long)
    with pytest.raises(
        InputError, match=r"no pipeline fits into 1\.0 GB per worker, the smallest needs"
    ):
        chosen(capacity_bytes=1e9)
    with pytest.raises(InputError, match="no pipeline of an even number of stages divides"):
        chosen(workers=7)


@pytest.mark.parametrize("device", ["p100", "v100"])
def test_on_measured_layers_two_pipes_beat_one(data_dir, device) -> None:
    """BERT layers as profiled; few micro-batches per pipeline, where bubbles matter. 1F1B chooses
    its own shape.
    """
    rows = pd.read_csv(data_dir / "chimera_profiles" / "layer_profiles_dev.csv").query(
        "model == 'bert-large' and device == @device"
    )
    rows = rows.sort_values("micro_batch")

    def forward_s(batch):
        return float(np.interp(batch, rows["micro_batch"], rows["f_s"]))

    options = {"layer_forward_s": forward_s, "batch": 64, "workers": 32, "largest": False}
    both, one = chosen(**options)[0], chosen(**options, schedule="1f1b")[0]
    assert both.step_s < one.step_s
    by_rule = {each.stages: each.step_s for each in chosen(**{**options, "largest": True})}
    assert all(each.step_s <= by_rule[each.stages] for each in chosen(**options))


# KAISA
# --------------------------------------------------------------------------------------------------


def test_factors_of_a_bert_layer() -> None:
    assert sum(layer.factors for layer in LAYER) == 42 * H**2
    assert sum(layer.factors for layer in LAYER) * 4 / 2**20 == 168.0  # MiB, as measured


def test_ends_of_the_trade() -> None:
    layers, world = LAYER * 24, 16
    total = sum(layer.factors + layer.weights for layer in layers) * 4
    gradients = sum(layer.weights for layer in layers) * 4
    everywhere, once = (
        choices.second_order(layers, world, share, COSTS) for share in (1.0, 1 / world)
    )
    assert (everywhere.memory_bytes, everywhere.received_bytes) == (total, 0)
    assert (once.groups, once.inverse_bytes) == (world, 0)
    assert once.memory_bytes == pytest.approx(total / world, rel=0.15)
    assert once.received_bytes == pytest.approx(gradients * (1 - 1 / world), rel=0.02)


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
def test_between_the_ends(m) -> None:
    layers = LAYER * 32
    found = choices.second_order(layers, 16, m / 16, COSTS)
    total = sum(layer.factors + layer.weights for layer in layers) * 4
    gradients = sum(layer.weights for layer in layers) * 4
    assert found.memory_bytes == pytest.approx(m / 16 * total, rel=0.1)
    assert found.received_bytes == pytest.approx((1 - m / 16) * gradients, rel=0.05)
    assert 1 <= found.imbalance < 1.3


def test_one_rank_inverts_what_was_measured() -> None:
    alone = choices.second_order(LAYER, 1, 1.0, COSTS)
    assert alone.invert_s * COSTS.every == pytest.approx(0.1267)
    assert alone.precondition_s == pytest.approx(0.0149)
    assert alone.communication_s == 0


def test_front_of_memory_and_time() -> None:
    slow = choices.SecondOrderCosts.of_layer(LAYER, 0.1267, 0.0149 / 50, bytes_per_s=1e9)
    front = choices.second_order_front(LAYER * 24, 16, slow)
    memory_bytes, step_s = [one.memory_bytes for one in front], [one.step_s for one in front]
    assert memory_bytes == sorted(memory_bytes)
    assert step_s == sorted(step_s, reverse=True)
    every = [choices.second_order(LAYER * 24, 16, m / 16, slow) for m in (1, 2, 4, 8, 16)]
    for one in every:
        assert any(
            kept.memory_bytes <= one.memory_bytes and kept.step_s <= one.step_s for kept in front
        )
    assert len(front) > 1


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40), st.integers(1, 8))
def test_the_fullest_holds_one_job_or_little_more_than_the_mean(costs, bins) -> None:
    """Largest first: a second job of a rank is no larger than the one behind the `bins` largest."""
    load = np.bincount(balanced(costs, bins), weights=costs, minlength=bins)
    largest = [*sorted(costs, reverse=True), *[0.0] * bins]
    assert load.sum() == pytest.approx(sum(costs))
    assert load.max() <= max(largest[0], sum(costs) / bins + largest[bins]) + 1e-9


def test_shares_that_make_no_grid() -> None:
    with pytest.raises(
        InputError, match=r"gradient workers must divide 16 ranks, got 3 .*take 0\.125"
    ):
        choices.second_order(LAYER, 16, 0.2, COSTS)
    with pytest.raises(InputError, match="a share in"):
        choices.second_order(LAYER, 16, 0.0, COSTS)


def test_kaisa_saves_what_half_the_iterations_leave() -> None:
    """Pauloski et al., SC21: 18.1 to 36.3 % sooner to converge at the same batch, BERT-large 41.6 %
    in the same memory, on up to 128 A100. How many iterations K-FAC needs is no question of time:
    half of those of a first-order method (as Zhang et al., Eva, ICLR 2023, sum up; assumed). What
    it adds to each step takes some of that back: most at one micro-batch of 8, least at 16 of 16.
    """
    model = hp.load_model("a100_sxm4_80g").with_collectives(hp.load_collectives("dgx_a100"))
    fabric = hp.load_system("dgx_a100")
    costs = choices.SecondOrderCosts.of_layer(
        LAYER, 0.0651, 0.00717, bytes_per_s=fabric.link_bytes_per_s(128),
        latency_s=fabric.latency_s,
    )  # fmt: skip
    shape = load_shape("bert-large")
    least_s = choices.second_order_front(choices.factored(shape), 128, costs)[-1].step_s

    def saved(micro_batch: int, accumulation: int) -> float:
        layout = Layout(dp=128, micro_batch=micro_batch, accumulation=accumulation)
        step_s = hp.predict(
            model, hp.transformer(hp.TransformerConfig(shape, layout, gpus_per_node=8))
        ).time_s
        return 1 - 0.5 * (1 + least_s / step_s)

    assert 0.1 < saved(8, 1) < 0.363 < 0.416 < saved(16, 16) < 0.5


def test_preconditioning_grows_with_the_cube_of_a_matrix() -> None:
    """By hand: both sides' eigenvectors times the gradient are products of a g (a + g)."""
    small, large = choices.Factored(100, 50), choices.Factored(1200, 600)
    costs = choices.SecondOrderCosts.of_layer([small], 1.0, 1.0, bytes_per_s=1e9)
    assert choices.second_order([large], 1, 1.0, costs).precondition_s == pytest.approx(12**3)
