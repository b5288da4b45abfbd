"""Layers of Transformers as priced steps: counts of formulas.md, launches, and what parallelism
makes of them.
"""

import dataclasses

import pytest

from hybridperf.collectives.traffic import bus_factor
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import BatchedGemm, Gemm, OpCall, Quantise, columns
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.serving.deployment import Deployment
from hybridperf.workloads.serving.layers import ServedCalls
from hybridperf.workloads.transformer import (
    Layout,
    TransformerShape,
    load_shape,
    shape_names,
)
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import (  # fmt: skip
    embedding_passes,
    head_passes,
    layer_passes,
    optimizer_passes,
    send_call,
)
from hybridperf.workloads.transformer.passes import Steps, flops, launches
from hybridperf.workloads.transformer.update import gathered, summed, tied_reduction
from hybridperf.workloads.transformer.weights import stage_weights

GPT = TransformerShape(
    "small", "gpt", hidden=1024, heads=16, layers=24, ffn=4096, vocab=51200, seq=1024
)
TINY = TransformerShape("tiny", "gpt", hidden=8, heads=2, layers=2, ffn=16, vocab=10, seq=4)
MOE = TransformerShape(
    "experts", "moe", hidden=512, heads=8, layers=4, ffn=1024, vocab=32000, seq=512, gated=True,
    tied=False, positions="rotary", norm="rmsnorm", biases=False, experts=8, topk=2,
)  # fmt: skip
MEGATRON = {"framework": "megatron", "dtype": "fp16", "attention": "unfused", "dropout": True}
H, S, B = GPT.hidden, GPT.seq, 4


def config(shape=GPT, *, settings=MEGATRON, **layout) -> TransformerConfig:
    return TransformerConfig(shape, Layout(**({"micro_batch": B} | layout)), **settings)


def model(c: TransformerConfig, which: str) -> float:
    """FLOPs of a pass of all layers and ends."""
    layers = sum(
        block.count * flops(getattr(layer_passes(c, kind), which))
        for kind, block in enumerate(c.shape.layer_kinds)
    )
    return (
        layers + flops(getattr(embedding_passes(c), which)) + flops(getattr(head_passes(c), which))
    )


def gradient_reduction(c: TransformerConfig) -> Steps:
    """What the ranks of the first stage exchange once a step."""
    tied = () if (step := tied_reduction(c)) is None else (step,)
    return (*tied, *summed(c, stage_weights(c, 0)), *gathered(c, 0))


def names(steps) -> list[str]:
    return [step.name for step in steps]


def calls(steps, part: str) -> list[CollectiveCall]:
    return [step.call for step in steps if step.part == part and not step.is_op]


def collective_bytes(steps, part: str) -> float:
    """Bytes on the wire per rank of the collectives of one part: bus factor times size (formulas.md
    3.3).
    """
    return sum(bus_factor(call.collective, call.ranks) * call.bytes for call in calls(steps, part))


# counts
# --------------------------------------------------------------------------------------------------


def test_a_layer_by_hand():
    """Two samples of 4 tokens, hidden 8, 2 heads of 4, MLP of 16: every product and its two
    transposed ones.
    """
    passes = layer_passes(config(TINY, micro_batch=2))
    dims = [
        (op.m, op.n, op.k) for op in (step.op for step in passes.forward) if isinstance(op, Gemm)
    ]
    assert dims == [(8, 24, 8), (8, 8, 8), (8, 16, 8), (8, 8, 16)]
    back = [
        (op.m, op.n, op.k) for op in (step.op for step in passes.backward) if isinstance(op, Gemm)
    ]
    assert back == [
        (8, 16, 8), (8, 16, 8),  # out of the MLP: [8,8] x [8,16], and [8,8] x [8,16] over tokens
        (8, 8, 16), (16, 8, 8), (8, 8, 8), (8, 8, 8), (8, 8, 24), (24, 8, 8),
    ]  # fmt: skip
    core = [
        (op.batch, op.m, op.n, op.k)
        for op in (step.op for step in passes.forward)
        if isinstance(op, BatchedGemm)
    ]
    assert core == [(4, 4, 4, 4), (4, 4, 4, 4)]
    assert sum(isinstance(step.op, BatchedGemm) for step in passes.backward) == 4


def test_megatrons_unfused_half_precision_layer_launches_sixty_kernels():
    """Fifteen forward, forty-five backward, twelve of which add a parameter's gradient to the
    buffer.
    """
    passes = layer_passes(config(tp=2))
    assert names(step for step in passes.forward if step.is_op) == [
        "attention norm", "qkv", "qkv bias", "scores", "softmax", "attention dropout", "values",
        "context", "attention output", "attention output residual", "mlp norm", "mlp in",
        "mlp inner gelu", "mlp out", "mlp residual",
    ]  # fmt: skip
    assert launches(passes.forward) == 15
    assert launches(passes.backward) == 45
    assert sum(name.endswith("kept") for name in names(passes.backward)) == 12
    assert launches(passes.forward) == len({id(step) for step in passes.forward if step.is_op}), (
        "each launch is a step of its own"
    )


@pytest.mark.parametrize("name", shape_names())
def test_forward_flops_are_those_of_the_formula(name):
    """6 P per token is nowhere assumed: products are added up, and the padded vocabulary is not
    counted.
    """
    shape = load_shape(name)
    fused = shape.latent is not None or shape.key_heads != shape.heads
    c = TransformerConfig(
        shape, Layout(micro_batch=2), attention="fused" if fused else "unfused", vocab_multiple=1
    )
    causal = fused and shape.family not in ("bert", "vit")
    # a fused causal kernel sees s (s + 1) / 2 pairs, the formula half of s^2
    assert model(c, "forward") == pytest.approx(
        shape.forward_flops(2, causal=causal), rel=1e-3 if fused else 1e-12
    )
    if not fused and shape.scan is None:  # a scan computes states and scores again
        assert model(c, "backward") == pytest.approx(2 * model(c, "forward"), rel=1e-12)


def test_flops_of_an_iteration_with_and_without_recompute():
    """formulas.md 3.1: 72 and 96 B s l h^2 (...); selective recompute runs the attention core's
    forward once more.
    """
    per_sample = S * GPT.layers * H**2
    without = config()
    ideal = 72 * B * per_sample * (1 + S / (6 * H) + GPT.vocab / (12 * GPT.layers * H))
    assert model(without, "forward") + model(without, "backward") == pytest.approx(ideal, rel=1e-12)
    assert GPT.model_flops(B * S) == pytest.approx(ideal, rel=1e-12)
    full = config(recompute="full")
    again = (
        model(full, "forward")
        + model(full, "backward")
        + GPT.layers * flops(layer_passes(full).recomputed)
    )
    assert again == pytest.approx(
        96 * B * per_sample * (1 + S / (6 * H) + GPT.vocab / (16 * GPT.layers * H)), rel=1e-12
    )
    assert again == pytest.approx(GPT.hardware_flops(B * S, "full"), rel=1e-12)
    selective = layer_passes(config(recompute="selective"))
    core = 4 * B * S**2 * H
    assert flops(selective.recomputed) == pytest.approx(core, rel=1e-12)
    # the published count (1 + s / (3 h)) has the core three times more, not once: what runs is two
    # cores less
    published = GPT.hardware_flops(B * S, "selective") - GPT.model_flops(B * S)
    assert published == pytest.approx(3 * GPT.layers * core, rel=1e-12)


def test_selective_recompute_runs_the_attention_core_and_nothing_else():
    assert names(layer_passes(config(recompute="selective")).recomputed) == [
        "scores",
        "softmax",
        "attention dropout",
        "values",
    ]
    assert (
        layer_passes(config(recompute="full", tp=2)).recomputed
        == layer_passes(config(tp=2)).forward
    )
    assert layer_passes(config(recompute="none")).recomputed == ()


# tensor and sequence parallelism
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_four_all_reduces_a_layer(tp):
    """formulas.md 3.3: 2 forward, 2 backward, b s h numbers each; 2 more with full recompute; wire
    8 b s h (t - 1) / t numbers.
    """
    passes = layer_passes(config(tp=tp, recompute="full"))
    for steps in (passes.forward, passes.backward, passes.recomputed):
        assert (
            calls(steps, "tp")
            == [CollectiveCall("all_reduce", B * S * H * 2.0, tp, max(1, tp // 8))] * 2
        )
    wire = collective_bytes((*passes.forward, *passes.backward), "tp")
    assert wire == pytest.approx(8 * B * S * H * 2 * (tp - 1) / tp)


def test_all_reduces_stand_behind_the_partial_sums():
    forward = names(layer_passes(config(tp=2)).forward)
    assert [forward[at - 1] for at, name in enumerate(forward) if name.endswith("summed")] == [
        "attention output",
        "mlp out",
    ]
    backward = names(layer_passes(config(tp=2)).backward)
    behind = [backward[at - 1] for at, name in enumerate(backward) if name.endswith("summed")]
    assert behind == ["mlp in input gradient", "qkv input gradient"]


@pytest.mark.parametrize("tp", [2, 8])
def test_sequence_parallelism_moves_as_many_bytes_and_shares_the_rest(tp):
    plain, shared = layer_passes(config(tp=tp)), layer_passes(config(tp=tp, sequence_parallel=True))
    for which in ("forward", "backward"):
        steps = getattr(shared, which)
        assert [call.collective for call in calls(steps, "tp")] == [
            "all_gather",
            "reduce_scatter",
        ] * 2
        assert collective_bytes(steps, "tp") == pytest.approx(
            collective_bytes(getattr(plain, which), "tp")
        )
        assert flops(steps) == flops(getattr(plain, which))
        assert launches(steps) == launches(getattr(plain, which))
    norm = {step.name: step.op for step in shared.forward if step.is_op}["mlp norm"]
    assert norm.rows == B * S / tp
    for part in (embedding_passes, head_passes):
        assert "all_reduce" not in {
            call.collective
            for call in calls(part(config(tp=tp, sequence_parallel=True)).forward, "tp")
            if call.bytes > 4 * B * S
        }


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        (GPT, {"tp": 4}),
        (GPT, {"tp": 4, "sequence_parallel": True}),
        (MOE, {"ep": 4, "dp": 4}),
        (MOE, {"tp": 2}),
    ],
)
def test_the_ranks_of_a_group_do_together_what_one_did(shape, layout):
    """Nothing of the products is lost or done twice. (The router, which is not divided, is.)"""
    settings = {"attention": "fused"}
    alone, one = config(shape, settings=settings), config(shape, settings=settings, **layout)
    ranks = layout.get("tp", 1)
    for which in ("forward", "backward"):
        whole = [step for step in getattr(layer_passes(alone), which) if "router" not in step.name]
        part = [step for step in getattr(layer_passes(one), which) if "router" not in step.name]
        assert flops(part) * ranks == pytest.approx(flops(whole), rel=1e-12)


def test_the_fused_softmax_falls_back_where_heads_times_samples_are_no_multiple_of_four():
    """training_steps.md 2.2: it fails at tp 8, micro-batch 1 of 16 heads only; casts, scale and
    mask by themselves.
    """
    for tp in (1, 2, 4, 8):
        for micro_batch in (1, 2):
            passes = layer_passes(config(tp=tp, micro_batch=micro_batch))
            more = 4 if micro_batch * 16 // tp % 4 else 0
            assert launches(passes.forward) == 15 + more, (tp, micro_batch)
            assert launches(passes.backward) == 45 + more


def test_a_divided_loss_exchanges_numbers_and_not_vectors():
    """Largest logit, target and sum of exponentials of each token; the logits' input gradient is a
    vector.
    """
    passes = head_passes(config(tp=4))
    assert [call.bytes for call in calls(passes.forward, "tp")] == [4.0 * B * S] * 3
    assert [call.bytes for call in calls(passes.backward, "tp")] == [2.0 * B * S * H]


def test_the_vocabulary_is_padded_to_a_multiple_of_the_ranks():
    odd = dataclasses.replace(GPT, vocab=50257)
    wide = [step.op.n for step in head_passes(config(odd, tp=2)).forward if step.name == "logits"]
    assert wide == [50432 / 2]  # the next multiple of 256
    bare = TransformerConfig(odd, Layout(), vocab_multiple=1)
    assert [step.op.n for step in head_passes(bare).forward if step.name == "logits"] == [50257]


# context and experts
# --------------------------------------------------------------------------------------------------


def test_context_parallelism_shares_tokens_and_gathers_keys_and_values():
    llama = load_shape("llama3-8b").replace(seq=8192)
    settings = {"attention": "fused", "dtype": "bf16", "context_messages": "gather"}
    whole = layer_passes(config(llama, settings=settings, micro_batch=1))
    part = layer_passes(config(llama, settings=settings, micro_batch=1, cp=4))
    assert flops(part.forward) * 4 == pytest.approx(flops(whole.forward), rel=1e-3)
    assert flops(part.backward) * 4 == pytest.approx(flops(whole.backward), rel=1e-3)
    kv = 2 * llama.seq * llama.key_heads * llama.dim * 2.0
    assert calls(part.forward, "cp") == [CollectiveCall("all_gather", kv, 4)]
    assert [call.collective for call in calls(part.backward, "cp")] == [
        "all_gather",
        "reduce_scatter",
    ]
    (gathered,) = (step for step in part.forward if step.part == "cp")
    core = next(step for step in part.forward if step.part == "attention")
    assert gathered.beside == dataclasses.replace(core.call, times=1 / 4)


def test_blocks_of_keys_and_values_travel_in_a_ring_beside_attention():
    """Three of four blocks beside a quarter of attention each; back with their gradients, which
    travel once more.
    """
    llama = load_shape("llama3-8b").replace(seq=8192)
    settings = {"attention": "fused", "dtype": "bf16", "context_messages": "ring"}
    part = layer_passes(
        config(llama, settings=settings, micro_batch=1, cp=4, tp=2, recompute="full")
    )
    block = 2 * llama.seq * llama.key_heads * llama.dim * 2.0 / 4 / 2
    core, back = (
        next(step for step in steps if step.part == "attention")
        for steps in (part.forward, part.backward)
    )
    for steps in (part.forward, part.recomputed):
        ring = [step for step in steps if step.part == "cp"]
        assert [step.collective for step in ring] == 3 * [CollectiveCall("sendrecv", block, 2)]
        assert all(step.beside.op == core.op and step.beside.times == 1 / 4 for step in ring)
    *ring, home = (step for step in part.backward if step.part == "cp")
    assert [step.collective.bytes for step in (*ring, home)] == [*3 * [2 * block], block]
    assert all(step.beside.op == back.op for step in ring)
    assert home.beside is None
    assert core.kernels == 4 + 3


def test_context_parallelism_of_unfused_attention_is_refused():
    with pytest.raises(
        InputError, match="context parallelism of unfused attention is not modelled"
    ):
        layer_passes(config(cp=2))


def test_experts_send_tokens_there_and_back_twice():
    """formulas.md 3.3: 2 all-to-all forward and 2 backward, k b s h x 2 B x (E - 1) / E each."""
    settings = {"attention": "fused", "dtype": "bf16", "expert_messages": "copies"}
    passes = layer_passes(config(MOE, settings=settings, dp=4, ep=4))
    sent = CollectiveCall("alltoall", MOE.topk * B * MOE.seq * MOE.hidden * 2.0, 4)
    for steps in (passes.forward, passes.backward):
        assert calls(steps, "ep") == [sent, sent]
    assert collective_bytes(passes.forward, "ep") == pytest.approx(2 * sent.bytes * 3 / 4)


def test_experts_are_products_of_their_own_sizes():
    """2 of 8 gated experts of 512 x 1024 on each of 4 ranks: 4 x 2048 x 2 / 8 = 2048 rows each,
    into 2 x 1024 and out of 1024.
    """
    settings = {"attention": "fused", "dtype": "bf16"}
    passes = layer_passes(config(MOE, settings=settings, dp=4, ep=4))
    for steps, times, tensors in (
        (passes.forward, 2, 3),
        (passes.backward, 2 * ratios.EXPERTS, 5),
    ):
        into, out = (step.call for step in steps if step.part == "experts")
        assert (into.op, out.op) == (
            Gemm("bf16", 2048.0, 2048.0, 512.0),
            Gemm("bf16", 2048.0, 512.0, 1024.0),
        )
        assert into.times == out.times == times
        (inner,) = (step.call for step in steps if "inner" in step.name)
        assert (
            inner.op.work().bytes == tensors * 2 * 2048 * 1024 * 2.0
        )  # gate and value read, result written; back, three read, two written


def test_experts_under_tensor_parallelism():
    """Cut like an MLP, they leave partial sums; whole, their tokens are dealt out."""
    settings = {"attention": "fused", "dtype": "bf16"}
    cut = layer_passes(config(MOE, settings=settings, tp=2, sequence_parallel=False))
    rows = B * MOE.seq * MOE.topk / MOE.experts
    assert [step.op.k for step in cut.forward if step.name == "experts, out"] == [MOE.ffn / 2]
    assert len(calls(cut.forward, "tp")) == 2
    assert len(calls(cut.backward, "tp")) == 2
    whole = layer_passes(
        config(MOE, settings=settings, tp=2, sequence_parallel=True, expert_tp=1, ep=2)
    )
    out = next(step.call for step in whole.forward if step.name == "experts, out")
    assert (out.op.m, out.op.k, out.times) == (rows, MOE.ffn, MOE.experts / 2)


# shards, replicas, stages
# --------------------------------------------------------------------------------------------------


def wire(steps) -> float:
    return sum(
        bus_factor(step.call.collective, step.call.ranks) * step.call.bytes
        for step in steps
        if isinstance(step.call, CollectiveCall)
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dp", [2, 8, 64])
def test_zero_3_moves_half_as_much_again_as_an_all_reduce(dp, recompute):
    """formulas.md 3.3: 3 (d - 1) / d S against 2 (d - 1) / d S; recompute shares the backward's
    gather.
    """

    def moved(zero: int) -> float:
        c = config(settings=MEGATRON | {"vocab_multiple": 1}, dp=dp, zero=zero, recompute=recompute)
        parts = [(layer_passes(c), GPT.layers), (embedding_passes(c), 1), (head_passes(c), 1)]
        of_passes = sum(
            count * wire(steps)
            for p, count in parts
            for steps in (p.forward, p.recomputed, p.backward)
        )
        return of_passes + wire(gradient_reduction(c))

    size = 2.0 * stage_weights(config(dp=dp), 0).total
    assert moved(0) == pytest.approx(2 * (dp - 1) / dp * size)
    assert moved(1) == pytest.approx(moved(0))
    assert moved(2) == pytest.approx(moved(0))
    assert moved(3) == pytest.approx(1.5 * moved(0))


def test_hybrid_shards_stay_inside_a_node():
    """Weights gathered over 8 ranks of a node; an eighth of the gradients summed over 4 copies."""
    passes = layer_passes(config(dp=32, zero=3, shard_ranks=8))
    size = 2.0 * GPT.layer_parameters
    assert calls(passes.forward, "zero") == [CollectiveCall("all_gather", size, 8, 1)]
    assert calls(passes.backward, "zero")[1:] == [CollectiveCall("reduce_scatter", size, 8, 1)]
    assert calls(passes.backward, "replica") == [CollectiveCall("all_reduce", size / 8, 4, 4)]


def test_experts_are_summed_over_the_ranks_that_hold_the_same():
    """Whole experts under tp 2 lie on all tp x dp ranks; shared out over 4,
    on a quarter of them.
    """
    settings = {"attention": "fused"}
    for ep, ranks in ((1, 8), (4, 2)):
        c = config(MOE, settings=settings, tp=2, dp=4, sequence_parallel=True, expert_tp=1, ep=ep)
        shared, experts = (step.call for step in gradient_reduction(c))
        assert (shared.ranks, experts.ranks) == (4, ranks)
        assert experts.bytes == 2.0 * MOE.layers * 3 * MOE.hidden * MOE.ffn * MOE.experts / ep
    cut = config(MOE, settings=settings, tp=2, dp=4)
    assert [step.call.ranks for step in gradient_reduction(cut)] == [4]


def test_weights_of_all_stages_are_the_models():
    for name in ("gpt3-1.3b", "llama3-8b", "mixtral-8x7b", "bert-large", "vit-l-16", "t5-base"):
        shape = load_shape(name)
        c = TransformerConfig(shape, Layout(), vocab_multiple=1)
        assert stage_weights(c, 0).total == shape.parameters, name
    split = TransformerConfig(load_shape("llama3-8b"), Layout(pp=4), vocab_multiple=1)
    assert sum(stage_weights(split, stage).total for stage in range(4)) == split.shape.parameters
    tied = TransformerConfig(
        GPT, Layout(pp=4), vocab_multiple=1
    )  # the last stage has a copy of the embedding
    assert (
        sum(stage_weights(tied, stage).total for stage in range(4))
        == GPT.parameters + GPT.vocab * H
    )


def test_what_is_exchanged_once_a_step():
    """Gradients of a stage, in one number format or another; the tied embedding's; weights from
    ZeRO-1 on.
    """
    c = config(dp=4, pp=2)
    tied, summed = gradient_reduction(c)
    assert tied.call == CollectiveCall("all_reduce", 2.0 * c.padded_vocab * H, 2, 1)
    assert summed.call == CollectiveCall("all_reduce", 2 * stage_weights(c, 0).total, 4, 1)
    wide = config(dp=4, settings=MEGATRON | {"gradient_bytes": 4.0}, zero=1)
    scattered, gathered = gradient_reduction(wide)
    assert scattered.call.bytes == 2 * gathered.call.bytes
    assert gradient_reduction(config()) == ()


def test_sends_between_stages():
    """b s h numbers; a t-th of them where ranks send a part each."""
    assert send_call(config()) is None
    assert send_call(config(pp=2)) == CollectiveCall("sendrecv", 2.0 * B * S * H, 2, 1)
    assert send_call(config(pp=2, tp=8)).nodes == 2
    assert send_call(config(pp=2, tp=4, sequence_parallel=True)).bytes == 2.0 * B * S * H / 4
    assert (
        send_call(config(settings=MEGATRON | {"scatter_gather": True}, pp=2, tp=4)).bytes
        == 2.0 * B * S * H / 4
    )


def test_the_optimizer_moves_thirty_bytes_a_parameter():
    """28 of Adam with 16-bit gradients and weights beside fp32 ones, 2 for the gradients' norm; a
    d-th of it from ZeRO-1 on.
    """
    moved = sum(step.op.work().bytes for step in optimizer_passes(config()))
    assert moved == pytest.approx(30 * stage_weights(config(), 0).total, rel=1e-3)
    sharded = sum(step.op.work().bytes for step in optimizer_passes(config(dp=8, zero=1)))
    assert sharded == pytest.approx(moved / 8, rel=1e-3)


# others
# --------------------------------------------------------------------------------------------------


def test_frameworks_differ_in_launches_and_not_in_products():
    counts = {}
    for framework in ("megatron", "eager", "compiled"):
        passes = layer_passes(config(settings=MEGATRON | {"framework": framework}))
        counts[framework] = launches(passes.forward) + launches(passes.backward)
        assert flops(passes.forward) == flops(layer_passes(config()).forward)
    assert counts["compiled"] < counts["megatron"]
    assert launches(layer_passes(config(settings=MEGATRON | {"framework": "eager"})).forward) > 15


def test_a_norm_op_by_op_moves_fp32_numbers_again_and_again():
    """Forward 40 bytes of each 2-byte number where one kernel moves 4; back 96, of which 16 are
    for the weights.
    """
    tokens, cols = 64.0, 256.0
    whole, parts = (
        config(settings={"framework": name, "dtype": "bf16"}).kernels.norm(
            "norm", "rmsnorm", tokens, cols
        )
        for name in ("eager", "composite")
    )
    (forward,), (one_kernel,) = parts.forward, whole.forward
    assert forward.op.work().bytes == pytest.approx(40 * tokens * cols)
    assert one_kernel.op.work().bytes < 5 * tokens * cols
    moved = {step.weight_gradient: step.op.work().bytes for step in parts.backward}
    assert moved == pytest.approx({True: 16 * tokens * cols, False: 80 * tokens * cols})
    assert launches(parts.forward) > 5 * launches(whole.forward)


def test_experts_with_biases_are_clamped_and_biased_apart():
    """As Megatron-Core does for GPT-OSS: of a rank's tokens at 4 experts each, two clamped halves
    and what joins them, 28 bytes for the second product's bias.
    """
    shape = load_shape("gpt-oss-20b")
    settings = {"framework": "megatron_core", "dtype": "bf16", "attention": "fused"}
    biased, plain = (
        layer_passes(config(one, settings=settings, micro_batch=1, dp=8, ep=8))
        for one in (shape, dataclasses.replace(shape, biases=False))
    )
    added = {one.name: one for one in biased.forward if one.name.startswith("experts, ")}
    rows = added["experts, inner gated"].op.rows
    assert added["experts, clamped"].op.work().bytes == pytest.approx(8 * rows * 2 * 2880)
    assert added["experts, biases"].op.work().bytes == pytest.approx(28 * rows * 2880)
    each = shape.experts // 8
    assert added["experts, biases"].kernels == 2 * each + 2
    names = [one.name for one in plain.forward]
    assert not {"experts, clamped", "experts, biases"} & set(names)
    assert launches(biased.backward) > launches(plain.backward) + 5 * each


def test_eight_bit_products_keep_activations_wide():
    narrow = layer_passes(config(settings={"quant": "fp8"}))
    assert {step.op.quant for step in narrow.forward if isinstance(step.op, Gemm)} == {"fp8"}
    wide = layer_passes(config(settings={}))
    # norms write narrow numbers for the products behind them; of each tensor, once
    assert launches(narrow.forward) == launches(wide.forward) + 2
    made = [step.op for step in narrow.backward if isinstance(step.op, Quantise)]
    assert len(made) == 4
    # gradients of two biases come with the narrow gradients
    assert launches(narrow.backward) == launches(wide.backward) + len(made) - 2
    assert all(
        step.op.quant == ""
        for step in head_passes(config(settings={"quant": "fp8"})).forward
        if isinstance(step.op, Gemm)
    )


def test_layouts_that_differ_elsewhere_share_their_passes():
    """Stages, replicas and micro-batches change no layer, so its passes are made once; shards and
    experts do.
    """
    assert layer_passes(config(tp=2, dp=4, pp=2, accumulation=8)) is layer_passes(
        config(tp=2, dp=1, pp=8, accumulation=16)
    )
    assert layer_passes(config(tp=2, dp=4, zero=3)) is not layer_passes(config(tp=2, dp=8, zero=3))
    assert layer_passes(config(order=("dp", "tp", "cp", "ep", "pp"), dp=8, tp=2)) != layer_passes(
        config(dp=8, tp=2)
    )


def test_ranks_that_share_a_head_of_keys_and_values_hold_all_of_it():
    """So does its projection, in steps that train as in engines that serve; where a model has no
    more heads of queries than of keys, both are divided.
    """
    llama = load_shape("llama3-8b")

    def ops(c: TransformerConfig) -> dict:
        return {step.name: step.op for step in layer_passes(c).forward if step.is_op}

    steps = ops(config(llama, settings={}, tp=16))
    attention, projection = steps["attention"], steps["qkv"]
    assert (attention.heads, attention.kv_heads) == (2.0, 1.0)
    assert projection.n == (2 + 1 + 1) * 128
    assert steps["keys turned"].cols == 128
    served = ServedCalls(Deployment(llama, tp=16), 8, "trtllm").products(16.0)
    products = [one.call.op for one in served if isinstance(one.call, OpCall)]
    assert next(op for op in products if isinstance(op, Gemm)).n == projection.n
    assert ops(config(tp=32))["qkv"].n == 3 * H / 32


@pytest.mark.parametrize("framework", ["megatron", "eager", "compiled"])
@pytest.mark.parametrize(
    "shape", [GPT, MOE, load_shape("bert-large"), load_shape("vit-l-16"), load_shape("deepseek-v3")]
)
def test_every_op_goes_by_a_name_of_tables(shape, framework):
    """What a table calls it is how a model of measured ops knows it."""
    for dtype in ("fp32", "bf16"):
        settings = {
            "framework": framework,
            "dtype": dtype,
            "dropout": True,
            "attention": "fused" if shape.latent else "unfused",
        }
        c = config(shape, settings=settings, micro_batch=1)
        parts = [
            *(layer_passes(c, kind) for kind in range(len(shape.layer_kinds))),
            embedding_passes(c),
            head_passes(c),
        ]
        steps = [*(one for p in parts for one in (*p.forward, *p.backward)), *optimizer_passes(c)]
        assert all(columns(step.op)["dtype"] in (dtype, "fp32") for step in steps if step.is_op)


def test_equal_steps_are_one_row():
    """Sizes are plain numbers, so calls hash and compare: two layers have the rows of one."""
    one = layer_passes(config(tp=2, recompute="full"))
    rows = dict.fromkeys(step.call for step in (*one.forward, *one.backward, *one.recomputed))
    assert len(rows) < len(one.forward) + len(one.backward)
    assert all(
        isinstance(value, float)
        for call in rows
        if isinstance(call, OpCall)
        for value in dataclasses.astuple(call.op)[1:-1]
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"attention": "flash"}, "unknown attention 'flash'"),
        ({"framework": "jax"}, "unknown framework 'jax'"),
        (
            {"dtype": "fp8"},
            'dtype is that of activations, one of fp32, tf32, fp16, bf16, got fp8; quant="fp8"',
        ),
        ({"quant": "int3"}, "unknown quant 'int3'"),
        ({"bucket_bytes": 0.0}, "bucket_bytes must be a number above zero"),
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number of 1 or more"),
    ],
)
def test_settings_that_are_refused(settings, sentence):
    with pytest.raises(InputError) as refused:
        config(settings=settings)
    assert sentence in str(refused.value)


def test_what_is_not_modelled_is_refused_by_name():
    with pytest.raises(InputError, match="unfused latent attention is not modelled"):
        layer_passes(config(load_shape("deepseek-v3")))
    with pytest.raises(
        InputError, match="context parallelism of attention to an encoder is not modelled"
    ):
        layer_passes(config(load_shape("t5-base"), settings={}, cp=2))


def test_unfused_attention_copies_keys_and_values_of_groups_for_all_heads():
    """Llama 3 8B, 8 groups of 4 heads: products as with 32 heads of keys; 2 x 32 x 128 wide copies,
    a quarter of that read.
    """
    llama = load_shape("llama3-8b")
    for tp in (1, 2):
        passes = layer_passes(config(llama, tp=tp))
        whole = layer_passes(config(llama.replace(kv_heads=None), tp=tp))
        products = [
            [
                step.op
                for step in one.forward
                if isinstance(step.op if step.is_op else None, BatchedGemm)
            ]
            for one in (passes, whole)
        ]
        assert products[0] == products[1]
        assert len(products[0]) == 2
        (copied,) = (step for step in passes.forward if step.name == "keys and values repeated")
        assert float(copied.op.work().bytes) == pytest.approx(
            B * llama.seq * 2 * 32 * 128 * 2.0 * (1 + 1 / 4) / tp
        )
        assert "keys and values gradients of a group added" in names(passes.backward)
        assert not any("repeated" in name for name in names(whole.forward))


@pytest.mark.parametrize("decoder_seq", [128, 1024])  # shorter and longer than the encoder's
def test_fused_attention_to_an_encoder_sees_every_key(decoder_seq):
    """4 flops for each query, key and element of a head, forward; the query's own attention is
    apart.
    """
    t5 = load_shape("t5-base").replace(seq=512, decoder_seq=decoder_seq)
    passes = layer_passes(config(t5, settings={}))
    cross = [step.op for step in passes.forward if step.part == "attention" and step.op.kv_len]
    assert [op.work().flops for op in cross] == [
        pytest.approx(4.0 * B * t5.heads * decoder_seq * 512 * t5.dim)
    ]
