"""Whether constraints can hold together anywhere in the knobs' box: by intervals, before compiling.

The box is halved again and again (in log space); a part where some constraint cannot hold is thrown
away. Where nothing is left the constraints contradict each other or the bounds, which is then
proved. Results of the target are unknown numbers: any that are not negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridperf.explore.sweeps.expression import Comparison, Expression, behind
from hybridperf.io import InputError

Box = Mapping[str, tuple[float, float]]  # least and most of each name
Formulas = Mapping[str, Expression]
_RESULT = (1e-30, 1e30)
_MOST_BOXES = 2048
_HALVINGS = 80


def check_not_contradictory(
    constraints: Sequence[tuple[str, Comparison]], knobs: Box, constants: Mapping[str, float],
    formulas: Formulas, results: Sequence[str],
) -> None:  # fmt: skip
    """`InputError` where no point of the box meets one of the constraints, or all together."""
    box = {**knobs, **dict.fromkeys(results, _RESULT)}
    for text, sides in constraints:
        if _empty([sides], box, constants, formulas):
            none = "no point of the knobs' bounds can meet the constraint"
            raise InputError(f"{none} {text}; widen a bound or loosen it")
    every = [sides for _, sides in constraints]
    if len(constraints) > 1 and _empty(every, box, constants, formulas):
        few = "; ".join(_core(constraints, box, constants, formulas))
        contradict = "the constraints contradict each other within the knobs' bounds"
        raise InputError(f"{contradict}: {few}; loosen one or widen a bound")


def _core(constraints: Sequence[tuple[str, Comparison]], *where: Mapping) -> list[str]:
    """Those without which the rest would not contradict each other."""
    kept = list(constraints)
    for one in constraints:
        rest = [other for other in kept if other is not one]
        if len(rest) > 1 and _empty([sides for _, sides in rest], *where):
            kept = rest
    return [text for text, _ in kept]


def _empty(
    sides: Sequence[Comparison], box: Box, constants: Mapping[str, float], formulas: Formulas
) -> bool:
    """Whether it is proved that no point meets all of them; False where that was not found out."""
    names = [name for name in box if name in _reached(sides, formulas)]
    # [names, boxes]
    low, high = (np.log(np.array([[box[name][end] for name in names]])).T for end in (0, 1))
    for _ in range(_HALVINGS):
        keep = _possible(sides, names, low, high, constants, formulas)
        low, high = low[:, keep], high[:, keep]
        if not low.shape[1]:
            return True
        if not names or low.shape[1] > _MOST_BOXES or (high - low).max() < 1e-3:
            return False
        widest = (high - low).argmax(0), np.arange(low.shape[1])
        middle = (low[widest] + high[widest]) / 2
        upper_low, lower_high = low.copy(), high.copy()
        upper_low[widest], lower_high[widest] = middle, middle
        low, high = np.concatenate([low, upper_low], 1), np.concatenate([lower_high, high], 1)
    return False


def _reached(sides: Sequence[Comparison], formulas: Mapping[str, Expression]) -> set[str]:
    """Names that the sides hang on, through formulas too."""
    depends = {name: formula.names for name, formula in formulas.items()}
    return behind(set().union(*(one.names for one in sides)), depends)


def _possible(
    sides: Sequence[Comparison], names: Sequence[str], low: np.ndarray, high: np.ndarray,
    constants: Mapping[str, float], formulas: Formulas,
) -> np.ndarray:  # fmt: skip
    """Whether each box may hold a point that meets all, bool [boxes]."""
    boxes = low.shape[1]
    slack = 1e-12  # of exp(log(x)): what holds with equality at a bound must not be lost
    lows, highs = np.exp(low) * (1 - slack), np.exp(high) * (1 + slack)
    ranges = dict(zip(names, zip(lows, highs, strict=True), strict=True))
    for name, value in constants.items():
        ranges[name] = np.full(boxes, value), np.full(boxes, value)
    needed = _reached(sides, formulas)
    for name, formula in formulas.items():
        if name in needed:
            lowest, highest = formula.interval(ranges)
            ranges[name] = np.broadcast_to(lowest, boxes), np.broadcast_to(highest, boxes)
    keep = np.ones(boxes, bool)
    for one in sides:
        keep &= ~one.cannot_hold(ranges)
    return keep
