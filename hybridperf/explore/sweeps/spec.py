"""A sweep, read from a spec (`written.py` has the dialect): names looked up, points laid out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
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
)
from hybridperf.explore.sweeps.document import (
    Document,
    SpecSource,
    check_free,
    check_used,
    derived_columns,
    known_formula,
    read_spec_document,
)
from hybridperf.explore.sweeps.front import BestRule
from hybridperf.explore.sweeps.target import Target
from hybridperf.explore.sweeps.written import (
    Drawn,
    Objective,
    Range,
    Sampled,
    TableColumn,
    Top,
    part,
)
from hybridperf.fields.frames import ANSWERED_BY
from hybridperf.hardware.prices import read_prices
from hybridperf.io import InputError, read_table, require_columns, unknown
from hybridperf.io.documents import is_finite
from hybridperf.io.expression import Expression, parse

SHIPPED = Path(__file__).parent / "shipped"
INDEX = "point"  # the column that holds a point's index
# results do not depend on these; the size of chunks is part of the identity on its own
_NO_MATTER = ("schema", "schema_version", "chunk", "top", "objective")


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """A sweep with all names known and a design that is not empty, before any compilation."""

    document: Mapping[str, Any]  # as it was written, in today's words
    folder: Path  # where its files are looked for
    target: Target
    design: Design
    before: Mapping[str, Expression]  # derived columns that need no result, in order
    after: Mapping[str, Expression]  # those that do
    keep: Sequence[Expression]  # constraints that need no result
    accept: Sequence[Expression]  # those that do
    chunk: int
    columns: Mapping[str, bool]  # all that it gives, and whether they hold words
    objective: Objective
    top: Top | None
    best: BestRule
    inputs: str  # hash of the contents of its tables
    notes: Sequence[str]  # of how it is written

    def identity(self) -> dict[str, Any]:
        """What its results depend on, versions aside. Which of them are shown is not part of it."""
        asked = {key: value for key, value in self.document.items() if key not in _NO_MATTER}
        target = self.target.fingerprint()
        return {"spec": asked, "chunk": self.chunk, "tables": self.inputs, "target": target}

    def remarks(self) -> list[str]:
        """What is to be known before any result is read."""
        return [*self.notes, *self.target.remarks()]


def read_spec(source: SpecSource, folder: str | Path = ".") -> SweepSpec:
    """A spec from a file, the name of a shipped one, or a dict (its files are in `folder`).

    Raises:
        InputError: a sentence of all that is wrong with it.
    """
    return _spec(read_spec_document(source, folder, SHIPPED))


def _spec(document: Document) -> SweepSpec:
    written, faults, wrong = document.written, document.faults, document.wrong
    tables: dict[str, Any] = {}
    design = _design(document, tables)
    parameters = [*design.names(), *sorted(wrong - {"target"} - {*design.names()})]
    extremes = dict.fromkeys(wrong, np.array([], object)) | design.extremes()
    target = None
    if "target" not in wrong:
        with faults.kept():
            if written.target is None:
                raise InputError(f"[target] needs a question: one of {', '.join(ANSWERED_BY)}")
            target = Target(written.target, document.folder, extremes)
    if target is None:  # names of results are not known
        faults.end()
        raise AssertionError("a target that is wrong is among the faults")
    results, derived = [*target.results], written.derived
    of_results = {"column of results": [*results, INDEX]}
    with faults.kept():
        check_free({**of_results, "parameter": parameters, "derived column": derived})
    # prices that formulas name are parameters of one value
    in_formulas = set[str]().union(*(parse(text, "").names for text in written.formulas()))
    own = {*parameters, *results, *derived}
    with faults.kept():
        prices = read_prices(written.prices, document.folder)
        priced = {name: prices[name].value for name in prices if name in in_formulas - own}
        one = [ListAxis({name: np.array([value])}) for name, value in priced.items()]
        design, tables = Design([*design.axes, *one]), tables | priced
        parameters += priced
    before, after = derived_columns(derived, parameters, results, faults)
    given = {*parameters, *before}
    known = list(dict.fromkeys([*given, *results, *after, *derived]))
    conditions = []
    for name, text in written.constraints.items():
        with faults.kept():
            formula = known_formula(text, f"constraint {name}", known, condition=True)
            conditions.append(formula)
    formulas = [*before.values(), *after.values(), *conditions]
    words = {name for name, values in extremes.items() if values.dtype.kind == "O"}
    for formula in formulas:
        for name in sorted(formula.numbers() & words - wrong):
            with faults.kept():
                raise InputError(f"{formula.text!r} counts with {name}, whose values are words")
    words |= {name for name, kind in target.results.items() if kind is str}
    names = [*parameters, *before, *results, *after]
    columns = {name: name in words for name in names}
    best = BestRule(0, target.seconds, (), ())
    with faults.kept():
        best = _best(written.top, written.objective, columns, set(known) - set(names), target)
    if not wrong:
        used = target.known().union(*(formula.names for formula in formulas))
        with faults.kept():
            if not faults.said:  # what is wrong may have named it
                check_used({"parameter": parameters}, used, target.known())
        with faults.kept():
            target.check(extremes, given)
    faults.end()
    return SweepSpec(
        document=document.raw,
        folder=document.folder,
        target=target,
        design=checked(design),
        before=before,
        after=after,
        keep=[c for c in conditions if c.names <= given],
        accept=[c for c in conditions if not c.names <= given],
        chunk=written.chunk,
        columns=columns,
        objective=written.objective,
        top=written.top,
        best=best,
        inputs=hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12],
        notes=document.remarks,
    )


def with_top(spec: SweepSpec, count: int | None, by: str | None) -> SweepSpec:
    """The spec with another `[top]`."""
    given = {key: value for key, value in (("count", count), ("by", by)) if value is not None}
    if not given:
        return spec
    whole = (spec.top.model_dump() if spec.top else {}) | given
    if "count" not in whole:
        raise InputError("[top] needs a count, or --top K")
    best = _best(part(Top, "top", whole), spec.objective, spec.columns, set(), spec.target)
    return dataclasses.replace(spec, best=best)


def _design(document: Document, tables: dict[str, Any]) -> Design:
    """Axes in the order of their first parameter; contents of tables are noted in `tables`."""
    faults, joint = document.faults, document.written.design
    ranges: dict[str, dict[str, SampledRange | SampledList]] = {"random": {}, "sobol": {}}
    read: dict[Path, Any] = {}
    axes: dict[str, Axis | None] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name, written in document.written.parameters.items():
        document.wrong.add(name)  # until it is read
        with faults.kept():
            if isinstance(written, TableColumn):
                path = document.folder / written.table
                column = written.column or name
                if path not in read:
                    read[path] = read_table(path)
                frame = read[path]
                require_columns(frame, [column], f"parameter {name}")
                values = frame[column].tolist()
                of_table = columns.setdefault(f"table {path}", {})
                of_table[name] = _cells(frame[column])
                axes[f"table {path}"] = ListAxis(of_table)
                tables[name] = hashlib.sha256(repr(values).encode()).hexdigest()[:16]
            elif isinstance(written, Drawn):
                values = written.values if isinstance(written.values, list) else [written.values]
                ranges[written.sample][name] = SampledList(_plain(name, values))
                _check_sampled(name, document)
                axes.setdefault("joint", None)
            elif not isinstance(written, Range):
                each = np.atleast_1d(np.array(written, object))
                flags = isinstance(written, list | bool) and all(isinstance(v, bool) for v in each)
                values = written if isinstance(written, list) else [written]
                if not values:
                    raise InputError(f"parameter {name} has no values; expected at least one")
                axes[f"grid {name}"] = ListAxis({name: _plain(name, values)}, flags)
            elif written.count or written.scale == "powers_of_two":
                axes[f"grid {name}"] = ListAxis({name: _grid(written, written.count or 0)})
            else:
                _check_sampled(name, document)
                log = written.scale == "log"
                sampled = SampledRange(written.min, written.max, log, written.integer)
                ranges[written.sample or "sobol"][name] = sampled
                axes.setdefault("joint", None)
            document.wrong.discard(name)
    if "joint" in axes:
        if joint is None:  # what is wrong with it was said
            joint = Sampled(count=1)
        if ranges["sobol"] and joint.count > 2**30:
            faults.said.append(f"[design] count must be at most 2**30, got {joint.count}")
        axes["joint"] = JointAxis(joint.count, joint.seed, ranges["random"], ranges["sobol"])
    elif joint and not document.wrong:
        faults.said.append("[design] is for parameters that are sampled, of which there are none")
    made = Design([axis for axis in axes.values() if axis is not None])
    if not document.wrong:
        with faults.kept():
            checked(made)
    return made


def _check_sampled(name: str, document: Document) -> None:
    """`InputError` for a sampled parameter where nothing says how many points there are."""
    if document.written.design is None and "design" not in document.raw:
        needs = "needs a [design] with count, the number of sampled points, or a count"
        raise InputError(f"parameter {name} {needs} of its own")


def _grid(written: Range, count: int) -> np.ndarray:
    least, most = written.min, written.max
    if written.scale == "powers_of_two":
        return 2 ** np.arange(int(np.log2(least)), int(np.log2(most)) + 1)
    spaced = np.geomspace if written.scale == "log" else np.linspace
    values = spaced(least, most, count)
    return np.unique(np.rint(values).astype(np.int64)) if written.integer else values


def _cells(column: Any) -> np.ndarray:
    """Numbers, or words where there are any; NaN and None where a cell is empty."""
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64 if column.dtype.kind == "f" else np.int64)
    empty = column.isna().to_numpy()
    texts = [None if no else str(cell) for cell, no in zip(column, empty, strict=True)]
    return np.array(texts, object)


def _plain(name: str, values: list[Any]) -> np.ndarray:
    """Numbers or words as an array; `InputError` for anything else or a mixture."""
    values = [int(value) if isinstance(value, bool) else value for value in values]
    if values and all(isinstance(value, str) for value in values):
        return np.array(values, object)
    what = f"parameter {name}"
    for at, value in enumerate(values, 1):
        if isinstance(value, float) and not np.isfinite(value):
            raise InputError(
                f"{what} must be finite numbers, got {value} at place {at} of its list"
            )
    for value in values:
        if not is_finite(value):
            raise InputError(f"{what} must be numbers or words, all of one kind, got {value!r}")
    if any(isinstance(value, int) and abs(value) > 2**62 for value in values):
        raise InputError(f"{what} has a whole number beyond 2**62; write it as a fraction")
    whole = all(isinstance(value, int) for value in values)
    return np.array(values, np.int64 if whole else np.float64)


def _best(
    top: Top | None, objective: Objective, columns: Mapping[str, bool], wrong: Collection[str],
    target: Target,
) -> BestRule:  # fmt: skip
    """What is kept; `wrong` are columns that would be there were they right."""
    minimise, maximise = tuple(objective.minimise), tuple(objective.maximise)
    only = minimise[0] if len(minimise) == 1 and not maximise else target.seconds
    by = (top.by if top else None) or only
    for name in (*minimise, *maximise, *([by] if top else [])):
        if name in wrong:
            continue
        if name not in columns:
            near = f"there are {', '.join(columns)}; a formula stands under [derived]"
            raise unknown("column", name, columns, near)
        if columns[name]:
            numbers = (column for column, holds_words in columns.items() if not holds_words)
            mend = f"choose one of {', '.join(numbers)}"
            raise InputError(f"column {name!r} holds words, which have no least; {mend}")
    return BestRule(top.count if top else 0, by, minimise, maximise)
