"""Arguments of an op as a trace writes them -> tensors.

PyTorch's execution traces write a type as `Tensor(float)` or `GenericList[Tensor(float),Int]`, its
profiler as `float` or `TensorList`; numbers and flags are `Int`, `Bool`, `Scalar` and the like.
Shapes are lists, of lists where the argument is a list. Values, where recorded, are `[tensor,
storage, offset, elements, bytes per element, device]` for a tensor and the number itself for a
number.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from hybridperf.hardware import DTYPE_BYTES

NAMES = tomllib.loads(resources.files(__package__).joinpath("ops.toml").read_text())
_LIST = re.compile(r"GenericList\[|TensorList$")
_VALUE_FIELDS = 6  # of a tensor's value
LARGEST_TENSOR = 2**60  # elements; more is a damaged file


@dataclass(frozen=True)
class Tensor:
    """One tensor that an op takes or gives."""

    shape: tuple[int, ...]
    dtype: str  # as in `hardware.DTYPE_BYTES`
    device: str = ""  # "cuda:0", "cpu"; empty where not recorded
    id: int = 0  # of the tensor, 0 where not recorded
    storage: int = 0  # of its memory, 0 where not recorded

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        return self.elements * DTYPE_BYTES[self.dtype]


Argument = Tensor | tuple[Tensor, ...] | None  # None: no tensor, or none that can be read


class UnknownOp(Exception):
    """What a trace records of an op says too little to price it."""


def needs(said: object) -> None:
    """`UnknownOp` unless the trace says what a rule needs."""
    if not said:
        raise UnknownOp


class RecordedCall(NamedTuple):
    """One call of a recorded op: what our rules for ops are given."""

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


def dtype_of(type_name: Any) -> str | None:
    """Our name of a tensor type's number format; None for numbers, flags and unknown formats."""
    if not isinstance(type_name, str):
        return None
    if type_name.startswith("Tensor(") and type_name.endswith(")"):
        type_name = type_name[len("Tensor(") : -1]
    return NAMES["dtypes"].get(type_name)


def arguments(
    shapes: Sequence[Any], types: Sequence[Any], values: Sequence[Any] = ()
) -> tuple[Argument, ...]:
    """The tensors among an op's inputs (or outputs), by position."""
    out = []
    for at, type_name in enumerate(types):
        shape = shapes[at] if at < len(shapes) else None
        value = values[at] if at < len(values) else None
        listed = isinstance(type_name, str) and _LIST.match(type_name) is not None
        out.append((_list if listed else _tensor)(shape, type_name, value))
    return tuple(out)


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


def _tensor(shape: Any, type_name: Any, value: Any) -> Tensor | None:
    dtype = dtype_of(type_name)
    if dtype is None or not isinstance(shape, list | tuple):
        return None
    if not all(is_whole(size) and size <= LARGEST_TENSOR for size in shape):
        return None
    if math.prod(shape) > LARGEST_TENSOR:
        return None
    if isinstance(value, list | tuple) and len(value) >= _VALUE_FIELDS:
        tensor, storage, device = value[0], value[1], value[5]
        if isinstance(tensor, int) and isinstance(storage, int) and isinstance(device, str):
            return Tensor(tuple(shape), dtype, device, tensor, storage)
    return Tensor(tuple(shape), dtype)


def _list(shape: Any, type_name: str, value: Any) -> tuple[Tensor, ...] | None:
    if not isinstance(shape, list | tuple) or not shape:
        return None
    if type_name == "TensorList":
        read = [_tensor(one, "float", None) for one in shape]
    else:
        inner = type_name[len("GenericList[") : -1].split(",")
        matches = isinstance(value, list | tuple) and len(value) == len(shape)
        given = value if matches else [None] * len(shape)
        read = [_tensor(one, kind, v) for one, kind, v in zip(shape, inner, given, strict=False)]
    return tuple(tensor for tensor in read if tensor is not None) or None
