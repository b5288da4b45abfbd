"""This machine, calibrated: measured by the calibration package's programs, and fitted to what they
measured.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import hybridperf
from hybridperf.collectives.fit import CollectiveReport, fit_collectives
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import DeviceSpec, load_device, this_cpu, this_system
from hybridperf.io import InputError, read_json, read_table, read_tables, unknown, write_table
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import FitReport, fit
from hybridperf.model.fit.programs import run_program, usable_core

PASSES = {"quick": 2, "full": 3}  # over all cases; the two lowest times of a case tell its noise
BUDGET_S: Mapping[str, float | None] = {
    "quick": None,
    "full": 1080.0,
}  # of measuring ops: the whole full setting stays below 20 minutes


def to_stderr(line: str) -> None:
    """Progress, beside what the measuring programs say of theirs."""
    print(f"hybridperf: {line}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A fitted model of this machine and the rows it was fitted on."""

    model: PerfModel
    report: FitReport
    rows: pd.DataFrame


def calibrate(
    folder: str | os.PathLike,
    *,
    setting: str,
    cores: str | None = None,
    budget_s: float | None = None,
    passes: int | None = None,
    only: Sequence[str] = (),
    device: DeviceSpec | None = None,
    say: Callable[[str], None] = to_stderr,
) -> Calibration:
    """Measure this machine, fit it, and leave model, report and rows in `folder`. Resumes what an
    earlier call measured.

    `setting` is `quick` or `full`, whose `passes` and seconds of measuring ops (`budget_s`) are in
    `PASSES` and `BUDGET_S`; `only` names families of ops. `device` describes the device under JAX'
    default backend; None: this CPU, or the preset that JAX' device name leads to. The tables
    `ops.csv` and `host.csv` name the device (`here`: this CPU) and the number of cores, for
    `hybridperf fit`.
    """
    if setting not in PASSES:
        raise unknown("setting", setting, PASSES, "quick takes a minute or two, full twenty")
    passes, budget_s = (
        passes or PASSES[setting],
        BUDGET_S[setting] if budget_s is None else budget_s,
    )
    folder, cores = Path(folder), cores or usable_core()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {folder}: {error.strerror}; choose another --out"
        ) from error
    options = ["--cores", cores, "--passes", str(passes)]
    ops = ["--part", "ops", "--out", str(folder / "ops.jsonl"), "--setting", setting, *options]
    ops += ["--budget-s", str(budget_s)] if budget_s is not None else []
    ops += ["--only", ",".join(only)] if only else []
    complete = run_program("hybridperf_calibration.measure", ops)
    run_program(
        "hybridperf_calibration.measure",
        ["--part", "host", "--out", str(folder / "host.jsonl"), *options],
    )
    facts = read_json(folder / "ops.machine.json", "machine", 1)
    drift = facts.pop("drift")
    if (
        device is None or device.id == "here"
    ):  # of this CPU the cores that were measured count, not all there are
        device = _device_of(facts)
    tables = [folder / "ops.csv", folder / "host.csv"]
    for table in tables:  # another device's fit leaves rows out that say they are not its own
        write_table(read_table(table).assign(device=device.id, cores=int(facts["cores"])), table)
    rows = read_tables(tables)
    provenance = {
        "made_by": f"hybridperf {hybridperf.__version__} calibrate --{setting}",
        "machine": {key: value for key, value in facts.items() if not key.startswith("schema")},
        "cores": cores,
        "measured_completely": complete,
    }
    say(f"fitting {device.name} to {len(rows)} rows")
    model, report = fit(rows, device, drift=drift, provenance=provenance)
    model.save(folder)
    report.save(folder)
    return Calibration(model, report, rows)


def calibrate_collectives(
    folder: str | os.PathLike,
    *,
    processes: int,
    setting: str,
    budget_s: float | None = None,
    cores_each: int | None = None,
    say: Callable[[str], None] = to_stderr,
) -> tuple[CollectiveModel, CollectiveReport]:
    """Measure collectives between processes of this machine, fit them, and leave rows, model and
    report in `folder`. Resumes.

    `cores_each`: how many cores each process is pinned to; None: two where there are enough, else
    none. Sharded steps that run on one core per process meet collectives measured on one.
    """
    if processes < 2:
        raise InputError(
            f"expected --processes of 2 or more, got {processes}: a collective needs two ranks"
        )
    options = ["--out", str(folder), "--processes", str(processes), "--setting", setting]
    options += ["--budget-s", str(budget_s)] if budget_s is not None else []
    options += ["--cores-each", str(cores_each)] if cores_each is not None else []
    complete = run_program("hybridperf_calibration.measure_collectives", options)
    rows = read_table(Path(folder) / "collectives.csv")
    facts = read_json(Path(folder) / "collectives.machine.json", "machine", 1)
    provenance = {
        "made_by": f"hybridperf {hybridperf.__version__} calibrate --collectives --{setting}",
        "machine": {key: value for key, value in facts.items() if not key.startswith("schema")},
        "measured_completely": complete,
    }
    say(f"fitting collectives of this machine to {len(rows)} rows")
    model, report = fit_collectives(rows, this_system(), provenance=provenance)
    model.save(folder)
    report.save(folder)
    return model, report


def _device_of(facts: Mapping[str, Any]) -> DeviceSpec:
    """The device that was measured: this CPU, or the preset its name leads to."""
    if facts["backend"] == "cpu":
        return this_cpu(int(facts["cores"]))
    kind = str(facts["device_kind"])
    for name in (kind, kind.removeprefix("NVIDIA "), kind.removeprefix("AMD ")):
        try:
            return load_device(name)
        except InputError:
            continue
    raise InputError(
        f"no facts are known of the device {kind!r}; describe it in a .toml file and give it as"
        " --device"
    )
