"""A plot of points and lines as an inline drawing (SVG): colours and dashes come from the page's
styles, so it follows light and dark.

Points of one series that fall on the same spot are drawn once: a plot of a million layouts stays a
small file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridperf.report.html.document import Plot, Series
from hybridperf.report.html.ticks import limits, linear_ticks, log_ticks
from hybridperf.report.html.words import escaped, number

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 108, 18, 14, 50
_RADIUS, _LEAST_RADIUS, _MOST_RADIUS = 3.5, 2.5, 15.0
_CROWD, _CROWD_RADIUS = (
    400,
    1.6,
)  # points that say nothing when pointed at: as small dots where there are so many
_SPOT = 1.5  # pixels within which points are one
_LINE_PIXELS = 14  # between names of lines
_MOST_NAMED = 4000  # points that say what they are when pointed at
_MARKERS = ("circle", "square", "diamond", "triangle", "down", "plus", "bar", "cross")


class _Axis(NamedTuple):
    low: float
    high: float
    log: bool
    start: float  # pixels of `low`
    end: float

    def at(self, value: np.ndarray | float) -> np.ndarray:
        """Pixels."""
        low, high, x = self.low, self.high, np.asarray(value, np.float64)
        if self.log:
            low, high, x = math.log(low), math.log(high), np.log(x)
        return self.start + (x - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)


def plot_html(block: Plot) -> str:
    """The drawing with its legend and caption."""
    kept = [_finite(one, block) for one in block.series]
    left_out = sum(len(one.x) for one in block.series) - sum(len(one.x) for one in kept)
    x = _axis([one.x for one in kept], block.x_log, _LEFT, _WIDTH - _RIGHT)
    y = _axis([one.y for one in kept], block.y_log, _HEIGHT - _BOTTOM, _TOP)
    named = sum(len(one.labels) for one in kept if not one.line) <= _MOST_NAMED
    lines = "".join(_line(one, x, y) for one in kept if one.line)
    points = "".join(_points(one, x, y, at, named) for at, one in enumerate(kept) if not one.line)
    said = (
        f"{block.caption} {left_out:,} points without a place on these axes are left out."
        if left_out
        else block.caption
    )
    caption = f"<figcaption>{escaped(said.strip())}</figcaption>" if said else ""
    label = escaped(f"{block.y} against {block.x}: {', '.join(one.name for one in kept)}")
    return (
        f'<figure>{caption}{_legend(kept)}<div class="wide" tabindex="0" role="group"'
        ' aria-label="plot">'
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{_grid(block, x, y)}{lines}{points}{_names(kept, x, y)}</svg></div></figure>"
    )


def _finite(one: Series, block: Plot) -> Series:
    """The series without what has no place on the axes."""
    x, y = np.asarray(one.x, np.float64), np.asarray(one.y, np.float64)
    good = (
        np.isfinite(x)
        & np.isfinite(y)
        & ((x > 0) | (not block.x_log))
        & ((y > 0) | (not block.y_log))
    )
    labels = [one.labels[at] for at in np.flatnonzero(good).tolist()] if len(one.labels) else ()
    share = (
        None
        if one.share is None
        else np.nan_to_num(np.asarray(one.share, np.float64)[good]).clip(0, 1)
    )
    fixed = {
        "colour": one.colour,
        "line": one.line,
        "dashed": one.dashed,
        "mark": one.mark,
        "at_end": one.at_end,
    }
    return Series(one.name, x[good], y[good], labels=labels, share=share, **fixed)  # type: ignore[arg-type]


def _axis(
    values: Sequence[Sequence[float] | np.ndarray], log: bool, start: float, end: float
) -> _Axis:
    low, high = limits(
        np.concatenate([np.asarray(one, np.float64) for one in values] or [np.zeros(0)]), log
    )
    return _Axis(low, high, log, start, end)


def _grid(block: Plot, x: _Axis, y: _Axis) -> str:
    parts = []
    for value, at in zip(x.ticks(), x.at(np.array(x.ticks())), strict=True):
        parts.append(
            f'<line class="rule" x1="{number(at)}" x2="{number(at)}" y1="{_TOP}"'
            f' y2="{_HEIGHT - _BOTTOM}"/>'
        )
        parts.append(
            f'<text x="{number(at)}" y="{_HEIGHT - _BOTTOM + 17}"'
            f' text-anchor="middle">{escaped(block.x_words(value))}</text>'
        )
    for value, at in zip(y.ticks(), y.at(np.array(y.ticks())), strict=True):
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{number(at)}"'
            f' y2="{number(at)}"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 7}" y="{number(at + 4)}"'
            f' text-anchor="end">{escaped(block.y_words(value))}</text>'
        )
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}"'
        f' text-anchor="middle">{escaped(block.x)}</text>'
    )
    turned = f'transform="rotate(-90 14 {middle})"'
    parts.append(
        f'<text class="name" x="14" y="{middle}" text-anchor="middle"'
        f" {turned}>{escaped(block.y)}</text>"
    )
    return "".join(parts)


def _line(one: Series, x: _Axis, y: _Axis) -> str:
    if not len(one.x):
        return ""
    places = " ".join(
        f"{number(a)},{number(b)}"
        for a, b in zip(x.at(np.asarray(one.x)), y.at(np.asarray(one.y)), strict=True)
    )
    return (
        f'<polyline class="{_line_class(one)}"'
        f' points="{places}"><title>{escaped(one.name)}</title></polyline>'
    )


def _line_class(one: Series) -> str:
    return f"l{one.colour} dashed" if one.dashed else f"l{one.colour}"


def _points(one: Series, x: _Axis, y: _Axis, at: int, named: bool) -> str:
    if not len(one.x):
        return ""
    across, down = x.at(np.asarray(one.x)), y.at(np.asarray(one.y))
    crowd = one.share is None and not one.mark and not len(one.labels) and len(across) > _CROWD
    if one.share is None:
        radius = np.full(len(across), _CROWD_RADIUS if crowd else _RADIUS)
        spots = np.stack([np.round(across / _SPOT), np.round(down / _SPOT)], axis=1)
        keep = np.sort(np.unique(spots, axis=0, return_index=True)[1])
    else:
        radius = _LEAST_RADIUS + np.sqrt(np.asarray(one.share)) * (_MOST_RADIUS - _LEAST_RADIUS)
        keep = np.argsort(-radius, kind="stable")  # small ones on top
    marker = _MARKERS[at % len(_MARKERS)]
    shapes = [_shape(marker, across[i], down[i], radius[i]) for i in keep.tolist()]
    if not (one.mark or (named and len(one.labels))):
        extra = " crowd" if crowd else ""
        together = "".join(shapes)  # a drawing of thousands of elements is slow
        return f'<g class="p{one.colour}{extra}"><path d="{together}"/></g>'
    parts = []
    for i, shape in zip(keep.tolist(), shapes, strict=True):
        said = f"<title>{escaped(one.labels[i])}</title>" if named and len(one.labels) else ""
        ring = (
            f'<circle class="ring" cx="{number(across[i])}" cy="{number(down[i])}"'
            f' r="{number(radius[i] + 4)}"/>'
            if one.mark
            else ""
        )
        parts.append(f'{ring}<path d="{shape}">{said}</path>')
    return f'<g class="p{one.colour}">{"".join(parts)}</g>'


def _shape(marker: str, x: float, y: float, r: float) -> str:
    n = number
    if marker == "circle":
        return (
            f"M{n(x - r)} {n(y)}a{n(r)} {n(r)} 0 1 0 {n(2 * r)} 0a{n(r)} {n(r)} 0 1 0"
            f" {n(-2 * r)} 0z"
        )
    corners = {
        "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        "triangle": [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        "down": [(0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
        "plus": [
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ],
        "bar": [(-1.3, -0.5), (1.3, -0.5), (1.3, 0.5), (-1.3, 0.5)],
        "cross": [
            (0, -0.5),
            (0.8, -1.2),
            (1.2, -0.8),
            (0.5, 0),
            (1.2, 0.8),
            (0.8, 1.2),
            (0, 0.5),
            (-0.8, 1.2),
            (-1.2, 0.8),
            (-0.5, 0),
            (-1.2, -0.8),
            (-0.8, -1.2),
        ],
    }[marker]
    return "M" + "L".join(f"{n(x + a * r)} {n(y + b * r)}" for a, b in corners) + "z"


def _legend(kept: Sequence[Series]) -> str:
    items = []
    for at, one in enumerate(kept):
        if one.at_end or not len(one.x):
            continue
        if one.line:
            drawn = f'<line class="{_line_class(one)}" x1="0" x2="20" y1="7" y2="7"/>'
            items.append(
                '<li><svg width="20" height="14"'
                f' aria-hidden="true">{drawn}</svg>{escaped(one.name)}</li>'
            )
        else:
            drawn = (
                f'<g class="p{one.colour}"><path'
                f' d="{_shape(_MARKERS[at % len(_MARKERS)], 7, 7, 4.5)}"/></g>'
            )
            items.append(
                '<li><svg width="14" height="14"'
                f' aria-hidden="true">{drawn}</svg>{escaped(one.name)}</li>'
            )
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _names(kept: Sequence[Series], x: _Axis, y: _Axis) -> str:
    """Names of lines above their right ends, moved apart where they would cross."""
    ends = sorted((float(y.at(one.y[-1])), one.name) for one in kept if one.at_end and len(one.x))
    parts, last = [], -math.inf
    for height, name in ends:
        last = max(height - 5, last + _LINE_PIXELS, _TOP + 10)
        parts.append(
            f'<text class="end" x="{_WIDTH - _RIGHT - 4}" y="{number(last)}"'
            f' text-anchor="end">{escaped(name)}</text>'
        )
    return "".join(parts)
