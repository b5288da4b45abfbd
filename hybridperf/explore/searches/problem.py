"""A search as functions of points in the unit cube: what is minimised, and how far each constraint
is from holding.

    knob_k = least_k (most_k / least_k)^u_k            0 <= u_k <= 1; a held knob (a whole number)
                                                       is what it is held at
    f(u)   = log objective                             its negative to maximise; objective / scale
           where it can be zero or less
    g_c(u) = log less_c - log more_c <= 0              (less - more) / scale where either side can
                                                       be zero or less

In logs most performance models are convex (sums and maxima of products of powers), slopes are
elasticities, and a constraint's multiplier is what one percent of its limit is worth. Which form
each takes is found by probing the box. Axes: B points, K knobs, C constraints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.explore.searches.spec import SearchSpec
from hybridperf.explore.sweeps.expression import Expression
from hybridperf.explore.sweeps.smooth import SoftModule
from hybridperf.io import InputError

_LEAST = 1e-300  # logs of nothing
_WIDTH = 16  # points evaluated together
FREE = np.nan  # a knob that is not held


class Values(NamedTuple):
    """What is compared at points."""

    f: Any  # [B]
    g: Any  # [B, C] inequalities, then equalities


class Slopes(NamedTuple):
    """Values with gradients in the unit cube."""

    f: Any  # [B]
    g: Any  # [B, C]
    df: Any  # [B, K]
    dg: Any  # [B, C, K]


@dataclasses.dataclass
class Scaling:
    """The form that objective and constraints take."""

    log: np.ndarray  # bool [1 + C], the objective first
    scale: np.ndarray  # [1 + C]


@dataclasses.dataclass
class Problem:
    """One search, traced. `evaluations` counts the points whose prediction was asked for."""

    spec: SearchSpec
    scaling: Scaling = dataclasses.field(init=False)
    evaluations: int = 0
    # [C] added to the logs of limits: what if they were looser
    shifts: np.ndarray = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        order = sorted(range(len(spec.constraints)), key=lambda i: spec.constraints[i].sides.equal)
        self.constraints = [spec.constraints[i] for i in order]
        self.equal = np.array([one.sides.equal for one in self.constraints], bool)
        self.shifts = np.zeros(len(self.constraints))
        self._bounds = np.log([[knob.least, knob.most] for knob in spec.knobs])
        names = [*(knob.name for knob in spec.knobs), *spec.constants, *spec.before]
        self._target = (lambda values: {}) if spec.target is None else spec.target.traced(names)
        self._soft_target = (
            None
            if spec.method.smoothing is None or spec.target is None
            else spec.target.softened(names)
        )
        self._sides = jax.jit(jax.vmap(self._sides_and_slopes))
        self._soft_sides = jax.jit(jax.vmap(self._sides_and_slopes, in_axes=(0, 0, None)))

    @property
    def knobs(self) -> int:
        """How many knobs."""
        return len(self.spec.knobs)

    def knob_values(self, u: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Values of knobs [..., K] at points of the cube."""
        low, high = self._bounds.T
        return np.where(np.isnan(held), np.exp(low + np.clip(u, 0, 1) * (high - low)), held)

    def place(self, values: np.ndarray) -> np.ndarray:
        """Points of the cube [..., K] of values of knobs."""
        low, high = self._bounds.T
        return np.clip((np.log(values) - low) / (high - low), 0, 1)

    def probe(self, u: np.ndarray) -> None:
        """Find the form of objective and constraints from points [B, K]; at least one is finite."""
        less, more, *_ = self._batches(u, np.full_like(u, FREE), None)
        with np.errstate(all="ignore"):
            numbers = np.isfinite(less - more)
        for at, what in enumerate(
            ["the objective", *(f"constraint {one.text}" for one in self.constraints)]
        ):
            if not numbers[:, at].any():
                raise InputError(
                    f"{what} is no number anywhere within the knobs' bounds{self._why(at, u)};"
                    " check its formula, or narrow the bounds"
                )
        less, more = (np.where(numbers, side, np.nan) for side in (less, more))
        log = (np.nanmin(less, 0) > 0) & (np.nanmin(more, 0) > 0)
        apart = np.nanmedian(
            np.abs(less - np.where(np.arange(less.shape[1]) == 0, np.nanmedian(less, 0), more)), 0
        )
        self.scaling = Scaling(
            log, np.where(apart > 0, apart, np.maximum(np.nanmax(np.abs(less), 0), _LEAST))
        )

    def _why(self, at: int, u: np.ndarray) -> str:
        """The divisor in a side's formulas that is zero at all probes, said."""
        spec, (low, high) = self.spec, self._bounds.T
        formulas = (
            [spec.objective]
            if not at
            else [self.constraints[at - 1].sides.less, self.constraints[at - 1].sides.more]
        )
        columns = dict(
            zip((knob.name for knob in spec.knobs), np.exp(low + u * (high - low)).T, strict=True)
        )
        columns |= {name: np.full(len(u), value) for name, value in spec.constants.items()}
        for name, formula in spec.before.items():
            columns[name] = formula(columns, len(u))
        for formula in (*formulas, *spec.before.values(), *spec.after.values()):
            for divisor in formula.divisors():
                if divisor.names <= set(columns) and not divisor(columns, len(u)).any():
                    return f": {formula.text!r} divides by {divisor.text!r}, which is zero"
        return ""

    def values(self, u: np.ndarray, held: np.ndarray) -> Values:
        """At points [B, K]; not a number is worse than anything."""
        return Values(*self.slopes(u, held)[:2])

    def slopes(self, u: np.ndarray, held: np.ndarray, temperature: float | None = None) -> Slopes:
        """At points [B, K], with gradients; maxima softened where a temperature is given."""
        less, more, by_less, by_more = self._batches(u, held, temperature)
        log, scale = self.scaling.log, self.scaling.scale
        with np.errstate(all="ignore"):  # what is no number stays none
            logs = np.log(np.maximum(less, _LEAST)) - np.log(np.maximum(more, _LEAST))
            by_logs = (
                by_less / np.maximum(less, _LEAST)[..., None]
                - by_more / np.maximum(more, _LEAST)[..., None]
            )
        compared = np.arange(len(scale)) > 0  # the objective is compared with nothing
        value = np.where(log, logs, (less - more * compared) / scale)
        by = np.where(
            log[:, None], by_logs, (by_less - by_more * compared[:, None]) / scale[:, None]
        )
        sign = -1 if self.spec.maximise else 1
        return Slopes(sign * value[:, 0], value[:, 1:] - self.shifts, sign * by[:, 0], by[:, 1:])

    def objective(self, f: Any) -> Any:
        """The objective in its own unit from `f`."""
        f = np.asarray(f, np.float64) * (-1 if self.spec.maximise else 1)
        return np.exp(f) if self.scaling.log[0] else f * self.scaling.scale[0]

    def _batches(
        self, u: np.ndarray, held: np.ndarray, temperature: float | None
    ) -> list[np.ndarray]:
        """Sides [B, 1 + C] and gradients [B, 1 + C, K] at points [B, K], in equal batches."""
        self.evaluations += len(u)
        held = np.broadcast_to(held, u.shape)
        done = []
        for start in range(0, len(u), _WIDTH):
            some = [part[start : start + _WIDTH] for part in (u, held)]
            padded = [np.pad(part, ((0, _WIDTH - len(part)), (0, 0)), mode="edge") for part in some]
            found = (
                self._sides(*padded)
                if temperature is None
                else self._soft_sides(*padded, temperature)
            )
            done.append([np.asarray(part)[: len(some[0])] for part in found])
        return [np.concatenate(parts) for parts in zip(*done, strict=True)]

    def _columns(self, u: Any, held: Any, temperature: Any = None) -> dict[str, Any]:
        """Everything that formulas name, at one point."""
        spec, (low, high) = self.spec, self._bounds.T
        xp = jnp if temperature is None else SoftModule(temperature)
        knobs = jnp.where(jnp.isnan(held), jnp.exp(low + u * (high - low)), held)
        columns: dict[str, Any] = {knob.name: knobs[i] for i, knob in enumerate(spec.knobs)}
        columns |= {name: jnp.float64(value) for name, value in spec.constants.items()}
        for name, formula in spec.before.items():
            columns[name] = formula.traced(columns, xp)
        columns |= (
            self._target(columns)
            if temperature is None or self._soft_target is None
            else self._soft_target(columns, temperature)
        )
        for name, formula in spec.after.items():
            columns[name] = formula.traced(columns, xp)
        return columns

    def _sides_of_one(self, u: Any, held: Any, temperature: Any = None) -> tuple[Any, Any]:
        """What must be less and what more [1 + C]; the objective is compared with one."""
        columns = self._columns(u, held, temperature)
        xp = jnp if temperature is None else SoftModule(temperature)
        less = [
            self.spec.objective.traced(columns, xp),
            *(one.sides.less.traced(columns, xp) for one in self.constraints),
        ]
        more = [1.0, *(one.sides.more.traced(columns, xp) for one in self.constraints)]
        return tuple(
            jnp.stack([jnp.asarray(side, jnp.float64) for side in sides]) for sides in (less, more)
        )  # type: ignore[return-value]

    def _sides_and_slopes(self, u: Any, held: Any, temperature: Any = None) -> tuple[Any, ...]:
        sides = self._sides_of_one(u, held, temperature)
        return (*sides, *jax.jacrev(lambda point: self._sides_of_one(point, held, temperature))(u))


def columns_at(spec: SearchSpec, knobs: Mapping[str, float]) -> dict[str, float]:
    """Every column at one point, by the same exact functions as a sweep."""
    columns = {name: np.array([value]) for name, value in (*knobs.items(), *spec.constants.items())}
    for name, formula in spec.before.items():
        columns[name] = formula(columns, 1)
    if spec.target is not None:
        columns |= spec.target.evaluate(columns)
    for name, formula in spec.after.items():
        columns[name] = formula(columns, 1)
    return {
        name: float(value[0])
        for name, value in columns.items()
        if np.asarray(value).dtype.kind in "fiu"
    }


def trust_at(spec: SearchSpec, knobs: Mapping[str, float]) -> dict[str, Any]:
    """Trust in the target at one point: `low_s, high_s` (None if unknown), `in_range, note`."""
    assert spec.target is not None
    columns = {name: np.array([value]) for name, value in (*knobs.items(), *spec.constants.items())}
    for name, formula in spec.before.items():
        columns[name] = formula(columns, 1)
    said = {name: values[0] for name, values in spec.target.trust(columns).items()}
    low_s, high_s = (
        float(said[name]) if np.isfinite(said[name]) else None for name in ("low_s", "high_s")
    )
    return {
        "low_s": low_s,
        "high_s": high_s,
        "in_range": bool(said["in_range"]),
        "note": str(said["note"]),
    }


def value_of(formula: Expression, columns: Mapping[str, float]) -> float:
    """A formula at one point."""
    return float(formula({name: np.array([value]) for name, value in columns.items()}, 1)[0])
