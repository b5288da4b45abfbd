"""Predicted time against message size, one curve per kind of collective: continuous and never
falling.

A learned correction may dip between measured sizes; a transfer does not get faster by getting
longer. Each curve is evaluated on fixed sizes, four per factor of two, replaced by the nearest one
that does not fall (least squares in the log: isotonic regression) and joined by straight lines over
log bytes. Because the sizes are fixed, a row's prediction does not depend on which rows stand
beside it.

Axes: N rows, C curves, G sizes.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.learning.prior import Adapted, Predicted

LOG2_BYTES = np.arange(0.0, 41.0, 0.25)  # one byte to a tebibyte


def predict(adapted: Adapted, rows: CollectiveRows, reach: np.ndarray) -> Predicted:
    """What an adapted prior says of some rows, along rising curves.

    `reach` [N] is how far measurements of this system speak for a row's collective, ranks and
    nodes: where it is 0 the correction is silent, and the interval as wide as without any row.
    """
    first, of = rows.alike
    sizes = len(LOG2_BYTES)
    each = rows.rows(np.repeat(first, sizes)).resized(np.tile(2.0**LOG2_BYTES, len(first)))
    said = adapted.predict(each)
    heard = reach[first][:, None]
    half = (said.high_log_s - said.log_s).reshape(-1, sizes)
    half = heard * half + (1 - heard) * np.maximum(half, adapted.prior.log_width)
    closed = said.closed_log_s.reshape(-1, sizes)
    raw = closed + heard * (said.log_s.reshape(-1, sizes) - closed)
    curves = {
        "log_s": np.stack([isotonic_regression(curve).x for curve in raw]),
        "half": half,
        "closed": closed,
    }
    at = np.log2(rows.bytes)
    got = {name: np.empty(len(rows)) for name in curves}
    for kind in range(len(first)):
        here = of == kind
        for name, curve in curves.items():
            got[name][here] = np.interp(at[here], LOG2_BYTES, curve[kind])
    beyond = np.log(2.0) * np.maximum(at - LOG2_BYTES[-1], 0.0)  # there is nothing but bandwidth
    log_s = got["log_s"] + beyond
    return Predicted(
        log_s,
        log_s - got["half"],
        log_s + got["half"],
        got["closed"] + beyond,
        adapted.sizes.outside(rows),
    )
