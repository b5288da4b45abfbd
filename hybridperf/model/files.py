"""Models by folder, or by the name of a device whose calibration is shipped."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

from hybridperf import hardware
from hybridperf.collectives.model import DOCUMENT as COLLECTIVES_FILE
from hybridperf.collectives.model import load_collectives
from hybridperf.hardware.power import has_gddr
from hybridperf.io import InputError, installed_hardware, read_json, settled, undamaged, unknown
from hybridperf.io.process import check_not_forked
from hybridperf.learning.prior import Adapted, adapt
from hybridperf.learning.prior.form import ROW_ROOFLINE, SCORE_ROOFLINE
from hybridperf.learning.prior.shipped import DEFAULT_PRIOR, is_installed, load_prior
from hybridperf.model.adapted_steps import STEPS_FILE, Adaptation
from hybridperf.model.document import MODEL_SCHEMA_VERSION, UNCHECKED, WEIGHTS_FILE, from_document
from hybridperf.model.families import GATHERED, architectures_of, gpu_of, references_of
from hybridperf.model.machine_facts import machine_of
from hybridperf.model.perf_model import PerfModel


def load_model(name: str | Path) -> PerfModel:
    """A calibrated machine, from a folder or by a device's name, with its collectives and host.

    "here" is this machine's CPU by its datasheet: what `hybridperf calibrate` measured lies in the
    folder it was given. A folder that holds collectives alone gives the system's device as its name
    does.

    Raises:
        InputError: when there is no such folder or device, or its files are damaged.
    """
    check_not_forked()
    folder = Path(name)
    if str(name) == "here" and not os.path.exists(folder):
        return PerfModel.datasheet(hardware.load_device("here"))
    if not os.path.exists(folder) and (found := _shipped(str(name))) is not None:
        folder = found
    with settled(folder if os.path.isdir(folder) else folder.parent):
        return _loaded(name, folder)


def _loaded(name: str | Path, folder: Path) -> PerfModel:
    fabric = load_collectives(folder) if os.path.exists(folder / COLLECTIVES_FILE) else None
    if fabric is not None and fabric.system.device and not os.path.exists(folder / "model.json"):
        return model_or_datasheet(fabric.system.device).with_collectives(fabric)
    if os.path.isdir(folder) and not os.path.exists(folder / "model.json"):
        raise InputError(f"{folder} holds no model.json; `hybridperf fit` or `calibrate` makes one")
    if not os.path.exists(folder):
        if device := hardware.device_id(str(name)):
            raise InputError(
                f"no calibration of {device} is shipped; `hybridperf fit ROWS --device {device}"
                " --folder FOLDER` makes one, without ROWS of what its datasheet says and other"
                " GPUs showed"
            )
        known = [*shipped_models(), *hardware.names_people_use("devices")]
        raise unknown(
            "model", str(name), known,
            "give a model folder, a shipped calibration's name or a device of `hybridperf devices`",
        )  # fmt: skip
    path = folder if os.path.isfile(folder) else folder / "model.json"
    has_host = os.path.exists(path.parent / hardware.HOST_FILE)
    host = hardware.load_host(path.parent) if has_host else None
    document = read_json(path, "model", MODEL_SCHEMA_VERSION, UNCHECKED)
    with undamaged(path, "fit the model again"):
        fields = from_document(document, path.parent / WEIGHTS_FILE)
        steps = Adaptation.load(path.parent) if os.path.exists(path.parent / STEPS_FILE) else None
        # a model without any row stays the datasheet's roofline
        others = shipped if fields["groups"] or fields["families"] else None
        usual = _Usual(fields["device"]) if others else None
        return PerfModel(
            **fields, collectives=fabric, host=host, steps=steps, references=others, usual=usual
        )


def model_or_datasheet(name: str | Path) -> PerfModel:
    """A model by folder or name; without one, what the datasheet of a device or .toml file and
    measured GPUs say (`unmeasured_device`).
    """
    if str(name).endswith(".toml"):
        return unmeasured_device(hardware.load_device(name))
    check_folder(name)
    try:
        return load_model(name)
    except InputError as no_model:
        if os.path.exists(name):
            raise
        try:
            return unmeasured_device(hardware.load_device(name))
        except InputError:
            raise no_model from None


def unmeasured_device(device: hardware.DeviceSpec) -> PerfModel:
    """A device that nobody measured: its datasheet, and the share of it that other GPUs of its
    generation reach (`stages/borrowed.py`); of ops that none of these has, and of attention of
    whole sequences, whose cycles carry over, what all GPUs show of the family; of a CPU, of which
    they tell nothing, the roofline.
    """
    families = _strangers_families(device)
    return dataclasses.replace(PerfModel.datasheet(device), references=shipped, families=families)


@dataclasses.dataclass(frozen=True)
class _Usual:
    """Families of a device by the priors alone, once, wherever its model is sent."""

    device: hardware.DeviceSpec

    @functools.cached_property
    def _families(self) -> dict[str, Adapted]:
        return _strangers_families(self.device)

    def __call__(self) -> dict[str, Adapted]:
        return self._families


def _strangers_families(device: hardware.DeviceSpec) -> dict[str, Adapted]:
    """The priors of families that price a device, by the knobs of its relatives among them."""
    if gpu_of(device) is None or not is_installed(DEFAULT_PRIOR):
        return {}
    found = {}
    for family, known in load_prior(DEFAULT_PRIOR).families.items():
        law = known.population.law
        measured = [one for one in shipped() if family in one.families]
        having = [one.device.id for one in measured if one.families[family].rows]
        if law is ROW_ROOFLINE or family == GATHERED:  # `stages/borrowed.py` has their own forms
            continue
        if law is SCORE_ROOFLINE and device.clock_hz is None:  # its cycles have no seconds
            continue
        references = references_of(device, known.population.devices)
        # cards with GDDR differ too much in what power they have for a share of the peak
        same = has_gddr(device) and device.arch in architectures_of(references).values()
        if law is None and references_of(device, having) and not same:
            continue
        known = known.with_references(references).on(machine_of(device, family))
        found[family] = adapt(known)
    return found


def check_folder(name: str | Path) -> None:
    """`InputError` for the folder above a model, as the demo leaves it."""
    inner = Path(name) / "model"
    if os.path.exists(inner / "model.json") and not os.path.exists(Path(name) / "model.json"):
        raise InputError(f"{name} holds no model.json; did you mean {inner}?")


def is_shipped(name: str) -> bool:
    """Whether a calibration of a device of this name (any of its names) is shipped."""
    return _shipped(name) is not None


def shipped_models() -> list[str]:
    """Names of the calibrations installed with `hybridperf_calibration`."""
    root = installed_hardware()
    return sorted(p.parent.name for p in root.glob("*/model.json")) if root else []


def shipped_from(document: str) -> dict[str, dict[str, Any]]:
    """Rows and date that shipped calibrations were made from, by device or system.

    `document`: the file that a calibration has, model.json or collectives.json.
    """
    root, found = installed_hardware(), {}
    for path in sorted(root.glob(f"*/{document}")) if root else ():
        facts = json.loads(path.read_text("utf-8")).get("provenance", {})
        found[path.parent.name] = {name: facts.get(name) for name in ("rows", "date")}
    return found


@functools.cache
def shipped() -> tuple[PerfModel, ...]:
    """Models of all calibrations that are shipped, loaded once."""
    root = installed_hardware()
    return tuple(load_model(root / name) for name in shipped_models()) if root else ()


def _shipped(name: str) -> Path | None:
    """The folder of the shipped calibration of a device by any of its names."""
    root, known = installed_hardware(), shipped_models()
    found = next((one for one in (name, hardware.device_id(name)) if one in known), None)
    return root / found if root and found else None
