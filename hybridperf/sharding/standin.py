"""Table and lookup_calls as A will have them; goes when G-access is merged."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hybridperf.embedding import uniform_unique_rows
from hybridperf.ops import OpCall
from hybridperf.ops.movement import Gather, ScatterAdd


@dataclasses.dataclass(frozen=True)
class Uniform:
    def unique_rows(self, lookups: Any, rows: Any) -> Any:
        return uniform_unique_rows(lookups, rows)


@dataclasses.dataclass(frozen=True)
class Zipf:
    exponent: Any
    shift: Any = 0.0

    def unique_rows(self, lookups: Any, rows: Any) -> Any:
        from hybridperf.embedding import _rank_bins

        first, count = _rank_bins(float(rows))
        weight = (first + (count - 1) / 2 + self.shift) ** -self.exponent
        p = weight / np.sum(weight * count)
        return np.sum(count * -np.expm1(lookups * np.log1p(-np.minimum(p, 1 - 1e-7))))


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    rows: float
    dim: float
    pooling: float
    dtype: str = "fp32"
    access: Any = Uniform()


def lookup_calls(tables: Any, batch: Any, direction: str, **_: Any) -> OpCall:
    (t,) = tables
    if direction == "forward":
        return OpCall(Gather(t.dtype, batch * t.pooling, t.dim, t.rows, 1.0))
    return OpCall(ScatterAdd(t.dtype, batch * t.pooling, t.dim, t.rows))
