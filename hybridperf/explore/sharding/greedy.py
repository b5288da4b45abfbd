"""Placements by rule: the candidates of Lin et al. (after DreamShard).

    naive        table i on rank i mod R
    naive_chunk  tables in a row, as many on each rank
    random       anywhere
    the others   the most expensive table first, on the rank with the least so far that has room

What a table costs by each greedy rule, E rows, D columns, L lookups per bag:

    size E D     lookup D L     size_lookup D L log10 E     norm_lookup D L / (mean reuse)

The last is our reading of its name: the paper gives no formula for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridperf.explore.sharding.cost import PlacementCost
from hybridperf.ops.embedding import Table

TableCost = Callable[[Table, float], float]  # of a table and a batch
GREEDY: dict[str, TableCost] = {
    "size": lambda table, batch: table.rows * table.dim,
    "lookup": lambda table, batch: table.dim * table.pooling,
    "norm_lookup": lambda table, batch: table.dim * float(table.unique_rows(batch)) / batch,
    "size_lookup": lambda table, batch: table.dim * table.pooling * np.log10(max(table.rows, 10)),
}
RULES = ("naive", "naive_chunk", "random", *GREEDY)


def by_rule(
    rule: str, cost: PlacementCost, tables: Sequence[Table], batch: float, seed: int = 0
) -> np.ndarray | None:
    """Ranks [T] by one of `RULES`; None where a greedy one finds no rank with room for a table."""
    count = len(tables)
    if rule == "naive":
        return np.arange(count) % cost.ranks
    if rule == "naive_chunk":
        return np.arange(count) * cost.ranks // count
    if rule == "random":
        return np.random.default_rng(seed).integers(0, cost.ranks, count)
    return greedy(np.array([GREEDY[rule](table, batch) for table in tables]), cost)


def greedy(costs: np.ndarray, cost: PlacementCost) -> np.ndarray | None:
    """The most expensive table first [T], each on the least loaded rank with room for it."""
    load, held = np.zeros(cost.ranks), np.zeros((cost.ranks, cost.tables.shape[1]))
    out = np.zeros(len(costs), int)
    for at in np.argsort(-costs, kind="stable"):
        room = cost.over_bytes(held + cost.tables[at]) == 0
        if not room.any():
            return None
        rank = int(np.argmin(np.where(room, load, np.inf)))
        out[at], load[rank] = rank, load[rank] + costs[at]
        held[rank] += cost.tables[at]
    return out
