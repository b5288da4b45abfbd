"""The model of a machine that a row names: a device's calibration over the links of its system."""

from __future__ import annotations

import dataclasses
import functools

from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.model import CollectiveModel, find_collectives, load_collectives
from hybridperf.hardware.machines import Machine
from hybridperf.model.files import model_or_datasheet, shipped, unmeasured_device
from hybridperf.model.perf_model import PerfModel


def machine_model(machine: Machine) -> PerfModel:
    """What prices a machine; the same object whenever it is asked for."""
    held = _held()
    if machine.key not in held:
        held[machine.key] = _loaded(machine)
    return held[machine.key]


@functools.cache
def _held() -> dict[tuple[str, str, str], PerfModel]:
    """By all that prices depend on."""
    return {}


def _loaded(machine: Machine) -> PerfModel:
    a_file = machine.model.endswith(".toml")
    known = unmeasured_device(machine.spec) if a_file else model_or_datasheet(machine.model)
    on = known.on(machine.spec)
    return dataclasses.replace(on, references=shipped, collectives=_links(machine))


def _links(machine: Machine) -> CollectiveModel:
    """The links of a row's system: of its shipped calibration, else as others are."""
    if find_collectives(machine.system.id) is None:
        return fit_collectives(None, machine.system)[0]
    measured = load_collectives(machine.system.id)
    if measured.system.latency_s != machine.system.latency_s:
        return measured.on(machine.system)
    return dataclasses.replace(measured, system=machine.system)
