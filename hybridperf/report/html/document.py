"""What a page may hold, whatever it is about: values only, no HTML.

All text is plain text from anywhere; what writes the page escapes it. A `colour` is a number from 0
to `COLOURS - 1`, the same hue wherever it appears on a page, or `OTHER`, a grey. Seconds inside;
words such as `12.3 ms` are the caller's (`report/text.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

COLOURS = 7
OTHER = COLOURS
FIRST_ROWS, MOST_ROWS = (
    15,
    500,
)  # of a table: seen before the reader asks for all; in the page at all, the rest is counted


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Notes:
    """Sentences, one below the other."""

    items: Sequence[str]
    none: str = "None."  # what stands there where there are none


@dataclass(frozen=True)
class Facts:
    """Figures that come first: (what, figure, remark)."""

    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Cell:
    """A table's cell. `value` is what its column is sorted by; `share` (0 to 1) draws a bar behind
    the text.
    """

    text: str
    value: float | None = None
    share: float | None = None
    colour: int = 0


Rows = list[list[Cell | str]]


@dataclass(frozen=True)
class Table:
    """Rows of cells or of plain text. The first `words` columns stand to the left and may break,
    the others are numbers.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    words: int = 1
    first: int = FIRST_ROWS
    most: int = MOST_ROWS
    best: int | None = None  # a row to stand out
    sortable: bool = True


@dataclass(frozen=True)
class Bar:
    """One bar of segments put end to end: (seconds or another amount, index into the legend, words
    for it).
    """

    label: str
    segments: Sequence[tuple[float, int, str]]
    text: str  # at its end


@dataclass(frozen=True)
class Bars:
    """Bars from a common zero. `legend`: name and colour of each kind of segment."""

    bars: Sequence[Bar]
    legend: Sequence[tuple[str, int]]
    caption: str = ""
    most: int = 64  # bars shown


@dataclass(frozen=True)
class Range:
    """A value with its interval, where one is known, and other values to compare: (name, value,
    words).
    """

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    marks: Sequence[tuple[str, float, str]] = ()


@dataclass(frozen=True)
class Ranges:
    """Intervals one below the other on one axis from zero: whether they overlap is seen."""

    ranges: Sequence[Range]
    axis: Callable[[float], str]  # words for a number on the axis
    caption: str = ""


@dataclass(frozen=True)
class Series:
    """Points or a line of a plot, N of them. `share` [N] (0 to 1) sets the area of points; `labels`
    [N] are shown on pointing at them.
    """

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    colour: int = 0
    line: bool = False
    dashed: bool = False
    labels: Sequence[str] = ()
    share: Sequence[float] | np.ndarray | None = None
    mark: bool = False  # a ring around each point: what the page speaks of
    at_end: bool = False  # the name stands at the line's end, not in the legend


@dataclass(frozen=True)
class Plot:
    """Points and lines over two axes. What is not finite, or not above zero on a logarithmic axis,
    is left out and counted.
    """

    series: Sequence[Series]
    x: str  # what the axis says
    y: str
    x_words: Callable[[float], str]  # for a number on the axis
    y_words: Callable[[float], str]
    x_log: bool = False
    y_log: bool = False
    caption: str = ""


@dataclass(frozen=True, eq=False)
class Track:
    """Slices on one line of a timeline, N of them; where some overlap the line becomes several."""

    name: str
    start_s: np.ndarray  # [N]
    end_s: np.ndarray  # [N]
    label: np.ndarray  # int [N] index into the timeline's labels
    kind: np.ndarray  # int [N] index into its kinds
    marked: np.ndarray  # bool [N] on the critical path

    @property
    def busy_s(self) -> float:
        """Seconds of all its slices."""
        return float(np.sum(self.end_s - self.start_s))


@dataclass(frozen=True, eq=False)
class Timeline:
    """Tracks on one clock, to zoom into. What is too small to be seen is merged where there is a
    lot, and the page says so.
    """

    tracks: Sequence[Track]
    labels: Sequence[str]
    kinds: Sequence[tuple[str, int]]  # name and colour
    marked: str = "critical path"  # what `Track.marked` means; empty: nothing is marked
    more: str = ""  # where every slice is, for the sentence on what was merged
    most_slices: int = 20_000
    most_tracks: int = 96


Block = Text | Notes | Facts | Table | Bars | Ranges | Plot | Timeline


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block | Folded]


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    sections: Sequence[Section]
    lead: str = ""  # one sentence below the title
    facts: Sequence[str] = field(default=())  # short ones at the foot, beside who made the page


def frame_table(
    frame: pd.DataFrame,
    columns: Mapping[str, tuple[str, Callable[[Any], str]]],
    *,
    bars: Mapping[str, int] | None = None,
    **kwargs: Any,
) -> Table:
    """A table of a frame's columns: by name, what the header says and how a value is written;
    `bars`: columns of shares, with a colour.
    """
    bars = bars or {}
    rows = [
        [
            _cell(value, write, bars.get(name))
            for value, (name, (_, write)) in zip(row, columns.items(), strict=True)
        ]
        for row in frame[list(columns)].itertuples(index=False)
    ]
    return Table([header for header, _ in columns.values()], rows, **kwargs)


def _cell(value: Any, write: Callable[[Any], str], bar: int | None) -> Cell:
    number = (
        float(value)
        if isinstance(value, int | float | np.number) and math.isfinite(value)
        else None
    )
    return Cell(write(value), number, None if bar is None else number, bar or 0)
