"""Arguments of an op as a trace writes them -> tensors.

PyTorch's execution traces write a type as `Tensor(float)` or `GenericList[Tensor(float),Int]`, its
profiler as `float` or `TensorList`; numbers and flags are `Int`, `Bool`, `Scalar` and the like.
Shapes are lists, of lists where the argument is a list. Values, where recorded, are `[tensor,
storage, offset, elements, bytes per element, device]` for a tensor and the number itself for a
number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hybridperf.ops import OpCall
from hybridperf.workloads.torch.calls import NAMES, Argument, Tensor, TorchCall, is_whole
from hybridperf.workloads.torch.ops import kernels

_LIST = re.compile(r"GenericList\[|TensorList$")
_VALUE_FIELDS = 6  # of a tensor's value
LARGEST_TENSOR = 2**60  # elements; more is a damaged file


@dataclass(frozen=True)
class RecordedArguments:
    """Inputs or outputs of an op as the trace has them, by position; see `tensors`."""

    shapes: tuple[Any, ...] = ()
    types: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors among them."""
        return arguments(self.shapes, self.types, self.values)


NOTHING = RecordedArguments()


def recorded_op(
    name: str, inputs: RecordedArguments, outputs: RecordedArguments = NOTHING
) -> tuple[OpCall, ...] | None:
    """Our ops for one recorded op; NO_KERNEL if it launches none, None if it is unknown.

    Only an execution trace's values tell on which device a tensor lives: without them a `copy_`
    counts as one within the device, also where a profiler saw a copy from the host.
    """
    return kernels(TorchCall(name, inputs.arguments, outputs.arguments, inputs.values))


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
