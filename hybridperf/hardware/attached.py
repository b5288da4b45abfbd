"""Accelerators of this machine by what their drivers' own programs print (`attached.toml`): quick,
without a library that computes on them. What a driver tells besides a name: `this_gpu.py`.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess

from hybridperf.hardware.names import device_called, device_id
from hybridperf.io import shipped_toml

_PATIENCE_S = 3.0  # of a driver that hangs


@dataclasses.dataclass(frozen=True)
class Attached:
    """Accelerators of one kind."""

    called: str  # by the driver
    device: str  # ours; "": of none that we ship facts of
    count: int


def attached() -> list[Attached]:
    """What is in this machine, kinds in the driver's order; empty where no driver answers."""
    for program in shipped_toml(__package__, "attached.toml")["programs"]:
        if shutil.which(program["command"][0]) is None:
            continue
        try:
            done = subprocess.run(
                program["command"], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        lines = map(str.strip, done.stdout.splitlines())
        names = [found[1] for line in lines if (found := re.search(program["name"], line))]
        if names:
            return [
                Attached(name, device_called(name) or device_id(name) or "", names.count(name))
                for name in dict.fromkeys(names)
            ]
    return []
