"""This machine: start the calibration package's programs on it and take back rows and measured steps.

They are programs and not calls because they pin themselves to cores and set up memory before JAX starts, and because what is measured
must not share a process with what predicts.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import hybridperf
from hybridperf.calibrate import FitReport, fit
from hybridperf.hardware import DeviceSpec, load_device, this_cpu
from hybridperf.importers.jax_program import load_program
from hybridperf.io import InputError, read_json, read_table, replacing
from hybridperf.model import PerfModel
from hybridperf.workload import Workload

_BUDGET_RAN_OUT = 4  # exit statuses of the measuring programs
_SENTENCE_SAID = 2


class AlreadySaid(InputError):
    """An error whose sentence the program that met it has printed itself."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A fitted model of this machine and the rows it was fitted on."""

    model: PerfModel
    report: FitReport
    rows: pd.DataFrame


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """A training step that ran here: seconds, and the program that ran."""

    name: str
    time_s: float  # minimum over all repeats
    median_s: float
    repeats: int
    noise: float  # how far the minimum of a round lies above it, a share: the median over the rounds
    cpu_share: float  # processor seconds per second while it was measured: on a CPU, far below 1 if others had the core
    workload: Workload
    config: Mapping[str, Any]
    op_s: Mapping[str, float] | None = None  # seconds by instruction of the program, where it was profiled


def usable_core() -> str:
    """A core this process may run on, as text for the measuring programs."""
    return str(min(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else "0"


def calibrate(
    folder: str | os.PathLike,
    *,
    setting: str,
    cores: str | None = None,
    budget_s: float | None = None,
    passes: int = 2,
    only: Sequence[str] = (),
    device: DeviceSpec | None = None,
) -> Calibration:
    """Measure this machine, fit it, and leave model and rows in `folder`. Resumes what an earlier call measured.

    `device` describes the device under JAX' default backend; None: this CPU, or the preset that JAX' device name leads to.
    """
    folder, cores = Path(folder), cores or usable_core()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    options = ["--cores", cores, "--passes", str(passes)]
    ops = ["--part", "ops", "--out", str(folder / "ops.jsonl"), "--setting", setting, *options]
    ops += ["--budget-s", str(budget_s)] if budget_s is not None else []
    ops += ["--only", ",".join(only)] if only else []
    complete = _run("hybridperf_calibration.measure", ops)
    _run("hybridperf_calibration.measure", ["--part", "host", "--out", str(folder / "host.jsonl"), *options])
    rows = pd.concat([read_table(folder / "ops.csv"), read_table(folder / "host.csv")], ignore_index=True)
    facts = read_json(folder / "ops.machine.json", "machine", 1)
    device = device or _device_of(facts)
    provenance = {
        "made_by": f"hybridperf {hybridperf.__version__} calibrate --{setting}",
        "date": datetime.date.today().isoformat(),
        "machine": {key: value for key, value in facts.items() if not key.startswith("schema")},
        "cores": cores,
        "rows_sha256": hashlib.sha256(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes()).hexdigest()[:16],
        "measured_completely": complete,
    }
    model, report = fit(rows, device, provenance=provenance)
    model.save(folder)
    return Calibration(model, report, rows)


def measure_steps(
    folder: str | os.PathLike, spec: Sequence[Mapping[str, Any]], *, cores: str | None = None, profile: bool = False
) -> list[MeasuredStep]:
    """Run real training steps on this machine; each comes with the program that was run, profiled if asked to."""
    folder = Path(folder)
    with replacing(folder / "steps.spec.json") as handle:
        json.dump(list(spec), handle, indent=1)
    out = folder / "steps.json"
    _run(
        "hybridperf_calibration.workloads.run",
        [str(folder / "steps.spec.json"), "--out", str(out), "--programs", str(folder / "programs"), "--cores", cores or usable_core()]
        + (["--profile"] if profile else []),
    )
    return [
        MeasuredStep(
            name=step["name"],
            time_s=step["time_s"],
            median_s=step["median_s"],
            repeats=step["repeats"],
            noise=step["noise"],
            cpu_share=step["cpu_share"],
            workload=load_program(folder / "programs" / step["program"]),
            config=step["config"],
            op_s=step["op_s"],
        )
        for step in read_json(out, "steps", 1)["steps"]
    ]


def default_backend() -> str:
    """The kind of device that JAX uses here: `cpu`, `gpu` or `tpu`. Asked in a process of its own: JAX takes most of a GPU as it starts."""
    asked = subprocess.run([sys.executable, "-c", "import jax; print(jax.default_backend())"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise InputError(f"JAX does not start here: {(asked.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return asked.stdout.split()[-1]


def _run(module: str, arguments: Sequence[str]) -> bool:
    """Run one of the calibration package's programs; whether it did everything it was asked to."""
    status = subprocess.run([sys.executable, "-m", module, *arguments], stdout=sys.stderr).returncode
    if status == _SENTENCE_SAID:
        raise AlreadySaid(f"{module} refused its input")
    if status not in (0, _BUDGET_RAN_OUT):
        raise InputError(f"{module} was stopped (status {status}); what it measured is kept, run the same command again to go on")
    return status == 0


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
    raise InputError(f"no facts are known of the device {kind!r}; describe it in a .toml file and give it as --device")
