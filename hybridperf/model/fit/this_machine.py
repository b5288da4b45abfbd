"""Calibrates this machine: the calibration package's programs measure it, then it is fitted."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import hybridperf
from hybridperf import io
from hybridperf.collectives.fit import CollectiveReport, fit_collectives
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import (
    DeviceSpec,
    device_id,
    load_device,
    this_cpu,
    this_gpu,
    this_node,
    this_system,
)
from hybridperf.io import progress
from hybridperf.model import PerfModel
from hybridperf.model.fit import own_gpu
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
    notes: tuple[str, ...] = ()  # of a GPU: what was measured besides ops, and what is a default


@dataclasses.dataclass(frozen=True)
class MachineRows:
    """What was measured of this machine, and where: a model that has yet to be fitted."""

    folder: Path
    device: DeviceSpec
    rows: pd.DataFrame
    drift: list[float]  # see `hybridperf.model.fit.device.fit`
    provenance: Mapping[str, Any]
    parts: own_gpu.Parts | None = None  # of a GPU: what was measured besides ops

    def fit(self) -> Calibration:
        """Fit the rows; leaves model and report in the folder."""
        progress.say(f"fitting {self.device.name} to {len(self.rows)} rows, up to a minute")
        about = {**self.provenance, **(self.parts.provenance() if self.parts else {})}
        model, report = fit(self.rows, self.device, drift=self.drift, provenance=about)
        if self.parts is not None:
            model = dataclasses.replace(model, host=self.parts.host)
            if self.parts.collectives is not None:
                model = model.with_collectives(self.parts.collectives[0])
        with io.replacing_in(self.folder) as new:
            model.save(new)
            report.save(new)
            if self.parts is not None:
                self.parts.save(new)
        notes = self.parts.notes if self.parts else ()
        return Calibration(model, report, self.rows, self.folder, notes)


def calibrate(
    folder: str | os.PathLike, setting: str = "quick", *, cores: str | None = None,
    budget_s: float | None = None, only: Sequence[str] = (),
    device: DeviceSpec | str | None = None, library: str | None = None, seed: int = 0,
) -> Calibration:  # fmt: skip
    """Measure this machine and fit a model of it, with a bar that shows how far it is.

        calibration = hp.calibrate("my-machine")                # four minutes; "full": twenty
        calibration = hp.calibrate("my-gpu", device="cuda")      # its GPU in place of its CPU
        print(hp.calibration_report(calibration))                # how far to trust it
        hp.predict(calibration.model, hp.from_jax(step, state, batch))

    Stopped, it goes on where it was when it is called again; a full one goes on where a quick one
    ended. The folder is the model: `hp.load_model(folder)` loads it, here or elsewhere.

    Args:
        folder: where everything is written.
        setting: `quick` (four minutes) or `full` (twenty).
        cores: to measure on, such as "0" or "0-3"; default: one that this process may use.
        budget_s: seconds of measuring ops, and at most as many of calls and memory; default: the
            setting's.
        only: names of families of ops; default: all.
        device: what to measure, see `measure`; default: this CPU, or the accelerator that the
            library works on by default.
        library: whose ops are measured, `jax` or `torch`; default: see `measure`.
        seed: of the sizes that are measured; rows of another one test a fit.

    Raises:
        InputError: an unknown setting, device or library, no such device, a folder that cannot be
            made, or a program that stopped.
    """
    return measure(
        folder, setting=setting, cores=cores, budget_s=budget_s, only=only, device=device,
        library=library, seed=seed,
    ).fit()  # fmt: skip


def cores_for(folder: str | os.PathLike) -> str:
    """The cores that a folder's ops were measured on before it was stopped; else the least busy."""
    try:
        with (Path(folder) / "ops.jsonl").open(encoding="utf-8") as lines:
            begun = json.loads(lines.readline())["fingerprint"]["setting cores"]
    except (OSError, ValueError, KeyError, TypeError):  # a damaged store is the program's to refuse
        return usable_core()
    return str(begun)


def measure(
    folder: str | os.PathLike, *, setting: str, cores: str | None = None,
    budget_s: float | None = None, passes: int | None = None, only: Sequence[str] = (),
    device: DeviceSpec | str | None = None, library: str | None = None, seed: int = 0,
) -> MachineRows:  # fmt: skip
    """Measure this machine's ops and host, of a GPU also its copies, memory and collectives, and
    leave the rows in a folder.

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
        device: what to measure: `cpu`, `cuda`, `rocm` or `tpu`; or facts, or a name, of the device
            under the library's default backend; default: this CPU, or the preset that the driver's
            name leads to.
        library: whose ops are measured, `jax` or `torch`; default: that which sees the device,
            PyTorch first, and `jax` on a CPU.
        seed: of the sizes that are measured; rows of another one test a fit.

    Raises:
        InputError: an unknown setting, device or library, no such device, a folder that cannot be
            made, or a program that stopped.
    """
    if setting not in PASSES:
        raise io.unknown("setting", setting, PASSES, "quick takes a minute or two, full twenty")
    kind, spec = _kind_and_facts(device)
    if library is not None:
        _refuse_library(library)
    given_s, passes = budget_s, passes or PASSES[setting]
    if kind not in ("", "cpu"):
        library = str(own_gpu.seen(kind, library)["library"])
        budget_s = own_gpu.BUDGETS_S[setting]["ops"] if budget_s is None else budget_s
    library = library or "jax"
    budget_s = BUDGET_S[setting] if budget_s is None else budget_s
    folder, cores = Path(folder), cores or cores_for(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{error.strerror}; choose another --out"
        raise io.InputError(f"cannot make the folder {folder}: {why}") from error
    options = ["--cores", cores, "--passes", str(passes), "--library", library]
    options += ["--device", kind] if kind else []
    ops = ["--part", "ops", "--out", str(folder / "ops.jsonl"), "--setting", setting, *options]
    ops += ["--budget-s", str(budget_s)] if budget_s is not None else []
    ops += ["--only", ",".join(only)] if only else []
    ops += ["--seed", str(seed)] if seed else []
    complete = run_program("hybridperf_calibration.measure", ops, "measuring ops")
    facts = io.read_json(folder / "ops.machine.json", "machine", 1)
    if facts["backend"] == "cpu":
        host = ["--part", "host", "--out", str(folder / "host.jsonl"), *options]
        host += ["--budget-s", str(given_s)] if given_s is not None else []
        complete &= run_program(
            "hybridperf_calibration.measure", host, "measuring calls and memory"
        )
    elif "accelerator" in facts:
        complete &= own_gpu.measure_parts(
            folder, facts["accelerator"], setting=setting, passes=passes
        )
    words = (f"--{setting}", f"--device {kind}" if kind else "",
             f"--library {library}" if library != "jax" else "",
             f"--seed {seed}" if seed else "")  # fmt: skip
    about = {"cores": cores, "library": library, "measured_completely": complete}
    return read(folder, spec, made_by=f"calibrate {' '.join(filter(None, words))}", about=about)


def read(
    folder: str | os.PathLike, device: DeviceSpec | None = None, *, made_by: str = "calibrate",
    about: Mapping[str, Any] | None = None,
) -> MachineRows:  # fmt: skip
    """What an earlier `measure` left in a folder, on whatever machine that was.

    Args:
        folder: with `ops.csv` and `ops.machine.json`, and what else was measured.
        device: what was measured; default: as the machine's facts tell.
        made_by: the command.
        about: what else to record.

    Raises:
        InputError: no such files, or a device that nobody can describe.
    """
    folder = Path(folder)
    facts = io.read_json(folder / "ops.machine.json", "machine", 1)
    library = "torch" if "torch" in facts else "jax"
    drift, tables, parts = facts.pop("drift", []), [folder / "ops.csv"], None
    if device is None or device.id == "here":  # of this CPU, only the measured cores count
        device = _device_of(facts, folder)
    if facts["backend"] == "cpu":
        tables.append(folder / "host.csv")
    elif "accelerator" in facts:
        parts = own_gpu.read_parts(folder, device, facts["accelerator"])
        device = parts.device
    for table in tables:  # another device's fit leaves out rows that name this one
        io.write_table(
            io.read_table(table).assign(
                device=device.id, cores=int(facts["cores"]), library=library
            ),
            table,
        )
    machine = {key: value for key, value in facts.items() if not key.startswith("schema")}
    made = {
        "made_by": f"hybridperf {hybridperf.__version__} {made_by}", "machine": machine,
        "library": library, "measured_completely": True, **(about or {}),
    }  # fmt: skip
    return MachineRows(folder, device, io.read_tables(tables), drift, made, parts)


def calibrate_collectives(
    folder: str | os.PathLike, *, processes: int, setting: str, budget_s: float | None = None,
    cores_each: int | None = None, library: str | None = None,
    device: DeviceSpec | str | None = None,
) -> tuple[CollectiveModel, CollectiveReport]:  # fmt: skip
    """Measure collectives between processes of this machine and fit them; resumes.

    Args:
        folder: where rows, model and report are written.
        processes: ranks, at least 2.
        setting: `quick` or `full`.
        budget_s: seconds of measuring; default: that of the setting.
        cores_each: cores that each process is pinned to; default: two where there are enough, else
            none. Sharded steps that run on one core per process need collectives measured on one.
        library: that joins the processes, `jax` (the default on CPUs) or `torch`.
        device: `cuda` or `rocm`: a GPU to each process; else a CPU.

    Raises:
        InputError: fewer than 2 processes, or a program that stopped.
    """
    if processes < 2:
        why = f"got {processes}: a collective needs two ranks"
        raise io.InputError(f"expected --processes of 2 or more, {why}")
    if library is not None:
        _refuse_library(library)
    (kind, _), system, count = _kind_and_facts(device), this_system(), processes
    if kind not in ("", "cpu"):
        seen = own_gpu.seen(kind, library)
        library, count = str(seen["library"]), int(seen["count"])
        system = this_node(this_gpu(seen), count, str(seen.get("topology", "")))
    if processes > count:
        why = f"got {processes}, and {library} sees {count}"
        raise io.InputError(f"expected no more --processes than devices, {why}")
    library = library or "jax"
    options = ["--out", str(folder), "--processes", str(processes), "--setting", setting]
    options += ["--library", library, *(["--device", kind] if kind else [])]
    options += ["--budget-s", str(budget_s)] if budget_s is not None else []
    options += ["--cores-each", str(cores_each)] if cores_each is not None else []
    complete = run_program("hybridperf_calibration.measure_collectives", options)
    rows = io.read_table(Path(folder) / "collectives.csv")
    facts = io.read_json(Path(folder) / "collectives.machine.json", "machine", 1)
    said = f"--collectives --{setting}" + (f" --library {library}" if library != "jax" else "")
    machine = {key: value for key, value in facts.items() if not key.startswith("schema")}
    provenance = {
        "made_by": f"hybridperf {hybridperf.__version__} calibrate {said}", "machine": machine,
        "library": library, "measured_completely": complete,
    }  # fmt: skip
    progress.say(f"fitting collectives of this machine to {len(rows)} rows")
    model, report = fit_collectives(rows, system, provenance=provenance)
    with io.replacing_in(folder) as new:
        model.save(new)
        report.save(new)
    return model, report


def _refuse_library(library: str) -> None:
    if library not in LIBRARIES:
        raise io.unknown("library", library, LIBRARIES, f"known are {', '.join(LIBRARIES)}")
    if library == "torch" and importlib.util.find_spec("torch") is None:
        raise io.InputError("PyTorch is not installed here: `pip install torch` (extra `torch`)")


def _kind_and_facts(device: DeviceSpec | str | None) -> tuple[str, DeviceSpec | None]:
    """(`cpu`, `cuda`, `rocm`, `tpu` or "" where none is asked for, the device if it was named)."""
    if device is None or isinstance(device, DeviceSpec):
        return "", device
    if device in own_gpu.KINDS:
        return device, None
    if not (device.endswith(".toml") or device == "here" or device_id(device)):
        raise own_gpu.unknown_kind(device)
    return "", load_device(device)


def _device_of(facts: Mapping[str, Any], folder: Path) -> DeviceSpec:
    """What was measured: this CPU, the preset that its name leads to, or what its driver tells."""
    if facts["backend"] == "cpu":
        return this_cpu(int(facts["cores"]))
    told = facts.get("accelerator", {"name": facts["device_kind"]})
    return this_gpu({**told, "copy_bytes_per_s": own_gpu.copy_bytes_per_s(folder)})
