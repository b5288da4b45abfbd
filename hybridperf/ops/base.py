"""What an op answers: which group it is calibrated with, and its work.

A new op is a final subclass of `Op`: a frozen dataclass whose fields are the columns of a
measurement table, written for one op. Its fields hold floats; NumPy columns and JAX tracers pass
through the same arithmetic, so tables are evaluated whole and gradients reach dimensions. Register
it under the names that tables use:

    @register("copy", "slice")
    @dataclasses.dataclass(frozen=True)
    class Copy(Op): ...
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec, Unit
from hybridperf.io import unknown
from hybridperf.io.namespace import Array, array_module
from hybridperf.ops.inputs import log2_ratio, log_sizes_base2
from hybridperf.ops.roofline import Work

# Ops of one group share knobs. The order is the order of knob arrays; models store names, so
# appending is safe: `register` does it for a group that an op brings.
GROUPS = [
    "gemm", "gemm_transposed", "batched_gemm", "batched_gemm_transposed", "convolution",
    "elementwise", "strided_loop", "reduction", "window_reduction", "padded_window_reduction",
    "library_reduction", "softmax", "norm", "transpose", "copy", "gather", "pooled_gather",
    "scatter_add", "sort", "cumulative", "random", "optimizer", "allocation", "call", "loop_trip",
    "grouped_convolution", "padded_library_reduction", "prefill_attention", "decode_attention",
    "encoder_attention", "moe", "quantise", "embedding_bag", "embedding_bag_backward",
    "embedding_bag_scatter", "eager_forward", "eager_backward", "eager_update",
    "eager_gathered", "eager_parameter", "eager_dispatched", "eager_wrapped",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What an op's inputs may know of a GPU; no ratios of rates: few devices would be memorised."""

    sm_count: float  # multiprocessors: blocks that run at once, one each
    l2_bytes: float


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Rows of a dense matrix that an op gathers by an index, for a form that knows a cache."""

    again_bytes: Any  # of rows that were gathered before: a cache may hold them
    first_bytes: Any  # of the different rows
    beside_bytes: Any  # dense, in order
    index_bytes: Any
    columns: Any  # numbers of a row
    skew: Any  # standard deviation of the log of how often rows are gathered
    longest: Any  # gathers that come one after the other
    row_bytes: Any


@dataclasses.dataclass(frozen=True)
class Op(abc.ABC):
    """One operation on tensors. Subclasses add their dimensions as fields: counts, not bytes."""

    # whose knobs price it, its first name in tables where empty; a new name is a new group
    group: ClassVar[str] = ""
    other_group: ClassVar[str] = ""  # whose knobs price it where `is_other`
    unit: ClassVar[Unit] = "vector"
    # columns a table may lack, with the value meant then, besides fields with a default
    optional: ClassVar[Mapping[str, float]] = {}
    synonyms: ClassVar[Mapping[str, str]] = {}  # columns of other people's tables -> ours
    # dimensions that may be zero, besides those whose default is
    zero_allowed: ClassVar[frozenset[str]] = frozenset()
    # fields of words, which change the work, with their default: what an empty cell means
    text: ClassVar[Mapping[str, str]] = {}
    # words that tables write where a flag of ours is a number
    words: ClassVar[Mapping[str, float]] = {}
    # optional dimension: (label, part of its text -> value)
    implied: ClassVar[Mapping[str, tuple[str, Mapping[str, float]]]] = {}

    dtype: str

    @abc.abstractmethod
    def work(self) -> Work:
        """Flops, bytes and steps; `reuse_bytes` is for the op repeated on the same data."""

    def shape(self) -> dict[str, Any]:
        """Inputs of a correction besides the work: logs of sizes, how they fill tiles, flags."""
        return {}

    def blocks(self) -> Any:
        """Thread blocks that a usual GPU kernel of this op starts, not rounded; 0 says nothing."""
        return 0.0

    def serial_steps(self, gpu: Gpu) -> Any:
        """Steps that the busiest multiprocessor takes one after the other; 0 says nothing."""
        del gpu
        return 0.0

    def contradictions(self) -> Sequence[tuple[Array, str]]:
        """(whether sizes contradict each other [N], what they must be) of rules of this op."""
        return ()

    def gathered(self) -> Gathered | None:
        """What it gathers, where `GatherRoofline` prices its GPU kernels; None for other ops."""
        return None

    def gpu_inputs(self, gpu: Gpu) -> dict[str, Array]:
        """What a correction learned across GPUs sees besides the place on the roofline, float64.

        Names are the same for every row of a class. Those that start with `log2_` are sizes, for
        which distance from what was seen counts; the others are flags or fillings of tiles.
        """
        work = self.work()
        counts = {"flops": work.flops, "bytes": work.bytes, "transcendentals": work.transcendentals}
        return {
            **log_sizes_base2(self, *self.dimensions(), **counts),
            "log2_bytes_per_l2": log2_ratio(work.bytes, gpu.l2_bytes),
        }

    @classmethod
    def dtype_on(cls, dtype: str, device: DeviceSpec) -> str:
        """The number format that libraries choose on a device for operands of `dtype`."""
        del device
        return dtype

    def run_on(self, device: DeviceSpec) -> Self:
        """The op in that format."""
        dtype = self.dtype_on(self.dtype, device)
        return self if dtype == self.dtype else dataclasses.replace(self, dtype=dtype)

    def run_by(self, framework: np.ndarray) -> Op:
        """The op whose work a framework's [N] kernels do for it; itself where they do just that."""
        del framework
        return self

    @classmethod
    def read_text(cls, name: str, value: str, dtype: str) -> str:
        """A text field's value as we write it; `InputError` for one that is unknown here."""
        return value

    @classmethod
    def arithmetic_dtype(cls, dtype: str, text: Mapping[str, str]) -> str:
        """The number format that multiplies: the one whose peak counts."""
        return dtype

    @property
    def peak_dtype(self) -> str:
        """`arithmetic_dtype` of this op."""
        return self.arithmetic_dtype(self.dtype, {name: getattr(self, name) for name in self.text})

    @property
    def element_bytes(self) -> float:
        return DTYPE_BYTES[self.dtype]

    def group_index(self) -> Any:
        """Index into GROUPS of the knobs that price this op; may depend on its dimensions."""
        if not self.other_group:
            return GROUPS.index(self.group)
        return group_if(self.is_other(), self.other_group, self.group)

    def is_other(self) -> Any:
        """Whether an op of these dimensions is priced by the knobs of `other_group`."""
        return False

    def possible_groups(self) -> tuple[str, ...]:
        """All groups that `group_index` may choose."""
        return (self.group, self.other_group) if self.other_group else (self.group,)

    @classmethod
    def dimensions(cls) -> list[str]:
        """Names of the dimension columns."""
        fields = dataclasses.fields(cls)
        return [one.name for one in fields if one.name != "dtype" and one.type not in ("str", str)]


def group_if(condition: Any, group: str, otherwise: str) -> Any:
    """Index into GROUPS of one of two groups, as a condition on an op's dimensions says."""
    return array_module(condition).where(condition, GROUPS.index(group), GROUPS.index(otherwise))


# a loop, norm or copy as a framework fuses it into a step: its bytes at the datasheet's bandwidth.
# Tables of single ops have it kernel by kernel, launches and all
FUSED = "fused"


@dataclasses.dataclass(frozen=True)
class OpCall:
    """An op where it stands in a program: how often, and how long ago its data was last touched."""

    op: Op
    times: float = 1.0  # executions one after the other (trips of a loop)
    # bytes touched since the op's data was; None: the op repeated on the same data
    reuse_bytes: float | None = None
    # compiled into a caller, or run by a CPU's loop: pays no launch floor of its own
    inlined: bool = False
    # a host's seconds of launching it count apart: what a GPU's model knows of launches is not
    # paid again
    issued_apart: bool = False
    # another than was measured: FUSED, or an attention of `attention_kernels.py` at its published
    # share of the peak; empty: the measured one
    kernel: str = ""
    framework: str = ""  # whose kernels run, as tables of ops name it, where those were measured
    variant: str = ""  # how, where that decides which of its kernels (`model/kernels.toml`)


_BY_NAME: dict[str, tuple[type[Op], dict[str, Any]]] = {}


def register(*names: str, **fixed: Any) -> Callable[[type[Op]], type[Op]]:
    """Class decorator: the op's names in tables; `fixed` gives fields that the name decides.

    Models are loaded after all ops are registered: a new group has no knobs in older ones.
    """

    def add(cls: type[Op]) -> type[Op]:
        for name in names:
            _BY_NAME[name] = (cls, fixed)
        free = {one.name: one.default for one in dataclasses.fields(cls) if one.name not in fixed}
        numbers = {name: value for name, value in free.items() if isinstance(value, float)}
        cls.optional = {**numbers, **cls.optional}
        cls.zero_allowed = cls.zero_allowed.union(name for name in numbers if not numbers[name])
        words = {name: value for name, value in free.items() if isinstance(value, str)}
        cls.text = {**words, **cls.text}
        cls.group = cls.group or names[0]
        if cls.group not in GROUPS:
            GROUPS.append(cls.group)
        return cls

    return add


def op_names() -> list[str]:
    """Every op name a table may use."""
    return sorted(_BY_NAME)


def op_by_name(name: str) -> tuple[type[Op], dict[str, Any]]:
    """The class behind an op name and the fields that it fixes; `InputError` if unknown."""
    if name not in _BY_NAME:
        raise unknown("op", name, _BY_NAME, "`hybridperf show ops` lists them")
    return _BY_NAME[name]


def name_of(op: Op) -> str:
    """What tables call it; "" where it is registered under no name."""
    for name, (cls, fixed) in _BY_NAME.items():
        if cls is type(op) and all(getattr(op, key) == value for key, value in fixed.items()):
            return name
    return ""


def columns(op: Op) -> dict[str, Any]:
    """One op as a row of a table: its name, dtype, dimensions, and text that is not the default."""
    name = name_of(op)
    if not name:
        raise ValueError(f"{type(op).__name__} is not registered under any name")
    cls, fixed = _BY_NAME[name]
    sizes = {key: getattr(op, key) for key in cls.dimensions() if key not in fixed}
    text = {key: getattr(op, key) for key in cls.text if key not in fixed}
    given = {key: word for key, word in text.items() if word != cls.text[key]}
    return {"op": name, "dtype": op.dtype, **sizes, **given}
