"""Steps of a server: calls by hand, limits of their seconds, memory."""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.model import load_collectives
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import CollectiveCall
from hybridperf.model.serving_effects import CALLS_ALONE
from hybridperf.model.step_effects import LAUNCH_S
from hybridperf.ops import DecodeAttention, Gemm, LatentAttention, Moe, OpCall, PrefillAttention
from hybridperf.ops.quantise import Quantise
from hybridperf.workloads.serving import Deployment, prompt_launches, step_times
from hybridperf.workloads.serving.deployment import WORKSPACE_BYTES, serving_memory
from hybridperf.workloads.serving.layers import Kernel, ServedCalls
from hybridperf.workloads.serving.times import Sizes
from hybridperf.workloads.transformer.shape import TransformerShape

SIZES = Sizes((1.0, 64.0, 4096.0), (1.0, 64.0), (512.0, 4096.0), (256.0, 8192.0), (128.0, 4096.0))


@pytest.fixture(scope="module")
def llama() -> TransformerShape:
    return hp.load_shape("llama3-8b")


@pytest.fixture(scope="module")
def machine() -> PerfModel:
    return hp.load_model("h100_sxm").with_collectives(load_collectives("aic_h100_sxm"))


def ops_of(kernels: list[Kernel], kind: type) -> list[tuple[object, float]]:
    return [
        (one.call.op, one.times)
        for one in kernels
        if isinstance(one.call, OpCall) and isinstance(one.call.op, kind)
    ]


def test_products_of_a_dense_layer_are_its_matrices(llama: TransformerShape) -> None:
    kernels = list(ServedCalls(Deployment(llama, tp=2), 8, "trtllm").products(16.0))
    products = ops_of(kernels, Gemm)
    # heads 32 + 2 x 8 of 128; then 14,336 wide, twice: halves of two GPUs
    assert [(op.n, op.k) for op, _ in products] == [
        (3072.0, 4096.0), (4096.0, 2048.0), (14336.0, 4096.0), (4096.0, 7168.0),
    ]  # fmt: skip
    assert {times for _, times in products} == {32}
    sums = [one for one in kernels if isinstance(one.call, CollectiveCall)]
    assert [(one.call.bytes, one.call.ranks, one.times) for one in sums] == [
        (16 * 4096 * 2.0, 2, 32)
    ] * 2


def test_fp8_products_have_static_scales_whose_matrix_some_engines_narrow_before() -> None:
    """Weights of published checkpoints bring their activations' scales: nothing looks for them."""
    shape, quantised = hp.load_shape("llama3-8b"), {}
    for framework in ("vllm", "trtllm"):
        served = Deployment(shape, quant="fp8", framework=framework)
        kernels = list(ServedCalls(served, 8).products(16.0))
        assert {(op.dtype, op.quant) for op, _ in ops_of(kernels, Gemm)} == {("fp8", "")}
        quantised[framework] = [(op.rows, op.cols) for op, _ in ops_of(kernels, Quantise)]
    assert quantised["trtllm"] == []
    assert quantised["vllm"] == [(16.0, 4096.0)] * 3 + [(16.0, 14336.0)]


def test_fp4_products_of_few_tiles_share_out_their_inner_dimension() -> None:
    served = Deployment(hp.load_shape("llama3-70b"), tp=8, quant="nvfp4")
    for tokens, down in ((16.0, (16.0, 8192.0 * 2, 1792.0)), (2048.0, (2048.0, 8192.0, 3584.0))):
        products = ops_of(list(ServedCalls(served, 8).products(tokens)), Gemm)
        sizes = [(op.m, op.n, op.k) for op, _ in products]
        # of 64 tiles on 148 SMs two halves of k, of 16 x 64 tiles the whole; as many flops
        assert sizes[-1] == down
        assert np.prod(sizes[-1]) == tokens * 8192 * 3584


def test_experts_take_the_tokens_of_all_attention_ranks() -> None:
    served = Deployment(hp.load_shape("deepseek-v3"), attention_dp=8, expert_ep=8)
    kernels = list(ServedCalls(served, 8).products(4.0))
    ((experts, times),) = ops_of(kernels, Moe)
    assert (experts.tokens, experts.moe_ep, experts.moe_tp, times) == (32.0, 8.0, 1.0, 58)
    messages = {one.call.collective for one in kernels if isinstance(one.call, CollectiveCall)}
    assert messages == {"all_gather", "reduce_scatter"}
    decoded = ops_of(list(ServedCalls(served, 8).decode(4.0, 1000.0)), LatentAttention)
    assert [(op.cached, op.valued, times) for op, times in decoded] == [
        (576.0, 512.0, 3), (576.0, 512.0, 58),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(8, {"all_gather", "reduce_scatter"}), (32, {"dispatch", "combine"})],  # of 8 experts a token
)
def test_tokens_go_to_their_experts_alone_where_these_are_on_more_ranks_than_a_token_has(
    ranks: int, expected: set[str]
) -> None:
    served = Deployment(
        hp.load_shape("deepseek-v3"), attention_dp=ranks, expert_ep=ranks, quant="fp8_block"
    )
    calls = [one.call for one in ServedCalls(served, 64).products(16.0)]
    messages = [call for call in calls if isinstance(call, CollectiveCall)]
    assert {call.collective for call in messages} == expected
    if (
        ranks == 32
    ):  # each token once: in bytes, and 16 bits back; how often it travels the kernel says
        assert sorted({call.bytes for call in messages}) == [16 * 7168, 2 * 16 * 7168]
        told = {"lib": "deepep_low_latency", "topk": "8", "experts": "256"}
        assert all(dict(call.words) == told for call in messages)


def test_few_tokens_go_by_another_kernel_than_many_and_within_a_rack_by_the_frameworks_own() -> (
    None
):
    def kernel(framework: str, per_node: int, tokens: float) -> str:
        served = Deployment(
            hp.load_shape("deepseek-v3"), attention_dp=32, expert_ep=32, quant="fp8_block",
            framework=framework,
        )  # fmt: skip
        calls = [one.call for one in ServedCalls(served, per_node).products(tokens)]
        messages = [one for one in calls if isinstance(one, CollectiveCall)]
        return next(dict(one.words)["lib"] for one in messages if one.collective == "dispatch")

    assert kernel("sglang", 8, 128.0) == "deepep_low_latency"
    assert kernel("sglang", 8, 4096.0) == "deepep"
    assert kernel("trtllm", 8, 4096.0) == "deepep"
    assert kernel("trtllm", 72, 4096.0) == "trtllm"


def test_layers_with_a_window_look_at_no_more() -> None:
    served = Deployment(hp.load_shape("gpt-oss-20b"))
    decoded = ops_of(list(ServedCalls(served, 8).decode(2.0, 5000.0)), DecodeAttention)
    assert sorted((op.window, times) for op, times in decoded) == [(0.0, 12), (128.0, 12)]


def test_step_is_no_shorter_than_its_weights_and_grows_with_what_it_holds(
    llama: TransformerShape, machine: PerfModel
) -> None:
    times, eager, drafted = step_times(
        machine,
        [
            Deployment(llama), Deployment(llama, launches="eager"),
            Deployment(llama, drafted=3, acceptance=0.7),
        ],
        sizes=SIZES,
    )  # fmt: skip
    read_s = 2.0 * llama.parameters / machine.device.memory_bytes_per_s
    assert times.seconds(1.0, 512.0) > 0.9 * read_s
    assert (np.diff(times.products_s) > 0).all()
    assert (np.diff(times.decode_s, axis=0) > 0).all()
    assert (np.diff(times.decode_s, axis=1) > 0).all()
    assert (np.diff(times.prefill_s, axis=0) > 0).all()
    # what launches take is a belief about the host, no constant of the steps
    effects = dataclasses.replace(CALLS_ALONE, launch_s=2.0 * LAUNCH_S)
    launches = prompt_launches(Deployment(llama), machine.device)
    graph_s, launched_s = (
        float(one.as_run(effects, launches, how).seconds(1.0, 512.0))
        for one, how in ((times, 0.0), (eager, 1.0))
    )
    assert graph_s == pytest.approx(float(times.seconds(1.0, 512.0)))
    assert launched_s == pytest.approx(2.0 * launches * LAUNCH_S)
    assert launched_s > graph_s
    assert drafted.seconds(32.0, 512.0) > times.seconds(32.0, 512.0)


def test_flash_attention_2_decodes_beside_prompts_a_block_of_queries_for_each_head(
    llama: TransformerShape, machine: PerfModel
) -> None:
    """64 queries of each of 32 heads where alone 4 of each of 8 groups; other kernels do not."""
    served = Deployment(llama, framework="vllm")
    kernels = list(ServedCalls(served, 8).decode(128.0, 1000.0, beside_prompts=True))
    (op, times), *more = ops_of(kernels, PrefillAttention)
    assert isinstance(op, PrefillAttention)
    assert (op.batch, op.q_len, op.heads, times, more) == (128.0, 64.0, 32.0, 32, [])
    # keys that a query of the block's middle sees, halves of a key more by causality
    assert op.work().flops == pytest.approx(128 * 32 * 64 * 1000.5 * 128 * 4, rel=1e-9)
    assert not ops_of(kernels, DecodeAttention)
    ampere = hp.load_model("a100_sxm4_80g")
    second, third = (
        step_times(model, [served], sizes=SIZES)[0] for model in (ampere, machine)
    )  # Hopper has version 3, which packs a group's heads in any step
    longer_s = second.seconds(64.0, 4096.0, 256.0, 128.0) - second.seconds(64.0, 4096.0)
    prompts_s = second.seconds(0.0, 1.0, 256.0, 128.0)
    assert longer_s > prompts_s
    assert third.beside_s is None
    of_sglang = dataclasses.replace(served, framework="sglang")
    assert step_times(ampere, [of_sglang], sizes=SIZES)[0].beside_s is None


def test_experts_are_priced_by_the_kernel_that_the_framework_has_there() -> None:
    """TensorRT-LLM's 4-bit experts on B200: TRTLLM-Gen's, CUTLASS's for several attention ranks."""
    blackwell = hp.load_model("b200_sxm")
    op = Moe("fp4", 8.0, 7168.0, 2048.0, 8.0, 256.0, 8.0, 1.0, 1.0, "nvfp4", "power_law_1.2")
    ways = [("trtllm", ""), ("trtllm", "spread"), ("vllm", ""), ("sglang", ""),
            ("trtllm", "cutlass")]  # fmt: skip
    calls = [OpCall(op, framework=framework, variant=how) for framework, how in ways]
    one, spread, vllm, sglang, told = blackwell.op_seconds(blackwell.table(calls))
    assert 1.5 * one < spread == told
    assert sglang == vllm  # whose kernels it calls


def test_tensor_parallel_ranks_share_the_step(llama: TransformerShape, machine: PerfModel) -> None:
    one, four = step_times(
        machine, [Deployment(llama), Deployment(llama, tp=4)], "trtllm", sizes=SIZES
    )
    ratio = one.seconds(64.0, 4096.0) / four.seconds(64.0, 4096.0)
    assert 2.0 < ratio < 4.0


def test_tokens_of_a_pass_with_drafts() -> None:
    served = Deployment(hp.load_shape("llama3-8b"), drafted=2, acceptance=0.5)
    assert served.tokens_per_pass == pytest.approx(1.75)


def test_memory_by_hand(llama: TransformerShape) -> None:
    found = serving_memory(Deployment(llama))
    assert found.weights == pytest.approx(2.0 * llama.parameters, rel=1e-3)
    assert found.token == 2 * 8 * 128 * 2.0 * 32
    assert found.needed(10, 100) == found.weights + WORKSPACE_BYTES + 1000 * found.token
    narrow = serving_memory(Deployment(llama, tp=2, kv_dtype="fp8", quant="fp8"))
    assert narrow.token == found.token / 4
    assert serving_memory(Deployment(hp.load_shape("deepseek-v3"), tp=8)).token == 576 * 2.0 * 61
    assert found.sequences(10e9, 1000.0) == 0.0


def test_what_no_engine_has_is_one_sentence(llama: TransformerShape) -> None:
    with pytest.raises(InputError, match="tp must divide the 32 heads"):
        Deployment(llama, tp=3)
    with pytest.raises(InputError, match="acceptance of a deployment is a share"):
        Deployment(llama, drafted=1, acceptance=1.0)


def test_an_indexer_norms_turns_and_narrows_what_it_scores() -> None:
    counts = {
        name: sum(
            times
            for call, times in ServedCalls(Deployment(hp.load_shape(name)), 8).products(4.0)
            if isinstance(getattr(call, "op", None), Quantise)
        )
        for name in ("glm-5", "deepseek-v3")
    }
    assert counts == {"glm-5": 2 * hp.load_shape("glm-5").layers, "deepseek-v3": 0}
