"""A calibration given back: the measured rows of a machine as one file, without names of hosts,
people and folders, and the text of a pull request.

    hybridperf share my-machine --name epyc_9654 --out epyc_9654.json
    hybridperf fit epyc_9654.json --folder calibration/hardware/epyc_9654

Whoever takes it fits the rows again: what the giver's fit was off on rows that it had not seen
stands beside what the taker's is.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError, read_json, write_json
from hybridperf.model import load_model
from hybridperf.model.fit.this_machine import read

_KIND, _VERSION = "shared-calibration", 1
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{1,60}")
# of what measuring programs tell of a machine, what tells of nobody
_FACTS = (
    "cpu_model", "cores", "memory_bytes", "backend", "device_kind", "devices", "python", "jax",
    "jaxlib", "torch", "cuda", "driver",
)  # fmt: skip
_MEASURED = ("time_s", "noise", "cores", "library")  # besides fields of ops


@dataclasses.dataclass(frozen=True)
class SharedRows:
    """What a calibration gives: a device, its measured rows, and how its own fit did."""

    device: DeviceSpec
    rows: pd.DataFrame
    drift: tuple[float, ...]
    about: Mapping[str, Any]  # of the machine and its software
    errors: pd.DataFrame  # a row per op: op, rows, median_ape, roofline_ape

    def save(self, path: str | os.PathLike) -> None:
        """Write it as one JSON file with a checksum."""
        columns = {
            name: [None if pd.isna(one) else one for one in self.rows[name].tolist()]
            for name in self.rows
        }
        write_json(path, _KIND, _VERSION, {
            "device": self.device.model_dump(exclude_none=True), "drift": [*self.drift],
            "about": dict(self.about), "errors": self.errors.to_dict("records"), "rows": columns,
        })  # fmt: skip

    def beside(self, table: pd.DataFrame) -> pd.DataFrame:
        """Errors of another fit to the rows (`FitReport.table`) beside the giver's, by op."""
        given = self.errors[["op", "median_ape"]].rename(columns={"median_ape": "giver_error"})
        own = table[["op", "rows", "median_ape", "roofline_ape"]].merge(given, on="op", how="left")
        return own.rename(columns={"median_ape": "error", "roofline_ape": "roofline_error"})

    def pull_request(self, file: str) -> str:
        """The text of a pull request that gives it, in Markdown."""
        device, off = self.device, self.errors
        counted = off[off["rows"] > 0]
        lines = [
            f"# Calibration of {device.name} (`{device.id}`)",
            "",
            f"{len(self.rows):,} measured rows of {len(off)} kinds of op by"
            f" {self.about['made_by']}, {self.about['date']}. No name of a host, a person or a"
            " folder is in the file.",
            "",
            "| op | rows | median error, held out | datasheet roofline |",
            "|---|---|---|---|",
        ]
        for row in counted.itertuples():
            errors = f"{row.median_ape:.1%} | {row.roofline_ape:.1%}"
            lines.append(f"| {row.op} | {row.rows} | {errors} |")
        told = ", ".join(f"{name} {value}" for name, value in self.about["machine"].items())
        take = f"    hybridperf fit {file} --folder calibration/hardware/{device.id}"
        return "\n".join([*lines, "", f"Machine: {told}.", "", "To take it:", "", take])


def share(folder: str | Path, name: str = "") -> SharedRows:
    """What a folder that `hybridperf calibrate` made gives to others.

    Args:
        folder: of the calibration, with `ops.csv` and `model.json`.
        name: what the device is to be called, where it is this CPU; a GPU has its own.

    Raises:
        InputError: no such calibration, a name that is none, or one that a GPU has already.
    """
    model, found = load_model(folder), read(folder)
    device = found.device
    if device.id != "here" and name not in ("", device.id):
        raise InputError(f"expected {device.id}, which this device is called, got {name!r}")
    name = name or device.id
    if name == "here" or not _NAME.fullmatch(name):
        raise InputError(
            "expected a name of small letters, digits and underscores, such as epyc_9654, got"
            f" {name!r}; give it by --name"
        )
    fields = fields_of("ops")
    kept = [one for one in found.rows if fields.called(one) or one in _MEASURED]
    rows = found.rows[kept].dropna(axis=1, how="all").assign(device=name)
    machine = {one: found.provenance["machine"].get(one) for one in _FACTS}
    provenance = model.provenance
    about = {
        "made_by": provenance["made_by"],
        "date": provenance["date"],
        "library": found.provenance["library"],
        "machine": {one: value for one, value in machine.items() if value not in (None, "")},
    }
    errors = pd.DataFrame(provenance["fit"]["ops"])[["op", "rows", "median_ape", "roofline_ape"]]
    return SharedRows(
        device.model_copy(update={"id": name}), rows, tuple(found.drift), about, errors
    )


def load_shared(path: str | os.PathLike) -> SharedRows:
    """What `SharedRows.save` wrote.

    Raises:
        InputError: no such file, a changed one, or one of another kind.
    """
    path = Path(path)
    content = read_json(path, _KIND, _VERSION)
    try:
        device = DeviceSpec(**content["device"])
        rows = pd.DataFrame(content["rows"])
        errors = pd.DataFrame(content["errors"])[["op", "rows", "median_ape", "roofline_ape"]]
        drift, about = tuple(map(float, content["drift"])), dict(content["about"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: expected what `hybridperf share` wrote, {error!r}") from error
    if not all(map(math.isfinite, drift)):
        raise InputError(f"{path}: expected finite drift, got {drift}; make it again")
    return SharedRows(device, rows, drift, about, errors)
