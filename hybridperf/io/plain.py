"""Values as JSON can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridperf.io.later import pd


def plain(value: Any) -> Any:
    """A value as JSON can hold it: tables as lists of rows, what is not finite as null."""
    if isinstance(value, pd.DataFrame):
        columns = [_cells(column) for _, column in value.items()]
        names = [str(name) for name in value]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return None if value is None or value is pd.NA or value is pd.NaT else str(value)


def _cells(column: pd.Series) -> list[Any]:
    """A column as JSON holds it: numbers all at once, for a table has thousands."""
    kind = getattr(column.dtype, "kind", "O")
    if kind == "f" and isinstance(column.dtype, np.dtype):
        finite = np.isfinite(column.to_numpy()).tolist()
        return [one if good else None for one, good in zip(column.tolist(), finite, strict=True)]
    cells = column.tolist()
    if kind in "biu" and isinstance(column.dtype, np.dtype):
        return cells
    return [one if type(one) is str else plain(one) for one in cells]
