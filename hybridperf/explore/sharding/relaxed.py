"""A placement that has a gradient: each table spread over ranks by a softmax, cooled down to one.

    w_t = softmax(z_t / temperature)     sums_r = sum_t w_tr table_t
    loss = log step(sums) + excess of memory

The sums a rank's cost is made of are linear in w, so every placement between placements has a cost.
Maxima are p-norms whose p grows while the temperature falls: at first every rank counts, at the end
the slowest. Many starts descend together by Adam; what each comes to is rounded to the rank with
the most of a table.

Axes: S starts, T tables, R ranks.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hybridperf.explore.sharding.cost import MEMORY, PlacementCost
from hybridperf.io.namespace import fresh_views
from hybridperf.model import canonical

STEPS = 250
_RATE = 0.15
_TEMPERATURE = 1.0, 0.1  # first, last
_POWER = 6.0, 60.0
_OVER = 10.0  # of memory beyond the limit
_SPREAD = 0.3  # of first logits
_LEAN = 1.0  # towards a placement to start from


def descend(
    cost: PlacementCost, starts: int, near: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Rounded placements [S, T] of `starts` descents, half of which begin close to `near` [T]."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, _SPREAD, (starts, len(cost.tables), cost.ranks))
    if near is not None:
        logits[: (starts + 1) // 2, np.arange(len(near)), near] += _LEAN
    return np.asarray(_descended(*canonical((cost, logits)))).argmax(-1)


def loss(cost: PlacementCost, logits: Any, temperature: Any, power: Any) -> Any:
    """Of one start, logits [T, R]."""
    cost = fresh_views(cost)
    weights = jax.nn.softmax(logits / temperature, -1)
    sums = jnp.matmul(weights.T, cost.tables, precision=jax.lax.Precision.HIGHEST)

    def most(values: Any) -> Any:
        top = jax.lax.stop_gradient(values.max(-1))
        safe = jnp.where(top > 0, top, 1.0)
        return safe * jnp.sum((values / safe[..., None] + 1e-12) ** power, -1) ** (1 / power)

    over = jnp.maximum(sums[:, MEMORY] / cost.limit_bytes - 1, 0)
    return jnp.log(cost.of_ranks(sums, most, jnp).step_s) + _OVER * over.sum()


@jax.jit
def _descended(cost: PlacementCost, logits: Any) -> Any:
    adam = optax.adam(_RATE)
    slope = jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, None, None))

    def step(carry: Any, at: Any) -> Any:
        here, state = carry
        done = at / (STEPS - 1)
        temperature, power = (
            first * (last / first) ** done for first, last in (_TEMPERATURE, _POWER)
        )
        change, state = adam.update(slope(cost, here, temperature, power), state)
        return (optax.apply_updates(here, change), state), None

    numbers = jnp.arange(STEPS, dtype=logits.dtype)
    (ended, _), _ = jax.lax.scan(step, (logits, adam.init(logits)), numbers)
    return ended
