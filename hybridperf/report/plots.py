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


def roofline_plot(model: PerfModel, rows: pd.DataFrame, path: str | os.PathLike) -> None:
    """Achieved FLOP/s of measured ops against flops per byte, under the datasheet's roof and the calibrated roof of matrix products.

    Ops without arithmetic (copies, look-ups) have no place on it and are counted in the caption.
    """
    figure, axes = _figure(7.5, 5)
    parsed = parse_ops(rows, model.device)
    times = rows["time_s"].to_numpy(np.float64)
    without, top, everything = 0, 0.0, []
    colours: dict[str, Any] = {}
    for part in parsed.parts:
        arithmetic = part.work.flops + part.work.transcendentals
        usable = (arithmetic > 0) & (part.work.bytes > 0)
        without += int((~usable).sum())
        for group in np.unique(part.group[usable]):
            here = usable & (part.group == group)
            intensity = arithmetic[here] / part.work.bytes[here]
            rate = arithmetic[here] / times[part.rows[here]]
            name = GROUPS[group]
            colour = colours.get(name)
            drawn = axes.scatter(intensity, rate, s=14, alpha=0.8, color=colour, label=None if colour is not None else name)
            colours.setdefault(name, drawn.get_facecolor()[0])
            everything.append(intensity)
            top = max(top, rate.max())
    spread = np.concatenate(everything) if everything else np.array([0.1, 100.0])
    x = np.geomspace(min(spread.min(), 0.05) / 2, max(spread.max(), 100.0) * 2, 200)
    peak, bandwidth = model.device.peak("fp32", "matrix"), model.device.memory_bytes_per_s
    axes.plot(x, np.minimum(peak, x * bandwidth), color="black", lw=1.5, label="datasheet roofline")
    if "gemm" in model.groups:
        at = GROUPS.index("gemm")
        fitted_peak = peak * float(model.knobs.compute_efficiency[at])
        fitted_bandwidth = bandwidth * float(np.max(model.knobs.level_speedup))
        axes.plot(
            x,
            np.minimum(fitted_peak, x * fitted_bandwidth),
            color="black",
            lw=1,
            ls="--",
            label="calibrated: gemm rate, nearest cache",
        )
    axes.set(xscale="log", yscale="log", xlabel="flops per byte of compulsory traffic", ylabel="FLOP/s reached")
    caption = f"{model.device.name}; {without} measured ops without arithmetic are not shown"
    axes.set_title(caption, fontsize=9)
    axes.set_ylim(bottom=max(top, peak) * 1e-6, top=max(top, peak) * 3)
    axes.legend(fontsize=7, ncols=2, loc="lower right")
    _save(figure, path)


def measured_plot(labels: Sequence[str], measured_s: Sequence[float], predicted_s: Sequence[float], path: str | os.PathLike) -> None:
    """Predicted against measured seconds, with the lines of 25 % error."""
    figure, axes = _figure(5, 5)
    low, high = min(*measured_s, *predicted_s) / 1.6, max(*measured_s, *predicted_s) * 1.6
    line = np.array([low, high])
    axes.plot(line, line, color="black", lw=1)
    axes.fill_between(line, line * 0.75, line * 1.25, color="black", alpha=0.08, label="within 25 %")
    for label, x, y in zip(labels, measured_s, predicted_s, strict=True):
        axes.scatter([x], [y], s=25)
        axes.annotate(label, (x, y), fontsize=7, xytext=(4, -8), textcoords="offset points")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        xlabel="measured seconds",
        ylabel="predicted seconds",
    )
    axes.legend(fontsize=8)
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
