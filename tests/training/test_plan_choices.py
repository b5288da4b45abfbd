"""What a plan offers and refuses: racks, two stacks, memory, copies of better layouts; what a full
graph says of it.
"""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.cli.common import WORDS
from hybridperf.io import InputError
from hybridperf.ops import Gemm, OpCall
from hybridperf.training.plans.explain import Confirmed, compared, confirm, neighbours
from hybridperf.training.plans.report import confirmed_report, memory_lines, plan_report
from hybridperf.training.plans.run import UNPLANNED, plan
from hybridperf.training.plans.sensitivity import SURE, chance_fits, memory_headroom
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.plans.space import DIMENSIONS, space
from hybridperf.training.steps.memory_fit import USABLE
from hybridperf.workloads.transformer import load_shape

SYSTEM = "aic_a100_sxm"
FEW = {"zero": [1], "cp": [1], "sequence_parallel": [0]}


@pytest.fixture(scope="module")
def shape():
    return dataclasses.replace(load_shape("gpt3-1.3b"), name="eight layers", layers=8)


@pytest.fixture(scope="module")
def found(shape):
    return plan(shape, SYSTEM, 8, batch=16, only=FEW)


@pytest.mark.parametrize(
    ("gpus", "each"), [(72, 72), (144, 72), (64, 64), (128, 64), (80, 40), (4, 4), (576, 72)]
)
def test_as_few_racks_as_hold_the_gpus(shape, gpus, each):
    rack = training_setup(shape, "aic_gb200")
    taken = rack.for_gpus(gpus)
    assert taken.gpus_per_node == taken.machine.system.accelerators_per_node == each
    share = rack.machine.system.node_bytes_per_s / rack.gpus_per_node
    assert taken.machine.system.node_bytes_per_s == pytest.approx(share * each)


def test_a_whole_rack_prices_ops_as_most_of_it_does(shape):
    """No GB200 was measured in tf32: its products reach a reference device's share of the peak, on
    64 of a rack's GPUs and on all 72.
    """
    some = training_setup(shape, "aic_gb200", dtype="tf32")
    call, seconds = OpCall(Gemm("tf32", 4096.0, 4096.0, 4096.0)), []
    for one in (some, some.for_gpus(72)):
        one.prices.learn([call])
        seconds.append(one.prices[call])
    assert seconds[0] == seconds[1]


def test_a_rack_has_a_plan(shape):
    assert plan(shape, "aic_gb200", 72, batch=72, only=FEW).best.ranks == 72


def test_an_encoder_and_a_decoder_are_planned():
    t5 = load_shape("t5-3b")
    found = plan(
        dataclasses.replace(t5, name="small", layers=2, decoder_layers=2),
        "aic_h100_sxm",
        8,
        batch=8,
    )
    assert found.best.cp == found.best.pp == 1


@pytest.mark.parametrize("memory_bytes", [-1.0, 0.0, float("nan"), float("inf")])
def test_memory_is_above_zero(shape, memory_bytes):
    with pytest.raises(InputError, match="memory-bytes"):
        training_setup(shape, SYSTEM, memory_bytes=memory_bytes)


def test_a_split_backward_pass_is_planned_where_a_framework_has_it_or_somebody_asks(shape):
    """Its plan takes what the graph of its order takes, and never recomputes or shards weights."""
    few = {"pp": [4], "cp": [1], "micro_batch": [1]}
    planned = {
        name: plan(shape, SYSTEM, 8, batch=32, only=few | more, framework=name)
        for name, more in (
            ("torchtitan_eager", {}), ("megatron_core", {}),
            ("megatron", {"schedule": ["zero_bubble", "dualpipe", "1f1b"]}),
        )
    }  # fmt: skip
    frames = {name: one.top(len(one)) for name, one in planned.items()}
    asked = {name: set(frame["schedule"]) for name, frame in frames.items()}
    assert {"zb_v", "dualpipe_v"} < asked["torchtitan_eager"]
    assert not {"zb_v", "dualpipe_v", "zero_bubble"} & asked["megatron_core"]
    assert asked["megatron"] == {"zero_bubble", "dualpipe", "1f1b"}
    frame = frames["torchtitan_eager"]
    mine = frame[frame["schedule"].isin(["zb_v", "dualpipe_v"])]
    assert set(mine["recompute"]) == {"none"}
    assert set(mine["zero"]) == {0, 1, 2}
    for framework, name in (
        ("megatron", "zero_bubble"), ("megatron", "dualpipe"), ("torchtitan_eager", "zb_v"),
        ("torchtitan_eager", "dualpipe_v"),
    ):  # fmt: skip
        found = planned[framework]
        choices = map(found.choice, range(len(found)))
        choice = next(one for one in choices if found.layout(one).schedule == name)
        model = found.cases[choice.case].setup.prices.model
        graph_s = float(hp.predict(model, hp.transformer(found.config(choice))).time_s)
        assert found.step_s(choice) == pytest.approx(graph_s, rel=0.05), name


def test_what_is_left_out_is_said(found):
    assert any("12 % are left to the driver" in note for note in found.notes)
    assert UNPLANNED in found.notes


def test_the_nearest_number_of_gpus_that_works_works():
    model = load_shape("gpt3-175b")
    with pytest.raises(InputError, match="48 GPUs with a global batch of 2064 would do"):
        plan(model, "aic_h100_sxm", 24)
    assert len(
        plan(
            model, "aic_h100_sxm", 48, batch=2064, only={"recompute": ["full"], "micro_batch": [1]}
        )
    )


def test_copies_of_better_layouts_are_not_shown(found):
    shown = found.top(12)
    fields = [
        "tp",
        "cp",
        "dp",
        "pp",
        "vp",
        "zero",
        "micro_batch",
        "sequence_parallel",
        "memory_bytes",
    ]
    assert not shown.duplicated(fields).any()
    assert (np.diff(shown["time_s"]) >= 0).all()
    every = found.distinct(len(found))
    assert every[0] == 0
    assert len(every) < len(found)
    runner_up = compared(found)[1]
    assert runner_up.choice == found.choice(every[1])


def test_batches_ranked_by_time_say_so(shape):
    said = plan(shape, SYSTEM, 8, batch=[16, 32], only=FEW).notes
    assert any("favour small batches" in note for note in said)
    by_tokens = plan(shape, SYSTEM, 8, batch=[16, 32], only=FEW, objective="tokens_per_s").notes
    assert not any("favour small batches" in note for note in by_tokens)


def test_the_graph_says_how_far_it_is_and_what_it_finds_faster(found):
    confirmed = confirm(found, neighbours(found, 2))
    assert confirmed[1].graph_s <= confirmed[2].graph_s
    text = confirmed_report(found, confirmed)
    assert "so only orders compare" in text
    first = confirmed[0]
    faster = Confirmed(confirmed[1].choice, first.plan_s, 0.9 * first.graph_s)
    assert "11.1 % faster (" in confirmed_report(found, [first, faster])


def test_what_follows_can_be_narrowed_too(shape):
    s = space(shape, 8, 8, 16, only={"dp": [2], "accumulation": [4], "shard_ranks": [2]})
    assert set(s.base.dp.tolist()) == {2}
    assert set(s.base.accumulation.tolist()) == {4}
    everything = space(shape, 8, 8, 16)
    same = (
        (everything.base.dp == 2)
        & (everything.base.accumulation == 4)
        & (everything.base.shard_ranks == 2)
    )
    assert len(s.base.dp) == same.sum() > 0
    with pytest.raises(InputError, match="accumulation"):
        space(shape, 8, 8, 16, only={"accumulate": [4]})


def test_help_names_what_can_be_narrowed():
    assert all(f" {name}" in WORDS["plan"]["only"] for name in DIMENSIONS)


def test_a_winner_near_the_limit_says_so(shape):
    free = plan(shape, SYSTEM, 8, batch=16, only={"cp": [1]})
    largest = free.cases[0].row_memory_bytes[free.choice(0).at]
    near = plan(shape, SYSTEM, 8, batch=16, only={"cp": [1]}, memory_bytes=0.999 * largest / USABLE)
    said = memory_headroom(near)
    assert said.missed is not None
    assert said.missed_s < near.step_s(near.choice(0))
    assert said.missed_bytes > near.setup.capacity_bytes
    assert said.share <= 1
    assert chance_fits(said.share) == said.chance >= 0.5
    if said.surer is not None:
        assert near.step_s(said.surer) >= near.step_s(near.choice(0))
    assert any(line.startswith("just too large") for line in memory_lines(near))
    assert "just too large" in plan_report(near, 3)


def test_chances_of_memory():
    assert chance_fits(1.0) == pytest.approx(0.5)
    assert chance_fits(0.8) > SURE > chance_fits(0.95) > chance_fits(1.1)
