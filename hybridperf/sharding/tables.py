"""Embedding tables as people write them down, one row each.

name, rows, dim, pooling            pooling: mean lookups of one sample
dtype                               fp32 if not given
exponent, shift                     of a Zipf-Mandelbrot access distribution
rf_0 ... rf_16, mean_reuse          or the reuse histogram of a batch, see `embedding/reuse.py`; `counted`: lookups it was counted over
                                    uniform access where neither is given
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hybridperf.embedding import BINS, Access, Histogram, Table, Uniform, Zipf, check_names
from hybridperf.io import InputError, read_table, require_columns

_SIZES = ("rows", "dim", "pooling")
_BINS = tuple(f"rf_{at}" for at in range(BINS))


def read_embedding_tables(path: str | Path) -> list[Table]:
    """Tables from a file, see module docstring; `InputError` names what is wrong and with which table."""
    frame = read_table(path)
    require_columns(frame, _SIZES, f"{path}, a table of embedding tables,")
    names = frame["name"].astype(str) if "name" in frame else pd.Series([f"table{at}" for at in range(len(frame))])
    tables = [_table(str(name), row) for name, (_, row) in zip(names, frame.iterrows(), strict=True)]
    check_names(tables)
    return tables


def _table(name: str, row: pd.Series) -> Table:
    sizes = {size: _number(name, row, size) for size in _SIZES}
    return Table(name, **sizes, dtype=str(row["dtype"]) if _given(row, "dtype") else "fp32", access=_access(name, row))


def _access(name: str, row: pd.Series) -> Access:
    if _given(row, _BINS[0]):
        shares = [_number(name, row, column) for column in _BINS]
        mean, counted = (_number(name, row, column) if _given(row, column) else None for column in ("mean_reuse", "counted"))
        return Histogram(shares, mean, counted)
    if _given(row, "exponent"):
        return Zipf(_number(name, row, "exponent"), _number(name, row, "shift") if _given(row, "shift") else 0.0)
    return Uniform()


def _given(row: pd.Series, column: str) -> bool:
    return column in row and not pd.isna(row[column])


def _number(name: str, row: pd.Series, column: str) -> float:
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"table {name}: expected a number as {column}, got {row.get(column)!r}; mend it") from None
