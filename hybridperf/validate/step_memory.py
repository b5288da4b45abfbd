"""Memory of training steps: gigabytes of runs that ended, and which runs ran out.

A run is expected to fail where its peak is above what the device can give, or where the layout is illegal: fewer micro-batches than a
pipeline needs to fill, or no layer for some stage. Beside it memory alone, rules alone, and trees that see sizes and layout, on the same
split. Balanced accuracy: the mean of the shares of failures and of successes that are told. Cells with both outcomes and layouts with more
stages than layers are left out. Axes: N rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from hybridperf.report import text
from hybridperf.validate.step_splits import CELL

GOAL_BALANCED, GOAL_MEMORY = 0.96, 0.10


def balanced(failed: np.ndarray, predicted: np.ndarray) -> float:
    """Balanced accuracy; NaN where one of both outcomes never happened."""
    if failed.all() or not failed.any():
        return float("nan")
    return float((predicted[failed].mean() + (~predicted[~failed]).mean()) / 2)


def judged(frame: pd.DataFrame) -> np.ndarray:
    """Rows whose outcome is judged [N]: no cell with both outcomes, no layout with more stages than layers."""
    cell = [name for name in (*CELL, "grad_accum", "sharding") if name in frame]
    failed = frame["failed"].astype(bool)
    mixed = failed.groupby([frame[name] for name in cell]).transform("nunique") > 1
    return np.asarray(~mixed & (frame["pp"].astype(float) <= frame["layers"].astype(float)))
