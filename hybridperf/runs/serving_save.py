"""Fitted effects of serving as part of a model's folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, replacing_in, settled
from hybridperf.model import load_model
from hybridperf.runs.serving_fit import FILE, ServingFit
from hybridperf.runs.serving_rows import understood


def saved(folder: Path, fit: ServingFit, rows: pd.DataFrame) -> str:
    """Keep effects with the model in a folder, with that of the rows' machine in a new one; the
    device's name.
    """
    with settled(folder):
        there = (folder / "model.json").exists()
    if there:
        fit.save(folder / FILE)
        return load_model(folder).device.id
    machines = {row.machine for row in understood(rows) if row.machine is not None}
    if len(machines) != 1:
        raise InputError(
            f"expected rows of one machine for a model in {folder}, got {len(machines)}; give the"
            " folder of a model"
        )
    model = machines.pop().load()
    assert model.collectives is not None
    with replacing_in(folder) as new:
        model.save(new)
        model.collectives.save(new)
        fit.save(new / FILE)
    return model.device.id
