"""Cells of the usual kinds: words for people, the number to sort by."""

from __future__ import annotations

import math

from hybridperf.report.html.document import Cell
from hybridperf.report.text import percent, quantity, seconds


def time_words(value: float | None) -> str:
    """Seconds in words; nothing takes `0 s`."""
    return "0 s" if value == 0 else seconds(value)


def time_cell(value: float) -> Cell:
    """Seconds."""
    return Cell(time_words(value), _known(value))


def share_cell(share: float, colour: int | None = None) -> Cell:
    """A share of one, with a bar of this colour if there is one."""
    return Cell(
        percent(share), _known(share), None if colour is None else _known(share), colour or 0
    )


def count_cell(count: int) -> Cell:
    """How many."""
    return Cell(f"{count:,}", count)


def rate_cell(value: float, unit: str) -> Cell:
    """Bytes, flops, or so many of them per second."""
    return Cell(quantity(value, unit), _known(value))


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
