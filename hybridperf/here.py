"""This machine: start the calibration package's programs on it and take back rows and measured steps.

They are programs and not calls because they pin themselves to cores and set up memory before JAX starts, and because what is measured
must not share a process with what predicts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import hybridperf
from hybridperf.calibrate import FitReport, fit
from hybridperf.collectives.fit import CollectiveReport, fit_collectives
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import DeviceSpec, load_device, this_cpu, this_system
from hybridperf.importers.jax_program import load_program
from hybridperf.io import InputError, read_json, read_table, read_tables, replacing, unknown, write_table
from hybridperf.model import PerfModel
from hybridperf.workload import Workload

PASSES = {"quick": 2, "full": 3}  # over all cases; the two lowest times of a case tell its noise
BUDGET_S: Mapping[str, float | None] = {"quick": None, "full": 1080.0}  # of measuring ops: the whole full setting stays below 20 minutes

STEPS_SCHEMA_VERSION = 2  # of measured steps

_BUDGET_RAN_OUT = 4  # exit statuses of the measuring programs
_SENTENCE_SAID = 2


def to_stderr(line: str) -> None:
    """Progress, beside what the measuring programs say of theirs."""
    print(f"hybridperf: {line}", file=sys.stderr, flush=True)


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
    time_s: float  # a usual call (the median) of the round that was disturbed least
    least_s: float  # over all repeats, as is the median
    median_s: float
    repeats: int
    noise: float  # how far a round's median lies above it, a share: the median over the rounds
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
    passes: int | None = None,
    only: Sequence[str] = (),
    device: DeviceSpec | None = None,
    say: Callable[[str], None] = to_stderr,
) -> Calibration:
    """Measure this machine, fit it, and leave model, report and rows in `folder`. Resumes what an earlier call measured.

    `setting` is `quick` or `full`, whose `passes` and seconds of measuring ops (`budget_s`) are in `PASSES` and `BUDGET_S`; `only` names
    families of ops. `device` describes the device under JAX' default backend; None: this CPU, or the preset that JAX' device name leads to.
    The tables `ops.csv` and `host.csv` name the device (`here`: this CPU) and the number of cores, for `hybridperf fit`.
    """
    if setting not in PASSES:
        raise unknown("setting", setting, PASSES, "quick takes a minute or two, full twenty")
    passes, budget_s = passes or PASSES[setting], BUDGET_S[setting] if budget_s is None else budget_s
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
    facts = read_json(folder / "ops.machine.json", "machine", 1)
    drift = facts.pop("drift")
    if device is None or device.id == "here":  # of this CPU the cores that were measured count, not all there are
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
    """Measure collectives between processes of this machine, fit them, and leave rows, model and report in `folder`. Resumes.

    `cores_each`: how many cores each process is pinned to; None: two where there are enough, else none. Sharded steps that run on one core
    per process meet collectives measured on one.
    """
    if processes < 2:
        raise InputError(f"expected --processes of 2 or more, got {processes}: a collective needs two ranks")
    options = ["--out", str(folder), "--processes", str(processes), "--setting", setting]
    options += ["--budget-s", str(budget_s)] if budget_s is not None else []
    options += ["--cores-each", str(cores_each)] if cores_each is not None else []
    complete = _run("hybridperf_calibration.measure_collectives", options)
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


def measure_steps(
    folder: str | os.PathLike, spec: Sequence[Mapping[str, Any]], *, cores: str | None = None, profile: bool = False, rounds: int = 4
) -> list[MeasuredStep]:
    """Run real training steps on this machine, in turns; each comes with the program that was run, profiled if asked to."""
    folder = Path(folder)
    with replacing(folder / "steps.spec.json") as handle:
        json.dump(list(spec), handle, indent=1)
    out = folder / "steps.json"
    _run(
        "hybridperf_calibration.workloads.run",
        [
            *(str(folder / "steps.spec.json"), "--out", str(out), "--programs", str(folder / "programs")),
            *("--cores", cores or usable_core(), "--rounds", str(rounds)),
            *(["--profile"] if profile else []),
        ],
    )
    return [
        MeasuredStep(
            name=step["name"],
            time_s=step["time_s"],
            least_s=step["least_s"],
            median_s=step["median_s"],
            repeats=step["repeats"],
            noise=step["noise"],
            cpu_share=step["cpu_share"],
            workload=load_program(folder / "programs" / step["program"]),
            config=step["config"],
            op_s=step["op_s"],
        )
        for step in read_json(out, "steps", STEPS_SCHEMA_VERSION)["steps"]
    ]


def measure_sharded(
    folder: str | os.PathLike, tasks: str | os.PathLike, *, processes: int = 2, passes: int = 2, profile: bool = True
) -> None:
    """Run sharded recommendation models, a file of tasks, on as many cores; leaves `steps.csv` and the programs in `folder`. Resumes.

    `hybridperf_calibration.workloads.sharded_tasks` says what a task is.
    """
    options = ["--tasks", str(tasks), "--out", str(folder), "--processes", str(processes), "--passes", str(passes)]
    _run("hybridperf_calibration.workloads.sharded_dlrm", [*options, *([] if profile else ["--no-profile"])])


def default_backend() -> str:
    """The kind of device that JAX uses here: `cpu`, `gpu` or `tpu`. Asked in a process of its own: JAX takes most of a GPU as it starts."""
    asked = subprocess.run([sys.executable, "-c", "import jax; print(jax.default_backend())"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise InputError(f"JAX does not start here: {(asked.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return asked.stdout.split()[-1]


def _run(module: str, arguments: Sequence[str]) -> bool:
    """Run one of the calibration package's programs; whether it did everything it was asked to."""
    status = _status_of([sys.executable, "-m", module, *arguments])
    if status == _SENTENCE_SAID:
        raise AlreadySaid(f"{module} refused its input")
    if status not in (0, _BUDGET_RAN_OUT):
        raise InputError(f"{module} was stopped (status {status}); what it measured is kept, run the same command again to go on")
    return status == 0


def _status_of(command: Sequence[str]) -> int:
    """Run a program whose output goes where our standard error goes, a notebook's included."""
    # a notebook's kernel asks for colours and would get bars that move, hundreds of lines of them
    unwanted = () if sys.stderr.isatty() else ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError):  # not a file: what the program says is passed on line by line
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
            try:
                for line in process.stdout or ():
                    print(line, end="", file=sys.stderr, flush=True)
            except BaseException:  # interrupted: as subprocess.run does
                process.kill()
                raise
        return process.returncode
    return subprocess.run(command, stdout=sys.stderr, env=environment).returncode


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
