"""Step effects that were fitted to measured steps, as part of a model that every command loads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, replacing_in, settled
from hybridperf.model import PerfModel, load_model
from hybridperf.model.adapted_steps import Adaptation
from hybridperf.training.steps.batch import shared_price_cache


def saved_model(
    folder: Path, adaptation: Adaptation, rows: pd.DataFrame, device: str | None = None,
    system: str | None = None,
) -> PerfModel:  # fmt: skip
    """Save step effects with the model in a folder; with that of the rows' machine in a new one.

    Args:
        folder: of a model, or where one is made.
        adaptation: the step effects.
        rows: the measured steps that they were fitted to.
        device: accelerator in place of the rows' own.
        system: in place of the rows' own.

    Raises:
        InputError: when a new model is wanted of rows of several machines, or of a device that
            another one's calibration stands for.
    """
    with settled(folder):
        there = (folder / "model.json").exists()
    if there:
        model = dataclasses.replace(load_model(folder), steps=adaptation)
        model.save(folder)
        return model
    cache = shared_price_cache()
    machines = {
        row.machine.key: row.machine
        for row in cache.understand(rows, device, system).rows
        if row.machine is not None
    }
    if len(machines) != 1:
        names = ", ".join(sorted({machine.device for machine in machines.values()}))
        raise InputError(
            f"expected rows of one machine for a model in {folder}, got {len(machines)} ({names});"
            " give the folder of a model, or name one by --device and --system"
        )
    (machine,) = machines.values()
    priced = cache.prices(machine).model
    if priced.stand_in is not None:
        raise InputError(
            f"expected rows of a device with a calibration of its own for a model in {folder}, got"
            f" {machine.device}, which that of {priced.stand_in.device.id} stands for; give the"
            " folder of a model, or keep the efficiencies alone by --save-knobs"
        )
    with replacing_in(folder) as new:
        dataclasses.replace(priced, steps=adaptation).save(new)
        if priced.collectives is not None:
            priced.collectives.save(new)
    return load_model(folder)
