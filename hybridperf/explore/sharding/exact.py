"""The best placement, proven: branch and bound, the most expensive table first.

A partial placement's step never falls as tables are added, so it is dropped as soon as it is no
better than the best whole placement known. Ranks that are empty alike (in one node, or in nodes
that are) are the same: only the first is tried. All partial placements of a level are worked on at
once.

Axes: N partial placements of a level, T tables, R ranks, C columns.
"""

from __future__ import annotations

import numpy as np

from hybridperf.explore.sharding.cost import MEMORY, SENT, PlacementCost

MOST_NUMBERS = 4e6  # of what all ranks of all partial placements of a level hold; more: given up


def prove(
    cost: PlacementCost, known: np.ndarray | None, tolerance: float = 1e-9
) -> tuple[np.ndarray | None, bool]:
    """(best placement [T], True), or (`known`, False) if there are too many; None: none fits."""
    limit_s = cost.step_s(known) * (1 - tolerance) if known is not None else np.inf
    per_node = cost.ranks // cost.nodes
    order = np.argsort(-np.sum(cost.lookup_seconds(cost.tables), 0), kind="stable")
    placed = np.zeros((1, 0), int)
    sums = np.zeros((1, cost.ranks, cost.tables.shape[1]))
    highest = np.zeros((1, 4))  # forward, backward, sent of a rank, sent of a node
    for table in order:
        grown = sums + cost.tables[table]  # [N, R, C]
        forward, backward = cost.lookup_seconds(grown)
        by_node = sums[..., SENT].reshape(len(sums), cost.nodes, per_node).sum(-1)
        node = np.repeat(by_node, per_node, axis=1) + cost.tables[table, SENT]
        maxima = np.stack([forward, backward, grown[..., SENT], node], -1)
        new = np.maximum(highest[:, None], maxima)  # [N, R, 4]
        use = cost.parts(*np.moveaxis(new, -1, 0)).step_s < limit_s
        use &= cost.over_bytes(grown) == 0
        use &= _first_of_its_kind(sums[..., MEMORY] > 0, per_node)
        parent, rank = np.nonzero(use)
        if len(parent) * sums[0].size > MOST_NUMBERS:
            return known, False
        if not len(parent):
            return known, True
        placed = np.concatenate([placed[parent], rank[:, None]], 1)
        highest = new[parent, rank]
        sums = sums[parent]
        sums[np.arange(len(parent)), rank] = grown[parent, rank]
    steps = cost.parts(*highest.T).step_s
    out = np.zeros(len(order), int)
    out[order] = placed[int(np.argmin(steps))]
    return out, True


def _first_of_its_kind(used: np.ndarray, per_node: int) -> np.ndarray:
    """Ranks [N, R] that hold a table, or are the first empty one of a node (used or first)."""
    by_node = used.reshape(len(used), -1, per_node)
    empties = np.cumsum(~by_node, -1)
    node_used = by_node.any(-1)
    empty_nodes = np.cumsum(~node_used, -1)
    node_counts = node_used | (empty_nodes == 1)
    return np.asarray(((by_node | (empties == 1)) & node_counts[..., None]).reshape(used.shape))
