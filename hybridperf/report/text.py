"""Tables and numbers as people read them: ms and GB/s, three digits, columns aligned."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import read_table

TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
J_PER_WH = 3600.0
_SECONDS, _UNIT = re.compile("(?<!_per)_s$|^seconds$"), re.compile("_bytes_per_s$|(?<!_per)_s$")
_SHARES = ("share", "error", "covered", "inside", "bias", "mape", "median", "gain",
           "blocking", "removed", "goodput", "width",
           "utilisation", "elastic", "rigid", "noise")  # fmt: skip
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds(value: float | None) -> str:
    """Seconds in three digits and a fitting unit: `12.3 ms`."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0 s"
    scale, unit = next(((s, u) for s, u in TIMES if abs(value) >= s), TIMES[-1])
    return f"{value:,.0f} s" if abs(value) >= 1e3 else f"{value / scale:.3g} {unit}"


def quantity(value: float | None, unit: str) -> str:
    """`1.56 TB/s`: decimal prefixes."""
    if value is None or not math.isfinite(value):
        return "-"
    scale, prefix = next(((s, p) for s, p in PREFIXES if abs(value) >= s), PREFIXES[-1])
    return f"{value / scale:.4g} {prefix}{unit}"


def energy(joules: float | None) -> str:
    """Joules in watt hours, in three digits: `2.1 kWh`."""
    return quantity(None if joules is None else joules / J_PER_WH, "Wh")


def amount(value: float) -> str:
    """`8.03 billion`: a count of things without a unit."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= scale:
            return f"{value / scale:.4g} {word}"
    return f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A share as a percentage of one decimal: `12.3 %`."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def within(low_s: float | None, high_s: float | None) -> str:
    """` (90 %: 1.2 ms to 1.4 ms)`; nothing where no interval is known."""
    return "" if low_s is None else f" (90 %: {seconds(low_s)} to {seconds(high_s)})"


def span_words(words: Callable[[float], str], low: float, high: float) -> str:
    """Both ends of an interval, each in its own words."""
    return f"{words(low)} to {words(high)}"


def step_words(seconds: float) -> str:
    """Four digits: the best layouts lie near each other."""
    scale, unit = (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")
    return f"{seconds / scale:.4g} {unit}" if seconds else "0 s"


def dollars(value: float) -> str:
    """Money in four digits, since ten ranks must differ; - where it is not known."""
    if pd.isna(value):
        return "-"
    return f"{value:,.0f} USD" if value >= 1000 else f"{value:.4g} USD"


def whole_percent(share: float) -> str:
    """A share as a whole percentage: `12 %`."""
    return f"{100 * share:.0f} %"


def short(text: str, length: int = 90) -> str:
    """Text cut to a length, with dots where it was."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def frame_table(frame: pd.DataFrame) -> str:
    """A table of a frame: units stand in its columns' names, shares are called so or errors."""
    return table([_UNIT.sub("", name).replace("_", " ") for name in map(str, frame)],
                 [[short(cell(str(name), value)) for name, value in row.items()]
                  for row in frame.to_dict("records")])  # fmt: skip


def cell(name: str, value: Any) -> str:
    """A value as its column's name says: seconds, bytes, a share, a plain number or word."""
    if value is None or value != value:
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int | np.integer) else str(value)
    if name.endswith("bytes_per_s"):
        return quantity(value, "B/s")
    if name.endswith("bytes"):
        return quantity(value, "B")
    if _SECONDS.search(name):
        return seconds(value)
    if name.endswith(_SHARES):
        return percent(value)
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def items_table(items: Iterable[Any], columns: Mapping[str, Callable[[Any], Any]]) -> str:
    """A table with a row for each item; `columns`: by header, what is written of an item."""
    return table(list(columns), [[cell(item) for cell in columns.values()] for item in items])


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Plain aligned text; the first column to the left, the others to the right."""
    cells = [list(map(str, headers)), *[list(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = []
    for first, *others in cells:
        numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


SHOWN = 5


def print_table(path: Path, title: str) -> None:
    """Print a title and the rows of a file as `print_rows` does."""
    print(title)
    print_rows(read_table(path))


def print_rows(rows: pd.DataFrame) -> None:
    """Print the first rows by columns in which they differ, and what all rows share."""
    if rows.empty:
        return
    shown = rows.head(SHOWN)
    alike = [name for name in shown if len(shown) > 1 and shown[name].nunique(dropna=False) == 1]
    differ = shown.drop(columns=alike)
    cells = [[cell(*one) for one in row.items()] for row in differ.to_dict("records")]
    if cells and cells[0]:
        print(table(list(differ), cells))
    known = [name for name in alike if shown[name].notna().all() and shown[name].iloc[0] != ""]
    same = ", ".join(f"{name} {cell(name, shown[name].iloc[0])}" for name in known)
    lines = [f"all of these: {same}"] if same else []
    lines += [f"and {len(rows) - SHOWN:,} more"] if len(rows) > SHOWN else []
    print("\n".join(lines))
