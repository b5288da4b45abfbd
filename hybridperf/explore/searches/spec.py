"""A search, read from a spec (`explore/sweeps/written.py` has the dialect): ranges are searched,
numbers are constants, and a target is optional.

Whether constraints can hold together is found out before anything is compiled: the knobs' box is
halved again and again (in log space), and a part where some constraint cannot hold is thrown away.
Where nothing is left the constraints contradict each other or the bounds, which is then proved.
Results of the target are unknown numbers: any that are not negative.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from hybridperf.explore.sweeps.document import (
    Document,
    SpecSource,
    check_free,
    check_used,
    derived_columns,
    known_formula,
    read_spec_document,
)
from hybridperf.explore.sweeps.target import Target, read_target
from hybridperf.explore.sweeps.written import Drawn, Method, Objective, Range, TableColumn, part
from hybridperf.hardware.prices import UnitPrice, read_prices
from hybridperf.io import InputError
from hybridperf.io.documents import is_finite
from hybridperf.io.expression import Comparison, Expression, behind

SHIPPED = Path(__file__).parent / "shipped"
Box = Mapping[str, tuple[float, float]]  # least and most of each name
Formulas = Mapping[str, Expression]
_RESULT = (1e-30, 1e30)
_MOST_BOXES = 2048
_HALVINGS = 80


@dataclasses.dataclass(frozen=True)
class SearchKnob:
    """What is searched, from `least` to `most` in log space."""

    name: str
    least: float
    most: float
    integer: bool


@dataclasses.dataclass(frozen=True)
class Constraint:
    """One comparison of `[constraints]`; a condition may be several of these with one name."""

    name: str
    text: str
    sides: Comparison


@dataclasses.dataclass(frozen=True)
class SearchSpec:
    """A search whose names are known and whose constraints can hold, before any compilation."""

    target: Target | None
    knobs: tuple[SearchKnob, ...]
    constants: Mapping[str, float]  # prices that formulas name included
    prices: Mapping[str, UnitPrice]  # those that formulas name
    before: Mapping[str, Expression]  # derived columns that need no result, in order
    after: Mapping[str, Expression]  # those that do
    constraints: tuple[Constraint, ...]
    objective: Expression
    maximise: bool
    method: Method
    notes: tuple[str, ...] = ()  # of how it is written, and of names that are prices elsewhere

    def knobs_behind(self, names: Collection[str]) -> set[str]:
        """Knobs that some names depend on, through formulas and the target."""
        depends = {name: set(one.names) for name, one in {**self.before, **self.after}.items()}
        if self.target is not None:
            depends = dict.fromkeys(self.target.results, self.target.known()) | depends
        return behind(names, depends) & {knob.name for knob in self.knobs}

    def remarks(self) -> list[str]:
        """What is to be known before anything is searched."""
        return [*([] if self.target is None else self.target.remarks()), *self.notes]


def read_search(source: SpecSource) -> SearchSpec:
    """A spec from a file, the name of a shipped example, or a dict."""
    return _spec(read_spec_document(source, ".", "search", SHIPPED))


def with_method(spec: SearchSpec, **given: int | None) -> SearchSpec:
    """The spec with some of its method replaced, checked; None leaves it."""
    given = {name: value for name, value in given.items() if value is not None}
    method = part(Method, "method", spec.method.model_dump() | given)
    return dataclasses.replace(spec, method=method)


def _spec(document: Document) -> SearchSpec:
    written, faults, wrong = document.written, document.faults, document.wrong
    knobs, constants = _parameters(document)
    # the spec's own names go before those of prices
    own = {*written.parameters, *wrong, *written.derived}
    every_price: dict[str, UnitPrice] = {}
    with faults.kept():
        every_price = read_prices(written.prices, document.folder)
    prices = {name: price for name, price in every_price.items() if name not in own}
    extremes = {knob.name: np.array([knob.least, knob.most]) for knob in knobs}
    extremes |= {name: np.array([value]) for name, value in constants.items()}
    extremes |= dict.fromkeys(wrong, np.array([], object))
    target = None
    if written.target is not None:
        with faults.kept():
            target = read_target(written.target, document.folder, extremes)
    if target is None and ("target" in wrong or written.target is not None):
        faults.end()  # names of results are not known
    columns = {} if target is None else target.results
    results = [name for name, kind in columns.items() if kind is float]
    parameters = [*written.parameters, *sorted(wrong - {"target", *written.parameters})]
    kinds = {"parameter": parameters, "price": prices}
    with faults.kept():
        check_free({**kinds, "result": results, "derived column": written.derived})
    givens = [*parameters, *prices]
    before, after = derived_columns(written.derived, givens, results, faults)
    formulas = {**before, **after}
    known = list(dict.fromkeys([*givens, *results, *written.derived]))
    constraints: list[Constraint] = []
    for name, text in written.constraints.items():
        with faults.kept():
            formula = known_formula(text, f"constraint {name}", known, condition=True)
            sides = formula.comparisons(f"constraint {name}")
            texts = [one.text for one in sides] if len(sides) > 1 else [formula.text]
            constraints.extend(map(Constraint, itertools.repeat(name), texts, sides))
    with faults.kept():
        objective, maximise = _objective(written.objective, known)
    faults.end()
    reads = set() if target is None else target.known()
    used = reads.union(*(one.sides.names for one in constraints))
    used = used.union(*(one.names for one in (objective, *formulas.values())))
    check_used({"parameter": parameters}, used, reads)
    if target is not None:
        of_prices = {name: np.array([price.value]) for name, price in prices.items()}
        target.check(extremes | of_prices, {*givens, *before})
    named = {name: price for name, price in prices.items() if name in used}
    shadowed = (
        f"{name} is the spec's own, not the price of that name ({price.value:g} {price.unit})"
        for name, price in every_price.items()
        if name in own and name in used
    )
    spec = SearchSpec(
        target=target,
        knobs=knobs,
        constants=constants | {name: price.value for name, price in named.items()},
        prices=named,
        before=before,
        after=after,
        constraints=tuple(constraints),
        objective=objective,
        maximise=maximise,
        method=written.method,
        notes=(*document.remarks, *shadowed),
    )
    if not spec.knobs_behind(objective.names):
        mend = "name a range of [parameters] in it, or something that depends on one"
        raise InputError(f"no knob changes the objective {objective.text!r}; {mend}")
    for one in constraints:
        if not spec.knobs_behind(one.sides.names) and _fails(one, spec):
            fails = "fails and depends on no knob; change its constants or leave it out"
            raise InputError(f"constraint {one.name}, {one.text!r}, {fails}")
    ranges = {knob.name: (knob.least, knob.most) for knob in knobs}
    comparisons = [(one.text, one.sides) for one in constraints]
    check_not_contradictory(comparisons, ranges, spec.constants, formulas, results)
    return spec


def _fails(one: Constraint, spec: SearchSpec) -> bool:
    """Whether a constraint that hangs on constants alone fails; False where results stand in it."""
    values = {name: np.array([value]) for name, value in spec.constants.items()}
    for name, formula in {**spec.before, **spec.after}.items():
        if formula.names <= set(values):
            values[name] = formula(values, 1)
    if not one.sides.names <= set(values):
        return False
    less, more = one.sides.at({name: value[0] for name, value in values.items()})
    return not (less == more if one.sides.equal else less <= more)


def _parameters(document: Document) -> tuple[tuple[SearchKnob, ...], dict[str, float]]:
    """Ranges, which are searched, and numbers."""
    knobs, constants = [], {}
    for name, given in document.written.parameters.items():
        document.wrong.add(name)  # until it is read
        with document.faults.kept():
            what = f"parameter {name}"
            if isinstance(given, Range):
                if given.scale != "log":
                    mend = f"got scale {given.scale!r}; leave scale out, or sweep it"
                    raise InputError(f"{what} is searched in logs, {mend}")
                if given.min == given.max:
                    mend = f"write {name} = {given.min:g}"
                    raise InputError(f"{what} can only be {given.min:g}; {mend}")
                knobs.append(SearchKnob(name, given.min, given.max, given.integer))
            elif not isinstance(given, TableColumn | Drawn) and is_finite(given):
                constants[name] = float(given)
            else:
                got = "a column" if isinstance(given, TableColumn) else repr(given)
                needs = "must be a finite number, or a range { min = ..., max = ... }"
                raise InputError(f"{what} of a search {needs}, got {got}")
            document.wrong.discard(name)
    if not knobs and not document.wrong:
        example = "batch = { min = 1, max = 512, integer = true }"
        lacking = f"a search needs at least one range under [parameters], such as {example}"
        document.faults.said.append(lacking)
    return tuple(knobs), constants


def _objective(written: Objective, known: Sequence[str]) -> tuple[Expression, bool]:
    minimise, maximise = written.minimise, written.maximise
    if len(minimise) + len(maximise) != 1:
        got = ", ".join([*minimise, *maximise]) or "nothing"
        raise InputError(f"[objective] needs minimise or maximise, a name or formula, got {got}")
    (text,), sense = minimise or maximise, "minimise" if minimise else "maximise"
    if text == "time_s" and "time_s" not in known:
        mend = "add [target], or derive time_s by a formula"
        raise InputError(f"time_s is a result of a [target], of which this search has none; {mend}")
    return known_formula(text, f"[objective] {sense}", known), bool(maximise)


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
