"""One chunk of a sweep, from the index of its first point to a table of its results: a pure function of spec and number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from hybridperf.io import InputError
from hybridperf.sweeps.spec import INDEX, Spec


def chunks(spec: Spec) -> int:
    """How many chunks a sweep has."""
    return -(-spec.design.size // spec.chunk)


def bounds(spec: Spec, chunk: int) -> tuple[int, int]:
    """Index of a chunk's first point, and of the first behind it."""
    return chunk * spec.chunk, min((chunk + 1) * spec.chunk, spec.design.size)


def points(spec: Spec, chunk: int) -> dict[str, np.ndarray]:
    """The points of a chunk that no constraint leaves out, with derived columns; those that need results come later."""
    start, stop = bounds(spec, chunk)
    columns = {INDEX: np.arange(start, stop, dtype=np.int64), **spec.design.points(start, stop)}
    for name, formula in spec.before.items():
        columns[name] = formula(columns, stop - start)
    keep = np.ones(stop - start, bool)
    for condition in spec.keep:
        keep &= condition(columns, stop - start)
    return columns if keep.all() else {name: values[keep] for name, values in columns.items()}


def check_not_empty(spec: Spec) -> None:
    """`InputError` if the constraints leave no point of the whole design."""
    if spec.keep and not any(len(points(spec, chunk)[INDEX]) for chunk in range(chunks(spec))):
        texts = "; ".join(condition.text for condition in spec.keep)
        raise InputError(f"the constraints leave none of {spec.design.size:,} points: {texts}; loosen one or widen a parameter")


def evaluate(spec: Spec, chunk: int) -> pa.Table:
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
    accept = np.ones(rows, bool)
    for condition in spec.accept:
        accept &= condition(columns, rows)
    return _table(columns if accept.all() else {name: values[accept] for name, values in columns.items()})


def _table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    kinds = {"O": pa.string(), "U": pa.string(), "b": pa.bool_(), "i": pa.int64(), "f": pa.float64()}
    return pa.table({name: pa.array(np.asarray(values), kinds[np.asarray(values).dtype.kind]) for name, values in columns.items()})


def _empty(spec: Spec) -> pa.Table:
    """A table without rows, of the same columns as any other part."""
    one = {INDEX: np.zeros(1, np.int64), **spec.design.points(0, 1)}
    one |= {name: np.zeros(1) for name in spec.before}
    one |= {name: np.array([kind()], object if kind is str else kind) for name, kind in spec.target.results.items()}
    one |= {name: np.zeros(1) for name in spec.after}
    return _table(one).slice(0, 0)
