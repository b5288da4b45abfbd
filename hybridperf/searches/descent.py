"""Descent from many starts at once: Adam on an augmented Lagrangian, in the unit cube, all rounds in one compiled loop.

    L(u) = f(u) + sum_c (max(0, m_c + w g_c(u))^2 - m_c^2) / 2 w             multipliers m, weight w; no max for an equality

After each round of steps m <- max(0, m + w g) and w doubles. Steps shrink all the way, and with them the zigzag about corners, where the
gradient jumps; what is left of it the polish takes away. Axes: S starts, T steps in all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hybridperf.searches.problem import Problem

FEASIBLE = 1e-6  # of logs: what still counts as met on the way
_FIRST_STEP, _LAST_STEP = 0.08, 5e-4  # of the cube's side
_FIRST_WEIGHT, _WEIGHT_GROWTH = 10.0, 2.0
_ANNEALING = 0.4  # of the temperature in each round; the last round is exact enough
_WORST = 1e12


@dataclasses.dataclass(frozen=True)
class Descended:
    """Where the starts came to."""

    u: np.ndarray  # [S, K] the best point that each saw
    f: np.ndarray  # [S] there
    violation: np.ndarray  # [S] the largest of g there
    path_f: np.ndarray  # [T, S] on the way
    path_violation: np.ndarray  # [T, S]


def violation(g: Any, equal: np.ndarray, xp: Any = np) -> Any:
    """The largest distance from holding [...], zero where all constraints hold."""
    if not len(equal):
        return xp.zeros(g.shape[:-1])
    return xp.maximum(0.0, xp.where(equal, xp.abs(g), g).max(-1))


def descend(problem: Problem, starts: np.ndarray, held: np.ndarray) -> Descended:
    """From starts [S, K]; knobs that are not FREE in `held` [K] stay."""
    method = problem.spec.method
    problem.evaluations += len(starts) * method.rounds * method.steps
    u, f, worst, path_f, path_worst = _descend(problem)(starts, held)
    return Descended(*(np.asarray(part) for part in (u, f, worst)), *(np.asarray(part).T for part in (path_f, path_worst)))


def _descend(problem: Problem) -> Any:
    method, equal, merit = problem.spec.method, problem.equal, problem.merit()
    steps = method.rounds * method.steps
    schedule = optax.exponential_decay(_FIRST_STEP, steps, _LAST_STEP / _FIRST_STEP)
    adam = optax.chain(optax.scale_by_adam(b1=0.8, b2=0.95), optax.scale_by_learning_rate(schedule))

    def one_start(start: Any, held: Any) -> Any:
        def step(carry: Any, number: Any) -> Any:
            u, state, multipliers, best = carry
            this_round = number // method.steps
            weight = _FIRST_WEIGHT * _WEIGHT_GROWTH**this_round
            temperature = None if method.smoothing is None else method.smoothing * _ANNEALING**this_round
            (_, (f, g)), slope = jax.value_and_grad(merit, has_aux=True)(u, held, multipliers, weight, temperature)
            worst = violation(g, equal, jnp)
            numbers = jnp.isfinite(f) & jnp.isfinite(worst)
            f, worst = jnp.where(numbers, f, _WORST), jnp.where(numbers, worst, _WORST)
            better = jnp.where(
                (worst <= FEASIBLE) & (best[2] <= FEASIBLE),
                f < best[1],
                worst < best[2],
            )
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (u, f, worst), best)
            change, state = adam.update(jnp.where(jnp.isfinite(slope) & jnp.isnan(held), slope, 0.0), state)
            pressed = multipliers + weight * jnp.where(jnp.isfinite(g), g, 0.0)
            pressed = jnp.where(equal, pressed, jnp.maximum(0, pressed))
            at_end = (number + 1) % method.steps == 0
            multipliers = jnp.where(at_end, jnp.clip(pressed, -1e3, 1e3), multipliers)
            return (jnp.clip(u + change, 0, 1), state, multipliers, best), (f, worst)

        best = start, jnp.float64(_WORST), jnp.float64(_WORST)
        carry = start, adam.init(start), jnp.zeros(len(equal)), best
        (_, _, _, best), path = jax.lax.scan(step, carry, jnp.arange(steps))
        return (*best, *path)

    return jax.jit(jax.vmap(one_start, in_axes=(0, None)))
