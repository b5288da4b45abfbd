"""Whether fits of one machine agree: ops priced by several calibrations of it, side by side.

Judged are the rows that the first folder measured, and lookups in tables of 0.1 to 2 GB, which few
rows bear on. Of an op the spread is how far each fit lies from their geometric mean, |log ratio|;
beside it stands the same of what the folders measured of one case, the noise floor. A fit that
flips between two answers spreads far more than its rows do. Of one folder alone, its fit is
repeated without a fifth of its rows, five times.
"""

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import harness
from benchmarks.claims.ops import ROW_FILES
from benchmarks.claims.scores import finite, median
from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError, read_tables, write_table
from hybridperf.model import PerfModel, load_model
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.rows import FOLDS, usable_rows
from hybridperf.ops import GROUPS, columns, lookup_calls
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import Direction
from hybridperf.ops.table import parse_ops
from hybridperf.report import text

LARGE = " of 0.1 to 2 GB"  # tables that are looked up
_LARGE_BYTES = (1e8, 2e8, 5e8, 1e9, 2e9)
_WIDTHS, _LOOKUPS = (16, 64, 128), ((256, 1), (2048, 1), (512, 20))  # samples, lookups of each
_FLOAT_BYTES = 4
_MOST = 0.9  # quantile that is shown beside the median
_SHOWN: dict[str, Callable[[Any], Any]] = {
    "family": lambda row: row["family"], "ops": lambda row: row["ops"],
    "fits, median": lambda row: text.percent(row["fits_median"]),
    "fits, 90 %": lambda row: text.percent(row["fits_most"]),
    "largest factor": lambda row: f"{row['largest_factor']:.2f}",
    "cases": lambda row: row["cases"],
    "measured, median": lambda row: text.percent(row["cases_median"]),
    "measured, 90 %": lambda row: text.percent(row["cases_most"]),
}  # fmt: skip


def run(
    folders: Sequence[Path], out: str | os.PathLike, say: Callable[[str], None] = print
) -> pd.DataFrame:
    """Print and return a row for each family of ops; leaves `repeats.csv`, the ops, and
    `results.json` in `out`.

    Args:
        folders: of calibrations of one machine, as `hybridperf calibrate` makes them.
        out: a folder.
        say: takes what is printed.

    Raises:
        InputError: no folder, one without measured rows, or folders of different devices.
    """
    out = Path(out)
    if not folders:
        makes = "`hybridperf calibrate --folder FOLDER` makes one"
        raise InputError(f"expected folders of calibrations of one machine, got none; {makes}")
    models = [load_model(folder) for folder in folders]
    if strange := {one.device.id for one in models} - {models[0].device.id}:
        raise InputError(f"expected folders of {models[0].device.id}, got one of {min(strange)}")
    rows = [measured_rows(folder, one) for folder, one in zip(folders, models, strict=True)]
    how = f"{len(folders)} calibrations"
    if len(folders) == 1:
        how = f"the fit without a fifth of {len(rows[0])} rows, {FOLDS} times"
        say(f"fitting {FOLDS} times")
        models = [refitted(rows[0], models[0], fold) for fold in range(FOLDS)]
    ops = predictions(judged_ops(rows[0]), models)
    found = by_family(ops, measured(rows))
    say(f"{how} of {models[0].device.name}; from their geometric mean, median and 90 %\n")
    say(text.items_table(found.to_dict("records"), _SHOWN))
    write_table(ops, out / "repeats.csv")
    harness.write_results(out, "repeats", [_line(row) for row in found.to_dict("records")])
    say(f"\nrepeats.csv, each op by each fit, is in {out}")
    return found


def measured_rows(folder: Path, model: PerfModel) -> pd.DataFrame:
    """What a calibration measured and fitted on."""
    files = [folder / name for name in ROW_FILES if (folder / name).exists()]
    if not files:
        makes = "expected the folder that `hybridperf calibrate` made"
        raise InputError(f"{folder} holds no {' or '.join(ROW_FILES)}; {makes}")
    rows = usable_rows(read_tables(files), model.device)[0].reset_index(drop=True)
    return rows.assign(family=families(rows, model.device))


def families(rows: pd.DataFrame, device: DeviceSpec) -> np.ndarray:
    """The group of each op [R]; lookups in large tables are a family of their own."""
    found, nothing = np.full(len(rows), "", object), pd.Series(np.nan, rows.index)
    for part in parse_ops(rows, device).parts:
        found[part.rows] = np.take(GROUPS, part.group)
    numbers = [rows.get("vocab", nothing) * rows.get("cols", nothing)]  # gather, scatter
    numbers.append(rows.get("rows", nothing) * rows.get("dim", nothing))  # embedding bags
    large = np.logical_or(*(_FLOAT_BYTES * n.to_numpy(float) >= _LARGE_BYTES[0] for n in numbers))
    return found + np.where(large, LARGE, "")


def refitted(rows: pd.DataFrame, model: PerfModel, fold: int) -> PerfModel:
    """The fit without every fifth row."""
    kept = rows[np.arange(len(rows)) % FOLDS != fold].reset_index(drop=True)
    return fit(kept, model.device, drift=model.drift, provenance=model.provenance)[0]


def judged_ops(rows: pd.DataFrame) -> pd.DataFrame:
    """The ops of measured rows, and lookups in large tables [R]."""
    made = []
    directions: tuple[Direction, ...] = ("forward", "backward")
    sizes = itertools.product(_LARGE_BYTES, _WIDTHS, _LOOKUPS, directions)
    for table_bytes, dim, (batch, pooling), direction in sizes:
        vocabulary = math.ceil(table_bytes / (_FLOAT_BYTES * dim))
        call = lookup_calls([Table("large", vocabulary, dim, pooling)], batch, direction)
        made.append({name: _plain(value) for name, value in columns(call.op).items()})
        op = "gather" if direction == "forward" else "scatter_add"
        each = {"rows": batch * pooling, "cols": dim, "vocab": vocabulary}
        made.append({"op": op, "dtype": "fp32", **each})
    return pd.concat([rows.drop(columns="time_s"), pd.DataFrame(made)], ignore_index=True)


def _plain(value: object) -> object:
    return value if isinstance(value, str) else float(np.asarray(value))


def predictions(ops: pd.DataFrame, models: Sequence[PerfModel]) -> pd.DataFrame:
    """The ops that all models price, with `family` and seconds by each, `fit_0_s` and on."""
    seconds = {f"fit_{at}_s": one.predict_ops(ops)["predicted_s"] for at, one in enumerate(models)}
    priced = ops.assign(family=families(ops, models[0].device), **seconds)
    return priced[(priced[[*seconds]] > 0).all(axis=1)].reset_index(drop=True)


def measured(rows: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Cases that several folders measured, with `family` and seconds by each, `rows_0_s` and on."""
    every = pd.concat([one.assign(folder=at) for at, one in enumerate(rows)], ignore_index=True)
    by_case = every.pivot_table(
        index=["family", "key"], columns="folder", values="time_s", aggfunc="first"
    )
    by_case.columns = [f"rows_{at}_s" for at in by_case.columns]
    return by_case[by_case.notna().sum(axis=1) > 1].reset_index()


def spread(seconds: pd.DataFrame) -> np.ndarray:
    """|log(seconds / their geometric mean)| [R, K]; NaN where nothing is known."""
    logs = np.log(seconds.astype(float))
    return logs.sub(logs.mean(axis=1), axis=0).abs().to_numpy()


def by_family(ops: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """A row for each family, the one whose fits are farthest apart first.

    Columns `family, ops`; of the fits `fits_median, fits_most` (90 % lie below), and between any
    two of them `largest_factor`; of what was measured `cases, cases_median, cases_most`. Spreads
    are shares, e^|log ratio| - 1; NaN where nothing was measured twice.
    """
    found = []
    for family, some in ops.groupby("family"):
        fits, twice = some.filter(regex=r"^fit_\d+_s$"), cases[cases["family"] == family]
        found.append({
            "family": family, "ops": len(some), **_shares("fits", spread(fits)),
            "largest_factor": float((fits.max(axis=1) / fits.min(axis=1)).max()),
            "cases": len(twice),
            **_shares("cases", spread(twice.filter(regex=r"^rows_\d+_s$"))),
        })  # fmt: skip
    return pd.DataFrame(found).sort_values("fits_most", ascending=False, ignore_index=True)


def _shares(of: str, apart: np.ndarray) -> dict[str, float]:
    known = apart[~np.isnan(apart)]
    most = float(np.quantile(known, _MOST)) if len(known) else np.nan
    return {f"{of}_median": np.expm1(median(known)), f"{of}_most": np.expm1(most)}


def _line(row: Mapping[str, Any]) -> harness.ResultLine:
    name, measure = str(row["family"]), "median spread between fits"
    floor = {"measured": finite(row["cases_median"])}
    return harness.ResultLine(name, row["fits_median"], row["ops"], None, floor, measure)
