"""Ensembles of small networks trained on the log of measured over closed form.

All members train at once in one compiled function. Each sees some of several sets of rows (devices,
or the folds of one device's rows), every set counting the same however many rows it has. Loss:
pseudo-Huber in units of `LOSS_SCALE`, next to what the recipe adds.

Axes: N rows, d inputs, E members.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.io.later import optax
from hybridperf.io.namespace import SOONER_COMPILED
from hybridperf.learning.ensemble import BOUND, network, output

LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly
_LEAST_STORED = 4096


@dataclasses.dataclass(frozen=True)
class TrainingRecipe:
    """How an ensemble is trained; what the compiled function depends on."""

    steps: int = 3000
    learning_rate: float = 3e-3
    batch: int = 1024
    anchor: float = 0.0  # pull of weights towards where they started
    width: int = 64  # of both layers
    decay: float = 1e-4  # of weights; none where they are anchored
    input_noise: float = 0.0  # standard deviations, on inputs that vary
    lasso: float = 0.0  # on the weights of each input together, so that useless ones go silent


def train(
    datasets: Sequence[tuple[np.ndarray, np.ndarray]], sees: np.ndarray, recipe: TrainingRecipe,
    seed: int, start: Any = None,
) -> Any:  # fmt: skip
    """Weights of E networks, every leaf [E, ...].

    Args:
        datasets: (x [N, d], target [N]) of each set of rows.
        sees: bool [E, datasets], which of them a member sees: each step draws rows of all of these
            alike.
        recipe: how they are trained.
        seed: of draws and first weights.
        start: weights to go on from.
    """
    counts = np.array([len(target) for _, target in datasets])
    first = np.cumsum(counts) - counts
    # a power of two: families of about a size, and all small ones, share a compiled function
    stored = max(1 << (int(counts.sum()) - 1).bit_length(), _LEAST_STORED)
    x = np.zeros((stored, datasets[0][0].shape[1]), np.float32)
    target = np.zeros(stored, np.float32)
    x[: counts.sum()] = np.concatenate([inputs for inputs, _ in datasets])
    target[: counts.sum()] = np.concatenate([wanted for _, wanted in datasets]).clip(-BOUND, BOUND)
    random = np.random.default_rng(seed)
    # drawn here: in the compiled step it costs 5 s to compile
    drawn = np.empty((len(sees), recipe.steps, recipe.batch), np.int32)
    for rows, seen in zip(drawn, sees, strict=True):
        which = random.choice(np.flatnonzero(seen), rows.shape)
        rows[:] = first[which] + random.integers(0, counts[which])
    if start is None:
        start = _first_weights(recipe.width, x.shape[1])(
            jax.random.split(jax.random.key(seed), len(sees))
        )
    params = _train(start, x, target, drawn, recipe) if recipe.steps else start
    return jax.tree.map(np.asarray, params)


@functools.cache
def _first_weights(width: int, inputs: int) -> Any:
    """Weights by keys [E], the same to the bit however they are compiled: op by op takes 2 s."""
    net, empty = network(width, BOUND), jnp.zeros((1, inputs))
    options = SOONER_COMPILED | {"xla_backend_optimization_level": 1}
    start = jax.vmap(lambda key: net.init(key, empty)["params"])
    return jax.jit(start, compiler_options=options)


@functools.partial(jax.jit, static_argnames="recipe")
def _train(
    start: Any, x: jax.Array, target: jax.Array, drawn: jax.Array, recipe: TrainingRecipe
) -> Any:
    schedule = optax.cosine_decay_schedule(recipe.learning_rate, recipe.steps)
    adamw = optax.adamw(schedule, weight_decay=0.0 if recipe.anchor else recipe.decay)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    noise = recipe.input_noise * jnp.any(x != 0, axis=0)

    def one(start: Any, drawn: jax.Array, member: jax.Array) -> Any:
        def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
            error = (output(params, BOUND, x) - target) / LOSS_SCALE
            found = jnp.mean(jnp.sqrt(1 + error**2) - 1)
            if recipe.lasso:
                of_input = jnp.sum(params["first"]["kernel"] ** 2, axis=1)
                found += recipe.lasso * jnp.sum(jnp.sqrt(of_input + 1e-6))
            pairs = zip(jax.tree.leaves(params), jax.tree.leaves(start), strict=True)
            return found + recipe.anchor * sum(jnp.sum((a - b) ** 2) for a, b in pairs)

        def step(state: Any, seen: Any) -> tuple[Any, None]:
            (params, memory), (row, key) = state, seen
            inputs = x[row]
            if recipe.input_noise:
                inputs += noise * jax.random.normal(key, inputs.shape)
            gradient = jax.grad(loss)(params, inputs, target[row])
            updates, memory = optimizer.update(gradient, memory, params)
            return (optax.apply_updates(params, updates), memory), None

        keys = None
        if recipe.input_noise:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(0), member), len(drawn))
        (params, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), (drawn, keys))
        return params

    return jax.vmap(one)(start, drawn, jnp.arange(len(drawn)))
