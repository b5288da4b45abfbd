"""Bars and intervals as HTML boxes: they take the width there is, and their words stay as large as
the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridperf.report.html.document import Bar, Bars, Range, Ranges
from hybridperf.report.html.ticks import linear_ticks
from hybridperf.report.html.words import escaped, number, whole_figures

_ROOM = 1.04  # beyond the largest value of an axis


def legend_html(entries: Sequence[tuple[str, int]]) -> str:
    """Names of colours; those of one colour together."""
    names: dict[int, list[str]] = {}
    for name, colour in entries:
        names.setdefault(colour, []).append(name)
    items = "".join(
        f'<li><span class="swatch k{colour}"></span>{escaped(", ".join(some))}</li>'
        for colour, some in names.items()
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def bars_html(block: Bars) -> str:
    """Bars from a common zero, each with its words."""
    most = max((_length(bar) for bar in block.bars), default=0.0) or 1.0
    used = {kind for bar in block.bars for amount, kind, _ in bar.segments if amount > 0}
    rows = "".join(_bar(bar, most, block.legend) for bar in block.bars[: block.most])
    left = len(block.bars) - block.most
    more = f'<p class="quiet">... {left:,} more</p>' if left > 0 else ""
    return (
        f"<figure>{_caption(block.caption)}{legend_html([entry for at, entry in enumerate(block.legend) if at in used])}"
        f'<div class="bars">{rows}</div>{more}</figure>'
    )


def ranges_html(block: Ranges) -> str:
    """Intervals below each other on one axis from zero."""
    ends = [
        end
        for one in block.ranges
        for end in (one.value, one.low, one.high, *(value for _, value, _ in one.marks))
    ]
    top = (
        _ROOM * max((end for end in ends if end is not None and math.isfinite(end)), default=0.0)
        or 1.0
    )
    rows = "".join(_range(one, top) for one in block.ranges)
    ticks = "".join(
        "<span"
        f' style="left:{number(100 * at / top)}%">{escaped(block.axis(at) if at else "0")}</span>'
        for at in linear_ticks(0.0, top, 7)
    )
    return (
        f'<figure>{_caption(block.caption)}<div class="ranges">{rows}<div class="label"></div><div'
        f' class="axis" aria-hidden="true">{ticks}</div></div></figure>'
    )


def _caption(text: str) -> str:
    return f"<figcaption>{escaped(text)}</figcaption>" if text else ""


def _length(bar: Bar) -> float:
    return sum(amount for amount, _, _ in bar.segments if math.isfinite(amount) and amount > 0)


def _bar(bar: Bar, most: float, legend: Sequence[tuple[str, int]]) -> str:
    parts = "".join(
        f'<span class="k{legend[kind][1]}" style="width:{number(100 * amount / most)}%"'
        f' title="{escaped(legend[kind][0])}: {escaped(words)}"></span>'
        for amount, kind, words in bar.segments
        if math.isfinite(amount) and amount > 0
    )
    said = escaped(
        f"{bar.label}: "
        + "; ".join(f"{legend[kind][0]} {words}" for _, kind, words in bar.segments)
    )
    return (
        f'<div class="label">{escaped(bar.label)}</div><div class="track" role="img"'
        f' aria-label="{said}">{parts}</div><div class="value">{whole_figures(bar.text)}</div>'
    )


def _range(one: Range, top: float) -> str:
    def place(value: float) -> str:
        return number(min(max(100 * value / top, 0.0), 100.0))

    pieces = ""
    if (
        one.low is not None
        and one.high is not None
        and math.isfinite(one.low)
        and math.isfinite(one.high)
    ):
        pieces += (
            '<span class="interval"'
            f' style="left:{place(one.low)}%;width:{number(100 * (one.high - one.low) / top)}%"></span>'
        )
    known = [(name, value, words) for name, value, words in one.marks if math.isfinite(value)]
    pieces += "".join(
        f'<span class="other" style="left:{place(value)}%" title="{escaped(name)}:'
        f' {escaped(words)}"></span>'
        for name, value, words in known
    )
    pieces += f'<span class="point" style="left:{place(one.value)}%"></span>'
    said = escaped(
        f"{one.label}: " + "; ".join([one.text, *(f"{name} {words}" for name, _, words in known)])
    )
    marks = "".join(
        f'<span class="mark"><span class="tick"></span>{escaped(name)} {escaped(words)}</span>'
        for name, _, words in known
    )
    return (
        f'<div class="label">{escaped(one.label)}</div><div class="strip">'
        f'<div class="line" role="img" aria-label="{said}">{pieces}</div>'
        f'<div class="said">{whole_figures(one.text)}{marks}</div></div>'
    )
