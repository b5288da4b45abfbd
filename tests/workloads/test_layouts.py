"""Layouts: what is legal and how that is said, which ranks talk to each other, how layers are dealt
out.
"""

import itertools
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.workloads.transformer import Layout, Layouts, Scan, load_shape
from hybridperf.workloads.transformer.columns import RULES, SCHEDULES, broken_rules, legal, remarks
from hybridperf.workloads.transformer.groups import Span
from hybridperf.workloads.transformer.layout import ORDER
from hybridperf.workloads.transformer.shape import layers_before, stage_layers

GPT3 = load_shape("gpt3-175b")
MIXTRAL = load_shape("mixtral-8x7b")
LLAMA = load_shape("llama3-8b")
FLUX = load_shape("flux.1-dev")
HYBRID = hp.TransformerShape(
    "hybrid", "llama", hidden=512, heads=8, layers=4, ffn=1024, vocab=1000, seq=1024,
    mixers=("scan", "scan", "attention", "scan"), scan=Scan(16, 64, 64, 2),
)  # fmt: skip


def test_ranks_and_batch():
    layout = hp.Layout(tp=8, pp=12, dp=4, cp=2, micro_batch=2, accumulation=16)
    assert layout.ranks == 8 * 12 * 4 * 2
    assert layout.global_batch == 2 * 16 * 4
    assert layout.check(GPT3, gpus=768, gpus_per_node=8, global_batch=128) == []


BROKEN = [
    (GPT3, {"tp": 7}, {}, "heads must be divisible by tp, got 96 heads, tp 7"),
    (GPT3, {"tp": 128}, {}, "heads must be divisible by tp, got 96 heads, tp 128"),
    (
        LLAMA.replace(kv_heads=8, heads=48, head_dim=64),
        {"tp": 3},
        {},
        "kv_heads must be divisible by tp or divide it, got 8 kv_heads, tp 3",
    ),
    (LLAMA.replace(ffn=14335), {"tp": 4}, {}, "ffn must be divisible by tp, got ffn 14335, tp 4"),
    (GPT3, {"pp": 97}, {}, "pp must not exceed the layers, got pp 97, 96 layers"),
    (
        GPT3,
        {"pp": 8, "vp": 13, "schedule": "interleaved", "accumulation": 8},
        {},
        "pp x vp chunks, the embedding and the head counted, got 96 layers, pp 8, vp 13",
    ),
    (
        GPT3,
        {"pp": 8, "vp": 3},
        {},
        "the interleaved schedule, and no other, has vp of 2 or more, but zb_v and dualpipe_v have"
        " vp 2, got vp 3",
    ),
    (
        GPT3,
        {"pp": 8, "schedule": "interleaved"},
        {},
        "the interleaved schedule, and no other, has vp of 2 or more, but zb_v and dualpipe_v have"
        " vp 2, got vp 1",
    ),
    (
        GPT3,
        {"vp": 2, "schedule": "interleaved"},
        {},
        "interleaving needs a pipeline of 2 stages or more, got pp 1, vp 2",
    ),
    (
        GPT3,
        {"pp": 8, "vp": 2, "schedule": "interleaved", "accumulation": 12},
        {},
        "accumulation divisible by pp, got accumulation 12, pp 8",
    ),
    (
        GPT3,
        {"pp": 3, "schedule": "chimera", "accumulation": 4},
        {},
        "chimera needs an even number of stages, got pp 3",
    ),
    (
        GPT3,
        {"pp": 4, "schedule": "chimera", "accumulation": 5},
        {},
        "an even number of micro-batches, half for each direction, got",
    ),
    (
        GPT3,
        {"pp": 4, "schedule": "chimera", "accumulation": 6},
        {},
        "chimera needs up to pp micro-batches or a multiple of pp, got",
    ),
    (GPT3, {"cp": 3}, {}, "seq must be divisible by cp, got seq 2048, cp 3"),
    (
        HYBRID,
        {"cp": 2},
        {},
        "of a scan, a convolution or compressed keys is not modelled: take cp 1",
    ),
    (HYBRID, {"tp": 4}, {}, "groups of a scan must be divisible by tp, got 2 groups, tp 4"),
    (
        GPT3,
        {"pp": 4, "schedule": "dualpipe", "accumulation": 6},
        {},
        "dualpipe needs 2 pp micro-batches or more, got accumulation 6, pp 4",
    ),
    (
        GPT3,
        {"pp": 4, "vp": 2, "schedule": "zb_v", "accumulation": 6},
        {},
        "zb_v needs 2 pp - 1 micro-batches or more, got accumulation 6, pp 4",
    ),
    (
        GPT3,
        {"pp": 2, "vp": 3, "schedule": "zb_v", "accumulation": 6},
        {},
        "schedules zb_v and dualpipe_v have vp 2, got vp 3",
    ),
    (
        GPT3,
        {"pp": 2, "schedule": "zero_bubble", "dp": 2, "zero": 3},
        {},
        "schedule 'zero_bubble' with ZeRO-3 is not modelled",
    ),
    (
        GPT3,
        {"pp": 2, "schedule": "zero_bubble", "recompute": "full"},
        {},
        "schedule 'zero_bubble' with recompute is not modelled",
    ),
    (GPT3, {"ep": 2, "dp": 2}, {}, "ep needs a model with experts, got ep 2 for gpt3-175b"),
    (MIXTRAL, {"ep": 3, "dp": 3}, {}, "experts must be divisible by ep, got 8 experts, ep 3"),
    (
        MIXTRAL,
        {"ep": 8, "dp": 4},
        {},
        "ep x expert_tp must divide tp x cp x dp, got 8 x 1 of 1 x 1 x 4",
    ),
    (
        MIXTRAL,
        {"ep": 8, "dp": 2, "tp": 4},
        {},
        "ep x expert_tp must divide tp x cp x dp, got 8 x 4 of 4 x 1 x 2; expert_tp 1 leaves"
        " experts whole",
    ),
    (MIXTRAL, {"tp": 4, "expert_tp": 2}, {}, "expert_tp must be 1 or tp, got expert_tp 2, tp 4"),
    (
        MIXTRAL,
        {"tp": 4, "expert_tp": 1, "ep": 4},
        {},
        "need sequence_parallel, which deals the tokens out",
    ),
    (
        GPT3,
        {"dp": 8, "zero": 3, "shard_ranks": 3},
        {},
        "shard_ranks must divide dp x cp, got shard_ranks 3, dp 8, cp 1",
    ),
    (GPT3, {"dp": 8, "shard_ranks": 4}, {}, "with zero 0 it must be None, got 4"),
    (GPT3, {"sequence_parallel": True}, {}, "it needs tp of 2 or more, got tp 1"),
    (GPT3, {"tp": 0}, {}, "tp must be a whole number of 1 or more, got 0"),
    (GPT3, {"dp": -2}, {}, "dp must be a whole number of 1 or more, got -2"),
    (GPT3, {"micro_batch": 1.5}, {}, "micro_batch must be a whole number of 1 or more, got 1.5"),
    (GPT3, {"zero": 4}, {}, "zero must be 0, 1, 2 or 3, got 4"),
    (GPT3, {"recompute": "some"}, {}, "recompute must be one of none, selective, full, got 'some'"),
    (
        GPT3,
        {"schedule": "dapple"},
        {},
        "schedule must be one of 1f1b, gpipe, interleaved, chimera, zero_bubble, zb_v, dualpipe,"
        " dualpipe_v, got 'dapple'",
    ),
    (
        GPT3,
        {"order": ("tp", "dp")},
        {},
        "order must name each of tp, cp, ep, dp, pp once, got tp, dp",
    ),
    (
        GPT3,
        {"tp": 8},
        {"gpus": 16},
        (
            "tp x cp x dp x pp must be the number of GPUs, got tp 8 x cp 1 x dp 1 x pp 1 = 8 for 16"
            " GPUs"
        ),
    ),
    (
        GPT3,
        {"dp": 12},
        {"gpus": 12, "gpus_per_node": 8},
        "expected whole nodes of 8 GPUs, got 12 GPUs; 8 or 16 would be whole",
    ),
    (
        GPT3,
        {"dp": 4, "accumulation": 3},
        {"global_batch": 16},
        "micro_batch 1 x accumulation 3 x dp 4 = 12 for a global batch of 16",
    ),
]


@pytest.mark.parametrize(
    ("shape", "layout", "cluster", "says"), BROKEN, ids=lambda x: x if isinstance(x, str) else ""
)
def test_each_rule_has_its_sentence(shape, layout, cluster, says):
    with pytest.raises(InputError) as error:
        Layout(**layout).check(shape, **cluster)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_seven_gpus_of_a_node_of_eight_are_fine():
    assert Layout(dp=7).check(GPT3, gpus=7, gpus_per_node=8) == []


def test_what_some_frameworks_run_is_a_note_if_asked():
    layout = Layout(tp=5)
    with pytest.raises(InputError, match="heads"):
        layout.check(GPT3)
    notes = layout.check(GPT3, strict=False)
    assert any("heads must be divisible by tp" in note for note in notes)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"pp": 7, "accumulation": 8}, "96 layers on pp 7 make unequal stages"),
        ({"pp": 8, "accumulation": 6}, "accumulation 6 leaves stages of pp 8 empty"),
        (
            {"pp": 2, "dp": 2, "zero": 3, "accumulation": 2},
            "ZeRO-3 communicates for every micro-batch under pp 2",
        ),
        ({"tp": 16}, "tensor-parallel groups of 16 ranks lie on 2 nodes"),
    ],
)
def test_what_is_unusual_is_noted(layout, says):
    assert any(says in note for note in Layout(**layout).check(GPT3, gpus_per_node=8))


def many(count=400, seed=0):
    """Layouts of all kinds, legal and not."""
    rng = np.random.default_rng(seed)
    of = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    found = []
    for _ in range(count):
        schedule, tp, dp = (
            of(*SCHEDULES),
            of(1, 2, 3, 8, 64),
            of(1, 2, 4, 6),
        )
        zero = of(0, 1, 2, 3)
        found.append(
            Layout(
                tp=tp,
                sequence_parallel=tp > 1 and bool(of(0, 1)),
                pp=of(1, 2, 3, 4, 32, 40),
                vp=of(1, 2, 3) if schedule in ("interleaved", "zb_v", "dualpipe_v") else 1,
                dp=dp,
                cp=of(1, 1, 2),
                ep=of(1, 1, 2, 4),
                expert_tp=of(None, 1, 2),
                zero=zero,
                shard_ranks=of(None, 2) if zero else None,
                micro_batch=of(1, 2),
                accumulation=of(1, 2, 4, 8),
                recompute=of("none", "selective", "full"),
                schedule=schedule,
            )
        )
    return found


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("shape", [LLAMA, MIXTRAL])
def test_columns_are_judged_as_single_layouts_are(shape, strict):
    layouts = many()

    def passes(layout):
        try:
            layout.check(shape, strict=strict)
        except InputError:
            return False
        return True

    expected = [passes(layout) for layout in layouts]
    found = legal(shape, Layouts.of(layouts), strict)
    assert found.tolist() == expected
    assert 10 < sum(expected) < len(layouts) - 10
    assert jax.jit(lambda x: legal(shape, x, strict))(Layouts.of(layouts)).tolist() == expected


@pytest.mark.parametrize("shape", [LLAMA, MIXTRAL])
def test_remarks_of_columns_are_those_of_single_layouts(shape):
    """The rules that columns break say what `check` says, word for word, or refuse alike."""
    layouts = many()
    columns = Layouts.of(layouts)
    rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    assert [Layouts(*row) for row in rows] == [layout.columns for layout in layouts]

    def said(check):
        try:
            return check()
        except InputError as error:
            return str(error)

    for layout, broken in zip(layouts, broken_rules(shape, columns), strict=True):
        whole = said(lambda layout=layout: layout.check(shape))
        parts = said(lambda x=layout, broken=broken: remarks(broken, shape, x.columns))
        assert parts == whole


def test_every_rule_can_be_broken():
    """No rule stands there that nothing breaks."""
    odd = LLAMA.replace(seq=4095, ffn=14335, vocab=50257), MIXTRAL.replace(experts=6)
    kinds = [(shape, Layouts.of(many(2000))) for shape in (LLAMA, MIXTRAL, HYBRID, FLUX, *odd)]
    for rule in RULES:
        assert any(not np.all(rule.holds(shape, columns)) for shape, columns in kinds), (
            rule.sentence
        )


# groups
# --------------------------------------------------------------------------------------------------


def test_tensor_parallel_inside_a_node_data_parallel_across():
    layout = Layout(tp=8, dp=4, pp=2)
    assert layout.group("tp", 8) == Span(8, 1, 8)
    assert layout.group("dp", 8) == Span(4, 4, 1)
    assert layout.group("pp", 8) == Span(2, 2, 1)
    half = layout.replace(tp=4)
    assert half.group("dp", 8) == Span(4, 2, 2)
    assert Layout(tp=16).group("tp", 8) == Span(16, 2, 8)


def test_order_decides_what_lies_inside_a_node():
    first = Layout(tp=2, dp=8, order=("dp", "tp", "cp", "ep", "pp"))
    assert first.group("dp", 8) == Span(8, 1, 8)
    assert first.group("tp", 8) == Span(2, 2, 1)
    last = first.replace(order=ORDER)
    assert last.group("dp", 8) == Span(8, 2, 4)
    assert last.group("tp", 8) == Span(2, 1, 2)


def test_groups_of_experts_and_of_shards():
    layout = Layout(tp=2, dp=16, ep=8)
    assert layout.group("ep", 8) == Span(8, 2, 4)  # every other rank of sixteen
    assert layout.group("expert_data", 8) == Span(2, 2, 1)
    whole = layout.replace(expert_tp=1, sequence_parallel=True)
    assert whole.group("ep", 8) == Span(8, 1, 8)
    assert whole.group("expert_data", 8) == Span(4, 4, 1)
    hybrid = Layout(dp=32, zero=3, shard_ranks=8)
    assert hybrid.group("shard", 8) == Span(8, 1, 8)
    assert hybrid.group("replica", 8) == Span(4, 4, 1)
    assert Layout(dp=8, cp=4, tp=2).group("data", 8) == Span(32, 8, 4)


def brute(layout, dim, per_node):
    """Ranks of each group of a dimension, walked through one by one; the
    group on the most nodes.
    """
    dims = [name for name in layout.order if name != "ep"]
    groups = {}
    for values in itertools.product(*(range(getattr(layout, name)) for name in reversed(dims))):
        rank = 0
        at = dict(zip(reversed(dims), values, strict=True))
        for name in reversed(dims):
            rank = rank * getattr(layout, name) + at[name]
        key = tuple(at[name] for name in dims if name != dim)
        groups.setdefault(key, []).append(rank // per_node)
    nodes = max(len(set(group)) for group in groups.values())
    return Span(
        getattr(layout, dim),
        nodes,
        max(max(group.count(n) for n in group) for group in groups.values()),
    )


sizes = st.integers(1, 6)


@settings(max_examples=60, deadline=None)
@given(
    sizes,
    sizes,
    sizes,
    sizes,
    st.sampled_from([1, 2, 3, 4, 8]),
    st.permutations(ORDER),
    st.sampled_from(["tp", "cp", "dp", "pp"]),
)
def test_spans_are_those_of_the_ranks_themselves(tp, cp, dp, pp, per_node, order, dim):
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=pp, order=tuple(order))
    assert layout.group(dim, per_node) == brute(layout, dim, per_node)


def test_groups_nobody_has():
    with pytest.raises(InputError, match=r"unknown dimension 'tensor'"):
        Layout().group("tensor", 8)
    with pytest.raises(InputError, match="gpus_per_node must be 1 or more, got 0"):
        Layout().group("tp", 0)
    with pytest.raises(InputError, match="a group of 3 ranks must divide"):
        Layout(dp=8, zero=1, shard_ranks=3).group("shard", 8)


# stages
# --------------------------------------------------------------------------------------------------


def walk(depth, stages, head):
    """The rule as the framework walks it: a block moves on to the next stage once the cost so far
    passes the stage's threshold; in whole numbers, where 67.1 x 30 / 33 is 61.
    """
    total, found, stage = depth + Fraction(str(head)), [0] * stages, 0
    for layer in range(1, depth + 1):
        found[stage] += 1
        if stage < stages - 1 and layer > total * (stage + 1) / stages:
            stage += 1
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 130), st.sampled_from([0.0, 1.1, 4.0]))
def test_layers_by_cost_are_those_of_the_walk(stages, depth, head):
    if stages > depth:
        return
    assert stage_layers(depth, stages, np.arange(stages), "cost", head).tolist() == walk(
        depth, stages, head
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 130))
def test_even_stages_differ_by_one_and_shrink(stages, depth):
    layers = stage_layers(depth, stages, np.arange(stages))
    assert layers.sum() == depth
    assert layers.max() - layers.min() <= 1
    assert (np.diff(layers) <= 0).all()
    assert layers_before(depth, stages, stages) == depth


def test_other_splits_are_refused():
    with pytest.raises(InputError, match="layers are split over stages by even or cost, got 'odd'"):
        stage_layers(4, 2, 0, "odd")
