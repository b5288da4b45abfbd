"""Training steps that ran on this machine: measured by the calibration package's programs, with the
programs that ran.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.engine.workload import Workload
from hybridperf.io import read_json, replacing
from hybridperf.model.fit.programs import run_program, usable_core
from hybridperf.workloads.jax.program import load_program

STEPS_SCHEMA_VERSION = 2  # of measured steps


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """A training step that ran here: seconds, and the program that ran."""

    name: str
    time_s: float  # a usual call (the median) of the round that was disturbed least
    least_s: float  # over all repeats, as is the median
    median_s: float
    repeats: int
    noise: float  # how far a round's median lies above it, a share: the median over the rounds
    # processor seconds per second while it was measured: on a CPU, far below 1 if others had the
    # core
    cpu_share: float
    workload: Workload
    config: Mapping[str, Any]
    op_s: Mapping[str, float] | None = (
        None  # seconds by instruction of the program, where it was profiled
    )


def measure_steps(
    folder: str | os.PathLike,
    spec: Sequence[Mapping[str, Any]],
    *,
    cores: str | None = None,
    profile: bool = False,
    rounds: int = 4,
) -> list[MeasuredStep]:
    """Run real training steps on this machine, in turns; each comes with the program that was run,
    profiled if asked to.
    """
    folder = Path(folder)
    with replacing(folder / "steps.spec.json") as handle:
        json.dump(list(spec), handle, indent=1)
    out = folder / "steps.json"
    run_program(
        "hybridperf_calibration.training_steps.run",
        [
            *(
                str(folder / "steps.spec.json"),
                "--out",
                str(out),
                "--programs",
                str(folder / "programs"),
            ),
            *("--cores", cores or usable_core(), "--rounds", str(rounds)),
            *(["--profile"] if profile else []),
        ],
    )
    return [
        MeasuredStep(
            name=step["name"],
            time_s=step["time_s"],
            least_s=step["least_s"],
            median_s=step["median_s"],
            repeats=step["repeats"],
            noise=step["noise"],
            cpu_share=step["cpu_share"],
            workload=load_program(folder / "programs" / step["program"]),
            config=step["config"],
            op_s=step["op_s"],
        )
        for step in read_json(out, "steps", STEPS_SCHEMA_VERSION)["steps"]
    ]


def measure_sharded(
    folder: str | os.PathLike,
    tasks: str | os.PathLike,
    *,
    processes: int = 2,
    passes: int = 2,
    profile: bool = True,
) -> None:
    """Run sharded recommendation models, a file of tasks, on as many cores; leaves `steps.csv` and
    the programs in `folder`. Resumes.

    `hybridperf_calibration.training_steps.sharded_tasks` says what a task is.
    """
    options = [
        "--tasks",
        str(tasks),
        "--out",
        str(folder),
        "--processes",
        str(processes),
        "--passes",
        str(passes),
    ]
    run_program(
        "hybridperf_calibration.training_steps.sharded_dlrm",
        [*options, *([] if profile else ["--no-profile"])],
    )
