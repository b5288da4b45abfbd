"""A calibration as people read it: how far it errs, where to be careful, and pictures of both."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec
from hybridperf.io import write_table
from hybridperf.model.fit.learning_curve import learning_curve
from hybridperf.model.fit.this_machine import Calibration
from hybridperf.report import fit_plots, fits, plots
from hybridperf.report.text import percent, quantity, whole_percent

FEW_ROWS = 10  # of a family: its error is then known from a handful of cases
WIDE = 2.0  # factor either way of a 90 % interval
NOISY = 0.1  # between two measurements of one case
DRIFTED = 0.1  # of the machine's speed, while it was measured
SLOW, SLOW_SHARE = 0.25, 0.1  # slower than at its good times; of the rows, or calls, that were
BUSY_SHARE = 0.5  # of the cores that are not measured
_NAMED = 6  # families in a sentence
FILES = {
    "model.json, residual.npz": "the model",
    "report.json, held_out.csv": "how it errs on rows it has not seen",
    "ops.csv, host.csv, ops.machine.json": "what was measured, and on what",
}


def calibration_report(calibration: Calibration) -> str:
    """Errors on held-out rows by family, and a sentence for each thing to be careful about."""
    careful = "\n".join(f"- {sentence}" for sentence in careful_about(calibration))
    return f"{fits.fit_report(calibration.report)}\n\nWhere to be careful:\n{careful}"


def careful_about(calibration: Calibration) -> list[str]:
    """What a reader of predictions by this calibration should know, a sentence each."""
    provenance, rows, said = calibration.model.provenance, calibration.rows, [*calibration.notes]
    if not provenance["measured_completely"]:
        said.append("The time was up before every case was measured: the same call goes on.")
    fresh = rows[rows["op"] == "allocation"]
    if len(fresh):
        rate = float(f"{(fresh['bytes'] / fresh['time_s']).median():.2g}")
        said.append(
            "Times are of memory that was touched before: fresh memory comes at"
            f" {quantity(rate, 'B/s')} here, so a first call takes longer,"
            " as every call does whose temporaries are beyond 32 MiB (`allocation`)."
        )
    if calibration.model.device.kind == "cpu":
        cores = calibration.model.device.multiprocessors
        pinned = f"`taskset -c {provenance['cores']}`"
        one = "one core" if cores == 1 else f"{cores} cores"
        said.append(f"It is of {one} of this CPU: run what you compare on as many ({pinned}).")
    return [*_of_families(calibration), *_of_the_machine(calibration), *said]


def calibration_pictures(calibration: Calibration, *, curve: bool = True) -> dict[str, str]:
    """Draw a calibration into its folder.

    Args:
        calibration: what `hp.calibrate` returned.
        curve: also refit parts of the rows and draw what more of them bring, up to a minute.

    Returns:
        What each file shows, by its name.
    """
    model, report, folder = calibration.model, calibration.report, calibration.folder
    fit_plots.fit_plot(report, folder / "fit.png")
    fit_plots.error_shares_plot(report, folder / "errors.png")
    plots.roofline_plot(model, calibration.rows, folder / "roofline.png")
    (folder / "png").unlink(missing_ok=True)  # how `fit.png` was called by an earlier version
    drawn = {
        "fit.png": "predicted against measured, by family",
        "errors.png": "which families the errors come from",
        "roofline.png": "what each op reached of the machine's roofline",
    }
    if curve:
        draw_learning_curve(calibration.rows, model.device, folder)
        drawn["learning_curve.png"] = "what the measured rows brought, and more would bring"
    return drawn


def draw_learning_curve(
    rows: pd.DataFrame, device: DeviceSpec, folder: str | os.PathLike, prior: str | None = None
) -> pd.DataFrame:
    """Fit parts of the rows; leaves `learning_curve.csv` and `.png` in a folder."""
    found = learning_curve(rows, device, prior=prior)
    write_table(found, Path(folder) / "learning_curve.csv")
    plots.learning_curve_plot(found, Path(folder) / "learning_curve.png")
    return found


def _of_families(calibration: Calibration) -> list[str]:
    table, said = calibration.report.table, []
    worse = table[table["median_ape"] > table["roofline_ape"]]
    if len(worse):
        each = _named(
            f"{row.op} ({whole_percent(row.median_ape)}, the roofline"
            f" {whole_percent(row.roofline_ape)})"
            for row in worse.sort_values("rows", ascending=False).itertuples()
        )
        said.append(f"Off by more than the datasheet roofline on held-out rows: {each}.")
    if calibration.report.kept:
        kept = _named(calibration.report.kept)
        said.append(f"Kept at the datasheet roofline times a constant, which is nearer: {kept}.")
    few = table[table["rows"] < FEW_ROWS].sort_values("rows", kind="stable")
    if len(few):
        more = "time sizes of your own and fit them with these rows"
        if "--quick" in calibration.model.provenance["made_by"]:
            more = "the full setting measures more"
        each = _named(f"{row.op} ({row.rows})" for row in few.itertuples())
        said.append(f"Fewer than {FEW_ROWS} rows: {each}; {more}.")
    groups = calibration.model.groups.items()
    widths = {name: 1 + known.half_width for name, known in groups if known.half_width is not None}
    wide = sorted((name for name in widths if widths[name] >= WIDE), key=lambda name: -widths[name])
    if wide:
        each = _named(f"{name} (x{widths[name]:.1f})" for name in wide)
        said.append(f"90 % intervals of a factor of {WIDE:g} or more either way: {each}.")
    unknown = [name for name, known in groups if known.half_width is None]
    if unknown:
        said.append(f"Too few rows for any interval: {_named(unknown)}.")
    return said


def _of_the_machine(calibration: Calibration) -> list[str]:
    rows, said = calibration.rows, []
    noise = rows["noise"].median()
    if noise > NOISY:
        said.append(
            f"Noise: two measurements of one case differ by {percent(noise)} (median); no model"
            " can be closer than that here."
        )
    drift = calibration.model.drift
    if drift and np.expm1(max(drift) - min(drift)) > DRIFTED:
        changed = whole_percent(float(np.expm1(max(drift) - min(drift))))
        said.append(f"Drift: the machine's speed changed by {changed} while it was measured.")
    slow = (rows["slowness"] > SLOW).mean() if "slowness" in rows else 0.0
    if slow > SLOW_SHARE:
        said.append(
            f"Busy machine: {whole_percent(slow)} of the rows were measured while it was slower"
            f" than at its good times by {whole_percent(SLOW)} or more; a calm hour gives better"
            " ones."
        )
    beside = 1 - rows["alone"].mean() if "alone" in rows else 0.0
    if beside > SLOW_SHARE:
        said.append(
            f"Neighbours: beside {whole_percent(beside)} of the calls, which do not count, others"
            " used the core's second hardware thread."
        )
    load, measured = rows["load"].median(), rows["cores"].median()
    idle = max((os.cpu_count() or 1) - measured, 1)
    if load - measured > BUSY_SHARE * idle:
        said.append(
            f"Other programs ran: a load of {load:.1f} (median), of which measuring is"
            f" {measured:.0f}."
        )
    return said


def _named(families: Iterable[str]) -> str:
    """The first of them, and how many others."""
    every = list(families)
    more = f" and {len(every) - _NAMED} others" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
