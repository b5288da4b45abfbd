"""Seconds of a training job's steps by batch and GPUs, from the engine, and the rate that follows.

A job trains a published model for so many steps of its batch b0. On n GPUs a step of b samples
takes the time of the quickest layout that fits (tensor parallelism within a node, data parallelism,
ZeRO-1, micro-batches), as `hybridperf steps` predicts it. More samples a step than b0 help less and
less (McCandlish et al., arXiv 1812.06162): with a gradient noise scale phi, samples count as

    (phi + b0) / (phi + b)

so that the rate in steps of b0 is the largest of b / b0 / time(b, n) x (phi + b0) / (phi + b) over
batches up to `max_batch`. phi is the user's: no time tells it; without one the batch stays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.fields.columns import read_small_table
from hybridperf.fields.frames import answering
from hybridperf.io import InputError
from hybridperf.workloads.transformer import load_shape

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
_FIELDS = fields_of("jobs")


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """A training job as a row of a table of jobs gives it."""

    name: str
    arrival_s: float
    model: str
    batch: int
    steps: float
    gpus: int | None = None  # as its user asked; None: as many as make its steps quickest
    max_batch: int | None = None
    noise_scale: float | None = None  # samples; phi
    note: str = ""  # why its steps cannot be predicted


@dataclasses.dataclass(frozen=True)
class JobTimes:
    """What a job reaches on 1, 2, 4, ... GPUs [K]; zero where nothing fits."""

    gpus: np.ndarray
    steps_per_s: np.ndarray  # of its own batch
    low_steps_per_s: np.ndarray  # 90 % interval
    high_steps_per_s: np.ndarray
    batch: np.ndarray  # samples of a step

    def rate(self, gpus: int) -> float:
        """Steps a second on so many GPUs, or on the fewer that are quicker."""
        return float(self.steps_per_s[self.gpus <= gpus].max(initial=0.0))

    @property
    def quickest(self) -> int:
        """GPUs of the quickest steps: maximal parallelisation."""
        return int(self.gpus[int(self.steps_per_s.argmax())])

    @property
    def fewest(self) -> int:
        """GPUs that it needs to fit."""
        return int(self.gpus[int((self.steps_per_s > 0).argmax())])

    def late(self, gpus: int, limit: float) -> bool:
        """Whether it takes longer than `limit` of its time on the fewest GPUs that it fits on."""
        return self.rate(gpus) < self.rate(self.fewest) / limit * (1 - 1e-9)

    def at(self, end: str) -> JobTimes:
        """The same where all steps take the low or the high end of their interval."""
        rates = {"": self.steps_per_s, "low": self.low_steps_per_s, "high": self.high_steps_per_s}
        return dataclasses.replace(self, steps_per_s=rates[end])


def read_training_jobs(frame: pd.DataFrame) -> list[TrainingJob]:
    """Jobs of a table with the fields `jobs` of `fields/tables.toml`.

    Jobs of a model that is not known carry a note; `InputError` where there are no others.
    """
    frame = read_small_table(frame, "jobs")
    if "max_batch" in frame and (small := frame["max_batch"] < frame["batch"]).any():
        at = int(np.flatnonzero(small)[0])
        raise InputError(
            f"expected max_batch of batch or more in job {at + 1}, got"
            f" {frame['max_batch'].iloc[at]:g} for {frame['batch'].iloc[at]:g}; mend it"
        )
    jobs, texts = [], ("name", "model")
    numbers = frame[[one.name for one in _FIELDS if one.name in frame and one.name not in texts]]
    for name, model, row in zip(
        frame["name"], frame["model"].astype(str), numbers.to_dict("records"), strict=True
    ):
        note = ""
        try:
            load_shape(model)
        except InputError as error:
            note = str(error)
        given: dict[str, Any] = {
            str(column): int(value) if _FIELDS[str(column)].kind == "whole" else value
            for column, value in row.items() if not math.isnan(value)
        }  # fmt: skip
        jobs.append(TrainingJob(str(name), model=model, note=note, **given))
    if jobs and all(job.note for job in jobs):
        raise InputError(jobs[0].note)
    return sorted(jobs, key=lambda job: job.arrival_s)


def job_times(
    jobs: Sequence[TrainingJob], system: str, gpus: int, device: str = "", precision: str = "bf16",
    framework: str = "",
) -> list[JobTimes]:  # fmt: skip
    """What each job reaches on 1, 2, 4, ... of a system's GPUs.

    Args:
        jobs: of a table.
        system: nodes and links, by name.
        gpus: of the cluster.
        device: accelerator; the system's own if not given.
        precision: of the steps.
        framework: whose habits; the usual ones if not given.
    """
    from hybridperf.hardware import device_of, load_system

    spec = load_system(system)
    counts = [2**k for k in range(gpus.bit_length()) if 2**k <= gpus]
    questions = sorted({(job.model, b) for job in jobs if not job.note for b in _batches(job)})
    rows = []
    for model, batch in questions:
        for n in counts:
            for tp in (1, 2, 4, 8):
                dp = n // tp
                if n % tp or tp > spec.accelerators_per_node or batch % max(dp, 1):
                    continue
                for micro in _MICRO_BATCHES:
                    if batch % (dp * micro) == 0:
                        rows.append({
                            "model": model, "n_gpus": n, "tp": tp, "pp": 1, "dp": dp,
                            "micro_batch": micro, "grad_accum": batch // (dp * micro),
                            "sharding": "zero1" if dp > 1 else "none", "precision": precision,
                            **({"framework": framework} if framework else {}), "_batch": batch,
                        })  # fmt: skip
    frame = pd.DataFrame(rows)
    asked = frame.drop(columns="_batch").assign(gpu=device or device_of(spec, device))
    found = answering("steps").predict_steps(asked, system=system)
    good = found["predicted_s"].notna() & (found["fits"] != False)  # noqa: E712 a missing one fits
    frame = frame.assign(**{name: found[name] for name in ("predicted_s", "low_s", "high_s")})
    frame = frame[good.fillna(False).to_numpy(bool)].sort_values("predicted_s")
    best = frame.groupby(["model", "_batch", "n_gpus"]).first()
    return [_rates(job, best, np.array(counts)) for job in jobs]


def _batches(job: TrainingJob) -> list[int]:
    """Batches that a job may take: its own, and doublings where a noise scale says their worth."""
    most = job.max_batch if job.max_batch and job.noise_scale is not None else job.batch
    return [job.batch << k for k in range(20) if job.batch << k <= most]


def _rates(job: TrainingJob, best: pd.DataFrame, counts: np.ndarray) -> JobTimes:
    rates, batches = np.zeros((3, len(counts))), np.full(len(counts), job.batch)
    for at, n in enumerate(counts.tolist()):
        for batch in _batches(job):
            if (job.model, batch, n) not in best.index:
                continue
            row = best.loc[(job.model, batch, n)]
            worth = batch / job.batch
            if job.noise_scale is not None:
                worth *= (job.noise_scale + job.batch) / (job.noise_scale + batch)
            times = row[["predicted_s", "high_s", "low_s"]].to_numpy(float)
            if worth / times[0] > rates[0, at]:
                rates[:, at], batches[at] = worth / times, batch
    return JobTimes(counts, rates[0], rates[1], rates[2], batches)
