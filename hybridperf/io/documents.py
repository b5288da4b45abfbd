"""JSON and TOML: text that people and programs give us, and files of our own.

Every JSON file of ours says what it is: `{"schema": "hybridperf/<kind>", "schema_version": n, ...,
"sha256": ...}`. A reader refuses another kind, a newer version and a changed content, each in one
sentence. The checksum is of the content, not of its layout: indentation may change, no number may.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from hybridperf.io.budget import TooLarge, check_json
from hybridperf.io.errors import InputError, OldFile, first_line
from hybridperf.io.files import replacing
from hybridperf.io.sums import check_sum

_CHECKSUM = "sha256"
_DEEPEST = 100  # lists and sections within one another; none of ours has ten
_TOO_DEEP = f"nested more than {_DEEPEST} deep"
T = TypeVar("T")
_MEND = "check the path, or make it again"
_LONGEST_TOML = 2**22  # characters; tomllib takes seconds for that


def parse_json(text: str | bytes, *, strict: bool = True) -> Any:
    """What a JSON text holds; `ValueError` in one line for any other text.

    `strict`: False where strings may hold control characters.
    """
    check_json(text)
    try:
        document = json.loads(text, strict=strict)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except ValueError as error:  # its own, those of characters, of numbers with thousands of digits
        raise ValueError(f"not JSON: {first_line(error)}") from error
    return _shallow(document)


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text holds; `ValueError` in one line for any other text."""
    # each part of a dotted name costs tomllib memory by all that stand before it
    if any(line.partition("=")[0].count(".") > _DEEPEST for line in text.splitlines()):
        raise ValueError(_TOO_DEEP)
    if len(text) > _LONGEST_TOML:
        raise ValueError(f"longer than {_LONGEST_TOML} characters")
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except ValueError as error:  # its own, those of dates, of numbers with thousands of digits
        raise ValueError(f"not TOML: {first_line(error)}") from error
    return _shallow(document)


def read_toml(path: str | os.PathLike, what: str, mend: str = _MEND) -> dict[str, Any]:
    """Content of a TOML file; `InputError` where it is missing or something else."""
    check_sum(path)  # of a machine that we wrote down
    return read_text(path, what, parse_toml, mend)


def shipped_toml(package: str, name: str) -> dict[str, Any]:
    """Content of a TOML file of ours that lies in a package."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))


def write_json(path: str | os.PathLike, kind: str, version: int, content: dict[str, Any]) -> None:
    """Write `content` as one of our JSON files, atomically, with its checksum."""
    document = {"schema": f"hybridperf/{kind}", "schema_version": version, **content}
    plain = json.loads(json.dumps(document, allow_nan=False))  # with keys as they will be read
    with replacing(path) as handle:
        json.dump(with_checksum(plain), handle, indent=1)
        handle.write("\n")


def with_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the checksum that `read_json` expects, in place of any that it has."""
    content = {key: value for key, value in document.items() if key != _CHECKSUM}
    return {**content, _CHECKSUM: _checksum(content)}


def read_json(
    path: str | os.PathLike, kind: str, version: int, unchecked: int | None = None
) -> dict[str, Any]:
    """Content of one of our JSON files; `InputError` if missing, damaged, changed, another or
    newer.

    `unchecked`: the last version that was written without a checksum; None: this one may lack it.
    """
    path = Path(path)
    document = read_text(path, f"hybridperf/{kind} file", parse_json)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != f"hybridperf/{kind}":
        got = str(found or "no schema field")[:60]
        expected = f"expected a hybridperf/{kind} file at {path}"
        raise InputError(f"{expected}, found {got}; check the path")
    found = document.get("schema_version")
    reads = f"this hybridperf reads {max(version - 1, 1)} to {version}"
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= version:
        raise InputError(
            f"{path} has schema version {str(found)[:60]}, {reads}; upgrade hybridperf"
        )
    if found < version - 1:
        made = "make it again by the command that made it, which keeps what was measured"
        raise InputError(f"{path} has schema version {found}, {reads}; {made}")
    checksum = document.pop(_CHECKSUM, None)
    if checksum is None and unchecked is not None:
        if found > unchecked:
            raise InputError(f"{path} has lost its checksum; restore it, or make it again")
        if found == unchecked:
            said = f"{path} is of an earlier hybridperf and has no checksum; saving it adds one"
            warnings.warn(said, OldFile, stacklevel=3)
    elif checksum is not None and checksum != _checksum(document):
        raise InputError(
            f"{path} was changed since it was written: its checksum is another; restore it, or make"
            " it again"
        )
    return document


def read_text(
    path: str | os.PathLike, what: str, parse: Callable[[str], Any], mend: str = _MEND
) -> Any:
    """What `parse` makes of a file's text; `InputError` where there is none, or `parse` raises a
    `ValueError`.
    """
    path = Path(path)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"expected a {what} at {path}, found none; check the path") from error
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot read {path}: {why}; check the path") from error
    except TooLarge as error:
        raise InputError(f"{path}: {error}") from error
    except ValueError as error:
        reason = "not text" if isinstance(error, UnicodeDecodeError) else error
        damaged = f"{path} is {reason}: it is damaged or another"
        raise InputError(f"expected a {what}; {damaged}; {mend}") from error


def read_json_lines(path: str | os.PathLike, what: str, kind: type[T], mend: str) -> list[T]:
    """What each line of a file says, a JSON object that is a `msgspec.Struct`; empty lines do not
    count. `InputError` as of `read_text`, also where there is no line.
    """
    import msgspec

    def parse(text: str) -> list[T]:
        decoder, found = msgspec.json.Decoder(kind), []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                found += [decoder.decode(line)] if line.strip() else []
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"not that in line {number} ({error})") from error
        if not found:
            raise ValueError("empty")
        return found

    lines: list[T] = read_text(path, f"{what}, a JSON object a line", parse, mend)
    return lines


def _checksum(document: Any) -> str:
    """Of names, numbers, words and their order."""
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def _shallow(document: Any) -> Any:
    """The document; `ValueError` where more lists and sections lie within one another than in any
    real one, which others walk recursively.
    """
    layer, depth = [document], 0
    while layer:
        if (depth := depth + 1) > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        inside = [one.values() if isinstance(one, dict) else one for one in layer]
        layer = [one for each in inside for one in each if isinstance(one, dict | list)]
    return document


def check_head(document: Mapping[str, Any], expected: str, most: int, path: str | Path) -> None:
    """`InputError` unless a document has this schema, of a version up to `most`."""
    found = document.get("schema", "none")
    if found != expected:
        raise InputError(f'expected schema = "{expected}" at the head of {path}, found {found}')
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        needs = f"needs a whole number from 1 to {most} as schema_version, got {version!r}"
        raise InputError(f"{path} {needs}; write schema_version = {most}")
    if version > most:
        reads = f"this hybridperf reads up to {most}; upgrade hybridperf"
        raise InputError(f"{path} has schema_version {version}, {reads}")


def is_finite(value: Any) -> bool:
    """Whether a value of a spec is a number that float64 holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # also of whole numbers of any length


def finite_number(what: str, value: Any) -> float:
    """A number of a spec; `InputError` for anything else."""
    if not is_finite(value):
        raise InputError(f"{what} must be a finite number, got {value!r}")
    return float(value)
