"""Rows of a measurement table -> ops, whole columns at a time.

A table may hold rows of several ops; each row needs `op`, `dtype` and the dimensions of its op.
Rows are grouped by op, dtype and the words that change the op's work (`Columns.text`), so a
group is one `Op` whose other fields are columns, and its work one array per count. Words that only
say which implementation ran are carried along as labels.

Ops that differ in their sizes alone become the same (`alike`): what is asked of each is then asked
of all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.fields.columns import read_columns
from hybridperf.fields.registry import NO, YES
from hybridperf.hardware import DeviceSpec, canonical_dtype
from hybridperf.io import InputError, closest, real_numbers, require_columns
from hybridperf.io.later import pd
from hybridperf.ops.base import (
    LABELS,
    Columns,
    Op,
    OpCall,
    columns_of,
    fields_of_table,
    name_of,
    op_by_name,
    op_fields,
)
from hybridperf.ops.roofline import Work

LARGEST_SIZE = 1e13  # elements along one dimension; more is a slip, not a tensor
LARGEST_WORK = 1e24  # flops or bytes of one op
_FLAG = {YES: 1.0, NO: 0.0}


@dataclasses.dataclass(frozen=True)
class OpRows:
    """Rows of one op, dtype and text. R rows."""

    rows: np.ndarray  # int [R] positions in the table
    op: Op  # fields are columns [R]
    work: Work  # [R] each
    group: np.ndarray  # int32 [R] index into GROUPS
    peak_flops_per_s: float
    # object [R] of str each; empty where a cell is
    labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    name: str = ""  # of the op, as the table has it


@dataclasses.dataclass(frozen=True)
class ParsedOps:
    """A whole table. `problem[i]` is why row i is in no part; empty for rows that are."""

    parts: list[OpRows]
    problem: np.ndarray  # object [rows of the table]


def parse_ops(frame: pd.DataFrame, device: DeviceSpec, *, whole: bool = False) -> ParsedOps:
    """Read every row; a missing column is an `InputError`, a row that cannot be read has its reason
    in `problem`.

    `InputError` as well if no row at all can be read: then the table, not a row, is wrong.

    Args:
        frame: the table.
        device: that runs them.
        whole: whether counts must be whole numbers, as in a table that someone brought; searches
            and continuous ranges ask between them.
    """
    read = read_columns(frame, fields_of_table(frame))
    frame = read.frame
    require_columns(frame, ["op", "dtype"], "a table of ops")
    if frame.empty:
        raise InputError("a table of ops has no rows; expected at least one")
    problem = np.full(len(frame), "", object)
    for place, why in read.refused.items():
        problem[place] = why
    parts = []
    texts = frame[["op", "dtype"]].map(str)  # "nan" where empty
    names, dtypes = (texts[column].to_numpy(object) for column in texts)
    every = np.arange(len(frame))
    labels = {word: _words(frame, word, every) for word in LABELS}
    good = pd.Series(every)[problem == ""]
    for (name, dtype), rows in good.groupby([names[good.index], dtypes[good.index]], sort=False):
        for at, text in _by_text(frame, rows.to_numpy(), str(name), str(dtype), problem):
            try:
                part = _part(frame, at, str(name), str(dtype), text, device, labels, problem, whole)
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


def _by_text(
    frame: pd.DataFrame, at: np.ndarray, name: str, dtype: str, problem: np.ndarray
) -> Iterator[tuple[np.ndarray, dict[str, str]]]:
    """Rows of one op and dtype by the words that change the work; unknown words are problems."""
    try:
        cls, fixed = op_by_name(name)
        dtype = canonical_dtype(dtype)
    except InputError as error:
        problem[at] = str(error)
        return
    columns = columns_of(cls)
    defaults = {field: empty for field, empty in columns.text.items() if field not in fixed}
    good, texts = np.ones(len(at), bool), {}
    for field, empty in defaults.items():
        if field not in frame:
            continue
        codes, words = pd.factorize(_words(frame, field, at))  # each of a few words is read once
        meant = np.full(len(words), empty, object)
        for i, word in enumerate(words):
            try:
                meant[i] = columns.read_text(field, word or empty, dtype)
            except InputError as error:
                problem[at[good & (codes == i)]] = f"{name}: {error}"
                good &= codes != i
        texts[field] = meant[codes]
    if not texts:
        yield at, defaults
        return
    for meanings, rows in pd.DataFrame(texts)[good].groupby([*texts], sort=False):
        yield at[rows.index], defaults | dict(zip(texts, map(str, meanings), strict=True))


def _words(frame: pd.DataFrame, name: str, at: np.ndarray) -> np.ndarray:
    """Text of a column, object [rows `at`]; empty where a cell is, and without the column."""
    if name not in frame:
        return np.full(len(at), "", object)
    codes, values = pd.factorize(frame[name].iloc[at])  # -1 where a cell is empty
    return np.array([*(str(value).strip() for value in values), ""], object)[codes]


def _part(
    frame: pd.DataFrame, at: np.ndarray, name: str, dtype: str, text: Mapping[str, str],
    device: DeviceSpec, labels: Mapping[str, np.ndarray], problem: np.ndarray, whole: bool,
) -> OpRows:  # fmt: skip
    cls, fixed = op_by_name(name)
    columns = columns_of(cls)
    dtype = columns.dtype_on(canonical_dtype(dtype), device)
    sizes, good = {}, np.ones(len(at), bool)
    for dimension in cls.dimensions():
        if dimension in fixed:
            continue
        if dimension not in frame:
            if dimension in columns.optional:
                sizes[dimension] = _default(columns, dimension, labels, at)
                continue
            there = ", ".join(map(str, frame.columns[:12]))
            expected = f"{name} rows need a column {dimension!r}{closest(dimension, frame.columns)}"
            raise _MissingColumn(f"{expected}; the table has {there}")
        cells = frame[dimension].iloc[at]
        values = _numbers(cells, dimension)
        if dimension in columns.optional:
            empty = _empty(cells)
            values = np.where(empty, _default(columns, dimension, labels, at), values)
        zero_allowed = dimension in columns.zero_allowed
        wrong = ~((values >= 0 if zero_allowed else values > 0) & (values <= LARGEST_SIZE))
        field = op_fields()[dimension]
        most = LARGEST_SIZE if field.most is None else field.most
        expected = f"a number {'of at least zero' if zero_allowed else 'above zero'}"
        if field.kind == "flag":
            expected = f"{YES} or {NO}, or {expected}"
        expected = f"{name}: {dimension} must be {expected} and at most {LARGEST_SIZE:g}"
        _refuse(wrong & good, expected, cells, at, problem)
        if whole:
            odd, must = {
                "whole": (values % 1 != 0, "a whole number"),
                "flag": (values > 1, f"{YES} or {NO}"),
            }.get(field.kind, (values > most, f"at most {most:g}"))
            _refuse(odd & good & ~wrong, f"{name}: {dimension} must be {must}", cells, at, problem)
            wrong |= odd
        good &= ~wrong
        sizes[dimension] = values
    for column, instead in columns.refused.items():
        if column in frame and column not in cls.dimensions():
            more = real_numbers(frame[column].iloc[at]) > 1
            expected = f"{name}: {column} is not read, {instead}"
            _refuse(more & good, expected, frame[column].iloc[at], at, problem)
            good &= ~more
    op = cls(dtype, **{key: value[good] for key, value in sizes.items()}, **fixed, **text)
    here = at[good]
    peak = device.peak(op.peak_dtype, op.unit)
    counts = {name: np.asarray(value, np.float64) for name, value in vars(op.work()).items()}
    work = Work(**{name: np.broadcast_to(value, (len(here),)) for name, value in counts.items()})
    if "reuse_bytes" in frame.columns:
        cells = frame["reuse_bytes"].iloc[here]
        reuse = real_numbers(cells)
        bad = ~_empty(cells) & ~(reuse >= 0)
        if bad.any():
            expected = f"{name}: reuse_bytes must be a number of at least zero"
            _refuse(bad, expected, cells, here, problem)
            keep = here[~bad]
            return _part(frame, keep, name, dtype, text, device, labels, problem, whole)
        work = dataclasses.replace(work, reuse_bytes=np.where(reuse > 0, reuse, work.reuse_bytes))
    large = (work.flops > LARGEST_WORK) | (work.bytes > LARGEST_WORK)
    too_large = f"more than {LARGEST_WORK:g} flops or bytes in one op"
    for broken, why in (*columns.contradictions(op), (large, too_large)):
        wrong = np.broadcast_to(np.asarray(broken), (len(here),))
        if wrong.any():
            problem[here[wrong]] = f"{name}: {why}; check the sizes"
            keep = here[~wrong]
            return _part(frame, keep, name, dtype, text, device, labels, problem, whole)
    group = np.broadcast_to(np.asarray(op.group_index(), np.int32), (len(here),))
    own = {label: words[here] for label, words in labels.items()}
    return OpRows(here, op, work, group, peak, own, name)


def _empty(cells: pd.Series) -> np.ndarray:
    """Whether each cell [n] says nothing."""
    empty = cells.isna().to_numpy(bool)
    if pd.api.types.is_numeric_dtype(cells):
        return empty
    return empty | (cells.map(str).map(str.strip) == "").to_numpy(bool)


def _refuse(
    wrong: np.ndarray, expected: str, cells: pd.Series, at: np.ndarray, problem: np.ndarray
) -> None:
    """Say of rows `at` [n] that are wrong [n] what was expected of their cells [n]."""
    for i in np.flatnonzero(wrong):
        problem[at[i]] = f"{expected}, got {cells.iloc[i]}"


def _numbers(column: pd.Series, dimension: str) -> np.ndarray:
    """A column as numbers, float64; flags may be words. Not a number where it is neither."""
    values, field = real_numbers(column), op_fields()[dimension]
    if field.kind == "flag" and np.isnan(values).any():
        codes, given = pd.factorize(column)
        meant = [_FLAG.get(field.meant(str(word)) or "", np.nan) for word in given]
        values = np.where(np.isnan(values), np.array([*meant, np.nan])[codes], values)
    return values


def _default(
    columns: Columns, dimension: str, labels: Mapping[str, np.ndarray], at: np.ndarray
) -> np.ndarray:
    """An optional dimension where its cell is empty: what a label implies, or its default."""
    values = np.full(len(at), columns.optional[dimension])
    label, meanings = columns.implied.get(dimension, ("", {}))
    for part, value in meanings.items():
        values[[part in word for word in labels[label][at]]] = value
    return values


def alike(ops: Sequence[Op]) -> Iterator[tuple[np.ndarray, Op, str]]:
    """(places, the op whose `dimensions` are columns, its name in tables or "") of each stack."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    fields: dict[type[Op], tuple[list[str], list[str]]] = {}  # of numbers, of words
    for at, op in enumerate(ops):
        kind = type(op)
        if kind not in fields:
            sized = kind.dimensions()
            names = [field.name for field in dataclasses.fields(kind)]
            fields[kind] = sized, [name for name in names if name not in sized]
        same = (kind, name_of(op), *(getattr(op, name) for name in fields[kind][1]))
        groups.setdefault(same, []).append(at)
    for (kind, name, *_), places in groups.items():
        sizes: dict[str, Any] = {
            size: np.array([float(getattr(ops[at], size)) for at in places])
            for size in fields[kind][0]
        }
        yield np.array(places), dataclasses.replace(ops[places[0]], **sizes), name


def in_place(work: Work, calls: Sequence[OpCall]) -> Work:
    """The work of ops alike [n], with the reuse distances of their data in a program."""
    distances = np.array([call.reuse_bytes for call in calls], float)  # NaN: their own
    if np.isnan(distances).all():
        return work
    own = np.where(np.isnan(distances), work.reuse_bytes, distances)
    return dataclasses.replace(work, reuse_bytes=own)
