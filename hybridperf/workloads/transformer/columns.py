"""Many layouts in columns of one length, for formulas that price a search space at once (NumPy, or
JAX: they are a pytree). What each field means: `layout.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.workloads.schedules import NAMES as SCHEDULES
from hybridperf.workloads.schedules.names import KINDS

RECOMPUTE = ("none", "selective", "full")
NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
INTERLEAVED = SCHEDULES.index("interleaved")
CHIMERA, DUALPIPE = SCHEDULES.index("chimera"), SCHEDULES.index("dualpipe")
ZB_V, DUALPIPE_V = SCHEDULES.index("zb_v"), SCHEDULES.index("dualpipe_v")
# codes of schedules that are alike in something
FORWARDS_FIRST, TWO_PIPES, FOLDED, SPLITS_BACKWARD, IN_PAIRS = (
    tuple(code for code, kind in enumerate(KINDS.values()) if alike(kind))
    for alike in (
        lambda kind: kind.forwards_first, lambda kind: kind.pipes > 1, lambda kind: kind.folded,
        lambda kind: kind.splits_backward, lambda kind: kind.in_pairs,
    )
)  # fmt: skip


def one_of(schedule: Array, codes: tuple[int, ...]) -> Array:
    """Whether a schedule is among some, by its code."""
    return sum(schedule == code for code in codes) > 0


class Layouts(NamedTuple):
    """Columns of layouts, [N] each or of shapes that broadcast; words are codes: their places."""

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
    def of(layouts: Iterable[Any]) -> Layouts:
        """Columns [N] of N `Layout`s."""
        rows = list(map(_FIELDS, layouts))
        if not rows:
            return Layouts(*(np.zeros(0, np.int64) for _ in Layouts._fields))
        x: dict[str, Any] = dict(zip(Layouts._fields, zip(*rows, strict=True), strict=True))
        data_ranks = map(operator.mul, x["dp"], x["cp"])
        x["expert_tp"] = [own or tp for own, tp in zip(x["expert_tp"], x["tp"], strict=True)]
        x["shard_ranks"] = [own or n for own, n in zip(x["shard_ranks"], data_ranks, strict=True)]
        x["recompute"] = [_CODES[word] for word in x["recompute"]]
        x["schedule"] = [_CODES[word] for word in x["schedule"]]
        return Layouts(**{name: np.array(column, np.int64) for name, column in x.items()})


_FIELDS = operator.attrgetter(*Layouts._fields)
_CODES = {word: code for words in (RECOMPUTE, SCHEDULES) for code, word in enumerate(words)}
