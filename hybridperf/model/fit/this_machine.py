"""Calibrates this machine: the calibration package's programs measure it, then it is fitted."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import hybridperf
from hybridperf import io
from hybridperf.collectives.fit import CollectiveReport, fit_collectives
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import DeviceSpec, load_device, this_cpu, this_system
from hybridperf.io import progress
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import FitReport, fit
from hybridperf.model.fit.programs import run_program, usable_core

LIBRARIES = ("jax", "torch")
PASSES = {"quick": 2, "full": 3}  # over all cases; the two lowest times of a case tell its noise
# of measuring ops: the whole full setting stays below 20 minutes
BUDGET_S: Mapping[str, float | None] = {"quick": None, "full": 1080.0}


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A fitted model of this machine and the rows it was fitted on."""

    model: PerfModel
    report: FitReport  # how it errs on rows that it has not seen
    rows: pd.DataFrame  # measured ops, a row per case; see `calibration/README.md`
    folder: Path  # where all of them are


@dataclasses.dataclass(frozen=True)
class MachineRows:
    """What was measured of this machine, and where: a model that has yet to be fitted."""

    folder: Path
    device: DeviceSpec
    rows: pd.DataFrame
    drift: list[float]  # see `hybridperf.model.fit.device.fit`
    provenance: Mapping[str, Any]

    def fit(self) -> Calibration:
        """Fit the rows; leaves model and report in the folder."""
        progress.say(f"fitting {self.device.name} to {len(self.rows)} rows, up to a minute")
        model, report = fit(self.rows, self.device, drift=self.drift, provenance=self.provenance)
        with io.replacing_in(self.folder) as new:
            model.save(new)
            report.save(new)
        return Calibration(model, report, self.rows, self.folder)


def calibrate(
    folder: str | os.PathLike, setting: str = "quick", *, cores: str | None = None,
    budget_s: float | None = None, only: Sequence[str] = (), device: DeviceSpec | None = None,
    library: str = "jax", seed: int = 0,
) -> Calibration:  # fmt: skip
    """Measure this machine and fit a model of it, with a bar that shows how far it is.

        calibration = hp.calibrate("my-machine")          # two minutes; "full": twenty
        print(hp.calibration_report(calibration))         # how far to trust it
        hp.predict(calibration.model, hp.from_jax(step, state, batch))

    Stopped, it goes on where it was when it is called again; a full one goes on where a quick one
    ended. The folder is the model: `hp.load_model(folder)` loads it, here or elsewhere.

    Args:
        folder: where everything is written.
        setting: `quick` (two to three minutes) or `full` (twenty).
        cores: to measure on, such as "0" or "0-3"; default: one that this process may use.
        budget_s: seconds of measuring ops, and at most as many of calls and memory; default: the
            setting's.
        only: names of families of ops; default: all.
        device: facts of the device under JAX' default backend; default: this CPU, or the preset
            that JAX' device name leads to.
        library: whose ops are measured, `jax` or `torch`; PyTorch's on its GPU where it has one.
        seed: of the sizes that are measured; rows of another one test a fit.

    Raises:
        InputError: an unknown setting or library, a folder that cannot be made, or a program that
            stopped.
    """
    return measure(
        folder, setting=setting, cores=cores, budget_s=budget_s, only=only, device=device,
        library=library, seed=seed,
    ).fit()  # fmt: skip


def measure(
    folder: str | os.PathLike, *, setting: str, cores: str | None = None,
    budget_s: float | None = None, passes: int | None = None, only: Sequence[str] = (),
    device: DeviceSpec | None = None, library: str = "jax", seed: int = 0,
) -> MachineRows:  # fmt: skip
    """Measure this machine's ops and host, and leave the rows in a folder.

    Resumes what an earlier call measured. The tables `ops.csv` and `host.csv` name the device
    (`here`: this CPU) and the number of cores, for `hybridperf fit`.

    Args:
        folder: where everything is written.
        setting: `quick` or `full`.
        cores: to pin to, as the measuring programs read them; default: one that is usable.
        budget_s: seconds of measuring ops, and at most as many of calls and memory; default: that
            of the setting in `BUDGET_S`, which leaves calls and memory all that they need.
        passes: over all cases; default: those of the setting in `PASSES`.
        only: names of families of ops; default: all.
        device: facts of the device under JAX' default backend; default: this CPU, or the preset
            that JAX' device name leads to.
        library: whose ops are measured, `jax` or `torch`; PyTorch's on its GPU where it has one.
        seed: of the sizes that are measured; rows of another one test a fit.

    Raises:
        InputError: an unknown setting or library, a folder that cannot be made, or a program that
            stopped.
    """
    if setting not in PASSES:
        raise io.unknown("setting", setting, PASSES, "quick takes a minute or two, full twenty")
    _refuse_library(library)
    passes, given_s = passes or PASSES[setting], budget_s
    budget_s = BUDGET_S[setting] if budget_s is None else budget_s
    folder, cores = Path(folder), cores or usable_core()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{error.strerror}; choose another --out"
        raise io.InputError(f"cannot make the folder {folder}: {why}") from error
    options = ["--cores", cores, "--passes", str(passes), "--library", library]
    ops = ["--part", "ops", "--out", str(folder / "ops.jsonl"), "--setting", setting, *options]
    ops += ["--budget-s", str(budget_s)] if budget_s is not None else []
    ops += ["--only", ",".join(only)] if only else []
    ops += ["--seed", str(seed)] if seed else []
    complete = run_program("hybridperf_calibration.measure", ops, "measuring ops")
    facts = io.read_json(folder / "ops.machine.json", "machine", 1)
    tables = [folder / "ops.csv"]
    if library == "jax" or facts["backend"] == "cpu":  # a GPU's ops leave PyTorch's host out
        host = ["--part", "host", "--out", str(folder / "host.jsonl"), *options]
        host += ["--budget-s", str(given_s)] if given_s is not None else []
        complete &= run_program(
            "hybridperf_calibration.measure", host, "measuring calls and memory"
        )
        tables.append(folder / "host.csv")
    drift = facts.pop("drift")
    if device is None or device.id == "here":  # of this CPU, only the measured cores count
        device = _device_of(facts)
    for table in tables:  # another device's fit leaves out rows that name this one
        io.write_table(
            io.read_table(table).assign(
                device=device.id, cores=int(facts["cores"]), library=library
            ),
            table,
        )
    rows = io.read_tables(tables)
    said = f"--{setting}" + (f" --library {library}" if library != "jax" else "")
    said += f" --seed {seed}" if seed else ""
    provenance = _provenance(said, facts, complete, cores=cores, library=library)
    return MachineRows(folder, device, rows, drift, provenance)


def calibrate_collectives(
    folder: str | os.PathLike, *, processes: int, setting: str, budget_s: float | None = None,
    cores_each: int | None = None, library: str = "jax",
) -> tuple[CollectiveModel, CollectiveReport]:  # fmt: skip
    """Measure collectives between processes of this machine and fit them; resumes.

    Args:
        folder: where rows, model and report are written.
        processes: ranks, at least 2.
        setting: `quick` or `full`.
        budget_s: seconds of measuring; default: that of the setting.
        cores_each: cores that each process is pinned to; default: two where there are enough, else
            none. Sharded steps that run on one core per process need collectives measured on one.
        library: that joins the processes, `jax` or, on CPUs, `torch`.

    Raises:
        InputError: fewer than 2 processes, or a program that stopped.
    """
    if processes < 2:
        why = f"got {processes}: a collective needs two ranks"
        raise io.InputError(f"expected --processes of 2 or more, {why}")
    _refuse_library(library)
    options = ["--out", str(folder), "--processes", str(processes), "--setting", setting]
    options += ["--library", library]
    options += ["--budget-s", str(budget_s)] if budget_s is not None else []
    options += ["--cores-each", str(cores_each)] if cores_each is not None else []
    complete = run_program("hybridperf_calibration.measure_collectives", options)
    rows = io.read_table(Path(folder) / "collectives.csv")
    facts = io.read_json(Path(folder) / "collectives.machine.json", "machine", 1)
    said = f"--collectives --{setting}" + (f" --library {library}" if library != "jax" else "")
    provenance = _provenance(said, facts, complete, library=library)
    progress.say(f"fitting collectives of this machine to {len(rows)} rows")
    model, report = fit_collectives(rows, this_system(), provenance=provenance)
    with io.replacing_in(folder) as new:
        model.save(new)
        report.save(new)
    return model, report


def _refuse_library(library: str) -> None:
    if library not in LIBRARIES:
        raise io.unknown("library", library, LIBRARIES, f"known are {', '.join(LIBRARIES)}")
    if library == "torch" and importlib.util.find_spec("torch") is None:
        raise io.InputError("PyTorch is not installed here: `pip install torch` (extra `torch`)")


def _provenance(
    options: str, facts: Mapping[str, Any], complete: bool, **more: Any
) -> dict[str, Any]:
    machine = {key: value for key, value in facts.items() if not key.startswith("schema")}
    made_by = f"hybridperf {hybridperf.__version__} calibrate {options}"
    return {"made_by": made_by, "machine": machine, **more, "measured_completely": complete}


def _device_of(facts: Mapping[str, Any]) -> DeviceSpec:
    """The device that was measured: this CPU, or the preset its name leads to."""
    if facts["backend"] == "cpu":
        return this_cpu(int(facts["cores"]))
    kind = str(facts["device_kind"])
    for name in (kind, kind.removeprefix("NVIDIA "), kind.removeprefix("AMD ")):
        try:
            return load_device(name)
        except io.InputError:
            continue
    raise io.InputError(
        f"no facts are known of the device {kind!r}; describe it in a .toml file and give it as"
        " --device"
    )
