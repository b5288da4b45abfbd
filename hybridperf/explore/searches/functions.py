"""A search whose objective is a Python function that JAX can trace: of knobs of `hp.step_function`,
`hp.serving_function`, `hp.run_function`, or of anything that is computed from what they tell.

    f = hp.step_function(model, workload)

    def machine(knobs):
        usd = 4000 + 800 * knobs["memory_bytes_per_s"] / 1e12 + 9000 * knobs["peak_flops_scale"]
        return {"time_s": f(knobs), "usd": usd}

    bounds = {"memory_bytes_per_s": (1e12, 8e12), "peak_flops_scale": (0.2, 4)}
    hp.search(machine, bounds, ["usd <= 20000"], minimise="time_s")

It becomes the spec of a search with a target of its own: one solver for both. What JAX cannot trace
(another layout, a precision, a number of GPUs that makes another graph) is a list of choices: each
combination is searched, or those around the best of a few where they are many.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.engine.knobs import flattened
from hybridperf.explore.searches.spec import Constraint, SearchKnob, SearchSpec
from hybridperf.explore.sweeps.document import known_formula
from hybridperf.explore.sweeps.target import Columns, Target
from hybridperf.explore.sweeps.written import Method
from hybridperf.io import InputError
from hybridperf.io.expression import Expression

Point = Mapping[str, Any]  # knobs in dicts, as the objective takes them
Objective = Callable[[Point], Any]
ALONE = "objective"  # name of what a function tells that tells one number

_EVERY = 64  # combinations of choices that are all searched
_RESTARTS = 3  # where there are more
Choice = tuple[tuple[str, Any], ...]


class FunctionTarget(Target):
    """Results of a function at points."""

    trusted: ClassVar[bool] = False

    def __init__(self, function: Objective, knobs: Sequence[SearchKnob], choice: Choice):
        self._function, self._knobs, self._choice = function, knobs, choice
        self.results = dict.fromkeys(self._told(self._middle()), float)

    def _middle(self) -> dict[str, float]:
        return {one.name: math.sqrt(one.least * one.most) for one in self._knobs}

    def _told(self, values: Mapping[str, Any]) -> list[str]:
        """Names of the function's results; `InputError` where they are no numbers."""
        given = {name: jax.ShapeDtypeStruct((), jnp.float64) for name in values}
        found = jax.eval_shape(lambda some: self._results(some), given)
        for name, value in found.items():
            if value.shape or value.dtype.kind not in "fiu":
                raise InputError(
                    f"expected a number for {name}, got {value.dtype.name}{list(value.shape)}; let"
                    " the objective tell numbers"
                )
        return [*found]

    def _results(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found = self._function(nested([*values.items(), *self._choice]))
        found = found if isinstance(found, Mapping) else {ALONE: found}
        for name in found:
            if not str(name).isidentifier():
                raise InputError(f"expected results with names of one word, got {name!r}")
        return {name: jnp.asarray(value) for name, value in found.items()}

    def known(self) -> set[str]:
        """Names of all knobs of the function."""
        return {one.name for one in self._knobs}

    def check(self, extremes: Columns, given: set[str]) -> None:
        """Nothing: the function refuses what it does not take."""

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        """Results [n], point by point."""
        points = zip(*(np.asarray(columns[one.name]) for one in self._knobs), strict=True)
        names = [one.name for one in self._knobs]
        found = [
            self._results(dict(zip(names, map(jnp.float64, point), strict=True)))
            for point in (points if names else [()])
        ]
        return {name: np.array([float(one[name]) for one in found]) for name in self.results}

    def traced(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The function itself, as JAX traces it: values by name -> results by name."""
        own = self.known()
        return lambda values: {
            name: jnp.asarray(value, jnp.float64)
            for name, value in self._results({n: values[n] for n in values if n in own}).items()
        }


@dataclasses.dataclass(frozen=True)
class FunctionSearch:
    """What is asked of a function: knobs between bounds, and choices."""

    function: Objective
    knobs: tuple[SearchKnob, ...]
    choices: Mapping[str, tuple[Any, ...]]
    constraints: Mapping[str, str]
    formula: str
    maximise: bool

    def spec(self, choice: Choice) -> SearchSpec:
        """The search of one combination of choices."""
        target = FunctionTarget(self.function, self.knobs, choice)
        plain = [one.name for one in self.knobs if one.name.isidentifier()]
        known = list(dict.fromkeys([*target.results, *plain]))
        formula = self.formula or (ALONE if ALONE in target.results else "")
        if not formula:
            some = ", ".join(target.results)
            raise InputError(
                f"the objective tells {some}; say which with minimise= or maximise=, a formula"
            )
        constraints: list[Constraint] = []
        for name, text in self.constraints.items():
            read = known_formula(text, f"constraint {name}", known, condition=True)
            sides = read.comparisons(f"constraint {name}")
            texts = [one.text for one in sides] if len(sides) > 1 else [read.text]
            constraints += map(Constraint, itertools.repeat(name), texts, sides)
        objective: Expression = known_formula(formula, "the objective", known)
        return SearchSpec(
            target=target, knobs=self.knobs, constants={}, prices={}, before={}, after={},
            constraints=tuple(constraints), objective=objective, maximise=self.maximise,
            method=Method(),
        )  # fmt: skip

    def combinations(self) -> int:
        """How many there are of the choices."""
        return math.prod(len(values) for values in self.choices.values())

    def around(self, worth: Callable[[Choice], float]) -> Iterator[Choice]:
        """Combinations to look at: all, or one change after the other from the best of a few.

        `worth`: of one that was looked at, less is better; infinite where nothing meets all.
        """
        names, values = [*self.choices], [*self.choices.values()]
        if self.combinations() <= _EVERY:
            yield from (tuple(zip(names, one, strict=True)) for one in itertools.product(*values))
            return
        rng = np.random.default_rng(0)
        for _ in range(_RESTARTS):
            best = tuple(
                (name, some[rng.integers(len(some))]) for name, some in self.choices.items()
            )
            yield best
            while True:
                steps = [
                    (*best[:at], (name, value), *best[at + 1 :])
                    for at, (name, some) in enumerate(self.choices.items())
                    for value in some
                    if value is not best[at][1]
                ]
                yield from steps
                nearest = min(steps, key=worth)
                if worth(nearest) >= worth(best):
                    break
                best = nearest


def of_function(
    function: Objective, bounds: Point | None, constraints: Mapping[str, str] | Sequence[str],
    minimise: str, maximise: str,
) -> FunctionSearch:  # fmt: skip
    """A search of a function, its bounds and formulas checked; as `search` takes them."""
    if not isinstance(bounds, Mapping) or not bounds:
        example = '{"memory_bytes_per_s": (1e12, 8e12), "batch": range(1, 513)}'
        raise InputError(f"expected bounds of the objective's knobs, such as {example}")
    if minimise and maximise:
        raise InputError("expected minimise or maximise, got both; leave one out")
    knobs, choices = list[SearchKnob](), dict[str, tuple[Any, ...]]()
    for path, given in flattened(bounds):
        name = ".".join(path)
        if isinstance(given, list) and given:
            choices[name] = tuple(given)
        elif isinstance(given, range):
            if not len(given) > 1 or given.start < 1 or given.step != 1:
                raise InputError(f"expected a range of {name} from 1 or more, by 1, got {given}")
            knobs.append(SearchKnob(name, float(given[0]), float(given[-1]), integer=True))
        elif isinstance(given, tuple) and len(given) == 2:
            low, high = map(float, given)
            if not 0 < low < high < math.inf:
                raise InputError(
                    f"expected bounds of {name} above 0, the least first, got {given}; it is"
                    " searched in logs"
                )
            knobs.append(SearchKnob(name, low, high, integer=False))
        else:
            raise InputError(
                f"expected for {name} a tuple (least, most), a range of whole numbers, or a list of"
                f" choices, got {given!r:.60}"
            )
    if isinstance(constraints, str):
        raise InputError(
            f"expected a list of conditions, got {constraints!r}; write [{constraints!r}]"
        )
    named = constraints if isinstance(constraints, Mapping) else {one: one for one in constraints}
    return FunctionSearch(
        function, tuple(knobs), choices, named, minimise or maximise, bool(maximise)
    )


def nested(values: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Dicts in dicts by names with points between: the inverse of `flattened`."""
    out: dict[str, Any] = {}
    for name, value in values:
        *places, last = name.split(".")
        inner = out
        for place in places:
            inner = inner.setdefault(place, {})
        inner[last] = value
    return out
