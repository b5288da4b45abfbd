"""One training step of a deep learning recommendation model (DLRM, Naumov et al. 2019,
arXiv:1906.00091).

    dense features [B, dense] -> bottom MLP -> x [B, D] sparse features [T, B, P] -> T embedding
    bags: gather P rows of [rows, D], sum -> e_t [B, D] interaction: dot products of all pairs among
    x, e_1 .. e_T (lower triangle), beside x -> [B, D + (T+1)T/2] top MLP -> logit [B] -> binary
    cross-entropy

B batch, T tables, P pooling (lookups per bag), D embedding dimension. Backward, then SGD: dense on
the MLPs and **sparse** on the tables. A bag is a sum, so all its P rows have the bag's gradient; it
is scattered onto these rows and the other rows are never touched. Tables are separate, donated
arrays, so the scatter happens in place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from hybridperf_calibration.training_steps import STRICT, TrainingStep, Widths

LEARNING_RATE = 0.05

Layers = list[tuple[jax.Array, jax.Array]]  # (weight [in, out], bias [out])
Dense = dict[str, Layers]  # "bottom", "top"


@dataclass(frozen=True, config=STRICT)
class DlrmConfig:
    """Sizes of the model and its batch; the defaults are small enough for one CPU core."""

    batch: PositiveInt = 256
    dense_features: PositiveInt = 13
    tables: PositiveInt = 8
    rows_per_table: PositiveInt = 100_000
    embedding_dim: PositiveInt = 32
    pooling: PositiveInt = 4
    # the last width is embedding_dim: x is interacted with the bags
    bottom_mlp: Widths = (128, 64, 32)
    top_mlp: Widths = (128, 64, 1)  # the last width is 1: the logit
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def __post_init__(self) -> None:
        if self.bottom_mlp[-1] != self.embedding_dim:
            wanted = f"embedding_dim ({self.embedding_dim}) for the interaction"
            raise ValueError(f"bottom_mlp must end in {wanted}, got {self.bottom_mlp[-1]}.")
        if self.top_mlp[-1] != 1:
            raise ValueError(f"top_mlp must end in 1 (the logit), got {self.top_mlp[-1]}.")

    @property
    def interaction_width(self) -> int:
        """Width of the top MLP's input: x and a dot product per pair of T + 1 vectors."""
        return self.embedding_dim + (self.tables + 1) * self.tables // 2


_MOST_BATCHES = 128


def build(config: DlrmConfig, seed: int = 0, batches: int = 1) -> TrainingStep:
    """The step, its parameters and tables, and batches of (dense features, row indices, labels): as
    many as look about all rows up before the first comes again, as training does.
    """
    rng = np.random.default_rng(seed)
    if batches > 1:
        whole = math.ceil(2 * config.rows_per_table / (config.batch * config.pooling))
        batches = min(max(batches, whole), _MOST_BATCHES)
    dense = {
        "bottom": _mlp_parameters(rng, (config.dense_features, *config.bottom_mlp), config.dtype),
        "top": _mlp_parameters(rng, (config.interaction_width, *config.top_mlp), config.dtype),
    }
    table_shape = (config.rows_per_table, config.embedding_dim)
    bound = config.rows_per_table**-0.5
    made = (uniform(rng, table_shape, bound) for _ in range(config.tables))
    tables = [jnp.asarray(values, config.dtype) for values in made]
    data = tuple(_random_batch(rng, config) for _ in range(batches))
    size = f"{config.rows_per_table} x {config.embedding_dim}"
    name = f"dlrm batch {config.batch}, {config.tables} tables of {size}"
    return TrainingStep(name, train_step, (dense, tables, *data[0]), (0, 1), data)


def train_step(
    dense: Dense, tables: list[jax.Array], features: jax.Array, rows: jax.Array, labels: jax.Array
) -> tuple[Dense, list[jax.Array], jax.Array]:
    """New dense parameters, new tables, loss before the update."""
    bags = [embedding_bag(table, rows[t]) for t, table in enumerate(tables)]
    # Differentiated with respect to the bags [B, D], not the tables: a table's gradient would be as
    # large as the table.
    loss, (dense_gradient, bag_gradients) = jax.value_and_grad(loss_of_bags, argnums=(0, 1))(
        dense, bags, features, labels
    )
    dense = jax.tree.map(lambda value, slope: value - LEARNING_RATE * slope, dense, dense_gradient)
    tables = [
        sparse_sgd(table, rows[t], gradient)
        for t, (table, gradient) in enumerate(zip(tables, bag_gradients, strict=True))
    ]
    return dense, tables, loss


def embedding_bag(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Sums [B, D] of the `rows` [B, P] of a table."""
    return table[rows].sum(axis=1)


def sparse_sgd(table: jax.Array, rows: jax.Array, bag_gradient: jax.Array) -> jax.Array:
    """The table after SGD on looked-up `rows` [B, P] with their bags' gradients [B, D]."""
    batch, pooling = rows.shape
    per_lookup = jnp.broadcast_to(bag_gradient[:, None, :], (batch, pooling, table.shape[1]))
    return table.at[rows].add(-LEARNING_RATE * per_lookup)


def loss_of_bags(
    dense: Dense, bags: list[jax.Array], features: jax.Array, labels: jax.Array
) -> jax.Array:
    """Mean binary cross-entropy of a batch whose embedding bags are looked up already."""
    x = mlp(dense["bottom"], features, relu_at_end=True)
    logits = mlp(dense["top"], interact(x, bags), relu_at_end=False)[:, 0]
    return optax.sigmoid_binary_cross_entropy(logits.astype(jnp.float32), labels).mean()


def interact(x: jax.Array, bags: list[jax.Array]) -> jax.Array:
    """`x` [B, D] beside the dot products of all pairs among x and the bags."""
    vectors = jnp.stack([x, *bags], axis=1)
    products = jnp.einsum("bid,bjd->bij", vectors, vectors)
    # NumPy: constants of the program, nothing to compute
    first, second = np.tril_indices(len(bags) + 1, k=-1)
    return jnp.concatenate([x, products[:, first, second]], axis=1)


def _random_batch(
    rng: np.random.Generator, config: DlrmConfig
) -> tuple[jax.Array, jax.Array, jax.Array]:
    features = rng.standard_normal((config.batch, config.dense_features), dtype=np.float32)
    rows = rng.integers(0, config.rows_per_table, (config.tables, config.batch, config.pooling))
    labels = rng.integers(0, 2, config.batch)
    return (
        jnp.asarray(features, config.dtype),
        jnp.asarray(rows, jnp.int32),
        jnp.asarray(labels, jnp.float32),
    )


def mlp(layers: Layers, x: jax.Array, *, relu_at_end: bool) -> jax.Array:
    """Layers on `x` [B, in], with ReLU between them."""
    for number, (weight, bias) in enumerate(layers, start=1):
        x = x @ weight + bias
        if number < len(layers) or relu_at_end:
            x = jax.nn.relu(x)
    return x


def _mlp_parameters(rng: np.random.Generator, widths: tuple[int, ...], dtype: str) -> Layers:
    return [
        (jnp.asarray(weight, dtype), jnp.zeros(weight.shape[1], dtype))
        for weight in he_weights(rng, widths)
    ]


def he_weights(rng: np.random.Generator, widths: Sequence[int]) -> Iterator[np.ndarray]:
    """Weights [in, out] of layers: deviation sqrt(2 / in) keeps the size of activations."""
    for inputs, outputs in itertools.pairwise(widths):
        yield rng.standard_normal((inputs, outputs), dtype=np.float32) * (2 / inputs) ** 0.5


def uniform(rng: np.random.Generator, shape: tuple[int, ...], bound: float) -> np.ndarray:
    """Numbers between -bound and bound, float32."""
    values = rng.random(shape, dtype=np.float32)
    values *= 2 * bound  # in place: a table may be a large part of the memory
    values -= bound
    return values
