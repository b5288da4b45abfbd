"""Make what is shipped: started by `hybridperf calibrations`, or as

python -m hybridperf_calibration.ship --data FOLDER --folder calibration/hardware
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hybridperf.io import InputError, progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of published measurements")
    parser.add_argument("--folder", type=Path, required=True, help="where what is shipped goes")
    parser.add_argument("--families", default="", help="of ops, separated by commas; all")
    parser.add_argument("--devices", default="", help="to calibrate, separated by commas; all")
    parser.add_argument("--only", choices=("", "ops", "collectives", "cpus"), default="")
    asked = parser.parse_args(arguments)
    try:
        _make(asked)
    except InputError as error:
        print(f"hybridperf: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _make(asked: argparse.Namespace) -> None:
    from hybridperf.model.families import FAMILIES
    from hybridperf_calibration.ship import cpus, devices, systems

    if asked.only == "cpus":
        return cpus.run(asked.data, asked.folder, say=progress.say)
    families, known = (
        [name.strip() for name in text.split(",") if name.strip()]
        for text in (asked.families, asked.devices)
    )
    if asked.only != "collectives":
        devices.run(
            asked.data, asked.folder, families=families or FAMILIES,
            devices=known or devices.DEVICES, say=progress.say,
        )  # fmt: skip
    if asked.only != "ops" and not (families or known):
        systems.run(asked.data, asked.folder, say=progress.say)
    return None


if __name__ == "__main__":
    sys.exit(main())
