"""A call of an op of PyTorch: its name, the tensors it takes and gives, numbers among its inputs.

Wherever it comes from: a program captured on tensors without memory (`capture.py`), or a trace of
one that ran (`traces/recorded`). `ops.toml` says what the names mean, `ops.py` what the calls cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io import shipped_toml

NAMES = shipped_toml(__package__, "ops.toml")


@dataclass(frozen=True)
class Tensor:
    """One tensor that an op takes or gives."""

    shape: tuple[int, ...]
    dtype: str  # as in `hardware.DTYPE_BYTES`
    device: str = ""  # "cuda:0", "cpu"; empty where not recorded
    id: int = 0  # of the tensor, 0 where not recorded
    storage: int = 0  # of its memory, 0 where not recorded
    transposed: bool = False  # a matrix stored column by column, where recorded
    strides: tuple[int, ...] = ()  # elements from one to the next of a dimension, where recorded
    in_pairs: bool = False  # complex numbers: two real ones side by side along the last dimension

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        return self.elements * DTYPE_BYTES[self.dtype]


Argument = Tensor | tuple[Tensor, ...] | None  # None: no tensor, or none that can be read


class UnknownOp(Exception):
    """What is known of a call says too little to price it."""


def needs(said: object) -> None:
    """`UnknownOp` unless the call says what a rule needs."""
    if not said:
        raise UnknownOp


class TorchCall(NamedTuple):
    """One call: what our rules for ops are given."""

    kind: str  # the op's name without namespace, and without the "_" of an op in place
    given: tuple[Argument, ...]
    results: tuple[Argument, ...] = ()  # where recorded
    values: Sequence[Any] = ()  # the arguments themselves, where recorded

    @property
    def read(self) -> list[Tensor]:
        """All tensors that it takes."""
        return flat(self.given)

    @property
    def written(self) -> list[Tensor]:
        """All tensors that it returns."""
        return flat(self.results)

    @property
    def lists(self) -> list[tuple[Tensor, ...]]:
        """The arguments that are lists of tensors."""
        return [argument for argument in self.given if isinstance(argument, tuple)]

    @property
    def made(self) -> Tensor:
        """The first tensor that it returns, else that it takes; `UnknownOp` without any."""
        tensors = self.written or self.read
        needs(tensors)
        return tensors[0]

    def tensor(self, place: int) -> Tensor | None:
        """The argument at a place, if it is a single tensor."""
        one = self.given[place] if len(self.given) > place else None
        return one if isinstance(one, Tensor) else None

    def single(self, *places: int) -> list[Tensor]:
        """The single tensors at these places; `UnknownOp` where one is missing."""
        found = [one for one in map(self.tensor, places) if one is not None]
        needs(len(found) == len(places))
        return found

    def value(self, place: int) -> Any:
        """The number, flag or list of them at a place; None where none is recorded."""
        return number(self.values[place]) if len(self.values) > place else None


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of some broadcast to; `UnknownOp` where there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise UnknownOp from error


def flat(given: Sequence[Argument]) -> list[Tensor]:
    """All tensors, those of lists included, in order."""
    out: list[Tensor] = []
    for argument in given:
        if isinstance(argument, Tensor):
            out.append(argument)
        elif argument is not None:
            out.extend(argument)
    return out


def number(value: Any) -> Any:
    """A number, flag or list of them, also written as text; None for anything else."""
    if isinstance(value, str):
        if value in ("True", "False"):
            return value == "True"
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, list):
        return value if all(isinstance(v, bool | int | float) for v in value) else None
    return value if isinstance(value, bool | int | float) else None


def is_whole(value: Any, least: int = 0) -> TypeGuard[int]:
    """Whether something is a whole number of at least `least`, and no flag."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
