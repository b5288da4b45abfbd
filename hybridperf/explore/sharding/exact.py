"""The best placement, proven: by branch and bound; of tables in a row by dynamic programming.

Tables in a row are cut into a piece per rank so that the slowest is fastest:

    worst(k, j) = min over i <= j of max(worst(k - 1, i), seconds of tables i ... j - 1 on a rank)

Exact among placements that keep an order, for the slowest rank: its lookups and the all-to-alls as
if it were the one that sends most.

Branch and bound places the most expensive table first.

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


def prove(cost: PlacementCost, known: np.ndarray | None) -> tuple[np.ndarray | None, bool]:
    """(best placement [T], True), or (`known`, False) if there are too many; None: none fits."""
    limit_s = cost.step_s(known) * (1 - 1e-9) if known is not None else np.inf
    per_node = cost.ranks // cost.nodes
    order = np.argsort(-np.sum(cost.lookup_seconds(cost.tables), 0), kind="stable")
    placed = np.zeros((1, 0), int)
    sums = np.zeros((1, cost.ranks, cost.tables.shape[1]))
    highest = np.zeros((1, 4))  # forward, backward, sent of a rank, sent of a node
    for table in order:
        grown = sums + cost.tables[table]  # [N, R, C]
        forward, backward = cost.lookup_seconds(grown)
        node = np.repeat(cost.by_node(sums), per_node, axis=1) + cost.tables[table, SENT]
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


def best_chunks(cost: PlacementCost, order: np.ndarray) -> np.ndarray | None:
    """Ranks [T] of tables taken in an order [T]; None where no cut fits into memory."""
    count = len(order)
    until = np.concatenate([np.zeros((1, cost.tables.shape[1])), np.cumsum(cost.tables[order], 0)])
    piece = np.maximum(until[None, :] - until[:, None], 0)  # [T + 1, T + 1, C] tables i ... j - 1
    seconds = piece_seconds(cost, piece)
    seconds = np.where(cost.over_bytes(piece) == 0, seconds, np.inf)
    seconds[np.tril_indices(count + 1, -1)] = np.inf
    np.fill_diagonal(seconds, 0.0)
    worst, cuts = np.where(np.arange(count + 1) == 0, 0.0, np.inf), []
    for _ in range(cost.ranks):
        both = np.maximum(worst[:, None], seconds)
        cuts.append(both.argmin(0))
        worst = both.min(0)
    if not np.isfinite(worst[count]):
        return None
    out, end = np.zeros(count, int), count
    for rank in reversed(range(cost.ranks)):
        start = int(cuts[rank][end])
        out[order[start:end]] = rank
        end = start
    return out


def piece_seconds(cost: PlacementCost, sums: np.ndarray) -> np.ndarray:
    """Seconds of ranks [...] from what each holds [..., C], as if each sent the most."""
    forward_s, backward_s = cost.lookup_seconds(sums)
    sent = sums[..., SENT]
    even = cost.tables[:, SENT].sum() / cost.nodes
    return np.asarray(cost.parts(forward_s, backward_s, sent, np.maximum(sent, even)).step_s)
