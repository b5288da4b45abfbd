"""A search as functions of points in the unit cube: its objective f and its constraints g.

    knob_k = least_k (most_k / least_k)^u_k     0 <= u_k <= 1; a held knob (a whole number) stays
    f(u)   = log objective                      negated to maximise
    g_c(u) = log less_c - log more_c <= 0

Where a side can be zero or less, f is objective / scale and g_c is (less - more) / scale.
In logs most performance models are convex (sums and maxima of products of powers), slopes are
elasticities, and a constraint's multiplier is what one percent of its limit is worth. Which form
each takes is found by probing the box. Axes: B points, K knobs, C constraints.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from hybridperf.explore.searches.functions import SearchSpec
from hybridperf.io import InputError
from hybridperf.io.namespace import QUICKLY_COMPILED, Array

_LEAST = 1e-300  # logs of nothing
_WIDTH = 16  # points evaluated together
FREE = np.nan  # a knob that is not held


class PointSlopes(NamedTuple):
    """What is compared at points, with gradients in the unit cube."""

    f: Any  # [B]
    g: Any  # [B, C] inequalities, then equalities
    df: Any  # [B, K]
    dg: Any  # [B, C, K]


@dataclasses.dataclass
class SearchProblem:
    """One search, traced. `evaluations` counts the points whose prediction was asked for."""

    spec: SearchSpec
    evaluations: int = 0
    indifferent: bool = False  # True: f is 0, and what is sought is what misses the limits least
    # the form that objective and constraints take [1 + C], the objective first: in logs, or a scale
    log: np.ndarray = dataclasses.field(init=False)
    scale: np.ndarray = dataclasses.field(init=False)
    # [C] added to the logs of limits: what if they were looser
    shifts: np.ndarray = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        order = sorted(range(len(spec.constraints)), key=lambda i: spec.constraints[i].sides.equal)
        self.constraints = [spec.constraints[i] for i in order]
        self.equal = np.array([one.sides.equal for one in self.constraints], bool)
        self.shifts = np.zeros(len(self.constraints))
        self._bounds = np.log([[knob.least, knob.most] for knob in spec.knobs])
        self._sides = jax.jit(jax.vmap(self._sides_and_slopes), compiler_options=QUICKLY_COMPILED)

    @property
    def knobs(self) -> int:
        return len(self.spec.knobs)

    def knob_values(self, u: np.ndarray, held: ArrayLike) -> np.ndarray:
        """Values of knobs [..., K] at points of the cube."""
        low, high = self._bounds.T
        return np.where(np.isnan(held), np.exp(low + np.clip(u, 0, 1) * (high - low)), held)

    def named(self, u: np.ndarray, held: ArrayLike) -> dict[str, float]:
        """Values of knobs by name at one point [K]."""
        values = map(float, self.knob_values(u, held))
        return dict(zip((knob.name for knob in self.spec.knobs), values, strict=True))

    def place(self, values: np.ndarray) -> np.ndarray:
        """Points of the cube [..., K] of values of knobs."""
        low, high = self._bounds.T
        return np.clip((np.log(values) - low) / (high - low), 0, 1)

    def probe(self, u: np.ndarray) -> None:
        """Find the form of objective and constraints from points [B, K]; at least one is finite."""
        less, more, *_ = self._batches(u, FREE)
        with np.errstate(all="ignore"):
            numbers = np.isfinite(less - more)
        sides = ["the objective", *(f"constraint {one.text}" for one in self.constraints)]
        for at, what in enumerate(sides):
            if not numbers[:, at].any():
                nowhere = "is no number anywhere within the knobs' bounds"
                raise InputError(f"{what} {nowhere}; check its formula, or narrow the bounds")
        less, more = (np.where(numbers, side, np.nan) for side in (less, more))
        self.log = (np.nanmin(less, 0) > 0) & (np.nanmin(more, 0) > 0)
        compared = np.where(np.arange(less.shape[1]) == 0, np.nanmedian(less, 0), more)
        apart = np.nanmedian(np.abs(less - compared), 0)
        largest = np.maximum(np.nanmax(np.abs(less), 0), _LEAST)
        self.scale = np.where(apart > 0, apart, largest)

    def slopes(self, u: np.ndarray, held: ArrayLike) -> PointSlopes:
        """At points [B, K]; NaN is the worst."""
        less, more, by_less, by_more = self._batches(u, held)
        log, scale = self.log, self.scale
        with np.errstate(all="ignore"):  # what is no number stays none
            logs = np.log(np.maximum(less, _LEAST)) - np.log(np.maximum(more, _LEAST))
            by_log_less = by_less / np.maximum(less, _LEAST)[..., None]
            by_logs = by_log_less - by_more / np.maximum(more, _LEAST)[..., None]
        compared = np.arange(len(scale)) > 0  # the objective is compared with nothing
        value = np.where(log, logs, (less - more * compared) / scale)
        by_plain = (by_less - by_more * compared[:, None]) / scale[:, None]
        by = np.where(log[:, None], by_logs, by_plain)
        sign = -1 if self.spec.maximise else 1
        g = value[:, 1:] - self.shifts
        sign = 0 if self.indifferent else sign
        return PointSlopes(sign * value[:, 0], g, sign * by[:, 0], by[:, 1:])

    def objective(self, f: Any) -> Any:
        """The objective in its own unit from `f`."""
        f = np.asarray(f, np.float64) * (-1 if self.spec.maximise else 1)
        return np.exp(f) if self.log[0] else f * self.scale[0]

    def _batches(self, u: np.ndarray, held: ArrayLike) -> list[np.ndarray]:
        """Sides [B, 1 + C] and gradients [B, 1 + C, K] at points [B, K], in equal batches."""
        self.evaluations += len(u)
        held = np.broadcast_to(held, u.shape)
        done = []
        for start in range(0, len(u), _WIDTH):
            some = [part[start : start + _WIDTH] for part in (u, held)]
            padded = [np.pad(part, ((0, _WIDTH - len(part)), (0, 0)), mode="edge") for part in some]
            done.append([np.asarray(part)[: len(some[0])] for part in self._sides(*padded)])
        return [np.concatenate(parts) for parts in zip(*done, strict=True)]

    def _sides_of_one(self, u: Any, held: Any) -> tuple[Array, ...]:
        """What must be less and what more [1 + C]; the objective is compared with one."""
        spec, (low, high) = self.spec, self._bounds.T
        knobs = jnp.where(jnp.isnan(held), jnp.exp(low + u * (high - low)), held)
        columns: dict[str, Any] = {knob.name: knobs[i] for i, knob in enumerate(spec.knobs)}
        told = spec.results(columns)
        columns |= {name: jnp.asarray(value, jnp.float64) for name, value in told.items()}
        sides = [one.sides for one in self.constraints]
        formulas = [spec.objective, *(side.less for side in sides)]
        less = [formula.traced(columns, jnp) for formula in formulas]
        more = [1.0, *(side.more.traced(columns, jnp) for side in sides)]
        both = ([jnp.asarray(one, jnp.float64) for one in each] for each in (less, more))
        return tuple(map(jnp.stack, both))

    def _sides_and_slopes(self, u: Any, held: Any) -> tuple[Any, ...]:
        def twice(point: Any) -> tuple[Any, Any]:
            sides = self._sides_of_one(point, held)
            return sides, sides

        slopes, sides = jax.jacrev(twice, has_aux=True)(u)
        return (*sides, *slopes)
