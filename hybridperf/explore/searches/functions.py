"""A search whose objective is a Python function that JAX can trace: of knobs of `hp.step_function`,
`hp.serving_function`, `hp.run_function`, or of anything that is computed from what they tell.

    f = hp.step_function(model, workload)

    def machine(knobs):
        usd = 4000 + 800 * knobs["memory_bytes_per_s"] / 1e12 + 9000 * knobs["peak_flops_scale"]
        return {"time_s": f(knobs), "usd": usd}

    bounds = {"memory_bytes_per_s": (1e12, 8e12), "peak_flops_scale": (0.2, 4)}
    hp.search(machine, bounds, ["usd <= 20000"], minimise="time_s")

What JAX cannot trace (another layout, a precision, a number of GPUs that makes another graph) is
a list of choices: each combination is searched, or those around the best of a few where they are
many.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.engine.knobs import flattened
from hybridperf.io import InputError
from hybridperf.io.arrays import nested
from hybridperf.io.expression import Comparison, Expression, known_formula

Point = Mapping[str, Any]  # knobs in dicts, as the objective takes them
Objective = Callable[[Point], Any]
ALONE = "objective"  # name of what a function tells that tells one number

_EVERY = 64  # combinations of choices that are all searched
_RESTARTS = 3  # where there are more
_MOST_STARTS, _MOST_SEED = 4096, 2**32 - 1
Choice = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class SearchKnob:
    """What is searched, from `least` to `most` in log space."""

    name: str
    least: float
    most: float
    integer: bool


@dataclasses.dataclass(frozen=True)
class Constraint:
    """One comparison of a condition, which may be several of these with one name."""

    name: str
    text: str
    sides: Comparison


@dataclasses.dataclass(frozen=True)
class SearchSpec:
    """The search of one combination of choices, its formulas read."""

    function: Objective
    choice: Choice
    knobs: tuple[SearchKnob, ...]
    constraints: tuple[Constraint, ...]
    objective: Expression
    maximise: bool
    starts: int
    seed: int

    def results(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the function tells at values of the knobs, which JAX may trace."""
        return results_of(self.function, values, self.choice)

    def columns_at(self, values: Mapping[str, float]) -> dict[str, float]:
        """Knobs and results at one point, computed by themselves."""
        told = self.results({name: jnp.float64(value) for name, value in values.items()})
        return {**values, **{name: float(value) for name, value in told.items()}}


def results_of(function: Objective, values: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    """What a function tells, by name; `InputError` where a name could not stand in a formula."""
    found = function(nested({**values, **dict(choice)}, "."))
    found = found if isinstance(found, Mapping) else {ALONE: found}
    for name in found:
        if not str(name).isidentifier():
            raise InputError(f"expected results with names of one word, got {name!r}")
    return {name: jnp.asarray(value) for name, value in found.items()}


@dataclasses.dataclass(frozen=True)
class FunctionSearch:
    """What is asked of a function: knobs between bounds, and choices."""

    function: Objective
    knobs: tuple[SearchKnob, ...]
    choices: Mapping[str, tuple[Any, ...]]
    constraints: Mapping[str, str]
    formula: str
    maximise: bool
    starts: int
    seed: int

    def spec(self, choice: Choice) -> SearchSpec:
        """The search of one combination of choices."""
        given = {one.name: jax.ShapeDtypeStruct((), jnp.float64) for one in self.knobs}
        told = jax.eval_shape(lambda values: results_of(self.function, values, choice), given)
        for name, value in told.items():
            if value.shape or value.dtype.kind not in "fiu":
                raise InputError(
                    f"expected a number for {name}, got {value.dtype.name}{list(value.shape)}; let"
                    " the objective tell numbers"
                )
        plain = [one.name for one in self.knobs if one.name.isidentifier()]
        known = list(dict.fromkeys([*told, *plain]))
        formula = self.formula or (ALONE if ALONE in told else "")
        if not formula:
            raise InputError(
                f"the objective tells {', '.join(told)}; say which with minimise= or maximise=, a"
                " formula"
            )
        constraints: list[Constraint] = []
        for name, text in self.constraints.items():
            read = known_formula(text, f"constraint {name}", known, condition=True)
            sides = read.comparisons(f"constraint {name}")
            texts = [one.text for one in sides] if len(sides) > 1 else [read.text]
            constraints += map(Constraint, itertools.repeat(name), texts, sides)
        objective = known_formula(formula, "the objective", known)
        return SearchSpec(
            self.function, choice, self.knobs, tuple(constraints), objective, self.maximise,
            self.starts, self.seed,
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
    minimise: str = "", maximise: str = "", *, starts: int = 16, seed: int = 0,
) -> FunctionSearch:  # fmt: skip
    """A search of a function, its bounds and formulas checked; as `search` takes them."""
    if not isinstance(bounds, Mapping) or not bounds:
        example = '{"memory_bytes_per_s": (1e12, 8e12), "batch": range(1, 513)}'
        raise InputError(f"expected bounds of the objective's knobs, such as {example}")
    if minimise and maximise:
        raise InputError("expected minimise or maximise, got both; leave one out")
    for what, value, least, most in (
        ("starts", starts, 1, _MOST_STARTS), ("seed", seed, 0, _MOST_SEED)
    ):  # fmt: skip
        if not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"expected {what} as a whole number from {least} to {most:,}, got {value!r}"
            )
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
        function, tuple(knobs), choices, named, minimise or maximise, bool(maximise), starts, seed
    )
