"""What a formula can be in a box: arithmetic on intervals, many boxes at once.

An interval never excludes a value that is possible; it may include some that are not, the less the
smaller the box. What has no bound that we know (a division by an interval across zero, a remainder)
is everything from minus to plus infinity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Numbers from `low` to `high` [n], one pair for each box."""

    low: Any
    high: Any

    __array_ufunc__ = None  # a NumPy number on the left leaves the operation to us

    def __neg__(self) -> Bounds:
        return Bounds(-self.high, -self.low)

    def __add__(self, other: Any) -> Bounds:
        other = _interval(other)
        return Bounds(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Any) -> Bounds:
        return self + -_interval(other)

    def __mul__(self, other: Any) -> Bounds:
        return _corners(np.multiply, self, _interval(other))

    def __truediv__(self, other: Any) -> Bounds:
        other = _interval(other)
        return _unless((other.low <= 0) & (other.high >= 0), _corners(np.divide, self, other))

    def __floordiv__(self, other: Any) -> Bounds:
        return floor(self / other)

    def __mod__(self, other: Any) -> Bounds:
        del other
        return _unless(np.ones(np.shape(self.low), bool), self)

    def __pow__(self, other: Any) -> Bounds:
        """Monotonous in each of both for a base above zero, so that corners hold the extremes."""
        return _unless(np.asarray(self.low) <= 0, _corners(np.power, self, _interval(other)))

    def __radd__(self, other: Any) -> Bounds:
        return self + other

    def __rsub__(self, other: Any) -> Bounds:
        return _interval(other) - self

    def __rmul__(self, other: Any) -> Bounds:
        return self * other

    def __rtruediv__(self, other: Any) -> Bounds:
        return _interval(other) / self

    def __rfloordiv__(self, other: Any) -> Bounds:
        return _interval(other) // self

    def __rmod__(self, other: Any) -> Bounds:
        return self % other

    def __rpow__(self, other: Any) -> Bounds:
        return _interval(other) ** self


def minimum(a: Any, b: Any) -> Bounds:
    """The lesser of two."""
    return _each(np.minimum, a, b)


def maximum(a: Any, b: Any) -> Bounds:
    """The greater of two."""
    return _each(np.maximum, a, b)


def log2(a: Any) -> Bounds:
    """The logarithm; nothing is known of it where numbers may be zero or less."""
    of = _interval(a)
    return _unless(np.asarray(of.low) <= 0, _each(np.log2, of))


def ceil(a: Any) -> Bounds:
    """The whole number above."""
    return _each(np.ceil, a)


def floor(a: Any) -> Bounds:
    """The whole number below."""
    return _each(np.floor, a)


def _interval(value: Any) -> Bounds:
    return value if isinstance(value, Bounds) else Bounds(value, value)


def _each(rising: Callable, *given: Any) -> Bounds:
    """A function that rises in all it is given."""
    of = [_interval(one) for one in given]
    with np.errstate(all="ignore"):
        return Bounds(rising(*(one.low for one in of)), rising(*(one.high for one in of)))


def _corners(function: Callable, a: Bounds, b: Bounds) -> Bounds:
    with np.errstate(all="ignore"):
        corners = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    stacked = np.stack(np.broadcast_arrays(*corners))
    low, high = stacked.min(0), stacked.max(0)
    return Bounds(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def _unless(unknown: Any, known: Bounds) -> Bounds:
    return Bounds(np.where(unknown, -np.inf, known.low), np.where(unknown, np.inf, known.high))
