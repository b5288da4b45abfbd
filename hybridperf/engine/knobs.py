"""Named numbers that a function of JAX takes: floats in dicts, with today's values and their units.

`hp.step_function`, `hp.unlike_function`, `hp.serving_function` and `hp.run_function` give functions
of this shape: `f(knobs)` completes what is left out by `f.knobs`, and `f.units` says in what. They
are ordinary functions of JAX: `jax.jit`, `jax.grad`, `jax.vmap`, `jax.hessian`, `jax.checkpoint`
and optimisers work on them, also inside another function's `jit`.

A number farther from today's than a billion times (in float32 a million) counts as that far: at
zero and at infinity a function has the value and slope of the nearest such number, which is their
limit to nine digits (six) and no NaN.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.io.namespace import (
    QUICKLY_COMPILED,
    SOONER_COMPILED,
    Array,
    array_module,
    is_traced,
)

Knobs = Mapping[str, Any]
"""Numbers by name, in dicts."""

# times today's value, either way: in float64, and in float32, where squares must not overflow
_FARTHEST = {8: 1e9, 4: 1e6}
_OFF_AXIS = 1e-20  # of a number: its square is nothing beside one
_NEXT_TO_NONE = 1e-40
T = TypeVar("T")
Settle = Callable[[Any, Knobs, bool], Any]
Known = Callable[[Knobs], Any]
_UNITS = {  # by how a name ends, the first that does
    "_bytes_per_s": "bytes/s", "_bytes_per_s_per_node": "bytes/s",
    "_bytes_per_s_per_gpu": "bytes/s", "_per_s": "1/s", "_per_day": "1/day", "_s": "s", "_w": "W",
    "_bytes": "bytes",
    "transcendental_flops": "flop", "usd_per_hour": "USD/h", "usd_per_kwh": "USD/kWh",
}  # fmt: skip


class KnobFunction:
    """A pure function of named numbers, in JAX.

    Attributes:
        units: of `knobs`, in the same places; "1" for what has none.
    """

    def __init__(
        self, what: str, usual: Knobs, results: Callable[[Any, Knobs], Any],
        arrays: Callable[[], Any] = tuple, settled: Settle | None = None,
        known: Known | None = None,
    ):  # fmt: skip
        """A function of numbers.

        Args:
            what: it tells.
            usual: today's numbers.
            results: by arrays and all of the numbers, both traced.
            arrays: makes a tree of arrays in JAX' present precision, once for each.
            settled: as `compiled` takes it.
            known: results [B] by numbers that are NumPy's arrays [B], real or complex. With it
                nothing is compiled outside of `jax.jit` and `jax.vmap`.
        """
        self._what, self._usual, self._results, self._arrays = what, usual, results, arrays
        self._settled, self._known = settled, known
        self._by_precision: dict[Any, Any] = {}
        self.units = units_of(usual)

    def __repr__(self) -> str:
        return f"<KnobFunction: {self._what} by {', '.join(self._usual)}>"

    @property
    def knobs(self) -> dict[str, Any]:
        """Today's values, in JAX' present precision."""
        precision = jnp.result_type(float)
        with jax.ensure_compile_time_eval():
            return jax.tree.map(lambda x: jnp.asarray(x, precision), dict(self._usual))

    def __call__(self, knobs: Knobs) -> Any:
        """What the function tells, by numbers as `self.knobs` has them; those left out keep today's
        values.

        Raises:
            InputError: when a knob is unknown or no number.
        """
        whole = completed(self.knobs, knobs)
        return self._compiled(self._in_precision(), whole, self._settled)

    def _in_precision(self) -> Any:
        precision = jnp.result_type(float)
        if precision not in self._by_precision:
            with jax.ensure_compile_time_eval():
                self._by_precision[precision] = self._arrays()
        return self._by_precision[precision]

    def _told(self, arrays: Any, knobs: Knobs) -> Any:
        return self._results(arrays, within_reach(knobs, self._usual))

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        known = self._known
        if known is None:
            return compiled(self._told)
        return compiled(self._told, lambda *asked: _by_numpy(known, self._usual, *asked))


def compiled(
    told: Callable[[Any, Knobs], Any],
    by_numpy: Callable[[Knobs, bool], tuple[Any, Any]] | None = None,
) -> Callable[..., Any]:
    """A function of arrays and of knobs, compiled: as part of a larger function that is compiled;
    by itself, values and slopes of first order by functions of their own, compiled in a third of
    the time by options that JAX refuses inside another function, or `by_numpy`: (values, slopes
    where these are asked for) at known knobs.

    Its third argument, where there is one, makes arrays, knobs, and whether slopes are asked for
    arrays with what need not be traced at knobs that are known (`PreparedStep.settled`).
    """
    part, sooner = jax.jit(told), jax.jit(told, compiler_options=SOONER_COMPILED)

    def both(arrays: Any, knobs: Knobs) -> tuple[Any, Any]:
        twice = jax.jacrev(lambda knobs: (told(arrays, knobs),) * 2, has_aux=True)
        by_knob, found = twice(knobs)
        return found, jax.tree.map(lambda _, of: jax.tree.leaves(of), found, by_knob)

    # number by number: XLA takes a second to take an array of them apart
    @jax.jit
    def moved(found: Any, slopes: Any, ways: Knobs) -> Any:
        each = jax.tree.leaves(ways)
        return jax.tree.map(lambda _, of: sum(map(operator.mul, of, each)), found, slopes)

    slopes = jax.jit(both, compiler_options=QUICKLY_COMPILED)

    def whole(arrays: Any, knobs: Knobs, settled: Settle | None = None) -> Any:
        def at_these(knobs: Knobs, with_slopes: bool) -> Any:
            return arrays if settled is None else settled(arrays, knobs, with_slopes)

        if is_traced():
            return part(at_these(knobs, False), knobs)

        # of knobs alone: as an argument each array would get slopes of zero, compiled one by one
        @jax.custom_jvp
        def alone(knobs: Knobs) -> Any:
            if is_traced(knobs):
                return part(at_these(knobs, False), knobs)
            return by_numpy(knobs, False)[0] if by_numpy else sooner(at_these(knobs, False), knobs)

        @alone.defjvp
        def _(at: tuple[Knobs], ways: tuple[Knobs]) -> tuple[Any, Any]:
            if is_traced(at):  # of many points at once, or their own slopes
                return jax.jvp(functools.partial(part, at_these(*at, True)), at, ways)
            found, by_knob = by_numpy(*at, True) if by_numpy else slopes(at_these(*at, True), *at)
            return found, moved(found, by_knob, *ways)

        return alone(knobs)

    return whole


def completed(usual: Knobs, given: Knobs, where: str = "") -> dict[str, Any]:
    """The usual numbers with those that are given; `InputError` for what is unknown."""
    if not isinstance(given, Mapping):
        expected = f"expected a dict of knobs{where}, some of {', '.join(usual)}"
        raise InputError(f"{expected}; got {type(given).__name__}")
    out = dict(usual)
    for name, value in given.items():
        if name not in usual:
            raise unknown("knob", str(name), usual, f"known{where} are {', '.join(usual)}")
        if isinstance(usual[name], Mapping):
            out[name] = completed(usual[name], value, f" of {name}")
            continue
        if np.ndim(value):
            shape = f"got an array of shape {list(np.shape(value))}"
            raise InputError(f"expected a number for knob {name}, {shape}; use jax.vmap")
        if isinstance(value, int | float | np.number) and not value >= 0:
            raise InputError(f"expected a knob {name} of 0 or more, got {value}; mend it")
        alike = isinstance(value, jax.Array) and value.dtype == usual[name].dtype
        if alike and not value.weak_type:
            out[name] = value  # as it is: JAX traces each conversion
            continue
        known = not isinstance(value, jax.core.Tracer)  # and stays so where others are traced
        with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
            out[name] = jnp.asarray(value, usual[name].dtype)
    return out


def units_of(knobs: Knobs) -> dict[str, Any]:
    """Units in the same places, by names; "1" for what has none."""

    def unit(path: Any, _: object) -> str:
        found = (
            of for one in reversed(path) for end, of in _UNITS.items() if one.key.endswith(end)
        )
        return next(found, "1")  # of the place where its own name tells none

    return jax.tree_util.tree_map_with_path(unit, dict(knobs))


def flattened(knobs: Knobs) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each number with the names of its place."""
    for name, value in knobs.items():
        if isinstance(value, Mapping):
            yield from (((name, *rest), number) for rest, number in flattened(value))
        else:
            yield (name,), value


def farthest() -> float:
    """Times today's value that a number counts at most, or at least, in the present precision."""
    return _FARTHEST[jnp.result_type(float).itemsize]


def within_reach(numbers: T, today: T) -> T:
    """A tree of numbers, those farther from today's than counts as that far."""
    reach = farthest()

    def near(value: Any, usual: Any) -> Array:
        module = array_module(usual)  # bounds of known numbers are constants
        known = array_module(value, usual) is np
        usual = module.asarray(usual, float if known else jnp.result_type(value))
        some = usual > 0
        most = module.where(some, usual * reach, reach)
        return clipped(value, module.where(some, usual / reach, -reach), most)

    return jax.tree.map(near, numbers, today)


def clipped(value: Array, least: Array, most: Array) -> Array:
    """A number within bounds; beyond them with the slope that it has there."""
    if array_module(value, least, most) is not np:
        return _clipped(value, least, most)
    near = np.clip(np.real(value), least, most)
    return near + 1j * np.imag(value) if np.iscomplexobj(value) else near


@jax.custom_jvp
def _clipped(value: Array, least: Array, most: Array) -> Array:
    return jnp.clip(value, least, most)


@_clipped.defjvp
def _of_clipped(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    return _clipped(*primals), tangents[0]


def _by_numpy(results: Known, usual: Knobs, knobs: Knobs, with_slopes: bool) -> tuple[Any, Any]:
    """(results, of each result its slopes [K] by all numbers, or None) at known numbers.

    Slopes are imaginary parts of the function a little off the real axis (Squire and Trapp, SIAM
    Review 1998): df/dx = Im f(x + ih) / h, to the last digit, as nothing is subtracted. Of zero,
    which a function may tell from all others, that of a number next to it.
    """
    leaves, tree = jax.tree.flatten(within_reach(jax.device_get(knobs), usual))
    columns, precision = np.array(leaves, float)[:, None], jnp.result_type(float)
    off = np.zeros_like(columns)
    if with_slopes:
        near = np.where(columns > 0, columns, _NEXT_TO_NONE)
        own, off = np.eye(len(columns)) > 0, _OFF_AXIS * near
        columns = np.hstack([columns, np.where(own, near, columns) + 1j * own * off])
    with np.errstate(all="ignore"):  # of branches that are not taken
        found = results(jax.tree.unflatten(tree, list(columns)))

    def told(values: Array) -> Array:
        return jnp.asarray(values, precision)

    at = jax.tree.map(lambda of: told(np.real(of[0])), found)
    if not with_slopes:
        return at, None
    return at, jax.tree.map(lambda of: list(np.imag(of[1:]) / off[:, 0]), found)
