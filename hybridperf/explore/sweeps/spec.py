"""A sweep as people write it, a TOML file (or the same as a dict):

schema = "hybridperf/sweep"
schema_version = 1
chunk = 65536                                   # points done together; optional

[target]
kind = "collectives"                            # or "ops", "program"
model = "dgx_a100"                              # a model's folder or name, or a datasheet's
# outputs = ["busy_s", "critical_s"]            # of a program: columns besides time_s

[parameters]                                    # grids multiply; the last varies fastest
collective = ["all_reduce", "all_gather"]       # a list of numbers or words
n_nodes = 1                                     # a constant
n_gpus = { powers_of_two = [2, 8] }             # 2, 4, 8
bytes = { log = [1e3, 1e9], count = 100 }       # or lin; both also take integer = true
x = { random = [1, 9], scale = "log" }          # all random and Sobol parameters are one design
y = { sobol = [1, 9], integer = true }
tp = { table = "layouts.csv", column = "tp" }   # a column of a file; its columns vary together

[design]                                        # of random and Sobol parameters
count = 1024
seed = 0

[derived]                                       # more columns, from parameters and results
bytes_per_gpu = "bytes / n_gpus"
[constraints]                                   # points where one fails are left out
large_enough = "bytes_per_gpu >= 1024"

[top]
count = 10
by = "time_s"
[front]
minimise = ["time_s", "n_gpus"]                 # and maximise = [...]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.sweeps.design import (
    Axis,
    Design,
    JointAxis,
    ListAxis,
    SampledRange,
    checked,
)
from hybridperf.explore.sweeps.document import (
    SpecSource,
    check_free,
    check_keys,
    check_range,
    check_used,
    derived_columns,
    each,
    find_spec,
    is_finite,
    known_formula,
    section,
    sections,
    whole_flag,
    whole_number,
)
from hybridperf.explore.sweeps.expression import Expression
from hybridperf.explore.sweeps.front import BestRule
from hybridperf.explore.sweeps.target import Given, Target, read_target
from hybridperf.io import InputError, read_table, require_columns, unknown

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "shipped"
DEFAULT_CHUNK = 65536
INDEX = "point"  # the column that holds a point's index
_LARGEST_CHUNK = 2**22
_LONGEST_GRID = 10**7  # values of one parameter
_TABLES = ("target", "parameters", "design", "derived", "constraints", "top", "front")
# results do not depend on these; the size of chunks is part of the identity on its own
_NO_MATTER = ("schema", "schema_version", "chunk", "top", "front")
_KINDS = ("lin", "log", "powers_of_two", "random", "sobol", "table")
_ALSO = {
    "lin": ("count", "integer"), "log": ("count", "integer"), "powers_of_two": (),
    "random": ("scale", "integer"), "sobol": ("scale", "integer"), "table": ("column",),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """A sweep with all names known and a design that is not empty, before any compilation."""

    document: Mapping[str, Any]  # as it was written
    folder: Path  # where its files are looked for
    target: Target
    design: Design
    before: Mapping[str, Expression]  # derived columns that need no result, in order
    after: Mapping[str, Expression]  # those that do
    keep: Sequence[Expression]  # constraints that need no result
    accept: Sequence[Expression]  # those that do
    chunk: int
    columns: Mapping[str, bool]  # all that it gives, and whether they hold words
    best: BestRule
    inputs: str  # hash of the contents of its tables

    def identity(self) -> dict[str, Any]:
        """What its results depend on, versions aside. Which of them are shown is not part of it."""
        asked = {key: value for key, value in self.document.items() if key not in _NO_MATTER}
        target = self.target.fingerprint()
        return {"spec": asked, "chunk": self.chunk, "tables": self.inputs, "target": target}


def read_spec(source: SpecSource, folder: str | Path = ".") -> SweepSpec:
    """A spec from a file, the name of a shipped one, or a dict (its files are in `folder`)."""
    return _spec(*find_spec(source, folder, "sweep", SCHEMA_VERSION, SHIPPED))


def _spec(document: dict[str, Any], folder: Path) -> SweepSpec:
    parts = sections(document, "sweep", ("schema", "schema_version", "chunk"), _TABLES)
    tables: dict[str, Any] = {}
    design = _design(parts["parameters"], parts["design"], folder, tables)
    extremes = design.extremes()
    target = read_target(parts["target"], folder, extremes)
    parameters = design.names()
    results, derived = [*target.results], parts["derived"]
    of_results = {"column of results": [*results, INDEX]}
    check_free({**of_results, "parameter": parameters, "derived column": derived})
    before, after = derived_columns(derived, parameters, results)
    given = {*parameters, *before}
    known = [*given, *results, *after]
    conditions = each(
        lambda name, text: known_formula(text, f"constraint {name}", known, condition=True),
        parts["constraints"].items(),
    )
    formulas = [*before.values(), *after.values(), *conditions]
    used = target.known().union(*(formula.names for formula in formulas))
    check_used({"parameter": parameters}, used, target.known())
    target.check(extremes, given)
    words = {name for name, values in extremes.items() if values.dtype.kind == "O"}
    for formula in formulas:
        for name in formula.numbers() & words:
            raise InputError(f"{formula.text!r} counts with {name}, whose values are words")
    words |= {name for name, kind in target.results.items() if kind is str}
    columns = {name: name in words for name in (*parameters, *before, *results, *after)}
    return SweepSpec(
        document=document,
        folder=folder,
        target=target,
        design=design,
        before=before,
        after=after,
        keep=[c for c in conditions if c.names <= given],
        accept=[c for c in conditions if not c.names <= given],
        chunk=whole_number(document.get("chunk", DEFAULT_CHUNK), "chunk", 1, _LARGEST_CHUNK),
        columns=columns,
        best=_best(parts["top"], parts["front"], columns),
        inputs=hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12],
    )


def with_top(spec: SweepSpec, count: int | None, by: str | None) -> SweepSpec:
    """The spec with another `[top]`."""
    given = {key: value for key, value in (("count", count), ("by", by)) if value is not None}
    if not given:
        return spec
    top, front = (section(spec.document, name) for name in ("top", "front"))
    return dataclasses.replace(spec, best=_best(top | given, front, spec.columns))


def _design(
    parameters: Mapping[str, Any], joint: Mapping[str, Any], folder: Path, tables: dict[str, Any]
) -> Design:
    """Axes in the order of their first parameter; contents of tables are noted in `tables`."""
    check_keys(joint, ("count", "seed"), "key of [design]", "it takes count and seed")
    ranges: dict[str, dict[str, SampledRange]] = {"random": {}, "sobol": {}}
    axes: dict[str, Axis | None] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}

    def add(name: str, written: Any) -> None:
        kind = _kind(name, written)
        if kind in ("random", "sobol"):
            ranges[kind][name] = _range(name, written, kind)
            axes.setdefault("joint", None)
        elif kind == "table":
            path = folder / str(written["table"])
            column = str(written.get("column", name))
            frame = read_table(path)
            require_columns(frame, [column], f"parameter {name}")
            values = frame[column].tolist()
            of_table = columns.setdefault(f"table {path}", {})
            of_table[name] = _plain(name, values, f"in row {{}} of {path}")
            axes[f"table {path}"] = ListAxis(of_table)
            tables[name] = hashlib.sha256(repr(values).encode()).hexdigest()[:16]
        else:
            each = np.atleast_1d(np.array(written, object))
            flags = isinstance(written, list | bool) and all(isinstance(v, bool) for v in each)
            axes[f"grid {name}"] = ListAxis({name: _grid(name, written, kind)}, flags)

    each(add, parameters.items())
    if "joint" in axes:
        if "count" not in joint:
            needs = "need a [design] with count, the number of their points"
            raise InputError(f"random and Sobol parameters {needs}")
        most = 2**30 if ranges["sobol"] else 2**53
        count = whole_number(joint["count"], "[design] count", 1, most)
        seed = whole_number(joint.get("seed", 0), "[design] seed", 0, 2**63)
        axes["joint"] = JointAxis(count, seed, ranges["random"], ranges["sobol"])
    elif joint:
        raise InputError("[design] is for random and Sobol parameters, of which there are none")
    return checked(Design([axis for axis in axes.values() if axis is not None]))


def _kind(name: str, written: Any) -> str:
    """Which way a parameter is given; `InputError` for none, two, or keys that do not belong."""
    if not isinstance(written, Mapping):
        return "list"
    kinds = [key for key in written if key in _KINDS]
    what = f"key of parameter {name}"
    if len(kinds) != 1:
        known = (*_KINDS, "count", "integer", "scale", "column")
        if strange := next((key for key in written if key not in known), None):
            raise unknown(what, strange, _KINDS, f"known are {', '.join(_KINDS)}")
        got = ", ".join(kinds) or "none"
        raise InputError(f"parameter {name} needs one of {', '.join(_KINDS)}, got {got}")
    (kind,) = kinds
    others = ", ".join(_ALSO[kind]) or "no other"
    check_keys((k for k in written if k != kind), _ALSO[kind], what, f"{kind} goes with {others}")
    return kind


def _grid(name: str, written: Any, kind: str) -> np.ndarray:
    if kind == "list":
        return _plain(name, written if isinstance(written, list) else [written])
    low, high = _ends(name, written[kind], kind)
    if kind == "powers_of_two":
        first, last = np.log2([low, high]) if low > 0 else (np.nan, np.nan)
        if first != np.floor(first) or last != np.floor(last) or first < 0:
            rule = "powers_of_two goes from one power of two to another"
            raise InputError(f"parameter {name}: {rule}, got {written[kind]}")
        return 2 ** np.arange(int(first), int(last) + 1)
    if "count" not in written:
        raise InputError(f"parameter {name} needs a count, the number of its values")
    count = whole_number(written["count"], f"count of parameter {name}", 1, _LONGEST_GRID)
    values = np.geomspace(low, high, count) if kind == "log" else np.linspace(low, high, count)
    integer = whole_flag(f"parameter {name}", written)
    return np.unique(np.rint(values).astype(np.int64)) if integer else values


def _range(name: str, written: Mapping[str, Any], kind: str) -> SampledRange:
    scale = written.get("scale", "lin")
    check_keys([str(scale)], ("lin", "log"), f"scale of parameter {name}", "known are lin and log")
    low, high = _ends(name, written[kind], scale)
    integer = whole_flag(f"parameter {name}", written, low, high)
    return SampledRange(low, high, scale == "log", integer)


def _ends(name: str, pair: Any, scale: str) -> tuple[float, float]:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(is_finite, pair)):
        raise InputError(f"parameter {name} needs a range [least, most] of two numbers, got {pair}")
    low, high = map(float, pair)
    check_range(f"parameter {name}", low, high, log=scale == "log")
    return low, high


def _plain(name: str, values: list[Any], place: str = "at place {} of its list") -> np.ndarray:
    """Numbers or words as an array; `InputError` naming `place` for anything else or a mixture."""
    values = [int(value) if isinstance(value, bool) else value for value in values]
    if values and all(isinstance(value, str) for value in values):
        return np.array(values, object)
    what = f"parameter {name}"
    for at, value in enumerate(values, 1):
        if isinstance(value, float) and not np.isfinite(value):
            raise InputError(f"{what} must be finite numbers, got {value} {place.format(at)}")
    for value in values:
        if not is_finite(value):
            raise InputError(f"{what} must be numbers or words, all of one kind, got {value!r}")
    if any(isinstance(value, int) and abs(value) > 2**62 for value in values):
        raise InputError(f"{what} has a whole number beyond 2**62; write it as a fraction")
    whole = all(isinstance(value, int) for value in values)
    return np.array(values, np.int64 if whole else np.float64)


def _best(top: Given, front: Given, columns: Mapping[str, bool]) -> BestRule:
    check_keys(top, ("count", "by"), "key of [top]", "it takes count and by")
    senses = ("minimise", "maximise")
    check_keys(front, senses, "key of [front]", f"it takes {' and '.join(senses)}")
    most = 10**6
    count = whole_number(top["count"], "the number of top points", 1, most) if "count" in top else 0
    by = top.get("by", "time_s")
    if top and not count:
        raise InputError("[top] needs a count, or --top K")
    minimise, maximise = (front.get(sense, []) for sense in senses)
    for names in (minimise, maximise, [by]):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"[front] and [top] name columns, got {names!r}")
        for name in names:
            if name not in columns and (top or names != [by]):
                raise unknown("column", name, columns, f"there are {', '.join(columns)}")
            if columns.get(name):
                numbers = (column for column, holds_words in columns.items() if not holds_words)
                mend = f"choose one of {', '.join(numbers)}"
                raise InputError(f"column {name!r} holds words, which have no least; {mend}")
    if front and not (minimise or maximise):
        raise InputError("[front] needs minimise or maximise, lists of columns")
    return BestRule(count, by, tuple(minimise), tuple(maximise))
