"""What a page may hold, as plain values: the templates turn them into HTML and escape all text.

A `colour` is a number from 0 to `COLOURS - 1`, the same hue wherever it appears on a page, or
`OTHER`, a grey. `templates/blocks.html.j2` writes a block by the name of its class.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from hybridperf.report.text import cell

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


def frame_table(
    frame: pd.DataFrame, columns: Mapping[str, str], bars: Mapping[str, int | str] | None = None,
    write: Mapping[str, Callable[[Any], str]] | None = None, **options: Any,
) -> Table:  # fmt: skip
    """A table of some columns of a frame.

    Args:
        frame: a row each.
        columns: headers by name.
        bars: by name, a bar's colour, or the frame's column of colours.
        write: by name, what writes a value; else what its name says (`report.text.cell`).
        options: further fields of `Table`.
    """
    write, bars = write or {}, bars or {}

    def made(row: dict[str, Any], name: str) -> Cell:
        value, bar = row[name], bars.get(name)
        known = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        number = float(value) if known and math.isfinite(value) else None
        unknown = value is None or value != value or name not in write
        text = cell(name, value) if unknown else write[name](value)
        if bar is None:
            return Cell(text, number)
        return Cell(text, number, number, int(row[bar] if isinstance(bar, str) else bar))

    rows = [[made(row, name) for name in columns] for row in frame.to_dict("records")]
    return Table(list(columns.values()), rows, **options)


def pairs_table(title: str, pairs: Sequence[tuple[str, str]]) -> Table:
    """Names and what stands for each."""
    rows = [[Cell(name), Cell(str(value))] for name, value in pairs]
    return Table([title, ""], rows, words=2, sortable=False)


def clean(text: Any) -> Any:
    """Text without the characters that no page may hold; HTML of our own as it is."""
    plain = isinstance(text, str) and not isinstance(text, Markup)
    return _UNSAFE.sub("\ufffd", text) if plain else text
