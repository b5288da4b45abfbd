"""Ops as a trace recorded them, with what depends on what: shapes and types, but no start times.

PyTorch's execution traces and Chakra's graphs come to this. PyTorch records every op, those inside
ops too (`parent`), on the threads that ran them; what an op waits for follows from the tensors it
reads. Chakra records ops flat, with the kernels they launch next to them, and names what each waits
for.

Arguments become tensors. PyTorch's execution traces write a type as `Tensor(float)` or
`GenericList[Tensor(float),Int]`, its profiler as `float` or `TensorList`; numbers and flags are
`Int`, `Bool`, `Scalar` and the like. Shapes are lists, of lists where the argument is a list.
Values, where recorded, are `[tensor, storage, offset, elements, bytes per element, device]` for a
tensor and the number itself for a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from hybridperf.io import InputError
from hybridperf.ops import OpCall
from hybridperf.workloads.programs.torch.calls import (
    NAMES,
    Argument,
    Tensor,
    TorchCall,
    flat,
    is_whole,
)
from hybridperf.workloads.programs.torch.ops import kernels

_LIST = re.compile(r"GenericList\[|TensorList$")
_VALUE_FIELDS = 6  # of a tensor's value
LARGEST_TENSOR = 2**60  # elements; more is a damaged file
_SAID = 60  # characters of a strange value that an error repeats

# kinds of nodes: an op on the host, a kernel or copy of the device, a collective on the device
CPU, GPU, COMM = ("cpu", "gpu", "comm")
USER_SCOPE = 7  # of a mark that somebody set (PyTorch's RecordScope::USER_SCOPE)


@dataclass(frozen=True)
class RecordedArguments:
    """Inputs or outputs of an op as the trace has them, by position; see `tensors`."""

    shapes: tuple[Any, ...] = ()
    types: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors among the arguments, with shapes and types."""
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


@dataclass(frozen=True)
class RecordedNode:
    """An op, kernel or mark of a recorded execution graph."""

    id: int
    name: str
    kind: str = CPU
    parent: int | None = None  # the op that it runs inside of, None at the top
    control: tuple[int, ...] = ()  # recorded nodes that it follows
    data: tuple[int, ...] = ()  # nodes whose results it reads, where the trace says so
    thread: int | None = None  # of a kernel: its stream
    inputs: RecordedArguments = NOTHING
    outputs: RecordedArguments = NOTHING
    comm_type: str = ""  # "all_reduce", ...; empty where it is no collective
    group: int = 0  # ranks that take part in a collective; 0: not recorded
    seconds: float | None = None  # that it took, where recorded
    mark: bool = False  # around whatever somebody named: the ops inside it do its work
    sequence: int | None = None  # number that a forward op shares with its gradient
    part_of: int | None = None  # of Chakra's op, cut where it launches kernels: parts share it

    @property
    def is_op(self) -> bool:
        """An op of a framework or library, not a mark or thread."""
        engine = self.name.startswith(("autograd::engine::", "torch::autograd::"))
        return self.kind == CPU and "::" in self.name and not engine and not self.mark


@dataclass(frozen=True, eq=False)
class RecordedGraph:
    """The nodes of one rank, by id, which is the order in which they started."""

    source: str  # for people: file, and member of an archive
    schema: str  # as the trace names it
    nodes: tuple[RecordedNode, ...]
    notes: tuple[str, ...] = ()  # what the trace lacks or was assumed

    @classmethod
    def of(
        cls, nodes: Sequence[RecordedNode], source: str, schema: str, notes: Sequence[str]
    ) -> RecordedGraph:
        """The graph of nodes in any order; `InputError` where two have one id."""
        ordered = tuple(sorted(nodes, key=lambda node: node.id))
        if twice := [one.id for one, other in pairwise(ordered) if one.id == other.id]:
            mend = "the file is damaged, record or convert it again"
            raise InputError(f"{source}: two nodes have the id {twice[0]}; {mend}")
        return cls(source, schema, ordered, tuple(notes))

    @cached_property
    def by_id(self) -> dict[int, RecordedNode]:
        """Nodes of the graph by their recorded id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def inside(self) -> dict[int | None, tuple[RecordedNode, ...]]:
        """Nodes directly inside a node, by its id, in order; of None: those at the top."""
        found: dict[int | None, list[RecordedNode]] = {}
        for node in self.nodes:
            found.setdefault(node.parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}


def identity(node: Any, source: str) -> tuple[int, str]:
    """Id and name of a node in JSON; `InputError` where it has none."""
    if not isinstance(node, dict):
        mend = "the file is damaged, record or convert it again"
        found = repr(str(node)[:_SAID])
        raise InputError(f"{source}: expected nodes with names, found {found}; {mend}")
    number, name = node.get("id"), node.get("name")
    if is_whole(number) and isinstance(name, str):
        return number, name
    has = f"id {str(number)[:_SAID]!r} and name {str(name)[:_SAID]!r}"
    raise InputError(f"{source}: a node has {has}; the file is damaged")


def read(node: RecordedNode) -> set[int]:
    """Numbers of the memories that an op's input tensors live in."""
    return _storages(node.inputs.arguments)


def written(node: RecordedNode) -> set[int]:
    """Storage numbers that an op writes: its results', and its first input's if in place."""
    in_place = node.name.endswith("_") and not node.name.endswith("__")
    return _storages((*node.outputs.arguments, *node.inputs.arguments[: int(in_place)]))


def _storages(given: Sequence[Argument]) -> set[int]:
    return {tensor.storage for tensor in flat(given) if tensor.storage}
