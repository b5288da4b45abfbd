"""What is judged on collectives: which rows of a system a fit may see, and which it is judged on.

In every task the prior is of the other systems. Few-shot systems, of which about 20 rows per
collective are there, stand in none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from hybridperf.validate.collective_rows import GROUP

LEAST_ROWS = 40  # of a group, to be judged
LEAST_FEW_ROWS = 10  # of a group of a few-shot system
_FEW = 20
_MANY_ROWS = 1500
_MEASURED_RANKS, _ASKED_RANKS = 4, 8

# positions of the rows to fit on and of those to be judged on
Dealt = tuple[np.ndarray, np.ndarray]
Deals = Callable[[pd.DataFrame, np.random.Generator], Dealt]


@dataclasses.dataclass(frozen=True)
class CollectiveTask:
    """How the rows of a system are dealt out."""

    deal: Deals
    draws: int = 1
    few: bool = False  # of few-shot systems
    gives_rows: bool = True
    slow: bool = False  # where a system has many rows: one draw

    def draws_of(self, rows: int) -> int:
        """How often to deal a system's rows."""
        return 1 if self.slow and rows > _MANY_ROWS else self.draws


def _nothing(rows: pd.DataFrame, random: np.random.Generator) -> Dealt:
    del random
    return np.zeros(0, int), np.arange(len(rows))


def _few_of(*columns: str) -> Deals:
    def deal(rows: pd.DataFrame, random: np.random.Generator) -> Dealt:
        order = random.permutation(len(rows))
        rank = rows.iloc[order].groupby(list(columns)).cumcount().to_numpy()
        return np.sort(order[rank < _FEW]), np.sort(order[rank >= _FEW])

    return deal


def _half(rows: pd.DataFrame, random: np.random.Generator) -> Dealt:
    order = random.permutation(len(rows))
    return np.sort(order[: len(rows) // 2]), np.sort(order[len(rows) // 2 :])


def _more_ranks(rows: pd.DataFrame, random: np.random.Generator) -> Dealt:
    del random
    n = rows["n_gpus"].to_numpy()
    return np.flatnonzero(n <= _MEASURED_RANKS), np.flatnonzero(n == _ASKED_RANKS)


TASKS: Mapping[str, CollectiveTask] = {
    "unseen": CollectiveTask(_nothing, gives_rows=False),
    "near": CollectiveTask(_nothing, few=True, gives_rows=False),
    "per_collective": CollectiveTask(_few_of("collective"), 3),
    "per_group": CollectiveTask(_few_of(*GROUP), 3),
    "half": CollectiveTask(_half, 3, slow=True),
    "ranks": CollectiveTask(_more_ranks),
    "few_shot": CollectiveTask(_half, 3, few=True),
}


def eligible(rows: pd.DataFrame, task: CollectiveTask) -> np.ndarray:
    """Whether each row [N] is of a group with enough of them to be judged."""
    least = LEAST_FEW_ROWS if task.few else LEAST_ROWS
    return (rows.groupby(list(GROUP))["row"].transform("size") >= least).to_numpy()
