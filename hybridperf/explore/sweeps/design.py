"""Which points a sweep asks about: each is determined by its index alone, so any part can be made.

A design is a product of axes, the last of which varies fastest: point i has place `i // stride %
size` on each axis (mixed radix). An axis is the values of one parameter, the rows of a table file
(its columns vary together), or the joint design of all that are drawn: its place j gives each of
them one dimension of the j-th point of the scrambled Sobol sequence.

Values of a field as people write them (`values_of`):

    8                 one value
    1,2,4,8           each of a list, numbers or words
    256..4096         powers of two from the first to the second
    1..9:2            1, 3, 5, 7, 9
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.io import InputError

LARGEST_DESIGN = 2**53  # points: indices stay whole numbers in every column type


@dataclasses.dataclass(frozen=True)
class ListAxis:
    """The columns of a list or of a table, one place after the other."""

    held: Mapping[str, np.ndarray]  # [size] each
    flags: bool = False  # they were written as true and false, and are held as 1 and 0

    @property
    def size(self) -> int:
        return len(next(iter(self.held.values())))

    def names(self) -> list[str]:
        return list(self.held)

    def columns(self, place: np.ndarray) -> dict[str, np.ndarray]:
        """Values of its parameters at some places [n]."""
        return {name: values[place] for name, values in self.held.items()}

    def extremes(self) -> dict[str, np.ndarray]:
        """Values among which the least and largest of each parameter are; of words, all."""
        if not self.flags:
            return dict(self.held)
        return {name: values.astype(bool) for name, values in self.held.items()}


@dataclasses.dataclass(frozen=True)
class SampledRange:
    """Where a parameter that is drawn lies."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def of(self, uniform: np.ndarray) -> np.ndarray:
        """Numbers of the range from numbers in [0, 1)."""
        # each whole number owns the interval up to the next
        low, high = (self.low, self.high + (1 if self.integer else 0))
        value = low * (high / low) ** uniform if self.log else low + (high - low) * uniform
        if self.integer:
            return np.clip(np.floor(value), self.low, self.high).astype(np.int64)
        return np.clip(value, low, high)

    def extremes(self) -> np.ndarray:
        """Both ends of the range, which bound every sample."""
        return np.array([self.low, self.high])


@dataclasses.dataclass(frozen=True)
class SampledList:
    """Values of a parameter that is drawn from some alone."""

    values: np.ndarray

    def of(self, uniform: np.ndarray) -> np.ndarray:
        """Each value for an equal share of numbers in [0, 1)."""
        at = np.floor(uniform * len(self.values)).astype(np.int64)
        return self.values[np.minimum(at, len(self.values) - 1)]

    def extremes(self) -> np.ndarray:
        """All values of the list, each of which may be drawn."""
        return self.values


@dataclasses.dataclass(frozen=True)
class JointAxis:
    """Parameters that are drawn: `size` points in all of them together."""

    size: int
    seed: int
    drawn: Mapping[str, SampledRange | SampledList]

    def names(self) -> list[str]:
        return [*self.drawn]

    def columns(self, place: np.ndarray) -> dict[str, np.ndarray]:
        at, back = np.unique(place, return_inverse=True)
        points = _sobol(self.seed, len(self.drawn), at)[back]
        return {name: one.of(points[:, d]) for d, (name, one) in enumerate(self.drawn.items())}

    def extremes(self) -> dict[str, np.ndarray]:
        return {name: one.extremes() for name, one in self.drawn.items()}


Axis = ListAxis | JointAxis  # some parameters that vary together over `size` places


@dataclasses.dataclass(frozen=True)
class Design:
    """Points of a sweep as a product of axes, each known by its index alone."""

    axes: Sequence[Axis]

    @property
    def size(self) -> int:
        return math.prod(axis.size for axis in self.axes)

    def names(self) -> list[str]:
        return [name for axis in self.axes for name in axis.names()]

    def points(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Columns of the points with indices from `start` to before `stop`."""
        index = np.arange(start, stop, dtype=np.int64)
        out: dict[str, np.ndarray] = {}
        stride = self.size
        for axis in self.axes:
            stride //= axis.size
            out |= axis.columns(index // stride % axis.size)
        return out

    def extremes(self) -> dict[str, np.ndarray]:
        """Extreme values of every parameter, by name (`ListAxis.extremes`)."""
        return {name: values for axis in self.axes for name, values in axis.extremes().items()}


def checked(design: Design) -> Design:
    """The design, unless it is empty or larger than indices reach."""
    if not design.axes:
        raise InputError("expected a field with its values, or rows with columns, got none")
    for axis in design.axes:
        if axis.size < 1:
            raise InputError(f"field {axis.names()[0]} has no values; expected at least one")
    if design.size > LARGEST_DESIGN:
        limit = f"at most {LARGEST_DESIGN:.3g} can be counted; take coarser grids"
        raise InputError(f"the design has {design.size:.3g} points, {limit}")
    return design


def _sobol(seed: int, dimensions: int, place: np.ndarray) -> np.ndarray:
    """Points [n, dimensions] of the scrambled Sobol sequence at sorted, mostly adjacent places."""
    from scipy.stats import qmc

    runs = np.split(place, np.flatnonzero(np.diff(place) != 1) + 1)
    made = []
    for run in runs:
        sampler = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
        if run[0] > 0:
            sampler.fast_forward(int(run[0]))
        with warnings.catch_warnings():
            # numbers of points other than powers of two balance less: the user's choice
            warnings.simplefilter("ignore", UserWarning)
            made.append(sampler.random(len(run)))
    return np.concatenate(made)


_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?")
_BEGUN = re.compile(rf"{_NUMBER}\.\.")
_MOST = 10**6


def values_of(text: str) -> list[Any]:
    """The values that a text says; numbers as numbers unless words are among them.

    Raises:
        InputError: for a range that holds nothing, or goes nowhere.
    """
    words = [word for part in text.split(",") if part.strip() for word in _part(part.strip())]
    if not words:
        raise InputError(f"expected values such as 8, 1,2,4 or 256..4096, got {text!r}")
    numbers = [_number(word) if isinstance(word, str) else word for word in words]
    whole = all(one is not None for one in numbers)
    return numbers if whole else [str(word) for word in words]


def _part(text: str) -> list[Any]:
    found = _RANGE.fullmatch(text)
    if found is None:
        if _BEGUN.match(text):
            raise InputError(f"expected a range such as 256..4096 or 1..9:2, got {text!r}; mend it")
        return [text]
    start, stop = (_real(one) for one in found.groups()[:2])
    if found[3] is None:
        if not 0 < start <= stop:
            raise InputError(
                "expected powers of two between two numbers above zero, the least first, got"
                f" {text}; a range of equal steps is 0..8:2"
            )
        powers = range(math.ceil(math.log2(start)), math.floor(math.log2(stop)) + 1)
        values = [2**power if power >= 0 else 2.0**power for power in powers]
        if not values:
            raise InputError(f"expected a range that holds a power of two, got {text}; widen it")
        return values
    step = _real(found[3])
    count = math.floor((stop - start) / step + 1e-9) + 1 if step else 0
    if not 0 < count <= _MOST:
        raise InputError(
            f"expected a range of 1 to {_MOST:,} steps from its first number on, got {text}"
        )
    return [start + at * step for at in range(count)]


def _real(text: str) -> Any:
    if not math.isfinite(value := float(text)):
        raise InputError(f"expected numbers up to 1.8e308, got {text[:40]}; mend it")
    return value if re.search(r"[.eE]", text) else int(text)


def _number(word: str) -> Any:
    return _real(word) if re.fullmatch(_NUMBER, word) else None
