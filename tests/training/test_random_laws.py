"""Laws of twins: two ways to run one step that physics orders, in 150 layouts drawn at random.

What a law does not hold for is said beside it, with the published measurement or the source that
shows why. Each test prints of how many layouts it asked, and the worst of them.
"""

import numpy as np
import pytest
from support.random_layouts import random_layouts

from hybridperf.engine.prediction import predict
from hybridperf.hardware import load_device
from hybridperf.model.price import price
from hybridperf.model.step_effects import BELIEFS
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer import load_shape
from hybridperf.workloads.transformer.framework import framework_habits
from hybridperf.workloads.transformer.parts import layer_passes
from hybridperf.workloads.transformer.passes import Passes, launches
from hybridperf.workloads.transformer.step import transformer
from hybridperf.workloads.transformer.weights import (
    embedding_weights,
    head_weights,
    layer_weights,
    shard_parameters,
)

EXACT = 1e-9


@pytest.fixture(scope="module")
def layouts():
    return random_layouts(150, seed=45)


@pytest.fixture(scope="module")
def cache():
    """Prices once for all laws."""
    return PriceCache()


@pytest.fixture
def twins(layouts, cache):
    """Rows [R] that both ways can run, `more` and `less` their predictions."""

    def asked(more: dict, less: dict, keep=None):
        rows = layouts if keep is None else layouts[keep(layouts)]
        found = [
            predict_steps(rows.assign(**one), cache=cache).frame.reset_index(drop=True)
            for one in (more, less)
        ]
        both = found[0]["predicted_s"].notna() & found[1]["predicted_s"].notna()
        first, second = (one[both].reset_index(drop=True) for one in found)
        ratio = second["predicted_s"] / first["predicted_s"]
        broken = (ratio > 1 + EXACT).sum()
        print(f"{len(ratio)} asked, {broken} longer, worst {ratio.max():.4f}, {ratio.median():.4f}")
        return first, second

    return asked


def test_two_16_bit_formats_take_one_time(twins):
    """DeepSpeed's optimizer in bf16 reduces whole gradients even where its state is sharded
    (`_bf16_reduce_grads` of deepspeed/runtime/pipe/engine.py): its messages are longer.
    """
    half, brain = twins({"precision": "fp16"}, {"precision": "bf16"})
    apart = brain["framework"].isin(["megatron_deepspeed", "gpt_neox"])
    equal = np.isclose(half["predicted_s"], brain["predicted_s"], rtol=EXACT)
    assert len(half) > 120
    assert equal[~apart].all()
    assert np.allclose(half["compute_s"], brain["compute_s"], rtol=EXACT)
    assert (brain["predicted_s"] >= half["predicted_s"] * (1 - EXACT)).all()


def test_finer_scales_cost_some_per_cent(twins):
    """Of the same step NVIDIA published 31,508 tokens/s with a scale a tensor and 29,789 with one
    for each 32 numbers on a GB200, 37,556 and 36,108 on a GB300, 30,624 and 29,521 on a B200
    (Llama 3 8B; docs/performance-summary.md of NVIDIA-NeMo/Megatron-Bridge, container 25.11).
    """
    fine, coarse = twins({"precision": "mxfp8"}, {"precision": "fp8"})
    assert len(fine) > 80
    ratio = fine["predicted_s"] / coarse["predicted_s"]
    assert (ratio > 1 - EXACT).all()
    assert (ratio < 31508 / 29789).all()


def _messages(row, cache, of=layer_weights):
    """Calls of a block's weights and gradients in shards, each with its seconds."""
    config, model = row.config, cache.prices(row.machine).model
    passes = shard_parameters(Passes(), of(config), config)
    calls = [step.call for step in (*passes.forward, *passes.backward)]
    return list(zip(calls, price(model, calls).seconds, strict=True)) if calls else []


def _layers(config):
    """Of a rank, the most."""
    return config.layout.vp * max(sum(config.layers_of(at)) for at in range(config.stages))


def _turns(config):
    """Micro-batches that a step takes as long as, with what its stages wait."""
    return config.layout.accumulation + config.layout.pp - 1


def _crossing_s(messages):
    return sum(seconds for call, seconds in messages if call.nodes > 1)


def _asked(found):
    """Rows that were predicted, understood."""
    return resolve(found.drop(columns=[name for name in found if name.endswith("_s")])).rows


GATHERS, EXCHANGES, LAUNCH, MESSAGE = (
    BELIEFS[name].median for name in ("gather", "exchange", "launch_s", "collective_launch_s")
)
LAUNCHES = np.array([LAUNCH, MESSAGE])
TWO_FOR_ONE = 1.94  # seconds of a scatter and a gather over those of a sum, the most measured
SHORT_OF_TWO = 0.63  # eight A100s a node carried 0.40 to 0.79 of what trees over two nodes would


def test_shards_in_nodes_send_no_more_between_them(layouts, cache):
    """A layer's weights gathered twice and its gradients scattered over all ranks, against shards
    of gradients summed over nodes: as many bytes where these are twice as wide, else fewer. Over
    two nodes all-reduces fall short (NVIDIA/nccl issues 495 and 837).
    """
    ways = (
        resolve(layouts.assign(sharding=name, attention="fused")).rows for name in ("fsdp", "hsdp")
    )
    ratios = []
    for wide, inside in zip(*ways, strict=True):
        if wide.config is None or inside.config is None or wide.config == inside.config:
            continue
        sent, less = (_messages(row, cache) for row in (wide, inside))
        short = SHORT_OF_TWO if any(call.nodes == 2 for call, _ in less) else 1.0
        ratios.append(_crossing_s(less) * short / _crossing_s(sent))
    print(f"{len(ratios)} asked, worst {max(ratios):.3f}, median {np.median(ratios):.3f}")
    assert len(ratios) > 60
    assert max(ratios) < 1.03


def test_shards_in_nodes_cost_a_step_what_they_move_inside(twins, cache):
    """A step is longer by no more than the larger shards' update, messages inside nodes, which a
    ring over all ranks has beside those between, and a host that gathers no longer hide.

    Where messages hide, sums over nodes have a stream of their own (`all_reduce_stream` of
    torch/distributed/fsdp): a block takes longer by what the longer of both streams outlasts those
    of a backward pass with shards over all ranks by, whose forward passes hide a gather that sums
    have not, and a step by the last sums.
    """
    wide, inside = twins({"sharding": "fsdp"}, {"sharding": "hsdp"})
    over, hidden = [], 0
    for at, (all_ranks, hybrid) in enumerate(zip(_asked(wide), _asked(inside), strict=True)):
        config = hybrid.config
        if config == all_ranks.config:
            continue
        hidden += config.overlap_shards
        more_s = last_s = 0.0
        blocks = (layer_weights, _layers(config)), (embedding_weights, 1), (head_weights, 1)
        for of, count in blocks:
            sent, less = (_messages(row, cache, of) for row in (all_ranks, hybrid))
            crossing_s, whole_s = _crossing_s(less), sum(seconds for _, seconds in sent)
            inside_s = sum(seconds for call, seconds in less if call.nodes == 1)
            if config.overlap_shards:
                behind_s = whole_s - (sent[0][1] if sent else 0.0)
                more_s += count * max(max(inside_s, crossing_s) - behind_s, 0.0)
                last_s += GATHERS * crossing_s
            else:
                more_s += count * (inside_s + max(crossing_s - whole_s, 0.0))
        of_parts = (inside.iloc[at][part] - wide.iloc[at][part] for part in ("compute_s", "host_s"))
        more_s = (
            GATHERS * more_s + sum(max(one, 0.0) for one in of_parts) / config.layout.accumulation
        )
        longer_s = inside["predicted_s"][at] - wide["predicted_s"][at]
        longer_s -= _turns(config) * more_s + last_s
        over.append(longer_s / wide["predicted_s"][at])
    print(f"{len(over)} asked, {hidden} hidden, worst {max(over):.4f} of a step beyond that")
    assert len(over) > 60
    assert hidden > 20
    assert max(over) < 1e-3


def test_sums_beside_shards_are_in_closed_form_what_they_are_as_a_graph(layouts, cache):
    """Without a pipeline, whose waits hide more in the graph than the closed form counts."""
    alone = layouts[layouts["pp"] == 1].head(40).assign(sharding="hsdp", overlap_shards="yes")
    alone = alone.assign(attention="fused", context_messages="gather")
    found = predict_steps(alone, cache=cache).frame["predicted_s"].tolist()
    off = []
    for seconds, row in zip(found, resolve(alone).rows, strict=True):
        if not (row.config and row.config.group("replica").ranks > 1):
            continue
        graph_s = predict(cache.prices(row.machine).model, transformer(row.config)).time_s
        off.append(abs(np.log(seconds / graph_s)))
    print(f"{len(off)} asked, median {np.median(off):.4f}, worst {max(off):.4f}")
    assert len(off) > 10
    assert np.median(off) < 0.005
    assert max(off) < 0.02


def test_two_directions_shorten_the_bubble(twins, layouts, cache):
    """(PP/2 - 1)(F&B + B - 3W) against (PP - 1)(F + B): DeepSeek-V3, arXiv 2412.19437, Table 2.
    What a second copy of the weights costs, their update and the sum of their gradients, comes
    once a step: twice as many micro-batches add no more than they do without, but where these still
    fill a longer bubble with launches that a shorter one shows. A framework that cuts stages by
    cost has no twin: those of two directions are cut evenly.
    """

    def cut_evenly(framework: str) -> bool:
        return framework_habits()[framework].get("stage_split", "even") == "even"

    plain = {"sharding": "none", "recompute": "none", "vp": 1}
    schedules = [plain | {"schedule": name} for name in ("1f1b", "dualpipe")]
    one_way, both = twins(
        *schedules, keep=lambda rows: (rows["pp"] > 1) & rows["framework"].map(cut_evenly)
    )
    assert len(both) > 40
    assert (both["bubble_s"] <= one_way["bubble_s"] * (1 + EXACT)).all()
    twice = [
        predict_steps(
            one[list(layouts)].assign(grad_accum=2 * one["grad_accum"]), cache=cache
        ).frame
        for one in (one_way, both)
    ]
    more_s = [
        a["predicted_s"] - b["predicted_s"] for a, b in zip(twice, (one_way, both), strict=True)
    ]
    filled = (twice[0]["bubble_s"] >= one_way["bubble_s"] * (1 - EXACT)).to_numpy()
    assert filled.sum() > 40
    added = (more_s[1] / more_s[0])[filled]
    print(f"more micro-batches: worst {added.max():.4f}")
    assert (added <= 1.001).all()


def test_fused_attention_is_no_longer_than_unfused(twins):
    """Even of its first generation: GPT-2 of 1,024 tokens trains 1.7 times as fast as by
    Megatron's fused softmax on A100s (Dao et al., arXiv 2205.14135, Table 2). It gives a block of
    threads to each head of a sample and none to queries, and is slow where there are fewer than
    multiprocessors (Dao, arXiv 2307.08691, section 3.2): such layouts may be longer by some per
    cent.
    """
    unfused, first = twins({"attention": "unfused"}, {"attention": "flash1"})
    _, second = twins({"attention": "unfused"}, {"attention": "flash2"})
    heads = np.array([load_shape(name).heads for name in first["model"]])
    blocks = first["micro_batch"] * heads / first["tp"]
    filled = blocks >= [load_device(name).multiprocessors for name in first["gpu"]]
    ratio = first["predicted_s"] / unfused["predicted_s"]
    assert len(ratio) > 80
    assert (ratio[filled] < 1).all()
    assert (ratio > 1).sum() <= 5
    assert (ratio < 1.05).all()
    assert (second["predicted_s"] <= first["predicted_s"] * (1 + EXACT)).all()


def _launched(passes):
    """Kernels and messages that a layer's passes launch."""
    steps = (*passes.forward, *passes.backward_with_recompute)
    return launches(steps), sum(not step.is_op for step in steps)


def test_a_ring_costs_its_launches_and_gradients_way_home(twins, cache):
    """Its blocks travel beside attention, each a kernel of its own; a block's gradients take one
    hop more than blocks, home, which nothing hides (Liu et al., arXiv 2310.01889; Transformer
    Engine's `AttnFuncWithCPAndKVP2P`).
    """
    ways = ({"context_messages": name} for name in ("gather", "ring"))
    gathered, ring = twins(*ways, keep=lambda rows: rows["cp"] > 1)
    over = []
    for at, (whole, blocks) in enumerate(zip(_asked(gathered), _asked(ring), strict=True)):
        config, model = blocks.config, cache.prices(blocks.machine).model
        steps = layer_passes(config)
        home = [step.call for step in steps.backward if step.name.endswith("brought home")]
        launched = np.subtract(_launched(steps), _launched(layer_passes(whole.config)))
        more_s = EXCHANGES * sum(price(model, home).seconds) + launched @ LAUNCHES
        longer_s = ring["predicted_s"][at] - gathered["predicted_s"][at]
        longer_s -= _layers(config) * _turns(config) * more_s
        over.append(longer_s / gathered["predicted_s"][at])
    print(f"{len(over)} asked, worst {max(over):.4f} of a step beyond that")
    assert len(over) > 30
    assert max(over) < 1e-3


def test_sequence_parallelism_costs_no_more_than_two_messages_for_one(twins):
    """Norms and dropout of a share of the tokens; scatters and gathers in place of sums, which of
    the same bytes take 1.1 to 1.9 times as long together on the A100s, H100s and GB200s that
    aiconfigurator measured (collectives_dev.csv.gz of the data), in whose systems switches sum.
    torch.distributed joins along the first dimension alone, by a copy (all_gather_tensor).
    """
    ways = ({"seq_parallel": name} for name in ("no", "yes"))
    whole, divided = twins(*ways, keep=lambda rows: rows["tp"] > 1)
    assert len(divided) > 50
    computed = divided["compute_s"] / whole["compute_s"]
    copies = divided["framework"].str.startswith("torchtitan")
    assert (computed[~copies] < 1).all()
    assert (computed[copies] < 1.03).all()
    longer, less = (one["exposed_comm_s"] + one["bubble_s"] for one in (divided, whole))
    print(f"messages and bubbles: worst {(longer / less).max():.3f}")
    assert (longer < TWO_FOR_ONE * less).all()
