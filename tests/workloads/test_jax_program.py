"""Compiled JAX programs as workloads: XLA's own counts, loops by their trips, nothing unknown for
free.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.ops import Allocation, Convolution, Copy, Gather, LoopTrip, OpCall, ScatterAdd
from hybridperf.workloads.programs.jax.program import from_jax, from_program
from hybridperf.workloads.programs.reuse import (
    FRESH_BLOCK_BYTES,
    CpuStep,
    Touch,
    in_loop,
    with_reuse,
)
from hybridperf_calibration.training_steps import dlrm, gpt

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="expects the CPU backend's fusions"
)

SOME_TABLE = (jax.ShapeDtypeStruct((1000, 16), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.int32))


def f32(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def of(dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def from_hlo(text: str, backend: str = "cpu", ignore=()) -> Workload:
    content = {"name": "program", "backend": backend, "temporary_bytes": 0, "result_bytes": 0}
    return from_program({**content, "hlo": text}, ignore=ignore)


def totals(workload: Workload) -> dict[str, float]:
    """Work of all nodes as the ops price it."""
    calls = [workload.calls[row] for row in workload.graph.row - 1]
    return {
        name: float(sum(getattr(call.op.work(), name) * call.times for call in calls))
        for name in ("flops", "transcendentals", "bytes")
    }


def ops(workload: Workload, kind: type) -> list[Any]:
    return [call.op for call in workload.calls if isinstance(call.op, kind)]


@pytest.fixture(scope="module")
def cpu() -> PerfModel:
    return PerfModel.datasheet(load_device("here"))


# --- counts against compiled.cost_analysis() ------------------------------------------------------


def mlp(weights, x, y):
    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return ((x @ weights[-1] - y) ** 2).mean()


def attention(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4, axis=-1)
    return (jnp.einsum("bhqk,bhkd->bhqd", weights, v) ** 2).sum()


def convolve(x, w, stride=1, padding="SAME", groups=1, dilation=1, batch_groups=1):
    space = "HWD"[: x.ndim - 2]
    return lax.conv_general_dilated(
        x, w, (stride,) * len(space), padding, rhs_dilation=(dilation,) * len(space),
        feature_group_count=groups, batch_group_count=batch_groups,
        dimension_numbers=("NC" + space, "OI" + space, "NC" + space),
    )  # fmt: skip


def both_gradients(fn: Callable) -> Callable:
    return jax.grad(lambda x, w: (fn(x, w) ** 2).sum(), argnums=(0, 1))


def pool(x, initial, combine):
    return lax.reduce_window(x, initial, combine, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


IMAGE = f32(4, 8, 17, 17)
QKV = (f32(2, 4, 32, 16),) * 3
CONVOLUTIONS: dict[str, tuple[dict, tuple]] = {
    "plain": ({}, (IMAGE, f32(12, 8, 3, 3))),
    "pointwise": ({}, (IMAGE, f32(12, 8, 1, 1))),
    "strided": ({"stride": 2}, (IMAGE, f32(12, 8, 3, 3))),
    "valid": ({"padding": "VALID"}, (IMAGE, f32(12, 8, 5, 5))),
    "grouped": ({"groups": 4}, (IMAGE, f32(12, 2, 3, 3))),
    "depthwise": ({"groups": 8}, (IMAGE, f32(8, 1, 3, 3))),
    "dilated": ({"dilation": 2}, (IMAGE, f32(12, 8, 3, 3))),
    "batch groups": ({"batch_groups": 2}, (IMAGE, f32(12, 8, 3, 3))),
    "1-d": ({}, (f32(4, 8, 64), f32(12, 8, 5))),
    "3-d": ({}, (f32(2, 4, 8, 8, 8), f32(6, 4, 3, 3, 3))),
}
PROGRAMS: dict[str, tuple[Callable, tuple]] = {
    "mlp gradient": (
        jax.grad(mlp),
        ((f32(13, 64), f32(64, 32), f32(32, 1)), f32(128, 13), f32(128, 1)),
    ),
    "attention": (attention, QKV),
    "attention gradient": (jax.grad(attention, argnums=(0, 1, 2)), QKV),
    "transposed convolution": (
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        (f32(4, 16, 16, 8), f32(3, 3, 8, 12)),
    ),
    "sort": (lambda x: jnp.sort(x, -1), (f32(32, 257),)),
    "argsort": (lambda x: jnp.argsort(x, -1), (f32(32, 257),)),
    "median": (jnp.median, (f32(641),)),
    "cumsum": (lambda x: jnp.cumsum(x, -1), (f32(32, 257),)),
    "long cumsum": (jnp.cumsum, (f32(5000),)),
    "cummax": (lambda x: lax.cummax(x, 1), (f32(32, 257),)),
    "argmax": (lambda x: jnp.argmax(x, -1), (f32(32, 257),)),
    "max-pool": (lambda x: pool(x, -jnp.inf, lax.max), (f32(4, 17, 17, 8),)),
    "max-pool gradient": (
        jax.grad(lambda x: (pool(x, -jnp.inf, lax.max) ** 2).sum()),
        (f32(4, 17, 17, 8),),
    ),
    "mean-pool gradient": (
        jax.grad(lambda x: (pool(x, 0.0, lax.add) ** 2).sum()),
        (f32(4, 17, 17, 8),),
    ),
    "bf16 dot": (jnp.matmul, (of(jnp.bfloat16, 64, 128), of(jnp.bfloat16, 128, 96))),
    "f16 dot": (jnp.matmul, (of(jnp.float16, 64, 128), of(jnp.float16, 128, 96))),
    "int8 dot": (
        lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
        (of(jnp.int8, 64, 128), of(jnp.int8, 128, 96)),
    ),
    "batched product": (
        lambda a, b: jnp.einsum("bik,bkj->bij", a, b),
        (f32(8, 32, 16), f32(8, 16, 24)),
    ),
    "batch in the middle": (
        lambda a, b: jnp.einsum("ibk,kjb->bij", a, b),
        (f32(32, 8, 16), f32(16, 24, 8)),
    ),
    "matrix times vector": (jnp.matmul, (f32(320, 160), f32(160))),
    "dot of vectors": (jnp.matmul, (f32(320), f32(320))),
    "outer product": (jnp.outer, (f32(320), f32(160))),
    "gather": (lambda t, i: t[i], SOME_TABLE),
    "gather gradient": (lambda t, i: jax.grad(lambda t: (t[i] ** 2).sum())(t), SOME_TABLE),
    "scatter": (lambda t, i, u: t.at[i].set(u), (*SOME_TABLE, f32(64, 16))),
    "scatter gradient": (
        lambda t, i, u: jax.grad(lambda u: (t.at[i].add(u) ** 3).sum())(u),
        (*SOME_TABLE, f32(64, 16)),
    ),
    "segment sum": (
        lambda x, i: jax.ops.segment_sum(x, i, 100),
        (f32(1000, 16), of(jnp.int32, 1000)),
    ),
    "one-hot product": (lambda i, w: jax.nn.one_hot(i, 50) @ w, (of(jnp.int32, 100), f32(50, 8))),
    "pick one per row": (
        lambda x, i: jnp.take_along_axis(x, i[:, None], 1),
        (f32(100, 50), of(jnp.int32, 100)),
    ),
    "layer norm and gelu": (
        lambda x: jax.nn.gelu(
            (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        ),
        (f32(64, 128),),
    ),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), (f32(64, 128),)),
    "special functions": (
        lambda x: jax.scipy.special.erf(x) + jnp.sin(x) + jnp.arctan2(x, x) + x**2.5,
        (f32(1000),),
    ),
    "integer powers": (lambda x: x**3 + jnp.floor(x) % 3 + jnp.sign(x), (f32(1000),)),
    "transpose": (lambda x: x.transpose(2, 0, 1) + 1, (f32(10, 20, 30),)),
    "concatenate": (lambda x, y: jnp.concatenate([x * 2, y + 1], 1), (f32(100, 20), f32(100, 30))),
    "pad": (lambda x: jnp.pad(x, 3) * 2, (f32(100, 20),)),
}
for _name, (_settings, _args) in CONVOLUTIONS.items():
    _forward = lambda x, w, settings=_settings: convolve(x, w, **settings)  # noqa: E731
    PROGRAMS[f"{_name} convolution"] = (_forward, _args)
    PROGRAMS[f"{_name} convolution gradient"] = (both_gradients(_forward), _args)


def xla_counts(fn: Callable, args: tuple, **settings: Any) -> dict[str, float]:
    analysis = jax.jit(fn, **settings).lower(*args).compile().cost_analysis()
    return {name: analysis.get(name, 0.0) for name in ("flops", "transcendentals")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_are_xlas(name: str) -> None:
    fn, args = PROGRAMS[name]
    expected, workload = xla_counts(fn, args), from_jax(fn, *args)
    assert workload.flops == pytest.approx(expected["flops"], rel=0.01)
    assert workload.transcendentals == pytest.approx(expected["transcendentals"], rel=0.01)


@pytest.mark.parametrize(
    "name",
    [name for name in PROGRAMS if "convolution" in name or "attention" in name or "dot" in name],
)
def test_all_counted_arithmetic_is_priced(name: str) -> None:
    """The ops of a dense program do the flops that were counted, no less, no more: none got lost
    inside a fusion.

    But for one flop per element of a product's result, which comes with the product.
    """
    fn, args = PROGRAMS[name]
    workload = from_jax(fn, *args)
    assert totals(workload)["flops"] == pytest.approx(workload.flops, rel=0.02)
    assert totals(workload)["transcendentals"] == pytest.approx(workload.transcendentals, rel=0.01)


STEPS = {
    "dlrm": dlrm.build(
        dlrm.DlrmConfig(
            batch=32,
            tables=3,
            rows_per_table=500,
            embedding_dim=8,
            pooling=2,
            bottom_mlp=(16, 8),
            top_mlp=(16, 1),
        )
    ),
    "gpt": gpt.build(gpt.GptConfig(batch=2, seq=32, width=32, layers=2, heads=2, vocab=97)),
}


@pytest.mark.parametrize("name", STEPS)
def test_counts_of_real_training_steps(name: str) -> None:
    step = STEPS[name]
    expected = xla_counts(step.fn, step.args, donate_argnums=step.donate_argnums)
    workload = from_jax(step.fn, *step.args, donate_argnums=step.donate_argnums)
    assert workload.flops == pytest.approx(expected["flops"], rel=0.01)
    assert workload.transcendentals == pytest.approx(expected["transcendentals"], rel=0.01)
    priced = totals(workload)
    assert priced["flops"] == pytest.approx(
        workload.flops, rel=0.05
    )  # index arithmetic goes with its gather
    assert not workload.notes


def test_convolution_by_hand() -> None:
    """Three spatial dimensions fold into two; positions in the padding are no taps: 3 x 8 - 2 of 3
    x 8 per dimension.
    """
    fn, args = PROGRAMS["3-d convolution"]
    (op,) = ops(from_jax(fn, *args), Convolution)
    assert (op.batch, op.c_in, op.c_out, op.h_in, op.w_in, op.h_out, op.w_out) == (
        2,
        4,
        6,
        8,
        64,
        8,
        64,
    )
    assert (op.kh, op.kw, op.groups) == (3, 9, 1)
    assert op.taps == pytest.approx((22 / 8) ** 3)
    assert op.work().flops == pytest.approx(2 * 2 * 6 * 4 * 22**3)
    (flat,) = ops(
        from_jax(*[PROGRAMS["1-d convolution"][0], *PROGRAMS["1-d convolution"][1]]), Convolution
    )
    assert (flat.h_in, flat.w_in, flat.h_out, flat.w_out, flat.kh, flat.kw) == (64, 1, 64, 1, 5, 1)


def test_batch_groups_are_counted_once() -> None:
    """XLA's CPU backend rewrites them; other backends keep them: 4 images in 2 groups give 2
    results of 12 features.
    """
    text = """HloModule m
ENTRY %main (x: f32[4,8,16,16], w: f32[12,8,3,3]) -> f32[2,12,14,14] {
  %x = f32[4,8,16,16]{3,2,1,0} parameter(0)
  %w = f32[12,8,3,3]{3,2,1,0} parameter(1)
  ROOT %conv = f32[2,12,14,14]{3,2,1,0} convolution(%x, %w), window={size=3x3}, dim_labels=bf01_oi01->bf01, batch_group_count=2
}
"""
    workload = from_hlo(text)
    assert workload.flops == totals(workload)["flops"] == 2 * (2 * 12 * 14 * 14) * 8 * 9


# --- loops ----------------------------------------------------------------------------------------

TRIPS = 8
WEIGHTS, STATE = f32(TRIPS, 128, 128), f32(64, 128)


def layer(x, w):
    return jnp.tanh(x @ w), None


def looped(weights, x):
    return lax.scan(layer, x, weights)[0]


def unrolled(weights, x):
    for w in weights:
        x, _ = layer(x, w)
    return x


def test_a_scan_is_its_unrolled_twin(cpu: PerfModel) -> None:
    loop, twin = from_jax(looped, WEIGHTS, STATE), from_jax(unrolled, WEIGHTS, STATE)
    assert loop.flops == pytest.approx(twin.flops, rel=0.01)
    assert loop.flops == pytest.approx(TRIPS * 2 * 64 * 128 * 128, rel=0.01)
    assert loop.transcendentals == twin.transcendentals == TRIPS * 64 * 128
    assert len(loop.calls) < 12
    assert predict(cpu, loop).time_s == pytest.approx(predict(cpu, twin).time_s, rel=0.05)


def test_a_fori_loop_is_its_unrolled_twin(cpu: PerfModel) -> None:
    def fori(weights, x):
        return lax.fori_loop(0, TRIPS, lambda i, x: jnp.tanh(x @ weights[i]), x)

    loop, twin = from_jax(fori, WEIGHTS, STATE), from_jax(unrolled, WEIGHTS, STATE)
    assert loop.flops == pytest.approx(twin.flops, rel=0.01)
    assert predict(cpu, loop).time_s == pytest.approx(predict(cpu, twin).time_s, rel=0.05)


def test_nested_scans_multiply_their_trips(cpu: PerfModel) -> None:
    def nested(weights, x):
        return lax.scan(lambda x, _: (looped(weights, x), None), x, None, length=3)[0]

    def twin(weights, x):
        for _ in range(3):
            x = unrolled(weights, x)
        return x

    loop, flat = from_jax(nested, WEIGHTS, STATE), from_jax(twin, WEIGHTS, STATE)
    assert loop.flops == pytest.approx(flat.flops, rel=0.01)
    assert loop.transcendentals == flat.transcendentals == 3 * TRIPS * 64 * 128
    # the loop cuts each weight out of the stack three times, the twin once: a third of what its
    # products read
    assert 1.0 <= predict(cpu, loop).time_s / predict(cpu, flat).time_s < 1.4


def test_a_scans_gradient_counts_its_trips() -> None:
    loop = from_jax(jax.grad(lambda w, x: looped(w, x).sum()), WEIGHTS, STATE)
    twin = from_jax(jax.grad(lambda w, x: unrolled(w, x).sum()), WEIGHTS, STATE)
    assert loop.flops == pytest.approx(
        twin.flops, rel=0.05
    )  # the loop's adds into the stacked gradient come on top
    assert loop.transcendentals == twin.transcendentals


def test_stacked_results_are_written_row_by_row() -> None:
    """Each trip writes its own row of the stack, not the stack: traffic grows with trips, not with
    their square.
    """

    def stack(x, trips):
        return lax.scan(lambda x, _: (x * 1.5, x), x, None, length=trips)

    few, many = (
        totals(from_jax(lambda x, n=n: stack(x, n), f32(4096)))["bytes"] for n in (32, 128)
    )
    assert many / few == pytest.approx(4, rel=0.1)


def test_a_stacked_reduction_writes_its_row_only() -> None:
    """A sum fused with its place in the stack: 4 bytes a trip, not the stack's 40 kB."""
    workload = from_jax(
        lambda x: lax.scan(lambda x, _: (jnp.tanh(x), x.sum()), x, None, length=10_000), f32(16)
    )
    assert totals(workload)["bytes"] < 10_000 * 16 * 4 * 10


def test_the_gradient_of_a_maximum_asks_where_it_was() -> None:
    """XLA brings an image and its four coordinates down at once, then adds at single places."""

    def largest(x):
        places = ((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return lax.reduce_window(x, -jnp.inf, lax.max, *places).sum()

    workload = from_jax(jax.grad(largest), f32(2, 16, 16, 8))
    ops = [call.op for call in workload.calls if isinstance(call, OpCall)]
    assert any(getattr(op, "loop", "") == "joint_reduction" for op in ops)
    assert any(isinstance(op, ScatterAdd) for op in ops)


def test_few_rows_that_are_looked_up_often_are_near() -> None:
    """A graph's: each of 500 rows is found 40 times, of 20,000 as many rows once."""

    def sent(rows):
        def step(x, w, of):
            return (x @ w)[of].sum(0)

        workload = from_jax(step, f32(rows, 64), f32(64, 64), jax.ShapeDtypeStruct((20_000,), "i4"))
        (found,) = (c for c in workload.calls if isinstance(getattr(c, "op", None), Gather))
        return found.reuse_bytes

    assert sent(500) < 2 * 500 * 64 * 4
    assert sent(20_000) > 20 * sent(500)


def in_the_loop(workload: Workload) -> list[OpCall]:
    return [call for call in workload.calls if call.times > 1]


@pytest.mark.parametrize("width", [16, 4096])
def test_ops_in_a_cpu_loop_pay_no_floor(cpu: PerfModel, width: int) -> None:
    """XLA compiles the small loop into one kernel; of the large one it calls the ops back to back:
    a trip is no five launches.
    """
    workload = from_jax(
        lambda x, y: lax.scan(lambda x, y: (jnp.tanh(x * y), x.sum()), x, y),
        f32(width),
        f32(1000, width),
    )
    assert in_the_loop(workload)
    assert all(call.inlined for call in in_the_loop(workload))
    assert not any(call.inlined for call in workload.calls if call.times == 1)
    assert len(ops(workload, LoopTrip)) == (
        0 if width == 16 else 1
    )  # within a kernel a trip is a jump
    floors = dataclasses.replace(cpu.knobs, floor_s=np.full_like(cpu.knobs.floor_s, 1e-6))
    launched = (
        predict(dataclasses.replace(cpu, knobs=floors), workload).time_s
        - predict(cpu, workload).time_s
    )
    assert launched < 10e-6


NESTED = """HloModule m
%inner_body (a: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  %x = f32[8]{0} get-tuple-element(%a), index=1
  %twice = f32[8]{0} add(%x, %x)
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %twice)
}
%condition (b: (s32[], f32[8])) -> pred[] {
  %b = (s32[], f32[8]{0}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  ROOT %less = pred[] compare(%j, %j), direction=LT
}
%outer_body (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %c = (s32[], f32[8]{0}) parameter(0)
  ROOT %inner = (s32[], f32[8]{0}) while(%c), condition=%condition, body=%inner_body, backend_config={"known_trip_count":{"n":"5"}}
}
%called (d: (s32[], f32[8])) -> (s32[], f32[8]) {
  %d = (s32[], f32[8]{0}) parameter(0)
  ROOT %outer = (s32[], f32[8]{0}) while(%d), condition=%condition, body=%outer_body, backend_config={"known_trip_count":{"n":"3"}}
}
ENTRY %main (n: s32[], y: f32[8]) -> (s32[], f32[8]) {
  %n = s32[] parameter(0)
  %y = f32[8]{0} parameter(1)
  %start = (s32[], f32[8]{0}) tuple(%n, %y)
  ROOT %call = (s32[], f32[8]{0}) call(%start), to_apply=%called, frontend_attributes={xla_cpu_small_call="true"}
}
"""


def test_nested_loops_of_one_kernel_by_hand() -> None:
    """Compare of the outer loop; compare and add of the inner one."""
    one_kernel = from_hlo(NESTED, backend="cpu")
    assert sorted((call.times, call.inlined) for call in in_the_loop(one_kernel)) == [
        (3, True),
        (15, True),
        (15, True),
    ]
    assert not ops(one_kernel, LoopTrip)
    launched = from_hlo(NESTED.replace("xla_cpu_small_call", "other"), backend="gpu")
    assert sorted(op.trips for op in ops(launched, LoopTrip)) == [3, 5]
    assert not any(call.inlined for call in launched.calls)


def test_a_loop_finds_again_what_its_last_trip_touched() -> None:
    """64 kB go round 100 times in a step whose other data are 80 MB: only the first trip finds them
    gone.
    """
    workload = from_jax(
        lambda x, y: (lax.fori_loop(0, 100, lambda _, x: jnp.sin(x) * 0.5, x), y.sum()),
        f32(16_384), f32(20_000_000)
    )  # fmt: skip
    (loop,) = (call for call in in_the_loop(workload) if call.op.work().transcendentals)
    assert loop.reuse_bytes is not None
    assert 64e3 < loop.reuse_bytes < 1e6


def test_a_scan_meets_each_slice_of_its_stack_once_a_pass() -> None:
    """By hand: 512 trips read 32 kB each of a stack of 16 MB, and all of them the same 64 kB of
    weights.
    """
    op, trips = Copy("fp32", rows=1.0, cols=1.0), 512
    body = [
        CpuStep("slice", op, trips, reads=(Touch("stack", 32e3, trips * 32e3),)),
        CpuStep("weights", op, trips, reads=(Touch("weights", 64e3, 64e3),)),
    ]
    slice_, weights = with_reuse(in_loop(body, trips), temporary_bytes=0)
    one_pass, one_trip = trips * 32e3 + 64e3 + 1, 32e3 + 64e3
    assert slice_.reuse_bytes == pytest.approx(one_pass)
    assert weights.reuse_bytes == pytest.approx(
        one_trip * (one_pass / one_trip) ** (1 / trips)
    )  # the first trip's is a pass


def test_random_bits_count_their_rounds() -> None:
    """Threefry is 5 groups of 4 rounds, in each an addition and a rotation of 4 operations, and
    more; XLA counts its loop once.
    """
    key = of(jnp.uint32, 2)
    workload = from_jax(lambda key: jax.random.bits(jax.random.wrap_key_data(key), (10_000,)), key)
    once = xla_counts(
        lambda key: jax.random.bits(jax.random.wrap_key_data(key), (10_000,)), (key,)
    )["flops"]
    rounds = 20 * 10_000
    assert 5 * rounds < workload.flops < 12 * rounds
    assert workload.flops > 2 * once


# --- what it cannot price -------------------------------------------------------------------------


def test_unknown_instruction_is_named() -> None:
    with pytest.raises(InputError, match=r"lapack_spotrf.*ignore=.*--ignore") as error:
        from_jax(jnp.linalg.cholesky, f32(16, 16))
    target = next(word for word in str(error.value).split() if word.startswith("lapack"))
    workload = from_jax(jnp.linalg.cholesky, f32(16, 16), ignore={target})
    assert any(target in note for note in workload.notes)


def test_unknown_trip_count_is_named() -> None:
    def endless(x):
        return lax.while_loop(lambda x: x.sum() < 10, lambda x: x + 1, x)

    with pytest.raises(InputError, match="while with an unknown trip count"):
        from_jax(endless, f32(16))
    for name in ("while", "while with an unknown trip count"):
        assert any(
            "ignored while" in note for note in from_jax(endless, f32(16), ignore={name}).notes
        )
    kept = from_jax(
        looped, WEIGHTS, STATE, ignore={"while with an unknown trip count"}
    )  # a loop with known trips stays
    assert kept.flops == from_jax(looped, WEIGHTS, STATE).flops


def test_unknown_instruction_inside_a_fusion_is_named() -> None:
    text = (
        jax.jit(lambda x: jnp.tanh(x * 2))
        .lower(f32(64))
        .compile()
        .as_text()
        .replace(" tanh(", " frobnicate(")
    )
    with pytest.raises(InputError, match="frobnicate"):
        from_hlo(text)
    assert from_hlo(text, ignore={"frobnicate"}).transcendentals == 0


def test_text_that_is_no_program() -> None:
    with pytest.raises(InputError, match="ENTRY"):
        from_hlo("hello")
    text = jax.jit(lambda x: jnp.tanh(x) @ x).lower(f32(64, 64)).compile().as_text()
    for cut in (text.rindex("ROOT"), text.rindex("ROOT") + 9, text.rindex("}")):
        with pytest.raises(InputError, match="no closing brace"):
            from_hlo(text[:cut])
    with pytest.raises(InputError, match="no ROOT"):
        from_hlo(text[: text.rindex("ROOT")] + "\n}\n")
    with pytest.raises(InputError, match="no closing brace"):
        from_hlo(text[: text.index("  ROOT")] + text[text.index("ENTRY") :])


def test_conditional_takes_the_costlier_branch() -> None:
    def choose(p, x):
        return lax.cond(p, lambda x: x + 1, lambda x: x @ x, x)

    workload = from_jax(choose, of(bool), f32(256, 256))
    assert workload.flops == pytest.approx(2 * 256**3)
    assert any("costlier branch" in note and "by counts" in note for note in workload.notes)
    switched = from_jax(
        lambda i, x: lax.switch(i, [jnp.sin, lambda x: x @ x, lambda x: -x], x),
        of(jnp.int32),
        f32(256, 256),
    )
    assert switched.flops == pytest.approx(2 * 256**3, rel=0.001)
    assert switched.transcendentals == 0


def test_pricing_a_cpu_program_on_a_gpu_is_refused() -> None:
    workload = from_jax(lambda x: x + 1, f32(64))
    with pytest.raises(InputError, match=r"compiled for a cpu and a100_sxm4_80g is a gpu"):
        predict(PerfModel.datasheet(load_device("a100")), workload)


# --- memory ---------------------------------------------------------------------------------------

TABLE, INDEX, UPDATE = f32(100_000, 16), of(jnp.int32, 64), f32(64, 16)
TABLE_BYTES, ROWS_BYTES = 100_000 * 16 * 4, 64 * 16 * 4


def add_rows(table, rows, update):
    return table.at[rows].add(update)


def test_donated_table_is_updated_in_place() -> None:
    workload = from_jax(add_rows, TABLE, INDEX, UPDATE, donate_argnums=0)
    (op,) = ops(workload, ScatterAdd)
    assert (op.rows, op.cols, op.vocab) == (64, 16, 100_000)
    assert totals(workload)["bytes"] < 5 * ROWS_BYTES


def test_undonated_table_is_copied_first() -> None:
    workload = from_jax(add_rows, TABLE, INDEX, UPDATE)
    (copy,) = ops(workload, Copy)
    assert copy.work().bytes == 2 * TABLE_BYTES
    assert totals(workload)["bytes"] == pytest.approx(2 * TABLE_BYTES, rel=0.01)


def test_jitted_function_keeps_its_donation() -> None:
    workload = from_jax(jax.jit(add_rows, donate_argnums=0), TABLE, INDEX, UPDATE)
    assert not ops(workload, Copy)
    for donated in (0, (0,)):
        with pytest.raises(InputError, match="already jitted"):
            from_jax(jax.jit(add_rows), TABLE, INDEX, UPDATE, donate_argnums=donated)


def test_rows_that_a_step_has_looked_up_are_near_when_it_updates_them() -> None:
    """And far where it has not: then the whole table was touched since."""

    def step(table, rows):
        seen = table[rows]
        return table.at[rows].add(-0.1 * jnp.tanh(seen)), seen.sum()

    def distance(fn, *args) -> float:
        workload = from_jax(fn, *args, donate_argnums=0)
        calls = [c for c in workload.calls if isinstance(getattr(c, "op", None), ScatterAdd)]
        return calls[0].reuse_bytes

    assert distance(step, TABLE, INDEX) < 20 * ROWS_BYTES
    assert distance(add_rows, TABLE, INDEX, UPDATE) > 0.8 * TABLE_BYTES


def test_slices_along_the_fastest_dimension_are_single_elements() -> None:
    """As pairs of an interaction, forward and backward."""
    matrix, pairs = f32(400, 441), of(jnp.int32, 210)
    forward = from_jax(lambda x, at: x[:, at], matrix, pairs)
    (op,) = ops(forward, Gather)
    assert (op.rows, op.cols, op.vocab) == (400 * 210, 1, 400 * 441)
    backward = from_jax(
        lambda x, at, g: x.at[:, at].add(g), matrix, pairs, f32(400, 210), donate_argnums=0
    )
    (op,) = ops(backward, ScatterAdd)
    assert (op.rows, op.cols, op.vocab) == (400 * 210, 1, 400 * 441)


def test_gather_reads_only_rows() -> None:
    workload = from_jax(lambda table, rows: table[rows], TABLE, INDEX)
    (op,) = ops(workload, Gather)
    assert (op.rows, op.cols, op.vocab) == (64, 16, 100_000)
    assert totals(workload)["bytes"] < 3 * ROWS_BYTES


def test_arithmetic_fused_into_a_gather_is_priced() -> None:
    """Rows pass through a transcendental in the same loop: 64 x 16 of them, not the table's."""
    workload = from_jax(lambda table, rows: jnp.tanh(table[rows]), TABLE, INDEX)
    assert ops(workload, Gather)
    assert totals(workload)["transcendentals"] == workload.transcendentals == 64 * 16


def test_slice_reads_what_it_picks() -> None:
    workload = from_jax(
        lambda x, i: lax.dynamic_slice(x, (i, 0), (10, 16)) + 1, TABLE, of(jnp.int32)
    )
    assert totals(workload)["bytes"] == pytest.approx(2 * 10 * 16 * 4, rel=0.05)


@pytest.mark.parametrize(
    ("side", "fresh"), [(2800, False), (3000, True)]
)  # 31.4 and 36 MB; the threshold is 33.6 MB
def test_fresh_memory_is_paid_for(side: int, fresh: bool) -> None:
    workload = from_jax(lambda x: x + 1, f32(side, side))
    assert (4 * side**2 >= FRESH_BLOCK_BYTES) == fresh
    assert [op.bytes for op in ops(workload, Allocation)] == ([4.0 * side**2] if fresh else [])


def test_equal_ops_share_a_row() -> None:
    def chain(x, w):
        for _ in range(20):
            x = jnp.tanh(x @ w)
        return x

    workload = from_jax(chain, f32(64, 64), f32(64, 64))
    assert len(workload.graph) >= 40
    assert len(workload.calls) <= 10
    assert workload.graph.rows == len(workload.calls)


def test_top_k_is_refused_by_name() -> None:
    """A library routine whose cost nothing here measures: a full sort would be a hundred times too
    slow.
    """
    with pytest.raises(InputError, match="TopK"):
        from_jax(lambda x: lax.top_k(x, 5), f32(32, 257))


@pytest.mark.parametrize(
    "fn",
    [lambda x: x, lambda x: x[:0] + 1, lambda x: (jnp.ones(3), {})],
    ids=["identity", "empty", "constant"],
)
def test_small_programs_have_a_time(cpu: PerfModel, fn: Callable) -> None:
    assert np.isfinite(predict(cpu, from_jax(fn, f32(8))).time_s)
