"""What reading a sweep begins with: files, plain values, names, formulas.

Specs as versions before 0.2 wrote them are rewritten in today's words (`written.py`):

[front]                          [objective]
{ log = [1, 8], count = 3 }      { min = 1, max = 8, count = 3 }       lin, powers_of_two: scale
{ random = [1, 8] }              { min = 1, max = 8, scale = "lin", sample = "random" }
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.explore.sweeps.written import (
    SCHEMA,
    SCHEMA_VERSION,
    Faults,
    Written,
    validated,
)
from hybridperf.io import InputError, read_toml, unknown
from hybridperf.io.documents import check_head
from hybridperf.io.expression import Expression, parse

_OLD = "hybridperf/sweep"
_GRIDS, _SAMPLES = ("lin", "log", "powers_of_two"), ("random", "sobol")
SpecSource = str | os.PathLike | Mapping[str, Any]


@dataclasses.dataclass
class Document:
    """A spec as far as it can be read, its names not yet looked up."""

    written: Written
    raw: dict[str, Any]  # what was written, in today's words
    folder: Path  # of its files
    faults: Faults  # so far
    wrong: set[str]  # parameters that are left out of `written`, or "target"
    remarks: list[str]


def read_spec_document(source: SpecSource, folder: str | Path, shipped: Path) -> Document:
    """A TOML file, the name of a shipped one, or a dict whose files are in `folder`."""
    faults = Faults()
    if isinstance(source, Mapping):
        raw, where = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION} | dict(source), "the spec"
    else:
        path = _find(source, shipped)
        raw, where, folder = read_toml(path, f"{SCHEMA} file"), str(path), path.parent
    expected = _OLD if raw.get("schema") == _OLD else SCHEMA
    check_head(raw, expected, SCHEMA_VERSION, where)
    check_plain(raw)
    today, said = renewed(raw, faults)
    written, wrong = validated(today, faults)
    known = raw.get("parameters", {})
    if isinstance(known, Mapping):
        wrong |= set(known) - set(written.parameters)
    notes = [f"{where} has an older spelling, which works, too; today: {'; '.join(said)}"]
    return Document(written, today, Path(folder), faults, wrong, notes if said else [])


def _find(source: Any, shipped: Path) -> Path:
    if not isinstance(source, str | os.PathLike):
        needs = "a .toml file, the name of a shipped example, or a dict"
        raise InputError(f"a sweep needs a spec: {needs}; got {type(source).__name__}")
    path, example = Path(source), shipped / f"{os.fspath(source)}.toml"
    path = example if os.path.exists(example) and not os.path.exists(path) else path
    if not os.path.exists(path):
        names = sorted(one.stem for one in shipped.glob("*.toml"))
        where = f"give a .toml file, or a shipped example: {', '.join(names)}"
        raise unknown("spec", str(source), names, where)
    return path


def check_plain(document: Any, where: str = "") -> None:
    """`InputError` that names what is no number, word, boolean, or list or section of those."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            if not isinstance(name, str):  # of a dict: TOML has no others
                raise InputError(f"names in {where or 'a spec'} are words, got {name!r}")
            check_plain(value, f"{where}.{name}" if where else name)
    elif isinstance(document, list | tuple):
        for value in document:
            check_plain(value, where)
    elif isinstance(document, datetime.date | datetime.time):
        expected = "expected a number or a word, and a word stands in quotes"
        raise InputError(f"{where} is the date {document}; {expected}")
    elif not isinstance(document, str | int | float | None):
        kind = type(document).__name__
        raise InputError(f"{where} is a {kind}; expected numbers, words and lists of them")


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
    section: Mapping[str, Any], givens: Sequence[str], results: Sequence[str], faults: Faults
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Columns of `[derived]` in order: those that need no results of the target, those that do."""
    before: dict[str, Expression] = {}
    after: dict[str, Expression] = {}
    known = [*givens, *results]
    for name, text in section.items():
        with faults.kept():
            formula = known_formula(text, f"derived {name}", known, later=section)
            (before if formula.names <= {*givens, *before} else after)[name] = formula
        known.append(name)  # also where it is wrong: what names it is not
    return before, after


def renewed(document: Mapping[str, Any], faults: Faults) -> tuple[dict[str, Any], list[str]]:
    """A document in today's words, and what is spelt otherwise today."""
    new, said = dict(document), []
    if new.get("schema") == _OLD:
        new["schema"] = SCHEMA
        said.append(f'schema = "{SCHEMA}"')
    if "front" in new and "objective" not in new:
        new["objective"] = new.pop("front")
        said.append("[objective] for [front]")
    if isinstance(parameters := new.get("parameters"), Mapping):
        ranges: dict[str, Any] = {}
        for name, given in parameters.items():
            with faults.kept():
                ranges[name] = _range(name, given)
        if ranges != parameters:
            said.append("{ min = ..., max = ... } for ranges such as { log = [...] }")
        new["parameters"] = ranges
    return new, said


def _range(name: str, given: Any) -> Any:
    old = [key for key in (*_GRIDS, *_SAMPLES) if isinstance(given, Mapping) and key in given]
    if not old:
        return given
    if len(old) > 1:
        needs = "needs one of lin, log, powers_of_two, random, sobol"
        raise InputError(f"parameter {name} {needs}, got {', '.join(old)}")
    (kind,) = old
    rest = {key: value for key, value in given.items() if key != kind}
    pair = given[kind]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        needs = "needs a range [least, most] of two numbers"
        raise InputError(f"parameter {name} {needs}, got {pair}")
    if kind in _GRIDS and "scale" in rest:
        raise InputError(f"key scale of parameter {name}: {kind} goes with count, integer")
    if kind in ("lin", "log") and "count" not in rest:
        raise InputError(f"parameter {name} needs a count, the number of its values")
    ends = {"min": pair[0], "max": pair[1]}
    if kind in _GRIDS:
        return ends | {"scale": kind} | rest
    return ends | {"scale": "lin", "sample": kind} | rest
