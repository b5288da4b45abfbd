"""Embedding tables as people write them down, one row each.

name, rows, dim, pooling            pooling: mean lookups of one sample
dtype                               fp32 if not given
exponent, shift                     of a Zipf-Mandelbrot access distribution
rf_0 ... rf_16, mean_reuse          or the reuse histogram of a batch, see `embedding/reuse.py`;
                                    `counted`: lookups it was counted over uniform access where
                                    neither is given

Other columns are the user's own: they are named and not read. An exponent under another name is
refused.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, closest, read_table, require_columns
from hybridperf.io.errors import plain
from hybridperf.io.tables import with_own_text
from hybridperf.ops.embedding import Access, Histogram, Table, Uniform, Zipf, bin_names, check_names

_SIZES = ("rows", "dim", "pooling")
_KNOWN = ("name", *_SIZES, "dtype", "exponent", "shift", "mean_reuse", "counted")
_BINS = tuple(bin_names())
_EXPONENTS = frozenset(
    {"alpha", "zipf", "zipf_exponent", "zipf_alpha", "zipf_s", "skew", "skewness", "power_law"}
)


def read_embedding_tables(path: str | Path) -> tuple[list[Table], list[str]]:
    """(tables, columns not read) of a file, see module docstring; `InputError` names the table."""
    frame = read_table(path)
    # a table may be called NA
    frame = with_own_text(frame, path, [column for column in frame if column != "name"])
    require_columns(frame, _SIZES, f"{path}, a table of embedding tables,")
    others = [column for column in frame if column not in (*_KNOWN, *_BINS)]
    for column in others:
        if plain(column) in _EXPONENTS:
            called = "the exponent of Zipf access is called 'exponent'"
            raise InputError(f"{path}: column {column!r} is not read, {called}; rename or drop it")
        if near := closest(column, (*_KNOWN, *_BINS)):
            raise InputError(f"{path}: unknown column {column!r}{near}; rename or drop it")
    names = [f"table{at}" for at in range(len(frame))]
    if "name" in frame:
        names = frame["name"].astype(object).fillna("").astype(str).tolist()
    for at, name in enumerate(names):
        if not name.strip():
            expected = "expected a name of each embedding table"
            raise InputError(f"{expected}, got a blank in row {at + 1}; fill it in")
    rows = (row for _, row in frame.iterrows())
    tables = [_table(name, row) for name, row in zip(names, rows, strict=True)]
    check_names(tables)
    return tables, others


def _table(name: str, row: pd.Series) -> Table:
    sizes = {size: _number(name, row, size) for size in _SIZES}
    for size, value in sizes.items():
        if math.isnan(value):
            raise InputError(f"table {name}: expected a number as {size}, got nothing; fill it in")
    dtype = str(row["dtype"]) if _given(row, "dtype") else "fp32"
    return Table(name, **sizes, dtype=dtype, access=_access(name, row))


def _access(name: str, row: pd.Series) -> Access:
    bins = [column for column in _BINS if _given(row, column)]
    exponent, shift = _given(row, "exponent"), _given(row, "shift")
    what = f"table {name}: expected"
    if bins and exponent:
        mend = "leave one out"
        raise InputError(f"{what} either an exponent or a reuse histogram, got both; {mend}")
    if shift and not exponent:
        mend = "give it or leave the shift out"
        raise InputError(f"{what} an exponent with the shift, got none; {mend}")
    if bins and len(bins) < len(_BINS):
        lacking = next(column for column in _BINS if column not in bins)
        got = f"got {len(bins)} of {len(_BINS)}"
        raise InputError(f"{what} all of rf_0 to rf_16, {got}; {lacking} is missing")
    extra = [column for column in ("mean_reuse", "counted") if _given(row, column)]
    if extra and not bins:
        mend = "give them or leave it out"
        raise InputError(f"{what} rf_0 to rf_16 with {extra[0]}, got none; {mend}")
    if bins:
        shares = [_number(name, row, column) for column in _BINS]
        of = {column: _number(name, row, column) for column in extra}
        return Histogram(shares, of.get("mean_reuse"), of.get("counted"))
    if exponent:
        return Zipf(_number(name, row, "exponent"), _number(name, row, "shift") if shift else 0.0)
    return Uniform()


def _given(row: pd.Series, column: str) -> bool:
    return column in row and not pd.isna(row[column])


def _number(name: str, row: pd.Series, column: str) -> float:
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        got = f"got {row.get(column)!r}; mend it"
        raise InputError(f"table {name}: expected a number as {column}, {got}") from None
