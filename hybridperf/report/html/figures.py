"""Figures of a page, drawn by Bokeh: points and lines, stacked bars, intervals, timelines.

Colours are those of the light theme; the page's script replaces them by `DARK` where the reader's
system is dark. Axes are in one unit that is chosen here, since formatters written in JavaScript
would need a page that may evaluate text.
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from bokeh import models
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.plotting import figure

from hybridperf.report.html.document import Figure
from hybridperf.report.text import PREFIXES, TIMES, seconds

_COLOURS = resources.files(__package__).joinpath("templates/colours.toml").read_text()
LIGHT, DARK = tomllib.loads(_COLOURS).values()
HUES = [hue for name, hue in LIGHT.items() if name[1:].isdigit()]
_MARKERS = {
    "circle": "●", "square": "■", "diamond": "◆", "triangle": "▲", "inverted_triangle": "▼",
    "plus": "✚", "hex": "⬢",
}  # fmt: skip
_SIZE, _LEAST_SIZE, _MOST_SIZE, _BEST_SIZE = 7.0, 5.0, 30.0, 22.0  # pixels of a point
_CROWD, _CROWD_SIZE = 1000, 4.0  # more points of one series are drawn smaller
_GRID = (250, 120)  # spots of a plot: points of one series on the same spot are drawn once
_ROW = 30  # pixels of a bar with its gap
_TIP = '<div style="max-width:22rem;font-size:13px;color:#1a1f26;overflow-wrap:anywhere">{}</div>'


class Axis(NamedTuple):
    """What an axis shows; `unit` of seconds is `s`, a count has none."""

    name: str
    unit: str = ""
    log: bool = False


@dataclass(frozen=True, eq=False)
class Series:
    """Points or a line of a plot, N of them."""

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: int = 0
    line: bool = False
    words: Callable[[int], str] = str  # shown on pointing at a point, by its number
    share: np.ndarray | None = None  # [N] from 0 to 1, sets the area of points
    best: bool = False  # the point that the page speaks of


def plot(series: Sequence[Series], x: Axis, y: Axis, caption: str) -> Figure:
    """Points and lines over two axes; what has no place on them is left out and counted."""
    good = [_on_axes(one.x, x) & _on_axes(one.y, y) for one in series]
    left_out = sum(int((~some).sum()) for some in good)
    if left_out:
        caption += f" {left_out:,} points without a place on these axes are left out."
    kinds = {f"{k}_axis_type": "log" if axis.log else "linear" for k, axis in (("x", x), ("y", y))}
    drawn = _figure(420, tools="pan,box_zoom,zoom_in,zoom_out,reset,save", **kinds)
    scales = {}
    for axis, kind, name in ((drawn.xaxis, x, "x"), (drawn.yaxis, y, "y")):
        values = [getattr(one, name)[some] for one, some in zip(series, good, strict=True)]
        scales[name], unit = _unit(values, kind.unit)
        axis.axis_label = f"{kind.name}, {unit}" if unit not in ("", kind.name) else kind.name
        axis.formatter = models.BasicTickFormatter(use_scientific=not kind.log)
        if kind.log:
            axis.ticker = FixedTicker(ticks=log_ticks(np.concatenate(values) / scales[name]))
    legend, renderers = [], []
    for at, (one, some) in enumerate(zip(series, good, strict=True)):
        if not some.any():
            continue
        places = {"x": one.x[some] / scales["x"], "y": one.y[some] / scales["y"]}
        if one.line:
            style = {"line_color": HUES[one.colour], "line_width": 2}
            source = ColumnDataSource({**places, "words": [one.name] * len(places["x"])})
            renderers.append(drawn.line("x", "y", source=source, **style))
            legend.append(("━", one.colour, one.name))
            continue
        marker = "star" if one.best else list(_MARKERS)[at % len(_MARKERS)]
        renderers.append(_points(drawn, one, np.flatnonzero(some), places, (x, y), marker))
        symbol = ("★", "m") if one.best else (_MARKERS[marker], one.colour)
        legend.append((*symbol, one.name))
    hover(drawn, renderers, "@words")
    return Figure(drawn, caption, legend)


def _points(drawn: Any, one: Series, kept: np.ndarray, places: dict, axes: Any, marker: str) -> Any:
    across, down = (_spots(places[k], a.log, n) for k, a, n in zip("xy", axes, _GRID, strict=True))
    keep = np.sort(np.unique(np.stack([across, down], axis=1), axis=0, return_index=True)[1])
    usual = _CROWD_SIZE if len(keep) > _CROWD else _SIZE
    size = np.full(len(kept), _BEST_SIZE if one.best else usual)
    if one.share is not None:
        share = np.nan_to_num(one.share[kept]).clip(0, 1)
        size = _LEAST_SIZE + np.sqrt(share) * (_MOST_SIZE - _LEAST_SIZE)
        keep = np.argsort(-size, kind="stable")  # small ones on top
    columns = {name: values[keep] for name, values in places.items()}
    columns |= {"size": size[keep], "words": [one.words(int(at)) for at in kept[keep]]}
    hue = LIGHT["mark"] if one.best else HUES[one.colour]
    colours = {"fill_color": hue, "fill_alpha": 0.75, "line_color": LIGHT["page"]}
    source = ColumnDataSource(columns)
    return drawn.scatter("x", "y", size="size", marker=marker, source=source, **colours)


def _spots(values: np.ndarray, log: bool, count: int) -> np.ndarray:
    places = np.log(values) if log else values
    span = float(np.ptp(places)) or 1.0
    return np.round((places - places.min()) / span * count)


def bars(
    rows: Sequence[tuple[str, Sequence[float], str]], parts: Sequence[tuple[str, int]],
    caption: str,
) -> Figure:  # fmt: skip
    """Stacked bars from a common zero; `rows`: label, amount of each part (NaN where it is not
    known), words for the sum; `parts`: name and colour.
    """
    amounts = np.nan_to_num([amounts for _, amounts, _ in rows]).reshape(len(rows), len(parts))
    sums = amounts.sum(axis=1)
    scale, shown = _unit([sums], "s")
    drawn = _rows_figure([label for label, _, _ in rows], float(sums.max(initial=0)) / scale, shown)
    left, y = np.zeros(len(rows)), np.arange(len(rows))
    renderers, legend = [], []
    for (name, colour), part in zip(parts, amounts.T, strict=True):
        if not part.any():
            continue
        took = map(seconds, part)
        words = [f"{row[0]}: {name} {some}" for row, some in zip(rows, took, strict=True)]
        columns = {"y": y, "left": left / scale, "right": (left + part) / scale, "words": words}
        hues = {"fill_color": HUES[colour], "line_color": LIGHT["page"]}
        source = ColumnDataSource(columns)
        place = {"y": "y", "left": "left", "right": "right", "height": 0.7}
        renderers.append(drawn.hbar(**place, source=source, **hues))
        legend.append(("■", colour, name))
        left = left + part
    ends = ColumnDataSource({"x": left / scale, "y": y, "text": [words for _, _, words in rows]})
    _texts(drawn, ends)
    hover(drawn, renderers, "@words")
    return Figure(drawn, caption, legend)


class Interval(NamedTuple):
    """A value with its interval, where one is known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def intervals(rows: Sequence[Interval], caption: str) -> Figure:
    """Values with their intervals one below the other on one axis from zero."""
    ends = [np.array([end for end in row[1:] if end is not None], float) for row in rows]
    scale, shown = _unit(ends, "s")
    drawn = _rows_figure([row.label for row in rows], max(map(np.max, ends)) / scale, shown)
    y = np.arange(len(rows))
    known = [at for at, row in enumerate(rows) if row.low is not None and row.high is not None]
    low, high = (np.array([rows[at][k] for at in known], float) / scale for k in (2, 3))
    words = [seconds(row.value) for row in rows]
    value = np.array([row.value for row in rows]) / scale
    tips = [f"{row.label}: {value}" for row, value in zip(rows, words, strict=True)]
    for at in known:
        tips[at] += f" (90 %: {' to '.join(map(seconds, rows[at][2:]))})"
    spans = {"y": y[known], "left": low, "right": high, "words": [tips[at] for at in known]}
    bands = drawn.hbar("y", left="left", right="right", height=0.5, source=ColumnDataSource(spans),
                       fill_alpha=0.3, fill_color=HUES[0], line_color=None)  # fmt: skip
    points = ColumnDataSource({"x": value, "y": y, "words": tips})
    marks = drawn.scatter("x", "y", size=11, marker="diamond", source=points, color=HUES[0])
    right = [max(end) / scale for end in ends]
    _texts(drawn, ColumnDataSource({"x": right, "y": y, "text": words}))
    hover(drawn, [bands, marks], "@words")
    return Figure(drawn, caption)


def row_axis(drawn: Any, names: Sequence[str]) -> None:
    """Name the rows of a figure, the first on top."""
    drawn.y_range = Range1d(start=len(names) - 0.4, end=-0.6)
    drawn.yaxis.ticker = FixedTicker(ticks=list(range(len(names))))
    drawn.yaxis.major_label_overrides = {
        at: name if len(name) <= 24 else f"{name[:23]}…" for at, name in enumerate(names)
    }
    drawn.ygrid.grid_line_color = None
    drawn.yaxis.major_tick_line_color = None


def _rows_figure(labels: Sequence[str], most: float, unit: str) -> Any:
    drawn = _figure(_ROW * len(labels) + 60, tools="save")
    drawn.x_range = Range1d(start=0, end=(most or 1.0) * 1.35)
    drawn.xaxis.axis_label = unit
    row_axis(drawn, labels)
    return drawn


def timeline_figure(rows: int, whole_s: float) -> tuple[Any, float, str]:
    """An empty figure of so many rows, its unit of time as a factor and a name."""
    scale, unit = _unit([np.array([whole_s])], "s")
    wheel = models.WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    drawn = _figure(22 * rows + 70, tools="xpan,xbox_zoom,xzoom_in,xzoom_out,reset,save")
    drawn.add_tools(wheel)
    drawn.toolbar.active_scroll = wheel
    whole = whole_s / scale or 1.0
    drawn.x_range = Range1d(start=0, end=whole, bounds=(0, whole))
    drawn.xaxis.axis_label = unit
    return drawn, scale, unit


def hover(drawn: Any, renderers: list, words: str) -> None:
    """Words shown on pointing at what the renderers draw, `@name` for a column."""
    tip = _TIP.format(words)
    tool = models.HoverTool(renderers=renderers, tooltips=tip, point_policy="follow_mouse")
    drawn.add_tools(tool)


def _figure(height: int, tools: str, **options: Any) -> Any:
    # room for the half of the last tick's label that lies beyond the axis
    drawn = figure(
        height=height, sizing_mode="stretch_width", tools=tools, min_border_right=36, **options
    )
    drawn.toolbar.logo = None
    drawn.toolbar.autohide = True
    drawn.background_fill_color = drawn.border_fill_color = LIGHT["page"]
    drawn.outline_line_color = LIGHT["rule"]
    drawn.grid.grid_line_color = LIGHT["rule"]
    drawn.axis.axis_line_color = drawn.axis.major_tick_line_color = LIGHT["quiet"]
    drawn.axis.minor_tick_line_color = None
    drawn.axis.axis_label_text_color = drawn.axis.major_label_text_color = LIGHT["text"]
    drawn.axis.axis_label_text_font_style = "normal"
    drawn.axis.axis_label_text_font_size = drawn.axis.major_label_text_font_size = "12px"
    return drawn


def _texts(drawn: Any, source: ColumnDataSource) -> None:
    drawn.text("x", "y", "text", source=source, x_offset=6, text_baseline="middle",
               text_font_size="12px", text_color=LIGHT["text"])  # fmt: skip


def log_ticks(values: np.ndarray) -> list[float]:
    """Powers of ten around the values; 1, 2 and 5 times them where there are few."""
    if not len(values):
        return []
    low, high = (math.log10(end) for end in (values.min(), values.max()))
    mantissas = next(
        marks for most, marks in ((0.9, (1, 1.5, 2, 3, 5, 7)), (3, (1, 2, 5)), (math.inf, (1,)))
        if high - low < most
    )  # fmt: skip
    powers = range(math.floor(low) - 1, math.ceil(high) + 1)
    ticks = np.array([f * 10.0**p for p in powers for f in mantissas])
    below, above = (ticks <= values.min()).sum() - 1, len(ticks) - (ticks >= values.max()).sum()
    return [*map(float, ticks[max(below, 0) : above + 1])]


def _on_axes(values: np.ndarray, axis: Axis) -> np.ndarray:
    return np.isfinite(values) & ((values > 0) | (not axis.log))


def _unit(values: Sequence[np.ndarray], unit: str) -> tuple[float, str]:
    """The unit that an axis shows, as a factor and a name: the largest value has digits before
    its point."""
    most = max((float(some.max()) for some in values if len(some)), default=1.0)
    if not unit or not math.isfinite(most):
        return 1.0, unit
    steps = TIMES if unit == "s" else [(factor, prefix + unit) for factor, prefix in PREFIXES]
    return next((step for step in steps if most >= step[0]), steps[-1])
