"""Ops of PyTorch on a GPU: arguments made there, calls recorded into a CUDA graph and timed by the
GPU's own events, so that neither Python nor a launch is part of an op's time.

One replay runs the op on each set of arguments in turn, as often as takes a millisecond or so. What
cannot be recorded (an op that asks the GPU for a number) is launched behind a kernel that waits,
which leaves the host time to be ahead; where it is not, the row is `unreliable`.

`call_s` is what the host needs to issue one op from Python.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hybridperf.ops import OpCall, columns
from hybridperf.ops.embedding import Zipf
from hybridperf.workloads.programs.ratios import FUSED_ATTENTION
from hybridperf.workloads.programs.torch.calls import NAMES
from hybridperf.workloads.programs.torch.ops import kernels
from hybridperf.workloads.programs.torch.record import recorder
from hybridperf_calibration.microbench import torch_families
from hybridperf_calibration.microbench.families import bags, skewed
from hybridperf_calibration.microbench.lookups import Lookups, spread_over
from hybridperf_calibration.microbench.op_programs import (
    FLOAT_BYTES,
    GPU,
    Family,
    OpProgram,
    Reach,
    floats,
    indices,
    points,
    reaching,
    size,
)
from hybridperf_calibration.microbench.timer import Budget, Case, Timing, timing_of
from hybridperf_calibration.microbench.torch_images import convolved, fitting, product

Tensor = torch.Tensor
_aten = torch.ops.aten
_DEVICE = "cuda"
_REPLAY_S = 1e-3  # of one replay, about
_MOST_CALLS = 128  # of one replay
_COLD_BYTES = 2.5e8  # of all sets of arguments together: several times any GPU's cache
_MOST_SETS = 32
_MOST_BYTES = 2e10  # of all arguments
_MAIN_SHARE = 0.8  # of a program's work that its main op must have
_WAIT_CYCLES_PER_S = 2e9
_ISSUE_S = 4e-5  # of one op, generously
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("bfloat16", "float32", "float16"), "layer": ("bfloat16", "float16"),
    "batched_gemm": ("bfloat16", "float32", "float16"),
    "convolution": ("float32", "float16", "bfloat16"),
    "large_convolution": ("bfloat16", "float16", "float32"), "attention": ("bfloat16",),
    "grouped_convolution": ("float32", "float16"), "optimizer": ("float32",),
    "embedding_bag": ("float32", "float32", "float16"), "bag_gradient": ("float32",),
    "spmm": ("float32",), "random": ("float32",), "lists": ("float32", "bfloat16"),
}  # fmt: skip


def _attention(u: np.ndarray) -> OpProgram:
    batch, heads = size(u[0], 1, 8, 0.9), size(u[1], 1, 12, 0.1)
    tokens, width = size(u[2], 32, 2048, u[3]), (64, 128, 64, 128, 96)[int(u[4] * 5)]
    while 4.0 * batch * heads * tokens**2 * width > 1e12:
        batch, heads = max(batch // 2, 1), max(heads // 2, 1)
    causal, backward = bool(u[5] < 0.5), bool(u[6] < 0.5)
    q = floats(batch, heads, tokens, width)
    name = f"{batch} {heads} {tokens} {width} causal {int(causal)}"

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)

    if not backward:
        return OpProgram(f"attention {name}", forward, [q, q, q])
    kept: dict[int, Any] = {}

    def gradient(y: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
        if id(q) not in kept:
            kept[id(q)] = forward(q, k, v)
        out, lse, first, second, longest_q, longest_k, seed, offset, _ = kept[id(q)]
        fn = _aten._scaled_dot_product_flash_attention_backward
        given = (out, lse, first, second, longest_q, longest_k, 0.0, causal, seed, offset)
        return fn(y, q, k, v, *given)

    return OpProgram(f"attention gradient {name}", gradient, [q, q, q, q], times=FUSED_ATTENTION)


def _bag_gradient(u: np.ndarray) -> OpProgram:
    """Of a dense table, as `nn.EmbeddingBag` makes it."""
    of = skewed(u, "forward")
    bag = torch.arange(of.bags, device=_DEVICE).repeat_interleave(of.pooling)
    sizes = torch.full((of.bags,), of.pooling, device=_DEVICE)
    none = torch.zeros(0, dtype=torch.long, device=_DEVICE)

    def gradient(i: Tensor, g: Tensor) -> Tensor:
        given = (bag, sizes, none, of.rows, False, 0, None)
        return _aten._embedding_bag_dense_backward(g, i.reshape(-1), *given)

    made = bags("bag_gradient", of, gradient, floats(of.bags, of.dim))
    return dataclasses.replace(made, arguments=made.arguments[1:], shared=0, lookups=None)


def _lists(u: np.ndarray) -> OpProgram:
    """Updates of lists of parameters, as optimizers make them."""
    count, n = size(u[0], 4, 64, 0.9), size(u[1], 2**10, 2**20, 0.9)
    lists: tuple[Callable[..., Any], ...] = (
        lambda *x: torch._foreach_add(x[::2], x[1::2], alpha=-0.1),
        lambda *x: torch._foreach_mul(x, 0.9),
        lambda *x: torch._foreach_lerp(x[::2], x[1::2], 0.1),
        lambda *x: torch._foreach_addcmul(x[::2], x[1::2], x[1::2], 0.1),
        lambda *x: torch._foreach_sqrt(x),
        lambda *x: torch._foreach_norm(x),
    )
    which = int(u[2] * len(lists))
    return OpProgram(f"lists {which} {count}x{n}", lists[which], [floats(n)] * (count // 2 * 2))


def _large_sums(u: np.ndarray) -> OpProgram:
    """Rows added where indices say, as many as graphs and tables have."""
    rows, vocab = size(u[0], 20_000, 500_000, 0.9), size(u[1], 500, 250_000, 0.9)
    width = size(u[2], 8, 64, u[3])
    rows, width = fitting([rows, width], lambda s: product(*s), 5e6)
    into, at, added = floats(vocab, width), indices(vocab, rows), floats(rows, width)
    name = f"{vocab} {width} {rows}"
    if u[4] < 0.3:  # as many lookups as a table has rows: its zeros are little beside them
        few = min(vocab, max(rows // 2, 1))
        fn = lambda i, g: _aten.embedding_dense_backward(g, i, few, -1, False)  # noqa: E731
        name = f"table gradient {few} {width} {rows}"
        return OpProgram(name, fn, [indices(few, rows), added])
    if u[4] < 0.5:
        put = lambda t, i, g: t.index_put_((i,), g, accumulate=True)  # noqa: E731
        return OpProgram(f"put {name}", put, [into, at, added], shared=1)
    if u[4] < 0.75:
        scatter = lambda t, i, g: t.scatter_add_(0, i[:, None].expand_as(g), g)  # noqa: E731
        return OpProgram(f"scatter each {name}", scatter, [into, at, added], shared=1)
    add = lambda t, i, g: t.index_add_(0, i, g)  # noqa: E731
    return OpProgram(f"scatter {name}", add, [into, at, added], shared=1)


def _layer(u: np.ndarray) -> OpProgram:
    """A linear layer's product or one of its two gradients; its rows begin at multiples of so many
    numbers, which decides what kernels can load them.
    """
    rows, wide, narrow = (
        size(u[0], 128, 2048, 0),
        size(u[1], 256, 12_000, 0),
        size(u[2], 64, 1024, 0),
    )
    multiple = 2 ** int(u[3] * 6)
    wide, narrow = (wide + multiple, narrow) if u[4] < 0.7 else (wide, narrow + multiple)
    name = f"{rows} {wide} {narrow}"
    x, weight, y = floats(rows, narrow), floats(wide, narrow), floats(rows, wide)
    if u[5] < 0.34:
        return OpProgram(f"layer {name}", lambda x, w: x @ w.T, [x, weight])
    if u[5] < 0.67:
        return OpProgram(f"layer inputs {name}", lambda y, w: y @ w, [y, weight])
    return OpProgram(f"layer weights {name}", lambda y, x: y.T @ x, [y, x])


def _large_convolution(u: np.ndarray) -> OpProgram:
    """As networks for images have them: many images, a third of them channel by channel."""
    kernel, batch = (1, 3, 3, 5, 7)[int(u[6] * 5)], 2 ** int(3 + 7 * u[0])
    image = (7, 14, 16, 28, 32, 56, 64, 112)[int(u[1] * 8)]
    c_in, c_out = (int(16 * round(2 ** (6.0 * one))) for one in (u[2], u[3]))
    with reaching(_LARGE):
        if u[4] < 0.3:
            most_images = max(int(2e8 / (c_in * image**2)), 1)
            batch, kernel = min(batch, most_images), max(kernel, 3)
            return convolved(u, batch, image, c_in, c_in, kernel, c_in)
        return convolved(u, batch, image, c_in, c_out, kernel, 1)


_LARGE = Reach(lengths=4.0, work=400.0)
_CHANNELS_LAST = "channels last"
_IMAGES = ("convolution", "grouped_convolution", "pool", "interpolation")
_ON_CPU_ALONE = ("attention", "embedding_bag_update")
_MORE = {"embedding_bag": (80, 240)}  # points, quick and full
FAMILIES = (
    Family("attention", 7, quick=48, full=200, build=_attention),
    Family("bag_gradient", 8, quick=40, full=120, build=_bag_gradient),
    Family("lists", 3, quick=24, full=80, build=_lists),
    Family("large_convolution", 9, quick=80, full=420, build=_large_convolution),
    Family("large_sums", 5, quick=48, full=120, build=_large_sums),
    Family("layer", 6, quick=60, full=180, build=_layer),
    *(
        dataclasses.replace(one, quick=points_of[0], full=points_of[1])
        for one in torch_families.FAMILIES
        if one.name not in _ON_CPU_ALONE
        for points_of in (_MORE.get(one.name, (one.quick, one.full)),)
    ),
)


def gpu_cases(families: Sequence[Family], setting: str) -> list[Case]:
    """Ops of families as a GPU runs them, half of them on data that no cache still holds."""
    made: dict[str, Case] = {}
    for family in families:
        formats = _FORMATS.get(family.name, ("float32", "bfloat16"))
        count = family.quick if setting == "quick" else family.full
        for at, u in enumerate(points(family, count)):
            with reaching(GPU), torch.device(_DEVICE):
                program = family.build(u)
            cold, dtype = at // len(formats) % 2 == 1, formats[at % len(formats)]
            last = family.name in _IMAGES and at // len(formats) // 2 % 2 == 1
            last = last or family.name == "large_convolution"
            words = (dtype, "cold" if cold else "warm", *[_CHANNELS_LAST] * last)
            key = " ".join((program.name, *words))
            made.setdefault(key, _case(key, family.name, program, dtype, cold, last))
    return list(made.values())


def _case(key: str, family: str, program: OpProgram, dtype: str, cold: bool, last: bool) -> Case:
    named = {"op": family, "dtype": NAMES["dtypes"][dtype]}
    order = torch.channels_last if last else torch.contiguous_format
    number: torch.dtype = getattr(torch, dtype)
    set_bytes = max(sum(program.own_bytes()) * number.itemsize / FLOAT_BYTES, 1.0)
    wanted = min(max(math.ceil(_COLD_BYTES / set_bytes), 2), _MOST_SETS) if cold else 1
    sets = max(min(wanted, int(_MOST_BYTES / set_bytes)), 1)

    def make(rng: np.random.Generator) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        generator = torch.Generator(_DEVICE).manual_seed(int(rng.integers(2**31)))
        argument = functools.partial(_argument, dtype=number, generator=generator, order=order)
        made = [argument(one) for one in program.arguments[: program.shared]]
        own = program.arguments[program.shared :]
        return program.fn, [(*made, *map(argument, own)) for _ in range(sets)]

    def timed(case: Case, budget: Budget, rng: np.random.Generator) -> Timing:
        with torch.device(_DEVICE), torch.no_grad():
            fn, tuples = case.make(rng)
            call = lambda at: fn(*tuples[at % sets])  # noqa: E731
            described = _described(program, call, sets, set_bytes, named)
            if last:
                described["order"] = _CHANNELS_LAST
            seconds, issue_s, recorded = _replayed(call, sets, budget)
        late = not recorded and statistics.median(seconds) < issue_s
        return timing_of(
            seconds, issue_s, case.divisor, described, unreliable=late,
            reuse_bytes=int(sets * set_bytes),
        )  # fmt: skip

    return Case(key, named, make, divisor=program.times, timed=timed)


def _replayed(
    call: Callable[[int], Any], sets: int, budget: Budget
) -> tuple[list[float], float, bool]:
    """(seconds of one op by replay, seconds to issue one, whether it could be recorded)."""
    for at in range(3):
        call(at)
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call(0)
    end.record()
    torch.cuda.synchronize()
    once_s = start.elapsed_time(end) / 1e3
    calls = min(max(math.ceil(_REPLAY_S / max(once_s / 2, 1e-6)), sets), _MOST_CALLS)
    torch.cuda._sleep(int(calls * _ISSUE_S * _WAIT_CYCLES_PER_S))
    begun_s = time.perf_counter()
    for at in range(calls):
        call(at)
    issue_s = (time.perf_counter() - begun_s) / calls
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for at in range(calls):
                call(at)
        run, recorded = graph.replay, True
    except RuntimeError:
        torch.cuda.synchronize()

        def run() -> None:
            for at in range(calls):
                call(at)

        recorded = False
    seconds: list[float] = []
    begun_s = time.perf_counter()
    run()
    while len(seconds) < 3 or (
        len(seconds) < 30 and time.perf_counter() - begun_s < min(budget.cap_s, 0.1)
    ):
        if not recorded:
            torch.cuda._sleep(int(calls * _ISSUE_S * _WAIT_CYCLES_PER_S))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / calls)
    return seconds, issue_s, recorded


def _described(
    program: OpProgram, call: Callable[[int], Any], sets: int, set_bytes: float,
    named: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The row's own columns."""
    if program.lookups is not None:
        return {**program.lookups.columns(sets, 1), "dtype": named["dtype"]}
    if program.columns is not None:
        return dict(program.columns)
    call(0)  # what a gradient keeps of its forward pass is there
    with recorder(torch, "gpu") as mode:
        call(0)
    try:
        main = main_op([op for one in mode.ops for op in _kernels(one.call)])
    except ValueError as error:
        return {**named, "not_one_op": str(error)}
    footprint = max(sets * set_bytes, float(main.op.work().reuse_bytes))
    return {**columns(main.op), "reuse_bytes": footprint}


def _kernels(call: Any) -> tuple[OpCall, ...]:
    found = kernels(call)
    if found is None:
        raise ValueError(f"no rule for {call.kind}")
    return found


def main_op(calls: list[OpCall]) -> OpCall:
    """The one that does most of the work."""
    if not calls:
        raise ValueError("it launches nothing")
    work = [_effort(call) for call in calls]
    at = int(np.argmax(work))
    if work[at] < _MAIN_SHARE * sum(work):
        kinds = ", ".join(sorted({columns(call.op)["op"] for call in calls}))
        raise ValueError(f"several ops, not one: {kinds}")
    return calls[at]


def _effort(call: OpCall) -> float:
    done = call.op.work()
    return float(done.flops + 10 * done.transcendentals + 10 * done.bytes) * call.times


def _argument(
    description: tuple, dtype: torch.dtype, generator: torch.Generator, order: torch.memory_format
) -> Tensor:
    kind, shape, *below = description
    if kind == "flags":
        return torch.rand(shape, generator=generator) < 0.5
    if kind == "index":
        made = torch.randint(below[0], shape, generator=generator)
        return made.contiguous(memory_format=order) if len(shape) == 4 else made
    if kind == "lookups":
        return _drawn(below[0], shape, generator)
    made = torch.empty(shape, dtype=torch.float32 if kind == "single" else dtype)
    if len(shape) == 4:
        made = made.contiguous(memory_format=order)
    return made.uniform_(0.1, 1.1, generator=generator)


def _drawn(of: Lookups, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """`Lookups.draw` on the GPU."""
    access = Zipf(of.exponent, of.shift)
    count, p = (torch.as_tensor(one) for one in access.classes(1, of.rows))

    def double() -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    drawn = torch.searchsorted(torch.cumsum(count * p, 0), double())
    of_class = drawn.clamp(max=len(count) - 1)
    first = torch.cumsum(count, 0) - count
    rank = (first[of_class] + double() * count[of_class]).long()
    return spread_over(rank, of.rows)
