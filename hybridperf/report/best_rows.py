"""The first rows of a sweep's best points, for a look in the terminal; the file has them all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from hybridperf.io import read_table
from hybridperf.report import text

SHOWN = 5
_WIDE = 250  # characters, where nothing wraps the lines


def print_table(path: Path, title: str) -> None:
    """A title, what all rows share, and the first rows of a file by the columns in which they
    differ.
    """
    print(title)
    rows = read_table(path)
    if rows.empty:
        return
    shown = rows.head(SHOWN)
    alike = [
        name
        for name in shown
        if len(shown) > 1 and shown[name].isna().all() | (shown[name] == shown[name].iloc[0]).all()
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown.columns.drop(alike):
        table.add_column(
            name, justify="left" if shown[name].dtype == object else "right", no_wrap=True
        )
    for row in shown.drop(columns=alike).to_dict("records"):
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False).print(
        table
    )
    same = ", ".join(
        f"{name} {_cell(name, shown[name].iloc[0])}" for name in alike if shown[name].notna().all()
    )
    print(
        "\n".join(
            [
                *([f"all of these: {same}"] if same else []),
                *([f"and {len(rows) - SHOWN:,} more"] if len(rows) > SHOWN else []),
            ]
        )
    )


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return (
            f"{value:,}"
            if isinstance(value, int | np.integer) and not isinstance(value, bool)
            else str(value)
        )
    if pd.isna(value):
        return "-"
    if name.endswith("bytes_per_s"):
        return text.quantity(value, "B/s")
    return (
        text.seconds(value)
        if name.endswith("_s") and not name.endswith("per_s")
        else f"{value:.6g}"
    )
