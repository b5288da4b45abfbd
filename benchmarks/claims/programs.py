"""Programs of PyTorch and JAX captured without a GPU, beside what a real one took.

    torch        op by op
    compiled     by torch.compile
    published    published architectures by Hugging Face's code, either way
    jax          by jax.jit
    timm         image models of timm, op by op, on two GeForce cards (`timm_models.py`)
    examples     NVIDIA's published examples on V100, T4 and A100, 1 to 64 GPUs (`example_steps.py`)

Steps of `gpu_steps.py`, `gpu_published.py` and `gpu_jax_steps.py` as an H100 and an H200 ran them
(`calibration/measured`). Beside ours: the roofline of the datasheet times the constant that fits
each task best in hindsight. Memory is a line of its own: the error of the median.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Columns, Found, ResultLine, claim
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError, read_table
from hybridperf.io.installed import installed_hardware

TASKS = ("torch", "compiled", "published", "jax", "timm", "examples")
_PUBLISHED = "hf_"  # how their names begin
_QUICK = 3  # steps of a task
_MEMORY_GOAL = 0.08
_COLUMNS = Columns("step_s", baselines={"roofline x constant": "constant_s"})


@claim("programs", TASKS)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """The tasks; `quick`: a few steps of each."""
    measured = measured_steps()
    kind = measured["mode"].where(measured["library"] == "torch", "jax").replace("eager", "torch")
    kind = kind.mask(measured["step"].str.startswith(_PUBLISHED), "published")
    for task in tasks:
        if task in ("timm", "examples"):  # all others' rows are ours
            from benchmarks.claims import example_steps, timm_models

            found = timm_models.found if task == "timm" else example_steps.found
            yield found(Path(data or ""), quick)
            continue
        yield _judged(task, measured[kind == task].head(_QUICK if quick else None))


def measured_steps() -> pd.DataFrame:
    """Steps of all GPUs that we measured."""
    hardware = installed_hardware()
    found = sorted(hardware.parent.glob("measured/*/steps.csv")) if hardware else []
    if not found:
        raise InputError(
            "expected calibration/measured of the installed package, found none; install hybridperf"
            " with its calibrations"
        )
    return pd.concat([read_table(path) for path in found], ignore_index=True)


def workload(library: str, step: str, mode: str, device: str) -> Workload:
    """A measured step, captured here."""
    if library == "torch":
        from hybridperf.workloads.programs.torch.fakes import without_memory
        from hybridperf.workloads.programs.torch.program import from_torch

        with without_memory():  # which refuses where PyTorch is not installed
            fn, args, *given = _steps_of(step)[step]()
        optimizer = (*given, None)[0]
        options: dict[str, Any] = {"train": bool(given), "compiled": mode == "compiled"}
        return from_torch(fn, *args, optimizer=optimizer, **options)
    from benchmarks.claims import gpu_jax_steps
    from hybridperf.workloads.programs.jax.program import from_jax

    jitted, shapes, _ = gpu_jax_steps.JAX[step]()
    donated = gpu_jax_steps.donated(shapes)
    return from_jax(jitted, *shapes, donate_argnums=donated, device=device)


def _steps_of(step: str) -> Mapping[str, Callable[[], tuple[Any, ...]]]:
    """Steps by name, where a step stands."""
    if not step.startswith(_PUBLISHED):
        from benchmarks.claims import gpu_steps

        return gpu_steps.TORCH
    try:
        from benchmarks.claims import gpu_published
    except ModuleNotFoundError as error:
        raise InputError(
            "expected transformers, whose published architectures are judged, found none; install"
            " it (pip install transformers) or name other tasks"
        ) from error
    return gpu_published.TORCH


def _judged(task: str, rows: pd.DataFrame) -> Found:
    found, captured = [], dict[tuple[str, str, str], Workload]()
    for row in rows.itertuples():
        own = (str(row.step), str(row.mode), str(row.device) if task == "jax" else "")
        if own not in captured:
            captured[own] = workload(str(row.library), *own[:2], str(row.device))
        made = predict(str(row.device), captured[own])
        peak = captured[own].peak_memory
        found.append({
            "predicted_s": made.time_s, "low_s": made.low_s, "high_s": made.high_s,
            "roofline_s": made.roofline_s, "predicted_bytes": peak.bytes if peak else np.nan,
        })  # fmt: skip
    frame = pd.concat([rows.reset_index(drop=True), pd.DataFrame(found)], axis=1)
    times = (frame["step_s"] / frame["roofline_s"]).median()
    frame["constant_s"] = frame["roofline_s"] * times
    wrong = (frame["predicted_bytes"] / frame["peak_bytes"] - 1).abs()
    apart = dataclasses.replace(_COLUMNS, interval=None)
    lines = [
        _COLUMNS.line(f"steps, {task}", frame),
        apart.line(f"steps, {task}: median", frame, measure="median"),
        ResultLine(
            f"peak memory, {task}", float(wrong.median()), len(frame), _MEMORY_GOAL,
            measure="median",
        ),
    ]  # fmt: skip
    return Found("", {task: frame}, lines, "steps")
