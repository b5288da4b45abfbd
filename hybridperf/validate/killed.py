"""A training loop of this machine, killed at random under two intervals between checkpoints.

Predicted: `goodput` of what undisturbed stretches before and after showed (seconds of a step, of a
checkpoint, of a restart) and the rate of kills. Measured: steps in the last checkpoint x seconds of
a step of the killed loop itself, over all its seconds. Gaps between kills are even quantiles of the
exponential law in an order of fixed seed, so that few of them are enough. Seconds are the
processor's (the program says why). Beside it stand the loop without restarts and redone work, and
the first-order loss: half a segment and a restart for each kill.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import read_json
from hybridperf.model.fit.programs import run_program, usable_core
from hybridperf.report import text
from hybridperf.runs.goodput import FailureCycle, goodput
from hybridperf.validate.harness import Found, ResultLine

PROGRAM = "hybridperf_calibration.training_steps.killed"
_SCHEMA_VERSION = 1
_GOAL = 0.15
_CHECKPOINTS_ALONE = "checkpoints alone"
_FIRST_ORDER = "first order"


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long the loop is killed: intervals in steps, kills of each, mean seconds between."""

    intervals: tuple[int, int]
    kills: int
    mean_s: float
    reference_steps: int
    seed: int = 0


WHOLE = Effort((5, 40), 20, 2.0, 160)
QUICK = Effort((5, 40), 6, 1.5, 80)


def judged(effort: Effort, cores: str | None = None) -> Found:
    """Goodput of the killed loop, predicted beside measured, for both intervals."""
    rng = np.random.default_rng(effort.seed)
    even = -np.log1p(-(np.arange(effort.kills) + 0.5) / effort.kills) * effort.mean_s
    phases: list[dict[str, Any]] = []
    for interval in effort.intervals:
        calm = {"interval_steps": interval, "steps": max(effort.reference_steps, interval)}
        gaps_s = rng.permutation(even).tolist()
        phases += [calm, {"interval_steps": interval, "gaps_s": gaps_s}, calm]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "spec.json").write_text(json.dumps(phases))
        run_program(PROGRAM, [
            str(folder / "spec.json"), "--folder", str(folder / "run"), "--out",
            str(folder / "out.json"), "--cores", cores or usable_core(),
        ])  # fmt: skip
        found: list[Any] = read_json(folder / "out.json", "killed-run", _SCHEMA_VERSION)["phases"]
    rows = [
        _compared(interval, found[3 * at : 3 * at + 3], float(even.mean()))
        for at, interval in enumerate(effort.intervals)
    ]
    frame = pd.DataFrame(rows)
    cells = [
        [f"{one.interval_steps} steps",
         *map(text.seconds, (one.step_s, one.checkpoint_s, one.restart_s)),
         *map(text.percent, (one.measured, one.predicted, one.error, one.checkpoints_alone,
                             one.first_order))]
        for one in frame.itertuples()
    ]  # fmt: skip
    head = ["checkpoint every", "step", "checkpoint", "restart", "measured", "predicted", "error",
            _CHECKPOINTS_ALONE, _FIRST_ORDER]  # fmt: skip
    lines = [
        ResultLine(
            f"runs, killed loop, {one.interval_steps} steps", abs(one.error), effort.kills, _GOAL,
            {_CHECKPOINTS_ALONE: abs(one.checkpoints_alone / one.measured - 1),
             _FIRST_ORDER: abs(one.first_order / one.measured - 1)}, "error of goodput",
        )
        for one in frame.itertuples()
    ]  # fmt: skip
    closing = f"{effort.kills} kills each, one in {even.mean():.2g} s in the mean"
    return Found(f"{text.table(head, cells)}\n{closing}", {"killed": frame}, lines)


def _compared(interval: int, phases: list[Mapping[str, Any]], mean_s: float) -> dict[str, Any]:
    """A killed phase between two undisturbed ones."""
    before, killed, after = phases
    of = {
        name: (float(before[name]) + float(after[name])) / 2
        for name in ("step_s", "checkpoint_s", "restart_s")
    }
    useful_s, rate = interval * of["step_s"], 1.0 / mean_s
    cycle = FailureCycle(rate, useful_s, of["checkpoint_s"], restart_s=of["restart_s"])
    predicted = float(goodput(cycle).useful)
    measured = int(killed["steps"]) * float(killed["step_s"]) / float(killed["seconds"])
    segment_s = useful_s + of["checkpoint_s"]
    first = useful_s / segment_s * (1 - rate * (segment_s / 2 + of["restart_s"]))
    return {
        "interval_steps": interval, **of, "measured": measured, "predicted": predicted,
        "error": predicted / measured - 1 if measured else np.inf,
        "checkpoints_alone": useful_s / segment_s, "first_order": first,
        "killed_step_s": killed["step_s"], "killed_restart_s": killed["restart_s"],
    }  # fmt: skip
