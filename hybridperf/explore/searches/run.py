"""A whole search: probe, descend, polish, make numbers whole, evaluate again, price the limits;
what it found, and how sure one can be of it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from hybridperf.explore.searches.around import (
    ActiveConstraint,
    BlockingConstraint,
    active_constraints,
    plateaus,
    poles,
    stopped,
)
from hybridperf.explore.searches.descent import FEASIBLE, DescentResult, descend, violation
from hybridperf.explore.searches.functions import (
    Choice,
    Constraint,
    FunctionSearch,
    Objective,
    Point,
    SearchSpec,
    of_function,
)
from hybridperf.explore.searches.integers import better, rounded
from hybridperf.explore.searches.polish import MARGIN, Optimum, multipliers, polish
from hybridperf.explore.searches.problem import FREE, SearchProblem
from hybridperf.io import InputError, write_json
from hybridperf.io.arrays import nested

SCHEMA_VERSION = 2
_PROBES = 256
_POLISHED = 4  # starts, the best and far from each other
_APART = 0.02  # of the cube's side: nearer ones are the same


@dataclasses.dataclass(frozen=True)
class OptimalKnob:
    """A knob's value at the optimum, with its bounds and shadow prices."""

    name: str
    value: float
    least: float
    most: float
    integer: bool
    # d log objective / d log knob (of a whole number: as if it were not); d objective where that
    # can be zero or less
    elasticity: float
    # shadow price of the bound it stands at, in the same unit: percent of the objective for one
    # percent more of the bound, all other knobs at their best again; 0 where it stands at none
    bound_multiplier: float = 0.0

    @property
    def at(self) -> str:
        """Which of its bounds it stands at, or the empty string."""
        close = 1e-6
        if self.value <= self.least * (1 + close):
            return "min"
        return "max" if self.value >= self.most * (1 - close) else ""


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The optimum of a search, and what holds it back; what `hp.search` returns."""

    objective_name: str
    maximise: bool
    objective: float  # exact, as evaluated at `knobs`
    knobs: tuple[OptimalKnob, ...]  # values, bounds and elasticities at the optimum
    # knobs and what the function tells at the optimum, evaluated there by itself
    columns: dict[str, float]
    active: tuple[ActiveConstraint, ...]  # constraints that hold continuous knobs back
    stops: tuple[BlockingConstraint, ...]  # constraints that hold whole-number knobs back
    # range of each knob over which the objective stays the same, other knobs as they are
    plateaus: dict[str, tuple[float, float]]
    notes: tuple[str, ...]  # what to know before trusting the optimum
    # before knobs were rounded to whole numbers; None where none had to be
    relaxed_objective: float | None
    # `phase, step, evaluations, objective` (best so far that meets the constraints), `violation`
    convergence: pd.DataFrame
    evaluations: int  # points that were predicted, with or without gradient
    seconds: float  # that the search took
    # of choices that no gradient tells of, those at the optimum
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        sense = "most" if self.maximise else "least"
        values = [f"{knob.name} {knob.value:.4g}" for knob in self.knobs]
        at = ", ".join([*values, *(f"{name} {value}" for name, value in self.choices.items())])
        return f"<SearchResult: {sense} {self.objective_name} {self.objective:.4g} at {at}>"

    @property
    def point(self) -> dict[str, Any]:
        """The optimum as an objective takes it: knobs and choices, in dicts."""
        return nested({one.name: one.value for one in self.knobs} | {**self.choices}, ".")

    def save(self, folder: str | Path) -> Path:
        """Write `search.json` into a folder, atomically; its path."""
        path = Path(folder) / "search.json"
        write_json(path, "search-result", SCHEMA_VERSION, self.document())
        return path

    def document(self) -> dict[str, Any]:
        """The content of `search.json`, in SI units."""
        knobs: dict[str, dict[str, Any]] = {}
        for one in self.knobs:
            knobs[one.name] = dataclasses.asdict(one) | {"at": one.at}
            del knobs[one.name]["name"]
        rows = self.convergence.to_dict(orient="records")
        objective = {"name": self.objective_name, "maximise": self.maximise}
        found = {"value": self.objective, "relaxed": self.relaxed_objective}
        return {
            "objective": objective | found,
            "knobs": knobs,
            "columns": self.columns,
            "active": [dataclasses.asdict(one) for one in self.active],
            "stops": [dataclasses.asdict(one) for one in self.stops],
            "plateaus": {n: {"from": low, "to": high} for n, (low, high) in self.plateaus.items()},
            "notes": list(self.notes),
            "choices": {name: str(value) for name, value in self.choices.items()},
            "evaluations": self.evaluations,
            "convergence": [{k: None if pd.isna(v) else v for k, v in r.items()} for r in rows],
        }


def search(
    objective: Objective,
    bounds: Point | None = None,
    constraints: Mapping[str, str] | Sequence[str] = (),
    *,
    minimise: str = "",
    maximise: str = "",
    starts: int = 16,
    seed: int = 0,
    quiet: bool = True,
) -> SearchResult:
    """Find the knobs that minimise or maximise an objective under constraints, by gradients.

    Args:
        objective: a function that JAX can trace, of a dict of knobs (in dicts) to a number or to a
            dict of numbers: one of `hp.step_function`, `hp.serving_function`, `hp.run_function`,
            or what is computed from theirs.
        bounds: of each knob, in dicts as the function takes them: `(least, most)`, above zero, in
            the knob's own unit; a `range` of whole numbers; or a list of choices, each of which the
            function gets as it is (names, layouts, what makes another graph).
        constraints: conditions on results and knobs, such as `"usd <= 1e8"`; a dict names them.
        minimise: a formula of results and knobs; not needed where the function tells one number.
        maximise: in place of `minimise`; of a function that tells one number, `"objective"`.
        starts: number of starting points.
        seed: of the random starting points.
        quiet: False: print progress to standard error.

    Returns:
        The optimum (`point`, `knobs`, `columns`), the constraints that hold it back with their
        shadow prices (`active`), and those of bounds (`knobs`, `bound_multiplier`).

    Raises:
        InputError: when what is asked is wrong, or no point that meets the constraints was found.
    """
    begun_s = time.monotonic()
    if not callable(objective):
        raise InputError(
            f"expected a function of knobs to search, got {objective!r:.60}; the tutorial of"
            " searches writes one"
        )
    asked = of_function(
        objective, bounds, constraints, minimise, maximise, starts=starts, seed=seed
    )
    with jax.enable_x64(True):
        return _of_choices(asked, begun_s, quiet)


def _of_choices(asked: FunctionSearch, begun_s: float, quiet: bool) -> SearchResult:
    """The best of the combinations of choices that are looked at."""
    found: dict[tuple[int, ...], SearchResult | InputError] = {}

    def of(choice: Choice) -> SearchResult | InputError:
        key = tuple(id(value) for _, value in choice)  # choices need not be hashable
        if key not in found:
            try:
                spec = asked.spec(choice)
                best = _search(spec, begun_s, quiet) if spec.knobs else _evaluated(spec, begun_s)
                found[key] = dataclasses.replace(best, choices=dict(choice))
            except InputError as error:
                if not asked.choices:
                    raise
                found[key] = error
        return found[key]

    def worth(choice: Choice) -> float:
        one = of(choice)
        if isinstance(one, InputError):
            return float("inf")
        return -one.objective if asked.maximise else one.objective

    one = of(min(asked.around(worth), key=worth))
    if isinstance(one, InputError):
        raise InputError(f"none of {len(found)} combinations of choices can be: of one, {one}")
    notes = one.notes
    if len(found) < (many := asked.combinations()):
        notes = (*notes, f"{len(found)} of {many:,} combinations of choices were searched")
    evaluations = sum(
        each.evaluations for each in found.values() if not isinstance(each, InputError)
    )
    return dataclasses.replace(
        one, notes=notes, evaluations=evaluations, seconds=time.monotonic() - begun_s
    )


def _evaluated(spec: SearchSpec, begun_s: float) -> SearchResult:
    """A point without knobs; `InputError` where it misses a constraint."""
    columns = spec.columns_at({})
    for rule in spec.constraints:
        if _shortfall(rule, columns) > FEASIBLE:
            less, more = rule.sides.at(columns)
            raise InputError(f"{rule.text} fails: {less:.5g} should be at most {more:.5g}")
    convergence = pd.DataFrame(columns=["phase", "step", "evaluations", "objective", "violation"])
    return SearchResult(
        spec.objective.text, spec.maximise, spec.objective.at(columns), (), columns, (), (), {},
        (), None, convergence, 1, time.monotonic() - begun_s,
    )  # fmt: skip


def _search(spec: SearchSpec, begun_s: float, quiet: bool) -> SearchResult:
    from scipy.stats import qmc  # takes a second

    problem, free = SearchProblem(spec), np.full(len(spec.knobs), FREE)

    def progress(text: str) -> None:
        if not quiet:
            print(f"search: {text}", file=sys.stderr, flush=True)

    # points spread over the cube [B, K]
    rng = np.random.default_rng(spec.seed)
    probes = qmc.Sobol(len(spec.knobs), scramble=True, rng=rng).random(_PROBES)
    problem.probe(probes)
    progress(f"descending from {spec.starts} starts")
    came = descend(problem, _starts(problem, probes))
    history = [_descent_history(came, problem)]
    relaxed: Optimum | None = None
    for number, start in enumerate(_apart(came)):
        progress(f"polishing optimum {number + 1}")
        before = problem.evaluations
        one = polish(problem, start, free, seed=spec.seed + number)
        history.append(_polish_history(one, before, problem.evaluations, "polish"))
        relaxed = one if better(one, relaxed) else relaxed
    assert relaxed is not None
    best = relaxed
    if any(knob.integer for knob in spec.knobs):
        progress("making numbers whole")
        before = problem.evaluations
        best = rounded(problem, relaxed)
        history.append(_polish_history(best, before, problem.evaluations, "whole numbers"))
        if better(best, relaxed):  # from here what need not be whole cannot end up worse
            relaxed = polish(problem, best.u, free, seed=spec.seed)
    if best.violation > 0:
        _refuse(problem, [best.u, *_apart(came)])
    here = problem.named(best.u, best.held)
    columns = spec.columns_at(here)
    for rule in problem.constraints:  # the function itself has the last word
        short = _shortfall(rule, columns)
        if short > FEASIBLE:
            misses = f"misses {rule.text} by {short:.1e} when evaluated again"
            raise InputError(f"the optimum {misses}; loosen it by as much and report this")
    progress("pricing the limits")
    slopes = problem.slopes(best.u[None], free).df[0]
    sign = -1 if spec.maximise else 1
    widths = np.log([knob.most / knob.least for knob in spec.knobs])
    of_limits, of_bounds = multipliers(problem, best)
    found = tuple(
        OptimalKnob(one.name, here[one.name], one.least, one.most, one.integer, *map(float, both))
        for one, *both in zip(
            spec.knobs, sign * slopes / widths, sign * of_bounds / widths, strict=True
        )
    )
    progress("looking around")
    at_pole = poles(problem, best)
    notes = list[str]()
    if at_pole:
        sense = "no largest value" if spec.maximise else "no least value"
        at = ", ".join(f"{name} = {here[name]:.6g}" for name in at_pole)
        notes.append(f"the objective has {sense} near {at}: it grows without bound there")
    was_relaxed = best is not relaxed and not better(best, relaxed)
    return SearchResult(
        objective_name=spec.objective.text,
        maximise=spec.maximise,
        objective=spec.objective.at(columns),
        knobs=found,
        columns=columns,
        active=active_constraints(problem, best, columns, of_limits),
        stops=stopped(problem, best),
        plateaus={} if at_pole else plateaus(problem, best),
        notes=tuple(notes),
        relaxed_objective=float(problem.objective(relaxed.f)) if was_relaxed else None,
        convergence=_convergence(history, problem),
        evaluations=problem.evaluations,
        seconds=time.monotonic() - begun_s,
    )


def _starts(problem: SearchProblem, probes: np.ndarray) -> np.ndarray:
    """Half the best of the probes, half any of them [S, K]."""
    count = problem.spec.starts
    at = problem.slopes(probes, FREE)
    merit = at.f + 10 * violation(at, problem.equal)
    order = np.argsort(np.where(np.isfinite(merit), merit, np.inf), kind="stable")
    good = order[: (count + 1) // 2]
    others = np.setdiff1d(np.arange(len(probes)), good)[: count - len(good)]
    chosen = np.concatenate([good, others])
    rng = np.random.default_rng(problem.spec.seed)
    return np.concatenate([probes[chosen], rng.random((count - len(chosen), problem.knobs))])


def _apart(came: DescentResult) -> list[np.ndarray]:
    """The best points that starts came to, no two of them the same."""
    order = np.lexsort((came.f, np.maximum(came.violation, FEASIBLE)))
    kept: list[np.ndarray] = []
    for u in came.u[order]:
        if len(kept) < _POLISHED and all(np.abs(u - other).max() > _APART for other in kept):
            kept.append(u)
    return kept


def _refuse(problem: SearchProblem, starts: Sequence[np.ndarray]) -> None:
    """`InputError` that names what cannot be met, at the point that misses the limits least in
    all, whatever its objective.
    """
    problem.indifferent = True
    free = np.full(problem.knobs, FREE)
    polished = (polish(problem, start, free) for start in starts)
    nearest = min(polished, key=lambda one: one.violation)
    if any(knob.integer for knob in problem.spec.knobs):
        nearest = rounded(problem, nearest)
    knobs = problem.named(nearest.u, nearest.held)
    columns = problem.spec.columns_at(knobs)
    at = ", ".join(f"{name} = {value:.4g}" for name, value in knobs.items())
    short = {rule: _shortfall(rule, columns) for rule in problem.constraints}
    fails = []
    for rule, by in sorted(short.items(), key=lambda one: -one[1]):
        less, more = rule.sides.at(columns)
        should = "equal" if rule.sides.equal else "be at most"
        if by > FEASIBLE:
            fails.append(f"{rule.text} fails by {by:.2%} ({less:.5g} should {should} {more:.5g})")
    told = f"nearest, at {at}, {' and '.join(fails)}; loosen that or widen a knob's bounds"
    raise InputError(f"no point was found that meets all constraints: {told}")


def _shortfall(one: Constraint, columns: Mapping[str, float]) -> float:
    """By which part of its limit a constraint fails, zero where it holds."""
    less, more = one.sides.at(columns)
    apart = abs(less - more) if one.sides.equal else max(0.0, less - more)
    return apart / max(abs(less), abs(more), 1e-300)


# name, and step by step: evaluations, objective, violation
_Phase = tuple[str, np.ndarray, np.ndarray, np.ndarray]


def _descent_history(came: DescentResult, problem: SearchProblem) -> _Phase:
    """Best over the starts, step by step."""
    steps, starts = came.path_f.shape
    met = came.path_violation <= (FEASIBLE if problem.equal.any() else 0.0)
    f = np.where(met, came.path_f, np.inf).min(1)
    first = problem.evaluations - steps * starts
    evaluations = first + starts * np.arange(1, steps + 1)
    return "descent", evaluations, f, came.path_violation.min(1)


def _polish_history(one: Optimum, before: int, after: int, phase: str) -> _Phase:
    evaluations = np.linspace(before, after, len(one.path_f) + 1)[1:].astype(int)
    violated = np.array(one.path_violation)
    return phase, evaluations, np.where(violated <= MARGIN, one.path_f, np.inf), violated


def _convergence(history: Sequence[_Phase], problem: SearchProblem) -> pd.DataFrame:
    frames = []
    best, nearest = np.inf, np.inf
    for phase, evaluations, f, violated in history:
        if phase == "whole numbers":  # what was found before was no answer yet
            best, nearest = np.inf, np.inf
        so_far = np.minimum.accumulate(np.append(best, f))[1:]
        near = np.minimum.accumulate(np.append(nearest, violated))[1:]
        best, nearest = so_far[-1], near[-1]
        met = np.isfinite(so_far)
        objective = np.where(met, problem.objective(np.where(met, so_far, 0)), np.nan)
        columns = {"evaluations": evaluations, "objective": objective, "violation": near}
        frames.append(pd.DataFrame({"phase": phase, **columns}))
    frame = pd.concat(frames, ignore_index=True)
    frame.insert(1, "step", np.arange(1, len(frame) + 1))
    return frame
