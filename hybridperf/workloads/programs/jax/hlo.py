"""The text form of an XLA program (HLO), read into computations of instructions.

One instruction is one line: `ROOT %name = f32[4,8]{1,0} add(%a, %b), attribute=value, ...`. A shape
is a dtype, dimensions and a layout (dimensions from fastest to slowest varying), or a tuple of
shapes. Only what pricing needs is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from hybridperf.io import InputError, shipped_toml

# why a loop has no price
ENDLESS = "while with an unknown trip count"
TABLES = shipped_toml(__package__, "hlo.toml")
_DTYPES, _SIZES = TABLES["dtypes"], TABLES["bytes"]
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([\d,]*)[^}]*\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-~$]+) (?:\(.*\) -> .* )?\{$")
_NAME = re.compile(r"%([\w.\-~$]+)")
_PLAIN_NAME = re.compile(r"(?:^|,)\s*(?:/\*.*?\*/)?\s*([\w.\-~$]+)")  # before it is optimised


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array's dtype, dimensions and layout (minor to major)."""

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def element_bytes(self) -> float:
        return _SIZES.get(self.dtype, 1)

    @property
    def bytes(self) -> float:
        return self.elements * self.element_bytes

    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension, as laid out in memory."""
        strides, step = [0] * len(self.dims), 1
        for dim in self.layout:
            strides[dim] = step
            step *= self.dims[dim]
        return tuple(strides)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # more than one for a tuple
    operands: tuple[str, ...]
    attributes: str
    is_root: bool
    literal: str  # what stands between the parentheses: a parameter's number, a constant's value

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def bytes(self) -> float:
        return sum(shape.bytes for shape in self.shapes)

    def dims(self, attribute: str) -> tuple[int, ...]:
        """A list of integers such as `dimensions={0,2}`; empty where it is absent."""
        found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
        return tuple(int(x) for x in found.group(1).split(",") if x) if found else ()

    def called(self, attribute: str) -> str | None:
        """Name of a computation it refers to, such as `calls=%fused_computation`."""
        found = re.search(rf"\b{attribute}=%?([\w.\-~$]+)", self.attributes)
        return found.group(1) if found else None

    def word(self, attribute: str) -> str:
        """A plain attribute such as `kind=kLoop`; empty where it is absent."""
        found = re.search(rf'\b{attribute}="?([\w.\-$]+)', self.attributes)
        return found.group(1) if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order they are scheduled in."""

    name: str
    instructions: tuple[Instruction, ...]

    @property
    def root(self) -> Instruction:
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name; made once."""
        return {i.name: i for i in self.instructions}


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program: its computations by name, and which is the entry."""

    entry: Computation
    computations: dict[str, Computation]

    def called(self, instruction: Instruction, *attributes: str) -> Computation:
        """The computation of the first of these attributes, as `calls=%fused_computation`."""
        name = next(filter(None, map(instruction.called, attributes)), None)
        if name is None or name not in self.computations:
            named = f"HLO instruction {instruction.name} ({instruction.opcode})"
            raise InputError(f"{named} names no {' or '.join(attributes)} computation")
        return self.computations[name]

    def branches(self, conditional: Instruction) -> list[Computation]:
        """The computations that a conditional chooses from."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", conditional.attributes)
        if listed:
            return [self.computations[name] for name in names_in(listed.group(1))]
        sides = ("true_computation", "false_computation")
        return [self.called(conditional, side) for side in sides]


def parse(text: str) -> Module:
    """Read the text that `compiled.as_text()` or `lowered.as_text("hlo")` prints."""
    computations: dict[str, Computation] = {}
    entry = None
    for is_entry, name, lines in _blocks(text):
        computation = Computation(name, tuple(_instruction(line) for line in lines))
        computations[name] = computation
        entry = computation if is_entry else entry
    if entry is None:
        raise InputError(
            "expected the text of a compiled XLA module with an ENTRY computation, found none"
        )
    if not any(i.is_root for i in entry.instructions):
        raise InputError(
            f"the text of the XLA module is cut off: its entry {entry.name} has no ROOT; write the"
            " program again"
        )
    return Module(entry, computations)


def _blocks(text: str) -> Iterator[tuple[bool, str, list[str]]]:
    header: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if header is None:
            header = _HEADER.match(line)
            lines = []
        elif line.startswith("}"):
            yield bool(header.group(1)), header.group(2), lines
            header = None
        elif _HEADER.match(line):
            break
        elif " = " in line:
            lines.append(line)
    if header is not None:
        raise InputError(
            f"the text of the XLA module is cut off: {header.group(2)} has no closing brace; write"
            " the program again"
        )


def _instruction(line: str) -> Instruction:
    left, _, rest = line.strip().partition(" = ")
    is_root = left.startswith("ROOT ")
    name = left.removeprefix("ROOT ").lstrip("%")
    shape_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode, _, _ = rest[shape_end:].lstrip().partition("(")
    start = rest.index(opcode + "(", shape_end) + len(opcode)
    end = _closing(rest, start)
    inside = rest[start + 1 : end]
    shapes = tuple(_shape(*match.groups()) for match in _ARRAY.finditer(rest[:shape_end]))
    is_literal = opcode in ("constant", "parameter")
    operands = () if is_literal else names_in(inside)
    literal = inside if is_literal else ""
    return Instruction(name, opcode, shapes, operands, rest[end + 1 :], is_root, literal)


def names_in(listed: str) -> tuple[str, ...]:
    """The names that stand in a list; XLA marks them by % where it has optimised the program."""
    return tuple((_NAME if "%" in listed else _PLAIN_NAME).findall(listed))


def _shape(dtype: str, dims: str, layout: str | None) -> Shape:
    sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
    order = tuple(reversed(range(len(sizes))))
    if layout:
        order = tuple(int(d) for d in layout.split(",") if d)
    return Shape(_DTYPES.get(dtype, dtype), sizes, order)


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise InputError(f"an HLO instruction has no closing parenthesis: {text[:80]}")
