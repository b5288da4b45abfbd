"""Predicted time against message size, one curve per kind of collective: continuous and never falling.

A learned correction may dip between measured sizes; a transfer does not get faster by getting longer. Each curve is evaluated on fixed
sizes, four per factor of two, replaced by the nearest one that does not fall (least squares in the log: isotonic regression) and joined by
straight lines over log bytes. Because the sizes are fixed, a row's prediction does not depend on which rows stand beside it.

Axes: N rows, C curves, G sizes.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.prior import Adapted, Predicted

LOG2_BYTES = np.arange(0.0, 41.0, 0.25)  # one byte to a tebibyte


def predict(adapted: Adapted, rows: CollectiveRows) -> Predicted:
    """What an adapted prior says of some rows, along rising curves."""
    first, of = rows.alike()
    sizes = len(LOG2_BYTES)
    each = rows.rows(np.repeat(first, sizes)).resized(np.tile(2.0**LOG2_BYTES, len(first)))
    said = adapted.predict(each)
    half = (said.high_log_s - said.log_s).reshape(-1, sizes)
    raw = said.log_s.reshape(-1, sizes)
    curves = {
        "log_s": np.stack([isotonic_regression(curve).x for curve in raw]),
        "half": half,
        "closed": said.closed_log_s.reshape(-1, sizes),
    }
    at = np.log2(rows.bytes)
    got = {name: np.empty(len(rows)) for name in curves}
    for kind in range(len(first)):
        here = of == kind
        for name, curve in curves.items():
            got[name][here] = np.interp(at[here], LOG2_BYTES, curve[kind])
    beyond = np.log(2.0) * np.maximum(at - LOG2_BYTES[-1], 0.0)  # there is nothing but bandwidth
    got["log_s"] += beyond
    got["closed"] += beyond
    low, high = got["log_s"] - got["half"], got["log_s"] + got["half"]
    return Predicted(got["log_s"], low, high, got["closed"], adapted.sizes.outside(rows))
