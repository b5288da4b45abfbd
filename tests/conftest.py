"""Shared fixtures."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public measurements, which is not part of the project."""
    folder = Path(os.environ.get("HYBRIDPERF_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
    if not (folder / "devices.csv").is_file():
        pytest.skip(f"no measured data at {folder}; set HYBRIDPERF_DATA to the folder that holds devices.csv")
    return folder
