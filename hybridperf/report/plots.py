"""Plots: roofline, predicted and measured steps, learning curves. Files only."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.io import InputError, replacing
from hybridperf.model import PerfModel
from hybridperf.model.fit.learning_curve import ALL_OPS
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops
from hybridperf.report import text

_MARKERS = "os^vDPX*"  # one shape for every ten colours
_CURVE_COLUMNS = 6
_MOST_GROUPS = 9  # of a step that have a colour of their own
_HEIGHT = 0.8
_PERCENTS = (1, 2, 5, 10, 20, 50, 100)
_COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")  # C7 is the grey of the others
_LEAST_ROWS_DRAWN = 10  # op kinds with fewer rows have no curve, only chance


def roofline_plot(model: PerfModel, rows: pd.DataFrame, path: str | os.PathLike) -> None:
    """Achieved FLOP/s of measured ops against flops per byte, under datasheet and calibrated roof.

    Ops without arithmetic (copies, look-ups) are counted in the title; rows marked unreliable are
    left out.
    """
    if "unreliable" in rows.columns:
        rows = rows[rows["unreliable"] != 1].reset_index(drop=True)
    intensity, rate, group = _points(model, rows)
    figure, axes = new_figure(8.5, 5)
    counts = np.bincount(group, minlength=len(GROUPS))
    named = np.argsort(-counts, kind="stable")[: min(len(_COLOURS), np.count_nonzero(counts))]
    for colour, at in zip(_COLOURS, named, strict=False):
        here = group == at
        label = GROUPS[at].replace("_", " ")
        axes.scatter(intensity[here], rate[here], s=18, alpha=0.8, color=colour, label=label)
    others = ~np.isin(group, named)
    if others.any():
        label = f"{len(np.unique(group[others]))} other kinds"
        style = {"s": 12, "color": "0.75", "zorder": 0.5}
        axes.scatter(intensity[others], rate[others], label=label, **style)
    low, high = min(intensity.min(initial=1.0), 0.05), max(intensity.max(initial=1.0), 100.0)
    x = np.geomspace(low / 2, high * 2, 200)
    peak, bandwidth = model.device.peak("fp32", "matrix"), model.device.memory_bytes_per_s
    axes.plot(x, np.minimum(peak, x * bandwidth), color="black", lw=1.5, label="datasheet roofline")
    if "gemm" in model.groups:
        fitted_peak = peak * float(model.knobs.compute_efficiency[GROUPS.index("gemm")])
        fitted_bandwidth = bandwidth * float(np.max(model.knobs.level_speedup))
        roof = np.minimum(fitted_peak, x * fitted_bandwidth)
        style = {"color": "black", "lw": 1, "ls": "--"}
        axes.plot(x, roof, label="calibrated: gemm rate, nearest cache", **style)
    axes.set(xscale="log", yscale="log", ylabel="FLOP/s reached")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda rate, _: text.quantity(rate, "FLOP/s"))
    axes.set_xlabel("flops per byte of compulsory traffic")
    left_out = f"{len(rows) - len(rate)} of {len(rows)} measured ops without arithmetic not shown"
    axes.set_title(f"{model.device.name}; {left_out}", fontsize=9)
    axes.set_ylim(rate.min(initial=peak) / 3, peak * 3)
    figure.legend(fontsize=7, loc="outside right upper")
    save_figure(figure, path)


def _mark(number: int) -> dict[str, str]:
    return {"color": f"C{number % 10}", "marker": _MARKERS[number // 10 % len(_MARKERS)]}


def time_ticks(axis: Any, ends: np.ndarray, short: float = 300.0) -> None:
    """Powers of ten as `100 µs`; of an axis whose ends are nearer than `short` times, also 2, 5."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ends[1] < short * ends[0] else (1,)))
    axis.set_major_formatter(lambda time_s, _: text.seconds(time_s))
    axis.set_minor_formatter(lambda *_: "")


def _points(model: PerfModel, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(flops per byte, FLOP/s, index of the group) of the rows that do arithmetic."""
    times = rows["time_s"].to_numpy(np.float64)
    found = [np.empty((3, 0))]
    for part in parse_ops(rows, model.device).parts:
        arithmetic = part.work.flops + part.work.transcendentals
        usable = (arithmetic > 0) & (part.work.bytes > 0)
        flops, moved, time_s = arithmetic[usable], part.work.bytes[usable], times[part.rows[usable]]
        found.append(np.stack([flops / moved, flops / time_s, part.group[usable]]))
    intensity, rate, group = np.concatenate(found, axis=1)
    return intensity, rate, group.astype(int)


def measured_plot(
    labels: Sequence[str], measured_s: Sequence[float], predicted_s: Sequence[float],
    path: str | os.PathLike,
    intervals_s: Sequence[tuple[float | None, float | None]] | None = None,
    baseline: tuple[str, Sequence[float]] | None = None,
) -> None:  # fmt: skip
    """Predicted against measured seconds, a band of 25 % error, intervals (low, high) as bars, and
    a baseline (name, seconds) as grey crosses.
    """
    figure, axes = new_figure(8.5, 5)
    ends = [end for interval in intervals_s or () for end in interval if end is not None]
    name, other_s = baseline or ("", ())
    every = [*measured_s, *predicted_s, *ends, *other_s]
    line = np.array([min(every) / 1.6, max(every) * 1.6])
    axes.plot(line, line, color="black", lw=1)
    band = {"color": "black", "alpha": 0.08, "label": "within 25 %"}
    axes.fill_between(line, line * 0.75, line * 1.25, **band)
    if baseline:
        off = np.mean(np.abs(np.asarray(other_s) / measured_s - 1))
        cross = {"marker": "x", "color": "0.5", "label": f"{name} (mean {off:.0%})"}
        axes.scatter(measured_s, other_s, s=24, lw=1, **cross)
    for number, (label, x, y) in enumerate(zip(labels, measured_s, predicted_s, strict=True)):
        axes.scatter([x], [y], s=30, label=f"{label} ({y / x - 1:+.0%})", **_mark(number))
        below, above = intervals_s[number] if intervals_s else (None, None)
        if below is not None and above is not None:
            whisker = {"fmt": "none", "elinewidth": 1, "capsize": 3}
            colour = _mark(number)["color"]
            axes.errorbar([x], [y], [[y - below], [above - y]], ecolor=colour, **whisker)
    axes.set(xscale="log", yscale="log", xlim=line, ylim=line)
    axes.set(xlabel="measured", ylabel="predicted")
    time_ticks(axes.xaxis, line)
    time_ticks(axes.yaxis, line)
    if ends:
        axes.set_title("bars: 90 % intervals", fontsize=9)
    axes.grid(visible=False)
    figure.legend(fontsize=8, loc="outside right upper")
    save_figure(figure, path)


def learning_curve_plot(curve: pd.DataFrame, path: str | os.PathLike) -> None:
    """Held-out error against rows fitted on: with learned corrections, by knobs alone, by the
    datasheet's roofline that needs none, and noise.

    `curve` is what `learning_curve.learning_curve` returns; kinds with the most rows come first,
    those with hardly any are left out.
    """
    most = curve.groupby("op")["rows"].max().drop(ALL_OPS)
    most = most.sort_values(ascending=False, kind="stable")
    kinds = [ALL_OPS, *most.index[most >= _LEAST_ROWS_DRAWN]]
    curve = curve[curve["op"].isin(kinds)]
    columns = -(-len(kinds) // -(-len(kinds) // _CURVE_COLUMNS))
    figure, panels = new_panels(len(kinds), columns, (2.5, 2.1), (0.5, 0.7))
    percent = 100 * curve[["median_ape", "knobs_ape", "roofline_ape", "noise"]]
    low, high = max(0.5, np.nanmin(percent) / 1.3), np.nanmax(percent) * 1.3
    for axes, kind in zip(panels, kinds, strict=True):
        here = curve["op"] == kind
        rows = curve.loc[here, "rows"]
        roofline = percent.loc[here, "roofline_ape"].median()
        axes.axhline(roofline, color="0.5", lw=1, label="datasheet roofline, no rows")
        thin = {"color": "crimson", "lw": 1, "marker": "o", "ms": 3}
        thick = {"color": "black", "lw": 2, "marker": "o", "ms": 4}
        axes.plot(rows, percent.loc[here, "knobs_ape"], label="knobs alone", **thin)
        learned = percent.loc[here, "median_ape"]
        axes.plot(rows, learned, label="with learned corrections", **thick)
        noise = percent.loc[here, "noise"].median()
        if np.isfinite(noise) and noise > 0:
            axes.axhline(noise, color="black", lw=1, ls="--", label="noise of the held-out rows")
        axes.set(xscale="log", yscale="log", ylim=(low, high))
        title, weight = ("all ops", "bold") if kind == ALL_OPS else (kind.replace("_", " "), None)
        axes.set_title(title, fontsize=9, fontweight=weight)
        shown = sorted({rows.iloc[0], rows.iloc[len(rows) // 2], rows.iloc[-1]})
        plain_ticks(axes, shown, y=[*_PERCENTS, 200, 500, 1000], size=8)
    figure.supxlabel("rows fitted on", fontsize=9)
    figure.supylabel("median error of held-out rows, %", fontsize=9)
    shared_legend(figure, panels, fontsize=9, ncols=4)
    save_figure(figure, path)


def step_plot(prediction: Prediction, path: str | os.PathLike) -> None:
    """Draw when a step's ops run, and which share of the time each group of ops takes.

    Args:
        prediction: what `hp.predict` returned.
        path: the PNG file to write.
    """
    graph, times = prediction.workload.graph, prediction.timeline
    shares = prediction.breakdown().set_index("group")["share"].sort_values(ascending=False)
    groups = prediction.ops()["group"].to_numpy()
    mine = graph.rank == graph.rank.min()
    streams = [int(one) for one in np.unique(graph.stream[mine])]
    figure, axes = new_figure(9, 1.4 + 0.5 * len(streams))
    named = list(shares.index[:_MOST_GROUPS])
    scale, unit = next((one for one in text.TIMES if prediction.time_s >= one[0]), text.TIMES[-1])
    for number, group in enumerate([*named, ""]):
        of_group = groups == group if group else ~np.isin(groups, named)
        label = f"{group}, {text.whole_percent(shares[group])}" if group else "others"
        for line, stream in enumerate(streams):
            here = mine & of_group & (graph.stream == stream)
            start_s, end_s = times.start_s[here], times.end_s[here]
            bars = np.stack([start_s, end_s - start_s], 1) / scale
            if not len(bars):
                continue
            colour = f"C{number}" if group else "0.75"
            axes.broken_barh(bars, (line - _HEIGHT / 2, _HEIGHT), color=colour, lw=0, label=label)
            label = ""  # once
    axes.set_yticks(range(len(streams)), [graph.stream_names[one] for one in streams])
    axes.set(xlabel=unit, xlim=(0, prediction.time_s / scale))
    took = text.seconds(prediction.time_s) + text.within(prediction.low_s, prediction.high_s)
    where = f"{prediction.workload.name} on {prediction.model.device.name}"
    axes.set_title(f"{text.short(where)}: {took}", fontsize=9)
    figure.legend(fontsize=7, loc="outside right upper")
    save_figure(figure, path)


def plain_ticks(
    axes: Any, x: Collection[float], words: Any = "{x:g}", y: Collection[float] = (), size: int = 7
) -> None:
    """Ticks of a panel at x, and at y if given, as plain numbers, and no others; `words`: how those
    of x are written, a format or a function as for matplotlib; `size`: of letters.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    for axis, places in ((axes.xaxis, x), (axes.yaxis, y)):
        if len(places):
            axis.set_major_locator(FixedLocator(list(places)))
            axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(words)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelsize=size)


def new_figure(width: float, height: float, columns: int = 1, lines: int = 1) -> tuple[Any, Any]:
    """A matplotlib figure of this size [inches] and its panels, which have a pale grid."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and only plots need it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    with rc_context({"axes.grid": True, "grid.alpha": 0.2}):
        return figure, figure.subplots(lines, columns)


def new_panels(
    count: int, columns: int, size: tuple[float, float], margin: tuple[float, float],
    narrowest: float = 0.0,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """A figure with a grid of `count` panels of a width and height [inches].

    It is `margin` wider and higher than its panels, and at least `narrowest` wide.
    """
    lines = -(-count // columns)
    width = max(size[0] * columns + margin[0], narrowest)
    figure, grid = new_figure(width, size[1] * lines + margin[1], columns, lines)
    panels = list(np.atleast_1d(grid).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def shared_legend(figure: Any, panels: Sequence[Any], **style: Any) -> None:
    """One legend above all panels of a figure."""
    handles: dict[str, Any] = {}
    for axes in panels:
        drawn, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", **style)


def save_figure(figure: Any, path: str | os.PathLike, dpi: int = 130) -> None:
    """Write a figure as PNG, whole or not at all; `InputError` where it is named otherwise."""
    if (ending := Path(path).suffix.lower()) not in ("", ".png"):
        raise InputError(f"expected a .png file for a plot, got {ending} of {path}; name it .png")
    with replacing(path, "wb") as handle:
        figure.savefig(handle, format="png", dpi=dpi)
