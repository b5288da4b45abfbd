"""Embedding tables as people write them down, one row each.

name, rows, dim, pooling            pooling: mean lookups of one sample
dtype                               fp32 if not given
exponent, shift                     of a Zipf-Mandelbrot access distribution
rf_0 ... rf_16, mean_reuse          or the reuse histogram of a batch, see `embedding/reuse.py`;
                                    `counted`: lookups it was counted over uniform access where
                                    neither is given

Other columns are the user's own: they are named and not read. An exponent under another name is
refused.

A table can be cut into pieces that are placed like tables:

row      k pieces of rows / k each, dealt out as in `embedding/pieces.py`: each row keeps its
         lookups, the first piece has the hottest rows and so the most lookups; every piece makes
         partial sums of all columns, so k times the bytes go all-to-all
column   k pieces of dim / k each, all lookups in each: indices are read k times, bytes of pooled
         rows stay what they were

Columns of a piece are read by all lookups again, rows of a piece make partial sums that travel:
which of them pays, if any, where one table holds a placement up, depends on the table, the links
and the device. Splits are tried, not guessed (`run.better_split`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.fields.columns import read_whole, strictly
from hybridperf.io import InputError, read_table, require_columns, unknown
from hybridperf.io.tables import with_own_text
from hybridperf.ops import embedding

KINDS = ("row", "column")  # of splits
_MOST_PIECES = 4096  # each is priced and placed; more than any rank holds
_SIZES = ("rows", "dim", "pooling")
_BINS = tuple(embedding.bin_names())


def read_embedding_tables(path: str | Path) -> tuple[list[embedding.Table], list[str]]:
    """(tables, columns not read) of a file, see module docstring; `InputError` names the table."""
    frame = read_table(path)
    # a table may be called NA
    frame = with_own_text(frame, path, [column for column in frame if column != "name"])
    try:
        with strictly():
            frame = read_whole(frame, "embedding_tables")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    require_columns(frame, _SIZES, f"{path}, a table of embedding tables,")
    others = [column for column in frame if column not in fields_of("embedding_tables")]
    names = [f"table{at}" for at in range(len(frame))]
    if "name" in frame:
        names = frame["name"].astype(object).fillna("").astype(str).tolist()
    for at, name in enumerate(names):
        if not name.strip():
            expected = "expected a name of each embedding table"
            raise InputError(f"{expected}, got a blank in row {at + 1}; fill it in")
    rows = (row for _, row in frame.iterrows())
    tables = [_table(name, row) for name, row in zip(names, rows, strict=True)]
    embedding.check_names(tables)
    return tables, others


def _table(name: str, row: pd.Series) -> embedding.Table:
    sizes = {size: _number(name, row, size) for size in _SIZES}
    for size, value in sizes.items():
        if math.isnan(value):
            raise InputError(f"table {name}: expected a number as {size}, got nothing; fill it in")
    dtype = str(row["dtype"]) if _given(row, "dtype") else "fp32"
    return embedding.Table(name, **sizes, dtype=dtype, access=_access(name, row))


def _access(name: str, row: pd.Series) -> embedding.Access:
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
        return embedding.Histogram(shares, of.get("mean_reuse"), of.get("counted"))
    if exponent:
        return embedding.Zipf(
            _number(name, row, "exponent"), _number(name, row, "shift") if shift else 0.0
        )
    return embedding.Uniform()


def _given(row: pd.Series, column: str) -> bool:
    return column in row and not pd.isna(row[column])


def _number(name: str, row: pd.Series, column: str) -> float:
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        got = f"got {row.get(column)!r}; mend it"
        raise InputError(f"table {name}: expected a number as {column}, {got}") from None


def pieces(table: embedding.Table, kind: str, count: int) -> list[embedding.Table]:
    """`count` pieces of a table by one of `KINDS`; columns are dealt out as evenly as possible."""
    if kind not in KINDS:
        raise unknown(f"split of table {table.name}", kind, KINDS, f"known are {', '.join(KINDS)}")
    have = int(table.rows if kind == "row" else table.dim)
    most = min(have, _MOST_PIECES)
    if not 1 <= count <= most:
        expected = f"expected 1 to {most} pieces of it by {kind}, got {count}"
        raise InputError(f"table {table.name} has {have} {kind}s, {expected}")
    names = [f"{table.name}/{kind}{at + 1}of{count}" for at in range(count)]
    if kind == "row":
        parts = zip(names, embedding.row_pieces(table, count), strict=True)
        return [dataclasses.replace(piece, name=name) for name, piece in parts]
    widths = [float(most // count + (at < most % count)) for at in range(count)]
    columns = zip(names, widths, strict=True)
    return [dataclasses.replace(table, name=name, dim=width) for name, width in columns]


def least_pieces(table: embedding.Table, limit_bytes: float, optimizer: str) -> int:
    """Into how many a table must be split for one to fill at most half of a rank."""
    return max(2, math.ceil(embedding.table_bytes(table, optimizer) / (limit_bytes / 2)))


def split(
    tables: Sequence[embedding.Table], splits: Mapping[str, str], limit_bytes: float, optimizer: str
) -> tuple[list[embedding.Table], list[str]]:
    """(pieces and whole tables, the table each is of); `splits` by table: `row` or `row:4`."""
    names = [table.name for table in tables]
    for name in splits:
        if name not in names:
            more = ", ..." if len(names) > 8 else ""
            raise unknown("table", name, names, f"there are {', '.join(names[:8])}{more}")
    out, owners = [], []
    for table in tables:
        made = [table]
        if table.name in splits:
            how = splits[table.name]
            kind, _, number = how.partition(":")
            if number and not number.isdecimal():
                expected = "expected a split such as row:4"
                raise InputError(f"table {table.name}: {expected}, got {how!r}")
            count = int(number) if number else least_pieces(table, limit_bytes, optimizer)
            made = pieces(table, kind, count)
        out += made
        owners += [table.name] * len(made)
    for name, owner in zip((table.name for table in out), owners, strict=True):
        if name != owner and name in names:
            raise InputError(f"table {name} has the name of a piece of table {owner}; rename it")
    return out, owners
