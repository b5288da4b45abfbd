"""Training steps of JAX of a user's own kinds, at sizes of one CPU core: two convolutional
networks, two vision transformers, two LSTMs, two graph networks; in float32, 5 to 150 ms each on a
slow core.

Each is a function that returns what `predict --jax` takes, (fn, args, donate_argnums). The nets are
those that GPUs ran; no size is a calibration case's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

Array = Any
Made = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def cnn() -> Made:
    """Three convolutions, each with a maximum."""
    return _step(Cnn((22, 46, 90)), _images(14, 44, 3), _labels(14, 10), optax.adam(1e-3))


def resnet() -> Made:
    """Residual blocks with group norms, each of which halves the image."""
    return _step(
        Residual(104, 2, jnp.float32), _images(11, 26, 60), _labels(11, 10),
        optax.sgd(1e-3, momentum=0.9),
    )  # fmt: skip


def vit() -> Made:
    """Four layers over 36 patches."""
    return _step(Vit(256, 4, jnp.float32), _images(5, 96, 3), _labels(5, 10), optax.adamw(1e-4))


def vit_deep() -> Made:
    """Five narrow layers over 25 patches."""
    return _step(Vit(128, 5, jnp.float32), _images(7, 80, 3), _labels(7, 10), optax.adamw(1e-4))


def lstm() -> Made:
    """A wide one over short sequences, a word predicted at each place."""
    return _step(Lstm(212), _words(26, 34), _words(26, 34), optax.adam(1e-3))


def lstm_long() -> Made:
    """A narrow one over long sequences."""
    return _step(Lstm(62), _words(9, 105), _words(9, 105), optax.adam(1e-3))


def gnn() -> Made:
    """Few nodes with many edges."""
    return _step(Gnn(74, 2), _graph(2600, 17_500, 52), _labels(2600, 6), optax.adam(1e-3))


def gnn_large() -> Made:
    """Many nodes with few edges, three layers."""
    return _step(Gnn(44, 3), _graph(19_000, 70_000, 36), _labels(19_000, 6), optax.adam(1e-3))


class Gnn(nn.Module):
    """Messages along edges, added up at their ends."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, graph: tuple[Array, Array, Array]) -> Array:
        x, to, of = graph
        for _ in range(self.depth):
            sent = nn.Dense(self.width)(x)[of]
            x = nn.relu(jax.ops.segment_sum(sent, to, x.shape[0]) + nn.Dense(self.width)(x))
        return nn.Dense(6)(x)


def _step(net: nn.Module, x: Any, y: Array, update: Any) -> Made:
    """A step that takes over parameters and the optimizer's state."""
    params = jax.jit(net.init)(jax.random.key(0), x)
    return training(net, classified, update), (params, update.init(params), x, y), (0, 1)


def _images(count: int, side: int, channels: int) -> Array:
    return jnp.asarray(_random().random((count, side, side, channels), np.float32))


def _words(*shape: int) -> Array:
    return jnp.asarray(_random().integers(0, 1000, shape, np.int32))


def _labels(count: int, classes: int) -> Array:
    return jnp.arange(count, dtype=jnp.int32) % classes


def _graph(nodes: int, edges: int, width: int) -> tuple[Array, Array, Array]:
    """(what is known of each node, where each edge ends, where it begins)."""
    to, of = _random().integers(0, nodes, (2, edges), np.int32)
    known = _random().random((nodes, width), np.float32)
    return jnp.asarray(known), jnp.asarray(to), jnp.asarray(of)


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def training(net: nn.Module, loss: Callable[..., Array], update: Any) -> Callable[..., Any]:
    """(params, state, x, y) -> (params, state, loss): a step of a net with an optimizer."""

    def step(params: Any, state: Any, x: Any, y: Array) -> tuple[Any, Any, Array]:
        value, grads = jax.value_and_grad(lambda p: loss(net.apply(p, x), y))(params)
        changes, state = update.update(grads, state, params)
        return optax.apply_updates(params, changes), state, value

    return step


def classified(found: Array, labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(found.astype(jnp.float32), labels).mean()


class Cnn(nn.Module):
    """Convolutions, each followed by max pooling."""

    widths: tuple[int, ...] = (64, 128, 256)
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in self.widths:
            x = nn.relu(nn.Conv(width, (3, 3), dtype=self.dtype)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(10, dtype=self.dtype)(x.reshape(x.shape[0], -1))


class Residual(nn.Module):
    """Residual blocks, each of which halves the image."""

    width: int
    depth: int
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for at in range(self.depth):
            c = self.width * 2**at
            conv = lambda size, stride, c=c: nn.Conv(  # noqa: E731
                c, (size, size), (stride, stride), use_bias=False, dtype=self.dtype
            )
            y = nn.relu(nn.GroupNorm(8, dtype=self.dtype)(conv(3, 1)(x)))
            y = nn.GroupNorm(8, dtype=self.dtype)(conv(3, 2)(y))
            x = nn.relu(conv(1, 2)(x) + y)
        return nn.Dense(10)(x.mean((1, 2)))


class Layer(nn.Module):
    """A layer of a Transformer, its attention as flax writes it."""

    heads: int
    dtype: Any
    causal: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        mask = nn.make_causal_mask(x[..., 0]) if self.causal else None
        attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)
        x = x + attention(nn.LayerNorm(dtype=self.dtype)(x), mask=mask)
        h = nn.Dense(4 * x.shape[-1], dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
        return x + nn.Dense(x.shape[-1], dtype=self.dtype)(nn.gelu(h))


class Vit(nn.Module):
    """Patches of an image through a Transformer."""

    width: int
    depth: int
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x: Array) -> Array:
        patches = nn.Conv(self.width, (16, 16), (16, 16), padding="VALID", dtype=self.dtype)(x)
        x = patches.reshape(x.shape[0], -1, self.width)
        x = x + self.param("places", nn.initializers.normal(), (1, x.shape[1], self.width))
        for _ in range(self.depth):
            x = Layer(self.width // 64, self.dtype)(x)
        return nn.Dense(10, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x).mean(1))


class Lstm(nn.Module):
    """A recurrent layer: a loop of small products."""

    width: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.RNN(nn.OptimizedLSTMCell(self.width))(nn.Embed(1000, self.width)(x))
        return nn.Dense(1000)(x)
