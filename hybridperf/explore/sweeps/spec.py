"""A sweep as people write it, a TOML file (or the same as a dict):

schema = "hybridperf/sweep"
schema_version = 1
chunk = 65536                                   # points done together; optional

[target]
kind = "collectives"                            # or "ops", "program"
model = "dgx_a100"                              # a model's folder or name, or a device's or
                                                system's for its datasheet
# outputs = ["busy_s", "critical_s"]            # of a program: more columns than time_s, see
                                                `outputs`

[parameters]                                    # grids multiply; the last varies fastest
collective = ["all_reduce", "all_gather"]       # a list of numbers or words
n_nodes = 1                                     # a constant
n_gpus = { powers_of_two = [2, 8] }             # 2, 4, 8
bytes = { log = [1e3, 1e9], count = 100 }       # or { lin = [...], count = n }, each with integer =
                                                true
x = { random = [1, 9], scale = "log" }          # random and Sobol parameters come together as one
                                                design of `count` points
y = { sobol = [1, 9], integer = true }
tp = { table = "layouts.csv", column = "tp" }   # a column of a file; columns of one file vary
                                                together

[design]                                        # of random and Sobol parameters
count = 1024
seed = 0

[derived]                                       # more columns; those that need results are worked
                                                out after them
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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.sweeps.design import Axis, Design, Joint, Range, Values, checked
from hybridperf.explore.sweeps.document import check_names, check_plain, read_document, section
from hybridperf.explore.sweeps.expression import Expression, parse
from hybridperf.explore.sweeps.front import Best
from hybridperf.explore.sweeps.target import Target, read_target
from hybridperf.io import InputError, closest, read_table, require_columns, unknown

SCHEMA_VERSION = 1
_SHIPPED = Path(__file__).parent / "shipped"
DEFAULT_CHUNK = 65536
INDEX = "point"  # the column that holds a point's index
_LARGEST_CHUNK = 2**22
_LONGEST_GRID = 10**7  # values of one parameter
_SECTIONS = (
    "schema",
    "schema_version",
    "chunk",
    "target",
    "parameters",
    "design",
    "derived",
    "constraints",
    "top",
    "front",
)
# to the results; chunks are named beside the spec
_NO_MATTER = ("schema", "schema_version", "chunk", "top", "front")
_KINDS = ("lin", "log", "powers_of_two", "random", "sobol", "table")
_ALSO = {
    "lin": ("count", "integer"), "log": ("count", "integer"), "powers_of_two": (),
    "random": ("scale", "integer"), "sobol": ("scale", "integer"), "table": ("column",),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Spec:
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
    best: Best
    inputs: str  # hash of the contents of its tables

    def identity(self) -> dict[str, Any]:
        """What its results depend on, versions aside. Which of them are shown is not part of it."""
        asked = {key: value for key, value in self.document.items() if key not in _NO_MATTER}
        return {
            "spec": asked,
            "chunk": self.chunk,
            "tables": self.inputs,
            "target": self.target.fingerprint(),
        }


def read_spec(source: str | Path | Mapping[str, Any], folder: str | Path = ".") -> Spec:
    """A spec from a file, the name of a shipped one, or a dict (its files are in `folder`)."""
    if isinstance(source, Mapping):
        return _spec(dict(source), Path(folder))
    path = Path(source)
    if not path.exists() and str(source) in shipped_specs():
        path = _SHIPPED / f"{source}.toml"
    if not path.exists():
        shipped = shipped_specs()
        said = (
            f"expected a spec at {path}, found none; check the path or take a shipped one:"
            f" {', '.join(shipped)}"
        )
        raise InputError(said + closest(str(path), shipped))
    document = read_document(path, "sweep", SCHEMA_VERSION)
    return _spec(document, path.parent)


def shipped_specs() -> list[str]:
    """Names of the specs that come with hybridperf."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def _spec(document: dict[str, Any], folder: Path) -> Spec:
    for name in document:
        if name not in _SECTIONS:
            raise unknown("section", name, _SECTIONS, f"a spec has {', '.join(_SECTIONS)}")
    check_plain(document)
    parts = {
        name: section(document, name)
        for name in ("target", "parameters", "design", "derived", "constraints", "top", "front")
    }
    tables: dict[str, Any] = {}
    design = _design(parts["parameters"], parts["design"], folder, tables)
    extremes = design.extremes()
    target = read_target(parts["target"], folder, extremes)
    parameters = design.names()
    results = [*target.results]
    for name in (*parameters, *parts["derived"]):
        if name in (*results, INDEX):
            raise InputError(
                f"{name!r} is a column of results; call the parameter or derived column something"
                " else"
            )
        if not name.isidentifier():
            raise InputError(
                f"{name!r} cannot be a column; names are letters, digits and underscores"
            )
    before, after = _derived(parts["derived"], parameters, results)
    given = {*parameters, *before}
    conditions = _conditions(parts["constraints"], [*given, *results, *after])
    _check_parameters(target, parameters, before, after, conditions)
    target.check(extremes, given)
    _check_words([*before.values(), *after.values(), *conditions], extremes)
    return Spec(
        document=document,
        folder=folder,
        target=target,
        design=design,
        before=before,
        after=after,
        keep=[c for c in conditions if c.names <= given],
        accept=[c for c in conditions if not c.names <= given],
        chunk=_whole(document.get("chunk", DEFAULT_CHUNK), "chunk", 1, _LARGEST_CHUNK),
        best=_best(
            parts["top"],
            parts["front"],
            [*parameters, *before, *results, *after],
            _words(extremes, target),
        ),
        inputs=hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12],
    )


def with_top(spec: Spec, count: int | None, by: str | None) -> Spec:
    """The spec with another `[top]`."""
    if count is None and by is None:
        return spec
    top = {
        **section(dict(spec.document), "top"),
        **({} if count is None else {"count": count}),
        **({} if by is None else {"by": by}),
    }
    known = [*spec.design.names(), *spec.before, *spec.target.results, *spec.after]
    words = _words(spec.design.extremes(), spec.target)
    return dataclasses.replace(
        spec, best=_best(top, section(dict(spec.document), "front"), known, words)
    )


def _words(extremes: Mapping[str, np.ndarray], target: Target) -> set[str]:
    """Columns of words."""
    said = {name for name, values in extremes.items() if values.dtype.kind == "O"}
    return said | {name for name, kind in target.results.items() if kind is str}


def _design(
    parameters: Mapping[str, Any], joint: Mapping[str, Any], folder: Path, tables: dict[str, Any]
) -> Design:
    """Axes in the order of their first parameter; contents of tables are noted in `tables`."""
    for key in joint:
        if key not in ("count", "seed"):
            raise unknown("key of [design]", key, ("count", "seed"), "it takes count and seed")
    ranges: dict[str, dict[str, Range]] = {"random": {}, "sobol": {}}
    axes: dict[str, Axis | None] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name, said in parameters.items():
        kind = _kind(name, said)
        if kind in ("random", "sobol"):
            ranges[kind][name] = _range(name, said, kind)
            axes.setdefault("joint", None)
        elif kind == "table":
            path = folder / str(said["table"])
            column = str(said.get("column", name))
            frame = read_table(path)
            require_columns(frame, [column], f"parameter {name}")
            values = frame[column].to_numpy()
            columns.setdefault(f"table {path}", {})[name] = _plain(
                name, values.tolist(), f"in row {{}} of {path}"
            )
            axes[f"table {path}"] = Values(columns[f"table {path}"])
            tables[name] = hashlib.sha256(repr(values.tolist()).encode()).hexdigest()[:16]
        else:
            flags = isinstance(said, list | bool) and all(
                isinstance(value, bool) for value in np.atleast_1d(np.array(said, object))
            )
            axes[f"grid {name}"] = Values({name: _grid(name, said, kind)}, flags)
    if "joint" in axes:
        if "count" not in joint:
            raise InputError(
                "random and Sobol parameters need a [design] with count, the number of their points"
            )
        count = _whole(joint["count"], "[design] count", 1, 2**30 if ranges["sobol"] else 2**53)
        axes["joint"] = Joint(
            count,
            _whole(joint.get("seed", 0), "[design] seed", 0, 2**63),
            ranges["random"],
            ranges["sobol"],
        )
    elif joint:
        raise InputError("[design] is for random and Sobol parameters, of which there are none")
    return checked(Design([axis for axis in axes.values() if axis is not None]))


def _kind(name: str, said: Any) -> str:
    """Which way a parameter is given; `InputError` for none, two, or keys that do not belong."""
    if not isinstance(said, Mapping):
        return "list"
    kinds = [key for key in said if key in _KINDS]
    if len(kinds) != 1:
        strange = next(
            (
                key
                for key in said
                if key not in _KINDS and key not in ("count", "integer", "scale", "column")
            ),
            None,
        )
        if strange:
            raise unknown(
                f"key of parameter {name}", strange, _KINDS, f"known are {', '.join(_KINDS)}"
            )
        raise InputError(
            f"parameter {name} needs one of {', '.join(_KINDS)}, got {', '.join(kinds) or 'none'}"
        )
    for key in said:
        if key != kinds[0] and key not in _ALSO[kinds[0]]:
            raise unknown(
                f"key of parameter {name}",
                key,
                _ALSO[kinds[0]],
                f"{kinds[0]} goes with {', '.join(_ALSO[kinds[0]]) or 'no other'}",
            )
    return kinds[0]


def _grid(name: str, said: Any, kind: str) -> np.ndarray:
    if kind == "list":
        return _plain(name, said if isinstance(said, list) else [said])
    low, high = _ends(name, said[kind])
    if kind == "powers_of_two":
        first, last = np.log2([low, high]) if low > 0 else (np.nan, np.nan)
        if first != np.floor(first) or last != np.floor(last) or first < 0:
            raise InputError(
                f"parameter {name}: powers_of_two goes from one power of two to another, got"
                f" {said[kind]}"
            )
        return 2 ** np.arange(int(first), int(last) + 1)
    if "count" not in said:
        raise InputError(f"parameter {name} needs a count, the number of its values")
    count = _whole(said["count"], f"count of parameter {name}", 1, _LONGEST_GRID)
    if kind == "log" and low <= 0:
        raise InputError(
            f"parameter {name}: a log range goes from a number above zero, got {said[kind]}"
        )
    values = np.geomspace(low, high, count) if kind == "log" else np.linspace(low, high, count)
    return np.unique(np.rint(values).astype(np.int64)) if _flag(name, said) else values


def _range(name: str, said: Mapping[str, Any], kind: str) -> Range:
    low, high = _ends(name, said[kind])
    scale = said.get("scale", "lin")
    if scale not in ("lin", "log"):
        raise unknown(
            f"scale of parameter {name}", str(scale), ("lin", "log"), "known are lin and log"
        )
    if scale == "log" and low <= 0:
        raise InputError(
            f"parameter {name}: a log range goes from a number above zero, got {said[kind]}"
        )
    integer = _flag(name, said)
    if integer and not (float(low).is_integer() and float(high).is_integer()):
        raise InputError(
            f"parameter {name}: a range of whole numbers has whole ends, got {said[kind]}"
        )
    return Range(low, high, scale == "log", integer)


def _ends(name: str, said: Any) -> tuple[float, float]:
    pair = (
        isinstance(said, list | tuple) and len(said) == 2 and all(_is_number(end) for end in said)
    )
    if pair and said[0] > said[1]:
        raise InputError(
            f"parameter {name}: the range {said} goes from the greater to the lesser number;"
            " exchange them"
        )
    if not pair:
        raise InputError(f"parameter {name} needs a range [least, most] of two numbers, got {said}")
    return float(said[0]), float(said[1])


def _plain(name: str, values: list[Any], place: str = "at place {} of its list") -> np.ndarray:
    """Numbers or words as an array; `InputError` naming `place` for anything else or a mixture."""
    values = [int(value) if isinstance(value, bool) else value for value in values]
    if values and all(isinstance(value, str) for value in values):
        return np.array(values, object)
    for at, value in enumerate(values, 1):
        if isinstance(value, float) and not np.isfinite(value):
            raise InputError(
                f"parameter {name} must be finite numbers, got {value} {place.format(at)}"
            )
    if not all(_is_number(value) for value in values):
        odd = next(value for value in values if not _is_number(value))
        raise InputError(f"parameter {name} must be numbers or words, all of one kind, got {odd!r}")
    if any(isinstance(value, int) and abs(value) > 2**62 for value in values):
        raise InputError(
            f"parameter {name} has a whole number beyond 2**62; write it as a fraction"
        )
    return np.array(
        values, np.int64 if all(isinstance(value, int) for value in values) else np.float64
    )


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
    )


def _flag(name: str, said: Mapping[str, Any]) -> bool:
    value = said.get("integer", False)
    if not isinstance(value, bool):
        raise InputError(f"parameter {name}: integer is true or false, got {value!r}")
    return value


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{what} must be a whole number from {least} to {most}, got {value!r}")
    return value


def _derived(
    said: Mapping[str, Any], parameters: Sequence[str], results: Sequence[str]
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Derived columns apart by whether they need results."""
    before: dict[str, Expression] = {}
    after: dict[str, Expression] = {}
    for name, text in said.items():
        if name in parameters:
            raise InputError(
                f"{name!r} is a parameter and a derived column; call one of them something else"
            )
        formula = parse(text, f"derived {name}")
        if formula.is_condition:
            raise InputError(
                f"derived {name} must be a number, got the condition {formula.text!r}; conditions"
                " go under [constraints]"
            )
        check_names(formula, f"derived {name}", [*parameters, *before, *results, *after], said)
        (before if formula.names <= {*parameters, *before} else after)[name] = formula
    return before, after


def _conditions(said: Mapping[str, Any], known: Sequence[str]) -> list[Expression]:
    out = []
    for name, text in said.items():
        formula = parse(text, f"constraint {name}")
        if not formula.is_condition:
            raise InputError(
                f"constraint {name} must be a condition such as a == b, got the number"
                f" {formula.text!r}"
            )
        check_names(formula, f"constraint {name}", known)
        out.append(formula)
    return out


def _check_words(formulas: Sequence[Expression], extremes: Mapping[str, np.ndarray]) -> None:
    """`InputError` where a formula calculates with a parameter of words."""
    for formula in formulas:
        for name in formula.numbers() & set(extremes):
            if extremes[name].dtype.kind == "O":
                raise InputError(f"{formula.text!r} counts with {name}, whose values are words")


def _check_parameters(
    target: Target,
    parameters: Sequence[str],
    before: Mapping[str, Expression],
    after: Mapping[str, Expression],
    rules: list[Expression],
) -> None:
    used = set().union(*(formula.names for formula in (*before.values(), *after.values(), *rules)))
    known = target.known()
    for name in parameters:
        if name not in known and name not in used:
            short = sorted(name for name in known if "__" not in name)
            raise unknown(
                "parameter",
                name,
                known,
                f"the target reads {', '.join(short)}, and no formula names it",
            )


def _best(
    top: Mapping[str, Any], front: Mapping[str, Any], columns: Sequence[str], words: Collection[str]
) -> Best:
    for where, said, keys in (
        ("top", top, ("count", "by")),
        ("front", front, ("minimise", "maximise")),
    ):
        for key in said:
            if key not in keys:
                raise unknown(f"key of [{where}]", key, keys, f"it takes {' and '.join(keys)}")
    count = _whole(top["count"], "the number of top points", 1, 10**6) if "count" in top else 0
    by = top.get("by", "time_s")
    if top and not count:
        raise InputError("[top] needs a count, or --top K")
    minimise, maximise = (front.get(key, []) for key in ("minimise", "maximise"))
    for names in (minimise, maximise, [by]):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"[front] and [top] name columns, got {names!r}")
        for name in names:
            if name not in columns and (top or names != [by]):
                raise unknown("column", name, columns, f"there are {', '.join(columns)}")
            if name in words:
                numbers = ", ".join(column for column in columns if column not in words)
                raise InputError(
                    f"column {name!r} holds words, which have no least; choose one of {numbers}"
                )
    if front and not (minimise or maximise):
        raise InputError("[front] needs minimise or maximise, lists of columns")
    return Best(count, by, tuple(minimise), tuple(maximise))
