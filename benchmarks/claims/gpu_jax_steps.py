"""Steps of JAX at the sizes that GPUs run: what `calibration/` ran on a GPU, and what `validate
programs` lowers without one.

Each function returns (step, arguments without memory, below what whole numbers among them lie).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from hybridperf.validate.jax_steps import (
    Array,
    Cnn,
    Layer,
    Lstm,
    Residual,
    Vit,
    classified,
    training,
)

Made = tuple[Callable[..., Any], tuple[Any, ...], int]
BF16 = jnp.bfloat16


def f32(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def i32(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.int32)


def bf16(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, BF16)


def step_of(
    net: nn.Module, loss: Callable[..., Array], x: Any, y: Any, below: int = 10, update: Any = None
) -> Made:
    """A step of a net with AdamW, parameters and their state donated by who runs it."""
    update = update or optax.adamw(1e-4)
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.zeros(x.shape, x.dtype)))
    state = jax.eval_shape(update.init, params)
    return training(net, loss, update), (params, state, x, y), below


def donated(shapes: tuple[Any, ...]) -> tuple[int, ...]:
    """Places of what a step takes over: parameters and their state."""
    return (0, 1) if len(shapes) == 4 else ()


def inference_of(net: nn.Module, x: Any, below: int = 10) -> Made:
    """A forward pass."""
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.zeros(x.shape, x.dtype)))
    return (lambda params, x: net.apply(params, x)), (params, x), below


def squared(found: Array, wanted: Array) -> Array:
    return ((found.astype(jnp.float32) - wanted) ** 2).mean()


def clicked(found: Array, labels: Array) -> Array:
    return optax.sigmoid_binary_cross_entropy(found, labels).mean()


class Perceptron(nn.Module):
    """Layers of one width."""

    width: int
    depth: int
    dtype: Any = BF16

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(self.depth):
            x = nn.relu(nn.Dense(self.width, dtype=self.dtype)(x))
        return nn.Dense(16, dtype=self.dtype)(x)


class Gpt(nn.Module):
    """A language model."""

    width: int
    depth: int
    vocabulary: int
    dtype: Any = BF16

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(x)
        for _ in range(self.depth):
            x = Layer(self.width // 64, self.dtype, causal=True)(x)
        return nn.Dense(self.vocabulary, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))


class Stacked(nn.Module):
    """A language model whose layers are one loop, computed again for their gradients."""

    width: int
    depth: int
    vocabulary: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.Embed(self.vocabulary, self.width, dtype=BF16)(x)
        layer = nn.remat(Layer, prevent_cse=False)(self.width // 64, BF16, causal=True)
        carry: Any = {"params": 0}
        x, _ = nn.scan(
            lambda net, x, _: (net(x), None), carry, split_rngs={"params": True}, length=self.depth
        )(layer, x, None)
        return nn.Dense(self.vocabulary, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))


class Convnext(nn.Module):
    """Depthwise convolutions of 7 x 7, norms and perceptrons of channels."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.Conv(self.width, (4, 4), (4, 4), dtype=BF16)(x)
        for _ in range(self.depth):
            y = nn.Conv(self.width, (7, 7), feature_group_count=self.width, dtype=BF16)(x)
            y = nn.Dense(4 * self.width, dtype=BF16)(nn.LayerNorm(dtype=BF16)(y))
            x = x + nn.Dense(self.width, dtype=BF16)(nn.gelu(y))
        return nn.Dense(10, dtype=BF16)(x.mean((1, 2)))


class Gnn(nn.Module):
    """Messages along edges."""

    nodes: int
    edges: int
    width: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        at = jnp.arange(self.edges, dtype=jnp.uint32) * jnp.uint32(2654435761)
        to, of = (at >> 8) % self.nodes, (at >> 4) % self.nodes
        for _ in range(3):
            sent = nn.Dense(self.width)(x)[to]
            x = nn.relu(jax.ops.segment_sum(sent, of, self.nodes) + nn.Dense(self.width)(x))
        return nn.Dense(10)(x)


class Dlrm(nn.Module):
    """Bags of tables, pairs of their sums, perceptrons."""

    tables: int
    rows: int
    width: int
    pooling: int

    @nn.compact
    def __call__(self, b: Array) -> Array:
        dense = b[:, :13].astype(jnp.float32)
        rows = b[:, 13:].reshape(b.shape[0], self.tables, self.pooling)
        d = nn.relu(nn.Dense(self.width)(nn.relu(nn.Dense(256)(dense))))
        bags = [nn.Embed(self.rows, self.width)(rows[:, t]).sum(1) for t in range(self.tables)]
        v = jnp.stack([d, *bags], 1)
        i, j = jnp.tril_indices(self.tables + 1, -1)
        z = jnp.concatenate([d, jnp.einsum("bid,bjd->bij", v, v)[:, i, j]], 1)
        return nn.Dense(1)(nn.relu(nn.Dense(512)(z)))[:, 0]


class Unet(nn.Module):
    """Down, attention, and up again beside what was there before."""

    width: int
    dtype: Any = BF16

    @nn.compact
    def __call__(self, x: Array) -> Array:
        w, own = self.width, {"dtype": self.dtype}
        waves = jnp.sin(jnp.arange(64.0) * x.mean((1, 2, 3))[:, None])
        t = nn.silu(nn.Dense(w, **own)(waves))

        def residual(h: Array, c: int) -> Array:
            y = nn.Conv(c, (3, 3), **own)(nn.silu(nn.GroupNorm(8, **own)(h)))
            y = y + nn.Dense(c, **own)(t)[:, None, None]
            y = nn.Conv(c, (3, 3), **own)(nn.silu(nn.GroupNorm(8, **own)(y)))
            return y + nn.Conv(c, (1, 1), **own)(h)

        a = residual(nn.Conv(w, (3, 3), **own)(x), w)
        b = residual(nn.Conv(2 * w, (3, 3), (2, 2), **own)(a), 2 * w)
        n, height, width, c = b.shape
        tokens = nn.GroupNorm(8, **own)(b).reshape(n, -1, c)
        b = b + nn.MultiHeadDotProductAttention(4, **own)(tokens).reshape(b.shape)
        up = jax.image.resize(b, (n, height * 2, width * 2, c), "nearest")
        return nn.Conv(3, (3, 3), **own)(residual(jnp.concatenate([up, a], -1), w))


class Experts(nn.Module):
    """Tokens sorted by their two experts, an equal number to each."""

    experts: int = 8
    each: int = 2
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        d = x.shape[-1]
        weights, chosen = lax.top_k(nn.softmax(nn.Dense(self.experts)(x)), self.each)
        order = jnp.argsort(chosen.reshape(-1))
        token = order // self.each
        up = self.param("up", nn.initializers.normal(), (self.experts, d, 4 * d), self.dtype)
        down = self.param("down", nn.initializers.normal(), (self.experts, 4 * d, d), self.dtype)
        rows = x[token].reshape(self.experts, -1, d).astype(self.dtype)
        h = nn.gelu(jnp.einsum("ecd,edf->ecf", rows, up))
        y = jnp.einsum("ecf,efd->ecd", h, down).reshape(-1, d)
        return jnp.zeros_like(x).at[token].add(y * weights.reshape(-1)[order][:, None])


class Mamba(nn.Module):
    """A selective scan, written as a loop over tokens."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        d, n = x.shape[-1], 16
        u, gate = jnp.split(nn.Dense(2 * d)(x), 2, -1)
        u = nn.silu(nn.Conv(d, (4,), padding=((3, 0),), feature_group_count=d)(u))
        dt, b, c = nn.softplus(nn.Dense(d)(u)), nn.Dense(n)(u), nn.Dense(n)(u)
        a = -jnp.exp(self.param("a", nn.initializers.normal(), (d, n)))

        def token(h: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
            u, dt, b, c = given
            h = h * jnp.exp(dt[..., None] * a) + (dt * u)[..., None] * b[:, None]
            return h, (h * c[:, None]).sum(-1)

        given = tuple(jnp.swapaxes(one, 0, 1) for one in (u, dt, b, c))
        _, y = lax.scan(token, jnp.zeros((x.shape[0], d, n)), given)
        return nn.Dense(d)(jnp.swapaxes(y, 0, 1) * nn.silu(gate))


JAX: dict[str, Callable[[], Made]] = {
    "gpt": lambda: step_of(Gpt(1024, 8, 32_000), classified, i32(8, 1024), i32(8, 1024), 32_000),
    "vit": lambda: step_of(Vit(768, 6), classified, f32(64, 224, 224, 3), i32(64)),
    "residual": lambda: step_of(Residual(128, 3), classified, f32(256, 56, 56, 64), i32(256)),
    "perceptron": lambda: step_of(Perceptron(4096, 5), classified, bf16(8192, 4096), i32(8192)),
    "dlrm": lambda: step_of(
        Dlrm(16, 100_000, 64, 8), clicked, i32(4096, 13 + 16 * 8), f32(4096), 100_000,
        optax.adagrad(0.1),
    ),
    "cnn": lambda: step_of(Cnn(), classified, f32(256, 64, 64, 3), i32(256)),
    "unet": lambda: step_of(Unet(128), squared, f32(16, 64, 64, 3), f32(16, 64, 64, 3)),
    "gnn": lambda: step_of(
        Gnn(100_000, 1_000_000, 128), classified, f32(100_000, 128), i32(100_000)
    ),
    "experts": lambda: step_of(
        Experts(8, 2, BF16), squared, f32(8192, 1024), f32(8192, 1024)
    ),
    "lstm": lambda: step_of(Lstm(512), classified, i32(64, 64), i32(64, 64), 1000),
    "mamba": lambda: step_of(Mamba(), squared, f32(4, 128, 512), f32(4, 128, 512)),
    "gpt prompt": lambda: inference_of(Gpt(2048, 8, 32_000), i32(1, 2048), 32_000),
    "gpt stacked": lambda: step_of(
        Stacked(1024, 12, 32_000), classified, i32(4, 1024), i32(4, 1024), 32_000
    ),
    "convnext": lambda: step_of(Convnext(192, 6), classified, f32(64, 224, 224, 3), i32(64)),
    "bert single": lambda: step_of(
        Gpt(768, 6, 30_000, jnp.float32), classified, i32(32, 128), i32(32, 128), 30_000
    ),
    "residual inference": lambda: inference_of(Residual(128, 3), f32(512, 56, 56, 64)),
    "vit inference": lambda: inference_of(Vit(768, 12), f32(64, 224, 224, 3)),
}  # fmt: skip
