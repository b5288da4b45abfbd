"""Descent from many starts at once: Adam on an augmented Lagrangian, in the unit cube.

    L(u) = f(u) + sum_c (max(0, m_c + w g_c(u))^2 - m_c^2) / 2 w

with multipliers m and weight w, and without the max for an equality.

After each round of steps m <- max(0, m + w g) and w doubles. Steps shrink all the way, and with
them the zigzag about corners, where the gradient jumps; what is left of it the polish takes away.
The loop is Python's and only the slopes are compiled, the same as the polish asks for: learned
corrections take long to compile, and a step takes a millisecond either way. Axes: S starts, T steps
in all.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax

from hybridperf.explore.searches.problem import FREE, PointSlopes, SearchProblem

FEASIBLE = 1e-6  # of logs: what still counts as met on the way
_FIRST_STEP, _LAST_STEP = 0.08, 5e-4  # of the cube's side
_FIRST_WEIGHT, _WEIGHT_GROWTH = 10.0, 2.0
_MOST_PRESSED = 1e3  # multipliers beyond are of constraints that cannot be met
_ROUNDS, _STEPS = 6, 40  # of the multipliers, of descent in each
_WORST = 1e12


@dataclasses.dataclass(frozen=True)
class DescentResult:
    """Where S starts came to, and the path of each."""

    u: np.ndarray  # [S, K] the best point that each saw
    f: np.ndarray  # [S] there
    violation: np.ndarray  # [S] the largest of g there
    path_f: np.ndarray  # [T, S] on the way
    path_violation: np.ndarray  # [T, S]


def violation(at: PointSlopes, equal: np.ndarray) -> np.ndarray:
    """Largest distance from holding [B]: 0 where all constraints hold, huge for no number."""
    numbers = np.isfinite(at.f) & np.isfinite(at.g).all(1)
    return np.where(numbers, np.where(equal, np.abs(at.g), at.g).max(1, initial=0.0), _WORST)


def descend(problem: SearchProblem, starts: np.ndarray) -> DescentResult:
    """Gradient descent from starts [S, K] in the unit cube, conditions as penalties."""
    equal, steps = problem.equal, _ROUNDS * _STEPS
    rate = optax.exponential_decay(_FIRST_STEP, steps, _LAST_STEP / _FIRST_STEP)
    adam = optax.chain(optax.scale_by_adam(b1=0.8, b2=0.95), optax.scale_by_learning_rate(rate))
    update = jax.jit(adam.update)
    u, state = starts.copy(), adam.init(starts)
    pressed = np.zeros((len(starts), len(equal)))
    best_u, best_f = starts.copy(), np.full(len(starts), _WORST)
    best_violation = best_f.copy()
    path_f, path_violation = [], []
    for number in range(steps):
        weight = _FIRST_WEIGHT * _WEIGHT_GROWTH ** (number // _STEPS)
        at = problem.slopes(u, FREE)
        worst = violation(at, equal)
        f = np.where(worst < _WORST, at.f, _WORST)
        both = (worst <= FEASIBLE) & (best_violation <= FEASIBLE)
        better = np.where(both, f < best_f, worst < best_violation)
        best_u[better], best_f[better], best_violation[better] = u[better], f[better], worst[better]
        path_f.append(f)
        path_violation.append(worst)
        if number % _STEPS == 0 and number:
            force = _force(pressed, weight / _WEIGHT_GROWTH, at.g, equal)
            pressed = np.clip(force, -_MOST_PRESSED, _MOST_PRESSED)
        slope = at.df + (_force(pressed, weight, at.g, equal)[:, :, None] * at.dg).sum(1)
        change, state = update(np.where(np.isfinite(slope), slope, 0.0), state)
        u = np.clip(u + np.asarray(change), 0, 1)
    return DescentResult(best_u, best_f, best_violation, np.stack(path_f), np.stack(path_violation))


def _force(pressed: np.ndarray, weight: float, g: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """How hard each constraint pushes back [S, C]."""
    force = pressed + weight * np.where(np.isfinite(g), g, 0.0)
    return np.where(equal, force, np.maximum(0.0, force))
