"""Packages: all that lies in `hybridperf/`, and `calibration/` under the name
`hybridperf_calibration`.

Everything else stands in pyproject.toml, which cannot find packages and rename one of them.
"""

from setuptools import find_packages, setup

setup(
    package_dir={"hybridperf_calibration": "calibration"},
    packages=[
        *find_packages(include=["hybridperf", "hybridperf.*"]),
        "hybridperf_calibration",
        *(f"hybridperf_calibration.{name}" for name in find_packages("calibration")),
    ],
)
