"""What any model of training steps must beat: a constant share of the peak, and trees that know no
physics.

    constant MFU, median   time = model FLOPs / (MFU x GPUs x peak) with the median MFU of the rows
                           that were given
    constant MFU, best     the same with the constant that errs least on them in the mean of
                           |predicted / measured - 1|
    trees                  gradient-boosted trees on log MFU, of the model's sizes and the layout

The first two differ by up to a factor of two where MFU spans orders of magnitude: both are quoted.
Axes: N rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from hybridperf.io import InputError
from hybridperf.training.steps.rows import ResolvedRow
from hybridperf.validate.scores import best_factor, boosted_trees

NAMES = ("constant MFU, median", "constant MFU, best", "trees")
_LEAVES = 15
_LEAST_TREE_ROWS = 20


@dataclasses.dataclass(frozen=True)
class BaselineRows:
    """What baselines see of N rows."""

    ideal_s: np.ndarray  # [N] model FLOPs at the peak of all GPUs
    layout: np.ndarray  # [N, F] logs of sizes and layout

    def __getitem__(self, at: Any) -> Self:
        return type(self)(self.ideal_s[at], self.layout[at])


def baseline_rows(rows: list[ResolvedRow]) -> BaselineRows:
    """Of rows that have a config."""
    ideal, layout = [], []
    for row in rows:
        if row.config is None or row.machine is None:
            refused = row.refused
            raise InputError(f"expected rows with a config, got one that was refused: {refused}")
        config, plan, shape = row.config, row.config.layout, row.config.shape
        dtype = "bf16" if config.dtype in ("fp8", "fp4") else config.dtype
        peak = row.machine.spec.peak(dtype, "matrix")
        ideal.append(shape.model_flops(plan.global_batch * shape.seq) / (plan.ranks * peak))
        layout.append([
            shape.hidden, shape.layers, shape.ffn, shape.seq, plan.tp, plan.pp, plan.dp,
            plan.micro_batch, plan.accumulation, plan.ranks, 1 + plan.zero,
            1 + ("none", "selective", "full").index(plan.recompute),
        ])  # fmt: skip
    logs = np.log(np.array(layout, float)).reshape(len(ideal), -1)
    return BaselineRows(np.array(ideal, float), logs)


def constant(ideal_s: np.ndarray, measured_s: np.ndarray, best: bool) -> float:
    """1 / MFU: the median of measured / ideal, or the factor that errs least in the mean."""
    ratio = measured_s / ideal_s
    return best_factor(ratio) if best else float(np.median(ratio))


def fit(
    name: str, rows: BaselineRows, measured_s: np.ndarray
) -> Callable[[BaselineRows], np.ndarray] | None:
    """Seconds of other rows by a baseline fitted on these; None where they are too few for it."""
    if name not in NAMES:
        raise InputError(f"expected a baseline of {', '.join(NAMES)}, got {name!r}")
    if name != "trees":
        factor = constant(rows.ideal_s, measured_s, best=name.endswith("best"))
        return lambda other: factor * other.ideal_s
    if len(measured_s) < _LEAST_TREE_ROWS:
        return None
    boosting = boosted_trees(_LEAVES)
    boosting.fit(rows.layout, np.log(measured_s / rows.ideal_s))
    return lambda other: other.ideal_s * np.exp(boosting.predict(other.layout))


def failure_trees(seen: np.ndarray, failed: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Which layouts will fail, by trees on the layouts of other runs and whether these failed."""
    if failed.all() or not failed.any():
        return np.full(len(asked), bool(failed.all()))
    boosting = boosted_trees(_LEAVES, outcome=True)
    return np.asarray(boosting.fit(seen, failed).predict(asked), bool)
