"""INTERIM until helper A's API: tables and their lookups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hybridperf.ops import Gather, OpCall, ScatterAdd


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    rows: float
    dim: int
    pooling: float
    dtype: str = "fp32"
    access: Any = None


def lookup_calls(tables: Sequence[Table], batch: float, direction: str = "forward", *, optimizer: str = "sgd") -> OpCall:
    total = sum(t.pooling for t in tables) * batch
    dim = sum(t.dim * t.pooling for t in tables) * batch / total
    rows = float(sum(t.rows for t in tables))
    if direction == "forward":
        return OpCall(Gather(tables[0].dtype, total, float(dim), rows, 1.0))
    return OpCall(ScatterAdd(tables[0].dtype, total, float(dim), rows))
