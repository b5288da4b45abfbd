"""A sweep of a question (`fields/frames.py`): fields and their values, what must hold, how many
points are drawn.

    fields = {"model": "llama3-70b", "gpu": "h100_sxm", "n_gpus": "256..4096", "tp": [1, 2, 4, 8]}
    asked = document("steps", fields, folder=parts, where="tp <= 8 and n_gpus % tp == 0")
    spec = read_spec(asked)

Values are one, a list, a text as `ranges.py` reads it, or a range (`{"min": 1e3, "max": 1e9,
"count": 50}`; in logs, or `"scale": "lin"`; also `"integer": True`). All of them multiply, the last
varying fastest; with `sample` so many points of the product are drawn, evenly (Sobol, scrambled),
and a range without count is sampled between its ends. A frame or a file of rows is taken row by
row.

What is asked is a document that JSON holds: workers read it again, and parts are known by it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.sweeps.design import (
    Axis,
    Design,
    JointAxis,
    ListAxis,
    SampledList,
    SampledRange,
    checked,
    values_of,
)
from hybridperf.explore.sweeps.front import BestRule
from hybridperf.explore.sweeps.target import Target
from hybridperf.fields import fields_of
from hybridperf.fields.frames import Rows, as_frame, question_of
from hybridperf.io import InputError, read_table, unknown, write_table
from hybridperf.io.documents import finite_number, is_finite
from hybridperf.io.expression import Expression, known_formula
from hybridperf.io.later import pd

INDEX = "point"  # the column that holds a point's index
Fields = Mapping[str, Any]
_RANGE = ("min", "max", "count", "scale", "integer")
_LONGEST_GRID = 10**7  # values of one field
_LARGEST_CHUNK, _MOST_DRAWN, _MOST_TOP = 2**22, 2**30, 10**6
# results do not depend on these; the size of chunks is part of the identity on its own
_NO_MATTER = ("chunk", "minimise", "maximise")


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """A sweep with all names known and a design that is not empty, before any compilation."""

    document: Mapping[str, Any]  # as it was asked
    folder: Path  # where its files are looked for
    target: Target
    design: Design
    before: Mapping[str, Expression]  # derived columns that need no result, in order
    after: Mapping[str, Expression]  # those that do
    keep: Sequence[Expression]  # conditions that need no result
    accept: Sequence[Expression]  # those that do
    columns: Mapping[str, bool]  # all that it gives, and whether they hold words
    best: BestRule
    inputs: str  # hash of its rows

    @property
    def chunk(self) -> int:
        return int(self.document["chunk"])

    def identity(self) -> dict[str, Any]:
        """What its results depend on, versions aside. Which of them are shown is not part of it."""
        asked = {key: value for key, value in self.document.items() if key not in _NO_MATTER}
        target = self.target.fingerprint()
        return {"spec": asked, "chunk": self.chunk, "tables": self.inputs, "target": target}


def document(
    question: str, fields: Fields | Rows | str | os.PathLike, *, folder: Path,
    where: str | Sequence[str] = (), sample: int | None = None, seed: int = 0,
    derived: Mapping[str, str] | None = None, minimise: str | Sequence[str] = (),
    maximise: str | Sequence[str] = (), settings: Mapping[str, str] | None = None,
    chunk: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What is asked, as `read_spec` reads it.

    Args:
        question: of tables (`ANSWERED_BY`).
        fields: values by field; or rows: a frame, a list of dicts, the name of a table's file.
        folder: where rows that are no file are kept for those who do the work.
        where: conditions on fields and results, which rows that are written meet; those on results
            but for rows without any.
        sample: how many points of the product are drawn; None: all.
        seed: of the sample.
        derived: further columns by name, formulas of fields and results.
        minimise: columns whose Pareto front is written.
        maximise: likewise.
        settings: what the question is asked by: the model of ops and collectives, fitted effects.
        chunk: rows done together; None: the question's own number.

    Raises:
        InputError: for a field that nobody knows, or values that are none.
    """
    usual = question_of(question).chunk
    asked: dict[str, Any] = {
        "question": question, "settings": dict(settings or {}), "where": _texts(where),
        "derived": dict(derived or {}), "minimise": _texts(minimise), "maximise": _texts(maximise),
        "chunk": whole_number("chunk", usual if chunk is None else chunk, 1, _LARGEST_CHUNK),
    }  # fmt: skip
    if isinstance(fields, Mapping):
        asked["fields"] = {str(name): _values(name, given) for name, given in fields.items()}
        _check_names(question, asked["fields"])
        if sample is not None:
            asked["sample"] = whole_number("sample", sample, 1, _MOST_DRAWN)
            asked["seed"] = whole_number("seed", seed, 0, 2**63)
        return asked
    if sample is not None:
        raise InputError("expected fields with their values to sample, got rows; draw from these")
    return asked | {"rows": str(_file_of_rows(fields, folder))}


def read_spec(asked: Mapping[str, Any], folder: str | Path = ".") -> SweepSpec:
    """A sweep from what is asked (`document`), its files in a folder.

    Raises:
        InputError: in a sentence, what is wrong with it.
    """
    design, inputs = _rows(asked) if "rows" in asked else (_product(asked), "")
    design = checked(design)
    parameters, extremes = design.names(), design.extremes()
    settings, registry = asked["settings"], question_of(asked["question"]).registry
    called = fields_of(registry).called if registry else None
    also = [name for name in parameters if called and called(name) is None]
    target = Target(asked["question"], settings, also, Path(folder), extremes)
    results, derived = [*target.results], asked["derived"]
    _check_free({
        "column of results": [*results, INDEX], "field": parameters, "derived column": derived
    })  # fmt: skip
    before: dict[str, Expression] = {}
    after: dict[str, Expression] = {}
    known = [*parameters, *results]
    for name, text in derived.items():
        formula = known_formula(text, f"derived {name}", known, later=derived)
        (before if formula.names <= {*parameters, *before} else after)[name] = formula
        known.append(name)
    conditions = [known_formula(one, "where", known, condition=True) for one in asked["where"]]
    formulas, given = [*before.values(), *after.values(), *conditions], {*parameters, *before}
    words = {name for name, values in extremes.items() if values.dtype.kind == "O"}
    for formula in formulas:
        for name in sorted(formula.numbers() & words):
            raise InputError(f"{formula.text!r} counts with {name}, whose values are words")
    words |= {name for name, kind in target.results.items() if kind is str}
    columns = {name: name in words for name in (*parameters, *before, *results, *after)}
    reads = target.known()
    for name in parameters:
        if name not in reads.union(*(formula.names for formula in formulas)):
            short = ", ".join(sorted(reads)) or "nothing"
            where = f"{asked['question']} read {short}, and no formula names it"
            raise unknown("field", name, reads, where)
    target.check(extremes, given)
    spec = SweepSpec(
        document=asked, folder=Path(folder), target=target, design=design, before=before,
        after=after, keep=[one for one in conditions if one.names <= given],
        accept=[one for one in conditions if not one.names <= given], columns=columns,
        best=BestRule(0, target.seconds, tuple(asked["minimise"]), tuple(asked["maximise"])),
        inputs=inputs,
    )  # fmt: skip
    for name in (*spec.best.minimise, *spec.best.maximise):
        _check_counts(spec, name)
    return spec


def with_top(spec: SweepSpec, count: int | None, by: str | None) -> SweepSpec:
    """The spec with so many of the best points, by a column."""
    if count is None:
        if by is not None:
            raise InputError(f"expected top, how many of the best, with by={by!r}, got none")
        return spec
    best = spec.best
    only = best.minimise[0] if len(best.minimise) == 1 and not best.maximise else best.by
    _check_counts(spec, by or only)
    count = whole_number("top", count, 1, _MOST_TOP)
    return dataclasses.replace(spec, best=dataclasses.replace(best, count=count, by=by or only))


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """`InputError` unless a value is a whole number between two."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if not least <= value <= most:
        raise InputError(f"{name} must be a whole number from {least} to {most}, got {value}")
    return int(value)


def _texts(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _values(name: Any, given: Any) -> Any:
    """Values of a field as a document has them: a list of one or several, or a range."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str):
        return values_of(given)
    if isinstance(given, np.ndarray | pd.Series | range | tuple):
        given = np.asarray(given).tolist()
    several = given if isinstance(given, list) else [given]
    values = [one.item() if isinstance(one, np.generic) else one for one in several]
    if not values:
        raise InputError(f"expected values of {name}, got none")
    _plain(name, values)  # what JSON does not hold is refused before it is written
    return values


def _check_names(question: str, names: Collection[str]) -> None:
    """`InputError` for a name that is no field of the question's registry."""
    registry = question_of(question).registry
    if not registry:
        return
    fields = fields_of(registry)
    for name in names:
        if fields.called(name) is None:
            near = fields.resembled(name)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            command = {"plans": "plan", "runs": "run"}.get(question, question)
            listed = f"`hybridperf {command} --help` lists what there is"
            raise InputError(f"{name!r} is no field of {question}{meant}; {listed}")


def _file_of_rows(given: Any, folder: Path) -> Path:
    """The file of rows; what is no file is written as one, under a hash of itself."""
    if isinstance(given, str | os.PathLike):
        return Path(given).resolve()
    frame = as_frame(given)
    content = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
    names = "\n".join(map(str, frame.columns)).encode()
    path = folder.resolve() / f"rows-{hashlib.sha256(names + content).hexdigest()[:16]}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_table(frame, path)
    return path


def _rows(asked: Mapping[str, Any]) -> tuple[Design, str]:
    """(points that are the rows of a file, a hash of these)."""
    frame = read_table(asked["rows"])
    content = json.dumps({str(name): repr(frame[name].tolist()) for name in frame.columns})
    columns = {str(name): _cells(frame[name]) for name in frame.columns}
    return Design([ListAxis(columns)] if columns else []), (
        hashlib.sha256(content.encode()).hexdigest()[:12]
    )


def _product(asked: Mapping[str, Any]) -> Design:
    """Axes in the order of their first field."""
    count = asked.get("sample")
    drawn: dict[str, SampledRange | SampledList] = {}
    axes: dict[str, Axis | None] = {}  # None: of all that are drawn
    for name, given in asked["fields"].items():
        axis: np.ndarray | SampledRange | SampledList
        if isinstance(given, Mapping):
            axis = _range(name, given)
            if isinstance(axis, SampledRange) and not count:
                raise InputError(
                    f"field {name} needs a count of its values, or a sample that is drawn of all"
                )
        else:
            axis = _plain(name, given)
            if count and len(given) > 1:
                axis = SampledList(axis)
        if isinstance(axis, np.ndarray):
            flags = all(isinstance(value, bool) for value in given)
            axes[name] = ListAxis({name: axis}, flags)
        else:
            drawn[name] = axis
            axes.setdefault("", None)
    if count and not drawn:
        raise InputError("expected a field of several values to sample, got one value of each")
    if count:
        axes[""] = JointAxis(count, asked["seed"], drawn)
    return Design([axis for axis in axes.values() if axis is not None])


def _range(name: str, given: Mapping[str, Any]) -> np.ndarray | SampledRange:
    """Evenly spaced values of a range, or without count the range itself."""
    what = f"field {name}"
    for key in given:
        if key not in _RANGE:
            raise unknown(f"key of {what}", str(key), _RANGE, f"there are {', '.join(_RANGE)}")
    for key in ("min", "max"):
        if key not in given:
            raise InputError(f"{what} needs a key {key!r}, as in {{'min': 1, 'max': 9}}")
    least, most = (finite_number(f"{key} of {what}", given[key]) for key in ("min", "max"))
    scale, whole = given.get("scale", "log"), given.get("integer", False)
    if scale not in ("log", "lin") or not isinstance(whole, bool):
        raise InputError(
            f"{what} must have a scale of log or lin, integer true or false, got {scale!r}"
            f" and {whole!r}"
        )
    if least > most:
        raise InputError(f"{what} has a range with min {least:g} above max {most:g}; exchange them")
    if scale == "log" and least <= 0:
        mend = "or write 'scale': 'lin'"
        raise InputError(
            f"{what} is in log space and needs a min above zero, got {least:g}; {mend}"
        )
    if "count" not in given:
        if whole and not (least.is_integer() and most.is_integer()):
            rule = "is a range of whole numbers, which has whole ends"
            raise InputError(f"{what} {rule}, got {least:g} to {most:g}")
        return SampledRange(least, most, scale == "log", whole)
    count = whole_number(f"count of {what}", given["count"], 1, _LONGEST_GRID)
    values = (np.geomspace if scale == "log" else np.linspace)(least, most, count)
    return np.unique(np.rint(values).astype(np.int64)) if whole else values


def _cells(column: Any) -> np.ndarray:
    """Numbers, or words where there are any; NaN and None where a cell is empty."""
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64 if column.dtype.kind == "f" else np.int64)
    empty = column.isna().to_numpy()
    texts = [None if no else str(cell) for cell, no in zip(column, empty, strict=True)]
    return np.array(texts, object)


def _plain(name: Any, values: list[Any]) -> np.ndarray:
    """Numbers or words as an array; `InputError` for anything else or a mixture."""
    values = [int(value) if isinstance(value, bool) else value for value in values]
    if values and all(isinstance(value, str) for value in values):
        return np.array(values, object)
    what = f"field {name}"
    for at, value in enumerate(values, 1):
        if isinstance(value, float) and not np.isfinite(value):
            raise InputError(
                f"{what} must be finite numbers, got {value} at place {at} of its list"
            )
        if not is_finite(value):
            raise InputError(f"{what} must be numbers or words, all of one kind, got {value!r}")
    if any(isinstance(value, int) and abs(value) > 2**62 for value in values):
        raise InputError(f"{what} has a whole number beyond 2**62; write it as a fraction")
    whole = all(isinstance(value, int) for value in values)
    return np.array(values, np.int64 if whole else np.float64)


def _check_free(names: Mapping[str, Collection[str]]) -> None:
    """`InputError` for a name that stands for two things, or that could not stand in a formula."""
    seen: dict[str, str] = {}
    for what, mine in names.items():
        for name in mine:
            if not str(name).isidentifier():
                rule = "names are letters, digits and underscores"
                raise InputError(f"{name!r} cannot stand in a formula; {rule}")
            if name in seen:
                mend = "call one of them something else"
                raise InputError(f"{name!r} is a {seen[name]} and a {what}; {mend}")
            seen[name] = what


def _check_counts(spec: SweepSpec, name: str) -> None:
    """`InputError` for a column that is not there, or has no least."""
    columns = spec.columns
    if name not in columns:
        near = f"there are {', '.join(columns)}; derived={{NAME: FORMULA}} adds more"
        raise unknown("column", name, columns, near)
    if columns[name]:
        numbers = ", ".join(column for column, words in columns.items() if not words)
        raise InputError(
            f"column {name!r} holds words, which have no least; choose one of {numbers}"
        )
