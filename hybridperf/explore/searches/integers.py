"""Whole numbers: neighbours of the relaxed optimum, with the other knobs at their best for each.

Neighbours are the whole numbers below and above, and multiples of powers of two near by (times jump
at tiles and waves). The best of them goes on by steps of 1, 2, 4, 8 in each knob for as long as one
helps.
"""

from __future__ import annotations

import itertools

import numpy as np

from hybridperf.explore.searches.polish import Optimum, excess, polish
from hybridperf.explore.searches.problem import FREE, SearchProblem

_POWERS = range(1, 9)  # multiples of 2 ... 256
_MOST_NEIGHBOURS = 512  # evaluated with the other knobs as they are
_REFINED = 8  # of them whose other knobs are optimised again
_STEPS = (1, 2, 4, 8)
_MOST_MOVES = 12
_RADIUS = 0.02
_GAIN = 1e-9  # logs: less is not better
_WEIGHT = 1e3  # of a violation against the objective, both logs


def better(one: Optimum, other: Optimum | None) -> bool:
    """Whether it is the better optimum: first constraints, then the objective."""
    return other is None or (one.violation, one.f) < (other.violation, other.f)


def rounded(problem: SearchProblem, relaxed: Optimum) -> Optimum:
    """The best point with whole numbers where asked."""
    whole = np.array([knob.integer for knob in problem.spec.knobs])
    best: Optimum | None = None
    tried: set[tuple[float, ...]] = set()

    def refine(held: np.ndarray, start: np.ndarray) -> None:
        nonlocal best
        if (key := tuple(held[whole])) not in tried:
            tried.add(key)
            found = polish(problem, _moved(problem, start, held), held, radius=_RADIUS)
            best = found if better(found, best) else best

    for held in _ranked(problem, relaxed.u, _neighbours(problem, relaxed.u, whole))[:_REFINED]:
        refine(held, relaxed.u)
    assert best is not None
    for _ in range(_MOST_MOVES):
        before = best
        ranked = _ranked(problem, before.u, _steps(problem, before.held, whole))
        for held in ranked[: _REFINED if (~whole).any() else None]:
            refine(held, before.u)
        if best is before:
            break
    return best


def stops(problem: SearchProblem, best: Optimum) -> dict[int, tuple[int, float]]:
    """Constraints that forbid a better value of a whole-number knob: constraint -> (knob, value).

    At the best whole numbers a constraint can have slack, and no multiplier, and still hold back.
    """
    knobs, held = problem.spec.knobs, best.held
    whole = [k for k, knob in enumerate(knobs) if knob.integer]
    steps = [(k, sign, 2**power) for k in whole for sign in (1, -1) for power in range(32)]
    every = [(k, sign, float(held[k] + sign * step)) for k, sign, step in steps]
    moves = [move for move in every if knobs[move[0]].least <= move[2] <= knobs[move[0]].most]
    if not moves:
        return {}
    to = np.stack([np.where(np.arange(len(held)) == k, value, held) for k, _, value in moves])
    at = problem.slopes(np.stack([_moved(problem, best.u, one) for one in to]), to)
    found: dict[int, tuple[int, float]] = {}
    seen: set[tuple[int, int]] = set()
    # a constraint that is active at the optimum and not violated more is no reason
    over_limit = excess(at.g, problem.equal)
    pressed = np.where(over_limit > excess(best.g, problem.equal) + _GAIN, over_limit, 0.0)
    for (k, sign, value), f, over in zip(moves, at.f, pressed, strict=True):
        # farther numbers break what would not matter
        if f < best.f - _GAIN and over.any() and (k, sign) not in seen:
            seen.add((k, sign))
            for c in np.flatnonzero(over):
                found.setdefault(int(c), (k, value))
    return found


def _moved(problem: SearchProblem, u: np.ndarray, held: np.ndarray) -> np.ndarray:
    """The point with its held knobs where they are held."""
    free = np.isnan(held)
    return np.where(free, u, problem.place(np.where(free, problem.knob_values(u, held), held)))


def _ranked(
    problem: SearchProblem, u: np.ndarray, candidates: list[np.ndarray]
) -> list[np.ndarray]:
    """The most promising first, the other knobs as they are."""
    if not candidates:
        return []
    held = np.stack(candidates)
    at = problem.slopes(np.stack([_moved(problem, u, one) for one in candidates]), held)
    merit = at.f + _WEIGHT * excess(at.g, problem.equal).sum(1)
    order = np.argsort(np.where(np.isfinite(merit), merit, np.inf), kind="stable")
    return [candidates[i] for i in order]


def _neighbours(problem: SearchProblem, u: np.ndarray, whole: np.ndarray) -> list[np.ndarray]:
    values = problem.knob_values(u, np.full(problem.knobs, FREE))
    choices: list[list[float]] = []
    for knob, value in zip(problem.spec.knobs, values, strict=True):
        if not knob.integer:
            choices.append([FREE])
            continue
        near = {np.floor(value), np.ceil(value), np.rint(value)}
        powers = [2**k for k in _POWERS if 2**k <= value]
        near |= {side(value / power) * power for power in powers for side in (np.floor, np.ceil)}
        inside = [float(one) for one in near if knob.least <= one <= knob.most]
        inside = inside or [float(np.clip(np.rint(value), knob.least, knob.most))]
        choices.append(sorted(inside, key=lambda one, value=value: abs(np.log(one / value))))  # type: ignore[misc]
    while np.prod([len(each) for each in choices]) > _MOST_NEIGHBOURS:
        longest = max(choices, key=len)
        longest.pop()
    return [np.array(one) for one in itertools.product(*choices)]


def _steps(problem: SearchProblem, held: np.ndarray, whole: np.ndarray) -> list[np.ndarray]:
    """One knob up or down, or two knobs by one each in opposite ways."""
    moves, knobs = [], problem.spec.knobs
    numbers = [int(k) for k in np.flatnonzero(whole)]
    for k in numbers:
        moves += [{k: sign * step} for step in _STEPS for sign in (1, -1)]
    for one, other in itertools.permutations(numbers, 2):
        moves.append({one: 1, other: -1})
    out = []
    for move in moves:
        to = held.copy()
        for k, step in move.items():
            to[k] += step
        if all(knobs[k].least <= to[k] <= knobs[k].most for k in numbers):
            out.append(to)
    return out
