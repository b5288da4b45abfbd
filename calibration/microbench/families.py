"""The ops a training step is made of, as small JAX functions: one family per kind of op."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import sparse

from hybridperf.ops.embedding_bag import OPTIMIZERS, Direction
from hybridperf_calibration.microbench import images, machine
from hybridperf_calibration.microbench.lookup_updates import merged_update
from hybridperf_calibration.microbench.lookups import Lookups
from hybridperf_calibration.microbench.op_programs import (
    FLOAT_BYTES,
    Family,
    OpProgram,
    floats,
    indices,
    matrix,
    size,
)

Array = Any
_SHARE_OF_MEMORY = 0.1  # that the largest table takes


def _gemm(u: np.ndarray) -> OpProgram:
    # rows of activations are many, widths fewer; the third layout is the weight gradient's,
    # contracted over rows
    m, n, k = size(u[0], 16, 4096, u[3]), size(u[1], 8, 2048, u[4]), size(u[2], 8, 2048, u[5])
    if u[7] < 0.12:
        # columns of the output layer, summed over in its input gradient, rows of its weight one
        vocabulary = size(u[7] / 0.12, 2000, 24_000, u[3])
        m, n, k = [
            (m // 8 + 8, vocabulary, k // 2 + 8),
            (m // 8 + 8, n // 2 + 8, vocabulary),
            (vocabulary, n // 2 + 8, k // 8 + 8),
        ][int(u[6] * 3)]
    while 2.0 * m * n * k > 1.5e9:
        # slowly, so that shapes stay like those of layers
        m, n, k = (max(m // 2, 16), max(n * 3 // 4, 8), max(k * 3 // 4, 8))
    layout = _layout(u[6])
    a, b = _stored(layout, m, n, k)
    contracted = ((0 if layout[0] == "t" else 1,), (1 if layout[1] == "t" else 0,))
    product = lambda x, y: lax.dot_general(x, y, (contracted, ((), ())))  # noqa: E731
    return OpProgram(f"gemm {layout} {m} {n} {k}", product, [floats(*a), floats(*b)])


def _layout(u: float) -> str:
    """How a product's operands are stored: weight gradients contract rows (tn), inputs' columns."""
    return "nn" if u < 0.32 else "nt" if u < 0.61 else "tn" if u < 0.92 else "tt"


def _stored(layout: str, m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return ((k, m) if layout[0] == "t" else (m, k)), ((n, k) if layout[1] == "t" else (k, n))


def _batched_gemm(u: np.ndarray) -> OpProgram:
    batch = size(u[0], 8, 2048, 0.9)
    # from the few features that a recommendation model's interaction multiplies
    m, n, k = size(u[1], 4, 256, u[4]), size(u[2], 4, 256, u[5]), size(u[3], 4, 256, u[6])
    while 2.0 * batch * m * n * k > 5e8:
        batch = batch // 2
    layout = _layout(u[7])
    first, second = _stored(layout, m, n, k)
    letters = f"b{'ji' if layout[0] == 't' else 'ij'},b{'kj' if layout[1] == 't' else 'jk'}->bik"
    arguments = [floats(batch, *first), floats(batch, *second)]
    name = f"bmm {layout} {batch} {m} {n} {k}"
    return OpProgram(name, lambda x, y: jnp.einsum(letters, x, y), arguments)


def _few_rows(u: np.ndarray) -> OpProgram:
    """Products of sequences that decode: of few rows by weights, of one row by its own keys."""
    n, k = size(u[1], 32, 4096, u[4]), size(u[2], 32, 2048, u[5])
    if u[3] < 0.5:
        m = size(u[0], 2, 15, 0.9 * u[6])  # of one row XLA makes no product
        fn, layout = (lambda x, y: x @ y), "nn"
        if u[3] < 0.15:
            fn, layout = (lambda x, y: x @ y.T), "nt"
        return OpProgram(
            f"gemm {layout} {m} {n} {k}", fn, [floats(m, k), floats(*_stored(layout, m, n, k)[1])]
        )
    heads, head_dim, context = size(u[0], 2, 32, 0.1), size(u[2], 16, 128, 0.1), n
    scores = u[3] < 0.75
    letters = "hd,htd->ht" if scores else "ht,htd->hd"
    arguments = [floats(heads, head_dim if scores else context), floats(heads, context, head_dim)]
    name = f"attention of a row {letters[-2:]} {heads} {context} {head_dim}"
    return OpProgram(name, lambda x, y: jnp.einsum(letters, x, y), arguments)


def _elementwise(u: np.ndarray) -> OpProgram:
    rows, cols = matrix(size(u[0], 8, 8192, u[3]), size(u[1], 8, 2048, u[4]), 4e6)
    inputs, arithmetic = 1 + int(u[2] * 5), 1 + int(18 * u[5] ** 2)
    transcendental = int(u[6] * 7) - 3
    fn = _chain(arithmetic, transcendental)
    arguments = [floats(rows, cols) if i % 3 != 2 else floats(cols) for i in range(inputs)]
    name = f"elementwise {rows}x{cols} in{inputs} a{arithmetic} t{transcendental}"
    return OpProgram(name, fn, arguments)


def _chain(arithmetic: int, transcendental: int) -> Callable[..., Array]:
    """An expression of so many multiplications and additions, and transcendentals if positive."""
    functions = [jnp.tanh, jnp.exp, jnp.log, jnp.sqrt]

    def expression(*xs: Array) -> Array:
        y = xs[0]
        for i in range(arithmetic):
            other = xs[(i + 1) % len(xs)]
            y = y * other if i % 2 else y + other * 0.5
        for i in range(max(transcendental, 0)):
            y = functions[(i + transcendental) % len(functions)](jnp.abs(y))
        return y

    return expression


def _fill(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 8, 4096, u[2]), size(u[1], 8, 1024, 0.9)
    return OpProgram(f"fill {rows}x{cols}", lambda x: jnp.broadcast_to(x, (rows, cols)), [floats()])


def _update_in_place(u: np.ndarray) -> OpProgram:
    """Working sets up to and past the last-level cache, without fresh results."""
    n = size(u[0], 2**14, 2**25, 0.9)
    return OpProgram(f"in place {n}", lambda p, g: (p - 0.01 * g,), [floats(n), floats(n)], carry=1)


def _strided(u: np.ndarray) -> OpProgram:
    rows, cols = matrix(size(u[0], 16, 4096, u[3]), size(u[1], 16, 2048, u[4]), 3e6)
    heads = size(u[2], 2, 16, 0.1)
    if u[7] < 0.25:
        return OpProgram(f"transpose {rows}x{cols}", lambda x: x.T, [floats(rows, cols)])
    if u[7] < 0.5:  # as attention swaps positions and heads
        batch, width = max(rows // 128, 1), max(cols // heads, 8)
        name, arguments = f"swap {batch}x128x{heads}x{width}", [floats(batch, 128, heads, width)]
        return OpProgram(name, lambda x: x.transpose(0, 3, 2, 1), arguments)
    inputs, arithmetic = 1 + int(u[2] * 4), 1 + int(12 * u[5] ** 2)
    transcendental = max(int(u[6] * 4) - 2, 0)
    chain, name = _chain(arithmetic, transcendental), f"in{inputs} a{arithmetic} t{transcendental}"
    shape = (rows, cols) if u[7] < 0.8 else (max(rows // 64, 1), 64, cols)
    turned = lambda *xs: chain(*xs).transpose(-1, *range(len(shape) - 1))  # noqa: E731
    name = f"transposed {'x'.join(map(str, shape))} {name}"
    return OpProgram(name, turned, [floats(*shape)] * inputs, alone=True)


def _reduction(u: np.ndarray) -> OpProgram:
    rows, cols = matrix(size(u[0], 8, 8192, u[2]), size(u[1], 33, 4096, u[3]), 4e6)
    which = int(u[4] * 3)
    fn = [lambda x: x.sum(-1), lambda x: x.sum(0), lambda x: x.max(-1)][which]
    return OpProgram(f"reduction {which} {rows}x{cols}", fn, [floats(rows, cols)])


def _window_reduction(u: np.ndarray) -> OpProgram:
    """Sums in windows of 32 and more, as XLA splits them, without the loop before."""
    rows, cols = matrix(size(u[0], 8, 2048, u[2]), size(u[1], 40, 2048, u[3]), 2e6)
    axis = -1 if u[4] < 0.7 else 0
    if axis == 0:
        rows = max(rows, 64)
    name = f"sum of squares {rows}x{cols} axis {axis}"
    return OpProgram(name, lambda x: x.sum(axis), [floats(rows, cols)], prelude=lambda x: x * x)


def _loop_reduction(u: np.ndarray) -> OpProgram:
    """Reductions that XLA writes as loops: short rows, fused matrix-vector products."""
    rows, cols = size(u[0], 16, 8192, u[2]), size(u[1], 4, 31, 0.9)
    if u[3] < 0.4:
        name = f"short rows {rows}x{cols}"
        return OpProgram(name, lambda x: (x * 2.0).sum(-1), [floats(rows, cols)])
    if u[3] < 0.6:
        name = f"short columns {cols}x{rows}"
        return OpProgram(name, lambda x: (x * 2.0).sum(0), [floats(cols, rows)])
    rows, cols = size(u[0], 32, 2048, u[2]), size(u[1], 16, 512, u[4])
    if u[3] < 0.8:
        arguments = [floats(rows, cols), floats(cols)]
        name = f"matrix vector {rows}x{cols}"
        return OpProgram(name, lambda a, v: jax.nn.relu(a) @ v, arguments)
    arguments = [floats(rows, cols), floats(rows)]
    return OpProgram(f"vector matrix {rows}x{cols}", lambda a, v: v @ jax.nn.relu(a), arguments)


def _vocabulary(u: float) -> int:
    """Rows of a table: mostly embeddings, some the few rows of an interaction's triangle."""
    return size(u / 0.2, 20, 1000, 0.9) if u < 0.2 else size((u - 0.2) / 0.8, 2000, 600_000, 0.9)


def _gather(u: np.ndarray) -> OpProgram:
    vocab, width = matrix(_vocabulary(u[0]), size(u[1], 8, 512, u[4]), 5e7)
    bags, pooling = matrix(size(u[2], 32, 2048, u[5]), size(u[3], 1, 32, 0.9), 30_000)
    if u[6] < 0.5:
        return _looked_up(vocab, width, bags * pooling)
    return _looked_up(vocab, width, bags, pooling)


def _looked_up(vocab: int, width: int, results: int, pooling: int = 0) -> OpProgram:
    """Rows at random places of a table, or where they are pooled, the sums of so many."""
    if pooling:
        name = f"bag {vocab} {width} {results} {pooling}"
        look_up, looked_up = lambda t, i: t[i].sum(1), indices(vocab, results, pooling)
    else:
        name = f"gather {vocab} {width} {results}"
        look_up, looked_up = lambda t, i: t[i], indices(vocab, results)
    arguments, result_bytes = [floats(vocab, width), looked_up], 4.0 * results * width
    return OpProgram(name, look_up, arguments, shared=1, result_bytes=result_bytes)


def _scatter_add(u: np.ndarray) -> OpProgram:
    vocab, width = matrix(_vocabulary(u[0]), size(u[1], 4, 512, u[3]), 5e7)
    return _scattered(vocab, width, size(u[2], 64, 30_000, u[4]))


def _scattered(vocab: int, width: int, n: int) -> OpProgram:
    arguments = [floats(vocab, width), indices(vocab, n), floats(n, width)]
    name = f"scatter {vocab} {width} {n}"
    return OpProgram(name, lambda t, i, g: (t.at[i].add(g),), arguments, carry=1, shared=1)


def _large_table(u: np.ndarray) -> OpProgram:
    """Lookups in tables of 0.1 to 2 GB, as recommendation models have them: rows lie beyond every
    cache, and beyond what the processor remembers of where pages are.
    """
    width = size(u[1], 8, 256, u[4])
    most_bytes = min(2e9, _SHARE_OF_MEMORY * (machine.memory_bytes() or 1.6e10))
    table_bytes = 1e8 * (max(most_bytes, 1e8) / 1e8) ** float(u[0])
    rows = int(table_bytes / FLOAT_BYTES / width)
    bags, pooling = matrix(size(u[2], 64, 4096, u[5]), size(u[3], 1, 32, 0.9), 30_000)
    which = int(u[6] * 5)
    if which == 0:
        return _looked_up(rows, width, bags * pooling)
    if which == 1:
        return _looked_up(rows, width, bags, pooling)
    if which == 2:
        return _scattered(rows, width, bags * pooling)
    of = Lookups(rows, width, bags, pooling, round(1.2 * float(u[7]), 2), 0.0)
    return _bag(of) if which == 3 else _bag_backward(dataclasses.replace(of, direction="backward"))


def skewed(u: np.ndarray, direction: Direction) -> Lookups:
    """A quarter uniform, the others skewed as in click models, a third with a flat head."""
    rows, dim = matrix(size(u[0], 1000, 600_000, 0.9), size(u[1], 8, 256, u[5]), 5e7)
    most = 32 if direction == "forward" else 64  # XLA splits longer sums: then a bag is several ops
    bags, pooling = matrix(size(u[2], 32, 2048, u[6]), size(u[3], 1, most, 0.9), 30_000)
    exponent = 0.0 if u[4] < 0.25 else round(0.3 + 1.2 * (u[4] - 0.25) / 0.75, 2)
    shift = 0.0 if u[7] < 0.67 else float(size((u[7] - 0.67) / 0.33, 1, 300, 0.9))
    return Lookups(rows, dim, bags, pooling, exponent, shift, direction)


def _embedding_bag(u: np.ndarray) -> OpProgram:
    return _bag(skewed(u, "forward"))


def _bag(of: Lookups) -> OpProgram:
    bytes_out = 4.0 * of.bags * of.dim
    return bags("embedding_bag", of, lambda t, i: t[i].sum(1), result_bytes=bytes_out)


def _embedding_bag_backward(u: np.ndarray) -> OpProgram:
    return _bag_backward(skewed(u, "backward"))


def _bag_backward(of: Lookups) -> OpProgram:
    def update(t: Array, i: Array, g: Array) -> tuple[Array]:
        each = jnp.broadcast_to(g[:, None, :], (of.bags, of.pooling, of.dim))
        return (t.at[i].add(-0.01 * each),)

    return bags("embedding_bag_backward", of, update, floats(of.bags, of.dim), carry=1)


def _embedding_bag_update(u: np.ndarray) -> OpProgram:
    """Gradients of a row summed first, then the optimizer's step on each row that was met."""
    optimizer = OPTIMIZERS[int(u[8] * len(OPTIMIZERS))]
    of = dataclasses.replace(skewed(u, "backward"), optimizer=optimizer, duplicates="merged")

    state = {"adagrad": [floats(of.rows, of.dim)], "rowwise_adagrad": [floats(of.rows)]}
    more = state.get(optimizer, [])
    kind = f"embedding_bag_update {optimizer}"
    gradient, carry = floats(of.bags, of.dim), 1 + len(more)
    return bags(
        kind, of, merged_update(of), gradient, state=more, carry=carry, result_bytes=4.0 * of.bags
    )


def bags(
    kind: str, of: Lookups, fn: Callable[..., Any], *more: tuple, state: Sequence[tuple] = (),
    **options: Any,
) -> OpProgram:  # fmt: skip
    name = f"{kind} {of.rows} {of.dim} {of.bags} {of.pooling} zipf {of.exponent:g} {of.shift:g}"
    tables = [floats(of.rows, of.dim), *state]
    arguments = [*tables, ("lookups", (of.bags, of.pooling), of), *more]
    return OpProgram(name, fn, arguments, shared=len(tables), lookups=of, **options)


def _spmm(u: np.ndarray) -> OpProgram:
    """A sparse matrix with as many nonzeros in each row, at random places, as JAX multiplies it."""
    rows, degree = size(u[0], 64, 60_000, 0.9), size(u[1], 1, 64, u[4])
    cols, n = size(u[2], 64, 200_000, 0.9), size(u[3], 8, 256, u[5])
    while rows * degree * n > 1.2e7:
        rows = max(rows // 2, 16)
        degree = max(degree - 1, 1)
    cols, n = matrix(cols, n, 1.2e7)
    nnz = rows * degree

    def multiply(x: Array, at: Array, values: Array) -> Array:
        places = jnp.stack([jnp.arange(nnz, dtype=at.dtype) // degree, at], 1)
        matrix = sparse.BCOO((values, places), shape=(rows, cols), indices_sorted=True)
        return matrix @ x

    columns = {
        "op": "spmm", "dtype": "fp32", "rows": rows, "cols": cols, "nnz": nnz, "n": n,
        "kernel": "bcoo",
    }  # fmt: skip
    arguments = [floats(cols, n), indices(cols, nnz), floats(nnz)]
    name = f"spmm {rows} {cols} {nnz} {n}"
    bytes_out = 4.0 * rows * n
    return OpProgram(name, multiply, arguments, columns=columns, result_bytes=bytes_out, alone=True)


def _concatenate(u: np.ndarray) -> OpProgram:
    rows, cols, parts = size(u[0], 8, 4096, u[3]), size(u[1], 8, 512, u[4]), 2 + int(u[2] * 10)
    while rows * cols * parts > 4e6:
        rows //= 2
    arguments = [floats(rows, cols)] * parts
    name = f"concatenate {parts}x{rows}x{cols}"
    return OpProgram(name, lambda *xs: jnp.concatenate(xs, 1), arguments)


def _sort(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 1, 256, 0.9), size(u[1], 16, 4096, u[2])
    return OpProgram(f"sort {rows}x{cols}", lambda x: jnp.sort(x, -1), [floats(rows, cols)])


def _cumulative(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 1, 512, 0.9), size(u[1], 16, 4096, u[2])
    return _composite("cumulative", rows, cols, lambda x: jnp.cumsum(x, -1))


def _softmax(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 16, 4096, u[2]), size(u[1], 16, 1024, u[3])
    return _composite("softmax", rows, cols, lambda x: jax.nn.softmax(x, -1))


def _layer_norm(u: np.ndarray) -> OpProgram:
    def fn(x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)

    return _composite("layernorm", size(u[0], 16, 4096, u[2]), size(u[1], 16, 1024, u[3]), fn)


def _random(u: np.ndarray) -> OpProgram:
    rows, cols = size(u[0], 8, 2048, u[2]), size(u[1], 8, 512, 0.9)
    columns = {"op": "random", "dtype": "fp32", "rows": rows, "cols": cols}
    draw = lambda seed: jax.random.uniform(jax.random.key(seed[0]), (rows, cols))  # noqa: E731
    return OpProgram(f"random {rows}x{cols}", draw, [indices(1000, 1)], columns=columns)


def _optimizer(u: np.ndarray) -> OpProgram:
    n = size(u[0], 2**10, 2**22, u[1])
    columns = {"op": "sgd" if u[2] < 0.4 else "adam", "dtype": "fp32", "parameters": n}
    if u[2] < 0.4:
        sgd = lambda p, g: (p - 0.01 * g,)  # noqa: E731
        return OpProgram(f"sgd {n}", sgd, [floats(n)] * 2, carry=1, columns=columns)

    def adam(p: Array, m: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 0.001 * m / (lax.sqrt(v) + 1e-8), m, v

    return OpProgram(f"adam {n}", adam, [floats(n)] * 4, carry=3, columns=columns)


def _loop_trip(u: np.ndarray) -> OpProgram:
    trips = size(u[0], 50, 2000, 0.9)
    columns = {"op": "loop_trip", "dtype": "int32", "trips": trips}
    loop = lambda x: lax.fori_loop(0, trips, lambda _, c: c + 1.0, x)  # noqa: E731
    return OpProgram(f"loop {trips}", loop, [floats()], columns=columns)


def _composite(op: str, rows: int, cols: int, fn: Callable[[Array], Array]) -> OpProgram:
    rows, cols = matrix(rows, cols, 2e6)
    columns = {"op": op, "dtype": "fp32", "rows": rows, "cols": cols}
    return OpProgram(f"{op} {rows}x{cols}", fn, [floats(rows, cols)], columns=columns)


FAMILIES = (
    Family("gemm", 8, quick=48, full=330, build=_gemm),
    Family("batched_gemm", 8, quick=24, full=200, build=_batched_gemm),
    Family("few_rows", 7, quick=16, full=120, build=_few_rows),
    Family("elementwise", 7, quick=28, full=190, build=_elementwise),
    Family("fill", 3, quick=3, full=16, build=_fill),
    Family("in_place", 1, quick=4, full=24, build=_update_in_place),
    Family("strided_loop", 8, quick=26, full=220, build=_strided),
    Family("reduction", 5, quick=8, full=130, build=_reduction),
    Family("window_reduction", 5, quick=14, full=130, build=_window_reduction),
    Family("pooling", 7, quick=8, full=70, build=images.pooling),
    Family("loop_reduction", 5, quick=10, full=140, build=_loop_reduction),
    Family("gather", 7, quick=16, full=200, build=_gather),
    Family("scatter_add", 5, quick=14, full=110, build=_scatter_add),
    Family("large_table", 8, quick=10, full=100, build=_large_table),
    Family("embedding_bag", 8, quick=12, full=160, build=_embedding_bag),
    Family("embedding_bag_backward", 8, quick=12, full=120, build=_embedding_bag_backward),
    Family("spmm", 6, quick=10, full=120, build=_spmm),
    Family("embedding_bag_update", 9, quick=10, full=110, build=_embedding_bag_update),
    Family("copy", 5, quick=8, full=60, build=_concatenate),
    Family("sort", 3, quick=4, full=24, build=_sort),
    Family("cumulative", 3, quick=4, full=40, build=_cumulative),
    Family("softmax", 4, quick=6, full=50, build=_softmax),
    Family("layer_norm", 4, quick=6, full=40, build=_layer_norm),
    Family("random", 3, quick=4, full=24, build=_random),
    Family("optimizer", 3, quick=6, full=50, build=_optimizer),
    Family("convolution", 9, quick=10, full=150, build=images.convolution),
    Family("grouped_convolution", 8, quick=6, full=50, build=images.grouped_convolution),
    Family("loop_trip", 1, quick=3, full=10, build=_loop_trip),
)
