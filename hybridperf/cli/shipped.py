"""`hybridperf calibrations`: make the priors and calibrations that are shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from hybridperf.cli.common import Out, compilation_cache, keep_files, names_in


def calibrations(
    data: Annotated[Path, Option(help="the folder of measured data")],
    out: Out = Path("calibration/hardware"),
    families: Annotated[
        str, Option(help="families of ops to train, separated by commas; all if not given")
    ] = "",
    devices: Annotated[
        str, Option(help="devices to calibrate, separated by commas; all if not given")
    ] = "",
    only: Annotated[str, Option(help="ops or collectives; both if not given")] = "",
) -> None:
    """Make the shipped priors and calibrations of all measured GPUs and systems; resumes."""
    from hybridperf.io import unknown
    from hybridperf.model.families import FAMILIES
    from hybridperf.model.ship import devices as of_devices
    from hybridperf.model.ship import systems as of_systems

    keep_files({"--out": out}, [data])
    if only not in ("", "ops", "collectives"):
        raise unknown("part", only, ["ops", "collectives"], "known are ops and collectives")
    compilation_cache()
    if only != "collectives":
        some, these = names_in(families) or FAMILIES, names_in(devices) or of_devices.DEVICES
        of_devices.run(data, out, families=some, devices=these)
    if only != "ops" and not (families or devices):
        of_systems.run(data, out)
