"""What specs of sweeps and searches share: head, sections, plain values, names, derived columns."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hybridperf.explore.sweeps.expression import Expression, parse
from hybridperf.io import InputError, read_toml, unknown

Result = TypeVar("Result")
SpecSource = str | os.PathLike | Mapping[str, Any]


def find_spec(
    source: SpecSource, folder: str | Path, kind: str, most: int, shipped: Path
) -> tuple[dict[str, Any], Path]:
    """Content of a spec, and the folder of its files: a TOML file, a shipped name, or a dict."""
    if isinstance(source, Mapping):
        head = {"schema": f"hybridperf/{kind}", "schema_version": most}
        check_head({**head, **source}, kind, most, f"the {kind}")
        return dict(source), Path(folder)
    if not isinstance(source, str | os.PathLike):
        needs = "a .toml file, the name of a shipped example, or a dict"
        raise InputError(f"a {kind} needs a spec: {needs}; got {type(source).__name__}")
    path, example = Path(source), shipped / f"{os.fspath(source)}.toml"
    path = example if os.path.exists(example) and not os.path.exists(path) else path
    if not os.path.exists(path):
        names = sorted(one.stem for one in shipped.glob("*.toml"))
        where = f"give a .toml file, or a shipped example: {', '.join(names)}"
        raise unknown("spec", str(source), names, where)
    return read_document(path, kind, most), path.parent


def read_document(path: Path, kind: str, most: int) -> dict[str, Any]:
    """A TOML file with schema "hybridperf/`kind`" and a schema_version of at most `most`."""
    document = read_toml(path, f"hybridperf/{kind} file")
    check_head(document, kind, most, path)
    return document


def check_head(document: Mapping[str, Any], kind: str, most: int, path: str | Path) -> None:
    """`InputError` unless a spec says that it is one, of a version up to `most`."""
    expected, found = f"hybridperf/{kind}", document.get("schema", "none")
    if found != expected:
        raise InputError(f'expected schema = "{expected}" at the head of {path}, found {found}')
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        needs = f"needs a whole number from 1 to {most} as schema_version, got {version!r}"
        raise InputError(f"{path} {needs}; write schema_version = {most}")
    if version > most:
        reads = f"this hybridperf reads up to {most}; upgrade hybridperf"
        raise InputError(f"{path} has schema_version {version}, {reads}")


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


def sections(
    document: Mapping[str, Any], kind: str, others: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The sections `names` of a spec; `InputError` for any but those and `others`."""
    known = (*others, *names)
    check_keys(document, known, "section", f"a {kind} has {', '.join(known)}")
    check_plain(document)
    return {name: section(document, name) for name in names}


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


def each(read: Callable[..., Result], items: Iterable[tuple[Any, ...]]) -> list[Result]:
    """What `read` makes of each item's arguments; one `InputError` of all that it refuses."""
    done, refused = [], []
    for item in items:
        try:
            done.append(read(*item))
        except InputError as error:
            refused.append(str(error))
    if refused:
        raise InputError("; ".join(refused))
    return done


def whole_number(value: Any, what: str, least: int, most: int) -> int:
    """A whole number of a spec, from `least` to `most`; `InputError` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{what} must be a whole number from {least} to {most}, got {value!r}")
    return value


def is_finite(value: Any) -> bool:
    """Whether a value of a spec is a number that float64 holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # also of whole numbers of any length


def finite_number(what: str, value: Any) -> float:
    """A number of a spec; `InputError` for anything else."""
    if not is_finite(value):
        raise InputError(f"{what} must be a finite number, got {value!r}")
    return float(value)


def check_range(what: str, low: float, high: float, *, log: bool) -> None:
    """`InputError` for a range that falls, or one in logs that does not begin above zero."""
    if low > high:
        raise InputError(f"the range of {what} has min {low:g} above max {high:g}; exchange them")
    if log and low <= 0:
        raise InputError(f"{what} is in log space and needs a min above zero, got {low:g}")


def whole_flag(what: str, written: Mapping[str, Any], *ends: float) -> bool:
    """Whether a range is of whole numbers; its `ends` are whole then."""
    integer = written.get("integer", False)
    if not isinstance(integer, bool):
        raise InputError(f"{what}: integer is true or false, got {integer!r}")
    if integer and not all(end.is_integer() for end in ends):
        got = " to ".join(f"{end:g}" for end in ends)
        raise InputError(f"{what}: a range of whole numbers has whole ends, got {got}")
    return integer


def check_free(names: Mapping[str, Collection[str]]) -> None:
    """`InputError` for a name that stands for two things, or that could not stand in a formula."""
    seen: dict[str, str] = {}
    for what, mine in names.items():
        for name in mine:
            if not name.isidentifier():
                rule = "names are letters, digits and underscores"
                raise InputError(f"{name!r} cannot stand in a formula; {rule}")
            if name in seen:
                mend = "call one of them something else"
                raise InputError(f"{name!r} is a {seen[name]} and a {what}; {mend}")
            seen[name] = what


def check_used(
    given: Mapping[str, Collection[str]], used: Collection[str], reads: Collection[str]
) -> None:
    """`InputError` for a name that is not among those that the target reads or a formula has."""
    short = ", ".join(sorted(name for name in reads if "__" not in name)) or "nothing"
    for what, names in given.items():
        for name in names:
            if name not in used:
                where = f"the target reads {short}, and no formula names it"
                raise unknown(what, name, reads, where)


def known_formula(
    text: Any, where: str, known: Sequence[str], *, condition: bool = False,
    later: Collection[str] = (),
) -> Expression:  # fmt: skip
    """A formula that gives a number, or with `condition` yes or no, all of whose names are known.

    `later`: derived columns computed afterwards.
    """
    formula = parse(text, where)
    if condition and not formula.is_condition:
        got = f"got the number {formula.text!r}"
        raise InputError(f"{where} must be a condition such as a <= b, {got}")
    if formula.is_condition and not condition:
        rule = "conditions go under [constraints]"
        raise InputError(f"{where} must be a number, got the condition {formula.text!r}; {rule}")
    for name in sorted(formula.names):
        if name in known:
            continue
        if name not in later:
            raise unknown(f"name in {where}:", name, known, f"there are {', '.join(known)}")
        if where == f"derived {name}":
            raise InputError(f"{where} needs itself; a column cannot depend on itself")
        mend = f"write {name} above it, unless the two depend on each other"
        raise InputError(f"{where} needs {name!r}, which is worked out after it; {mend}")
    return formula


def derived_columns(
    section: Mapping[str, Any], givens: Sequence[str], results: Sequence[str]
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Columns of `[derived]` in order: those that need no results of the target, those that do."""
    before: dict[str, Expression] = {}
    after: dict[str, Expression] = {}
    for name, text in section.items():
        known = [*givens, *before, *results, *after]
        formula = known_formula(text, f"derived {name}", known, later=section)
        (before if formula.names <= {*givens, *before} else after)[name] = formula
    return before, after
