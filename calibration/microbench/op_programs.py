"""Ops to be measured, described and not made: a program of one shape, a family of programs.

A family turns a point of the unit cube into one function of a shape. Points come from a Sobol
sequence (space-filling), sizes are log-uniform; some are powers of two, which hit caches
differently, some multiples of eight, which suit vector units, some odd.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hybridperf_calibration.microbench.lookups import Lookups

FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class OpProgram:
    """One op of one shape; arguments are described, not made: floats, indices or lookups."""

    name: str
    fn: Callable[..., Any]
    arguments: Sequence[tuple]
    carry: int = 0  # leading arguments that are donated and come back as the leading results
    # the row's columns where the op is a composite; None: read from the compiled program
    columns: dict[str, Any] | None = None
    # leading arguments that all sets have in common: a table that different indices look into
    shared: int = 0
    result_bytes: float | None = None  # of one copy, where larger than its largest own argument
    # makes the op's operands inside the program; timed alone and taken off
    prelude: Callable[..., Any] | None = None
    # of an embedding bag: who looks up what; the row's columns come from it
    lookups: Lookups | None = None
    times: float = 1.0  # that the op counts: a gradient as so many forward passes
    alone: bool = False  # one copy to a call: beside copies of itself XLA would fuse it differently

    def shared_bytes(self) -> float:
        """Bytes of the arguments that all sets have in common."""
        return sum(FLOAT_BYTES * math.prod(a[1]) for a in self.arguments[: self.shared])

    def own_bytes(self) -> list[float]:
        """Bytes of each of the other arguments."""
        return [float(FLOAT_BYTES * math.prod(a[1])) for a in self.arguments[self.shared :]]


@dataclasses.dataclass(frozen=True)
class Family:
    """`build(u)` maps a point u of the unit cube to a program; `quick` and `full` count points."""

    name: str
    dimensions: int
    quick: int
    full: int
    build: Callable[[np.ndarray], OpProgram]


@dataclasses.dataclass(frozen=True)
class Reach:
    """How large ops are measured, as a multiple of what one core of a CPU runs in a step."""

    lengths: float = 1.0  # of the largest dimension
    work: float = 1.0  # of the most elements and flops of an op


GPU = Reach(lengths=4.0, work=64.0)
_REACH = contextvars.ContextVar("_REACH", default=Reach())  # noqa: B039 - frozen


@contextlib.contextmanager
def reaching(reach: Reach) -> Iterator[None]:
    """Programs built inside are as large as `reach` says."""
    token = _REACH.set(reach)
    try:
        yield
    finally:
        _REACH.reset(token)


def most(of_a_core: float) -> float:
    """Elements or flops of one op, at most, of what a core of a CPU has."""
    return of_a_core * _REACH.get().work


def size(u: float, low: float, high: float, snap: float) -> int:
    """A log-uniform whole number in [low, high]: by `snap` a power of two, multiple of 8 or odd.

    Widths of real models are mostly of the first two kinds, batches and vocabularies of any. `high`
    is that of one core of a CPU (`reaching`).
    """
    high *= _REACH.get().lengths
    value = low * (high / low) ** u
    if snap < 0.3:
        return int(min(max(2 ** round(math.log2(value)), low), high))
    if snap < 0.7 and value >= 16:
        return int(max(round(value / 8) * 8, low))
    return max(round(value) | 1, int(low))


def matrix(rows: int, cols: int, elements: float) -> tuple[int, int]:
    """Rows and columns of at most so many elements: rows are halved until they are."""
    while rows * cols > most(elements):
        rows //= 2
    return rows, cols


def floats(*shape: int) -> tuple:
    return ("float", shape)


def singles(*shape: int) -> tuple:
    """Single precision, whatever the op is measured in."""
    return ("single", shape)


def indices(below: int, *shape: int) -> tuple:
    return ("index", shape, below)


def points(family: Family, count: int, seed: int = 0) -> np.ndarray:
    """`count` points of a scrambled Sobol sequence [count, dimensions]."""
    from scipy.stats import qmc

    rounded_up = 1 << max(count - 1, 1).bit_length()
    return qmc.Sobol(family.dimensions, seed=seed).random(rounded_up)[:count]
