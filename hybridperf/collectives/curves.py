"""Predicted time against message size: a continuous curve per kind of collective, never falling.

A learned correction may dip between measured sizes, but a transfer does not get faster by getting
longer. Each curve is evaluated on fixed sizes (four per factor of two), replaced by the nearest
curve that does not fall (least squares in the log: isotonic regression) and interpolated linearly
over log bytes. Because the sizes are fixed, the prediction of a row does not depend on other rows.

Axes: N rows, C curves, G sizes.
"""

from __future__ import annotations

import numpy as np

from hybridperf.collectives import widths
from hybridperf.collectives.rows import CollectiveRows
from hybridperf.learning.prior import Adapted, Predicted

LOG2_BYTES = np.arange(0.0, 41.0, 0.25)  # one byte to a tebibyte


def predict(adapted: Adapted, rows: CollectiveRows, weight: np.ndarray) -> Predicted:
    """What an adapted prior predicts of rows, along curves that never fall.

    `weight` [N], from 0 to 1, is how much of the correction a row takes: at 0 the closed form
    stands alone, and its interval is as wide as without any measurement.
    """
    first, kind_of_row = rows.kinds
    sizes = len(LOG2_BYTES)
    grid = rows.rows(np.repeat(first, sizes)).resized(np.tile(2.0**LOG2_BYTES, len(first)))
    predicted = adapted.predict(grid)
    share = weight[first][:, None]
    half = (predicted.high_log_s - predicted.log_s).reshape(-1, sizes)
    if not adapted.rows or (share < 1).any():
        without = widths.unmeasured(adapted.prior, rows.rows(first))[:, None]
        # without rows: wider by the same where sizes lie beyond what the prior has seen
        none = without * half / adapted.prior.log_width
        half = share * half + (1 - share) * np.maximum(half, without) if adapted.rows else none
    closed = predicted.closed_log_s.reshape(-1, sizes)
    raw = closed + share * (predicted.log_s.reshape(-1, sizes) - closed)
    rising = np.stack([_never_falling(curve) for curve in raw])
    at = np.log2(rows.bytes)
    log_s, half_width, closed_log_s = np.empty((3, len(at)))
    for kind in range(len(first)):
        here = kind_of_row == kind
        for out, curves in ((log_s, rising), (half_width, half), (closed_log_s, closed)):
            out[here] = np.interp(at[here], LOG2_BYTES, curves[kind])
    beyond = np.log(2.0) * np.maximum(at - LOG2_BYTES[-1], 0.0)  # bandwidth alone
    log_s, closed_log_s = log_s + beyond, closed_log_s + beyond
    outside = adapted.sizes.outside(rows.inputs)
    return Predicted(log_s, log_s - half_width, log_s + half_width, closed_log_s, outside)


def _never_falling(curve: np.ndarray) -> np.ndarray:
    """The nearest curve [G] that does not fall, in least squares: neighbours that fall are pooled
    to their mean (de Leeuw, Hornik, Mair 2009, Isotone Optimization in R). As
    `scipy.optimize.isotonic_regression`, whose import is a sixth of the first prediction's time.
    """
    if (np.diff(curve) >= 0).all():
        return curve
    means: list[float] = []
    counts: list[int] = []
    for mean in curve.tolist():
        count = 1
        while means and means[-1] > mean:
            before = counts.pop()
            mean = (means.pop() * before + mean * count) / (before + count)
            count += before
        means.append(mean)
        counts.append(count)
    return np.repeat(means, counts)
