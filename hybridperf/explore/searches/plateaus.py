"""What lies around an optimum: plateaus of equal objective, and poles, where it has no minimum."""

from __future__ import annotations

import numpy as np

from hybridperf.explore.searches.polish import Optimum, excess
from hybridperf.explore.searches.problem import SearchProblem

_SAME = 1e-9  # of logs: the objective is the same
_WIDE = 1e-2  # of logs: narrower ranges are a flat minimum's and not worth a word
_PROBED = 17  # values of a knob, then again between the last that does and the first that does not
_NEAR = 1e-4  # of the cube's side
_POLE = 1e3  # times as large as so near


def plateaus(problem: SearchProblem, best: Optimum) -> dict[str, tuple[float, float]]:
    """Knobs that may take any value in a range, the others fixed, for the same objective."""
    out = {}
    for k, knob in enumerate(problem.spec.knobs):
        value = float(problem.knob_values(best.u, best.held)[k])
        width = np.log(knob.most / knob.least)
        sides = [_end(problem, best, k, side) for side in (0.0, 1.0)]
        low, high = (float(knob.least * np.exp(width * side)) for side in sides)
        if knob.integer:
            # an end may be found a little too near
            ends = np.array([np.floor(low), np.ceil(low), np.floor(high), np.ceil(high)])
            inside = (ends >= knob.least) & (ends <= knob.most)
            ends = ends[_holds(problem, best, k, ends) & inside]
            if len(ends) and ends.min() < ends.max() and ends.min() <= value <= ends.max():
                out[knob.name] = (float(ends.min()), float(ends.max()))
        elif (sides[1] - sides[0]) * width > _WIDE:
            out[knob.name] = (low, high)
    return out


def poles(problem: SearchProblem, best: Optimum) -> list[str]:
    """Knobs near whose value the objective falls a thousandfold: it has no minimum."""
    here, found = abs(float(problem.objective(best.f))), []
    for k, knob in enumerate(problem.spec.knobs):
        if not np.isnan(best.held[k]):
            continue
        this = np.arange(problem.knobs) == k
        sides = [np.clip(best.u + sign * _NEAR, 0, 1) for sign in (1, -1)]
        points = np.stack([np.where(this, side, best.u) for side in sides])
        nearby = np.abs(problem.objective(problem.slopes(points, best.held).f))
        if np.isfinite(nearby).any() and here > _POLE * np.nanmax(nearby):
            found.append(knob.name)
    return found


def _end(problem: SearchProblem, best: Optimum, k: int, side: float) -> float:
    """How far a knob may go towards one side of the cube."""
    near, far = float(best.u[k]), side
    for _ in range(4):
        at = np.linspace(near, far, _PROBED)
        knob = problem.spec.knobs[k]
        values = knob.least * np.exp(at * np.log(knob.most / knob.least))
        does = _holds(problem, best, k, values, at)
        first = int(np.argmin(does)) if not does.all() else len(at)
        if first == len(at):
            return far
        near, far = float(at[max(first - 1, 0)]), float(at[first])
    return near


def _holds(
    problem: SearchProblem, best: Optimum, k: int, values: np.ndarray, at: np.ndarray | None = None
) -> np.ndarray:
    """Whether knob `k` at each of some values keeps the objective and all constraints; bool [n]."""
    places, keep = (np.tile(one, (len(values), 1)) for one in (best.u, best.held))
    if problem.spec.knobs[k].integer:
        keep[:, k] = values
    elif at is not None:
        places[:, k] = at
    found = problem.slopes(places, keep)
    met = excess(found.g, problem.equal).sum(1) <= excess(best.g, problem.equal).sum() + 1e-12
    return (np.abs(found.f - best.f) <= _SAME) & met
