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
from hybridperf.explore.searches.problem import SearchProblem, columns_at
from hybridperf.explore.searches.result import ActiveConstraint, BlockingConstraint

_ACTIVE = 1e-4  # logs: nearer to its limit than that a constraint may hold us back
_WORTH = 1e-6  # a smaller multiplier is none
_MORE = np.log(1.01)


def active_constraints(
    problem: SearchProblem, best: Optimum, columns: Mapping[str, float]
) -> tuple[ActiveConstraint, ...]:
    """Those with a multiplier, the most expensive first."""
    spec = problem.spec
    near = np.abs(best.g) <= _ACTIVE
    worth = multipliers(problem, best, near)
    out = []
    for c in np.flatnonzero(near & (np.abs(worth) > _WORTH)):
        one = problem.constraints[c]
        less, more = one.sides.at(columns)
        limit, shift = _one_percent(problem, int(c), less, more)
        problem.shifts = np.where(np.arange(len(near)) == c, shift, 0.0)
        then = polish(problem, best.u, best.held, radius=_MORE)
        problem.shifts = np.zeros(len(near))
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
        if problem.spec.knobs_behind(side.names):
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
        columns = columns_at(spec, here | {knob: value})
        sides, then = one.sides.at(columns), spec.objective.at(columns)
        out.append(BlockingConstraint(one.name, one.text, *sides, knob, value, then))
    return tuple(out)
