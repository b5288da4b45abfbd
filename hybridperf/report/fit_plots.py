"""How a fit errs on held-out rows: by op kind, and from which kinds most of the error comes."""

import os
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.model.fit.device import FitReport
from hybridperf.report import text
from hybridperf.report.plots import new_figure, new_panels, save_figure, shared_legend, time_ticks

_COLUMNS = 6
_MOST = 8.0  # predicted over measured, or its inverse; beyond it a row stands at the edge
_RATIOS = {0.125: "÷8", 0.25: "÷4", 0.5: "÷2", 1.0: "1", 2.0: "×2", 4.0: "×4", 8.0: "×8"}
_PERCENTS = (1, 3, 10, 30, 100, 300, 1000)
_OURS, _ROOFLINE = "C0", "0.55"


def fit_plot(report: FitReport, path: str | os.PathLike) -> None:
    """Predicted over measured seconds of held-out rows against the measured ones, by op kind.

    The band is the noise of the measurements, below which no model's error can be; dashed is the
    90 % interval where there is one; crosses are the datasheet's roofline. Kinds with the most rows
    come first.
    """
    table = report.table.sort_values("rows", ascending=False, kind="stable")
    by_kind = dict(iter(report.held_out.groupby("op")))
    columns = min(_COLUMNS, len(table))
    size, margin = (2.25, 1.6), (0.5, 0.9)
    figure, panels = new_panels(len(table), columns, size, margin, narrowest=6.0)
    for axes, kind in zip(panels, table.itertuples(), strict=True):
        _ratios(axes, by_kind[kind.op], kind.noise)
        name = kind.op.replace("_", " ")
        axes.set_title(f"{name}: {text.whole_percent(kind.median_ape)}", fontsize=9)
    figure.supxlabel("measured (in the titles: median error)", fontsize=9)
    figure.supylabel("predicted / measured", fontsize=9)
    shared_legend(figure, panels, fontsize=9, ncols=4)
    save_figure(figure, path, dpi=100)


def _ratios(axes: Any, rows: pd.DataFrame, noise: float) -> None:
    """A panel: rows of one op kind."""
    measured_s = rows["measured_s"].to_numpy(np.float64)
    ends = np.array([measured_s.min() / 1.6, measured_s.max() * 1.6])
    if np.isfinite(noise):
        floor = {"color": "black", "alpha": 0.15, "lw": 0, "label": "noise of the measurements"}
        axes.fill_between(ends, 1 / (1 + noise), 1 + noise, **floor)
    axes.axhline(1.0, color="black", lw=0.8)
    for end, label in (("low_s", "90 % interval"), ("high_s", "")):
        # the measurement lies in it where the ratio lies between these
        width = (rows["predicted_s"] / rows[end]).median()
        if np.isfinite(width):
            axes.axhline(width, color=_OURS, lw=0.8, ls="--", label=label)
    crosses = {"label": "datasheet roofline", "color": _ROOFLINE, "marker": "x", "lw": 0.8}
    dots = {"label": "calibrated, without this row", "color": _OURS, "alpha": 0.6}
    for seconds, style in (("roofline_s", crosses), ("predicted_s", dots)):
        ratio = np.clip(rows[seconds].to_numpy(np.float64) / measured_s, 1 / _MOST, _MOST)
        axes.scatter(measured_s, ratio, s=12, **style)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(0.8 / _MOST, 1.25 * _MOST))
    axes.set_yticks(list(_RATIOS), list(_RATIOS.values()))
    axes.minorticks_off()
    time_ticks(axes.xaxis, ends, short=20.0)
    axes.tick_params(labelsize=7)


def error_shares_plot(report: FitReport, path: str | os.PathLike) -> None:
    """Left, the mean error of each op kind with the roofline's and the noise; right, its share of
    the error of all held-out rows.
    """
    table = report.table.assign(total=report.table["rows"] * report.table["mean_ape"])
    table = table.sort_values("total", kind="stable")  # the largest above
    share = table["total"] / table["total"].sum()
    figure, (left, right) = new_figure(9.5, 1.3 + 0.22 * len(table), columns=2)
    at = np.arange(len(table))
    marks = (
        ("roofline_ape", "datasheet roofline (median)", {"color": _ROOFLINE, "marker": "x"}),
        ("noise", "noise of the measurements", {"color": "black", "marker": "|", "s": 60}),
        ("median_ape", "calibrated (median)", {"color": _OURS, "marker": "o"}),
        ("mean_ape", "calibrated (mean)", {"edgecolor": _OURS, "facecolor": "none", "marker": "o"}),
    )
    most = 100 * np.nanmax(table[[column for column, _, _ in marks]])
    high = next((percent for percent in _PERCENTS if percent >= most), _PERCENTS[-1])
    for column, label, style in marks:
        percent = 100 * table[column].to_numpy(np.float64)
        left.scatter(np.clip(percent, _PERCENTS[0], high), at, label=label, **style)
    left.set(xscale="log", xlim=(0.8 * _PERCENTS[0], 1.25 * high))
    shown = [percent for percent in _PERCENTS if percent <= high]
    left.set_xticks(shown, [f"{percent}" for percent in shown])
    left.minorticks_off()
    left.set_yticks(at, [name.replace("_", " ") for name in table["op"]])
    left.set_xlabel("error of held-out rows, %")
    right.barh(at, 100 * share, color=_OURS)
    for place, row, part in zip(at, table.itertuples(), share, strict=True):
        rows = f"{text.whole_percent(part)} ({row.rows} rows)"
        right.text(100 * part, place, f" {rows}", va="center", fontsize=8)
    right.set_yticks([])
    right.set_xlim(0, 130 * share.max())
    right.set_xlabel("share of the error of all held-out rows, %")
    for axes in (left, right):
        axes.set_ylim(-0.6, len(table) - 0.4)
        axes.tick_params(labelsize=8)
    shared_legend(figure, [left], fontsize=8, ncols=4)
    save_figure(figure, path)
