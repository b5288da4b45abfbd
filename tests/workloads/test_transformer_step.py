"""Whole training steps as graphs: schedules, overlap, launches, and `hp.predict` on them."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from support.unlike_stages import stage_max_s

import hybridperf as hp
from hybridperf.collectives.model import load_collectives
from hybridperf.engine.evaluate import last_ends, timeline
from hybridperf.engine.graph import Graph
from hybridperf.engine.lower import lower
from hybridperf.engine.workload import Workload
from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.io import InputError
from hybridperf.model.calls import CallChain, CollectiveCall, GivenSeconds
from hybridperf.model.step_effects import BELIEFS
from hybridperf.ops import BatchedGemm, Gemm, OpCall, PrefillAttention
from hybridperf.training.steps.batch import shared_price_cache
from hybridperf.training.steps.cells import Prices
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.schedules import closed_form_s, schedule
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, Task
from hybridperf.workloads.transformer import Layout, TransformerShape, load_shape, step
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import (
    embedding_passes,
    head_passes,
    layer_passes,
    optimizer_passes,
)
from hybridperf.workloads.transformer.passes import flops, launches
from hybridperf.workloads.transformer.rank_stream import RankStreams, RepeatedSteps

GPT = TransformerShape("small", "gpt", hidden=256, heads=4, layers=8, ffn=1024, vocab=1024, seq=128)
BARE = dataclasses.replace(GPT, head="none", positions="rotary", tied=False)
MEGATRON = {"framework": "megatron", "dtype": "fp16", "attention": "unfused", "dropout": True}
FLOPS_PER_S = 1e12
SHOWN = ("gather_shown", "overlap_shown")


def config(shape=GPT, *, settings=MEGATRON, **layout) -> TransformerConfig:
    return TransformerConfig(shape, Layout(**({"micro_batch": 2} | layout)), **settings)


def transformer(c: TransformerConfig, host: Host | float | None = None) -> Workload:
    """A step whose launches cost nothing, but for a host that is given."""
    return step.transformer(c, host)


def seconds(workload: Workload, collectives: dict[str, float] | None = None) -> np.ndarray:
    """Rows priced by hand: products by their FLOPs, collectives as said, a host's as given; all
    else takes no time, what shows of messages beside kernels included.
    """
    found = []
    for call, place in zip(workload.calls, workload.in_step.places, strict=True):
        if place.role in SHOWN:
            found.append(0.0)
        elif isinstance(call, GivenSeconds):
            found.append(call.value)
        elif isinstance(call, CallChain):
            found.append(0.0)
        elif isinstance(call, CollectiveCall):
            found.append((collectives or {}).get(call.collective, 0.0))
        else:
            found.append(op_s(call))
    for at, call in enumerate(workload.calls):
        if isinstance(call, CallChain):
            found[at] = sum(found[row - 1] * often for row, often in call.parts)
    return np.array(found)


def op_s(call: OpCall) -> float:
    return (
        float(call.op.work().flops) * call.times / FLOPS_PER_S
        if isinstance(call.op, Gemm | BatchedGemm | PrefillAttention)
        else 0.0
    )


def step_s(workload: Workload, **priced) -> float:
    durations = seconds(workload, **priced)[:, None].astype(np.float32)
    return float(last_ends(lower(workload.graph).program, durations)[0])


def pass_s(steps) -> float:
    return sum(op_s(one.call) for one in steps if one.is_op)


def launched(c: TransformerConfig) -> int:
    """Kernels of a step on one stage."""
    parts = [(layer_passes(c), c.shape.layers), (embedding_passes(c), 1), (head_passes(c), 1)]
    per_micro_batch = sum(
        count * (launches(p.forward) + launches(p.backward_with_recompute)) for p, count in parts
    )
    return c.layout.accumulation * per_micro_batch + launches(optimizer_passes(c))


def stages_s(c: TransformerConfig) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward seconds of each stage."""
    forward, backward = np.zeros(c.stages), np.zeros(c.stages)
    for stage in range(c.stages):
        parts = [(layer_passes(c), c.layers_of(stage)[0])]
        parts += [(embedding_passes(c), 1)] if stage == 0 else []
        parts += [(head_passes(c), 1)] if stage == c.stages - 1 else []
        forward[stage] = sum(n * pass_s(p.forward) for p, n in parts)
        backward[stage] = sum(n * pass_s(p.backward_with_recompute) for p, n in parts)
    return forward, backward


# schedules
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("1f1b", {"pp": 1, "accumulation": 3}),
        ("1f1b", {"pp": 4, "accumulation": 6}),
        ("gpipe", {"pp": 4, "accumulation": 3}),
        ("interleaved", {"pp": 2, "accumulation": 4, "vp": 2}),
        ("interleaved", {"pp": 4, "accumulation": 8, "vp": 2}),
        ("chimera", {"pp": 4, "accumulation": 4}),
        ("chimera", {"pp": 4, "accumulation": 8}),
        ("zero_bubble", {"pp": 4, "accumulation": 8}),
        ("zb_v", {"pp": 4, "accumulation": 8, "vp": 2}),
        ("dualpipe", {"pp": 4, "accumulation": 8}),
        ("dualpipe_v", {"pp": 4, "accumulation": 8, "vp": 2}),
    ],
)
def test_the_graph_is_the_closed_form_for_uniform_stages(name, layout):
    """Eight layers and nothing else: an embedding moves bytes and has no FLOPs, as rows are priced
    here.
    """
    c = config(BARE, schedule=name, **layout)
    forward, backward = stages_s(c)
    assert np.ptp(forward) < 1e-9 * forward[0]
    v, passes = c.layout.vp, layer_passes(c)
    weights = pass_s(s for s in passes.backward if s.weight_gradient) * c.layers_of(0)[0]
    closed = closed_form_s(
        name,
        c.layout.pp,
        c.layout.accumulation,
        forward[0] * v,
        backward[0] * v,
        chunks=v,
        weight_s=weights * v if c.layout.kind.splits_backward else 0,
    )
    assert step_s(transformer(c)) == pytest.approx(float(closed), rel=1e-5)


def test_a_last_stage_with_logits_is_the_one_that_others_wait_for():
    """(m - 1) max + sum: exact where the last stage is the slowest."""
    c = config(pp=4, accumulation=8)
    forward, backward = stages_s(c)
    assert forward.argmax() == backward.argmax() == 3
    assert step_s(transformer(c)) == pytest.approx(
        float(stage_max_s(forward, backward, 8)), rel=1e-5
    )


@pytest.mark.parametrize(
    "name",
    ["1f1b", "interleaved", "chimera", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v"],
)
def test_unlike_stages_take_what_a_replay_of_the_schedule_takes(name):
    folded = name in ("interleaved", "zb_v", "dualpipe_v")
    c = config(pp=4, accumulation=8, schedule=name, vp=2 if folded else 1)
    order = schedule(name, 4, 8, c.layout.vp)
    forward, backward = stages_s(c)
    weights = np.zeros(c.stages)
    if c.layout.kind.splits_backward:
        for stage in range(c.stages):
            layers = [(layer_passes(c), sum(c.layers_of(stage)))]
            parts = layers + ([(head_passes(c), 1)] if stage == c.stages - 1 else [])
            weights[stage] = sum(
                n * pass_s(s for s in p.backward if s.weight_gradient) for p, n in parts
            )

    def of(task: Task) -> float:
        if task.kind == FORWARD:
            return forward[task.stage]
        return (
            backward[task.stage] - weights[task.stage]
            if task.kind == BACKWARD
            else weights[task.stage]
        )

    expected = max(interval.end_s for interval in order.replay(of).values())
    assert step_s(transformer(c)) == pytest.approx(expected, rel=1e-5)


def test_sends_hold_the_sender_up_or_go_beside():
    """Between two stages: a pipe of one micro-batch has both transfers on its path either way; of
    many, only held ones cost more.
    """
    priced = {"collectives": {"sendrecv": 1e-3}}
    for beside in (False, True):
        c = config(BARE, settings=MEGATRON | {"overlap_sends": beside}, pp=2, accumulation=1)
        forward, backward = stages_s(c)
        assert step_s(transformer(c), **priced) == pytest.approx(
            forward.sum() + backward.sum() + 2e-3, rel=1e-5
        )
    held, beside = (
        step_s(
            transformer(
                config(BARE, settings=MEGATRON | {"overlap_sends": overlap}, pp=2, accumulation=8)
            ),
            **priced,
        )
        for overlap in (False, True)
    )
    assert beside < held


# size of the graph
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 2, "accumulation": 4, "tp": 2, "dp": 2},
        {"dp": 4, "zero": 3},
        {"recompute": "full", "tp": 4},
    ],
)
def test_merged_kernels_take_as_long_as_each_by_itself(layout, monkeypatch):
    """Equal calls of a task are one node that runs several times, where the
    graph would be large.
    """
    priced = {
        "collectives": {
            "all_reduce": 1e-4,
            "all_gather": 2e-4,
            "reduce_scatter": 3e-4,
            "sendrecv": 5e-5,
        }
    }
    each = transformer(config(**layout))
    monkeypatch.setattr(step, "KERNEL_NODES", 0)
    merged = transformer(config(**layout))
    assert len(merged.graph) < len(each.graph)
    assert step_s(merged, **priced) == pytest.approx(step_s(each, **priced), rel=1e-5)
    assert merged.flops == pytest.approx(each.flops)


def test_a_step_too_large_for_a_graph_is_refused():
    with pytest.raises(
        InputError, match=r"at most \d+ tasks, got \d+ .*`hybridperf steps` prices such steps"
    ):
        transformer(config(dataclasses.replace(GPT, layers=64), pp=64, accumulation=4096))


def test_flops_of_the_step_are_those_of_the_formula():
    c = config(pp=2, accumulation=4, dp=2)
    assert transformer(c).flops == pytest.approx(GPT.model_flops(2 * 4 * GPT.seq), rel=1e-9)


# overlap
# --------------------------------------------------------------------------------------------------


def test_gradients_are_reduced_in_buckets_beside_the_last_backward():
    """One bucket per layer: reductions of all but the last one hide; flat, all of it is exposed."""
    size = 2.0 * GPT.layer_parameters
    per_layer = MEGATRON | {"bucket_bytes": size, "overlap_gradients": True}
    fast, slow = 1e-7, 1.0
    alone = step_s(transformer(config()))
    buckets = transformer(config(settings=per_layer, dp=4))
    reductions = [
        row
        for row in buckets.graph.row
        if row
        and isinstance(buckets.calls[row - 1], CollectiveCall)
        and buckets.in_step.places[row - 1].role not in SHOWN
    ]
    assert len(reductions) >= GPT.layers
    slowed = [label for label in buckets.graph.labels if label.startswith("slowed by")]
    assert len(slowed) == len(reductions) - 1  # all but the last have kernels beside them
    hidden = step_s(buckets, collectives={"all_reduce": fast})
    assert hidden == pytest.approx(alone + fast, rel=1e-4)
    first = step_s(buckets, collectives={"all_reduce": slow})
    assert first == pytest.approx(
        len(reductions) * slow, rel=0.05
    )  # one after the other, from the first bucket on
    flat = transformer(config(settings=MEGATRON | {"overlap_gradients": False}, dp=4))
    assert step_s(flat, collectives={"all_reduce": slow}) == pytest.approx(alone + slow, rel=1e-4)


def test_updated_weights_of_all_stages_are_on_their_way_at_once():
    """Each rank of a pipeline has gathered its own by the time that its first micro-batch is
    there; so have later chunks of an interleaved one.
    """
    after, beside = ({**MEGATRON, "overlap_weights": on} for on in (False, True))
    for layout in ({"pp": 4}, {"pp": 4, "vp": 2, "schedule": "interleaved"}):
        whole = {"accumulation": 4, "dp": 2, "zero": 1} | layout
        alone = step_s(transformer(config(settings=after, **whole)))
        gathers = {"all_gather": 0.2 * alone / GPT.layers}
        shown = step_s(transformer(config(settings=beside, **whole)), collectives=gathers) - alone
        first = 2 * gathers["all_gather"]  # of the embedding and of a layer
        assert 0 < shown <= 1.3 * first


def test_only_the_last_micro_batch_reduces():
    for accumulation in (1, 4):
        workload = transformer(
            config(settings=MEGATRON | {"bucket_bytes": 1e12}, dp=2, accumulation=accumulation)
        )
        rows = [workload.calls[row - 1] for row in workload.graph.row if row]
        assert sum(isinstance(call, CollectiveCall) for call in rows) == 1
        total = next(call.bytes for call in rows if isinstance(call, CollectiveCall))
        assert total == pytest.approx(2.0 * GPT.parameters)


def test_weights_of_eight_bit_products_are_made_narrow_once_a_step():
    """All of a rank's layers, whatever it updates of them; not of a framework that narrows its
    weights in each pass.
    """

    def narrowed(**settings):
        c = config(settings={"attention": "fused", "dtype": "bf16"} | settings, tp=2, dp=4, zero=1)
        return [one for one in optimizer_passes(c) if one.name == "weights narrowed"]

    (one,) = narrowed(framework="compiled", quant="fp8")
    on_rank = GPT.layers * GPT.layer_parameters / 2
    assert one.op.rows * one.op.cols == pytest.approx(on_rank, rel=0.01)
    assert not narrowed(framework="compiled")
    assert not narrowed(framework="mlperf", quant="fp8")


def test_sharded_weights_are_gathered_a_layer_ahead():
    """Fast gathers: only the first is waited for. Slow ones: as long as all of them, one after the
    other.
    """
    c = config(BARE, settings={"attention": "fused", "overlap_gradients": True}, dp=4, zero=3)
    alone = step_s(transformer(config(BARE, settings={"attention": "fused"})))
    sharded = transformer(c)
    fast = 1e-6
    assert step_s(sharded, collectives={"all_gather": fast}) == pytest.approx(
        alone + fast, rel=1e-3
    )
    gathers = sum(label == "weights gathered" for label in sharded.graph.labels)
    assert gathers == 2 * (BARE.layers + 2)  # and of both ends
    slow = 1.0
    assert step_s(sharded, collectives={"all_gather": slow}) == pytest.approx(
        gathers * slow, rel=0.05
    )
    at_once = transformer(
        config(BARE, settings={"attention": "fused", "overlap_shards": False}, dp=4, zero=3)
    )
    assert step_s(at_once, collectives={"all_gather": fast}) == pytest.approx(
        alone + gathers * fast, rel=1e-4
    )


def test_sums_over_copies_run_beside_gathers_of_shards_inside_nodes():
    """As long as all gathers and the last two sums, whose scatters queue behind the last gather;
    one after the other where both cross the network.
    """
    settings, slow = {"attention": "fused"}, {"all_gather": 1.0, "all_reduce": 1.0}
    inside, across = (
        transformer(config(BARE, settings=settings, dp=dp, zero=3, shard_ranks=dp // 2))
        for dp in (16, 32)
    )
    blocks = BARE.layers + 2
    assert step_s(inside, collectives=slow) == pytest.approx(2 * blocks + 2, abs=0.01)
    assert step_s(across, collectives=slow) == pytest.approx(3 * blocks, abs=0.01)
    sums = {"all_reduce": 1.0}
    assert step_s(inside, collectives=sums) == pytest.approx(blocks, abs=0.01)


def test_a_gather_waits_until_the_layer_before_the_one_that_runs_is_gone():
    """Two layers' weights at a time: memory says so."""
    workload = transformer(config(BARE, settings={"attention": "fused"}, dp=4, zero=3))
    graph, times = (
        workload.graph,
        timeline(lower(workload.graph), seconds(workload, collectives={"all_gather": 1e-9})),
    )
    gathers = [node for node in range(len(graph)) if graph.labels[node] == "weights gathered"]
    ends = [times.end_s[node] for node in range(len(graph)) if graph.labels[node] == "mlp residual"]
    for at in range(2, BARE.layers):
        assert times.start_s[gathers[at + 1]] >= ends[at - 2] - 1e-12  # gather 0 is the embedding's


# hosts
# --------------------------------------------------------------------------------------------------


def _host(launch_s: float) -> Host:
    spread = Spread(mean_s=launch_s, std_s=0.0, median_s=launch_s, count=9)
    one, none = (
        Overhead(shared=each, by_kind={})
        for each in (spread, spread.model_copy(update={"mean_s": 0.0, "median_s": 0.0}))
    )
    return Host(
        source="test", profiler_s=0.0, between_ops_s=None, before_launch_s=none,
        after_launch_s=none, launch_call_s=one, between_launches_s=none, without_launch_s=none,
    )  # fmt: skip


@pytest.mark.parametrize("merged", [False, True])
def test_small_layers_are_bound_by_launches(merged, monkeypatch):
    """A slow host: launches x cost. A fast one: as without. Each launch is counted, whether it is a
    node or not.
    """
    if merged:
        monkeypatch.setattr(step, "KERNEL_NODES", 0)
    c = config(accumulation=2)
    assert step_s(transformer(c, _host(1.0))) == pytest.approx(launched(c), abs=0.1)
    assert step_s(transformer(c, _host(1e-12))) == pytest.approx(step_s(transformer(c)), rel=1e-4)


@pytest.mark.parametrize("merged", [False, True])
def test_each_launch_of_a_host_that_is_a_number_costs_as_much(merged, monkeypatch):
    """Those of experts one by one, as `hybridperf steps` counts them."""
    if merged:
        monkeypatch.setattr(step, "KERNEL_NODES", 0)
    c = config(dataclasses.replace(GPT, family="moe", experts=8, topk=2), settings={})
    assert step_s(transformer(c, 1.0)) == pytest.approx(launched(c), abs=0.1)
    with pytest.raises(InputError, match="host must be a number of zero or more, got -1"):
        transformer(c, -1)


def test_experts_are_priced_as_products(model):
    """A server's kernel for all experts together is no part of training."""
    c = config(dataclasses.replace(GPT, family="moe", experts=8, topk=2), settings={}, dp=4, ep=4)
    assert "moe" not in set(hp.predict(model, transformer(c)).breakdown()["group"])


@pytest.mark.parametrize("overlapped", [True, False])
def test_gradients_of_experts_are_summed_where_other_weights_have_one_rank(overlapped):
    """Whole experts on a tensor-parallel group of four, dealt out over two ranks: two ranks hold
    the same ones, though no rank holds another's share of all else.
    """
    moe = dataclasses.replace(GPT, family="moe", experts=8, topk=2)
    settings = {"overlap_gradients": overlapped}
    c = config(moe, settings=settings, tp=4, sequence_parallel=True, ep=2, expert_tp=1)
    assert any("gradients summed" in label for label in transformer(c).graph.labels)


def test_the_graph_ranks_expert_parallelism_as_steps_do(model):
    """128 experts a layer: launches and products of all of them on each rank, or of few; by the
    row's own config and prices.
    """
    frame = pd.DataFrame(
        [
            {
                "model": "qwen3-30b-a3b",
                "gpu": "h100_sxm",
                "layers": 16,
                "seq": 4096,
                "n_gpus": 16,
                "tp": 1,
                "pp": 1,
                "dp": 16,
                "ep": ep,
                "micro_batch": 1,
                "grad_accum": 4,
                "sharding": "zero1",
                "precision": "bf16",
                "framework": "megatron_core",
            }
            for ep in (1, 4, 16)
        ]
    )
    by_steps = predict_steps(frame).frame["predicted_s"].to_numpy(float)
    prices = [shared_price_cache().prices(row.machine) for row in resolve(frame)]
    by_graph = [
        hp.predict(one.model.with_collectives(one.links), hp.transformer(row.config)).time_s
        for one, row in zip(prices, resolve(frame), strict=True)
    ]
    assert by_graph == pytest.approx(by_steps, rel=0.15)
    assert by_graph[0] > by_graph[1] > by_graph[2]


def test_an_interval_holds_what_nobody_knows_of_a_step(model):
    """Of what products bound as much as is unsure of products, of what launches bound as much as is
    unsure of launches; a host that was traced is none of it.
    """
    bound = hp.TransformerConfig(load_shape("llama3-8b").replace(seq=8192), Layout(accumulation=4))
    small = hp.TransformerConfig(load_shape("gpt2-xl").replace(seq=256), Layout(accumulation=4))
    widths = []
    for c, host in ((bound, "believed"), (small, "believed"), (small, _host(45e-6))):
        found = hp.predict(model, hp.transformer(c, host))
        assert found.low_s < found.time_s < found.high_s
        widths.append(np.log(found.high_s / found.low_s))
        assert any("no measured steps: default efficiencies alone" in one for one in found.notes)
    products, launches, traced = widths
    assert 0.3 < products < 0.8 < launches
    assert traced < 0.7 * launches


def test_a_host_bound_step_is_not_the_sum_of_host_and_device():
    """max, not sum (training_steps.md 2.3)."""
    c = config(accumulation=4)
    device = step_s(transformer(c))
    launch_s = device / launched(c)  # as much for the host to do as for the device
    both = step_s(transformer(c, _host(launch_s)))
    assert device <= both < 1.5 * device


# predictions
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return hp.load_model("h100_sxm").with_collectives(load_collectives("aic_h100_sxm"))


def test_predicting_a_step_with_a_shipped_model(model):
    c = hp.TransformerConfig(
        hp.load_shape("gpt3-1.3b"), Layout(tp=2, dp=2, pp=2, accumulation=4, micro_batch=2)
    )
    found = hp.predict(model, hp.transformer(c))
    tokens = c.layout.global_batch * c.shape.seq
    mfu = c.shape.model_flops(tokens) / found.time_s / (c.layout.ranks * 989e12)
    assert 0.1 < mfu < 0.8
    assert found.roofline_s < found.time_s
    listed = found.ops()  # ops without a name of their own in tables, too
    assert len(listed) == len(found.workload.graph)
    assert "adam" in set(listed["op"])
    groups = set(found.breakdown()["group"])
    assert {"gemm", "prefill_attention", "all_reduce", "sendrecv", "elementwise", "norm"} <= groups
    assert "launch overhead: default, not measured" in found.notes
    assert any("no host" in note for note in hp.predict(model, hp.transformer(c, host=None)).notes)
    assert len(found.ops()) == len(found.workload.graph)  # each kernel has a row for people


def test_more_of_the_same_takes_longer(model):
    """Monotone in depth, in micro-batches and in recompute."""
    base = config(accumulation=2, settings={})

    def time_s(c: TransformerConfig) -> float:
        return hp.predict(model, transformer(c)).time_s

    one = time_s(base)
    assert time_s(base.replace(shape=dataclasses.replace(GPT, layers=16))) > one
    assert time_s(config(accumulation=4, settings={})) > one
    assert time_s(config(accumulation=2, settings={}, recompute="full")) > one


def test_gradients_reach_the_machines_numbers(model):
    """Elasticities along the longest path: arithmetic and bandwidth, against a device that has a
    hundredth more of each.
    """
    workload = transformer(config(tp=2, accumulation=2, settings={}))
    found = hp.predict(model, workload)
    slopes = hp.elasticities(found).set_index("knob")["elasticity"]
    assert -1 < slopes["memory_bytes_per_s"] < 0
    assert -1 < slopes["peak_flops_scale"] < 0
    around = np.array([0.99, 1.01])
    times = hp.predict_batch(
        model, workload, memory_bytes_per_s=around * model.device.memory_bytes_per_s
    )
    assert np.diff(np.log(times))[0] / np.diff(np.log(around))[0] == pytest.approx(
        slopes["memory_bytes_per_s"], abs=0.02
    )


def test_the_graph_names_a_rank_for_each_stage():
    workload = transformer(config(pp=4, accumulation=4, tp=2, dp=2))
    graph: Graph = workload.graph
    assert sorted(set(graph.rank.tolist())) == [0, 1, 2, 3]
    tied = [node for node in range(len(graph)) if graph.labels[node].startswith("tied embedding")]
    assert [int(graph.rank[node]) for node in tied] == [0, 3]
    kinds = OpCall | CollectiveCall | GivenSeconds | CallChain
    assert all(isinstance(call, kinds) for call in workload.calls)
    assert flops([]) == 0.0


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ({"tp": 2}, {}),
        ({"cp": 4}, {"attention": "fused", "dropout": False, "context_messages": "ring"}),
    ],
)
def test_a_composed_step_says_what_the_flat_one_says(model, monkeypatch, layout, settings):
    """Seconds, interval, breakdown, variations and slopes: chains of rows
    are priced by their rows.
    """
    c = config(pp=2, accumulation=4, dp=2, settings=settings, **layout)
    flat = transformer(c)
    monkeypatch.setattr(step, "KERNEL_NODES", 0)
    composed = transformer(c)
    assert any(isinstance(call, CallChain) for call in composed.calls)
    one, other = hp.predict(model, flat), hp.predict(model, composed)
    assert other.time_s == pytest.approx(one.time_s, rel=1e-6)
    assert other.roofline_s == pytest.approx(one.roofline_s, rel=1e-6)
    pd.testing.assert_frame_equal(one.breakdown(), other.breakdown(), rtol=1e-6)
    assert set(one.notes) == set(other.notes)
    rates = model.device.memory_bytes_per_s * np.array([0.5, 1.0, 2.0])
    varied = [
        hp.predict_batch(model, workload, memory_bytes_per_s=rates) for workload in (flat, composed)
    ]
    np.testing.assert_allclose(varied[1], varied[0], rtol=1e-5)
    slopes = [hp.elasticities(found).set_index("knob")["elasticity"] for found in (one, other)]
    np.testing.assert_allclose(slopes[1], slopes[0][slopes[1].index], rtol=1e-3, atol=1e-6)


def test_intervals_of_composed_steps(model, monkeypatch):
    """Products alone have an interval here: errors of their rows go through the chain."""
    steps = tuple(
        one for one in layer_passes(config(BARE, settings={})).forward if isinstance(one.op, Gemm)
    )
    found = []
    for each in (True, False):
        lines = RankStreams(None, each_kernel=each)
        lines.run(0, (RepeatedSteps(steps, 3, backward=False),), "forward")
        found.append(
            hp.predict(model, Workload("products", lines.graph.build(), tuple(lines.calls)))
        )
    assert found[0].low_s < found[0].time_s < found[0].high_s
    assert (found[1].low_s, found[1].high_s) == pytest.approx(
        (found[0].low_s, found[0].high_s), rel=1e-6
    )


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"pp": 16}, "pp must not exceed the layers, got pp 16, 8 layers"),
        ({"tp": 8}, "heads must be divisible by tp"),
        (
            {"pp": 2, "schedule": "chimera", "accumulation": 2, "dp": 2, "zero": 1},
            "schedule 'chimera' with ZeRO-1 is not modelled",
        ),
        (
            {"pp": 2, "schedule": "zero_bubble", "recompute": "full"},
            "schedule 'zero_bubble' with recompute is not modelled",
        ),
        (
            {"pp": 2, "schedule": "zero_bubble", "dp": 2, "zero": 3},
            "schedule 'zero_bubble' with ZeRO-3 is not modelled",
        ),
    ],
)
def test_layouts_that_are_refused(layout, sentence):
    with pytest.raises(InputError) as refused:
        transformer(config(**layout))
    assert sentence in str(refused.value)


def test_fused_attention_of_an_older_kernel_takes_its_published_share(model):
    """As `hybridperf steps` prices it, forward and backward, in the seconds and not in the
    datasheet's; nothing published: as measured.
    """
    plain, older = (
        transformer(config(BARE, settings={"attention_kernel": kernel}))
        for kernel in ("", "flash2")
    )
    one, other = hp.predict(model, plain), hp.predict(model, older)
    shown_s, shown_older_s = (
        found.breakdown().set_index("group")["seconds"] for found in (one, other)
    )
    ours, op = Prices(model), PrefillAttention("bf16", 1.0, 4096.0, 16.0, 128.0)
    both = [OpCall(op, issued_apart=True, kernel=kernel) for kernel in ("flash2", "")]
    ours.learn(both)
    factor = ours[both[0]] / ours[both[1]]
    assert factor > 1.2
    # the gap behind each kernel stays
    rows = zip(plain.calls, plain.in_step.places, plain.times_run(), strict=True)
    kernels = sum(times * place.count for _, place, times in rows if place.role == "attention")
    gaps_s = kernels * BELIEFS["exposed_kernel_s"].median
    # another size than the factor's, so as many millionths more or less of power's limit
    assert shown_older_s["prefill_attention"] - gaps_s == pytest.approx(
        factor * (shown_s["prefill_attention"] - gaps_s), rel=1e-5
    )
    assert shown_older_s["gemm"] == pytest.approx(shown_s["gemm"])
    assert other.roofline_s == pytest.approx(one.roofline_s)
    rate = [model.device.memory_bytes_per_s]
    assert hp.predict_batch(model, older, memory_bytes_per_s=rate) == pytest.approx(
        other.time_s, rel=1e-5
    )
    b200 = hp.load_model("b200_sxm")
    assert hp.predict(b200, older).time_s == pytest.approx(hp.predict(b200, plain).time_s)


@pytest.mark.parametrize(
    "framework", ["megatron_core", "nanotron", "torchtitan", "llm_foundry", "megatron_deepspeed"]
)
def test_a_framework_runs_a_step_as_rows_of_it_are_understood(framework):
    """The same config, so the same kernels and messages."""
    layout = Layout(tp=2, dp=2, pp=2, micro_batch=2, accumulation=4, sequence_parallel=True)
    frame = pd.DataFrame([{
        "model": "gpt3-1.3b", "gpu": "h100_sxm", "n_gpus": 8, "tp": 2, "dp": 2, "pp": 2, "vp": 1,
        "micro_batch": 2, "grad_accum": 4, "seq_parallel": "yes", "sharding": "none",
        "recompute": "none", "precision": "bf16", "framework": framework,
    }])  # fmt: skip
    (row,) = resolve(frame)
    assert row.config == TransformerConfig.run_by(framework, load_shape("gpt3-1.3b"), layout)
    named = TransformerConfig(GPT, framework=framework)
    assert named.kernels == named.replace(framework=row.config.framework).kernels


def test_kernels_are_those_of_the_framework_that_steps_assume():
    assert layer_passes(config(settings={})) == layer_passes(
        config(settings={"framework": "megatron_core"})
    )
    assert launches(layer_passes(config(settings={})).forward) == launches(
        layer_passes(config(settings={"framework": "compiled"})).forward
    )
    with pytest.raises(
        InputError, match=r"unknown framework 'megatron_cor' \(did you mean 'megatron_core'"
    ):
        TransformerConfig.run_by("megatron_cor", GPT)


def test_what_was_not_measured_widens_and_a_given_framework_is_not_denied():
    c = config(load_shape("llama3-8b"), settings={"framework": "compiled", "dtype": "bf16"})
    step = transformer(c)
    found = hp.predict(hp.load_model("a100_pcie_40g"), step)
    measured = hp.predict(hp.load_model("a100_sxm4_80g"), step)
    assert found.high_s / found.low_s > 1.2 * measured.high_s / measured.low_s
    assert any(note.startswith("no attention in bf16") for note in found.notes)
    assert not any(
        "no framework given" in note
        for note in hp.predict(hp.load_model("a100_sxm4_80g"), found.workload).notes
    )
    assert any(
        "kernels that were measured in" in note
        for note in hp.predict(hp.load_model("a100_sxm4_80g"), found.workload).notes
    )
