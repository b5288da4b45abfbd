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
    op_s: Mapping[str, float] | None = None  # by instruction of the program, where profiled


StepSpec = dict[str, Any]  # of `hybridperf_calibration.training_steps.run`


def dlrm_spec(
    batch: int,
    tables: int,
    rows: int,
    dim: int,
    pooling: int,
    dense: int,
    bottom: list[int],
    top: list[int],
) -> StepSpec:
    """A recommendation model's step; `rows`: of each table; `dense`: features; layers of MLPs."""
    config = {
        "batch": batch, "tables": tables, "rows_per_table": rows, "embedding_dim": dim,
        "pooling": pooling, "dense_features": dense, "bottom_mlp": bottom, "top_mlp": top,
    }  # fmt: skip
    return {"workload": "dlrm", "config": config}


def gpt_spec(batch: int, seq: int, width: int, layers: int, heads: int, vocab: int) -> StepSpec:
    """A transformer's step."""
    config = {"batch": batch, "seq": seq, "width": width, "layers": layers, "heads": heads}
    return {"workload": "gpt", "config": {**config, "vocab": vocab}}


def measure_steps(
    folder: str | os.PathLike,
    spec: Sequence[Mapping[str, Any]],
    *,
    cores: str | None = None,
    profile: bool = False,
    rounds: int = 4,
) -> list[MeasuredStep]:
    """Run real training steps on this machine, in turns; each comes with the program that ran."""
    folder = Path(folder)
    with replacing(folder / "steps.spec.json") as handle:
        json.dump(list(spec), handle, indent=1)
    out = folder / "steps.json"
    options = ["--out", str(out), "--programs", str(folder / "programs")]
    options += ["--cores", cores or usable_core(), "--rounds", str(rounds)]
    options += ["--profile"] if profile else []
    spec_path = str(folder / "steps.spec.json")
    run_program("hybridperf_calibration.training_steps.run", [spec_path, *options])
    kept = ("name", "time_s", "least_s", "median_s", "repeats", "noise", "cpu_share", "config")
    return [
        MeasuredStep(
            **{name: step[name] for name in (*kept, "op_s")},
            workload=load_program(folder / "programs" / step["program"]),
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
    options = ["--tasks", str(tasks), "--out", str(folder)]
    options += ["--processes", str(processes), "--passes", str(passes)]
    options += [] if profile else ["--no-profile"]
    run_program("hybridperf_calibration.training_steps.sharded_dlrm", options)
