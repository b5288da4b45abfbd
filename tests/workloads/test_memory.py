"""Memory per stage: published and measured bytes exactly, limits, monotony, columns as single
layouts, gradients of knobs.
"""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.schedule_graphs import in_flight_of

from hybridperf.io import InputError
from hybridperf.training.offload.step import movable
from hybridperf.workloads.memory import (
    MEMORY_PRIORS,
    MemoryKnobs,
    ModelStates,
    in_flight,
    layer_activations,
    memory,
    model_states,
    sharded_bytes,
)
from hybridperf.workloads.schedules import NAMES, schedule
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.transformer import Layout, Layouts, load_shape
from hybridperf.workloads.transformer.columns import SCHEDULES, legal
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.shape import stage_layers
from hybridperf.workloads.transformer.update import tied_reduction, updated_weights

GIB = 2**30
GPT3, LLAMA, MIXTRAL = load_shape("gpt3-175b"), load_shape("llama3-8b"), load_shape("mixtral-8x7b")
MEGATRON = {"dtype": "fp16", "attention": "unfused", "dropout": True}
NO_GUESS = MemoryKnobs(fixed_bytes=0.0)

# 2205.05198 by way of formulas.md 4.2: layout, GiB on the first stage without recompute and with
# sequence parallelism and selective recompute, percent of the first for: sequence parallelism,
# selective, both, full
SELECTIVE = [
    ("megatron-22b", Layout(tp=8, micro_batch=4), 59.25, 9.5625, (66.84, 49.42, 16.18, 7.64)),
    (
        "gpt3-175b",
        Layout(tp=8, pp=8, vp=3, schedule="interleaved", accumulation=64),
        66.84375,
        12.3515625,
        (62.04, 56.53, 18.49, 8.71),
    ),
    (
        "megatron-530b",
        Layout(tp=8, pp=35, vp=3, schedule="interleaved", accumulation=280),
        114.0234375,
        23.076171875,
        (58.31, 62.04, 20.27, 9.42),
    ),
    (
        "megatron-1t",
        Layout(tp=8, pp=64, accumulation=512),
        131.25,
        26.5625,
        (58.31, 62.04, 20.27, 9.42),
    ),
]


def first_stage(name, layout, **changes):
    return memory(load_shape(name), layout.replace(**changes), **MEGATRON).activations_bytes[0]


@pytest.mark.parametrize(("name", "layout", "none_gib", "both_gib", "percent"), SELECTIVE)
def test_megatrons_selective_recompute_to_the_byte(name, layout, none_gib, both_gib, percent):
    """All eight values exactly; the percentages to 0.15 points, as the formulas give them."""
    none = first_stage(name, layout)
    assert none == none_gib * GIB
    assert (
        first_stage(name, layout, sequence_parallel=True, recompute="selective") == both_gib * GIB
    )
    kept = [
        first_stage(name, layout, sequence_parallel=True),
        first_stage(name, layout, recompute="selective"),
        first_stage(name, layout, sequence_parallel=True, recompute="selective"),
        first_stage(name, layout, recompute="full"),
    ]
    assert [100 * one / none for one in kept] == pytest.approx(percent, abs=0.15)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zeros_worked_example(zero, gigabytes):
    """7.5 billion parameters over 64 ranks (1910.02054): 120, 31.4, 16.6 and 1.9 GB."""
    total = sum(sharded_bytes(7.5e9, model_states("fp16"), zero, 64))
    exact = {0: 16, 1: 4 + 12 / 64, 2: 2 + 14 / 64, 3: 16 / 64}[zero] * 7.5e9
    assert total == exact
    assert round(total / 1e9, 1) == gigabytes


def alone(shape, micro_batch):
    layer = layer_activations(
        shape,
        Layout(micro_batch=micro_batch).columns,
        element_bytes=4.0,
        fused=False,
        dropout=True,
        alone=True,
    )
    return layer.hidden + layer.heads + layer.ffn + layer.scores


@pytest.mark.parametrize(
    ("name", "batches"), [("bert-large", (1, 2, 4, 8, 16, 32, 64)), ("bert-base", (2, 32, 64))]
)
def test_measured_bert_layers_to_the_byte(data_dir, name, batches):
    """b (70 s h + 9 a s^2 + 16 s): Chimera's profiles, fp32, sequence 128. Other sizes of BERT-base
    were rounded by the allocator.
    """
    path = data_dir / "chimera_profiles" / "layer_profiles_dev.csv"
    if not path.is_file():
        pytest.skip(f"no layer profiles at {path}")
    rows = pd.read_csv(path)
    shape = load_shape(name).replace(seq=128)
    for batch in batches:
        measured = rows[(rows.model == name) & (rows.micro_batch == batch)].mem_act_mib
        assert len(measured)
        s, h, a = 128, shape.hidden, shape.heads
        assert alone(shape, batch) == batch * (70 * s * h + 9 * a * s**2 + 16 * s)
        assert (measured * 2**20 == alone(shape, batch)).all()


def test_the_layer_formulas():
    """s b h (34 + 5 a s / h), (10 + 24/t + ..), 34 s b h / t, 2 s b h: formulas.md 3.1."""
    s, h, a, b, t = 2048, 12288, 96, 2, 8

    def kept(**layout):
        layout = Layout(micro_batch=b, **layout).columns
        return layer_activations(GPT3, layout, fused=False, dropout=True).kept(
            layout.recompute, MemoryKnobs()
        )

    assert kept() == s * b * h * (34 + 5 * a * s / h)
    assert kept(tp=t) == s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    assert kept(tp=t, sequence_parallel=True) == s * b * h / t * (34 + 5 * a * s / h)
    assert kept(tp=t, sequence_parallel=True, recompute="selective") == 34 * s * b * h / t
    assert kept(tp=t, recompute="full") == 2 * s * b * h
    assert kept(cp=2) == s * b * h / 2 * (34 + 5 * a * s / h)


def test_gqa_gates_and_experts_by_hand():
    """Llama 3 8B, one sample: 4 hidden, queries, context, two quarters of keys and values, three
    times ffn 14336; 2 bytes each.
    """
    tokens, h = 8192, 4096
    layer = layer_activations(LLAMA, Layout().columns)
    assert layer.hidden == tokens * 2 * 4 * h
    assert layer.heads == tokens * 2 * (2 * h + 2 * h / 4)
    assert layer.ffn == tokens * 2 * 3 * 14336
    assert layer.scores == tokens * 32 * 4
    cut = layer_activations(LLAMA, Layout(tp=16, sequence_parallel=True).columns)
    assert cut.heads == tokens * 2 * (2 * h / 16 + 2 * 128)  # keys and values of whole heads
    tokens = 4096
    moe = layer_activations(MIXTRAL, Layout().columns)
    assert moe.ffn == tokens * 2 * 3 * 14336 * 2
    assert moe.hidden == tokens * (2 * 4 * h + 2 * 2 * 2 * h + 4 * 8)


def test_fused_attention_knows_no_square():
    def scores(seq, fused):
        return layer_activations(LLAMA.replace(seq=seq), Layout().columns, fused=fused).scores

    assert scores(16384, True) == 2 * scores(8192, True)
    assert scores(16384, False) == 4 * scores(8192, False)
    one, two = (
        memory(LLAMA, Layout(recompute=mode), attention="fused").activations_bytes
        for mode in ("none", "selective")
    )
    assert (one == two).all()


def test_states_by_dtype_and_optimizer():
    assert model_states("bf16") == ModelStates(2, 2, 12)
    assert model_states("bf16", grad_bytes=4) == ModelStates(2, 4, 12)
    assert model_states("fp32") == ModelStates(4, 4, 8)
    assert model_states("fp8") == ModelStates(2, 2, 12)
    assert model_states("fp32", "sgd") == ModelStates(4, 4, 0)
    with pytest.raises(InputError, match=r"unknown optimizer 'adan' \(did you mean 'adam'\?\)"):
        memory(LLAMA, Layout(), optimizer="adan")
    with pytest.raises(InputError, match="attention must be fused or unfused, got 'flash'"):
        memory(LLAMA, Layout(), attention="flash")


# stages
# --------------------------------------------------------------------------------------------------


def test_parameters_of_all_ranks_are_the_models():
    """Each matrix once over the ranks of a replica, what is whole once per tensor-parallel rank, a
    tied embedding twice in a pipeline.
    """
    states = ModelStates(1.0, 0.0, 0.0)
    assert memory(LLAMA, Layout(), states=states).weights_bytes.sum() == LLAMA.parameters
    assert memory(LLAMA, Layout(pp=5), states=states).weights_bytes.sum() == LLAMA.parameters
    norms = (2 * 32 + 1) * 4096
    assert (
        8 * memory(LLAMA, Layout(tp=8, pp=4), states=states).weights_bytes.sum()
        == LLAMA.parameters + 7 * norms
    )
    assert (
        memory(GPT3, Layout(pp=4), states=states).weights_bytes.sum()
        == GPT3.parameters + GPT3.vocab * GPT3.hidden
    )
    routed = memory(MIXTRAL, Layout(ep=8, dp=8), states=states).weights_bytes.sum()
    experts = 32 * 8 * 3 * 4096 * 14336
    assert routed == MIXTRAL.parameters - experts * 7 / 8
    whole = memory(
        MIXTRAL, Layout(tp=4, sequence_parallel=True, expert_tp=1, ep=8, dp=2), states=states
    ).weights_bytes.sum()
    cut = memory(
        MIXTRAL, Layout(tp=4, sequence_parallel=True, ep=2, dp=2), states=states
    ).weights_bytes.sum()
    assert whole == cut


def test_experts_are_sharded_over_the_ranks_that_hold_the_same_ones():
    states = ModelStates(0.0, 0.0, 1.0)
    layout = Layout(dp=8, ep=8, zero=1)
    experts = 32 * 8 * 3 * 4096 * 14336
    found = memory(MIXTRAL, layout, states=states).optimizer_bytes.sum()
    assert found == pytest.approx((MIXTRAL.parameters - experts) / 8 + experts / 8)
    whole = memory(MIXTRAL, layout.replace(ep=1), states=states).optimizer_bytes.sum()
    assert found == pytest.approx(whole)  # sharded either way


def test_in_flight_by_hand():
    """formulas.md 3.2: N, min(D, N), D (1 + (p-1)/(pv)), D/2 + 1 .. D."""

    def held(name, p, m, v=1):
        return sum(in_flight(SCHEDULES.index(name), p, v, m, np.arange(p))).tolist()

    assert held("gpipe", 4, 8) == [8, 8, 8, 8]
    assert held("gpipe", 1, 8) == held("1f1b", 1, 8) == [1]  # gradient accumulation
    assert held("1f1b", 4, 8) == [4, 3, 2, 1]
    assert held("1f1b", 4, 2) == [2, 2, 2, 1]
    assert held("zero_bubble", 4, 8)[0] == 4
    assert held("interleaved", 8, 64, 3)[0] == pytest.approx(8 * (1 + 7 / (8 * 3)))
    one = memory(LLAMA, Layout(), knobs=NO_GUESS).activations_bytes.sum() / 32  # of a layer
    chimera = memory(LLAMA, Layout(pp=8, schedule="chimera", accumulation=8)).activations_bytes / (
        one * 4
    )
    assert chimera.tolist() == [5, 6, 7, 8, 8, 7, 6, 5]


@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 8), (8, 2), (6, 12), (2, 2), (4, 10)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_in_flight_is_what_the_orders_of_schedules_keep(name, p, m):
    kind = KINDS[name]
    v = 3 if name == "interleaved" else 1 + kind.folded
    if not all(need.holds(p, m) for need in kind.needs):
        return
    own, second = in_flight(SCHEDULES.index(name), p, v, m, np.arange(p))
    found = own if kind.folded else own + second  # folded: as many of each chunk
    np.testing.assert_allclose(found, np.array(in_flight_of(schedule(name, p, m, v))) / v)


def test_dualpipe_holds_all_weights_twice_and_a_fold_holds_them_once():
    """DeepSeek-V3's Table 2: twice the parameters, p + 1 micro-batches of a stage's activations;
    ZB-V: as many on every worker as 1F1B's first has, which holds both ends.
    """
    states, tokens = ModelStates(1.0, 0.0, 0.0), {"accumulation": 16}
    plain, twice, folded, fold = (
        memory(LLAMA, Layout(pp=8, schedule=name, **tokens, **more), states=states, knobs=NO_GUESS)
        for name, more in (
            ("1f1b", {}), ("dualpipe", {}), ("dualpipe_v", {"vp": 2}), ("zb_v", {"vp": 2}),
        )
    )  # fmt: skip
    assert twice.weights_bytes.sum() == 2 * plain.weights_bytes.sum()
    assert folded.weights_bytes.sum() == fold.weights_bytes.sum() == plain.weights_bytes.sum()
    ends = plain.weights_bytes[0] - plain.weights_bytes[3] + plain.weights_bytes[-1]
    assert fold.weights_bytes[0] == ends
    np.testing.assert_allclose(fold.activations_bytes, plain.activations_bytes[0])
    np.testing.assert_allclose(twice.activations_bytes, plain.activations_bytes[0] * 9 / 8)
    np.testing.assert_allclose(folded.activations_bytes, plain.activations_bytes[0] * 17 / 16)
    tied = GPT3
    assert tied.tied
    for name, more in (("zb_v", {"vp": 2}), ("dualpipe_v", {"vp": 2})):
        layout = Layout(pp=4, schedule=name, **tokens, **more)
        found = memory(tied, layout, states=states).weights_bytes
        assert found.sum() == tied.parameters, name  # no copy of the embedding


def test_every_schedule_that_has_an_order_has_a_code():
    assert set(SCHEDULES) == set(NAMES)


def test_chimera_holds_two_stages():
    states = ModelStates(1.0, 0.0, 0.0)
    both = memory(
        LLAMA, Layout(pp=4, schedule="chimera", accumulation=4), states=states
    ).weights_bytes
    assert both.sum() == 2 * LLAMA.parameters
    assert both[0] == both[3]
    assert both[0] > both[1]


def test_chimeras_tied_embedding_is_there_once_for_the_optimizer_too():
    """The last stage lies where the first of the other direction lies: what a worker keeps is what
    it updates.
    """
    gpt = load_shape("gpt3-1.3b")
    assert gpt.tied
    layout = Layout(pp=4, schedule="chimera", accumulation=4)
    config = TransformerConfig(gpt, layout, vocab_multiple=1)
    kept = memory(gpt, layout, states=ModelStates(1.0, 0.0, 0.0)).weights_bytes
    assert updated_weights(config, 0) + updated_weights(config, 3) == kept[0]
    assert tied_reduction(config) is None
    assert tied_reduction(config.replace(layout=Layout(pp=4, accumulation=4))) is not None


def test_head_and_embedding_are_at_the_ends():
    found = memory(LLAMA, Layout(pp=4, accumulation=8), knobs=NO_GUESS)
    assert (found.embedding_head_bytes > 0).tolist() == [False, False, False, True]
    logits = 8192 * 128256
    assert found.embedding_head_bytes[-1] == logits * (2 + 4) + 2 * 2 * 8192 * 4096
    assert (memory(LLAMA, Layout(pp=4), dropout=True).embedding_head_bytes > 0).tolist() == [
        True,
        False,
        False,
        True,
    ]
    gpipe = memory(LLAMA, Layout(pp=4, schedule="gpipe", accumulation=8), knobs=NO_GUESS)
    assert gpipe.embedding_head_bytes[-1] == 8 * found.embedding_head_bytes[-1]


def test_gpipe_without_stages_accumulates():
    layouts = [Layout(accumulation=8, schedule=name) for name in ("gpipe", "1f1b")]
    one, other = (memory(LLAMA, layout).peak_bytes for layout in layouts)
    assert one == other
    assert memory(LLAMA, Layouts.of(layouts)).peak_bytes.tolist() == [one, one]


@pytest.mark.parametrize(
    "wrong",
    [
        {"tp": -1},
        {"dp": 0},
        {"tp": "2"},
        {"pp": 33},
        {"micro_batch": 0},
        {"accumulation": float("nan")},
        {"zero": 4},
    ],
)
def test_a_layout_that_is_none_is_refused(wrong):
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} must") as error:
        memory(LLAMA, Layout(**wrong))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ep": 2, "dp": 2}, "ep needs a model with experts"),
        ({"cp": 3}, "seq must be divisible by cp"),
        ({"vp": 2, "pp": 4}, "the interleaved schedule, and no other, has vp of 2 or more"),
        ({"zero": 1, "shard_ranks": 3, "dp": 4}, "shard_ranks must divide dp x cp"),
        (
            {"pp": 3, "schedule": "chimera", "accumulation": 4},
            "chimera needs an even number of stages",
        ),
        ({"sequence_parallel": "no", "tp": 2}, "sequence_parallel must be true or false, got 'no'"),
        ({"recompute": True}, "recompute must be one of none, selective, full, got True"),
        ({"zero": True}, "zero must be 0, 1, 2 or 3, got True"),
        ({"order": 3}, "order must name each of tp, cp, ep, dp, pp once, got 3"),
    ],
)
def test_what_a_layouts_check_refuses_memory_refuses(wrong, says):
    for check in (lambda layout: layout.check(LLAMA), lambda layout: memory(LLAMA, layout)):
        with pytest.raises(InputError, match=f"^{re.escape(says)}"):
            check(Layout(**wrong))


def test_what_some_framework_runs_has_a_memory():
    assert memory(LLAMA.replace(heads=24, hidden=3072, kv_heads=8), Layout(tp=16)).peak_bytes > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dropout": "no"}, "dropout must be true or false, got 'no'"),
        ({"grad_bytes": float("nan")}, "grad_bytes must be a number above zero, got nan"),
        ({"grad_bytes": "4"}, "grad_bytes must be a number above zero, got '4'"),
        (
            {"knobs": MemoryKnobs(hidden=float("nan"))},
            "hidden of memory's knobs must be a number of zero or more, got nan",
        ),
        (
            {"knobs": MemoryKnobs(fixed_bytes=-1.0)},
            "fixed_bytes of memory's knobs must be a number of zero or more, got -1.0",
        ),
        (
            {"knobs": MemoryKnobs(head="2")},
            "head of memory's knobs must be a number of zero or more, got '2'",
        ),
        (
            {"knobs": MemoryKnobs(weights=True)},
            "weights of memory's knobs must be a number of zero or more, got True",
        ),
        ({"knobs": {"hidden": 1.0}}, "knobs must be a MemoryKnobs, got {'hidden': 1.0}"),
    ],
)
def test_memory_of_wrong_kinds_is_refused_by_the_fields_name(options, says):
    with pytest.raises(InputError, match=f"^{re.escape(says)}$"):
        memory(LLAMA, Layout(), **options)


def test_a_shape_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"^shape must be a TransformerShape, got 8$"):
        memory(8, Layout())


def test_a_shape_may_be_a_name():
    assert memory("llama3-8b", Layout()).peak_bytes == memory(LLAMA, Layout()).peak_bytes
    with pytest.raises(InputError, match="llama3-9b"):
        memory("llama3-9b", Layout())


def test_workspace_holds_one_layer():
    layer = memory(LLAMA, Layout()).activations_bytes[0] / 32
    full = memory(LLAMA, Layout(recompute="full"))
    assert full.workspace_bytes[0] == layer
    assert full.activations_bytes[0] == 32 * 2 * 8192 * 4096
    gathered = memory(LLAMA, Layout(dp=8, zero=3)).workspace_bytes[0]
    assert gathered == LLAMA.layer_parameters * (2 * 2 + 2)
    assert memory(LLAMA, Layout(dp=8, zero=2)).workspace_bytes[0] == 0


def test_layers_of_several_kinds():
    """DeepSeek's first layers have no experts, T5's decoder attends twice: stages hold what their
    layers are.
    """
    states = ModelStates(1.0, 0.0, 0.0)
    deepseek = load_shape("deepseek-v3")
    found = memory(deepseek, Layout(pp=61), states=states).weights_bytes
    assert found.sum() == deepseek.parameters
    assert (found[3:60] == found[3]).all()
    assert found[1] < found[3] / 5
    t5 = load_shape("t5-11b")
    found = memory(t5, Layout(pp=48), states=states).weights_bytes
    assert found.sum() == t5.parameters + t5.vocab * t5.hidden
    assert (found[1:24] == found[1]).all()
    assert found[30] - found[1] == 4 * 1024 * 128 * 128 + 1024  # cross attention and its norm
    activations = memory(t5, Layout(pp=48)).activations_bytes
    assert activations[30] > activations[23]  # though fewer micro-batches are in flight


# limits, monotony
# --------------------------------------------------------------------------------------------------


def test_a_whole_models_limits():
    peak = memory(LLAMA, Layout(micro_batch=1), knobs=NO_GUESS).peak_bytes
    assert peak > 16 * LLAMA.parameters
    nothing = memory(LLAMA.replace(seq=1), Layout(), knobs=NO_GUESS).peak_bytes
    assert nothing == pytest.approx(16 * LLAMA.parameters, rel=1e-3)
    spread = memory(
        LLAMA,
        Layout(dp=2**20, zero=3, recompute="full"),
        knobs=MemoryKnobs(workspace=0, fixed_bytes=0),
    )
    rest = spread.activations_bytes + spread.embedding_head_bytes
    assert spread.peak_bytes == pytest.approx(rest[0], rel=1e-4)


def test_fits_or_not_and_by_how_much():
    found = memory(LLAMA, Layout(dp=8, zero=1))
    capacity = float(found.peak_bytes)
    assert found.fits(capacity)
    assert not found.fits(capacity - 1)
    assert found.peak_bytes == found.stage_bytes.max()


def peaks(shape, **fields):
    return memory(shape, Layout(**fields), attention="unfused").peak_bytes


@pytest.mark.parametrize(
    "shape",
    [LLAMA, MIXTRAL, GPT3, load_shape("deepseek-v3"), load_shape("t5-11b")],
    ids=lambda shape: shape.name,
)
def test_more_sharing_never_needs_more(shape):
    base = {"tp": 2, "dp": 4, "micro_batch": 2, "accumulation": 4}
    for name, values in {
        "tp": (1, 2, 4, 8), "dp": (4, 8, 16), "cp": (1, 2, 4), "zero": (0, 1, 2),
        "sequence_parallel": (False, True), "recompute": ("none", "selective", "full"),
    }.items():  # fmt: skip
        for recompute in ("none", "full"):
            fields = [{**base, "zero": 1, "recompute": recompute, name: value} for value in values]
            found = [peaks(shape, **one) for one in fields]
            assert all(less <= more for more, less in itertools.pairwise(found)), (name, found)
    found = [peaks(shape, **{**base, "micro_batch": size}) for size in (1, 2, 4)]
    assert all(less < more for less, more in itertools.pairwise(found))
    assert peaks(shape, **base) < peaks(shape.replace(seq=2 * shape.seq), **base)


def test_longer_pipelines_hold_fewer_weights_and_as_many_activations():
    one, four = (memory(LLAMA, Layout(pp=pp, accumulation=8)) for pp in (1, 4))
    assert four.weights_bytes.max() < one.weights_bytes.max()
    assert four.activations_bytes[0] == one.activations_bytes[0]


# columns
# --------------------------------------------------------------------------------------------------


def columns(schedules=("1f1b", "gpipe", "zero_bubble", "interleaved"), count=300):
    rng = np.random.default_rng(5)
    of = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    found = []
    for _ in range(count):
        schedule, tp, dp, zero = of(*schedules), of(1, 2, 8), of(1, 2, 4), of(0, 1, 2, 3)
        found.append(
            Layout(
                tp=tp,
                sequence_parallel=tp > 1 and bool(of(0, 1)),
                pp=of(2, 4, 8, 10),
                vp=2 if schedule == "interleaved" else 1,
                dp=dp,
                cp=of(1, 2),
                zero=zero,
                shard_ranks=dp if zero else None,
                micro_batch=of(1, 3),
                accumulation=of(1, 2, 8, 64),
                recompute=of("none", "selective", "full"),
                schedule=schedule,
            )
        )
    return found


def runnable(shape, layouts):
    """Those that someone can run."""
    return [
        one
        for one, yes in zip(layouts, legal(shape, Layouts.of(layouts), strict=False), strict=True)
        if yes
    ]


OPTIONS = {"attention": "unfused", "dropout": True, "grad_bytes": 4.0}


@pytest.mark.parametrize("split", ["even", "cost"])
def test_columns_are_priced_as_single_layouts_are(split):
    """On the first and the last stage only: the peak is there."""
    layouts = runnable(LLAMA, columns())
    expected = [memory(LLAMA, layout, split=split, **OPTIONS).peak_bytes for layout in layouts]
    found = memory(LLAMA, Layouts.of(layouts), split=split, **OPTIONS)
    assert found.weights_bytes.shape == (len(layouts), 2)
    np.testing.assert_allclose(found.peak_bytes, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["deepseek-v3", "t5-11b", "llama3-8b"])
def test_columns_on_every_stage_where_the_peak_may_be_anywhere(name):
    shape = load_shape(name)
    layouts = runnable(shape, columns(("1f1b", "chimera"), 120))
    expected = [memory(shape, layout, **OPTIONS).peak_bytes for layout in layouts]
    np.testing.assert_allclose(
        memory(shape, Layouts.of(layouts), **OPTIONS).peak_bytes, expected, rtol=1e-12
    )


@pytest.mark.parametrize("depth", [32, 33, 35, 39])
def test_chimeras_fullest_worker_is_found(depth):
    """Without weights to speak of, so that activations decide; depths that deal layers out
    unequally.
    """
    shape = LLAMA.replace(layers=depth, vocab=8)
    layouts = [
        Layout(pp=pp, schedule="chimera", accumulation=m, dp=64, zero=3)
        for pp in (2, 4, 8, 10, 16, 32)
        for m in (2, 4, 16, 64)
    ]
    layouts = runnable(shape, layouts)
    expected = [memory(shape, layout).peak_bytes for layout in layouts]
    np.testing.assert_allclose(memory(shape, Layouts.of(layouts)).peak_bytes, expected, rtol=1e-12)
    np.testing.assert_allclose(
        jax.jit(lambda x: memory(shape, x).peak_bytes)(Layouts.of(layouts)), expected, rtol=2e-6
    )
    with pytest.raises(InputError, match="chimera's stages are split evenly"):
        memory(shape, layouts[0], split="cost")


def test_columns_under_jax():
    layouts = Layouts.of(columns())
    knobs = MemoryKnobs(hidden=1.3, ffn=0.8, embedding=0.5, head=2.0, stale_bytes=3.0)
    found = jax.jit(lambda x, k: memory(LLAMA, x, knobs=k, **OPTIONS).peak_bytes)(layouts, knobs)
    np.testing.assert_allclose(
        found, memory(LLAMA, layouts, knobs=knobs, **OPTIONS).peak_bytes, rtol=2e-6
    )
    shape, few = load_shape("t5-small"), Layouts.of(columns(("1f1b",), 20))
    with pytest.raises(InputError, match="give the number of `stages` there may be"):
        jax.jit(lambda x: memory(shape, x).peak_bytes)(few)
    found = jax.jit(lambda x: memory(shape, x, stages=10).peak_bytes)(few)
    np.testing.assert_allclose(found, memory(shape, few).peak_bytes, rtol=2e-6)


def test_rows_of_columns_do_not_touch_each_other():
    layouts = columns()
    whole = memory(LLAMA, Layouts.of(layouts)).stage_bytes
    np.testing.assert_array_equal(memory(LLAMA, Layouts.of(layouts[7:9])).stage_bytes, whole[7:9])


def test_knobs_have_gradients():
    """Against differences: the peak as knobs vary, over layouts of which each is fullest somewhere
    else.
    """
    layouts, names = (
        Layouts.of(columns()),
        [field.name for field in dataclasses.fields(MemoryKnobs)],
    )
    start = MemoryKnobs(stale_bytes=1.0, embedding=1.0, head=1.0)

    def total(values):
        return (
            memory(
                LLAMA,
                layouts,
                knobs=MemoryKnobs(**dict(zip(names, values, strict=True))),
                **OPTIONS,
            ).peak_bytes.sum()
            / 1e12
        )

    at = np.array([getattr(start, name) for name in names])
    slopes = jax.jit(jax.grad(total))(jnp.asarray(at))
    for index, name in enumerate(names):
        step = at.copy()
        step[index] *= 1.0001
        assert float(slopes[index]) == pytest.approx(
            (total(step) - total(at)) / (step[index] - at[index]), rel=2e-3, abs=1e-12
        ), name


def test_every_knob_matters_and_has_a_prior():
    layouts = [*runnable(LLAMA, columns()), Layout(accumulation=4)]
    base = [memory(LLAMA, one, **OPTIONS).stage_bytes for one in layouts]
    assert set(MEMORY_PRIORS) == {field.name for field in dataclasses.fields(MemoryKnobs)}
    for name in MEMORY_PRIORS:
        more = MemoryKnobs(**{name: getattr(MemoryKnobs(), name) * 1.1 + 0.1})
        found = [memory(LLAMA, one, knobs=more, **OPTIONS).stage_bytes for one in layouts]
        assert all((a >= b).all() for a, b in zip(found, base, strict=True)), name
        assert any((a > b).any() for a, b in zip(found, base, strict=True)), name


def test_uneven_stages_are_those_of_the_split():
    states = ModelStates(1.0, 0.0, 0.0)
    shape = load_shape("nanotron-llama-3b")
    found = memory(shape, Layout(pp=4), split="cost", states=states).weights_bytes
    head = shape.vocab * shape.hidden
    layers = stage_layers(28, 4, np.arange(4), "cost", head / shape.layer_parameters)
    ends = np.array([head, 0, 0, head + shape.hidden])
    assert found.tolist() == (layers * shape.layer_parameters + ends).tolist()


def test_stages_cut_by_cost_are_cut_alike_everywhere():
    """Memory, what tiers may move, and the step's graph: the head counts as so many layers."""
    shape, layout = load_shape("llama3-8b"), Layout(pp=8, accumulation=8)
    config = TransformerConfig(shape, layout, stage_split="cost")
    layers = [config.layers_of(stage)[0] for stage in range(8)]
    assert (
        layers
        == stage_layers(32, 8, np.arange(8), "cost", shape.head_layers).tolist()
        == [5, 4, 4, 5, 4, 4, 5, 1]
    )
    kept = memory(shape, layout, split="cost", states=ModelStates(1.0, 0.0, 0.0))
    assert (kept.weights_bytes[1:-1] / shape.layer_parameters).tolist() == layers[1:-1]
    assert movable(shape, layout, kept, "cost").bytes[0][1:-1].tolist() == [
        shape.layer_parameters * (count - 2) for count in layers[1:-1]
    ]


def test_logits_of_tokens_that_are_not_predicted_are_not_kept() -> None:
    """Sixteen of a hundred tokens: so many of the bytes of logits."""
    whole = load_shape("bert-large")
    some = dataclasses.replace(whole, predicted_share=0.16)
    layout = Layout(micro_batch=8)
    all_bytes, some_bytes, none_bytes = (
        memory(one, layout).embedding_head_bytes.item()
        for one in (whole, some, dataclasses.replace(whole, predicted_share=1e-9))
    )
    assert some_bytes - none_bytes == pytest.approx(0.16 * (all_bytes - none_bytes), rel=1e-6)
