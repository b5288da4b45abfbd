"""A search as people write it, a TOML file (or the same as a dict):

schema = "hybridperf/search"
schema_version = 1

[target]                                        # as in a sweep: kind "step" or "program"; left out
                                                where formulas say all
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
smoothing = 0.1                                 # temperature of maxima in log seconds at first;
                                                exact if left out
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.searches.feasibility import check_not_contradictory
from hybridperf.explore.searches.prices import Price, read_prices
from hybridperf.explore.sweeps.document import check_names, check_plain, read_document, section
from hybridperf.explore.sweeps.expression import Comparison, Expression, parse
from hybridperf.explore.sweeps.target import Target, read_target
from hybridperf.io import InputError, unknown

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "shipped"
_SECTIONS = (
    "target",
    "knobs",
    "constants",
    "prices",
    "derived",
    "constraints",
    "objective",
    "method",
)
_MAY_HOLD = ("schema", "schema_version", *_SECTIONS)


@dataclasses.dataclass(frozen=True)
class Knob:
    """What is searched, from `least` to `most` in log space."""

    name: str
    least: float
    most: float
    integer: bool


@dataclasses.dataclass(frozen=True)
class Constraint:
    """One comparison of `[constraints]`; a condition of several is several of these with one name."""

    name: str
    text: str
    sides: Comparison


@dataclasses.dataclass(frozen=True)
class Method:
    """How hard to look."""

    starts: int = 16
    seed: int = 0
    rounds: int = 6
    steps: int = 40
    smoothing: float | None = None  # temperature of the first round


@dataclasses.dataclass(frozen=True)
class SearchSpec:
    """A search with all names known and no contradiction among constraints, before any compilation."""

    target: Target | None
    knobs: tuple[Knob, ...]
    constants: Mapping[str, float]  # prices that formulas name included
    prices: Mapping[str, Price]  # those that formulas name
    before: Mapping[str, Expression]  # derived columns that need no result, in order
    after: Mapping[str, Expression]  # those that do
    constraints: tuple[Constraint, ...]
    objective: Expression
    maximise: bool
    method: Method
    shadowed: tuple[str, ...] = ()  # names that are prices elsewhere, in sentences

    def knobs_behind(self, names: Collection[str]) -> set[str]:
        """Knobs that some names hang on, through formulas and the target."""
        formulas, reads = (
            {**self.before, **self.after},
            set() if self.target is None else self.target.known(),
        )
        results = () if self.target is None else self.target.results
        todo, seen = set(names), set[str]()
        while todo:
            name = todo.pop()
            seen.add(name)
            todo |= (
                set(formulas[name].names)
                if name in formulas
                else reads
                if name in results
                else set()
            ) - seen
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
    said = dataclasses.asdict(spec.method) | {
        name: value for name, value in given.items() if value is not None
    }
    return dataclasses.replace(
        spec, method=_method({name: value for name, value in said.items() if value is not None})
    )


def _path(source: str | Path) -> Path:
    path, shipped = Path(source), SHIPPED / f"{source}.toml"
    if path.exists():
        return path
    if shipped.exists():
        return shipped
    names = sorted(example.stem for example in SHIPPED.glob("*.toml"))
    raise unknown(
        "spec", str(source), names, f"give a .toml file, or a shipped example: {', '.join(names)}"
    )


def _spec(document: dict[str, Any], folder: Path) -> SearchSpec:
    for name in document:
        if name not in _MAY_HOLD:
            raise unknown("section", name, _MAY_HOLD, f"a search has {', '.join(_MAY_HOLD)}")
    check_plain(document)
    parts = {name: section(document, name) for name in _SECTIONS}
    knobs = tuple(_knob(name, said) for name, said in parts["knobs"].items())
    if not knobs:
        raise InputError(
            "a search needs at least one of [knobs], such as batch = { min = 1, max = 512, integer"
            " = true }"
        )
    constants = {
        name: _number(f"constant {name}", value) for name, value in parts["constants"].items()
    }
    # the spec's own names go before those of prices
    own = {*parts["knobs"], *constants, *parts["derived"]}
    every_price = read_prices(parts["prices"], folder)
    prices = {name: price for name, price in every_price.items() if name not in own}
    extremes = {knob.name: np.array([knob.least, knob.most]) for knob in knobs} | {
        n: np.array([v]) for n, v in constants.items()
    }
    target = read_target(parts["target"], folder, extremes) if parts["target"] else None
    results = (
        [] if target is None else [name for name, kind in target.results.items() if kind is float]
    )
    _check_free(
        {
            "knob": [*parts["knobs"]],
            "constant": [*constants],
            "price": [*prices],
            "result": results,
            "derived": [*parts["derived"]],
        }
    )
    givens = [*parts["knobs"], *constants, *prices]
    before, after = _derived(parts["derived"], givens, results)
    known = [*givens, *before, *results, *after]
    constraints = tuple(
        one for name, text in parts["constraints"].items() for one in _constraint(name, text, known)
    )
    objective, maximise = _objective(parts["objective"], known)
    reads = set() if target is None else target.known()
    used = reads.union(
        objective.names, *(formula.names for formula in (*before.values(), *after.values()))
    )
    used = used.union(
        *(side.names for one in constraints for side in (one.sides.less, one.sides.more))
    )
    for name in (*parts["knobs"], *constants):
        if name not in used:
            what = "knob" if name in parts["knobs"] else "constant"
            short = sorted(name for name in reads if "__" not in name)
            raise unknown(
                what,
                name,
                reads,
                f"the target reads {', '.join(short) or 'nothing'}, and no formula names it",
            )
    if target is not None:
        target.check(
            extremes | {name: np.array([price.value]) for name, price in prices.items()},
            {*givens, *before},
        )
    named = {name: price for name, price in prices.items() if name in used}
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
        shadowed=tuple(
            f"{name} is the spec's own, not the price of that name ({price.value:g} {price.unit})"
            for name, price in every_price.items()
            if name in own and name in used
        ),
    )
    if not spec.knobs_behind(objective.names):
        raise InputError(
            f"no knob changes the objective {objective.text!r}; name a knob in it, or something"
            " that hangs on one"
        )
    for one in constraints:
        if not spec.knobs_behind(one.sides.less.names | one.sides.more.names) and _fails(one, spec):
            raise InputError(
                f"constraint {one.name}, {one.text!r}, fails and hangs on no knob; change its"
                " constants or leave it out"
            )
    ranges = {knob.name: (knob.least, knob.most) for knob in knobs}
    formulas = {**before, **after}
    check_not_contradictory(
        [(one.text, one.sides) for one in constraints], ranges, spec.constants, formulas, results
    )
    return spec


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


def _knob(name: str, said: Any) -> Knob:
    if not isinstance(said, Mapping) or not {"min", "max"} <= set(said):
        raise InputError(f"knob {name} needs bounds {{ min = ..., max = ... }}, got {said!r}")
    for key in said:
        if key not in ("min", "max", "integer"):
            raise unknown(
                f"key of knob {name}",
                key,
                ("min", "max", "integer"),
                "it takes min, max and integer",
            )
    least, most = (_number(f"{key} of knob {name}", said[key]) for key in ("min", "max"))
    if least <= 0:
        raise InputError(
            f"knob {name} is searched in log space and needs a min above zero, got {least:g}"
        )
    if least > most:
        raise InputError(f"knob {name} has min {least:g} above max {most:g}; exchange them")
    if least == most:
        raise InputError(f"knob {name} can only be {least:g}; write it under [constants]")
    integer = said.get("integer", False)
    if not isinstance(integer, bool):
        raise InputError(f"knob {name}: integer is true or false, got {integer!r}")
    if integer and not (least.is_integer() and most.is_integer()):
        raise InputError(
            f"knob {name}: a range of whole numbers has whole ends, got {least:g} to {most:g}"
        )
    return Knob(name, least, most, integer)


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{what} must be a finite number, got {value!r}")
    return float(value)


def _check_free(names: Mapping[str, Collection[str]]) -> None:
    """No name twice, and none that could not stand in a formula."""
    seen: dict[str, str] = {}
    for what, mine in names.items():
        for name in mine:
            if not name.isidentifier():
                raise InputError(
                    f"{name!r} cannot stand in a formula; names are letters, digits and underscores"
                )
            if name in seen:
                raise InputError(
                    f"{name!r} is a {seen[name]} and a {what}; call one of them something else"
                )
            seen[name] = what


def _derived(
    said: Mapping[str, Any], givens: Sequence[str], results: Sequence[str]
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    before: dict[str, Expression] = {}
    after: dict[str, Expression] = {}
    for name, text in said.items():
        formula = _formula(text, f"derived {name}", [*givens, *before, *results, *after], said)
        (before if formula.names <= {*givens, *before} else after)[name] = formula
    return before, after


def _formula(
    text: Any, where: str, known: Sequence[str], later: Collection[str] = ()
) -> Expression:
    formula = parse(text, where)
    if formula.is_condition:
        raise InputError(
            f"{where} must be a number, got the condition {formula.text!r}; conditions go under"
            " [constraints]"
        )
    check_names(formula, where, known, later)
    return formula


def _constraint(name: str, text: Any, known: Sequence[str]) -> list[Constraint]:
    formula = parse(text, f"constraint {name}")
    if not formula.is_condition:
        raise InputError(
            f"constraint {name} must be a condition such as a <= b, got the number {formula.text!r}"
        )
    check_names(formula, f"constraint {name}", known)
    parts = formula.comparisons(f"constraint {name}")
    return [Constraint(name, one.text if len(parts) > 1 else formula.text, one) for one in parts]


def _objective(said: Mapping[str, Any], known: Sequence[str]) -> tuple[Expression, bool]:
    if len(said) != 1 or next(iter(said)) not in ("minimise", "maximise"):
        raise InputError(
            "[objective] needs minimise or maximise, a name or formula, got"
            f" {', '.join(said) or 'nothing'}"
        )
    (sense, text), *_ = said.items()
    if text == "time_s" and "time_s" not in known:
        raise InputError(
            "time_s is a result of a [target], of which this search has none; add [target], or"
            " derive time_s by a formula"
        )
    return _formula(text, f"[objective] {sense}", known), sense == "maximise"


_WHOLE = {"starts": (1, 4096), "seed": (0, 2**32 - 1), "rounds": (1, 1000), "steps": (1, 10_000)}


def _method(said: Mapping[str, Any]) -> Method:
    for key, value in said.items():
        if key == "smoothing":
            if not 0 < _number("[method] smoothing", value) <= 1:
                raise InputError(
                    "[method] smoothing is a temperature in log seconds above 0, at most 1, got"
                    f" {value}; leave it out for none"
                )
        elif key not in _WHOLE:
            raise unknown(
                "key of [method]",
                key,
                [*_WHOLE, "smoothing"],
                f"it takes {', '.join(_WHOLE)} and smoothing",
            )
        else:
            least, most = _WHOLE[key]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise InputError(
                    f"[method] {key} must be a whole number from {least} to {most}, got {value!r}"
                )
    return Method(**said)
