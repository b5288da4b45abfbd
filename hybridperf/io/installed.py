"""Where fitted hardware is installed: a folder of the calibration package, which is looked up and
never imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def installed_hardware() -> Path | None:
    """The folder of shipped calibrations; None where the calibration package is not installed."""
    spec = importlib.util.find_spec("hybridperf_calibration")
    folders = (spec and spec.submodule_search_locations) or ()
    return next((Path(folder) / "hardware" for folder in folders), None)
