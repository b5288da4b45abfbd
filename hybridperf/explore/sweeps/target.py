"""What a sweep asks at each point: a target takes columns of parameters and gives columns of
results, a chunk of points at a time.

A new kind is a subclass of `WrittenTarget`, registered under the word of `[target] kind`. It is
read before any point is made, so that everything wrong with a spec is reported before anything is
compiled.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hybridperf.explore.sweeps.written import TARGETS, Part
from hybridperf.io import InputError

Columns = Mapping[str, np.ndarray]  # [n] by name

_LARGEST = 1e24  # as of work of one op, `ops/table.py`


class Target(abc.ABC):
    """One thing to ask of many points."""

    # columns that `evaluate` gives, of the kind or of what was read: float, bool or str
    results: Mapping[str, type]
    seconds: str = "time_s"  # the result that is empty where a point is not predicted
    models: Sequence[Any] = ()  # what it asks: they tell what to know first, and what it is
    trusted: ClassVar[bool] = True  # `trust` says how far

    @abc.abstractmethod
    def known(self) -> set[str]:
        """Names of the parameters that the target reads."""

    @abc.abstractmethod
    def check(self, extremes: Columns, given: set[str]) -> None:
        """`InputError` for impossible values, or for a parameter missing among `given`."""

    @abc.abstractmethod
    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        """Results [n] by name at n points; `columns` may hold more than it reads."""

    def taken(self, columns: Columns) -> dict[str, np.ndarray]:
        """Numbers [n] of the parameters that it reads."""
        names = sorted(self.known() & set(columns))
        return {name: np.asarray(columns[name], np.float64) for name in names}

    def remarks(self) -> list[str]:
        """Notes before any result is read, such as that a datasheet stands in for measurements."""
        return [note for model in self.models for note in model.shortcomings()]

    def trust(self, columns: Columns) -> dict[str, np.ndarray]:
        """`low_s, high_s, in_range, note` [n] at a few points, slowly; NaN where unknown."""
        results = self.evaluate(columns)
        return {name: results[name] for name in ("low_s", "high_s", "in_range", "note")}

    def fingerprint(self) -> str:
        """Changes with whatever could change a result."""
        assert self.models, "a target without models has its own fingerprint"
        return "-".join(model.fingerprint() for model in self.models)

    def traced(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Results of ONE point as a pure JAX function of the parameters `names`, for gradients.

        `InputError` for a kind that has no such function.
        """
        kind, mend = type(self).__name__, "kinds step and program can"
        raise InputError(f"a target of this kind ({kind}) can be swept and not searched; {mend}")

    def softened(
        self, names: Collection[str]
    ) -> Callable[[Mapping[str, Any], Any], dict[str, Any]]:
        """`traced` with a second argument, the temperature of its maxima in log seconds."""
        kind, mend = type(self).__name__, "leave out [method] smoothing"
        raise InputError(f"a target of this kind ({kind}) cannot be smoothed; {mend}")


class WrittenTarget(Target):
    """A target that a spec can ask for."""

    Given: ClassVar[type[Part]]  # what `[target]` holds: `kind`, a literal, and its keys

    @classmethod
    @abc.abstractmethod
    def read(cls, given: Any, folder: Path, extremes: Columns) -> WrittenTarget:
        """From its `Given`; files are looked for from `folder`.

        `extremes`: values of each parameter that include its smallest and largest (of words, all).
        """


_KINDS: dict[str, type[WrittenTarget]] = {}


def register(kind: str) -> Callable[[type[WrittenTarget]], type[WrittenTarget]]:
    """Class decorator: specs ask for the target by this word."""

    def add(cls: type[WrittenTarget]) -> type[WrittenTarget]:
        _KINDS[kind], TARGETS[kind] = cls, cls.Given
        return cls

    return add


def read_target(given: Any, folder: Path, extremes: Columns) -> WrittenTarget:
    """The target of a spec's `[target]`, its keys checked; `extremes`: see `WrittenTarget.read`."""
    if given is None:
        raise InputError(f"[target] needs a kind: one of {', '.join(_KINDS)}")
    return _KINDS[given.kind].read(given, folder, extremes)


def place(name: str, folder: Path) -> str:
    """A file or folder next to the spec by its whole path; any other name as it is."""
    path = folder / name
    return str(path.resolve()) if os.path.exists(path) else name


def check_positive(
    name: str, values: np.ndarray, *, zero: bool = False, least: float = 0.0
) -> None:
    """`InputError` unless all values are finite numbers above zero (at least zero with `zero`)."""
    rule = f"parameter {name} must be numbers {'of at least' if zero else 'above'} zero"
    if values.dtype.kind == "b":
        raise InputError(f"{rule}, got true or false")
    wrong = values
    if values.dtype.kind in "iuf":
        wrong = values[~(np.isfinite(values) & ((values >= 0) if zero else (values > 0)))]
    if len(wrong):
        raise InputError(f"{rule}, got {wrong[0]!s}")
    if len(values) and values.max() > _LARGEST:
        raise InputError(f"parameter {name} must be at most {_LARGEST:g}, got {values.max():g}")
    if len(values) and values.min() < least:
        raise InputError(f"parameter {name} must be at least {least:g}, got {values.min():g}")
