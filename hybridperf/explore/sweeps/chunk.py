"""One chunk of a sweep as a table of results: a pure function of spec and chunk number."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from hybridperf.explore.sweeps.spec import INDEX, SweepSpec
from hybridperf.io import InputError
from hybridperf.io.progress import Progress, shown

# of a part's metadata: how many of its points meet each constraint on results
MET = b"hybridperf/met"

_ARROW = {"O": pa.string(), "U": pa.string(), "b": pa.bool_(), "i": pa.int64(), "f": pa.float64()}
_WINDOWS, _WINDOW = 16, 64  # points looked at for divisors
_LARGEST_SAMPLED = 10**6


def chunks(spec: SweepSpec) -> int:
    """How many chunks a sweep has."""
    return -(-spec.design.size // spec.chunk)


def bounds(spec: SweepSpec, chunk: int) -> tuple[int, int]:
    """Index of a chunk's first point, and of the first behind it."""
    return chunk * spec.chunk, min((chunk + 1) * spec.chunk, spec.design.size)


def points(spec: SweepSpec, chunk: int) -> dict[str, np.ndarray]:
    """Points of a chunk that meet the constraints, with derived columns that need no results."""
    start, stop = bounds(spec, chunk)
    columns = {INDEX: np.arange(start, stop, dtype=np.int64), **spec.design.points(start, stop)}
    for name, formula in spec.before.items():
        columns[name] = formula(columns, stop - start)
    keep = np.ones(stop - start, bool)
    for condition in spec.keep:
        keep &= condition(columns, stop - start)
    return columns if keep.all() else {name: values[keep] for name, values in columns.items()}


def check_not_empty(spec: SweepSpec, *, quiet: bool = True) -> None:
    """`InputError` if constraints leave no point."""
    if not spec.keep:
        return
    with shown("points looked through for one that meets the constraints") as show:
        for chunk in range(chunks(spec)):
            if len(points(spec, chunk)[INDEX]):
                return
            if not quiet:
                show(Progress(bounds(spec, chunk)[1], spec.design.size))
    texts = "; ".join(condition.text for condition in spec.keep)
    raise InputError(
        f"the constraints leave none of {spec.design.size:,} points: {texts}; loosen one or widen a"
        " parameter"
    )


def check_divisors(spec: SweepSpec) -> None:
    """`InputError` for a derived column that divides by zero at points all over the design."""
    formulas = [formula for formula in spec.before.values() if formula.divisors()]
    if not formulas or spec.design.size > _LARGEST_SAMPLED:
        return
    size = spec.design.size
    starts = map(int, np.linspace(0, max(0, size - _WINDOW), _WINDOWS))
    parts = [spec.design.points(start, min(start + _WINDOW, size)) for start in starts]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in spec.design.names()}
    rows = len(next(iter(columns.values())))
    for name, formula in spec.before.items():
        for divisor in formula.divisors():
            if not divisor(columns, rows).any():
                divides = f"divides by {divisor.text!r}, which is zero"
                raise InputError(f"derived {name}: {formula.text!r} {divides}")
        columns[name] = formula(columns, rows)


def evaluate(spec: SweepSpec, chunk: int) -> pa.Table:
    """Results of a chunk, one row per point that the constraints leave."""
    columns = points(spec, chunk)
    rows = len(columns[INDEX])
    if not rows:  # the columns and their types all the same
        return _empty(spec)
    try:
        columns |= spec.target.evaluate(columns)
    except InputError as error:
        start, stop = bounds(spec, chunk)
        raise InputError(f"among points {start} to {stop - 1}: {error}") from error
    for name, formula in spec.after.items():
        columns[name] = formula(columns, rows)
    met = [condition(columns, rows) for condition in spec.accept]
    accept = np.logical_and.reduce(met) if met else np.ones(rows, bool)
    if spec.target.seconds in columns:  # conditions say nothing of what could not be predicted
        accept |= np.isnan(np.asarray(columns[spec.target.seconds], np.float64))
    if not accept.all():
        columns = {name: values[accept] for name, values in columns.items()}
    counts = json.dumps([int(one.sum()) for one in met])
    return _table(columns, spec).replace_schema_metadata({MET: counts})


def _table(columns: Mapping[str, np.ndarray], spec: SweepSpec) -> pa.Table:
    flags = {name for name, kind in spec.target.results.items() if kind is bool}
    return pa.table({name: _column(np.asarray(values), name in flags)
                     for name, values in columns.items()})  # fmt: skip


def _column(values: np.ndarray, flag: bool) -> pa.Array:
    """A column; a flag that is not known everywhere comes as numbers, NaN where it is not."""
    if flag and values.dtype.kind == "f":
        return pa.array(values == 1, pa.bool_(), mask=np.isnan(values))
    return pa.array(values, _ARROW[values.dtype.kind])


def _empty(spec: SweepSpec) -> pa.Table:
    """A table without rows, of the same columns as any other part."""
    one = {INDEX: np.zeros(1, np.int64), **spec.design.points(0, 1)}
    one |= {name: np.zeros(1) for name in spec.before}
    for name, kind in spec.target.results.items():
        one[name] = np.array([kind()], object if kind is str else kind)
    one |= {name: np.zeros(1) for name in spec.after}
    return _table(one, spec).slice(0, 0)
