"""A GPU of one's own, or another accelerator: which library sees it, what is measured of it besides
ops, and what becomes of each table in the model's folder.

    ops.csv          fitted as the ops of any GPU
    launches.csv     `host.json`: what its host needs to issue work
    copies.csv       `system.toml`: the link between host and device
    memory.csv       the device's memory, less what a context takes
    collectives.csv  `collectives.json`, where there are several

A folder that lacks a table is fitted all the same; `Parts.notes` say what is a default then.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf import io
from hybridperf.collectives.fit import CollectiveReport, fit_collectives
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import (
    DeviceSpec,
    Host,
    Overhead,
    Spread,
    SystemSpec,
    device_id,
    names_people_use,
    this_node,
)
from hybridperf.model.adapted_steps import launch_s
from hybridperf.model.fit.programs import AlreadyReported, run_program

KINDS = ("cpu", "cuda", "rocm", "tpu")
NAMES = {"torch": "PyTorch", "jax": "JAX"}
SYSTEM_FILE = "system.toml"
# seconds of each part by setting: with start and fit three minutes, and twenty
BUDGETS_S: Mapping[str, Mapping[str, float]] = {
    "quick": {"ops": 90.0, "launches": 15.0, "copies": 20.0, "collectives": 40.0},
    "full": {"ops": 720.0, "launches": 45.0, "copies": 75.0, "collectives": 240.0},
}
_INSTALL = {
    "cuda": "install PyTorch for CUDA (pytorch.org/get-started) or jax[cuda12], and check"
    " `nvidia-smi`",
    "rocm": "install PyTorch for ROCm (pytorch.org/get-started) or JAX for it, and check"
    " `rocm-smi`",
    "tpu": "install jax[tpu]",
}
_PINNED = "pinned"


def seen(kind: str, library: str | None = None) -> dict[str, Any]:
    """Facts of the accelerator of that kind, by the first library that sees it.

    Args:
        kind: `cuda`, `rocm` or `tpu`.
        library: `torch` or `jax`, the only one that is asked; None: both, in this order.

    Raises:
        InputError: none sees one.
    """
    asked = ("jax",) if kind == "tpu" and library is None else (library,) if library else NAMES
    found = []
    for name in asked:
        facts, why = _asked(name)
        if facts.get("kind") == kind:
            return facts
        if facts:
            why = facts.get("why", f"sees {facts['kind']}: {facts['name']}")
        found.append(" ".join(filter(None, (NAMES[name], facts.get("version"), why))))
    those = " or ".join(NAMES[name] for name in asked)
    what = {"cuda": "an NVIDIA GPU", "rocm": "an AMD GPU", "tpu": "a TPU"}[kind]
    raise io.InputError(
        f"expected {what} that {those} sees for --device {kind}, found none ({'; '.join(found)});"
        f" {_INSTALL[kind]}"
    )


def unknown_kind(word: str) -> io.InputError:
    """The error for a `--device` that is neither a kind nor a device or file that we know."""
    known = (*KINDS, *names_people_use("devices"))
    where = f"give {', '.join(KINDS)}, a device of `hybridperf devices` or a .toml file"
    return io.unknown("device", word, known, where)


def _asked(library: str) -> tuple[dict[str, Any], str]:
    """(facts by a library's process of its own, why there are none)."""
    if importlib.util.find_spec(library) is None:
        return {}, "is not installed"
    program = "hybridperf_calibration.microbench.accelerator"
    command = [sys.executable, "-m", program, "--library", library]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return {}, f"does not start: {last}"
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def measure_parts(folder: Path, facts: Mapping[str, Any], *, setting: str, passes: int) -> bool:
    """Measure what a GPU is besides its ops into tables of the folder; whether all was measured.

    A part that cannot be measured says why and leaves the others alone.
    """
    library, kind, count = str(facts["library"]), str(facts["kind"]), int(facts["count"])
    parts = ["copies", "memory", *(["collectives"] if count > 1 else [])]
    if library == "torch":  # launches of JAX' programs are XLA's own; nobody could try them here
        parts.insert(0, "launches")
    complete = True
    for part in parts:
        options = ["--library", library, "--device", kind, "--setting", setting]
        if (budget_s := BUDGETS_S[setting].get(part)) is not None:
            options += ["--budget-s", str(budget_s)]
        program, out = "measure", folder / f"{part}.jsonl"
        own = ["--part", part, "--passes", str(passes)]
        if part == "collectives":
            program, out, own = "measure_collectives", folder, ["--processes", str(count)]
        try:
            complete &= run_program(
                f"hybridperf_calibration.{program}", [*options, *own, "--out", str(out)],
                f"measuring {part}",
            )  # fmt: skip
        except AlreadyReported:
            complete = False
    return complete


@dataclasses.dataclass(frozen=True)
class Parts:
    """What tables of a folder say of a GPU besides its ops."""

    device: DeviceSpec
    system: SystemSpec
    host: Host | None
    # direction, memory, latency_s, bytes_per_s, rows, median_ape (of rows left out one by one)
    copies: pd.DataFrame
    collectives: tuple[CollectiveModel, CollectiveReport] | None
    notes: tuple[str, ...]  # what was measured, and what is a default

    def save(self, folder: str | Path) -> None:
        """Write `system.toml` and what was fitted of collectives."""
        fields = self.system.model_dump(exclude={"id"}, exclude_none=True)
        lines = (f"{name} = {json.dumps(value)}" for name, value in fields.items())
        with io.replacing(Path(folder) / SYSTEM_FILE) as handle:
            handle.write("\n".join((f"[{self.system.id}]", *lines, "")))
        for one in self.collectives or ():
            one.save(folder)

    def provenance(self) -> dict[str, Any]:
        """Plain numbers for the model's file."""
        each = self.copies.itertuples()
        copies = {
            f"{row.direction} {row.memory}": {
                "latency_s": row.latency_s, "bytes_per_s": row.bytes_per_s
            } for row in each
        }  # fmt: skip
        return {"copies": copies, "besides ops": " ".join(self.notes)}


def read_parts(folder: Path, device: DeviceSpec, facts: Mapping[str, Any]) -> Parts:
    """What the tables that lie in a folder say.

    Args:
        folder: of the tables.
        device: as its name or its driver has it.
        facts: `accelerator` of the machine's facts.
    """
    notes: list[str] = []
    copies = fit_copies(_table(folder, "copies"))
    link = host_link_bytes_per_s(copies)
    system = this_node(device, int(facts["count"]), str(facts.get("topology", "")), link)
    if link is None:
        given = f"{system.host_link_bytes_per_s / 1e9:.0f} GB/s"
        notes.append(f"Copies between host and device: {given}, a default, not measured.")
    else:
        notes.append(f"Copies between host and device: {_of_copies(copies)}.")
    launches = _table(folder, "launches")
    host = None if launches.empty else host_of(launches)
    if host is None:
        notes.append("Launch overhead: default, not measured.")
    else:
        notes.append(f"Launch overhead: {launch_s(host) * 1e6:.1f} us measured.")
    memory = _table(folder, "memory")
    if memory.empty:
        notes.append("Memory: the datasheet's, what a context takes of it not measured.")
    else:
        device, note = _with_memory(device, dict(zip(memory["what"], memory["value"], strict=True)))
        notes.append(note)
    rows = _table(folder, "collectives")
    collectives = None if rows.empty else fit_collectives(rows, system)
    if int(facts["count"]) > 1:
        measured = "default, not measured" if collectives is None else f"{len(rows)} rows measured"
        notes.append(f"Collectives between {facts['count']} GPUs: {measured}.")
    if device_id(device.id) is None and device.note:
        notes.append(f"Its datasheet is not known; {device.note}.")
    return Parts(device, system, host, copies, collectives, tuple(notes))


def _table(folder: Path, part: str) -> pd.DataFrame:
    path = folder / f"{part}.csv"
    return io.read_table(path) if path.exists() else pd.DataFrame()


def copy_bytes_per_s(folder: Path) -> float | None:
    """What a copy inside a device's memory moved; None where nobody measured it."""
    memory = _table(folder, "memory")
    found = dict(zip(memory["what"], memory["value"], strict=True)) if len(memory) else {}
    return found.get("copy")


def _with_memory(device: DeviceSpec, found: Mapping[str, float]) -> tuple[DeviceSpec, str]:
    """(a device with the memory that programs get of it, what was found)."""
    if "total" not in found:
        return device, "Memory: the datasheet's, its library does not tell it."
    left = found["total"] - found.get("context", 0.0)
    said = f"Memory: {left / 1e9:.2f} GB for programs"
    if "context" in found:
        said += f", {found['context'] / 1e9:.2f} GB taken by a context or other processes"
    return device.model_copy(update={"memory_bytes": left}), f"{said}."


def _of_copies(copies: pd.DataFrame) -> str:
    return ", ".join(
        f"{row.memory} {row.direction.replace('_', ' ')} {row.latency_s * 1e6:.1f} us and"
        f" {row.bytes_per_s / 1e9:.1f} GB/s (held out {row.median_ape:.0%})"
        for row in copies.itertuples()
    )


def fit_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Latency and rate of copies, by direction and memory, from rows with `bytes` and `time_s`.

    seconds = latency_s + bytes / bytes_per_s, by least squares in log seconds (soft L1 from 10 %).
    """
    columns = ["direction", "memory", "latency_s", "bytes_per_s", "rows", "median_ape"]
    found = []
    for (direction, memory), part in rows.groupby(["direction", "memory"]) if len(rows) else ():
        size, time_s = part["bytes"].to_numpy(float), part["time_s"].to_numpy(float)
        latency_s, rate = _line(size, time_s)
        errors = []
        for left in range(len(size)) if len(size) > 2 else ():
            own = np.arange(len(size)) != left
            fixed_s, each = _line(size[own], time_s[own])
            errors.append(abs((fixed_s + size[left] / each) / time_s[left] - 1))
        error = float(np.median(errors)) if errors else np.nan
        found.append((direction, memory, latency_s, rate, len(size), error))
    return pd.DataFrame(found, columns=columns)


def _line(size: np.ndarray, time_s: np.ndarray) -> tuple[float, float]:
    start = np.log([time_s.min(), (size / time_s).max()])

    def errors(logs: np.ndarray) -> np.ndarray:
        latency_s, rate = np.exp(logs)
        return np.log((latency_s + size / rate) / time_s) / 0.1

    latency_s, rate = np.exp(least_squares(errors, start, loss="soft_l1").x)
    return float(latency_s), float(rate)


def host_link_bytes_per_s(copies: pd.DataFrame) -> float | None:
    """Of pinned memory where that was copied, in the mean of both ways; None: nothing was."""
    pinned = copies[copies["memory"] == _PINNED]
    rates = (pinned if len(pinned) else copies)["bytes_per_s"]
    return float(np.exp(np.log(rates).mean())) if len(rates) else None


def host_of(rows: pd.DataFrame) -> Host:
    """A host from what issuing work cost it (`calibration/microbench/launches.py`).

    What an op costs beside the launch itself all counts before it: without a profiler, which would
    cost more than what it tells apart, nobody knows what comes after. Ops by name are their own;
    what all share is what launches of whole steps cost, those of modules, gradients and optimizers.
    """
    by_op = {op: part for op, part in rows.groupby("op")}
    if missing := [op for op in ("launch", "launch_call", "view") if op not in by_op]:
        raise io.InputError(
            f"expected rows of launch, launch_call and view in launches.csv, got none of"
            f" {', '.join(missing)}; measure it again"
        )
    call_s = float(by_op["launch_call"]["time_s"].median())
    units_s = by_op["launch"]["time_s"].to_numpy(float)
    issued = by_op.get("issue", rows.iloc[:0])
    none = _spread([0.0], int(rows["repeats"].min()))
    by_kind = {
        str(name): _spread([max(time_s - call_s, 0.0)], int(repeats))
        for name, time_s, repeats in zip(
            issued.get("name", ()), issued["time_s"], issued["repeats"], strict=True
        )
    }
    views = by_op["view"]
    waits = by_op.get("fetch", rows.iloc[:0])["time_s"]
    return Host(
        source="calibrate", profiler_s=0.0, between_ops_s=None,
        before_launch_s=Overhead(
            shared=_spread(np.maximum(units_s - call_s, 0.0), len(units_s)), by_kind=by_kind
        ),
        after_launch_s=Overhead(shared=none, by_kind={}),
        launch_call_s=Overhead(shared=_spread([call_s], len(units_s)), by_kind={}),
        between_launches_s=Overhead(shared=None, by_kind={}),
        without_launch_s=Overhead(
            shared=_spread(views["time_s"], int(views["repeats"].min())), by_kind={}
        ),
        fetch_s=_spread(waits, len(waits)) if len(waits) else None,
    )  # fmt: skip


def _spread(seconds: Sequence[float] | np.ndarray | pd.Series, count: int) -> Spread:
    """Of seconds that were each seen about as often."""
    values = np.asarray(seconds, float)
    return Spread(
        mean_s=float(values.mean()), std_s=float(values.std()),
        median_s=float(np.median(values)), count=count,
    )  # fmt: skip
