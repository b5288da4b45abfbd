"""Rows of a measurement table -> ops, whole columns at a time.

A table may hold rows of several ops; each row needs `op`, `dtype` and the dimensions of its op. Rows are grouped by op and dtype, so a
group is one `Op` whose fields are columns, and its work one array per count.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec, canonical_dtype
from hybridperf.io import InputError, closest, require_columns
from hybridperf.ops.base import Op, op_by_name
from hybridperf.roofline import Work

LARGEST_SIZE = 1e13  # elements along one dimension; more is a slip, not a tensor
LARGEST_WORK = 1e24  # flops or bytes of one op


@dataclasses.dataclass(frozen=True)
class OpRows:
    """Rows of one op and dtype. R rows."""

    rows: np.ndarray  # int [R] positions in the table
    op: Op  # fields are columns [R]
    work: Work  # [R] each
    group: np.ndarray  # int32 [R] index into GROUPS
    peak_flops_per_s: float


@dataclasses.dataclass(frozen=True)
class ParsedOps:
    """A whole table. `problem[i]` says in one sentence why row i is in no part; empty for rows that are."""

    parts: list[OpRows]
    problem: np.ndarray  # object [rows of the table]


def parse_ops(frame: pd.DataFrame, device: DeviceSpec) -> ParsedOps:
    """Read every row; a missing column is an `InputError`, a row that cannot be read has its reason in `problem`.

    `InputError` as well if no row at all can be read: then the table, not a row, is wrong.
    """
    require_columns(frame, ["op", "dtype"], "a table of ops")
    if frame.empty:
        raise InputError("a table of ops has no rows; expected at least one")
    problem = np.full(len(frame), "", object)
    parts = []
    names, dtypes = (frame[column].map(str, na_action=None).to_numpy(object) for column in ("op", "dtype"))  # "nan" where empty
    positions = pd.Series(np.arange(len(frame)))
    for (name, dtype), rows in positions.groupby([names, dtypes], sort=False):
        at = rows.to_numpy()
        try:
            part = _part(frame, at, str(name), str(dtype), device, problem)
        except _MissingColumn:
            raise
        except InputError as error:
            problem[at] = str(error)
            continue
        if len(part.rows):
            parts.append(part)
    if not parts:
        raise InputError(f"no row of the table can be read; the first one: {problem[0]}")
    return ParsedOps(parts, problem)


class _MissingColumn(InputError):
    pass


def _part(frame: pd.DataFrame, at: np.ndarray, name: str, dtype: str, device: DeviceSpec, problem: np.ndarray) -> OpRows:
    cls, fixed = op_by_name(name)
    dtype = canonical_dtype(dtype)
    peak = device.peak(dtype, cls.unit)
    columns = {}
    good = np.ones(len(at), bool)
    for dimension in cls.dimensions():
        if dimension in fixed:
            continue
        given = _columns_for(frame, cls, dimension)
        if not given:
            if dimension in cls.optional:
                columns[dimension] = np.full(len(at), cls.optional[dimension])
                continue
            raise _MissingColumn(
                f"{name} rows need a column {dimension!r}{closest(dimension, frame.columns)}; the table has "
                + ", ".join(map(str, frame.columns[:12]))
            )
        values = pd.to_numeric(frame[given[0]].iloc[at], errors="coerce").to_numpy(np.float64)
        for other in given[1:]:  # tables of two sources, one after the other, name the same dimension twice
            values = np.where(np.isnan(values), pd.to_numeric(frame[other].iloc[at], errors="coerce").to_numpy(np.float64), values)
        if dimension in cls.optional:
            values = np.where(np.isnan(values), cls.optional[dimension], values)
        least = 0.0 if dimension in cls.zero_allowed else np.nextafter(0, 1)
        wrong = ~((values >= least) & (values <= LARGEST_SIZE))
        if wrong.any():
            for i in np.flatnonzero(wrong & good):
                least_size = "of at least zero" if dimension in cls.zero_allowed else "above zero"
                problem[at[i]] = (
                    f"{name}: {given[0]} must be a number {least_size} and at most {LARGEST_SIZE:g}, got {frame[given[0]].iloc[at[i]]}"
                )
            good &= ~wrong
        columns[dimension] = values
    op = cls(dtype, **{key: value[good] for key, value in columns.items()}, **fixed)
    work = _columns_of(op.work(), int(good.sum()))
    if "reuse_bytes" in frame.columns:
        given = pd.to_numeric(frame["reuse_bytes"].iloc[at[good]], errors="coerce").to_numpy(np.float64)
        work = dataclasses.replace(work, reuse_bytes=np.where(given > 0, given, work.reuse_bytes))
    absurd = (work.flops > LARGEST_WORK) | (work.bytes > LARGEST_WORK)
    if absurd.any():
        problem[at[good][absurd]] = f"{name}: more than {LARGEST_WORK:g} flops or bytes in one op; check the sizes"
        return _part(frame, at[good][~absurd], name, dtype, device, problem)
    group = np.broadcast_to(np.asarray(op.group_index(), np.int32), (int(good.sum()),))
    return OpRows(at[good], op, work, group, peak)


def _columns_for(frame: pd.DataFrame, cls: type[Op], dimension: str) -> list[str]:
    """The table's columns that hold a dimension: ours first, then other people's names of it."""
    names = [dimension, *(theirs for theirs, ours in cls.synonyms.items() if ours == dimension)]
    return [name for name in names if name in frame.columns]


def _columns_of(work: Work, n: int) -> Work:
    return Work(**{
        field.name: np.broadcast_to(np.asarray(getattr(work, field.name), np.float64), (n,)) for field in dataclasses.fields(Work)
    })  # fmt: skip
