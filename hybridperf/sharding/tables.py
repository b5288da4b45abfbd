"""Embedding tables as people write them down, one row each: what must be there, what may, and what cannot be.

name, rows, dim, pooling            pooling: mean lookups of one sample
dtype                               fp32 if not given
exponent, shift                     of a Zipf-Mandelbrot access distribution; uniform if not given
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, read_table, require_columns
from hybridperf.sharding.standin import Table, Uniform, Zipf

_SIZES = ("rows", "dim", "pooling")


def read_embedding_tables(path: str | Path) -> list[Table]:
    """Tables from a file, see module docstring; `InputError` names what is wrong and where."""
    frame = read_table(path)
    require_columns(frame, _SIZES, f"{path}, a table of embedding tables,")
    names = frame["name"].astype(str) if "name" in frame else pd.Series([f"table{at}" for at in range(len(frame))])
    return checked([_table(str(name), row) for name, (_, row) in zip(names, frame.iterrows(), strict=True)])


def checked(tables: Sequence[Table]) -> list[Table]:
    """The same tables; `InputError` names the first that cannot be looked up."""
    if not tables:
        raise InputError("expected at least one embedding table, got none")
    for name, least in (("rows", "rows"), ("dim", "columns"), ("pooling", "lookups per sample")):
        for table in tables:
            value = getattr(table, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(
                    f"table {table.name} has {value:g} {least} ({name}), expected more than zero; mend it or leave the table out"
                )
    names = [table.name for table in tables]
    if doubles := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two tables are named {doubles[0]}; give each its own name")
    return list(tables)


def _table(name: str, row: pd.Series) -> Table:
    sizes = {size: _number(name, row, size) for size in _SIZES}
    dtype = canonical_dtype(row["dtype"]) if _given(row, "dtype") else "fp32"
    access: Any = Uniform()
    if _given(row, "exponent"):
        access = Zipf(_number(name, row, "exponent"), _number(name, row, "shift") if _given(row, "shift") else 0.0)
    return Table(name, **sizes, dtype=dtype, access=access)


def _given(row: pd.Series, column: str) -> bool:
    return column in row and not pd.isna(row[column])


def _number(name: str, row: pd.Series, column: str) -> float:
    try:
        return float(row[column])
    except (TypeError, ValueError):
        raise InputError(f"table {name}: expected a number as {column}, got {row[column]!r}; mend it") from None
