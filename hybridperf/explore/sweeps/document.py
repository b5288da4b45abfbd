"""What specs of sweeps and searches have in common as documents: a head, sections, plain values,
names in formulas.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.explore.sweeps.expression import Expression
from hybridperf.io import InputError, unknown


def read_document(path: Path, kind: str, most: int) -> dict[str, Any]:
    """A TOML file with schema "hybridperf/`kind`" and a schema_version of at most `most`."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"cannot read {kind} from {path}: {error.strerror or error}; check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    if document.get("schema") != f"hybridperf/{kind}":
        raise InputError(
            f'expected schema = "hybridperf/{kind}" at the head of {path}, found'
            f" {document.get('schema', 'none')}"
        )
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InputError(
            f"{path} needs a whole number from 1 to {most} as schema_version, got {version!r};"
            f" write schema_version = {most}"
        )
    if version > most:
        raise InputError(
            f"{path} has schema_version {version}, this hybridperf reads up to {most}; upgrade"
            " hybridperf"
        )
    return document


def check_plain(document: Any, where: str = "") -> None:
    """`InputError` that names what is no number, word, boolean, or list or section of those."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            check_plain(value, f"{where}.{name}" if where else str(name))
    elif isinstance(document, list | tuple):
        for value in document:
            check_plain(value, where)
    elif isinstance(document, datetime.date | datetime.time):
        raise InputError(
            f"{where} is the date {document}; expected a number or a word, and a word stands in"
            " quotes"
        )
    elif not isinstance(document, str | int | float | None):
        raise InputError(
            f"{where} is a {type(document).__name__}; expected numbers, words and lists of them"
        )


def section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One `[section]`, empty where there is none."""
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise InputError(f"[{name}] must be a section of keys and values, got {str(value)[:60]!r}")
    return dict(value)


def check_names(
    formula: Expression, where: str, known: Sequence[str], later: Collection[str] = ()
) -> None:
    """`InputError` for an unknown name; `later` are derived columns computed afterwards."""
    for name in sorted(formula.names):
        if name not in known and name in later:
            itself = where == f"derived {name}"
            what = "itself" if itself else f"{name!r}, which is worked out after it"
            mend = (
                "a column cannot hang on itself"
                if itself
                else f"write {name} above it, unless the two hang on each other"
            )
            raise InputError(f"{where} needs {what}; {mend}")
        if name not in known:
            raise unknown(f"name in {where}:", name, known, f"there are {', '.join(known)}")
