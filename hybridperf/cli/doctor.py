"""`hybridperf doctor`: what is installed, detected, calibrated and cached here, what to do next."""

import dataclasses

from hybridperf.cli.common import cache_folder
from hybridperf.cli.manner import result


def doctor() -> int:
    """What is installed, detected, calibrated and cached here, and what to do next. Exit status 2
    where something that is needed is missing or a calibration in this folder cannot be read.
    """
    from hybridperf.report.doctor import doctor as examined

    found = examined(cache_folder())
    result(**dataclasses.asdict(found), well=found.well)
    print(found)
    return 0 if found.well else 2
