"""Training steps of JAX of a user's own kinds, at sizes of one CPU core: two convolutional
networks, two vision transformers, two LSTMs, two graph networks; in float32, 5 to 150 ms each on a
slow core.

Each is a function that returns what `predict --jax` takes, (fn, args, donate_argnums). The nets are
those that GPUs ran (`gpu_jax_steps.py`); no size is a calibration case's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hybridperf.validate.gpu_jax_steps import Array, Cnn, Lstm, Residual, Vit, classified, training

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
