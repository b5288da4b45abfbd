"""The prior over all measured systems, and a calibration of each from its rows or from the twenty a collective that we have of it.

    OUT/collectives_prior, OUT/SYSTEM

Systems of fewer than `LEAST_ROWS` rows are left to the prior.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from hybridperf.collectives.fit import DEFAULT_PRIOR, FAMILY, fit_collectives, train_prior
from hybridperf.io import InputError
from hybridperf.prior.shipped import Prior, load_prior
from hybridperf.provenance import origin
from hybridperf.validate.collective_sources import SOURCES, read_few_shot, read_measured

LEAST_ROWS = 40


def run(data: Path, out: Path, *, say: Callable[[str], None] = print) -> None:
    """Train the prior, where an earlier run has not, then calibrate each system."""
    measured, few = read_measured(data), read_few_shot(data)
    prior = _prior(measured, out / DEFAULT_PRIOR, say)
    for system, rows in {**few, **measured}.items():
        if len(rows) < LEAST_ROWS:
            say(f"{system}: {len(rows)} rows, left to the prior")
            continue
        start_s = time.perf_counter()
        model, report = fit_collectives(rows, system, prior, _provenance(rows), keep_rows=False)
        model.save(out / system)
        say(f"{system}: {report.rows} rows, {time.perf_counter() - start_s:.0f} s")


def _prior(measured: dict[str, pd.DataFrame], folder: Path, say: Callable[[str], None]) -> Prior:
    if (folder / "prior.json").exists():
        say("prior of collectives: kept")
        return load_prior(folder)
    if not measured:
        raise InputError("no row of any system; nothing to train a prior on")
    start_s = time.perf_counter()
    rows = pd.concat(measured.values())
    Prior({FAMILY: train_prior(measured)}, {**_provenance(rows), "measured": {name: len(of) for name, of in measured.items()}}).save(folder)
    say(f"prior of collectives: {len(rows)} rows of {len(measured)} systems, {time.perf_counter() - start_s:.0f} s")
    return load_prior(folder)


def _provenance(rows: pd.DataFrame) -> dict[str, object]:
    return {
        **origin(None),
        "made_by": "hybridperf calibrations",
        "sources": {name: SOURCES[str(name)] for name in sorted(rows["dataset"].unique())},
        "rows": len(rows),
    }
