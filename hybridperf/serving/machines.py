"""What prices the systems of operating points: which device's calibration, over which links."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from hybridperf.hardware import (
    DeviceSpec,
    device_id,
    device_of,
    load_device,
    load_system,
    system_names,
)
from hybridperf.hardware.machines import Machine as StepMachine
from hybridperf.hardware.machines import machine as step_machine
from hybridperf.io import InputError, shipped_toml
from hybridperf.io.errors import plain
from hybridperf.model import PerfModel
from hybridperf.model.machine import machine_model


@dataclasses.dataclass(frozen=True)
class Machine:
    """The device, links and notes that price a row of operating points."""

    device: str
    model: str
    system: str
    per_node: int = 0  # GPUs of a node, where they are more than the table's system has
    all_reduce: str = ""
    note: str = ""
    steps: StepMachine | None = None  # where the row's system is priced as training steps are

    @property
    def spec(self) -> DeviceSpec:
        """Published facts of the machine's accelerator."""
        return load_device(self.device) if self.steps is None else self.steps.spec

    def load(self) -> PerfModel:
        if self.steps is not None:
            return machine_model(self.steps)
        return _loaded(self.model, self.system, self.per_node)

    def __hash__(self) -> int:
        return hash((self.device, self.model, self.system, self.per_node))


def machine_of(name: str, device: str = "") -> Machine:
    """What prices a system: one of a published name, else any device or system that `steps` takes.

    Args:
        name: of a system, a device, or a .toml file of a system.
        device: in place of the system's own: a name, or a .toml file.

    Raises:
        InputError: a name that nobody knows.
    """
    text = plain(name).replace("_", "-")
    a_system = name.endswith(".toml") or name in system_names()
    own = device_id(name)
    for entry in () if a_system else known_names()["system"]:
        model = entry["model"]  # not of its kin: of an H100 PCIe links are others
        named = {own, (device_id(device) or device) if device else None} <= {None, model}
        if named and entry["says"] in text.split("-"):
            return Machine(
                model, model, entry["system"], entry.get("per_node", 0), entry["reduce"],
                entry.get("note", ""),
            )  # fmt: skip
    try:
        fabric = load_system(name)
    except InputError as unknown_system:
        try:
            found = step_machine(name, "", device or None)
        except InputError:
            known = ", ".join(entry["says"] for entry in known_names()["system"])
            expected = f"expected a system of {known} or of `hybridperf systems`"
            raise InputError(f"{expected}, got {name!r}; {unknown_system}") from None
    else:
        found = step_machine("", "", device_of(fabric, device or None), name)
    said = "; ".join(found.notes)
    reduce = known_names()["reduce"]
    return Machine(
        found.device, found.model, found.system.id, all_reduce=reduce, note=said, steps=found
    )


@functools.cache
def known_names() -> dict[str, Any]:
    """Habits of published models' weights, and systems as published tables call them."""
    return shipped_toml(__package__, "names.toml")


@functools.cache
def _loaded(model: str, system: str, per_node: int) -> PerfModel:
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.model import model_or_datasheet

    links = collectives_by_name(system)
    if per_node:
        links = dataclasses.replace(links, system=links.system.racked(per_node))
    return model_or_datasheet(model).with_collectives(links)
