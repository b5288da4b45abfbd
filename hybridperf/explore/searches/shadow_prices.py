"""What holds an optimum back, and what one percent more of each stated limit would bring.

The limit of a constraint is the side on which no knob has a hold: 16 in `x * y >= 16`, `limit_s` in
`time_s <= limit_s`. One percent more of it tightens the one and loosens the other. Where knobs move
both sides there is no such number, and the constraint is loosened by 1 %.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridperf.explore.searches.integers import stops
from hybridperf.explore.searches.polish import Optimum, multipliers, polish
from hybridperf.explore.searches.problem import SearchProblem, columns_at, value_of
from hybridperf.explore.searches.result import ActiveConstraint, BlockingConstraint
from hybridperf.explore.searches.spec import Constraint, SearchSpec

_ACTIVE = 1e-4  # logs: nearer to its limit than that a constraint may hold us back
_WORTH = 1e-6  # a smaller multiplier is none
_MORE = np.log(1.01)


def active_constraints(
    problem: SearchProblem, best: Optimum, held: np.ndarray, columns: Mapping[str, float]
) -> tuple[ActiveConstraint, ...]:
    """Those with a multiplier, the most expensive first."""
    spec = problem.spec
    near = np.abs(best.g) <= _ACTIVE
    worth = multipliers(problem, best, held, near)
    names = [knob.name for knob in spec.knobs]
    out = []
    for c in np.flatnonzero(near & (np.abs(worth) > _WORTH)):
        one = problem.constraints[c]
        less, more = (value_of(side, columns) for side in (one.sides.less, one.sides.more))
        limit, shift = _one_percent(problem, int(c), less, more)
        problem.shifts = np.where(np.arange(len(near)) == c, shift, 0.0)
        then = polish(problem, best.u, held, radius=_MORE)
        problem.shifts = np.zeros(len(near))
        knobs_then = dict(zip(names, map(float, problem.knob_values(then.u, held)), strict=True))
        gained = -float(worth[c]) * shift / (_MORE if problem.scaling.log[1 + c] else 0.01)
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
            knobs_then=knobs_then,
        )
        out.append(active)
    return tuple(sorted(out, key=lambda one: -abs(one.multiplier)))


def stated_limit(spec: SearchSpec, one: Constraint) -> str | None:
    """Which side, `less` or `more`, no knob moves; None where knobs move both."""
    if not spec.knobs_behind(one.sides.more.names):
        return "more"
    return None if spec.knobs_behind(one.sides.less.names) else "less"


def _one_percent(
    problem: SearchProblem, c: int, less: float, more: float
) -> tuple[str | None, float]:
    """The limit as written, None where there is none, and the shift of `g` by one percent of it."""
    one = problem.constraints[c]
    where = stated_limit(problem.spec, one)
    if where is None:
        return None, _MORE if problem.scaling.log[1 + c] else 0.01
    text, sign = getattr(one.sides, where).text, 1 if where == "more" else -1
    if problem.scaling.log[1 + c]:
        return text, sign * _MORE
    value = more if where == "more" else less
    if value == 0:  # of nothing there is no percent
        return None, 0.01
    return text, sign * 0.01 * value / float(problem.scaling.scale[1 + c])


def stopped(
    problem: SearchProblem, best: Optimum, held: np.ndarray
) -> tuple[BlockingConstraint, ...]:
    """What forbids better whole numbers."""
    spec, names = problem.spec, [knob.name for knob in problem.spec.knobs]
    here = dict(zip(names, map(float, problem.knob_values(best.u, held)), strict=True))
    out = []
    for c, (k, value) in sorted(stops(problem, best, held).items()):
        one, columns = problem.constraints[c], columns_at(spec, here | {names[k]: float(value)})
        less, more = (value_of(side, columns) for side in (one.sides.less, one.sides.more))
        then = value_of(spec.objective, columns)
        out.append(BlockingConstraint(one.name, one.text, less, more, names[k], float(value), then))
    return tuple(out)
