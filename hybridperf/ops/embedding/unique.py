"""Expected number of different rows among lookups of one table.

`n` lookups are drawn from rows of probability p_i. The expected number of different rows touched is

    U = sum over i of 1 - (1 - p_i)^n

Rows come in classes: `count` rows of probability `p` each, so that a table of millions of rows is a
sum over some hundred classes. For Zipf-Mandelbrot access, p_i proportional to (i +
shift)^-exponent, the first ranks are classes of one row and all others geometric bins of the rank,
each row of a bin with the bin's mean probability. NumPy columns and JAX tracers pass through alike;
all is differentiable in lookups, exponent and shift.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridperf.io.namespace import array_module

_EXACT_RANKS = 64  # ranks taken one by one: the head carries most of a skewed distribution
_LEAST_P = 1e-25
_BINS = 512  # geometric bins for all other ranks: mean probability within 1 % of the row's own


def uniform_unique_rows(lookups: Any, rows: Any) -> Any:
    """Expected different rows among `lookups` uniform draws from `rows` rows."""
    module = array_module(lookups, rows)
    return rows * -module.expm1(lookups * module.log1p(-1.0 / module.maximum(rows, 1.0 + 1e-6)))


def zipf_classes(rows: float, exponent: Any, shift: Any) -> tuple[Any, Any]:
    """(rows of each class, probability of each of its rows) of Zipf-Mandelbrot access [K]. `shift`
    above -1.

    Probabilities that vanish next to the first row's are kept at a floor that no number of lookups
    meets, so that all stays finite.
    """
    count, weight = _zipf_weights(rows, exponent, shift)
    module = array_module(weight)
    return count, module.maximum(weight / module.sum(weight * count), _LEAST_P)


def zipf_weight(rows: float, exponent: Any, shift: Any, reference_shift: Any) -> Any:
    """Sum of (rank + shift)^-exponent over ranks, in units of rank 1's at `reference_shift`."""
    count, weight = _zipf_weights(rows, exponent, shift)
    module = array_module(weight)
    first = (1.0 + module.asarray(shift)) / (1.0 + reference_shift)
    return module.sum(weight * count) * module.exp(-exponent * module.log(first))


def _zipf_weights(rows: float, exponent: Any, shift: Any) -> tuple[Any, Any]:
    """(rows of each class, weight of each of its rows as a share of the first row's) [K]."""
    first, count = _rank_bins(rows)
    module = array_module(exponent, shift)
    middle, start = first + (count - 1) / 2 + shift, 1.0 + module.asarray(shift)
    return count, module.exp(-exponent * (module.log(middle) - module.log(start)))


def distinct(count: Any, p: Any, lookups: Any) -> Any:
    """Expected different rows among lookups [...]; `count` rows of probability `p` each [K]."""
    module = array_module(count, p, lookups)
    missed = log_missed(p) * module.asarray(lookups)[..., None]
    return module.sum(-count * module.expm1(missed), -1)


def met(count: Any, p: Any, lookups: Any) -> tuple[Any, Any]:
    """Classes of the rows that were met, as a loop over recorded batches draws from them."""
    module = array_module(count, p, lookups)
    seen = -module.expm1(log_missed(p) * lookups)
    return count * seen, p / seen


def log_missed(p: Any) -> Any:
    """Log probability that one lookup is of another row; finite for a table's only row."""
    module = array_module(p)
    p = module.asarray(p)
    return module.log1p(-module.minimum(p, 1 - module.finfo(p.dtype).eps))


def _rank_bins(rows: float) -> tuple[np.ndarray, np.ndarray]:
    """First rank (from 1) and number of ranks of each bin."""
    exact = int(min(rows, _EXACT_RANKS))
    edges = [np.arange(1, exact + 2, dtype=np.float64)]
    if rows > exact:
        edges.append(np.unique(np.round(np.geomspace(exact + 1, rows + 1, _BINS + 1)))[1:])
    all_edges = np.concatenate(edges)
    return all_edges[:-1], np.diff(all_edges)
