"""What a page may hold, as plain values: the templates turn them into HTML and escape all text.

A `colour` is a number from 0 to `COLOURS - 1`, the same hue wherever it appears on a page, or
`OTHER`, a grey. `templates/blocks.html.j2` writes a block by the name of its class.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from hybridperf.report.text import seconds

COLOURS = 7
OTHER = COLOURS
MOST_ROWS = 500  # of a table in a page; the rest is counted

# control characters, lone surrogates, and what turns text around
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Notes:
    """A list of sentences, or the sentence that there are none."""

    items: Sequence[str]
    none: str = "None."


@dataclass(frozen=True)
class Facts:
    """Key figures as cards: (name, figure, remark)."""

    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Cell:
    """A table's cell. Its column is sorted by `value`; `share` (0 to 1) draws a bar."""

    text: str
    value: float | None = None
    share: float | None = None
    colour: int = 0


@dataclass(frozen=True)
class Table:
    """Rows of cells. The first `words` columns are left-aligned text, the others are numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    words: int = 1
    best: int | None = None  # the row to highlight
    sortable: bool = True


@dataclass(frozen=True, eq=False)
class Figure:
    """A Bokeh figure. `legend`: symbol, colour and name of what it shows."""

    model: Any
    caption: str
    legend: Sequence[tuple[str, int | str, str]] = ()


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    title: str
    blocks: Sequence["Block"]


Block = Text | Notes | Facts | Table | Figure | Folded


@dataclass(frozen=True)
class Section:
    """A heading and the blocks under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole page; `facts` are short ones in the footer."""

    title: str
    sections: Sequence[Section]
    lead: str = ""
    facts: Sequence[str] = ()


class Column(NamedTuple):
    """A column of a frame in a table; `bar`: a bar's colour, or the frame's column of colours."""

    name: str
    header: str
    write: Callable[[Any], str] = str
    bar: int | str | None = None


def frame_table(frame: pd.DataFrame, columns: Sequence[Column], **options: Any) -> Table:
    """A table of some columns of a frame; `options` are further fields of `Table`."""
    records = frame.to_dict("records")
    rows = [[_cell(row, column) for column in columns] for row in records]
    return Table([column.header for column in columns], rows, **options)


def pairs_table(title: str, pairs: Sequence[tuple[str, str]]) -> Table:
    """Names and what stands for each."""
    rows = [[Cell(name), Cell(str(value))] for name, value in pairs]
    return Table([title, ""], rows, words=2, sortable=False)


def _cell(row: dict[str, Any], column: Column) -> Cell:
    value = row[column.name]
    known = isinstance(value, int | float | np.number) and math.isfinite(value)
    number = float(value) if known else None
    text = "-" if value is None or value != value else column.write(value)
    if column.bar is None:
        return Cell(text, number)
    colour = row[column.bar] if isinstance(column.bar, str) else column.bar
    return Cell(text, number, number, int(colour))


def time_words(value: float | None) -> str:
    """Seconds in words; nothing takes `0 s`."""
    return "0 s" if value == 0 else seconds(value)


def count_words(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}"


def clean(text: Any) -> Any:
    """Text without the characters that no page may hold; HTML of our own as it is."""
    plain = isinstance(text, str) and not isinstance(text, Markup)
    return _UNSAFE.sub("\ufffd", text) if plain else text
