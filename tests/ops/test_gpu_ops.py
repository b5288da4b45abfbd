"""Ops of serving GPUs by hand: attention, experts, quantised products; what each tells about
itself; every public table parses.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table
from hybridperf.ops import Gpu, Op, columns, op_by_name, op_names
from hybridperf.ops.attention import run_by
from hybridperf.ops.inputs import gpu_inputs
from hybridperf.ops.moe import route
from hybridperf.ops.quantise import SCHEMES
from hybridperf.ops.table import LABELS, parse_ops
from hybridperf.ops.tiles import aligned, blocks, serial_steps

GPU = Gpu(sm_count=100.0, l2_bytes=2.0**20)


def make(name: str, dtype: str = "bf16", **fields: float | str) -> Op:
    cls, fixed = op_by_name(name)
    return cls(dtype, **fields, **fixed)


def parse(rows: list[dict], device: str = "b200_sxm"):
    return parse_ops(pd.DataFrame(rows), load_device(device))


PROMPT = {"batch": 2.0, "q_len": 4.0, "heads": 6.0, "kv_heads": 3.0, "head_dim": 8.0}


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({}, 1 + 2 + 3 + 4),  # causal
        ({"causal": 0.0}, 16),
        ({"window": 2.0}, 1 + 2 + 2 + 2),
        ({"window": 4.0}, 10),
        ({"kv_len": 7.0}, 4 + 5 + 6 + 7),
        ({"kv_len": 7.0, "window": 5.0}, 4 + 5 + 5 + 5),
        ({"kv_len": 7.0, "window": 2.0}, 2 * 4),
    ],
)
def test_prefill_attention_by_hand(fields: dict, pairs: float) -> None:
    work = make("context_attention", **PROMPT, **fields).work()
    # a multiply-add for the score and one for the value, each of 8 numbers
    assert float(work.flops) == 4 * 2 * 6 * pairs * 8
    assert float(work.transcendentals) == 2 * 6 * pairs


def test_prefill_attention_moves_queries_results_and_new_keys_twice() -> None:
    """Keys and values are read from the projection's output in 16 bits, and written into the cache
    as it stores them.
    """
    queries, keys = 2 * 4 * 6 * 8, 2 * 4 * 3 * 8
    assert make("context_attention", **PROMPT).work().bytes == 2 * queries * 2 + 2 * keys * (2 + 2)
    assert make(
        "context_attention", **PROMPT, kv_dtype="fp8"
    ).work().bytes == 2 * queries * 2 + 2 * keys * (2 + 1)
    assert make("context_attention", "fp8", **PROMPT).work().bytes == 2 * queries * 2 + 2 * keys * (
        2 + 1
    )
    past = 2 * 5 * 3 * 8  # five tokens that were there before
    assert (
        make("context_attention", **PROMPT, kv_len=9.0).work().bytes
        == 2 * queries * 2 + 2 * keys * (2 + 2) + 2 * past * 2
    )


def test_decode_attention_by_hand() -> None:
    fields = {"batch": 3.0, "kv_len": 100.0, "heads": 8.0, "kv_heads": 2.0, "head_dim": 16.0}
    work = make("generation_attention", **fields).work()
    assert float(work.flops) == 4 * 3 * 8 * 100 * 16
    # query and result, then keys and values
    assert float(work.bytes) == 2 * 3 * (2 * 8 * 16) + 2 * 3 * (2 * 100 * 2 * 16)
    cut = make("generation_attention", **fields, window=30.0, kv_dtype="fp8").work()
    assert float(cut.flops) == 4 * 3 * 8 * 30 * 16
    assert float(cut.bytes) == 2 * 3 * (2 * 8 * 16) + 3 * (2 * 30 * 2 * 16)


def test_encoder_attention_by_hand() -> None:
    work = make("encoder_attention", batch=2.0, q_len=10.0, heads=3.0, head_dim=8.0).work()
    assert float(work.flops) == 4 * 2 * 3 * 100 * 8
    assert float(work.bytes) == 2 * 4 * (2 * 3 * 10 * 8)  # queries, keys, values, results


@pytest.mark.parametrize("name", ["context_attention", "generation_attention"])
def test_a_window_that_reaches_all_keys_is_none(name: str) -> None:
    fields = {
        "batch": 2.0,
        "heads": 4.0,
        "head_dim": 64.0,
        "q_len": 64.0 if name == "context_attention" else 1.0,
        "kv_len": 64.0,
    }
    for window in (64.0, 65.0, 1e6):
        assert make(name, **fields, window=window).work() == make(name, **fields).work()
    assert make(name, **fields, window=63.0).work().flops < make(name, **fields).work().flops


MOE = {"tokens": 8.0, "hidden": 32.0, "inter": 16.0, "topk": 2.0, "experts": 4.0}


def test_moe_by_hand() -> None:
    """8 tokens x 2 experts = 16 rows on all four experts; each row through three matrices of 32 x
    16.
    """
    work = make("moe", **MOE).work()
    assert work.flops == 2 * 16 * 3 * 32 * 16
    # read and summed; written by the first, read by the last product
    weights, vectors, inner = (4 * 3 * 32 * 16, 2 * 8 * 32, 2 * 16 * 16)
    assert work.bytes == 2 * (weights + vectors + inner)
    half = make("moe", **MOE, moe_tp=2.0).work()
    assert half.flops == work.flops / 2
    assert half.bytes == 2 * (weights / 2 + vectors + inner / 2)
    quarter = make("moe", **MOE, moe_ep=4.0).work()  # one expert, four rows, four tokens
    assert quarter.flops == work.flops / 4
    assert quarter.bytes == 2 * (weights + vectors * 2 + inner) / 4
    assert make("moe", **MOE, gated=0.0).work().flops == work.flops * 2 / 3
    assert blocks(make("moe", **MOE)) == 4 * 1 * 1  # 64 rows and 128 columns cover each expert


def test_moe_weights_are_stored_as_the_scheme_says() -> None:
    """mxfp4: half a byte, and a scale of one byte for 32 of them; activations stay in 16 bits."""
    narrow = make("moe", **MOE, quant="w4a16_mxfp4").work().bytes
    assert make("moe", **MOE).work().bytes - narrow == pytest.approx(
        4 * 3 * 32 * 16 * (2 - 0.5 - 1 / 32)
    )


def test_one_expert_is_a_dense_gated_mlp() -> None:
    tokens, hidden, inter = 128.0, 256.0, 512.0
    one = make("moe", tokens=tokens, hidden=hidden, inter=inter, topk=1.0, experts=1.0).work()
    products = [make("gemm", m=tokens, n=inter, k=hidden)] * 2 + [
        make("gemm", m=tokens, n=hidden, k=inter)
    ]
    assert one.flops == sum(product.work().flops for product in products)


def test_balanced_routing_is_even() -> None:
    far_more = route(4096.0, 8.0, 64.0, 4.0, "balanced")
    assert (far_more.rows, far_more.active, far_more.busiest) == (4096 * 8 / 4, 16, 4096 * 8 / 64)
    few = route(2.0, 4.0, 64.0, 1.0, "balanced")
    assert (few.rows, few.active, few.busiest) == (8, 8, 1)


@pytest.mark.parametrize("exponent", [1.01, 1.2])
@pytest.mark.parametrize(
    ("tokens", "topk", "experts", "ranks"),
    [(16384, 8, 256, 1), (16384, 8, 256, 32), (1024, 8, 128, 4), (64, 8, 256, 4)],
)
def test_power_law_routing_is_what_drawing_loads_gives(
    exponent: float, tokens: int, topk: int, experts: int, ranks: int
) -> None:
    rng = np.random.default_rng(0)
    least, largest = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    b = 1.0 - exponent
    loads = ((largest**b - least**b) * rng.random((400, experts)) + least**b) ** (1 / b)
    rows = np.round(loads / loads.sum(1, keepdims=True) * tokens * topk).reshape(400, ranks, -1)
    mine = rows[np.arange(400), rows.sum(2).argmax(1)]
    drawn = (mine.sum(1).mean(), (mine > 0).sum(1).mean(), mine.max(1).mean())
    law = route(float(tokens), float(topk), float(experts), float(ranks), f"power_law_{exponent}")
    np.testing.assert_allclose((law.rows, law.active, law.busiest), drawn, rtol=0.17)


def test_more_tokens_are_never_fewer_rows_or_experts() -> None:
    tokens = 2.0 ** np.arange(0, 17)
    for name in ("balanced", "power_law_1.01", "power_law_1.2"):
        law = route(tokens[4:], 8.0, 64.0, 8.0, name)
        assert (np.diff(law.rows) > 0).all()
        assert (law.active <= 8).all()
        assert (law.busiest <= law.rows).all()
        assert (law.rows <= tokens[4:] * 8).all()


def test_gradients_reach_the_dimensions_of_experts_and_attention() -> None:
    def moe(tokens):
        return (
            make("moe", **{**MOE, "tokens": tokens}, distribution="power_law_1.2", moe_ep=2.0)
            .work()
            .bytes
        )

    def attention(length):
        return make("context_attention", **{**PROMPT, "q_len": length}, window=3.0).work().flops

    for function, at in ((moe, 40.0), (attention, 9.0)):
        slope = float(jax.grad(function)(at))
        assert slope == pytest.approx(
            (float(function(at + 0.5)) - float(function(at - 0.5))), rel=0.02
        )


def test_quantised_products_by_hand() -> None:
    """Weight-only: narrow weights, 16-bit activations; fp8: activations read in 16 bits, written
    and read again in 8.
    """
    m, n, k = 3.0, 5.0, 128.0
    shape = {"m": m, "n": n, "k": k}
    assert make("gemm", **shape, quant="int8_wo").work().bytes == 2 * m * k + n * k + 2 * m * n
    assert (
        make("gemm", "fp8", **shape, quant="fp8").work().bytes
        == (2 + 1 + 1) * m * k + n * k + 2 * m * n
    )
    assert make("gemm", "int8", **shape, quant="sq").work().bytes == m * k + n * k + 2 * m * n
    assert (
        make("bmm", batch=7.0, **shape, quant="bfloat16").work()
        == make("bmm", batch=7.0, **shape).work()
    )
    assert make("gemm", **shape, quant="bfloat16").work() == make("gemm", **shape).work()
    nvfp4 = SCHEMES["nvfp4"]
    assert nvfp4.weight_bytes == 0.5 + 1 / 16


def test_the_scheme_decides_whose_peak_counts() -> None:
    device = load_device("b200_sxm")
    shape = {"op": "gemm", "dtype": "bf16", "m": 1, "n": 2, "k": 3}
    parsed = parse(
        [{**shape, "quant": quant} for quant in ("", "int8_wo", "fp8", "w4a8_mxfp4_mxfp8", "nvfp4")]
    )
    peaks = [part.peak_flops_per_s for part in parsed.parts]
    assert peaks == [
        device.peak(dtype, "matrix") for dtype in ("bf16", "bf16", "fp8", "fp8", "fp4")
    ]


def test_quantising_a_matrix_by_hand() -> None:
    work = make("scale_matrix", rows=4.0, cols=8.0).work()
    assert (work.flops, work.bytes) == (2 * 32, 32 * (2 + 1))


def test_rms_norm_and_gates_by_hand() -> None:
    assert make("rmsnorm", rows=4.0, cols=8.0).work().bytes == 2 * (2 * 32 + 8)
    assert make("silu_mul", rows=4.0, cols=8.0).work().bytes == 2 * 3 * 32
    assert make("rope", rows=4.0, cols=8.0).work().bytes == 2 * 2 * 32


@pytest.mark.parametrize(
    ("row", "column", "word", "expected"),
    [
        ({"op": "gemm", "m": 1, "n": 2, "k": 3}, "quant", "int3", "known are bfloat16"),
        ({"op": "moe", **MOE}, "quant", "fp9", "known are bfloat16"),
        ({"op": "moe", **MOE}, "distribution", "zipf", "power_law_x"),
        ({"op": "context_attention", **PROMPT}, "kv_dtype", "fp7", "known are fp64"),
        ({"op": "scale_matrix", "rows": 1, "cols": 2}, "quant", "int8_wo", "fp8"),
        (
            {"op": "conv", "batch": 1, "c_in": 1, "c_out": 1, "h_in": 4, "h_out": 4, "kh": 1},
            "pass",
            "sideways",
            "fwd, bwd_inputs, bwd_params",
        ),
    ],
)
def test_a_word_nobody_knows_is_an_error_of_its_rows(
    row: dict, column: str, word: str, expected: str
) -> None:
    rows = [
        {"dtype": "bf16", **row},
        {"dtype": "bf16", **row, column: word},
        {"dtype": "bf16", **row},
    ]
    parsed = parse(rows)
    assert [bool(problem) for problem in parsed.problem] == [False, True, False]
    assert word in parsed.problem[1]
    assert expected in parsed.problem[1]
    assert [len(part.rows) for part in parsed.parts] == [2]  # empty and absent mean the same
    with pytest.raises(InputError, match=word):
        parse(rows[1:2])


def test_text_apart_and_labels_along() -> None:
    shape = {"op": "gemm", "dtype": "bf16", "m": 1, "n": 2, "k": 3}
    parsed = parse([
        {**shape, "quant": "fp8", "framework": "a", "kernel": "x"},
        {**shape, "quant": "", "framework": "b"},
        {**shape, "quant": "fp8", "framework": "c", "version": "1.0"},
    ])  # fmt: skip
    assert [part.rows.tolist() for part in parsed.parts] == [[0, 2], [1]]
    assert [part.op.quant for part in parsed.parts] == ["fp8", ""]
    assert {label: values.tolist() for label, values in parsed.parts[0].labels.items()} == {
        "framework": ["a", "c"], "version": ["", "1.0"], "kernel": ["x", ""], "algo": ["", ""],
    }  # fmt: skip
    assert tuple(parsed.parts[0].labels) == LABELS


def test_flags_may_be_words() -> None:
    gemm = {"op": "gemm", "dtype": "fp32", "m": 1, "n": 2, "k": 3}
    (part,) = parse([{**gemm, "ta": "T", "tb": "N"}, {**gemm, "ta": "N", "tb": "T"}]).parts
    assert part.op.transposed_a.tolist() == [1, 0]
    assert part.op.transposed_b.tolist() == [0, 1]
    attention = {"op": "context_attention", "dtype": "bf16", **PROMPT}
    (part,) = parse(
        [{**attention, "causal": True}, {**attention, "causal": "False"}, attention]
    ).parts
    assert part.op.causal.tolist() == [1, 0, 1]
    wrong = parse([{**gemm, "ta": "Q"}, {**gemm, "m": "T"}, gemm])
    assert [bool(problem) for problem in wrong.problem] == [True, True, False]
    assert wrong.problem[0].startswith("gemm: transposed_a must be yes or no")


def test_a_kernel_without_gate_says_so() -> None:
    row = {"op": "moe", "dtype": "bf16", **MOE}
    (part,) = parse(
        [
            {**row, "kernel": "flow"},
            {**row, "kernel": "flow_nongated"},
            {**row, "kernel": "flow_nongated", "gated": 1},
        ]
    ).parts
    assert part.op.gated.tolist() == [1, 0, 1]


def test_text_makes_the_round_trip() -> None:
    for op in (
        make("moe", **MOE, quant="nvfp4", distribution="power_law_1.2"),
        make("gemm", m=1.0, n=2.0, k=3.0, quant="fp8"),
        make(
            "generation_attention", batch=1.0, kv_len=2.0, heads=4.0, head_dim=8.0, kv_dtype="fp8"
        ),
        make(
            "conv",
            batch=1.0,
            c_in=1.0,
            c_out=1.0,
            h_in=4.0,
            h_out=4.0,
            kh=1.0,
            direction="bwd_params",
        ),
    ):
        (part,) = parse([columns(op)]).parts
        assert (
            dataclasses.replace(
                part.op,
                **{name: float(np.ravel(getattr(part.op, name))[0]) for name in op.dimensions()},
            )
            == op
        )
    assert "quant" not in columns(make("gemm", m=1.0, n=2.0, k=3.0))


@pytest.mark.parametrize("name", op_names())
def test_every_op_tells_about_itself(name: str) -> None:
    """Finite numbers under the same names for one op and for columns, and a column's rows apart."""
    cls, fixed = op_by_name(name)
    names = [dimension for dimension in cls.dimensions() if dimension not in fixed]
    rng = np.random.default_rng(0)
    table = {dimension: rng.integers(1, 60, 5).astype(float) for dimension in names}
    if name == "moe":
        table |= {"topk": np.full(5, 2.0), "moe_ep": np.ones(5)}
    together = cls("fp32", **table, **fixed)
    inputs = gpu_inputs(together, GPU)
    assert inputs
    for i in range(5):
        alone = cls(
            "fp32", **{dimension: float(values[i]) for dimension, values in table.items()}, **fixed
        )
        for (name_together, values), (name_alone, value) in zip(
            inputs.items(), gpu_inputs(alone, GPU).items(), strict=True
        ):
            assert name_together == name_alone
            assert np.isfinite(value)
            assert float(np.broadcast_to(values, 5)[i]) == pytest.approx(float(value), abs=1e-5)
        for of in (blocks, lambda op: serial_steps(op, GPU)):
            assert float(np.broadcast_to(of(together), 5)[i]) == pytest.approx(float(of(alone)))


def test_inputs_of_a_product_by_hand() -> None:
    """130 x 256 outputs: 2 x 2 tiles of 128, of which the second row holds two rows; 4 blocks on
    100 multiprocessors.
    """
    op = make("gemm", m=130.0, n=256.0, k=128.0)
    inputs = gpu_inputs(op, GPU)
    assert blocks(op) == 4
    assert inputs["tail128_m"] == pytest.approx(np.log2(256 / 130))
    assert inputs["tail128_n"] == 0
    assert (inputs["align_m"], inputs["align_n"], inputs["align_k"]) == (1, 8, 7)
    assert inputs["waves_128x128"] == pytest.approx(np.log2(4 / 100))
    assert inputs["last_wave_128x128"] == pytest.approx(np.log2(100 / 4))
    assert inputs["fill_128x128_by1"] == pytest.approx(np.log2(100 * 128 * 128 / (130 * 256)))
    assert inputs["fill_128x128_by4"] == pytest.approx(np.log2(100 * 128 * 128 / 4 / (130 * 256)))
    assert inputs["log2_weights_per_l2"] == pytest.approx(np.log2(256 * 128 * 2 / 2**20))


def test_a_product_between_whole_tiles_lies_between_them() -> None:
    """Of 16 bits: tables hold no such width. Rows are measured one by one, fp32 in any size."""

    def found(dtype: str, **sizes: float) -> Any:
        op = op_by_name("gemm")[0](dtype, **{"m": 130.0, "n": 256.0, "k": 128.0, **sizes})
        return gpu_inputs(op, GPU)["align_k"], gpu_inputs(op, GPU)["fill_128x128_by1"]

    corners = [found("bf16", n=n, k=k) for n in (256.0, 384.0) for k in (64.0, 128.0)]
    assert found("bf16", n=320.0, k=96.0) == pytest.approx(np.mean(corners, 0))
    assert found("bf16", n=256.0, k=128.0) == found("fp32", n=256.0, k=128.0)
    assert found("fp32", n=320.0, k=96.0)[0] == 5


def test_powers_of_two() -> None:
    assert aligned(np.array([1.0, 2.0, 12.0, 48.0, 64.0]), 16).tolist() == [0, 1, 2, 4, 4]


def test_blocks_by_hand() -> None:
    assert blocks(make("bmm", batch=7.0, m=129.0, n=128.0, k=8.0)) == 7 * 2
    assert blocks(make("context_attention", **{**PROMPT, "q_len": 129.0})) == 2 * 2 * 6
    assert (
        blocks(make("generation_attention", batch=3.0, kv_len=9.0, heads=8.0, head_dim=16.0)) == 24
    )
    assert blocks(make("softmax", rows=5.0, cols=9.0)) == 5
    assert blocks(make("add", rows=4.0, cols=1024.0)) == 4
    conv = {"batch": 2.0, "c_in": 256.0, "c_out": 128.0, "h_in": 8.0, "h_out": 8.0, "kh": 3.0}
    assert blocks(make("conv", **conv)) == 1  # 2 x 64 pixels, 128 channels
    assert blocks(make("conv", **conv, direction="bwd_inputs")) == 2
    assert blocks(make("conv", **conv, direction="bwd_params")) == 2304 / 128


def test_steps_along_k_by_hand() -> None:
    """100 multiprocessors. One tile and k = 64,000: 1,000 steps, or 16 parts of 63 and their sum;
    101 tiles of 10 steps: one multiprocessor takes two, and k is too short to be cut.
    """
    assert serial_steps(make("gemm", m=1.0, n=1.0, k=64_000.0), GPU) == 63 + 16 * 4
    assert serial_steps(make("gemm", "fp8", m=1.0, n=1.0, k=64_000.0), GPU) == 1000
    assert serial_steps(make("gemm", m=128.0, n=128.0 * 101, k=640.0), GPU) == 20
    assert serial_steps(make("bmm", batch=101.0, m=128.0, n=128.0, k=640.0), GPU) == 20
    more = np.linspace(1.0, 20_000.0, 400)
    for name in ("m", "n", "k"):
        sizes = {"m": 256.0, "n": 512.0, "k": 4096.0, name: more}
        fewer = np.diff(serial_steps(make("gemm", **sizes), GPU))
        assert (fewer >= 0).all(), f"a larger {name} is not quicker"
    assert serial_steps(make("softmax", rows=5.0, cols=9.0), GPU) == 0


def test_steps_of_a_convolution_are_those_of_the_quicker_way() -> None:
    """100 multiprocessors with two blocks each. 14 x 14 pixels are 4 x 4 tiles of Winograd's, 36
    products of 1,024 x 256 outputs: 576 blocks, 3 rounds of 200, each twice as long as a single
    block, along 1,000 channels in 16 steps. Directly it is 98 x 2 blocks along 9,000 in 141.
    """
    sizes = {"batch": 64.0, "c_in": 1000.0, "c_out": 256.0, "h_in": 14.0, "h_out": 14.0}
    assert serial_steps(make("conv", "fp32", **sizes, kh=3.0), GPU) == 2 * 3 * 16
    assert serial_steps(make("conv", "fp32", **sizes, kh=3.0, direction="bwd_params"), GPU) > 100
    # kernels of 5 x 5 go the direct way alone: 391 steps in one round
    assert serial_steps(make("conv", "fp32", **sizes, kh=5.0), GPU) == 2 * 391
    inputs = gpu_inputs(make("conv", "fp32", **sizes, kh=3.0), GPU)
    assert inputs["winograd_padding"] == pytest.approx(2 * np.log2(16 / 14))
    assert gpu_inputs(make("conv", "fp32", **sizes, kh=5.0), GPU)["winograd_padding"] == 0


# Own flops over the file's, where they count the same work. Softmax, norms, gelu and rope are
# counted by another convention there (see test_ops.py), `pow` and `tanh` are transcendentals here,
# lookups have none.
SAME_FLOPS = {
    "aiconfigurator_context_attention", "aiconfigurator_encoder_attention", "aiconfigurator_gemm",
    "aiconfigurator_generation_attention", "aiconfigurator_mla_gen_post",
    "aiconfigurator_mla_gen_pre", "aiconfigurator_scale_matrix", "deepbench_conv", "deepbench_gemm",
    "neusight_bmm", "neusight_conv", "neusight_linear", "vidur_gemm",
}  # fmt: skip
NO_DEVICES = ("rpi3", "iphone6", "iphone7", "vega_fe")  # of DeepBench, whose facts we do not keep
OTHER_FLOPS = {
    "aiconfigurator_moe", "neusight_elementwise", "neusight_ln", "neusight_softmax",
    "vidur_memory_ops",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SAME_FLOPS | OTHER_FLOPS))
def test_every_table_parses_on_its_devices(name: str, data_dir: Path) -> None:
    frame = read_table(data_dir / "compute" / f"{name}.csv.gz")
    names: dict[type[Op], tuple[str, ...]] = {}
    for device, rows in frame[~frame["device"].isin(NO_DEVICES)].groupby("device"):
        rows = rows.reset_index(drop=True)
        spec = load_device(str(device))
        parsed = parse_ops(rows, spec)
        assert not parsed.problem.any(), pd.Series(
            parsed.problem[parsed.problem != ""]
        ).value_counts()
        for part in parsed.parts:
            inputs = gpu_inputs(
                part.op, Gpu(float(spec.multiprocessors or 1), float(spec.l2_bytes or 2**20))
            )
            assert names.setdefault(type(part.op), tuple(inputs)) == tuple(inputs)
            assert all(
                np.isfinite(np.asarray(values, np.float64)).all() for values in inputs.values()
            )
            assert np.isfinite(blocks(part.op)).all()
            if name in SAME_FLOPS:
                np.testing.assert_allclose(
                    part.work.flops, rows["flops"].to_numpy()[part.rows], rtol=1e-4
                )


def test_decoding_reads_a_cache_once_or_once_a_head() -> None:
    """TensorRT-LLM shares a cache among 32 heads at most; a block starts for each cache."""
    sizes = {"batch": 8.0, "kv_len": 4096.0, "head_dim": 128.0}
    shared = make("decode_attention", **sizes, heads=np.array([32.0, 64.0]), kv_heads=1.0)
    assert run_by(shared, np.array(["vllm", "vllm"])) is shared
    run = run_by(shared, np.array(["trtllm", "trtllm"]))
    np.testing.assert_allclose(run.work().bytes / shared.work().bytes, [1.0, 64.0], rtol=0.05)
    np.testing.assert_allclose(serial_steps(run, GPU) / serial_steps(shared, GPU), [1.0, 64.0])
    np.testing.assert_allclose(run.work().flops, shared.work().flops)


def test_flops_of_balanced_experts_are_the_files(data_dir: Path) -> None:
    """Where routing is even and there is a row for each rank; theirs count a gate for ungated
    kernels, too.
    """
    frame = read_table(data_dir / "compute" / "aiconfigurator_moe.csv.gz")
    frame = frame[
        (frame["distribution"] == "balanced") & (frame["tokens"] * frame["topk"] >= frame["moe_ep"])
    ].reset_index(drop=True)
    for part in parse_ops(frame, load_device("b200_sxm")).parts:
        theirs = frame["flops"].to_numpy()[part.rows] * (2 + part.op.gated) / 3
        np.testing.assert_allclose(part.work.flops, theirs, rtol=1e-4)
