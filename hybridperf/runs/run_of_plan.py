"""A step for `training_run`: of a plan's best layout, of a row of training steps, or as given."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.engine.economy import economy
from hybridperf.engine.repeated_step import Step
from hybridperf.engine.step_features import StepParts
from hybridperf.fields.frames import answering
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.io.numbers import number_of_tokens
from hybridperf.runs.training_run import RunSettings, TrainingRun, training_run


def given_step(
    step_s: float, gpus: int, *, device: str | None = None, state_bytes: float = 0.0,
    gpus_per_node: int = 8, prices: str | os.PathLike | None = None, width: float = 0.0,
) -> Step:  # fmt: skip
    """A step whose seconds are known.

    Args:
        step_s: seconds of a step.
        gpus: that take part.
        device: what they are, for money and energy; None: neither is told.
        state_bytes: of a checkpoint.
        gpus_per_node: of these.
        prices: a file with rates that replace the shipped assumptions.
        width: half of the 90 % interval of the seconds, as a share.
    """
    if not (gpus >= 1 and gpus_per_node >= 1):
        raise InputError(
            f"expected 1 GPU or more, in nodes of 1 or more, got {gpus} in nodes of {gpus_per_node}"
        )
    if not 0 <= width < 1:
        raise InputError(f"expected a width of the step from 0 to below 1, got {width:g}")
    if not 0 <= state_bytes < float("inf"):
        raise InputError(f"expected checkpoints of 0 bytes or more, got {state_bytes:g}")
    if not 0 < step_s < float("inf"):
        raise InputError(f"expected a step above 0 s, got {step_s:g}")
    file = None if prices is None else Path(prices)
    rates = None if device is None else economy(load_device(device), file)
    return Step(
        step_s, step_s * (1 - width), step_s * (1 + width), gpus, gpus_per_node, state_bytes,
        economy=rates, words=f"steps of {step_s:g} s on {gpus} GPUs",
    )  # fmt: skip


def run_cost(
    model: Any, system: str, gpus: int, tokens: float | str, *, batch: int | None = None,
    ramp: Sequence[tuple[float | str, int]] = (), settings: RunSettings | None = None, **asked: Any,
) -> TrainingRun:  # fmt: skip
    """A whole training run of a model: days, money and energy, with intervals.

    Args:
        model: name of a published model, a file of its sizes, or a shape (`hp.load_shape`).
        system: name of a system, or a .toml file.
        gpus: number of devices.
        tokens: of the whole run, 300e9 or "300B".
        batch: samples of a step over all devices; None: about 4 million tokens.
        ramp: a batch that grows: until so many tokens a step has so many samples, in the layout
            that is best for them; `batch` after the last.
        settings: how the run is kept alive (`hp.RunSettings`).
        asked: anything else that `hp.plan` takes: seq, device, framework, dtype, only, ...

    Raises:
        InputError: no layout runs, or a setting cannot be.
    """
    plans = answering("plans")
    total = number_of_tokens(tokens)
    found, counts = list[Step](), list[float]()
    for share, samples in _phases(total, ramp, batch):
        step, tokens_of_step = plans.best_step(model, system, gpus, samples, asked)
        found.append(step)
        counts.append(share / tokens_of_step)
    return training_run(_mean_step(found, counts), sum(counts), settings)


def _phases(
    total: float, ramp: Sequence[tuple[float | str, int]], batch: int | None
) -> list[tuple[float, int | None]]:
    """(tokens, samples of a step) of each phase."""
    begun, phases = 0.0, list[tuple[float, int | None]]()
    for given, samples in ramp:
        until = number_of_tokens(given, "ramp")
        if not begun < until < total:
            raise InputError(
                f"expected phases of ramp that end one after the other, below the {total:g} tokens"
                f" of the run, got {until:g} after {begun:g}; mend their order"
            )
        phases.append((until - begun, samples))
        begun = until
    return [*phases, (total - begun, batch)]


def _mean_step(steps: Sequence[Step], counts: Sequence[float]) -> Step:
    """The step of phases in the mean; their ends of the interval go together."""
    if len(steps) == 1:
        return steps[0]

    def mean(values: Sequence[Any]) -> float:
        return float(np.average([float(value) for value in values], weights=counts))

    last = steps[-1]
    parts = [step.parts for step in steps if step.parts is not None]
    return dataclasses.replace(
        last, drives=None, step_s=mean([step.step_s for step in steps]),
        low_s=mean([step.low_s for step in steps]), high_s=mean([step.high_s for step in steps]),
        parts=StepParts(*map(mean, zip(*parts, strict=True))),
        # a run that stalls once does so in all its phases
        stall_chance=max(step.stall_chance for step in steps),
        stalled_s=mean([step.stalled_s or step.step_s for step in steps]),
        words="\n".join(f"{count:,.0f} steps: {step.words}"
                        for count, step in zip(counts, steps, strict=True)),
    )  # fmt: skip
