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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hybridperf_calibration.training_steps import TrainingStep, check_sizes

LEARNING_RATE = 0.05
DTYPES = ("float32", "bfloat16", "float16")

Dense = dict[
    str, list[tuple[jax.Array, jax.Array]]
]  # "bottom", "top": a list of (weight [in, out], bias [out])


@dataclass(frozen=True)
class DlrmConfig:
    """Sizes of the model and its batch; the defaults are small enough for one CPU core."""

    batch: int = 256
    dense_features: int = 13
    tables: int = 8
    rows_per_table: int = 100_000
    embedding_dim: int = 32
    pooling: int = 4
    # the last width is embedding_dim: x is interacted with the bags
    bottom_mlp: tuple[int, ...] = (128, 64, 32)
    top_mlp: tuple[int, ...] = (128, 64, 1)  # the last width is 1: the logit
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")
        if self.bottom_mlp[-1] != self.embedding_dim:
            raise ValueError(
                f"bottom_mlp must end in embedding_dim ({self.embedding_dim}) for the interaction,"
                f" got {self.bottom_mlp[-1]}."
            )
        if self.top_mlp[-1] != 1:
            raise ValueError(f"top_mlp must end in 1 (the logit), got {self.top_mlp[-1]}.")

    @property
    def interaction_width(self) -> int:
        """Width of the top MLP's input: x and a dot product per pair of T + 1 vectors."""
        return self.embedding_dim + (self.tables + 1) * self.tables // 2


def build(config: DlrmConfig, seed: int = 0, batches: int = 1) -> TrainingStep:
    """The step, its parameters and tables, and batches of (dense features, row indices, labels)."""
    rng = np.random.default_rng(seed)
    dense = {
        "bottom": _mlp_parameters(rng, (config.dense_features, *config.bottom_mlp), config.dtype),
        "top": _mlp_parameters(rng, (config.interaction_width, *config.top_mlp), config.dtype),
    }
    table_shape = (config.rows_per_table, config.embedding_dim)
    tables = [
        _uniform(rng, table_shape, config.rows_per_table**-0.5, config.dtype)
        for _ in range(config.tables)
    ]
    data = tuple(_random_batch(rng, config) for _ in range(batches))
    return TrainingStep(
        name=(
            f"dlrm batch {config.batch}, {config.tables} tables of {config.rows_per_table} x"
            f" {config.embedding_dim}"
        ),
        fn=train_step,
        args=(dense, tables, *data[0]),
        donate_argnums=(0, 1),
        batches=data,
    )


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
    dense = jax.tree.map(
        lambda value, gradient: value - LEARNING_RATE * gradient, dense, dense_gradient
    )
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
    x = _mlp(dense["bottom"], features, relu_at_end=True)
    logits = _mlp(dense["top"], interact(x, bags), relu_at_end=False)[:, 0]
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


def _mlp(
    layers: list[tuple[jax.Array, jax.Array]], x: jax.Array, *, relu_at_end: bool
) -> jax.Array:
    for number, (weight, bias) in enumerate(layers, start=1):
        x = x @ weight + bias
        if number < len(layers) or relu_at_end:
            x = jax.nn.relu(x)
    return x


def _mlp_parameters(
    rng: np.random.Generator, widths: tuple[int, ...], dtype: str
) -> list[tuple[jax.Array, jax.Array]]:
    """He initialisation: deviation sqrt(2 / inputs) keeps the size of activations."""
    return [
        (
            jnp.asarray(
                rng.standard_normal((inputs, outputs), dtype=np.float32) * (2 / inputs) ** 0.5,
                dtype,
            ),
            jnp.zeros(outputs, dtype),
        )
        for inputs, outputs in itertools.pairwise(widths)
    ]


def _uniform(
    rng: np.random.Generator, shape: tuple[int, ...], bound: float, dtype: str
) -> jax.Array:
    values: Any = rng.random(shape, dtype=np.float32)
    values *= 2 * bound  # in place: a table may be a large part of the memory
    values -= bound
    return jnp.asarray(values, dtype)
