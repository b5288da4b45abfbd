"""What is installed, detected, calibrated and cached here, and what to do next.

Nothing is loaded that takes long, nothing is run but the drivers' own programs, and nothing that
names a person or a host is told: home folders are `~`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hybridperf
from hybridperf.hardware import load_device, this_cpu
from hybridperf.hardware.attached import Attached, attached
from hybridperf.io import InputError, read_json, shipped_toml
from hybridperf.model import MODEL_SCHEMA_VERSION
from hybridperf.model.files import shipped_from, shipped_models
from hybridperf.report import text

_MOST_FOLDERS = 200  # that are looked into
_DATA = "HYBRIDPERF_DATA"


@dataclasses.dataclass(frozen=True)
class Doctor:
    """What `hp.doctor` returns; printed it is a page of text.

    Attributes:
        versions: of hybridperf, Python and the system.
        packages: rows of name, version ("": not installed), what for, needed.
        cpu: its name, cores and memory.
        accelerators: rows of what a driver calls them, our device ("": unknown), how many.
        calibrated: rows of folder, device, rows, date; `problem` where a file cannot be read.
        shipped: devices that come calibrated.
        cache: folder and bytes of compiled functions.
        data: the folder of public measurements ("": none), which only claims and tests need.
        next: what to do, a sentence each.
    """

    versions: Mapping[str, str]
    packages: tuple[Mapping[str, Any], ...]
    cpu: Mapping[str, Any]
    accelerators: tuple[Attached, ...]
    calibrated: tuple[Mapping[str, Any], ...]
    shipped: tuple[str, ...]
    cache: Mapping[str, Any]
    data: str
    next: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether all that is needed is there and every calibration can be read."""
        there = all(one["version"] for one in self.packages if one["needed"])
        return there and not any(one["problem"] for one in self.calibrated)

    def __str__(self) -> str:
        lines = ["  ".join(f"{name} {version}" for name, version in self.versions.items()), ""]
        packages = {
            "package": lambda one: one["name"],
            "version": lambda one: one["version"] or ("MISSING" if one["needed"] else "none"),
            "what for": lambda one: one["what"],
        }
        lines += [text.items_table(self.packages, packages), ""]
        memory = text.quantity(self.cpu["memory_bytes"], "B")
        lines.append(f"CPU: {self.cpu['name']}, {self.cpu['cores']} cores, {memory}")
        for one in self.accelerators:
            known = f"device {one.device}" if one.device else "no device that we know"
            lines.append(f"accelerator: {one.count} x {one.called}, {known}")
        if not self.accelerators:
            lines.append("accelerator: none that a driver's program names")
        for own in self.calibrated:
            facts = own["problem"] or f"{own['device']}, {own['rows']:,} rows, {own['date']}"
            lines.append(f"calibrated: {own['folder']}: {facts}")
        if not self.calibrated:
            lines.append("calibrated: nothing in this folder")
        lines.append(f"shipped: {len(self.shipped)} calibrated devices (`hybridperf devices`)")
        size = text.quantity(float(self.cache["bytes"]), "B")
        lines.append(f"cache: {self.cache['folder']}, {size} of compiled functions")
        lines.append(f"data: {self.data or 'none, which only claims and tests need'}")
        return "\n".join([*lines, "", "next", *(f"  {one}" for one in self.next)])


def doctor(cache: str | os.PathLike = "", folder: str | os.PathLike = ".") -> Doctor:
    """What is installed, detected, calibrated and cached here, and what to do next.

    Args:
        cache: folder of compiled functions.
        folder: where calibrations are looked for, in it and in the folders in it.
    """
    packages = tuple(
        {"needed": False, **one, "version": _version(one["name"])}
        for one in shipped_toml(__package__, "doctor.toml")["packages"]
    )
    cpu = this_cpu()
    found = tuple(attached())
    calibrated = tuple(_calibrated(Path(folder)))
    data = os.environ.get(_DATA, "")
    kept = Path(cache) if cache else None
    shipped = tuple(shipped_models())
    return Doctor(
        versions={
            "hybridperf": hybridperf.__version__, "Python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        packages=packages,
        cpu={"name": cpu.name, "cores": cpu.multiprocessors, "memory_bytes": cpu.memory_bytes},
        accelerators=found, calibrated=calibrated, shipped=shipped,
        cache={"folder": _from_home(kept) if kept else "", "bytes": _bytes_in(kept)},
        data=_from_home(Path(data)) if data else "",
        next=tuple(_next(packages, found, calibrated, data)),
    )  # fmt: skip


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _calibrated(folder: Path) -> list[dict[str, Any]]:
    """Models in a folder and in those in it."""
    found = []
    for path in sorted([*folder.glob("model.json"), *folder.glob("*/model.json")])[:_MOST_FOLDERS]:
        row = {
            "folder": _from_home(path.parent),
            "device": "",
            "rows": 0,
            "date": "",
            "problem": "",
        }
        try:
            content = read_json(path, "model", MODEL_SCHEMA_VERSION)
            facts = content["provenance"]
            row["device"] = str(content["device"]["id"])
            row["rows"], row["date"] = int(facts.get("rows") or 0), str(facts.get("date") or "")
        except (InputError, ValueError, KeyError, TypeError):
            row["problem"] = "cannot be read; make it again (hybridperf calibrate)"
        found.append(row)
    return found


def _bytes_in(folder: Path | None) -> int:
    if folder is None:
        return 0
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(place, name))
            except OSError:  # gone since
                continue
    return total


def _from_home(path: Path) -> str:
    """A path without whose home it is in."""
    whole, home = os.path.abspath(path), os.path.expanduser("~")
    inside = home not in ("", "/", "~") and (whole + os.sep).startswith(home + os.sep)
    return "~" + whole[len(home) :] if inside else whole


def _next(
    packages: tuple[Mapping[str, Any], ...], found: tuple[Attached, ...],
    calibrated: tuple[Mapping[str, Any], ...], data: str,
) -> list[str]:  # fmt: skip
    said = []
    missing = [one["name"] for one in packages if one["needed"] and not one["version"]]
    if missing:
        said.append("install what is missing: python -m pip install "
                    + " ".join(missing))  # fmt: skip
    said += [f"mend {one['folder']}: {one['problem']}" for one in calibrated if one["problem"]]
    measured = shipped_from("model.json")
    for one in found:
        if not one.device:
            said.append(
                f"calibrate the {one.called}, which nobody described:"
                " hybridperf calibrate --quick --folder my-gpu"
            )
        elif one.device not in measured:
            said.append(
                f"calibrate the {load_device(one.device).name}, of which only the datasheet is"
                " known: hybridperf calibrate --quick --folder my-gpu"
            )
    if not calibrated and not found:
        said.append(
            "calibrate this CPU, four minutes: hybridperf calibrate --quick --folder my-machine"
        )
    device = next((one.device for one in found if one.device), "")
    said.append(f"ask a first question: hybridperf fit-check llama3-8b{device and f' {device}'}")
    if data and not (Path(data) / "devices.csv").is_file():
        said.append(f"{_DATA} names a folder without devices.csv: unset it or mend it")
    return said
