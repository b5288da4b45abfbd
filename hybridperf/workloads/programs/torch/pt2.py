"""What `torch.export.save` writes: a ZIP archive with the program as JSON, and its tensors.

The JSON alone is read: the graph's ops in order, sizes and formats of what they take and give. The
field names are those of torch/_export/serde/schema.py. No weights, no sample inputs, no pickle.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import msgspec

from hybridperf.io import InputError, first_line
from hybridperf.io.budget import TooLarge, Unpacked, most_unpacked

_MAJOR = 8  # of the schema, since PyTorch 2.5; another is another layout of fields
_MODEL = re.compile(r"(?:[^/]+/)?models/([^/]+)\.json")
_OLD = "serialized_exported_program.json"
_SAVE = "write it by torch.export.save(torch.export.export(module, args), FILE)"
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError,
)  # fmt: skip


class Named(msgspec.Struct):
    """A reference to a value of the graph by its name."""

    name: str


class Expression(msgspec.Struct):
    """A size that may vary, as a symbolic expression with a hint."""

    expr_str: str
    hint: Size | None = None  # what it was when the program was exported


class Size(msgspec.Struct):
    """A whole number, or a size that may vary."""

    as_int: int | None = None
    as_expr: Expression | None = None
    as_name: str | None = None  # among arguments


class Meta(msgspec.Struct):
    """Shape, strides and type of a tensor, without its numbers."""

    dtype: int
    sizes: list[Size]
    strides: list[Size]
    layout: int = 7


class Value(msgspec.Struct):
    """An argument: whichever field is there says what it is. Numbers may be "Infinity"."""

    as_tensor: Named | None = None
    as_tensors: list[Named] | None = None
    as_optional_tensor: Value | None = None
    as_optional_tensors: list[Value] | None = None
    as_int: int | None = None
    as_ints: list[int] | None = None
    as_float: float | str | None = None
    as_floats: list[float | str] | None = None
    as_bool: bool | None = None
    as_bools: list[bool] | None = None
    as_string: str | None = None
    as_sym_int: Size | None = None
    as_sym_ints: list[Size] | None = None
    as_graph: Submodule | None = None


class Argument(msgspec.Struct):
    """A value by the name that the op's schema gives it."""

    name: str
    arg: Value


class Node(msgspec.Struct):
    """A call of an op with its inputs and outputs."""

    target: str
    inputs: list[Argument]
    outputs: list[Value]
    metadata: dict[str, str]


class Graph(msgspec.Struct):
    """Calls of a program in order, with inputs, outputs and sizes."""

    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node]
    tensor_values: dict[str, Meta]
    sym_int_values: dict[str, Size]


class Submodule(msgspec.Struct):
    """A graph that an op of another graph runs."""

    name: str
    graph: Graph


class Signature(msgspec.Struct):
    """What the whole program returns; the loss and gradients of a joint graph are told apart."""

    output_specs: list[dict[str, Any]]


class GraphModule(msgspec.Struct):
    """A graph, and what its inputs and outputs are."""

    graph: Graph
    signature: Signature


class Program(msgspec.Struct):
    """An exported program as its JSON stands in the archive."""

    graph_module: GraphModule


class _Version(msgspec.Struct):
    schema_version: dict[str, int]
    torch_version: str = "before 2.5"


def read_program(path: str | os.PathLike) -> Program:
    """The program in a file; `InputError` for any other file."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            text = _model(archive, path)
    except FileNotFoundError as error:
        raise InputError(f"expected a saved program at {path}, found none; check the path") from (
            error
        )
    except TooLarge as error:
        raise InputError(f"{path}: {error}") from error
    except _DAMAGED as error:
        raise InputError(f"expected a program of torch.export (.pt2) at {path}, found no ZIP"
            f" archive that can be read ({first_line(error)}); {_SAVE}") from error  # fmt: skip
    try:
        which = msgspec.json.decode(text, type=_Version)
        major = which.schema_version.get("major", 0)
        if major != _MAJOR:
            written = f"version {major}, of PyTorch {which.torch_version}"
            raise InputError(
                f"expected a program of version {_MAJOR} of torch.export's schema, got {written}"
                f" in {path}; save it again by PyTorch 2.13"
            )
        return msgspec.json.decode(text, type=Program)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(
            f"expected a program of torch.export in {path}, found a damaged one"
            f" ({first_line(error)}); {_SAVE}"
        ) from error


def _model(archive: zipfile.ZipFile, path: Path) -> bytes:
    """The JSON of the one program in an archive."""
    names = archive.namelist()
    found = {match[1]: name for name in names if (match := _MODEL.fullmatch(name))}
    chosen = found.get("model") or (next(iter(found.values())) if len(found) == 1 else None)
    if chosen is None:
        what = (
            f"found {len(found)}: {', '.join(sorted(found)[:8])}" if found
            else "found one that PyTorch wrote before 2.8, which has another layout"
            if any(name.endswith(_OLD) for name in names)
            else "found compiled code alone" if any("/aotinductor/" in name for name in names)
            else "found none"
        )  # fmt: skip
        raise InputError(f"expected one program of torch.export in {path}, {what}; {_SAVE}")
    with archive.open(chosen) as inside:
        return Unpacked(inside, most_unpacked(path.stat().st_size)).read()
