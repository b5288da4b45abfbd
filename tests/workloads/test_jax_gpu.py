"""JAX programs for a GPU that is not here: arithmetic, kernels and memory by hand, loops by their
trips, and the same layer by PyTorch's door.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.jax_steps import (
    H100,
    STEPS,
    Block,
    Mlp,
    classified,
    f32,
    gpu,
    i32,
    ran,
    squared,
    step_of,
)

import hybridperf as hp
from benchmarks.claims.gpu_jax_steps import bf16
from hybridperf.engine.workload import Workload
from hybridperf.model.price import price
from hybridperf.ops import (
    Convolution,
    EncoderAttention,
    Fused,
    Gather,
    PrefillAttention,
    ScatterAdd,
    Sort,
)
from hybridperf.workloads.programs.ratios import FUSED_ATTENTION


def matrix_flops(workload: Workload) -> float:
    """Of products, convolutions and attention."""
    return sum(c.op.work().flops * c.times for c in ran(workload) if c.op.unit == "matrix")


def loops(workload: Workload) -> list[Any]:
    """Work of each kernel that is no library's."""
    return [call.op.work() for call in ran(workload) if isinstance(call.op, Fused)]


# --- arithmetic -----------------------------------------------------------------------------------


def test_products_of_an_mlp_by_hand() -> None:
    """Two backward products per layer, but for the first, whose inputs are not trained."""
    step = gpu(*(lambda fn, args: (fn, *args))(*STEPS["mlp"]()))
    b, sizes = 64, [(256, 1024), (1024, 1024), (1024, 16)]
    by_hand = sum(3 * 2 * b * i * o for i, o in sizes) - 2 * b * 256 * 1024
    assert matrix_flops(step) == by_hand
    assert {call.op.dtype for call in ran(step) if call.op.unit == "matrix"} == {"bf16"}


def test_products_of_a_transformer_by_hand() -> None:
    b, t, d = 4, 128, 256
    step, args = step_of(Block(), squared, f32(b, t, d), f32(b, t, d))
    weights, scores = (4 + 8) * d * d, 2 * t * d
    assert matrix_flops(gpu(step, *args)) == 3 * 2 * b * t * (weights + scores)


def test_convolutions_of_a_cnn_by_hand() -> None:
    step, args = STEPS["cnn"]()
    found = [call.op for call in ran(gpu(step, *args)) if isinstance(call.op, Convolution)]
    sizes = {(op.direction, op.c_in, op.c_out, op.h_in, op.h_out, op.kh) for op in found}
    assert sizes == {
        ("fwd", 3, 32, 32, 32, 3), ("fwd", 32, 64, 16, 16, 3), ("bwd_inputs", 32, 64, 16, 16, 3),
        ("bwd_params", 3, 32, 32, 32, 3), ("bwd_params", 32, 64, 16, 16, 3),
    }  # fmt: skip
    inside = [(3 * size - 2) ** 2 for size in (32, 16)]  # positions that no padding covers
    one, two = 2 * 32 * 3 * 32 * inside[0], 2 * 32 * 32 * 64 * inside[1]
    assert sum(op.work().flops for op in found) == pytest.approx(2 * one + 3 * two)


def test_strided_and_grouped_convolutions_are_those_of_their_forward_pass() -> None:
    def loss(w, x):
        y = lax.conv_general_dilated(
            x, w, (2, 2), "SAME", feature_group_count=4,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        return (y**2).sum()

    step = gpu(jax.grad(loss, argnums=(0, 1)), f32(3, 3, 2, 16), f32(4, 32, 32, 8))
    found = [call.op for call in ran(step) if isinstance(call.op, Convolution)]
    assert {op.direction for op in found} == {"fwd", "bwd_inputs", "bwd_params"}
    assert {(op.batch, op.c_in, op.c_out, op.groups, op.h_in, op.h_out) for op in found} == {
        (4, 8, 16, 4, 32, 16)
    }
    assert len({op.work().flops for op in found}) == 1


def test_an_lstm_is_its_tokens() -> None:
    step, args = STEPS["lstm"]()
    b, t, i, h, classes = 16, 100, 128, 256, 1000
    cells = 4 * h * (i + h)
    head = 3 * 2 * b * t * h * classes
    # the first token's state is no parameter's, but its gradient is computed as all others'
    assert matrix_flops(gpu(step, *args)) == 3 * 2 * b * t * cells + head


def test_experts_gather_and_scatter_their_rows() -> None:
    step, args = STEPS["moe"]()
    found = ran(gpu(step, *args))
    tokens, d, chosen, experts = 512, 128, 2, 8
    # of six products of experts, the gradient of what comes in is no parameter's; so the router's
    by_hand = 5 * 2 * tokens * chosen * 4 * d * d + 2 * 2 * tokens * d * experts
    assert sum(c.op.work().flops for c in found if c.op.unit == "matrix") == pytest.approx(by_hand)
    assert ScatterAdd("fp32", tokens * chosen, d, tokens) in [call.op for call in found]
    assert sum(isinstance(call.op, Sort) for call in found) == 2  # the largest two, and by expert


def test_gradients_of_groups_of_rows_are_groups_too() -> None:
    """Rows, and the matrices': each as many products as its result, whichever is turned."""
    groups, rows, d, out = 8, 2048, 512, 1024
    step = jax.grad(lambda w, x, n: jax.lax.ragged_dot(x, w, n).sum(), argnums=(0, 1))
    found = gpu(step, bf16(groups, d, out), bf16(rows, d), i32(groups))
    assert {tuple(map(float, (c.op.batch, c.op.m, c.op.n, c.op.k))) for c in ran(found)
            if c.op.unit == "matrix"} == {(8, 512, 1024, 256), (8, 256, 512, 1024)}  # fmt: skip


def test_a_lookup_and_its_gradient_know_their_table() -> None:
    step = gpu(jax.grad(lambda t, i: (t[i] ** 2).sum()), f32(50_000, 64), i32(4096))
    assert ScatterAdd("fp32", 4096, 64, 50_000) in [call.op for call in ran(step)]
    (found,) = (call.op for call in ran(gpu(lambda t, i: t[i], f32(50_000, 64), i32(4096))))
    assert found == Gather("fp32", 4096, 64, 50_000)


def test_precision_is_that_of_jax() -> None:
    """fp32 multiplies at TF32 unless the program asks for more; fp32 takes longer than bf16."""

    def formats(device, **options):
        step = hp.from_jax(lambda x: jnp.dot(x, x, **options), f32(512, 512), device=device)
        return [call.op.dtype for call in ran(step)]

    assert formats(H100) == ["tf32"]
    assert formats(H100, precision="highest") == ["fp32"]
    assert formats("v100_sxm2") == ["fp32"]

    def seconds(dtype) -> float:
        x = jax.ShapeDtypeStruct((8192, 256), dtype)
        step, args = step_of(Mlp(dtype), classified, x, i32(8192))
        return hp.predict(H100, gpu(step, *args)).time_s

    assert seconds(jnp.bfloat16) < 0.9 * seconds(jnp.float32)


# --- kernels --------------------------------------------------------------------------------------

SIZE = 64 * 128 * 256 * 4


def shares(fn, *args) -> list[float]:
    """Bytes that each loop moves, of those of an array of 64 x 128 x 256."""
    return [round(work.bytes / SIZE, 2) for work in loops(gpu(fn, *args))]


X, W = f32(64, 128, 256), f32(256, 256)


def test_loops_that_follow_one_another_are_one_kernel() -> None:
    assert shares(lambda x: jnp.tanh(jax.nn.sigmoid(jax.nn.gelu(x))), X) == [2]
    assert shares(lambda x: jax.nn.softmax(x, -1), X) == [2]

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    assert shares(lambda x, w: norm(x) @ w, X, W) == [2]
    # columns are summed by a kernel that ends there
    assert shares(lambda x: x - x.mean(0), X) == [1.02, 2.02]
    # a bias and its gradient read and write as they must, whatever is broadcast
    assert shares(lambda x, b: jax.nn.relu(x + b), X, f32(256)) == [2]
    # of what is cut out, no more is computed
    assert shares(lambda x: (x.T + 1.0)[:8], X) == [round(2 * 8 / 256, 2)]


def test_what_is_cheap_is_computed_again() -> None:
    """The gradient of gelu needs what lies between its input and output: only the input is read."""
    # ones, that the last product is summed by, are written for the library
    assert shares(jax.grad(lambda x, w: (jax.nn.gelu(x @ w) @ w).sum()), X, W) == [1, 3]


def test_a_product_between_two_loops_keeps_them_apart() -> None:
    kinds = [type(call.op).__name__ for call in ran(gpu(
        lambda x: (lambda one: one * jnp.tanh(one @ one))(jax.nn.relu(x)), f32(64, 64)
    ))]  # fmt: skip
    assert kinds == ["Fused", "Gemm", "Fused"]


def test_an_update_is_one_kernel_for_each_parameter() -> None:
    """Adam reads weights, gradients and two moments, and writes three: here of 1024 x 1024."""
    step, args = step_of(nn.Dense(1024, use_bias=False), squared, f32(8, 1024), f32(8, 1024))
    largest = max(loops(gpu(step, *args)), key=lambda work: work.bytes)
    assert largest.bytes == pytest.approx(7 * 4 * 1024**2, rel=1e-3)


def test_operands_that_a_library_cannot_read_are_turned_first() -> None:
    """[batch, tokens, heads, size] has its batch in two pieces; one matrix is read either way."""
    q = bf16(2, 128, 8, 64)
    scores = ran(gpu(lambda q, k: jnp.einsum("btnh,bsnh->bnts", q, k), q, q))
    assert [type(call.op).__name__ for call in scores] == ["Copy", "Copy", "BatchedGemm"]
    assert len(ran(gpu(lambda x, w: x.T @ w.T, f32(64, 128), f32(32, 64)))) == 1


def test_fused_attention_is_cudnns() -> None:
    q, kv = bf16(2, 256, 8, 64), bf16(2, 256, 2, 64)

    def attend(q, k, v, **options):
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)

    assert [call.op for call in ran(gpu(lambda *qkv: attend(*qkv, is_causal=True), q, kv, kv))] == [
        PrefillAttention("bf16", 2, 256, 8, 64, 2, kv_len=256)
    ]
    assert [call.op for call in ran(gpu(attend, q, kv, kv))] == [
        EncoderAttention("bf16", 2, 256, 8, 64, 2)
    ]
    step = gpu(jax.grad(lambda *qkv: attend(*qkv).sum(), argnums=(0, 1, 2)), q, kv, kv)
    times = [call.times for call in ran(step) if isinstance(call.op, EncoderAttention)]
    assert times == [1, FUSED_ATTENTION]


@pytest.mark.parametrize("name", STEPS)
def test_plain_programs_are_captured(name: str) -> None:
    fn, args = STEPS[name]()
    step = gpu(fn, *args, donate_argnums=(0, 1))
    assert not step.notes
    result = hp.predict(H100, step)
    assert 0 < result.low_s < result.time_s < result.high_s
    assert step.peak_memory.bytes > sum(one.size * 4 for one in jax.tree.leaves(args[0]))


def test_what_is_computed_again_for_memory_is_computed_again() -> None:
    """`jax.checkpoint`: four products of a forward pass (nobody reads the fifth), its five once
    more, and nine gradients.
    """

    def layer(x: Any, w: Any) -> Any:
        return jax.nn.gelu(x @ w)

    def step(again: bool) -> Workload:
        def loss(weights: Any, x: Any) -> Any:
            for w in weights:
                x = (jax.checkpoint(layer) if again else layer)(x, w)
            return x.sum()

        return gpu(jax.grad(loss), [f32(512, 512)] * 5, f32(1024, 512))

    product = 2 * 1024 * 512 * 512
    assert matrix_flops(step(False)) == pytest.approx((5 + 9) * product)
    assert matrix_flops(step(True)) == pytest.approx((4 + 5 + 9) * product)


def test_a_llama_layer_is_what_pytorch_compiles() -> None:
    """The same layer by both doors: products and attention alike, kernels around them nearly."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    b, t, d, heads, groups, inner = 2, 1024, 2048, 16, 4, 5632
    size = d // heads
    widths = {"q": (d, d), "k": (d, groups * size), "v": (d, groups * size), "o": (d, d)}
    widths |= {"gate": (d, inner), "up": (d, inner), "down": (inner, d), "one": (d,), "two": (d,)}

    def layer(np, p, x, attend, silu):
        def norm(x, scale):
            return x / np.sqrt((x * x).mean(-1)[..., None] + 1e-6) * scale

        h = norm(x, p["one"])
        parts = [(h @ p[one]).reshape(b, t, -1, size) for one in "qkv"]
        x = x + attend(*parts).reshape(b, t, d) @ p["o"]
        h = norm(x, p["two"])
        return x + (silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def of_jax(p, x):
        def attend(q, k, v):
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")

        return layer(jnp, p, x, attend, jax.nn.silu).astype(jnp.float32).sum()

    def of_torch(p, x):
        def attend(*qkv):
            return torch.nn.functional.scaled_dot_product_attention(
                *(one.transpose(1, 2) for one in qkv), is_causal=True, enable_gqa=True
            ).transpose(1, 2)

        return layer(torch, p, x, attend, torch.nn.functional.silu).float().sum()

    shapes = {name: bf16(*dims) for name, dims in widths.items()}
    one = gpu(jax.value_and_grad(of_jax, argnums=(0, 1)), shapes, bf16(b, t, d))
    with hp.without_memory():
        p = {n: torch.zeros(w, dtype=torch.bfloat16, requires_grad=True) for n, w in widths.items()}
        x = torch.zeros(b, t, d, dtype=torch.bfloat16, requires_grad=True)
        two = hp.from_torch(of_torch, p, x, compiled=True)
    assert matrix_flops(one) == pytest.approx(matrix_flops(two), rel=1e-6)
    # alone: from kernel to kernel the two need unlike times
    products = [[call for call in ran(step) if call.op.group == "gemm"] for step in (one, two)]
    alone_s = [price(hp.load_model(H100), calls).seconds.sum() for calls in products]
    assert alone_s[0] == pytest.approx(alone_s[1], rel=0.02)
    # PyTorch's host launches kernel by kernel, and its backward pass reads what XLA computes again
    assert 0.7 < hp.predict(H100, one).time_s / hp.predict(H100, two).time_s < 1


# --- loops, branches, memory ----------------------------------------------------------------------


def test_a_scan_is_as_many_times_its_body() -> None:
    def steps(n: int) -> Workload:
        def body(x, w):
            return jnp.tanh(x @ w), x.sum()

        return gpu(lambda w, x: lax.scan(body, x, w), f32(n, 512, 512), f32(512, 512))

    few, many = steps(10), steps(40)
    assert matrix_flops(many) == 4 * matrix_flops(few) == 40 * 2 * 512**3
    seconds = [hp.predict(H100, one).time_s for one in (few, many)]
    assert seconds[1] == pytest.approx(4 * seconds[0], rel=0.02)
    assert len(ran(few)) == len(ran(many))


def test_trips_are_counted_up_and_down_and_in_each_other() -> None:
    def down(x):
        return lax.while_loop(lambda s: s[0] > 2, lambda s: (s[0] - 3, s[1] @ s[1]), (20, x))[1]

    assert matrix_flops(gpu(down, f32(64, 64))) == 6 * 2 * 64**3

    def nested(x):
        return lax.fori_loop(0, 5, lambda i, x: lax.fori_loop(0, 3, lambda j, x: x @ x, x), x)

    assert matrix_flops(gpu(nested, f32(64, 64))) == 15 * 2 * 64**3


def test_of_branches_the_costlier_one_counts() -> None:
    def branches(p, x):
        return lax.cond(p, lambda x: x @ x @ x, lambda x: x + 1, x)

    step = gpu(branches, jax.ShapeDtypeStruct((), jnp.bool_), f32(64, 64))
    assert matrix_flops(step) == 2 * 2 * 64**3
    assert "priced its costlier branch" in step.notes[0]


def test_memory_by_hand() -> None:
    """Weights and input, one result and the gradient; donated weights are written over, as XLA
    plans it on a CPU, and the most is alive as their gradient is made.
    """
    n, b = 4096, 512

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

    kept, given = (gpu(step, f32(n, n), f32(b, n), donate_argnums=one) for one in ((), 0))
    square, rows = 4 * n * n, 4 * b * n
    assert kept.peak_memory.bytes == pytest.approx(3 * square + rows, rel=0.02)
    workspace = 32 * 2**20  # of the product, which a CPU's library does without
    assert given.peak_memory.bytes == pytest.approx(2 * square + 2 * rows + workspace, rel=0.01)
    plan = jax.jit(step, donate_argnums=0).lower(f32(n, n), f32(b, n)).compile().memory_analysis()
    outside = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    by_xla = outside + plan.temp_size_in_bytes
    assert given.peak_memory.bytes - workspace == pytest.approx(by_xla, rel=0.01)
