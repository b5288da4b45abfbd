"""What lies around an optimum: limits that hold it back, and what one percent more of each would
bring; plateaus of equal objective, and poles, where it has no minimum.

The limit of a constraint is the side on which no knob has a hold: 16 in `x * y >= 16`, `limit_s` in
`time_s <= limit_s`. One percent more of it tightens the one and loosens the other. Where knobs move
both sides there is no such number, and the constraint is loosened by 1 %.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from hybridperf.explore.searches.integers import stops
from hybridperf.explore.searches.polish import Optimum, excess, polish
from hybridperf.explore.searches.problem import SearchProblem

_WORTH = 1e-6  # a smaller multiplier is none
_MORE = np.log(1.01)
_SAME = 1e-9  # of logs: the objective is the same
_WIDE = 1e-2  # of logs: narrower ranges are a flat minimum's and not worth a word
_PROBED = 17  # values of a knob, then again between the last that does and the first that does not
_NEAR = 1e-4  # of the cube's side
_POLE = 1e3  # times as large as so near


@dataclasses.dataclass(frozen=True)
class ActiveConstraint:
    """A constraint that holds the optimum back."""

    name: str
    text: str
    less: float  # its two sides at the optimum
    more: float
    # the side that no knob moves; None where knobs move both, or where it is zero
    limit: str | None
    what_if: str  # one percent more of the limit, or a constraint loosened by one percent
    multiplier: float  # percent of the objective (its scale, where it can be zero or less) for that
    objective_then: float  # with that, searched again from here
    knobs_then: dict[str, float]


@dataclasses.dataclass(frozen=True)
class BlockingConstraint:
    """A constraint that forbids a better whole number, the other knobs as they are."""

    name: str
    text: str
    less: float  # its two sides with that number
    more: float
    knob: str
    value: float  # the nearest number that would be better
    objective: float  # with it


def active_constraints(
    problem: SearchProblem, best: Optimum, columns: Mapping[str, float], worth: np.ndarray
) -> tuple[ActiveConstraint, ...]:
    """Those with a multiplier (`polish.multipliers` [C]), the most expensive first."""
    spec = problem.spec
    out = []
    for c in np.flatnonzero(np.abs(worth) > _WORTH):
        one = problem.constraints[c]
        less, more = one.sides.at(columns)
        limit, shift = _one_percent(problem, int(c), less, more)
        problem.shifts = np.where(np.arange(len(worth)) == c, shift, 0.0)
        then = polish(problem, best.u, best.held, radius=_MORE)
        problem.shifts = np.zeros(len(worth))
        gained = -float(worth[c]) * shift / (_MORE if problem.log[1 + c] else 0.01)
        more_of = "loosened by 1 %" if limit is None else f"1 % more of {limit}"
        active = ActiveConstraint(
            name=one.name,
            text=one.text,
            less=less,
            more=more,
            limit=limit,
            what_if=f"{more_of} ({one.name})",
            multiplier=gained * (-1 if spec.maximise else 1),
            objective_then=float(problem.objective(then.f)),
            knobs_then=problem.named(then.u, then.held),
        )
        out.append(active)
    return tuple(sorted(out, key=lambda one: -abs(one.multiplier)))


def _one_percent(
    problem: SearchProblem, c: int, less: float, more: float
) -> tuple[str | None, float]:
    """The limit as written, None where there is none, and the shift of `g` by one percent of it."""
    sides = problem.constraints[c].sides
    for side, value, sign in ((sides.more, more, 1), (sides.less, less, -1)):
        if side.names:  # results and knobs, which move
            continue
        if problem.log[1 + c]:
            return side.text, sign * _MORE
        if value != 0:  # of nothing there is no percent
            return side.text, sign * 0.01 * value / float(problem.scale[1 + c])
        break
    return None, _MORE if problem.log[1 + c] else 0.01


def stopped(problem: SearchProblem, best: Optimum) -> tuple[BlockingConstraint, ...]:
    """What forbids better whole numbers."""
    spec, here, out = problem.spec, problem.named(best.u, best.held), []
    for c, (k, value) in sorted(stops(problem, best).items()):
        one, knob = problem.constraints[c], spec.knobs[k].name
        columns = spec.columns_at(here | {knob: value})
        sides, then = one.sides.at(columns), spec.objective.at(columns)
        out.append(BlockingConstraint(one.name, one.text, *sides, knob, value, then))
    return tuple(out)


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
