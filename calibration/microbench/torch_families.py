"""The ops that a step of PyTorch on a CPU is made of: one family per kind of op, as `families` has
them for JAX.

Every program is one op below autograd, as a step calls it, forward or backward; the row it becomes
is read from the call by the rules that price a step (`workloads/programs/torch/on_cpu.py`).
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nn

from hybridperf.ops.embedding_bag import OPTIMIZERS
from hybridperf.workloads.programs.ratios import FUSED_ATTENTION
from hybridperf_calibration.microbench import torch_images as images
from hybridperf_calibration.microbench.families import bags, skewed
from hybridperf_calibration.microbench.op_programs import (
    Family,
    OpProgram,
    floats,
    indices,
    singles,
    size,
)
from hybridperf_calibration.microbench.torch_images import PRODUCT_FLOPS, fitting, product

Tensor = torch.Tensor
_aten = torch.ops.aten
_ELEMENTS = 3e6  # of one op, at most


def _stored(left: int, right: int, turned: bool) -> tuple[int, int]:
    return (right, left) if turned else (left, right)


def _gemm(u: np.ndarray) -> OpProgram:
    m, n, k = size(u[0], 8, 8192, u[3]), size(u[1], 4, 4096, u[4]), size(u[2], 4, 4096, u[5])
    m, n, k = fitting([m, n, k], lambda s: 2 * product(*s), PRODUCT_FLOPS)
    # layers' forward products have a turned weight, gradients of weights a turned input
    layout = "nt" if u[6] < 0.4 else "tn" if u[6] < 0.7 else "nn"
    a, b = _stored(m, k, layout[0] == "t"), _stored(k, n, layout[1] == "t")

    def operands(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.t() if layout[0] == "t" else x), (y.t() if layout[1] == "t" else y)

    if layout == "nt" and u[7] < 0.7:
        biased = lambda bias, x, y: torch.addmm(bias, *operands(x, y))  # noqa: E731
        return OpProgram(f"addmm {m} {n} {k}", biased, [floats(n), floats(*a), floats(*b)])
    plain = lambda x, y: torch.mm(*operands(x, y))  # noqa: E731
    return OpProgram(f"mm {layout} {m} {n} {k}", plain, [floats(*a), floats(*b)])


def _batched_gemm(u: np.ndarray) -> OpProgram:
    batch = size(u[0], 2, 1024, 0.9)
    m, n, k = size(u[1], 8, 512, u[4]), size(u[2], 8, 512, u[5]), size(u[3], 8, 512, u[6])
    batch, m, n, k = fitting([batch, m, n, k], lambda s: 2 * product(*s), 5e8)
    layout = "nn" if u[7] < 0.4 else "nt" if u[7] < 0.75 else "tn"
    a, b = _stored(m, k, layout[0] == "t"), _stored(k, n, layout[1] == "t")

    def fn(x: Tensor, y: Tensor) -> Tensor:
        x, y = x.mT if layout[0] == "t" else x, y.mT if layout[1] == "t" else y
        return torch.bmm(x, y)

    arguments = [floats(batch, *a), floats(batch, *b)]
    return OpProgram(f"bmm {layout} {batch} {m} {n} {k}", fn, arguments)


def _attention(u: np.ndarray) -> OpProgram:
    batch, heads = size(u[0], 1, 16, 0.9), size(u[1], 1, 16, 0.1)
    tokens, width = size(u[2], 16, 512, u[3]), (16, 32, 64, 128)[int(u[4] * 4)]
    batch, tokens, heads = fitting(
        [batch, tokens, heads], lambda s: 4 * s[0] * s[2] * s[1] ** 2 * width, 4e8
    )
    causal, backward = bool(u[5] < 0.5), bool(u[6] < 0.5)
    q = floats(batch, heads, tokens, width)
    name = f"{batch} {heads} {tokens} {width} causal {int(causal)}"
    if not backward:

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)

        return OpProgram(f"attention {name}", forward, [q, q, q])

    def gradient(y: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Any:
        fn = _aten._scaled_dot_product_flash_attention_for_cpu_backward
        return fn(y, q, k, v, out, lse, 0.0, causal)

    # log sums of exponentials, tokens first
    arguments = [q, q, q, q, q, floats(batch, heads, tokens)]
    return OpProgram(f"attention gradient {name}", gradient, arguments, times=FUSED_ATTENTION)


_ONE = (
    torch.relu, torch.exp, torch.tanh, torch.sigmoid, torch.log, torch.sqrt, torch.neg, nn.gelu,
    nn.silu, lambda x: x * 0.5, lambda x: x + 1.0, lambda x: x / 3.0, torch.square, torch.erf,
    lambda x: nn.gelu(x, approximate="tanh"), lambda x: x > 0.5, lambda x: x.clamp(min=0.2),
)  # fmt: skip
_TWO = (
    torch.add, torch.mul, torch.sub, torch.div, torch.maximum,
    lambda g, x: _aten.threshold_backward(g, x, 0), _aten.sigmoid_backward, _aten.tanh_backward,
    _aten.gelu_backward, _aten.silu_backward, lambda x, y: x.add_(y, alpha=-0.001),
    lambda x, y: x.lerp_(y, 0.1), lambda g, y: _aten._softmax_backward_data(g, y, -1, y.dtype),
    lambda g, y: _aten._log_softmax_backward_data(g, y, -1, y.dtype),
)  # fmt: skip
_THREE = (
    lambda x, y, z: x.addcmul_(y, z, value=1e-4), lambda x, y, z: x.addcdiv_(y, z, value=1e-4),
    torch.addcmul,
)  # fmt: skip


def _elementwise(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 1, 8192, u[3]), size(u[1], 4, 2048, u[4])
    rows, cols = fitting([rows, cols], lambda s: product(*s), _ELEMENTS)
    whole, vector = floats(rows, cols), floats(cols)
    if u[2] < 0.08:
        arguments = [("flags", (rows, cols)), whole]
        return OpProgram(f"masked {rows}x{cols}", lambda m, x: x.masked_fill(m, 0.0), arguments)
    if u[2] < 0.16:
        return OpProgram(f"bias {rows}x{cols}", torch.add, [whole, vector])
    if u[2] < 0.24:
        return OpProgram(
            f"across {rows}x{cols}", lambda x, y: x + y.t(), [whole, floats(cols, rows)]
        )
    inputs = 1 if u[2] < 0.55 else 2 if u[2] < 0.9 else 3
    of = {1: _ONE, 2: _TWO, 3: _THREE}[inputs]
    which = int(u[5] * len(of))
    return OpProgram(f"loop {inputs} {which} {rows}x{cols}", of[which], [whole] * inputs)


def _fill(u: np.ndarray) -> OpProgram:
    n = size(u[0], 4, 4e6, 0.9)
    if u[1] < 0.5:
        return OpProgram(f"zeros {n}", lambda x: x.zero_(), [floats(n)])
    return OpProgram(f"new zeros {n}", lambda x: torch.zeros(n), [floats()], result_bytes=4.0 * n)


def _norm(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 8, 8192, u[2]), size(u[1], 16, 2048, u[3])
    rows, cols = fitting([rows, cols], lambda s: product(*s), _ELEMENTS)
    if u[4] < 0.3:
        forward = lambda x, w, b: nn.layer_norm(x, (cols,), w, b)  # noqa: E731
        arguments = [floats(rows, cols), floats(cols), floats(cols)]
        return OpProgram(f"layer norm {rows}x{cols}", forward, arguments)
    if u[4] < 0.5:

        def gradient(g: Tensor, x: Tensor, m: Tensor, s: Tensor, w: Tensor, b: Tensor) -> Any:
            given = ([cols], m, s, w, b, [True] * 3)
            return _aten.native_layer_norm_backward(g, x, *given)

        one, whole = singles(rows, 1), floats(rows, cols)
        arguments = [whole, whole, one, one, floats(cols), floats(cols)]
        return OpProgram(f"layer norm gradient {rows}x{cols}", gradient, arguments)
    channels, image = size(u[1], 4, 512, 0.1), size(u[0], 4, 64, u[2])
    batch = size(u[3], 1, 32, 0.9)
    batch, channels, image = fitting(
        [batch, channels, image], lambda s: s[0] * s[1] * s[2] ** 2, _ELEMENTS
    )
    x, one = floats(batch, channels, image, image), floats(channels)
    name = f"{batch} {channels} {image}"
    if u[4] < 0.6:
        groups = 1 if channels < 8 else 4 if channels % 4 == 0 else 1
        grouped = lambda x, w, b: nn.group_norm(x, groups, w, b)  # noqa: E731
        return OpProgram(f"group norm {name}", grouped, [x, one, one])
    training = bool(u[4] < 0.75)
    if u[4] < 0.85:

        def normed(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Any:
            return _aten.native_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5)

        return OpProgram(f"batch norm {int(training)} {name}", normed, [x, *[one] * 4])

    def normed_gradient(g: Tensor, x: Tensor, *of: Tensor) -> Any:
        return _aten.native_batch_norm_backward(g, x, *of, True, 1e-5, [True] * 3)

    return OpProgram(
        f"batch norm gradient {name}", normed_gradient, [x, x, *[singles(channels)] * 5]
    )


def _reduction(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 4, 8192, u[2]), size(u[1], 4, 4096, u[3])
    rows, cols = fitting([rows, cols], lambda s: product(*s), _ELEMENTS)
    kinds = {
        "sum": lambda x: x.sum(-1), "columns": lambda x: x.sum(0), "all": lambda x: x.sum(),
        "kept": lambda x: x.sum([0], True), "mean": lambda x: x.mean(-1),
        "max": lambda x: x.amax(-1), "largest": lambda x: x.max(-1),
        "place": lambda x: x.argmax(-1),
        "norm": lambda x: x.norm(), "variance": lambda x: x.var(-1),
    }  # fmt: skip
    name = list(kinds)[int(u[4] * len(kinds))]
    return OpProgram(f"reduction {name} {rows}x{cols}", kinds[name], [floats(rows, cols)])


def _channels(u: np.ndarray) -> OpProgram:
    """Sums over batch and image: gradients of biases and scales."""
    batch, channels, image = size(u[0], 1, 32, 0.9), size(u[1], 4, 256, 0.1), size(u[2], 4, 48, 0.9)
    batch, channels, image = fitting(
        [batch, channels, image], lambda s: s[0] * s[1] * s[2] ** 2, _ELEMENTS
    )
    x = floats(batch, channels, image, image)
    axes = (0, 2, 3) if u[3] < 0.5 else (2, 3)
    name = f"sum over {axes} {batch} {channels} {image}"
    return OpProgram(name, lambda x: x.sum(axes) if u[4] < 0.5 else x.mean(axes), [x])


def _softmax(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 4, 8192, u[2]), size(u[1], 4, 8192, u[3])
    rows, cols = fitting([rows, cols], lambda s: product(*s), _ELEMENTS)
    fn = nn.softmax if u[4] < 0.5 else nn.log_softmax
    name = f"{fn.__name__} {rows}x{cols}"
    return OpProgram(name, lambda x: fn(x, dim=-1), [floats(rows, cols)])


def _gather(u: np.ndarray) -> OpProgram:
    vocab, width = size(u[0], 20, 300_000, 0.9), size(u[1], 1, 512, u[3])
    vocab, width = fitting([vocab, width], lambda s: product(*s), 4e7)
    rows = size(u[2], 16, 20_000, 0.9)
    rows, _ = fitting([rows, width], lambda s: product(*s), _ELEMENTS)
    table, at = floats(vocab, width), indices(vocab, rows)
    looked = [lambda t, i: nn.embedding(i, t), lambda t, i: t[i], lambda t, i: t.index_select(0, i)]
    which, bytes_out = int(u[4] * 3), 4.0 * rows * width
    name = f"gather {which} {vocab} {width} {rows}"
    return OpProgram(name, looked[which], [table, at], shared=1, result_bytes=bytes_out)


def _bag(u: np.ndarray) -> OpProgram:
    vocab, width = size(u[0], 100, 300_000, 0.9), size(u[1], 8, 128, u[3])
    vocab, width = fitting([vocab, width], lambda s: product(*s), 4e7)
    bags, pooling = size(u[2], 16, 2048, 0.9), size(u[4], 1, 32, 0.9)
    bags, pooling = fitting([bags, pooling], lambda s: product(*s), 20_000)
    table, at = floats(vocab, width), indices(vocab, bags, pooling)
    name = f"bag {vocab} {width} {bags} {pooling}"
    fn = lambda t, i: nn.embedding_bag(i, t, mode="sum")  # noqa: E731
    return OpProgram(name, fn, [table, at], shared=1, result_bytes=4.0 * bags * width)


def _embedding_bag(u: np.ndarray) -> OpProgram:
    of = skewed(u, "forward")
    fn = lambda t, i: nn.embedding_bag(i, t, mode="sum")  # noqa: E731
    return bags("embedding_bag", of, fn, result_bytes=4.0 * of.bags * of.dim)


def _embedding_bag_update(u: np.ndarray) -> OpProgram:
    """In place: every lookup's gradient where it falls, or those of a row summed first."""
    which = int(u[8] * (1 + len(OPTIMIZERS)))
    words = ("sgd", "each") if which == 0 else (OPTIMIZERS[which - 1], "merged")
    optimizer, duplicates = words
    of = dataclasses.replace(skewed(u, "backward"), optimizer=optimizer, duplicates=duplicates)

    def merged(i: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        rows, place = torch.unique(i.reshape(-1), return_inverse=True)
        each = g.repeat_interleave(of.pooling, 0)
        return rows, torch.zeros(len(rows), of.dim).index_add_(0, place, each)

    def each(t: Tensor, i: Tensor, g: Tensor) -> Tensor:
        return t.index_add_(0, i.reshape(-1), g.repeat_interleave(of.pooling, 0), alpha=-0.01)

    def sgd(t: Tensor, i: Tensor, g: Tensor) -> Tensor:
        rows, sums = merged(i, g)
        return t.index_add_(0, rows, sums, alpha=-0.01)

    def adagrad(t: Tensor, s: Tensor, i: Tensor, g: Tensor) -> Tensor:
        rows, sums = merged(i, g)
        squares = sums * sums if optimizer == "adagrad" else (sums * sums).mean(-1)
        s.index_add_(0, rows, squares)
        root = s.index_select(0, rows).add_(1e-8).rsqrt_()
        return t.index_add_(
            0, rows, sums * (root if root.dim() == 2 else root[:, None]), alpha=-0.01
        )

    state = {"adagrad": [floats(of.rows, of.dim)], "rowwise_adagrad": [floats(of.rows)]}
    more = state.get(optimizer, [])
    fn: Any = adagrad if more else sgd if duplicates == "merged" else each
    kind = f"embedding_bag_update {optimizer} {duplicates}"
    return bags(kind, of, fn, floats(of.bags, of.dim), state=more, result_bytes=4.0 * of.bags)


def _scatter_add(u: np.ndarray) -> OpProgram:
    vocab, width = size(u[0], 20, 300_000, 0.9), size(u[1], 1, 256, u[3])
    vocab, width = fitting([vocab, width], lambda s: product(*s), 4e7)
    rows = size(u[2], 32, 20_000, 0.9)
    rows, _ = fitting([rows, width], lambda s: product(*s), _ELEMENTS)
    if u[4] < 0.3:  # of a table so small that its zeros are nothing beside the rows
        vocab = min(vocab, max(rows // 2, 1))
        gradient = lambda i, g: _aten.embedding_dense_backward(g, i, vocab, -1, False)  # noqa: E731
        arguments = [indices(vocab, rows), floats(rows, width)]
        return OpProgram(f"table gradient {vocab} {width} {rows}", gradient, arguments)
    arguments = [floats(vocab, width), indices(vocab, rows), floats(rows, width)]
    name = f"{vocab} {width} {rows}"
    if u[4] < 0.6:
        put = lambda t, i, g: t.index_put_((i,), g, accumulate=True)  # noqa: E731
        return OpProgram(f"put {name}", put, arguments, shared=1)
    name = f"scatter {name}"
    return OpProgram(name, lambda t, i, g: t.index_add_(0, i, g), arguments, shared=1)


def _spmm(u: np.ndarray) -> OpProgram:
    """A CSR matrix with as many nonzeros in each row, at random places, by a dense one."""
    rows, degree = size(u[0], 64, 60_000, 0.9), size(u[1], 1, 64, u[4])
    cols, n = size(u[2], 64, 200_000, 0.9), size(u[3], 8, 256, u[5])
    rows, n = fitting([rows, n], lambda s: s[0] * s[1] * degree, 4 * _ELEMENTS)
    cols, _ = fitting([cols, n], lambda s: product(*s), 4 * _ELEMENTS)
    nnz, begins = rows * degree, torch.arange(rows + 1) * degree

    with warnings.catch_warnings():  # PyTorch says once in a process that CSR is young
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(begins[:2], torch.arange(degree), torch.ones(degree))

    def multiply(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
        return torch.sparse_csr_tensor(begins, at, values, (rows, cols), check_invariants=False) @ x

    columns = {"op": "spmm", "dtype": "fp32", "rows": rows, "cols": cols, "nnz": nnz, "n": n}
    arguments = [floats(cols, n), indices(cols, nnz), floats(nnz)]
    return OpProgram(f"spmm {rows} {cols} {nnz} {n}", multiply, arguments, columns=columns)


def _copy(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 8, 8192, u[3]), size(u[1], 4, 2048, u[4])
    rows, cols = fitting([rows, cols], lambda s: product(*s), _ELEMENTS)
    if u[5] < 0.35:
        parts = 2 + int(u[2] * 4)
        name = f"cat {parts}x{rows}x{cols}"
        dim = int(u[5] < 0.2)
        return OpProgram(
            name, lambda *xs: torch.cat(xs, dim), [floats(rows // parts + 1, cols)] * parts
        )
    if u[5] < 0.6:
        return OpProgram(f"clone {rows}x{cols}", lambda x: x.clone(), [floats(rows, cols)])
    if u[5] < 0.8:  # as attention swaps positions and heads
        heads, tokens = size(u[2], 2, 16, 0.1), 64
        width, batch = max(cols // heads, 8), max(rows // 64, 1)
        while batch > 1 and batch * tokens * heads * width > _ELEMENTS:
            batch //= 2
        name = f"swap {batch} {tokens} {heads} {width}"
        swapped = lambda x: x.transpose(1, 2).contiguous()  # noqa: E731
        return OpProgram(name, swapped, [floats(batch, tokens, heads, width)])
    return OpProgram(f"padded {rows}x{cols}", lambda x: nn.pad(x, (1, 1)), [floats(rows, cols)])


def _transpose(u: np.ndarray) -> OpProgram:
    batch = 1 if u[3] < 0.5 else size(u[3], 2, 64, 0.9)
    rows, cols = size(u[0], 8, 2048, u[2]), size(u[1], 8, 2048, u[4])
    batch, rows, cols = fitting([batch, rows, cols], lambda s: product(*s), 2e6)
    turned = lambda x: x.mT.contiguous()  # noqa: E731
    return OpProgram(f"transpose {batch} {rows}x{cols}", turned, [floats(batch, rows, cols)])


def _random(u: np.ndarray) -> OpProgram:
    n = size(u[0], 16, 2e6, 0.9)
    fn = (lambda x: x.bernoulli_(0.9)) if u[1] < 0.5 else (lambda x: x.uniform_())
    return OpProgram(f"random {int(u[1] < 0.5)} {n}", fn, [floats(n)])


def _ordered(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 1, 512, 0.9), size(u[1], 8, 4096, u[2])
    rows, cols = fitting([rows, cols], lambda s: product(*s), 3e5)
    x = floats(rows, cols)
    if u[3] < 0.4:
        return OpProgram(f"sort {rows}x{cols}", lambda x: x.sort(-1), [x])
    return OpProgram(f"running sum {rows}x{cols}", lambda x: x.cumsum(-1), [x])


def _optimizer(u: np.ndarray) -> OpProgram:
    """PyTorch's fused updates; those that loop over parameters are loops."""
    n = size(u[0], 2**8, 2**21, 0.9)
    x = floats(n)
    if u[1] < 0.5:
        plain = {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False}
        sgd = {**plain, "lr": 1e-3, "maximize": False, "is_first_step": False}
        fn = lambda p, g: _aten._fused_sgd_([p], [g], [], **sgd)  # noqa: E731
        return OpProgram(f"sgd {n}", fn, [x, x])
    adam = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}

    def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> Any:
        return _aten._fused_adam_(
            [p], [g], [m], [v], [], [step], **adam, amsgrad=False, maximize=False
        )

    return OpProgram(f"adam {n}", update, [x, x, x, x, floats()])


FAMILIES = (
    Family("gemm", 8, quick=90, full=260, build=_gemm),
    Family("batched_gemm", 8, quick=40, full=120, build=_batched_gemm),
    Family("convolution", 9, quick=120, full=320, build=images.convolution),
    Family("grouped_convolution", 9, quick=48, full=120, build=images.grouped_convolution),
    Family("attention", 7, quick=48, full=120, build=_attention),
    Family("elementwise", 6, quick=160, full=400, build=_elementwise),
    Family("fill", 2, quick=12, full=30, build=_fill),
    Family("norm", 5, quick=72, full=180, build=_norm),
    Family("reduction", 5, quick=72, full=180, build=_reduction),
    Family("channels", 5, quick=12, full=40, build=_channels),
    Family("softmax", 5, quick=32, full=80, build=_softmax),
    Family("gather", 5, quick=32, full=100, build=_gather),
    Family("bag", 5, quick=20, full=60, build=_bag),
    Family("embedding_bag", 8, quick=20, full=80, build=_embedding_bag),
    Family("embedding_bag_update", 9, quick=24, full=100, build=_embedding_bag_update),
    Family("scatter_add", 5, quick=32, full=100, build=_scatter_add),
    Family("spmm", 6, quick=16, full=60, build=_spmm),
    Family("copy", 6, quick=40, full=120, build=_copy),
    Family("transpose", 5, quick=24, full=60, build=_transpose),
    Family("pool", 6, quick=40, full=100, build=images.pool),
    Family("interpolation", 4, quick=20, full=60, build=images.interpolation),
    Family("random", 2, quick=16, full=30, build=_random),
    Family("ordered", 4, quick=20, full=50, build=_ordered),
    Family("optimizer", 2, quick=16, full=40, build=_optimizer),
)
