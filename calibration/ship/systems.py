"""Makes the shipped prior over measured systems and a calibration of each, from its rows.

They lie in OUT/collectives_prior and OUT/SYSTEM. Some systems have only twenty rows a collective;
systems of fewer than `LEAST_ROWS` rows are left to the prior.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from hybridperf.collectives.fit import (
    DEFAULT_PRIOR,
    FAMILY,
    fit_collectives,
)
from hybridperf.learning.prior.shipped import Prior, load_prior
from hybridperf_calibration.published.collectives import read_few_shot, read_measured
from hybridperf_calibration.published.ops import provenance
from hybridperf_calibration.ship.link_prior import train_prior, with_reference_width

LEAST_ROWS = 40


def run(data: Path, out: Path, *, say: Callable[[str], None] = print) -> None:
    """Train the prior, where an earlier run has not, then calibrate each system."""
    measured, few = read_measured(data), read_few_shot(data)
    prior = _prior(measured, few, out / DEFAULT_PRIOR, say)
    for system, rows in {**few, **measured}.items():
        if len(rows) < LEAST_ROWS:
            say(f"{system}: {len(rows)} rows, left to the prior")
            continue
        start_s = time.perf_counter()
        model, report = fit_collectives(rows, system, prior, _provenance(rows), keep_rows=False)
        model.save(out / system)
        say(f"{system}: {report.rows} rows, {time.perf_counter() - start_s:.0f} s")


def _prior(
    measured: dict[str, pd.DataFrame], few: dict[str, pd.DataFrame], folder: Path,
    say: Callable[[str], None],
) -> Prior:  # fmt: skip
    if (folder / "prior.json").exists():
        say("prior of collectives: kept")
        return load_prior(folder)
    start_s = time.perf_counter()
    rows = pd.concat(measured.values())
    known = with_reference_width(train_prior(measured), few)
    counts = {name: len(of) for name, of in measured.items()}
    about = {"measured": counts, "kin_width_from": sorted(few)}
    Prior({FAMILY: known}, {**_provenance(rows), **about}).save(folder)
    spent_s = time.perf_counter() - start_s
    say(f"prior of collectives: {len(rows)} rows of {len(measured)} systems, {spent_s:.0f} s")
    return load_prior(folder)


def _provenance(rows: pd.DataFrame) -> dict[str, object]:
    return {**provenance(sorted(map(str, rows["dataset"].unique()))), "rows": len(rows)}
