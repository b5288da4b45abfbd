"""The first rows of a sweep's best points, for a look in the terminal; the file has them all."""

from pathlib import Path

import pandas as pd

from hybridperf.io import read_table
from hybridperf.report import text

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
    cells = [[text.cell(*one) for one in row.items()] for row in differ.to_dict("records")]
    if cells and cells[0]:
        print(text.table(list(differ), cells))
    known = [name for name in alike if shown[name].notna().all() and shown[name].iloc[0] != ""]
    same = ", ".join(f"{name} {text.cell(name, shown[name].iloc[0])}" for name in known)
    lines = [f"all of these: {same}"] if same else []
    lines += [f"and {len(rows) - SHOWN:,} more"] if len(rows) > SHOWN else []
    print("\n".join(lines))
