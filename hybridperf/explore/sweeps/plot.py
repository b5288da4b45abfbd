"""The rows of a sweep as a picture: a heat map of the best of each cell, or the best of each line
over the cloud of all rows.
"""

from __future__ import annotations

import functools
import io
import os
from typing import Any, Literal

import numpy as np
import pandas as pd

from hybridperf.explore.sweeps.run import SweepResult
from hybridperf.io import InputError, read_table, unknown
from hybridperf.report.plots import new_panels, save_figure

_MOST_CELLS = 60  # values of an axis of a heat map; lines over so many values of x
_MOST_LINES, _MOST_FACETS = 10, 12
_MOST_POINTS = 20_000  # of a cloud
_COLUMNS = 3
_MOST_TICKS = 8
_DPI = 80
_MOST_ON_A_PAGE = 1500
_LOG_FROM = 10.0  # times from the least to the most, where an axis counts in logs
_LESS_IS_MORE = {"least": "min", "most": "max"}


def plot_grid(
    result: SweepResult | pd.DataFrame | str | os.PathLike, x: str, y: str, hue: str = "",
    facet: str = "", *, best: Literal["least", "most"] = "least",
    path: str | os.PathLike | None = None,
) -> Any:  # fmt: skip
    """Draw the rows of a sweep.

        hp.plot_grid(done, x="gpus", y="tp", hue="predicted_s", facet="gpu")
        hp.plot_grid(done, x="gpus", y="tokens_per_s", hue="gpu", best="most")

    Where x and y have few values each and hue is a number, a heat map: each cell is the best hue
    of its rows. Else y over x: all rows as a cloud and, for each of few values of x, the best of
    each hue as a line; a hue of many numbers colours the cloud. Rows that lack a number are left
    out.

    Args:
        result: what `hp.sweep` returned, its file, or a frame, such as some of its rows.
        x: a column.
        y: a column.
        hue: a column; "": none.
        facet: a column of up to 12 values, each with a panel of its own; "": one panel.
        best: whether the least or the most counts.
        path: a PNG file to write; None: none.

    Returns:
        A `matplotlib.figure.Figure`, which notebooks show.

    Raises:
        InputError: for a column that is not there, and one that cannot be drawn so.
    """
    if best not in _LESS_IS_MORE:
        raise unknown("best", best, _LESS_IS_MORE, "there are least, most")
    frame = result.frame() if isinstance(result, SweepResult) else result
    if not isinstance(frame, pd.DataFrame):
        frame = read_table(frame)
    named = [name for name in (x, y, hue, facet) if name]
    for name in named:
        if name not in frame:
            raise unknown("column", name, frame.columns, f"there are {', '.join(frame.columns)}")
    frame = frame.dropna(subset=named)
    if frame.empty:
        raise InputError(f"expected rows with {', '.join(named)}, got none; ask for other columns")
    parts = [("", frame)] if not facet else [*frame.groupby(facet, sort=True, observed=True)]
    if len(parts) > _MOST_FACETS:
        raise InputError(
            f"expected a facet of up to {_MOST_FACETS} values, got {len(parts)} of {facet}; choose"
            " another column or some of the rows"
        )
    number = bool(hue) and pd.api.types.is_numeric_dtype(frame[hue])
    cells = number and all(frame[name].nunique() <= _MOST_CELLS for name in (x, y))
    figure, panels = new_panels(len(parts), min(_COLUMNS, len(parts)), (4.6, 3.6), (0.6, 0.3), 6.0)
    draw = _heat if cells else _cloud
    by = [x, y, *([facet] if facet else [])]
    colours = frame.groupby(by, observed=True)[hue].agg(_LESS_IS_MORE[best]) if cells else None
    norm = _norm((frame[hue] if colours is None else colours).to_numpy(float)) if number else None
    drawn = None
    for axes, (value, part) in zip(panels, parts, strict=False):
        drawn = draw(axes, part, frame, x, y, hue, _LESS_IS_MORE[best], norm) or drawn
        axes.set(xlabel=x, ylabel=y, title=f"{facet} {value}" if facet else "")
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=panels, label=f"{hue}, {best} of each cell" * cells or hue)
        bar.ax.yaxis.set_major_formatter("{x:.3g}")
        bar.ax.yaxis.set_minor_formatter("{x:.3g}")
    elif hue:
        panels[0].legend(title=hue, fontsize=7, title_fontsize=8)
    if path is not None:
        save_figure(figure, path)
    figure._repr_png_ = functools.partial(_png, figure)  # what notebooks show of an object
    return figure


def drawn_rows(done: SweepResult, most: int = _MOST_ON_A_PAGE) -> pd.DataFrame:
    """Rows of a sweep that a page shows: the best, the front and some of the others, evenly; of
    columns whose values differ and are no sentences.
    """
    frame = done.frame().drop(columns=["note", "layout", "fits", "in_range"], errors="ignore")
    chosen = [frame.iloc[np.linspace(0, len(frame) - 1, min(most, len(frame))).astype(int)]]
    for path in (done.top, done.front):
        if path is not None:
            points = read_table(path)["point"].head(most)
            chosen.append(frame[frame["point"].isin(points)])
    rows = pd.concat(chosen).drop_duplicates("point").sort_values("point").drop(columns="point")
    return rows[[name for name in rows if rows[name].nunique() > 1]]


def _png(figure: Any) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=_DPI)
    return written.getvalue()


def _heat(
    axes: Any, part: pd.DataFrame, whole: pd.DataFrame, x: str, y: str, hue: str, best: str,
    norm: Any,
) -> Any:  # fmt: skip
    """Cells of x and y, all panels on one scale."""
    table = part.pivot_table(index=y, columns=x, values=hue, aggfunc=best, observed=True)
    columns, lines = (sorted(whole[name].unique()) for name in (x, y))
    values = table.reindex(index=lines, columns=columns).to_numpy(float)
    drawn = axes.pcolormesh(
        np.arange(len(columns) + 1), np.arange(len(lines) + 1), values, cmap="viridis",
        norm=norm, rasterized=True,
    )  # fmt: skip
    _ticks(axes.xaxis, columns)
    _ticks(axes.yaxis, lines)
    axes.grid(visible=False)
    if values.size <= 100:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                shade = "white" if norm(value) < 0.6 else "black"
                style = {"ha": "center", "va": "center", "fontsize": 7, "color": shade}
                axes.text(column + 0.5, row + 0.5, f"{value:.3g}", **style)
    return drawn


def _ticks(axis: Any, values: list[Any]) -> None:
    every = max(1, len(values) // 10)
    at = np.arange(0, len(values), every)
    axis.set_ticks(at + 0.5, [_words(values[one]) for one in at])


def _words(value: Any) -> str:
    return f"{value:g}" if np.isreal(value) else str(value)


def _cloud(
    axes: Any, part: pd.DataFrame, whole: pd.DataFrame, x: str, y: str, hue: str, best: str,
    norm: Any,
) -> Any:  # fmt: skip
    """All rows, and the best of each value of x."""
    numbers = bool(hue) and pd.api.types.is_numeric_dtype(whole[hue])
    coloured = numbers and whole[hue].nunique() > _MOST_LINES
    if hue and not coloured and whole[hue].nunique() > _MOST_LINES:
        raise InputError(
            f"expected a hue of numbers, or of up to {_MOST_LINES} words, got"
            f" {whole[hue].nunique()} words in {hue}; choose another column"
        )
    drawn = None
    some = part.sample(min(len(part), _MOST_POINTS), random_state=0)
    style = {"s": 6, "alpha": 0.35, "lw": 0, "rasterized": True}
    if coloured:
        colours = {"c": some[hue], "norm": norm, "cmap": "viridis"}
        drawn = axes.scatter(some[x], some[y], **(style | {"alpha": 0.7}), **colours)
    few = whole[x].nunique() <= _MOST_CELLS
    groups = [("", part)] if coloured or not hue else [*part.groupby(hue, observed=True)]
    order = [] if coloured or not hue else sorted(whole[hue].unique())
    for value, rows in groups:
        colour = f"C{order.index(value)}" if order else "0.3"
        cloud = some.loc[some.index.intersection(rows.index)]
        if not coloured:
            axes.scatter(cloud[x], cloud[y], color=colour, **style)
        if few and not coloured:
            line = rows.groupby(x, observed=True)[y].agg(best)
            axes.plot(line.index, line.to_numpy(), "o-", ms=4, color=colour, label=str(value))
        elif order:
            axes.scatter([], [], color=colour, label=str(value))
    for name, scale, axis in ((x, axes.set_xscale, axes.xaxis), (y, axes.set_yscale, axes.yaxis)):
        if pd.api.types.is_numeric_dtype(whole[name]) and _in_logs(whole[name].to_numpy(float)):
            scale("log")
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        values = sorted(whole[name].unique())
        if name == x and few and len(values) <= _MOST_TICKS:
            axis.set_ticks(values, [*map(_words, values)])
            axis.set_ticks([], minor=True)
    if pd.api.types.is_numeric_dtype(whole[y]):  # panels are compared
        low, high = (float(end) for end in (whole[y].min(), whole[y].max()))
        gap = 0.05 * (high - low) or abs(high) or 1.0
        logs = _in_logs(whole[y].to_numpy(float))
        axes.set_ylim((low / 1.15, high * 1.15) if logs else (low - gap, high + gap))
    return drawn


def _in_logs(values: np.ndarray) -> bool:
    least, most = np.nanmin(values), np.nanmax(values)
    return bool(least > 0 and most > _LOG_FROM * least)


def _norm(values: np.ndarray) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    kind = LogNorm if _in_logs(values) else Normalize
    return kind(np.nanmin(values), np.nanmax(values))
