"""Dynamic programming: tables in a row, cut into a piece per rank so that the slowest is fastest.

    worst(k, j) = min over i <= j of max(worst(k - 1, i), seconds of tables i ... j - 1 on a rank)

Exact among placements that keep an order, for the slowest rank: its lookups and the all-to-alls as
if it were the one that sends most. Axes: T tables, R ranks, C columns.
"""

from __future__ import annotations

import numpy as np

from hybridperf.explore.sharding.cost import SENT, PlacementCost


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
