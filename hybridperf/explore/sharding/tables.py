"""Embedding tables as people write them down, one row each.

name, rows, dim, pooling            pooling: mean lookups of one sample
dtype                               fp32 if not given
exponent, shift                     of a Zipf-Mandelbrot access distribution
rf_0 ... rf_16, mean_reuse          or the reuse histogram of a batch, see `embedding/reuse.py`;
                                    `counted`: lookups it was counted over uniform access where
                                    neither is given

Other columns are people's own: they are named and not read. One that says the exponent under
another name is refused.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, closest, read_table, require_columns
from hybridperf.io.errors import plain
from hybridperf.io.tables import with_own_text
from hybridperf.ops.embedding import BINS, Access, Histogram, Table, Uniform, Zipf, check_names

_SIZES = ("rows", "dim", "pooling")
_KNOWN = ("name", *_SIZES, "dtype", "exponent", "shift", "mean_reuse", "counted")
_BINS = tuple(f"rf_{at}" for at in range(BINS))
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
            raise InputError(
                f"{path}: column {column!r} is not read, the exponent of Zipf access is called"
                " 'exponent'; rename or drop it"
            )
        if near := closest(column, (*_KNOWN, *_BINS)):
            raise InputError(f"{path}: unknown column {column!r}{near}; rename or drop it")
    names = (
        frame["name"].astype(object).fillna("").astype(str)
        if "name" in frame
        else pd.Series([f"table{at}" for at in range(len(frame))])
    )
    for at, name in enumerate(names):
        if not name.strip():
            raise InputError(
                f"expected a name of each embedding table, got a blank in row {at + 1}; fill it in"
            )
    tables = [
        _table(str(name), row) for name, (_, row) in zip(names, frame.iterrows(), strict=True)
    ]
    check_names(tables)
    return tables, others


def _table(name: str, row: pd.Series) -> Table:
    sizes = {size: _number(name, row, size) for size in _SIZES}
    for size, value in sizes.items():
        if math.isnan(value):
            raise InputError(f"table {name}: expected a number as {size}, got nothing; fill it in")
    return Table(
        name,
        **sizes,
        dtype=str(row["dtype"]) if _given(row, "dtype") else "fp32",
        access=_access(name, row),
    )


def _access(name: str, row: pd.Series) -> Access:
    bins = [column for column in _BINS if _given(row, column)]
    if bins and _given(row, "exponent"):
        raise InputError(
            f"table {name}: expected either an exponent or a reuse histogram, got both; leave"
            " one out"
        )
    if _given(row, "shift") and not _given(row, "exponent"):
        raise InputError(
            f"table {name}: expected an exponent beside the shift, got none; give it or leave the"
            " shift out"
        )
    if bins and len(bins) < len(_BINS):
        lacking = next(column for column in _BINS if column not in bins)
        raise InputError(
            f"table {name}: expected all of rf_0 to rf_16, got {len(bins)} of {len(_BINS)};"
            f" {lacking} is missing"
        )
    if not bins and (
        alone := [column for column in ("mean_reuse", "counted") if _given(row, column)]
    ):
        raise InputError(
            f"table {name}: expected rf_0 to rf_16 beside {alone[0]}, got none; give them or leave"
            " it out"
        )
    if bins:
        shares = [_number(name, row, column) for column in _BINS]
        mean, counted = (
            _number(name, row, column) if _given(row, column) else None
            for column in ("mean_reuse", "counted")
        )
        return Histogram(shares, mean, counted)
    if _given(row, "exponent"):
        return Zipf(
            _number(name, row, "exponent"),
            _number(name, row, "shift") if _given(row, "shift") else 0.0,
        )
    return Uniform()


def _given(row: pd.Series, column: str) -> bool:
    return column in row and not pd.isna(row[column])


def _number(name: str, row: pd.Series, column: str) -> float:
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"table {name}: expected a number as {column}, got {row.get(column)!r}; mend it"
        ) from None
