"""What an op answers: which group it is calibrated with, and its work; how tables write it.

A new op is a final subclass of `Op`: a frozen dataclass whose fields are the columns of a
measurement table, written for one op. Its fields hold floats; NumPy columns and JAX tracers pass
through the same arithmetic, so tables are evaluated whole and gradients reach dimensions. Register
it under the names that tables use:

    @register("copy", "slice")
    @dataclasses.dataclass(frozen=True)
    class Copy(Op): ...

`inputs.py` and `tiles.py` ask what learned corrections and GPU kernels see of it.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hybridperf.fields import Field, Fields, fields_of
from hybridperf.fields.registry import Kind
from hybridperf.hardware import DTYPE_BYTES, DeviceSpec, Unit
from hybridperf.io import unknown
from hybridperf.io.namespace import Array, array_module
from hybridperf.ops.roofline import Work

if TYPE_CHECKING:
    import pandas

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
    "joint_reduction",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Op(abc.ABC):
    """One operation on tensors. Subclasses add their dimensions as fields: counts, not bytes."""

    # whose knobs price it, its first name in tables where empty; a new name is a new group
    group: ClassVar[str] = ""
    unit: ClassVar[Unit] = "vector"

    dtype: str

    @abc.abstractmethod
    def work(self) -> Work:
        """Flops, bytes and steps; `reuse_bytes` is for the op repeated on the same data."""

    def knob_groups(self) -> Mapping[str, Any]:
        """Groups whose knobs may price it, each with whether its dimensions ask for it; the last
        one where they ask for none before.
        """
        return {self.group: True}

    def group_index(self) -> Any:
        """Index into GROUPS of the knobs that price this op; may depend on its dimensions."""
        *others, usual = self.knob_groups().items()
        index: Any = GROUPS.index(usual[0])
        for group, chosen in reversed(others):
            index = array_module(chosen).where(chosen, GROUPS.index(group), index)
        return index

    @property
    def peak_dtype(self) -> str:
        """The number format that multiplies: the one whose peak counts."""
        return self.dtype

    @property
    def element_bytes(self) -> float:
        return DTYPE_BYTES[self.dtype]

    @classmethod
    def dimensions(cls) -> list[str]:
        """Names of the dimension columns."""
        fields = dataclasses.fields(cls)
        return [one.name for one in fields if one.name != "dtype" and one.type not in ("str", str)]


def run_on(op: Op, device: DeviceSpec) -> Op:
    """The op in the number format that libraries choose for it on a device."""
    dtype = columns_of(type(op)).dtype_on(op.dtype, device)
    if dtype == "tf32" and dtype not in device.peak_flops_per_s:
        dtype = "fp32"
    return op if dtype == op.dtype else dataclasses.replace(op, dtype=dtype)


# a loop, norm or copy as a framework fuses it into a step: its bytes at the datasheet's bandwidth.
# Tables of single ops have it kernel by kernel, launches and all
FUSED = "fused"
# a variant: a bound in place of an op that nobody knows
BOUND = "bound"


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


@dataclasses.dataclass(frozen=True)
class Columns:
    """What an op's columns mean in tables, besides what `fields/ops.toml` says of each (its other
    names and words). Fields with a default are optional, and words are `text`, without being named.
    """

    # columns a table may lack, with the value meant then
    optional: Mapping[str, float] = dataclasses.field(default_factory=dict)
    zero_allowed: frozenset[str] = frozenset()  # dimensions that may be zero
    # fields of words, which change the work, with their default: what an empty cell means
    text: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # optional dimension: (label, part of its text -> value)
    implied: Mapping[str, tuple[str, Mapping[str, float]]] = dataclasses.field(default_factory=dict)
    # field of words: (word, dtype) -> the word as we write it; `InputError` for one that is unknown
    readers: Mapping[str, Callable[[str, str], str]] = dataclasses.field(default_factory=dict)
    # of an op with columns [N]: (whether sizes contradict each other [N], what they must be)
    contradictions: Callable[[Any], Sequence[tuple[Array, str]]] = lambda op: ()
    # column that multiplies the work of another op, where it is above 1 -> what to write instead
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # (dtype of operands, device) -> the number format that libraries choose there
    dtype_on: Callable[[str, DeviceSpec], str] = lambda dtype, device: dtype

    def read_text(self, field: str, word: str, dtype: str) -> str:
        """A word as we write it; `InputError` for one that is unknown."""
        known = fields_of("ops")
        if word and field in known and (legal := known[field].words):
            meant = known[field].meant(word)
            if meant is None:
                raise unknown(field, word, legal, f"known are {known[field].legal}")
            return meant
        return self.readers[field](word, dtype) if field in self.readers else word

    def with_defaults(self, defaults: Mapping[str, Any]) -> Columns:
        """The same, where an op's fields have these defaults."""
        numbers = {name: value for name, value in defaults.items() if isinstance(value, float)}
        words = {name: value for name, value in defaults.items() if isinstance(value, str)}
        return dataclasses.replace(
            self, optional={**numbers, **self.optional}, text={**words, **self.text},
            zero_allowed=self.zero_allowed.union(name for name in numbers if not numbers[name]),
        )  # fmt: skip


def undivided(one: Array, other: Array) -> Array:
    """Whether `other` does not divide `one`, of whole numbers; of others nothing is known."""
    return (one % 1 == 0) & (other % 1 == 0) & (one % other != 0)


LABELS = ("framework", "version", "kernel", "algo")  # columns that name an implementation
_OF_ANY = ("op", "dtype", "reuse_bytes", *LABELS)  # what rows of all ops say
_BY_NAME: dict[str, tuple[type[Op], dict[str, Any]]] = {}
_FIXED: dict[type[Op], dict[str, dict[str, Any]]] = {}  # by each name of a class
_COLUMNS: dict[type[Op], Columns] = {}


def register(
    *names: str, columns: Columns | None = None, **fixed: Any
) -> Callable[[type[Op]], type[Op]]:
    """Class decorator: the op's names in tables; `fixed` gives fields that the name decides;
    `columns`, once per class, at the first of several names.

    Models are loaded after all ops are registered: a new group has no knobs in older ones.
    """

    def add(cls: type[Op]) -> type[Op]:
        if columns is not None and cls in _COLUMNS:
            raise ValueError(f"{cls.__name__}: give columns at the decorator next to the class")
        for name in names:
            _BY_NAME[name] = (cls, fixed)
            _FIXED.setdefault(cls, {})[name] = fixed
        free = {one.name: one.default for one in dataclasses.fields(cls) if one.name not in fixed}
        _COLUMNS[cls] = (columns or _COLUMNS.get(cls, Columns())).with_defaults(free)
        cls.group = cls.group or names[0]
        if cls.group not in GROUPS:
            GROUPS.append(cls.group)
        return cls

    return add


def op_fields() -> Fields:
    """What columns of tables of ops mean: `fields/ops.toml`, and by their own names the sizes and
    words of ops that are registered elsewhere.
    """
    return _fields_of(frozenset(_BY_NAME))


def fields_of_table(frame: pandas.DataFrame) -> Fields:
    """Those of the ops that rows of a table name; of all ops, where they name none."""
    every, ops = op_fields(), frozenset[str]()
    for name in frame:
        # a column that comes twice is refused where columns are read, and so are cells of no words
        if (call := every.called(str(name))) and call[0].name == "op" and frame[name].ndim == 1:
            with contextlib.suppress(TypeError):
                ops = frozenset(one for one in map(str, frame[name].unique()) if one in _BY_NAME)
    return _fields_of(ops) if ops else every


@functools.lru_cache(4096)
def _fields_of(ops: frozenset[str]) -> Fields:
    """The fields of some ops, and of any row."""
    known, own, others = fields_of("ops"), dict[str, Field](), set[str]()
    for op, (cls, fixed) in _BY_NAME.items():
        for name in (*cls.dimensions(), *columns_of(cls).text):
            if name in fixed:
                continue
            others.add(name)
            if op in ops:
                kind: Kind = "text" if name in columns_of(cls).text else "number"
                own[name] = known[name] if name in known else Field(name, f"of {op}", kind)
    rest = {one.name: one for one in known if one.name not in others or one.name in _OF_ANY}
    return dataclasses.replace(known, by_name=rest | own)


def op_names() -> list[str]:
    """Every op name a table may use."""
    return sorted(_BY_NAME)


def op_by_name(name: str) -> tuple[type[Op], dict[str, Any]]:
    """The class behind an op name and the fields that it fixes; `InputError` if unknown."""
    if name not in _BY_NAME:
        raise unknown("op", name, _BY_NAME, "`hybridperf show ops` lists them")
    return _BY_NAME[name]


def columns_of(cls: type[Op]) -> Columns:
    """How tables write an op; of a class under no name nothing but its fields is known."""
    return _COLUMNS.get(cls, Columns())


def name_of(op: Op) -> str:
    """What tables call it; "" where it is registered under no name."""
    for name, fixed in _FIXED.get(type(op), {}).items():
        if all(getattr(op, key) == value for key, value in fixed.items()):
            return name
    return ""


def columns(op: Op) -> dict[str, Any]:
    """One op as a row of a table: its name, dtype, dimensions, and text that is not the default."""
    name = name_of(op)
    if not name:
        raise ValueError(f"{type(op).__name__} is not registered under any name")
    cls, fixed = _BY_NAME[name]
    words = columns_of(cls).text
    sizes = {key: getattr(op, key) for key in cls.dimensions() if key not in fixed}
    text = {key: getattr(op, key) for key in words if key not in fixed}
    given = {key: word for key, word in text.items() if word != words[key]}
    return {"op": name, "dtype": op.dtype, **sizes, **given}
