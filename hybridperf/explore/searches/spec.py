"""A search as people write it, a TOML file (or the same as a dict):

schema = "hybridperf/search"
schema_version = 1

[target]                                        # as in a sweep; optional: "step" or "program"
kind = "program"
program = "step.json"
model = "h100_sxm"

[knobs]                                         # what is searched, in log space
memory_bytes_per_s = { min = 1e12, max = 8e12 }
batch = { min = 1, max = 512, integer = true }
[constants]
tokens = 4096
[prices]                                        # names of `prices.toml` can stand in any formula
file = "mine.toml"                              # optional: replaces and adds; so do numbers here
usd_per_kwh = 0.2
[derived]
cost_usd = "usd_per_bytes_per_s * memory_bytes_per_s"
[constraints]                                   # <=, >=, == and their `and`
fast = "time_s <= 0.1"
[objective]
minimise = "cost_usd"                           # or maximise; a name or a formula
[method]                                        # all optional
starts = 16
seed = 0
rounds = 6                                      # of the multipliers
steps = 40                                      # of descent in each round
smoothing = 0.1                                 # first temperature of maxima; else they are exact
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.searches.feasibility import check_not_contradictory
from hybridperf.explore.searches.prices import UnitPrice, read_prices
from hybridperf.explore.sweeps.document import (
    check_keys,
    check_plain,
    condition,
    derived_columns,
    finite_number,
    number_formula,
    read_document,
    section,
    whole_number,
)
from hybridperf.explore.sweeps.expression import Comparison, Expression
from hybridperf.explore.sweeps.target import Target, read_target
from hybridperf.io import InputError, unknown

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "shipped"
_CONTENT = ("target", "knobs", "constants", "prices", "derived", "constraints")
_SECTIONS = (*_CONTENT, "objective", "method")
_MAY_HOLD = ("schema", "schema_version", *_SECTIONS)


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
class SearchMethod:
    """How hard to look."""

    starts: int = 16
    seed: int = 0
    rounds: int = 6
    steps: int = 40
    smoothing: float | None = None  # temperature of the first round


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
    method: SearchMethod
    shadowed: tuple[str, ...] = ()  # names that are prices elsewhere, in sentences

    def knobs_behind(self, names: Collection[str]) -> set[str]:
        """Knobs that some names depend on, through formulas and the target."""
        depends = {name: set(one.names) for name, one in {**self.before, **self.after}.items()}
        if self.target is not None:
            depends = dict.fromkeys(self.target.results, self.target.known()) | depends
        todo, seen = set(names), set[str]()
        while todo:
            name = todo.pop()
            seen.add(name)
            todo |= depends.get(name, set()) - seen
        return seen & {knob.name for knob in self.knobs}

    def remarks(self) -> list[str]:
        """What is to be known before anything is searched."""
        return [*([] if self.target is None else self.target.remarks()), *self.shadowed]


def read_search(source: str | Path | Mapping[str, Any], folder: str | Path = ".") -> SearchSpec:
    """A spec from a file, the name of a shipped example, or a dict (its files are in `folder`)."""
    if isinstance(source, Mapping):
        return _spec(dict(source), Path(folder))
    path = _path(source)
    document = read_document(path, "search", SCHEMA_VERSION)
    return _spec(document, path.parent)


def with_method(spec: SearchSpec, **given: int | None) -> SearchSpec:
    """The spec with some of its method replaced, checked; None leaves it."""
    method = dataclasses.asdict(spec.method)
    method |= {name: value for name, value in given.items() if value is not None}
    method = {name: value for name, value in method.items() if value is not None}
    return dataclasses.replace(spec, method=_method(method))


def _path(source: str | Path) -> Path:
    path, shipped = Path(source), SHIPPED / f"{source}.toml"
    if path.exists():
        return path
    if shipped.exists():
        return shipped
    names = sorted(example.stem for example in SHIPPED.glob("*.toml"))
    where = f"give a .toml file, or a shipped example: {', '.join(names)}"
    raise unknown("spec", str(source), names, where)


def _spec(document: dict[str, Any], folder: Path) -> SearchSpec:
    check_keys(document, _MAY_HOLD, "section", f"a search has {', '.join(_MAY_HOLD)}")
    check_plain(document)
    parts = {name: section(document, name) for name in _SECTIONS}
    knobs = tuple(_knob(name, written) for name, written in parts["knobs"].items())
    if not knobs:
        example = "batch = { min = 1, max = 512, integer = true }"
        raise InputError(f"a search needs at least one of [knobs], such as {example}")
    constants = {
        name: finite_number(f"constant {name}", value) for name, value in parts["constants"].items()
    }
    # the spec's own names go before those of prices
    own = {*parts["knobs"], *constants, *parts["derived"]}
    every_price = read_prices(parts["prices"], folder)
    prices = {name: price for name, price in every_price.items() if name not in own}
    extremes = {knob.name: np.array([knob.least, knob.most]) for knob in knobs}
    extremes |= {name: np.array([value]) for name, value in constants.items()}
    target = read_target(parts["target"], folder, extremes) if parts["target"] else None
    columns = {} if target is None else target.results
    results = [name for name, kind in columns.items() if kind is float]
    kinds = {"knob": parts["knobs"], "constant": constants, "price": prices}
    _check_free({**kinds, "result": results, "derived": parts["derived"]})
    givens = [*parts["knobs"], *constants, *prices]
    before, after = derived_columns(parts["derived"], givens, results)
    formulas = {**before, **after}
    known = [*givens, *before, *results, *after]
    constraints = tuple(
        one for name, text in parts["constraints"].items() for one in _constraint(name, text, known)
    )
    objective, maximise = _objective(parts["objective"], known)
    reads = set() if target is None else target.known()
    sides = (side for one in constraints for side in (one.sides.less, one.sides.more))
    used = reads.union(*(one.names for one in (objective, *formulas.values(), *sides)))
    _check_used({name: kinds[name] for name in ("knob", "constant")}, used, reads)
    if target is not None:
        of_prices = {name: np.array([price.value]) for name, price in prices.items()}
        target.check(extremes | of_prices, {*givens, *before})
    named = {name: price for name, price in prices.items() if name in used}
    shadowed = tuple(
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
        constraints=constraints,
        objective=objective,
        maximise=maximise,
        method=_method(parts["method"]),
        shadowed=shadowed,
    )
    if not spec.knobs_behind(objective.names):
        mend = "name a knob in it, or something that depends on one"
        raise InputError(f"no knob changes the objective {objective.text!r}; {mend}")
    for one in constraints:
        if not spec.knobs_behind(one.sides.less.names | one.sides.more.names) and _fails(one, spec):
            fails = "fails and depends on no knob; change its constants or leave it out"
            raise InputError(f"constraint {one.name}, {one.text!r}, {fails}")
    ranges = {knob.name: (knob.least, knob.most) for knob in knobs}
    comparisons = [(one.text, one.sides) for one in constraints]
    check_not_contradictory(comparisons, ranges, spec.constants, formulas, results)
    return spec


def _check_used(
    given: Mapping[str, Collection[str]], used: Collection[str], reads: set[str]
) -> None:
    short = ", ".join(sorted(name for name in reads if "__" not in name)) or "nothing"
    where = f"the target reads {short}, and no formula names it"
    for what, names in given.items():
        for name in names:
            if name not in used:
                raise unknown(what, name, reads, where)


def _fails(one: Constraint, spec: SearchSpec) -> bool:
    """Whether a constraint that hangs on constants alone fails; False where results stand in it."""
    values = {name: np.array([value]) for name, value in spec.constants.items()}
    for name, formula in {**spec.before, **spec.after}.items():
        if formula.names <= set(values):
            values[name] = formula(values, 1)
    if not one.sides.less.names | one.sides.more.names <= set(values):
        return False
    less, more = float(one.sides.less(values, 1)[0]), float(one.sides.more(values, 1)[0])
    return not (less == more if one.sides.equal else less <= more)


def _knob(name: str, written: Any) -> SearchKnob:
    what = f"knob {name}"
    if not isinstance(written, Mapping) or not {"min", "max"} <= set(written):
        raise InputError(f"{what} needs bounds {{ min = ..., max = ... }}, got {written!r}")
    keys = ("min", "max", "integer")
    check_keys(written, keys, f"key of {what}", "it takes min, max and integer")
    least, most = (finite_number(f"{key} of {what}", written[key]) for key in ("min", "max"))
    if least <= 0:
        needs = "is searched in log space and needs a min above zero"
        raise InputError(f"{what} {needs}, got {least:g}")
    if least > most:
        raise InputError(f"{what} has min {least:g} above max {most:g}; exchange them")
    if least == most:
        raise InputError(f"{what} can only be {least:g}; write it under [constants]")
    integer = written.get("integer", False)
    if not isinstance(integer, bool):
        raise InputError(f"{what}: integer is true or false, got {integer!r}")
    if integer and not (least.is_integer() and most.is_integer()):
        rule = "a range of whole numbers has whole ends"
        raise InputError(f"{what}: {rule}, got {least:g} to {most:g}")
    return SearchKnob(name, least, most, integer)


def _check_free(names: Mapping[str, Collection[str]]) -> None:
    """No name twice, and none that could not stand in a formula."""
    seen: dict[str, str] = {}
    for what, mine in names.items():
        for name in mine:
            if not name.isidentifier():
                rule = "names are letters, digits and underscores"
                raise InputError(f"{name!r} cannot stand in a formula; {rule}")
            if name in seen:
                mend = "call one of them something else"
                raise InputError(f"{name!r} is a {seen[name]} and a {what}; {mend}")
            seen[name] = what


def _constraint(name: str, text: Any, known: Sequence[str]) -> list[Constraint]:
    formula = condition(name, text, known)
    parts = formula.comparisons(f"constraint {name}")
    return [Constraint(name, one.text if len(parts) > 1 else formula.text, one) for one in parts]


def _objective(written: Mapping[str, Any], known: Sequence[str]) -> tuple[Expression, bool]:
    if len(written) != 1 or next(iter(written)) not in ("minimise", "maximise"):
        got = ", ".join(written) or "nothing"
        raise InputError(f"[objective] needs minimise or maximise, a name or formula, got {got}")
    (sense, text), *_ = written.items()
    if text == "time_s" and "time_s" not in known:
        mend = "add [target], or derive time_s by a formula"
        raise InputError(f"time_s is a result of a [target], of which this search has none; {mend}")
    return number_formula(text, f"[objective] {sense}", known), sense == "maximise"


_WHOLE = {"starts": (1, 4096), "seed": (0, 2**32 - 1), "rounds": (1, 1000), "steps": (1, 10_000)}


def _method(written: Mapping[str, Any]) -> SearchMethod:
    known = (*_WHOLE, "smoothing")
    check_keys(written, known, "key of [method]", f"it takes {', '.join(_WHOLE)} and smoothing")
    for key, value in written.items():
        what = f"[method] {key}"
        if key in _WHOLE:
            whole_number(value, what, *_WHOLE[key])
        elif not 0 < finite_number(what, value) <= 1:
            rule = "is a temperature in log seconds above 0, at most 1"
            raise InputError(f"{what} {rule}, got {value}; leave it out for none")
    return SearchMethod(**written)
