"""A step's prediction beside its measurement, and what many of them say together.

The null model beside a calibrated one is the datasheet roofline, and a sterner one: the roofline
times one constant, the best there is for the *other* steps. A model that does not beat it has
learned a machine's overall slowness and nothing more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.report import text
from hybridperf.validate.measured_steps import MeasuredStep


@dataclasses.dataclass(frozen=True)
class StepComparison:
    """One step, measured and predicted from the very program that ran."""

    measured: MeasuredStep
    predicted: Prediction

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.time_s / self.measured.time_s - 1

    @property
    def roofline_error(self) -> float:
        """The same of the datasheet roofline."""
        return self.predicted.roofline_s / self.measured.time_s - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the interval; None without one."""
        low_s, high_s = self.predicted.low_s, self.predicted.high_s
        return None if low_s is None or high_s is None else low_s <= self.measured.time_s <= high_s

    def record(self) -> dict[str, Any]:
        """Everything above as plain data."""
        step, p = self.measured, self.predicted
        return {
            "name": step.name, "config": dict(step.config), "measured_s": step.time_s,
            "measured_least_s": step.least_s, "measured_median_s": step.median_s,
            "repeats": step.repeats, "noise": step.noise, "cpu_share": step.cpu_share,
            "predicted_s": p.time_s, "low_s": p.low_s, "high_s": p.high_s,
            "roofline_s": p.roofline_s, "error": self.error, "inside": self.inside,
            "roofline_error": self.roofline_error, "flops": p.workload.flops,
            "notes": list(p.notes),
        }  # fmt: skip


def table(comparisons: Sequence[StepComparison], *, noise: bool = False) -> str:
    """A line for each step; `noise`: with the measurement's own uncertainty and whether it lies in
    the interval.
    """
    headers = [
        "step",
        "measured",
        "noise floor",
        "predicted",
        "error",
        "low",
        "high",
        "inside",
        "roofline",
        "its error",
    ]
    rows = [
        [
            c.measured.name,
            text.seconds(c.measured.time_s),
            text.percent(c.measured.noise),
            text.seconds(c.predicted.time_s),
            text.percent(c.error),
            text.seconds(c.predicted.low_s),
            text.seconds(c.predicted.high_s),
            _YES_NO[c.inside],
            text.seconds(c.predicted.roofline_s),
            text.percent(c.roofline_error),
        ]
        for c in comparisons
    ]
    kept = [at for at, name in enumerate(headers) if noise or name not in ("noise floor", "inside")]
    return text.table([headers[at] for at in kept], [[row[at] for at in kept] for row in rows])


_YES_NO = {True: "yes", False: "no", None: "-"}


def best_factors(roofline_s: Sequence[float], measured_s: Sequence[float]) -> np.ndarray | None:
    """For each step [N] the constant on the roofline that fits all other steps best; None where
    there are no others.

    Best in what is reported, the mean of |c r / m - 1| = (r / m) |c - m / r|: the median of m / r
    with weights r / m.
    """
    if len(measured_s) < 2:
        return None
    ratio = np.asarray(measured_s, np.float64) / np.asarray(roofline_s, np.float64)
    return np.array(
        [
            _weighted_median(np.delete(ratio, at), 1 / np.delete(ratio, at))
            for at in range(len(ratio))
        ]
    )


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def summarise(comparisons: Sequence[StepComparison]) -> dict[str, Any]:
    """Errors of all steps together, as shares, beside those of the null models; the interval's
    hits.
    """
    measured_s = [c.measured.time_s for c in comparisons]
    roofline_s = [c.predicted.roofline_s for c in comparisons]
    factors = best_factors(roofline_s, measured_s)
    worst = max(comparisons, key=lambda c: abs(c.error))
    with_interval = [c for c in comparisons if c.inside is not None]
    return {
        "steps": [c.record() for c in comparisons],
        "mean_error": mean_error([c.predicted.time_s for c in comparisons], measured_s),
        "worst_error": worst.error,
        "worst_step": worst.measured.name,
        "inside": sum(bool(c.inside) for c in with_interval),
        "with_interval": len(with_interval),
        "mean_roofline_error": mean_error(roofline_s, measured_s),
        "scaled_roofline_factors": None if factors is None else factors.tolist(),
        "mean_scaled_roofline_error": None
        if factors is None
        else mean_error((factors * np.asarray(roofline_s)).tolist(), measured_s),
        "mean_noise": float(np.mean([c.measured.noise for c in comparisons])),
    }


def summary_text(summary: dict[str, Any]) -> str:
    """What `summarise` found, in a few lines."""
    steps, intervals = len(summary["steps"]), summary["with_interval"]
    hits = (
        f"{summary['inside']} of {intervals} inside the 90 % interval"
        if intervals
        else "no interval: no measurements in this model"
    )
    scaled = summary["mean_scaled_roofline_error"]
    rows = [
        ["this model", text.percent(summary["mean_error"])],
        ["datasheet roofline", text.percent(summary["mean_roofline_error"])],
        [
            "roofline x best constant of the other steps",
            text.percent(math.nan if scaled is None else scaled),
        ],
        ["noise floor of the measurement", text.percent(summary["mean_noise"])],
    ]
    return "\n".join([
        text.table([f"mean absolute error of {steps} steps", ""], rows),
        f"worst {text.percent(summary['worst_error'])} ({summary['worst_step']}); {hits}",
    ])  # fmt: skip


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean absolute percentage error as a share."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))
