"""What specs of sweeps and searches share: head, sections, plain values, names, derived columns."""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.explore.sweeps.expression import Expression, parse
from hybridperf.io import InputError, unknown


def read_document(path: Path, kind: str, most: int) -> dict[str, Any]:
    """A TOML file with schema "hybridperf/`kind`" and a schema_version of at most `most`."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot read {kind} from {path}: {why}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    expected, found = f"hybridperf/{kind}", document.get("schema", "none")
    if found != expected:
        raise InputError(f'expected schema = "{expected}" at the head of {path}, found {found}')
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InputError(
            f"{path} needs a whole number from 1 to {most} as schema_version, got {version!r};"
            f" write schema_version = {most}"
        )
    if version > most:
        reads = f"this hybridperf reads up to {most}; upgrade hybridperf"
        raise InputError(f"{path} has schema_version {version}, {reads}")
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
        expected = "expected a number or a word, and a word stands in quotes"
        raise InputError(f"{where} is the date {document}; {expected}")
    elif not isinstance(document, str | int | float | None):
        kind = type(document).__name__
        raise InputError(f"{where} is a {kind}; expected numbers, words and lists of them")


def section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One `[section]`, empty where there is none."""
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise InputError(f"[{name}] must be a section of keys and values, got {str(value)[:60]!r}")
    return dict(value)


def check_keys(given: Iterable[str], known: Collection[str], what: str, where: str) -> None:
    """`InputError` for a key that is not among the known ones, as `unknown` words it."""
    for key in given:
        if key not in known:
            raise unknown(what, key, known, where)


def whole_number(value: Any, what: str, least: int, most: int) -> int:
    """A whole number of a spec, from `least` to `most`; `InputError` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{what} must be a whole number from {least} to {most}, got {value!r}")
    return value


def finite_number(what: str, value: Any) -> float:
    """A number of a spec; `InputError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{what} must be a finite number, got {value!r}")
    return float(value)


def number_formula(
    text: Any, where: str, known: Sequence[str], later: Collection[str] = ()
) -> Expression:
    """A formula that gives a number, all of whose names are known."""
    formula = parse(text, where)
    if formula.is_condition:
        rule = "conditions go under [constraints]"
        raise InputError(f"{where} must be a number, got the condition {formula.text!r}; {rule}")
    check_names(formula, where, known, later)
    return formula


def condition(name: str, text: Any, known: Sequence[str]) -> Expression:
    """One entry of `[constraints]`: a formula that holds or fails, all of whose names are known."""
    where = f"constraint {name}"
    formula = parse(text, where)
    if not formula.is_condition:
        got = f"got the number {formula.text!r}"
        raise InputError(f"{where} must be a condition such as a <= b, {got}")
    check_names(formula, where, known)
    return formula


def derived_columns(
    section: Mapping[str, Any], givens: Sequence[str], results: Sequence[str]
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Columns of `[derived]` in order: those that need no results of the target, those that do."""
    before: dict[str, Expression] = {}
    after: dict[str, Expression] = {}
    for name, text in section.items():
        known = [*givens, *before, *results, *after]
        formula = number_formula(text, f"derived {name}", known, section)
        (before if formula.names <= {*givens, *before} else after)[name] = formula
    return before, after


def check_names(
    formula: Expression, where: str, known: Sequence[str], later: Collection[str] = ()
) -> None:
    """`InputError` for an unknown name; `later` are derived columns computed afterwards."""
    for name in sorted(formula.names):
        if name in known:
            continue
        if name not in later:
            raise unknown(f"name in {where}:", name, known, f"there are {', '.join(known)}")
        if where == f"derived {name}":
            raise InputError(f"{where} needs itself; a column cannot depend on itself")
        raise InputError(
            f"{where} needs {name!r}, which is worked out after it; write {name} above it, unless"
            " the two depend on each other"
        )
