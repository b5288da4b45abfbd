"""From near an optimum to it, where gradients jump: linear programmes over cuts near by.

Optima of models made of maxima sit in corners, where several ops or constraints are equal; one
gradient shows one side of a corner only. A cut f(y) + f'(y) (x - y) from each of several points y
around shows all sides of the corner at once. The step p from x solves

    min t + w sum(s)    t >= every cut of f at x + p,   s_c >= every cut of g_c at x + p,   s >= 0,
                        |p| <= radius,   0 <= x + p <= 1

and is taken if the exact f + w sum(max(0, g)) falls by a part of what was promised; else the region
halves and newer cuts are nearer. Cuts that lie above the value at x are lowered to it (the function
curves the other way there). In logs, where most models are convex, the cuts never lie above the
function and the method ends at the exact optimum; elsewhere at a local one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import linprog, nnls

from hybridperf.explore.searches.problem import PointSlopes, SearchProblem

MARGIN = 1e-8  # constraints are kept by so much more than asked: rounding must not break them
EQUAL = 1e-6  # logs: no nearer can two sides be asked to be
_FIRST_RADIUS, _LAST_RADIUS, _LARGEST_RADIUS = 0.05, 1e-9, 0.3
_MOST_ROUNDS = 120
_FIRST_WEIGHT, _MOST_WEIGHT = 10.0, 1e7
_REACH = 3.0  # radii: cuts from farther away are forgotten
_MOST_CUTS = 8  # times (knobs + 1)
# whose gradient it is, besides constraints by number; of the k-th knob's bound: k less
_OBJECTIVE, _BOUND = -1, -2
_ACTIVE = 1e-4  # logs: nearer to its limit than that a constraint may hold us back
_AT_END = 1e-6  # of a cube's side
_NEAR = 1e-7  # of a cube's side: where the sides of the optimum's corner are taken


@dataclasses.dataclass(frozen=True)
class Optimum:
    """An optimum, its multipliers and the path to it."""

    u: np.ndarray  # [K]
    held: np.ndarray  # [K] what whole numbers are held at, FREE elsewhere
    f: float
    g: np.ndarray  # [C]
    violation: float  # by which constraints are missed, in all
    path_f: tuple[float, ...]  # by round
    path_violation: tuple[float, ...]


def excess(g: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """How far each constraint is from holding [..., C], the margin counted."""
    return np.where(equal, np.abs(g), np.maximum(0.0, g + MARGIN))


def polish(
    problem: SearchProblem, start: np.ndarray, held: np.ndarray, *, radius: float = _FIRST_RADIUS,
    seed: int = 0,
) -> Optimum:  # fmt: skip
    """The optimum near a start [K] on the exact functions; knobs fixed in `held` [K] stay."""
    free = np.isnan(held)
    equal, weight = problem.equal, _FIRST_WEIGHT
    rng = np.random.default_rng(seed)
    x = np.clip(np.asarray(start, np.float64), 0, 1)
    cuts = _CuttingPlanes(problem, held)
    cuts.add(_around(x, radius, free, rng))
    f, g = cuts.first()
    path: list[tuple[float, float]] = [(f, float(excess(g, equal).max(initial=0)))]
    if not free.any():
        return _polished(x, held, f, g, equal, path)
    for _ in range(_MOST_ROUNDS):
        step, promised, short = cuts.step(x, f, g, radius, weight, free)
        # is a constraint out of reach, or only weighted too little to be kept?
        while short > MARGIN and weight < _MOST_WEIGHT:
            heavier = cuts.step(x, f, g, radius, 10 * weight, free)
            if heavier[2] > 0.9 * short:
                break
            weight, (step, promised, short) = 10 * weight, heavier
        candidate = np.clip(x + step, 0, 1)
        cuts.add(_around(candidate, radius, free, rng))
        new_f, new_g = cuts.first()
        now = f + weight * excess(g, equal).sum()
        then = new_f + weight * excess(new_g, equal).sum()
        gained = now - then
        if np.isfinite(then) and gained > 0.1 * promised and gained > 0:
            moved = np.abs(candidate - x).max()
            x, f, g = candidate, new_f, new_g
            if moved > 0.9 * radius and gained > 0.5 * promised:
                radius = min(2 * radius, _LARGEST_RADIUS)
            radius = radius / 2 if promised < 1e-13 else radius
        else:
            radius /= 4 if promised < 1e-12 else 2
        path.append((f, float(excess(g, equal).max(initial=0))))
        if radius < _LAST_RADIUS:
            break
    return _polished(x, held, f, g, equal, path)


def multipliers(problem: SearchProblem, optimum: Optimum) -> tuple[np.ndarray, np.ndarray]:
    """Worth of limits: d f / d g of each constraint [C], d f / d u of each bound [K].

    The weights with which the gradients of active constraints and of the cube's sides, at all sides
    of the corner, balance those of the objective. A larger g or a bound farther up in u.
    """
    free, active = np.isnan(optimum.held), np.abs(optimum.g) <= _ACTIVE
    worth, of_bounds = np.zeros(len(problem.equal)), np.zeros(len(free))
    upper, lower = optimum.u > 1 - _AT_END, optimum.u < _AT_END
    ends = [(k, 1.0) for k in np.flatnonzero(free & upper)]
    ends += [(k, -1.0) for k in np.flatnonzero(free & lower)]
    if not free.any() or not (active.any() or ends):
        return worth, of_bounds
    rng = np.random.default_rng(1)
    at = problem.slopes(_around(optimum.u, _NEAR, free, rng, 4), optimum.held)
    columns = [slope[free] for slope in at.df]
    owners, signs = [_OBJECTIVE] * len(at.df), [1.0] * len(at.df)
    for c in np.flatnonzero(active):
        for sign in (1.0, -1.0) if problem.equal[c] else (1.0,):
            columns += [sign * slope[free] for slope in at.dg[:, c]]
            owners += [int(c)] * len(at.dg)
            signs += [sign] * len(at.dg)
    for k, side in ends:  # bounds push back too
        columns.append(side * np.eye(len(free))[k][free])
        owners.append(_BOUND - int(k))
        signs.append(-side)  # an upper one farther up gives room
    matrix, owner = np.stack(columns, 1), np.array(owners)
    heavy = 1e3 * max(1.0, np.abs(matrix).max())
    whole = np.where(owner == _OBJECTIVE, heavy, 0.0)
    balance = np.concatenate([matrix, whole[None]])
    aim = np.append(np.zeros(len(matrix)), heavy)
    weights, _ = nnls(balance, aim, maxiter=100 * matrix.shape[1])
    for c in np.flatnonzero(active):
        worth[c] = (weights * signs)[owner == c].sum()
    for k, _ in ends:
        of_bounds[k] = (weights * signs)[owner == _BOUND - k].sum()
    return worth, of_bounds


def _polished(
    x: np.ndarray, held: np.ndarray, f: float, g: np.ndarray, equal: np.ndarray,
    path: list[tuple[float, float]],
) -> Optimum:  # fmt: skip
    missed = float(np.maximum(0.0, np.where(equal, np.abs(g) - EQUAL, g)).sum())
    path_f, path_violation = zip(*path, strict=True)
    return Optimum(x, held, f, g, missed, path_f, path_violation)


def _around(
    x: np.ndarray, radius: float, free: np.ndarray, rng: np.random.Generator, times: int = 1
) -> np.ndarray:
    """x and points around it, [times (K + 1) + 1, K]."""
    apart = rng.uniform(-radius, radius, (times * (int(free.sum()) + 1), len(x))) * free
    return np.clip(np.concatenate([x[None], x + apart]), 0, 1)


class _CuttingPlanes:
    """Points with values and gradients, the newest first."""

    def __init__(self, problem: SearchProblem, held: np.ndarray):
        self._problem, self._held = problem, held
        self._y = np.empty((0, problem.knobs))
        self._at: PointSlopes | None = None

    def add(self, points: np.ndarray) -> None:
        new = self._problem.slopes(points, self._held)
        self._y = np.concatenate([points, self._y])
        pairs = zip(new, self._at or (part[:0] for part in new), strict=True)
        most = _MOST_CUTS * (self._problem.knobs + 1)
        self._y = self._y[:most]
        self._at = PointSlopes(*(np.concatenate(both)[:most] for both in pairs))

    def first(self) -> tuple[float, np.ndarray]:
        """f and g [C] of the point added last, the first of its batch."""
        assert self._at is not None
        f, g = float(self._at.f[0]), self._at.g[0]
        return (f, g) if np.isfinite(f) and np.isfinite(g).all() else (1e12, np.full_like(g, 1e12))

    def step(
        self, x: np.ndarray, f: float, g: np.ndarray, radius: float, weight: float, free: np.ndarray
    ) -> tuple[np.ndarray, float, float]:
        """The step [K], its promise of f + weight excess(g), and a constraint's unmet rest."""
        assert self._at is not None
        knobs, constraints, equal = len(x), len(g), self._problem.equal
        at = self._at
        numbers = np.isfinite(at.f) & np.isfinite(at.df).all(1)
        numbers &= np.isfinite(at.g).all(1) & np.isfinite(at.dg).all((1, 2))
        near = numbers & (np.abs(self._y - x).max(1) <= _REACH * radius)
        apart = x - self._y[near]
        f_here = np.minimum(at.f[near] + (at.df[near] * apart).sum(1), f)
        g_here = at.g[near] + (at.dg[near] * apart[:, None]).sum(2)
        count = near.sum()
        no_slack = -np.ones((count, 1)), np.zeros((count, constraints))
        rows = [np.concatenate([at.df[near], *no_slack], 1)]
        limits = [f - f_here]
        for c in range(constraints):
            own = np.zeros((count, 1 + constraints))
            own[:, 1 + c] = -1
            for sign in (1, -1) if equal[c] else (1,):
                lowered = np.minimum(sign * g_here[:, c], sign * g[c])
                rows.append(np.concatenate([sign * at.dg[near, c], own], 1))
                limits.append(-lowered - (0 if equal[c] else MARGIN))
        costs = np.concatenate([np.zeros(knobs), [1.0], np.full(constraints, weight)])
        reach = np.where(free, radius, 0.0)
        # the programme is solved in units of the radius: its tolerances are absolute
        lows, highs = np.maximum(-reach, -x) / radius, np.minimum(reach, 1 - x) / radius
        bounds = [*zip(lows, highs, strict=True), (None, None), *[(0, None)] * constraints]
        cuts, most = np.concatenate(rows), np.concatenate(limits) / radius
        solved = linprog(costs, A_ub=cuts, b_ub=most, bounds=bounds, method="highs")
        if solved.x is None:
            return np.zeros(knobs), 0.0, 0.0
        p, (t, *_), short = np.split(solved.x * radius, [knobs, knobs + 1])
        promised = weight * float(excess(g, equal).sum()) - (t + weight * float(short.sum()))
        return p, promised, float(short.max(initial=0.0))
