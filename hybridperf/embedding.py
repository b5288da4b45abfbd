"""How often a batch of table lookups meets the same row: access distributions -> expected unique rows -> reuse distance.

`n` lookups are drawn from `rows` rows. With row i drawn with probability p_i, the expected number of different rows touched is

    U = sum over i of 1 - (1 - p_i)^n

Uniform access has p_i = 1/rows; Zipf access p_i proportional to (i + shift)^-exponent, the heads of real tables (Zipf-Mandelbrot). The sum
over millions of rows is taken on geometric bins of the rank: the first ranks one by one, then bins that grow, each row of a bin
with the bin's mean probability. All results are differentiable in `exponent` and `shift`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

_EXACT_RANKS = 64  # ranks taken one by one: the head carries most of a skewed distribution
_BINS = 512  # geometric bins for all other ranks: mean probability within 1 % of the row's own


def uniform_unique_rows(lookups: Any, rows: Any) -> Any:
    """Expected different rows among `lookups` uniform draws from `rows` rows."""
    return rows * -jnp.expm1(lookups * jnp.log1p(-1.0 / jnp.maximum(rows, 1.0 + 1e-6)))


def zipf_unique_rows(lookups: Any, rows: float, exponent: Any, shift: Any = 0.0) -> Any:
    """Expected different rows among `lookups` draws with probability proportional to (rank + shift)^-exponent.

    `rows` is a Python number (it sets the bins); the others may be traced. exponent = 0 is uniform access.
    """
    first, count = _rank_bins(float(rows))
    middle = first + (count - 1) / 2
    weight = jnp.exp(-exponent * jnp.log(middle + shift))
    p = weight / jnp.sum(weight * count)
    return jnp.sum(count * -jnp.expm1(lookups * jnp.log1p(-jnp.minimum(p, 1 - 1e-7))))


def reuse_distance_bytes(unique_rows: Any, row_bytes: Any) -> Any:
    """Bytes touched between two lookups of the same row, for rows that come back: about the footprint of the rows in use."""
    return unique_rows * row_bytes


def _rank_bins(rows: float) -> tuple[np.ndarray, np.ndarray]:
    """First rank (from 1) and number of ranks of each bin."""
    exact = int(min(rows, _EXACT_RANKS))
    edges = [np.arange(1, exact + 2, dtype=np.float64)]
    if rows > exact:
        edges.append(np.unique(np.round(np.geomspace(exact + 1, rows + 1, _BINS + 1)))[1:])
    all_edges = np.concatenate(edges)
    return all_edges[:-1], np.diff(all_edges)
