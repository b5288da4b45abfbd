"""Lookups of one table with a skew: how indices are drawn, and what the row of a measurement says
of them.

Row i of the ranking is drawn in proportion to (i + shift)^-exponent; ranks are dealt over the
table, so that hot rows are not neighbours. A measurement rotates through some batches of indices
over one table: rows that none of them names are never touched, and what the cache holds is decided
by those that they do. Both are expected values of the distribution, as a user would give it, not
counted from the draw.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import numpy as np

from hybridperf.ops import EmbeddingBag, EmbeddingBagBackward, columns, lookup_calls
from hybridperf.ops.embedding import LookupStream, Table, Zipf, distances, met
from hybridperf.ops.embedding_bag import Direction

_Bags = EmbeddingBag | EmbeddingBagBackward
_GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it spread evenly, however many


@dataclasses.dataclass(frozen=True)
class Lookups:
    """A batch of `bags` samples with `pooling` lookups each in a table of `rows` x `dim`."""

    rows: int
    dim: int
    bags: int
    pooling: int
    exponent: float
    shift: float
    direction: Direction = "forward"
    optimizer: str = "sgd"  # of the backward pass, as `duplicates`
    duplicates: str = "each"

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Row numbers, int32."""
        count, p = Zipf(self.exponent, self.shift).classes(1, self.rows)
        drawn = np.searchsorted(np.cumsum(count * p), rng.random(shape))
        of_class = np.minimum(drawn, len(count) - 1)
        first = np.cumsum(count) - count
        rank = (first[of_class] + rng.random(shape) * count[of_class]).astype(np.int64)
        return spread_over(rank, self.rows).astype(np.int32)

    def columns(self, sets: int, copies: int) -> dict[str, Any]:
        """The row of one of `copies` tables looked up in turn, with `sets` rotating batches."""
        access = Zipf(self.exponent, self.shift)
        table = Table("looked up", self.rows, self.dim, self.pooling, access=access)
        call = lookup_calls(
            [table], self.bags, self.direction, optimizer=self.optimizer, duplicates=self.duplicates
        )
        lookups = self.bags * self.pooling
        classes = met(*table.classes(self.bags), sets * lookups)
        again = LookupStream(*classes, lookups, table.row_bytes)
        distance_bytes, spread = distances([again] * copies)
        distance, op = distance_bytes / table.row_bytes, cast(_Bags, call.op)
        op = dataclasses.replace(op, distance=distance, spread=float(spread))
        own = {
            name: float(value) if isinstance(value, np.floating | np.ndarray) else value
            for name, value in columns(op).items()
        }
        own["reuse_bytes"] = float(distance_bytes)
        return {**own, "exponent": self.exponent, "shift": self.shift}


def spread_over(rank: Any, rows: int) -> Any:
    """The rows of a table that ranks are dealt to, an array of NumPy or a tensor."""
    return (rank.clip(max=rows - 1) * _stride(rows)) % rows


def _stride(rows: int) -> int:
    """A step that visits every row of a table once, far from the last."""
    step = max(int(rows * _GOLDEN), 1)
    while math.gcd(step, rows) != 1:
        step += 1
    return step
