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
import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.searches.feasibility import check_not_contradictory
from hybridperf.explore.searches.prices import UnitPrice, read_prices
from hybridperf.explore.sweeps.document import (
    SpecSource,
    check_free,
    check_keys,
    check_range,
    check_used,
    derived_columns,
    each,
    find_spec,
    finite_number,
    known_formula,
    sections,
    whole_flag,
    whole_number,
)
from hybridperf.explore.sweeps.expression import Comparison, Expression, behind
from hybridperf.explore.sweeps.target import Target, read_target
from hybridperf.io import InputError

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "shipped"
_SECTIONS = (
    "target", "knobs", "constants", "prices", "derived", "constraints", "objective", "method",
)  # fmt: skip


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
        return behind(names, depends) & {knob.name for knob in self.knobs}

    def remarks(self) -> list[str]:
        """What is to be known before anything is searched."""
        return [*([] if self.target is None else self.target.remarks()), *self.shadowed]


def read_search(source: SpecSource, folder: str | Path = ".") -> SearchSpec:
    """A spec from a file, the name of a shipped example, or a dict (its files are in `folder`)."""
    return _spec(*find_spec(source, folder, "search", SCHEMA_VERSION, SHIPPED))


def with_method(spec: SearchSpec, **given: int | None) -> SearchSpec:
    """The spec with some of its method replaced, checked; None leaves it."""
    method = dataclasses.asdict(spec.method)
    method |= {name: value for name, value in given.items() if value is not None}
    method = {name: value for name, value in method.items() if value is not None}
    return dataclasses.replace(spec, method=_method(method))


def _spec(document: dict[str, Any], folder: Path) -> SearchSpec:
    parts = sections(document, "search", ("schema", "schema_version"), _SECTIONS)
    knobs = tuple(each(_knob, parts["knobs"].items()))
    if not knobs:
        example = "batch = { min = 1, max = 512, integer = true }"
        raise InputError(f"a search needs at least one of [knobs], such as {example}")
    numbers = parts["constants"].items()
    constants = {name: finite_number(f"constant {name}", value) for name, value in numbers}
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
    check_free({**kinds, "result": results, "derived": parts["derived"]})
    givens = [*parts["knobs"], *constants, *prices]
    before, after = derived_columns(parts["derived"], givens, results)
    formulas = {**before, **after}
    known = [*givens, *before, *results, *after]
    constraints: list[Constraint] = []

    def constrain(name: str, text: Any) -> None:
        formula = known_formula(text, f"constraint {name}", known, condition=True)
        sides = formula.comparisons(f"constraint {name}")
        texts = [one.text for one in sides] if len(sides) > 1 else [formula.text]
        constraints.extend(map(Constraint, itertools.repeat(name), texts, sides))

    each(constrain, parts["constraints"].items())
    objective, maximise = _objective(parts["objective"], known)
    reads = set() if target is None else target.known()
    used = reads.union(*(one.sides.names for one in constraints))
    used = used.union(*(one.names for one in (objective, *formulas.values())))
    check_used({name: kinds[name] for name in ("knob", "constant")}, used, reads)
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
        constraints=tuple(constraints),
        objective=objective,
        maximise=maximise,
        method=_method(parts["method"]),
        shadowed=shadowed,
    )
    if not spec.knobs_behind(objective.names):
        mend = "name a knob in it, or something that depends on one"
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


def _knob(name: str, written: Any) -> SearchKnob:
    what = f"knob {name}"
    if not isinstance(written, Mapping) or not {"min", "max"} <= set(written):
        raise InputError(f"{what} needs bounds {{ min = ..., max = ... }}, got {written!r}")
    keys = ("min", "max", "integer")
    check_keys(written, keys, f"key of {what}", "it takes min, max and integer")
    least, most = (finite_number(f"{key} of {what}", written[key]) for key in ("min", "max"))
    check_range(what, least, most, log=True)
    if least == most:
        raise InputError(f"{what} can only be {least:g}; write it under [constants]")
    return SearchKnob(name, least, most, whole_flag(what, written, least, most))


def _objective(written: Mapping[str, Any], known: Sequence[str]) -> tuple[Expression, bool]:
    if len(written) != 1 or next(iter(written)) not in ("minimise", "maximise"):
        got = ", ".join(written) or "nothing"
        raise InputError(f"[objective] needs minimise or maximise, a name or formula, got {got}")
    (sense, text), *_ = written.items()
    if text == "time_s" and "time_s" not in known:
        mend = "add [target], or derive time_s by a formula"
        raise InputError(f"time_s is a result of a [target], of which this search has none; {mend}")
    return known_formula(text, f"[objective] {sense}", known), sense == "maximise"


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
