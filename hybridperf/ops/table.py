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

from hybridperf.hardware import DeviceSpec, canonical_dtype
from hybridperf.io import InputError, closest, real_numbers, require_columns
from hybridperf.io.later import pd
from hybridperf.ops.base import Op, OpCall, columns_of, name_of, op_by_name
from hybridperf.ops.columns import Columns
from hybridperf.ops.roofline import Work

LARGEST_SIZE = 1e13  # elements along one dimension; more is a slip, not a tensor
LARGEST_WORK = 1e24  # flops or bytes of one op
LABELS = ("framework", "version", "kernel", "algo")  # columns that name an implementation


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


def parse_ops(frame: pd.DataFrame, device: DeviceSpec) -> ParsedOps:
    """Read every row; a missing column is an `InputError`, a row that cannot be read has its reason
    in `problem`.

    `InputError` as well if no row at all can be read: then the table, not a row, is wrong.
    """
    require_columns(frame, ["op", "dtype"], "a table of ops")
    if frame.empty:
        raise InputError("a table of ops has no rows; expected at least one")
    problem = np.full(len(frame), "", object)
    parts = []
    texts = frame[["op", "dtype"]].map(str)  # "nan" where empty
    names, dtypes = (texts[column].to_numpy(object) for column in texts)
    positions = pd.Series(np.arange(len(frame)))
    labels = {label: _words(frame, [label] if label in frame.columns else []) for label in LABELS}
    for (name, dtype), rows in positions.groupby([names, dtypes], sort=False):
        for at, text in _by_text(frame, rows.to_numpy(), str(name), str(dtype), problem):
            try:
                part = _part(frame, at, str(name), str(dtype), text, device, labels, problem)
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
    meanings: dict[str, list[str]] = {}
    which = np.zeros(len(at), np.int64)  # of rows `at`: which combination of meanings
    for field, empty in columns.text.items():
        if field in fixed or not (given := _columns_for(frame, columns, field)):
            continue
        codes, words = pd.factorize(_words(frame, given, at))  # each of a few words is read once
        meant, wrong = np.full(len(words), empty, object), np.full(len(words), "", object)
        for i, word in enumerate(words):
            try:
                meant[i] = columns.read_text(field, word or empty, dtype)
            except InputError as error:
                wrong[i] = f"{name}: {error}"
        bad = wrong.astype(bool)[codes]
        problem[at[bad]] = wrong[codes[bad]]
        meant_codes, known = pd.factorize(meant)  # two words may mean the same
        meanings[field] = list(map(str, known))
        which = (which * len(known) + meant_codes[codes])[~bad]
        at = at[~bad]
    defaults = {field: empty for field, empty in columns.text.items() if field not in fixed}
    for combination in pd.unique(which):
        text, rest = {}, int(combination)
        for field, words_of in reversed(meanings.items()):
            rest, here = divmod(rest, len(words_of))
            text[field] = words_of[here]
        yield at[which == combination], defaults | text


def _words(frame: pd.DataFrame, given: list[str], at: np.ndarray | None = None) -> np.ndarray:
    """Text of the first of some columns that holds any, object [rows]; else empty."""
    words = np.full(len(frame) if at is None else len(at), "", object)
    for name in given:
        # -1 where a cell is empty
        codes, values = pd.factorize(frame[name] if at is None else frame[name].iloc[at])
        texts = np.array([*(str(value).strip() for value in values), ""], object)
        words = np.where(words == "", texts[codes], words)
    return words


def _part(
    frame: pd.DataFrame, at: np.ndarray, name: str, dtype: str, text: Mapping[str, str],
    device: DeviceSpec, labels: Mapping[str, np.ndarray], problem: np.ndarray,
) -> OpRows:  # fmt: skip
    cls, fixed = op_by_name(name)
    columns = columns_of(cls)
    dtype = columns.dtype_on(canonical_dtype(dtype), device)
    sizes = {}
    good = np.ones(len(at), bool)
    for dimension in cls.dimensions():
        if dimension in fixed:
            continue
        given = _columns_for(frame, columns, dimension)
        if not given:
            if dimension in columns.optional:
                sizes[dimension] = _default(columns, dimension, labels, at)
                continue
            there = ", ".join(map(str, frame.columns[:12]))
            expected = f"{name} rows need a column {dimension!r}{closest(dimension, frame.columns)}"
            raise _MissingColumn(f"{expected}; the table has {there}")
        values = _numbers(frame[given[0]].iloc[at], columns, dimension)
        for other in given[1:]:  # tables of two sources name the same dimension twice
            more = _numbers(frame[other].iloc[at], columns, dimension)
            values = np.where(np.isnan(values), more, values)
        if dimension in columns.optional:
            empty = np.isnan(values)
            if not columns.words:  # an unknown word of a flag is as good as none
                empty &= _empty(frame[given].iloc[at])
            values = np.where(empty, _default(columns, dimension, labels, at), values)
        zero_allowed = dimension in columns.zero_allowed
        smallest = 0.0 if zero_allowed else np.nextafter(0, 1)
        wrong = ~((values >= smallest) & (values <= LARGEST_SIZE))
        expected = f"a number {'of at least zero' if zero_allowed else 'above zero'}"
        expected = f"{name}: {given[0]} must be {expected} and at most {LARGEST_SIZE:g}"
        for i in np.flatnonzero(wrong & good):
            problem[at[i]] = f"{expected}, got {frame[given[0]].iloc[at[i]]}"
        good &= ~wrong
        sizes[dimension] = values
    op = cls(dtype, **{key: value[good] for key, value in sizes.items()}, **fixed, **text)
    here = at[good]
    peak = device.peak(op.peak_dtype, op.unit)
    counts = {name: np.asarray(value, np.float64) for name, value in vars(op.work()).items()}
    work = Work(**{name: np.broadcast_to(value, (len(here),)) for name, value in counts.items()})
    if "reuse_bytes" in frame.columns:
        reuse = pd.to_numeric(frame["reuse_bytes"].iloc[here], errors="coerce").to_numpy(np.float64)
        work = dataclasses.replace(work, reuse_bytes=np.where(reuse > 0, reuse, work.reuse_bytes))
    large = (work.flops > LARGEST_WORK) | (work.bytes > LARGEST_WORK)
    too_large = f"more than {LARGEST_WORK:g} flops or bytes in one op"
    for broken, why in (*columns.contradictions(op), (large, too_large)):
        wrong = np.broadcast_to(np.asarray(broken), (len(here),))
        if wrong.any():
            problem[here[wrong]] = f"{name}: {why}; check the sizes"
            return _part(frame, here[~wrong], name, dtype, text, device, labels, problem)
    group = np.broadcast_to(np.asarray(op.group_index(), np.int32), (len(here),))
    own = {label: words[here] for label, words in labels.items()}
    return OpRows(here, op, work, group, peak, own, name)


def _numbers(column: pd.Series, columns: Columns, dimension: str) -> np.ndarray:
    """A column as numbers, float64; flags may be words. Not a number where it is neither."""
    values = real_numbers(column)
    if dimension in columns.zero_allowed and columns.words and np.isnan(values).any():
        codes, given = pd.factorize(column)
        numbers = [columns.words.get(str(word).strip(), np.nan) for word in given]
        values = np.where(np.isnan(values), np.array([*numbers, np.nan])[codes], values)
    return values


def _empty(cells: pd.DataFrame) -> np.ndarray:
    """Rows that hold nothing in any of some columns."""
    blank = [cells[name].isna() | (cells[name].astype(str).str.strip() == "") for name in cells]
    return np.logical_and.reduce([one.to_numpy(bool) for one in blank])


def _default(
    columns: Columns, dimension: str, labels: Mapping[str, np.ndarray], at: np.ndarray
) -> np.ndarray:
    """An optional dimension where its cell is empty: what a label implies, or its default."""
    values = np.full(len(at), columns.optional[dimension])
    if dimension in columns.implied:
        label, meanings = columns.implied[dimension]
        codes, words = pd.factorize(labels[label][at])
        for part, value in meanings.items():
            values = np.where(np.array([part in word for word in words])[codes], value, values)
    return values


def _columns_for(frame: pd.DataFrame, columns: Columns, dimension: str) -> list[str]:
    """The table's columns that hold a dimension: ours first, then other people's names of it."""
    names = [dimension, *(theirs for theirs, ours in columns.synonyms.items() if ours == dimension)]
    return [name for name in names if name in frame.columns]


def alike(ops: Sequence[Op]) -> Iterator[tuple[np.ndarray, Op, str]]:
    """(places, the op whose `dimensions` are columns, its name in tables or "") of each stack."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    words: dict[type[Op], list[str]] = {}
    dimensions: dict[type[Op], tuple[str, ...]] = {}
    for at, op in enumerate(ops):
        kind = type(op)
        if kind not in words:
            names, sized = [field.name for field in dataclasses.fields(kind)], kind.dimensions()
            dimensions[kind] = tuple(sized)
            words[kind] = [name for name in names if name not in sized]
        same = (kind, name_of(op), *(getattr(op, name) for name in words[kind]))
        groups.setdefault(same, []).append(at)
    for (kind, name, *_), places in groups.items():
        sizes: dict[str, Any] = {
            size: np.array([float(getattr(ops[at], size)) for at in places])
            for size in dimensions[kind]
        }
        yield np.array(places), dataclasses.replace(ops[places[0]], **sizes), name


def in_place(work: Work, calls: Sequence[OpCall]) -> Work:
    """The work of ops alike [n], with the reuse distances of their data in a program."""
    if all(call.reuse_bytes is None for call in calls):
        return work
    own = np.broadcast_to(np.asarray(work.reuse_bytes, float), (len(calls),))
    distances = [
        mine if call.reuse_bytes is None else call.reuse_bytes
        for mine, call in zip(own, calls, strict=True)
    ]
    return dataclasses.replace(work, reuse_bytes=np.array(distances))
