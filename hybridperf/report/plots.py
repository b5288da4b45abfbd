"""Pictures: the roofline with measured points, predicted against measured. Files only, no window."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import replacing
from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops

_MARKERS = "os^vDPX*"  # one shape for every ten colours


def roofline_plot(model: PerfModel, rows: pd.DataFrame, path: str | os.PathLike) -> None:
    """Achieved FLOP/s of measured ops against flops per byte, under the datasheet's roof and the calibrated one.

    Ops without arithmetic (copies, look-ups) have no place on it and are counted in the title; rows marked unreliable are left out.
    """
    if "unreliable" in rows.columns:
        rows = rows[rows["unreliable"] != 1].reset_index(drop=True)
    intensity, rate, group = _points(model, rows)
    figure, axes = _figure(8.5, 5)
    for number, at in enumerate(np.unique(group)):
        here = group == at
        marker = _MARKERS[number // 10 % len(_MARKERS)]
        axes.scatter(intensity[here], rate[here], s=18, alpha=0.8, color=f"C{number % 10}", marker=marker, label=GROUPS[at])
    x = np.geomspace(min(intensity.min(initial=1.0), 0.05) / 2, max(intensity.max(initial=1.0), 100.0) * 2, 200)
    peak, bandwidth = model.device.peak("fp32", "matrix"), model.device.memory_bytes_per_s
    axes.plot(x, np.minimum(peak, x * bandwidth), color="black", lw=1.5, label="datasheet roofline")
    if "gemm" in model.groups:
        fitted_peak = peak * float(model.knobs.compute_efficiency[GROUPS.index("gemm")])
        fitted_bandwidth = bandwidth * float(np.max(model.knobs.level_speedup))
        label = "calibrated: gemm rate, nearest cache"
        axes.plot(x, np.minimum(fitted_peak, x * fitted_bandwidth), color="black", lw=1, ls="--", label=label)
    axes.set(xscale="log", yscale="log", xlabel="flops per byte of compulsory traffic", ylabel="FLOP/s reached")
    axes.set_title(f"{model.device.name}; {len(rows) - len(rate)} of {len(rows)} measured ops without arithmetic not shown", fontsize=9)
    axes.set_ylim(rate.min(initial=peak) / 3, peak * 3)
    axes.grid(alpha=0.2)
    figure.legend(fontsize=7, loc="outside right upper")
    _save(figure, path)


def _points(model: PerfModel, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(flops per byte, FLOP/s, index of the group) of the rows that do arithmetic."""
    times = rows["time_s"].to_numpy(np.float64)
    found = [np.empty((3, 0))]
    for part in parse_ops(rows, model.device).parts:
        arithmetic = part.work.flops + part.work.transcendentals
        usable = (arithmetic > 0) & (part.work.bytes > 0)
        counted, moved = arithmetic[usable], part.work.bytes[usable]
        found.append(np.stack([counted / moved, counted / times[part.rows[usable]], part.group[usable]]))
    intensity, rate, group = np.concatenate(found, axis=1)
    return intensity, rate, group.astype(int)


def measured_plot(
    labels: Sequence[str],
    measured_s: Sequence[float],
    predicted_s: Sequence[float],
    path: str | os.PathLike,
    intervals_s: Sequence[tuple[float | None, float | None]] | None = None,
) -> None:
    """Predicted against measured seconds, with the band of 25 % error and, where there are any, the intervals (low, high) as bars."""
    figure, axes = _figure(8.5, 5)
    ends = [end for interval in intervals_s or () for end in interval if end is not None]
    low, high = min(*measured_s, *predicted_s, *ends) / 1.6, max(*measured_s, *predicted_s, *ends) * 1.6
    line = np.array([low, high])
    axes.plot(line, line, color="black", lw=1)
    axes.fill_between(line, line * 0.75, line * 1.25, color="black", alpha=0.08, label="within 25 %")
    for number, (label, x, y) in enumerate(zip(labels, measured_s, predicted_s, strict=True)):
        marker, colour = _MARKERS[number // 10 % len(_MARKERS)], f"C{number % 10}"
        axes.scatter([x], [y], s=30, marker=marker, color=colour, label=f"{label} ({y / x - 1:+.0%})")
        below, above = intervals_s[number] if intervals_s else (None, None)
        if below is not None and above is not None:
            axes.errorbar([x], [y], yerr=[[y - below], [above - y]], fmt="none", ecolor=colour, elinewidth=1, capsize=3)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="measured seconds", ylabel="predicted seconds")
    figure.legend(fontsize=8, loc="outside right upper")
    _save(figure, path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and only plots need it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, path: str | os.PathLike) -> None:
    with replacing(path, "wb") as handle:
        figure.savefig(handle, format="png", dpi=130)
