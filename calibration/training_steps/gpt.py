"""One training step of a decoder-only transformer (GPT-2 layout, pre-LN), in Flax Linen with
optax.adam.

    tokens [B, S] -> token embedding + learned position -> L blocks -> layer norm -> logits by the
    transposed embedding block: x + attention(ln(x)), then x + mlp(ln(x)); attention is causal, the
    MLP is GELU with mlp_ratio x width hidden

B batch, S sequence, W width, H heads of W/H. The attention is written out (scores, mask, softmax,
weighted sum), because its prediction is made of these ops. Parameters and optimizer state are
donated.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from hybridperf_calibration.training_steps import STRICT, TrainingStep

LEARNING_RATE = 1e-3
INITIAL_SCALE = 0.02  # standard deviation of weights, as in GPT-2


@dataclass(frozen=True, config=STRICT)
class GptConfig:
    """Sizes of the model and its batch; the defaults are small enough for one CPU core."""

    batch: PositiveInt = 4
    seq: PositiveInt = 128
    width: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    vocab: PositiveInt = 1024
    mlp_ratio: PositiveInt = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            got = f"got width {self.width} and {self.heads} heads"
            raise ValueError(f"width must be a multiple of heads, {got}.")


class Gpt(nn.Module):
    """Token logits [B, S, vocab]; each depends on its own and earlier tokens only."""

    config: GptConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        embed = nn.Embed(config.vocab, config.width, name="tokens")
        start = nn.initializers.normal(INITIAL_SCALE)
        positions = self.param("positions", start, (config.seq, config.width))
        x = embed(tokens) + positions[: tokens.shape[1]]
        for _ in range(config.layers):
            x = x + CausalAttention(config.heads)(nn.LayerNorm()(x))
            x = x + Mlp(config.mlp_ratio)(nn.LayerNorm()(x))
        return embed.attend(nn.LayerNorm()(x))  # tied head: the embedding, transposed


class CausalAttention(nn.Module):
    """Multi-head attention of each position to itself and the positions before it."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, seq, width = x.shape
        head_dim = width // self.heads
        qkv = nn.Dense(3 * width, name="qkv")(x).reshape(batch, seq, 3, self.heads, head_dim)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * head_dim**-0.5
        causal = np.tril(np.ones((seq, seq), bool))  # NumPy: a constant of the program
        weights = jax.nn.softmax(jnp.where(causal, scores, jnp.finfo(scores.dtype).min), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, seq, width)
        return nn.Dense(width, name="out")(mixed)


class Mlp(nn.Module):
    """Two matrices with GELU between them."""

    ratio: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.gelu(nn.Dense(self.ratio * x.shape[-1], name="up")(x))
        return nn.Dense(x.shape[-1], name="down")(hidden)


def build(config: GptConfig, seed: int = 0, batches: int = 1) -> TrainingStep:
    """The step, its state (parameters, Adam's) and batches of random tokens [B, S + 1]."""
    rng = np.random.default_rng(seed)
    model = Gpt(config)
    optimizer = optax.adam(LEARNING_RATE)
    token_shape = (config.batch, config.seq + 1)
    drawn = (rng.integers(0, config.vocab, token_shape) for _ in range(batches))
    data = tuple((jnp.asarray(tokens, jnp.int32),) for tokens in drawn)
    params = initial_parameters(model, rng)

    def train_step(
        params: Any, optimizer_state: Any, tokens: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, loss

    layers = f"{config.layers} layers of width {config.width}"
    name = f"gpt batch {config.batch} x {config.seq}, {layers}"
    args = (params, optimizer.init(params), *data[0])
    return TrainingStep(name, train_step, args, (0, 1), data)


def initial_parameters(model: Gpt, rng: np.random.Generator) -> Any:
    """The model's "params", filled by NumPy: Flax's own initialisation compiles long."""
    one_sequence = jax.ShapeDtypeStruct((1, model.config.seq), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), one_sequence)["params"]

    def fill(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        if name == "bias":
            return jnp.zeros(leaf.shape, leaf.dtype)
        if name == "scale":  # of a layer norm
            return jnp.ones(leaf.shape, leaf.dtype)
        drawn = rng.standard_normal(leaf.shape, dtype=np.float32)
        return jnp.asarray(INITIAL_SCALE * drawn, leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)
