"""A step's prediction next to its measurement, and the errors of many steps together.

The baselines of a calibrated model are the datasheet roofline, and a sterner one: the roofline
times one constant, the best there is for the *other* steps. A model that does not beat it has
learned a machine's overall slowness and nothing more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.report import text
from hybridperf.validate.baselines import best_factors
from hybridperf.validate.harness import ResultLine
from hybridperf.validate.measured_steps import MeasuredStep
from hybridperf.validate.scores import mape, scores


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
    """A line for each step; `noise`: with the noise floor and whether it lies in the interval."""
    rows = [_cells(one) for one in comparisons]
    names = [*rows[0]] if rows else []
    kept = [name for name in names if noise or name not in ("noise floor", "inside")]
    return text.table(kept, [[row[name] for name in kept] for row in rows])


def _cells(one: StepComparison) -> dict[str, str]:
    measured, predicted = one.measured, one.predicted
    return {
        "step": measured.name,
        "measured": text.seconds(measured.time_s),
        "noise floor": text.percent(measured.noise),
        "predicted": text.seconds(predicted.time_s),
        "error": text.percent(one.error),
        "low": text.seconds(predicted.low_s),
        "high": text.seconds(predicted.high_s),
        "inside": "-" if one.inside is None else "yes" if one.inside else "no",
        "roofline": text.seconds(predicted.roofline_s),
        "its error": text.percent(one.roofline_error),
    }


def summarise(comparisons: Sequence[StepComparison]) -> dict[str, Any]:
    """Errors of all steps together, as shares, next to those of the baselines; coverage."""
    measured_s = [c.measured.time_s for c in comparisons]
    roofline_s = [c.predicted.roofline_s for c in comparisons]
    factors = best_factors(roofline_s, measured_s)
    worst = max(comparisons, key=lambda c: abs(c.error))
    with_interval = [c for c in comparisons if c.inside is not None]
    scaled = None
    if factors is not None:
        scaled = mape((factors * np.asarray(roofline_s)).tolist(), measured_s)
    return {
        "steps": [c.record() for c in comparisons],
        "mean_error": mape([c.predicted.time_s for c in comparisons], measured_s),
        "worst_error": worst.error,
        "worst_step": worst.measured.name,
        "inside": sum(bool(c.inside) for c in with_interval),
        "with_interval": len(with_interval),
        "mean_roofline_error": mape(roofline_s, measured_s),
        "scaled_roofline_factors": None if factors is None else factors.tolist(),
        "mean_scaled_roofline_error": scaled,
        "mean_noise": float(np.mean([c.measured.noise for c in comparisons])),
    }


def result_line(comparisons: Sequence[StepComparison], name: str) -> ResultLine:
    """All steps together as `results.json` keeps them."""
    summary = summarise(comparisons)
    predicted = [c.predicted for c in comparisons]
    low_s, high_s = ([getattr(p, name) for p in predicted] for name in ("low_s", "high_s"))
    measured_s = [c.measured.time_s for c in comparisons]
    found = scores(measured_s, [p.time_s for p in predicted], low_s, high_s)
    others = {
        "datasheet roofline": summary["mean_roofline_error"],
        "roofline x best constant of the others": summary["mean_scaled_roofline_error"],
    }
    return dataclasses.replace(ResultLine.of(name, found), baselines=others)


def summary_text(summary: dict[str, Any]) -> str:
    """What `summarise` found, in a few lines."""
    steps, intervals = len(summary["steps"]), summary["with_interval"]
    hits = "no interval: no measurements in this model"
    if intervals:
        hits = f"{summary['inside']} of {intervals} inside the 90 % interval"
    scaled = summary["mean_scaled_roofline_error"]
    rows = [
        ["this model", text.percent(summary["mean_error"])],
        ["datasheet roofline", text.percent(summary["mean_roofline_error"])],
        ["roofline x best constant of the other steps", text.percent(scaled)],
        ["noise floor of the measurement", text.percent(summary["mean_noise"])],
    ]
    worst = f"worst {text.percent(summary['worst_error'])} ({summary['worst_step']}); {hits}"
    return text.table([f"mean absolute error of {steps} steps", ""], rows) + "\n" + worst
