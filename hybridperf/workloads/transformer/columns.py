"""Many layouts in columns of one length, for formulas that price a search space at once (NumPy, or
JAX: they are a pytree). What each field means: `layout.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from hybridperf.io.namespace import Array


class Layouts(NamedTuple):
    """Columns of layouts, [N] each or of shapes that broadcast; words are codes (`codes.py`)."""

    tp: Array
    sequence_parallel: Array  # 0 or 1
    pp: Array
    vp: Array
    dp: Array
    cp: Array
    ep: Array
    expert_tp: Array
    zero: Array
    shard_ranks: Array
    micro_batch: Array
    accumulation: Array
    recompute: Array  # index into RECOMPUTE
    schedule: Array  # index into SCHEDULES

    @property
    def ranks(self) -> Array:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def data_ranks(self) -> Array:
        """Ranks that hold the same weights: replicas, and the parts of a sequence."""
        return self.dp * self.cp

    @property
    def expert_data_ranks(self) -> Array:
        """Ranks that hold the same experts."""
        return self.tp * self.cp * self.dp / (self.ep * self.expert_tp)

    @property
    def global_batch(self) -> Array:
        return self.micro_batch * self.accumulation * self.dp

    @staticmethod
    def of(layouts: Iterable[HasColumns]) -> Layouts:
        """Columns [N] of N layouts."""
        rows = [layout.columns for layout in layouts]
        return Layouts(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


class HasColumns(Protocol):
    """One layout, which says what it is in numbers."""

    @property
    def columns(self) -> Layouts: ...
