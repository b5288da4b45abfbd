"""What any model of training steps must beat: a constant share of the peak, and trees that know no
physics.

    constant MFU, median   time = model FLOPs / (MFU x GPUs x peak) with the median MFU of the rows
                           that were given
    constant MFU, best     the same with the constant that errs least on them in the mean of
                           |predicted / measured - 1|
    trees                  gradient-boosted trees on log MFU, which see the model's sizes and the
                           layout

The first two differ by up to a factor of two where MFU spans orders of magnitude: both are quoted.
Axes: N rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridperf.io import InputError
from hybridperf.training.steps.rows import ResolvedRow

NAMES = ("constant MFU, median", "constant MFU, best", "trees")
_TREES = {
    "max_iter": 200,
    "learning_rate": 0.1,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 5,
    "l2_regularization": 1.0,
}
_LEAST_TREE_ROWS = 20


@dataclasses.dataclass(frozen=True)
class NullRows:
    """What null models see of N rows."""

    ideal_s: np.ndarray  # [N] model FLOPs at the peak of all GPUs
    layout: np.ndarray  # [N, F] logs of sizes and layout

    def __getitem__(self, at: Any) -> NullRows:
        return NullRows(self.ideal_s[at], self.layout[at])


def null_rows(rows: list[ResolvedRow]) -> NullRows:
    """Of rows that have a config."""
    ideal, layout = [], []
    for row in rows:
        if row.config is None or row.machine is None:
            raise InputError(
                f"expected rows with a config, got one that was refused: {row.refused}"
            )
        config, plan = row.config, row.config.layout
        peak = row.machine.spec.peak(
            "bf16" if config.dtype in ("fp8", "fp4") else config.dtype, "matrix"
        )
        ideal.append(
            config.shape.model_flops(plan.global_batch * config.shape.seq) / (plan.ranks * peak)
        )
        shape = config.shape
        layout.append([
            shape.hidden, shape.layers, shape.ffn, shape.seq, plan.tp, plan.pp, plan.dp,
            plan.micro_batch, plan.accumulation, plan.ranks, 1 + plan.zero,
            1 + ("none", "selective", "full").index(plan.recompute),
        ])  # fmt: skip
    return NullRows(np.array(ideal, float), np.log(np.array(layout, float)).reshape(len(ideal), -1))


def constant(ideal_s: np.ndarray, measured_s: np.ndarray, best: bool) -> float:
    """1 / MFU: the median of measured / ideal, or the factor that errs least in the mean of |f
    ideal / measured - 1|.
    """
    ratio = measured_s / ideal_s
    return _weighted_median(ratio, 1 / ratio) if best else float(np.median(ratio))


def fit(
    name: str, rows: NullRows, measured_s: np.ndarray, seed: int = 0
) -> Callable[[NullRows], np.ndarray] | None:
    """Seconds of other rows by a null model fitted on these; None where they are too few for it."""
    if name not in NAMES:
        raise InputError(f"expected a null model of {', '.join(NAMES)}, got {name!r}")
    if name == "trees":
        return _trees(rows, measured_s, seed) if len(measured_s) >= _LEAST_TREE_ROWS else None
    factor = constant(rows.ideal_s, measured_s, best=name.endswith("best"))
    return lambda other: factor * other.ideal_s


def _trees(rows: NullRows, measured_s: np.ndarray, seed: int) -> Callable[[NullRows], np.ndarray]:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise InputError(
            "null models need scikit-learn; pip install 'hybridperf[validate]'"
        ) from error
    boosting = HistGradientBoostingRegressor(**_TREES, early_stopping=False, random_state=seed)
    boosting.fit(rows.layout, np.log(measured_s / rows.ideal_s))
    return lambda other: other.ideal_s * np.exp(boosting.predict(other.layout))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
