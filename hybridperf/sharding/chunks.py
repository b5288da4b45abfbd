"""Dynamic programming: tables in a row, cut into one piece per rank so that the slowest piece is fastest.

    worst(k, j) = min over i <= j of max( worst(k - 1, i), seconds of tables i ... j - 1 in one kernel )

Exact among placements that keep an order, with fused seconds and memory; all-to-all is looked at afterwards. Axes: T tables.
"""

from __future__ import annotations

import numpy as np

from hybridperf.sharding.cost import MEMORY, Cost


def best_chunks(cost: Cost, order: np.ndarray) -> np.ndarray | None:
    """Ranks [T] of tables taken in an order [T]; None where no cut fits into memory."""
    count = len(order)
    until = np.concatenate([np.zeros((1, cost.tables.shape[1])), np.cumsum(cost.tables[order], 0)])
    piece = np.maximum(until[None, :] - until[:, None], 0)  # [T + 1, T + 1, C] tables i ... j - 1
    seconds = np.sum(cost.lookup_seconds(piece), 0)
    seconds = np.where(piece[..., MEMORY] <= cost.limit_bytes, seconds, np.inf)
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
