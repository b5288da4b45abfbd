"""Published measurements of collectives: all rows of some systems, twenty each of others."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, read_table

FOLDER = "collectives"
MEASURED, FEW_SHOT = "collectives_dev.csv.gz", "fewshot_calibration.csv.gz"


def read_measured(data: Path) -> dict[str, pd.DataFrame]:
    """All rows that may be fitted and judged on, by system."""
    return _by_system(data / FOLDER / MEASURED)


def read_few_shot(data: Path) -> dict[str, pd.DataFrame]:
    """Some twenty rows a collective of systems whose other rows are kept aside, by system."""
    return _by_system(data / FOLDER / FEW_SHOT)


def _by_system(path: Path) -> dict[str, pd.DataFrame]:
    if not path.is_file():
        raise InputError(
            f"expected measured collectives at {path}, found nothing; give the folder that holds"
            f" {FOLDER}/ as --data"
        )
    frame = read_table(path)
    parts = frame.groupby("system", sort=True)
    return {str(system): rows.reset_index(drop=True) for system, rows in parts}
