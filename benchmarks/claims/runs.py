"""Whole trainings: goodput of published runs, bills of GPU hours, a loop that is killed here.

published   Llama 3 405B and OPT-175B: goodput or uptime from how often they failed (`runs.toml`)
bills       GPU hours of six trainings inside the run's interval; beside them 6 N FLOPs a token at
            40 % of the peak, without failures
here        a training loop of this machine, killed at random under two intervals between
            checkpoints

Nothing is fitted on them. The failure counts that are believed are those of Llama 3 405B: its
number of failures is no prediction, its goodput is one.

Of the killed loop is predicted: `goodput` of what undisturbed processes in turn with it showed
(seconds of a step, of a checkpoint, of a restart) and the rate of kills. Measured: steps in the
last checkpoint x seconds of a step of the killed loop itself, over all its seconds. Gaps between
kills are even quantiles of the exponential law in an order of fixed seed, so that few of them are
enough. Seconds are the processor's (the program says why). Beside it stand the loop without
restarts and redone work, and the first-order loss: half a segment and a restart for each kill.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Columns, Found, ResultLine, claim, facts
from hybridperf.engine.economy import DAY_S, HOUR_S
from hybridperf.hardware import device_of, load_device, load_system
from hybridperf.io import InputError, read_json, read_table
from hybridperf.model.fit.programs import run_program, usable_core
from hybridperf.runs.goodput import FailureCycle, goodput, young_interval_s
from hybridperf.runs.run_of_plan import given_step, run_cost
from hybridperf.runs.training_run import RunSettings, TrainingRun, training_run
from hybridperf.training.steps.batch import PriceCache
from hybridperf.workloads.memory import model_states
from hybridperf.workloads.transformer.zoo import load_shape

TASKS = ("published", "bills", "here")
BILLS = "training_steps/bills_dev.csv"
_NAIVE = "6 N at 40 % of peak"
_YOUNG = "Young's loss alone"
_BILLED = Columns(
    "measured_gpu_hours", "gpu_hours", ("low", "high"), baselines={_NAIVE: "naive_gpu_hours"}
)


@claim("runs", TASKS)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """What its tasks say; `quick`: each bill at one number of GPUs, a short loop."""
    if "bills" in tasks and data is None:
        raise InputError(
            "expected --data FOLDER for the bills of runs, got none; give it, or"
            " --tasks published,here"
        )
    if "published" in tasks:
        yield published()
    if "bills" in tasks:
        yield bills(Path(data or ""), quick)
    if "here" in tasks:
        yield killed(QUICK if quick else WHOLE)


def published() -> Found:
    """Each published share beside ours; the baseline loses what Young's interval loses."""
    rows, lines = [], []
    for one in facts("runs.toml")["published"]:
        found = _published(one)
        ours, low, high = found.row(one["what"])
        rate, cycle = float(found.cycle.failures_per_s), found.cycle
        young_s = float(young_interval_s(rate, float(cycle.checkpoint_s)))
        naive = 1.0 - rate * young_s
        inside = low <= one["share"] <= high
        rows.append({"share": one["name"], "published_share": one["share"], "ours_share": ours,
                     "low_share": low, "high_share": high, "young_share": naive,
                     "inside": inside})  # fmt: skip
        lines.append(ResultLine(
            f"runs, {one['name']}", abs(ours / one["share"] - 1), 1,
            baselines={_YOUNG: abs(naive / one["share"] - 1)}, measure="error",
            coverage=float(inside),
        ))  # fmt: skip
    return Found("", {"published": pd.DataFrame(rows)}, lines)


def _published(one: Mapping[str, Any]) -> TrainingRun:
    states = model_states()
    state_bytes = one["parameters"] * (states.weight + states.optimizer)
    step = given_step(1.0, one["gpus"], state_bytes=state_bytes)
    mtbf_s = {"job": one["job_h"] * HOUR_S} if "job_h" in one else {}
    settings = RunSettings(mtbf_s=mtbf_s, by_hand=one.get("by_hand", False))
    return training_run(step, one["days"] * DAY_S, settings)


def bills(data: Path, quick: bool = False) -> Found:
    """GPU hours of each bill: predicted at the number of GPUs that is stated, and at others."""
    told = facts("runs.toml")["bills"]
    cache, records = PriceCache(), []
    for bill in read_table(data / BILLS).itertuples():
        stated = int(bill.n_gpus) if not np.isnan(bill.n_gpus) else told["gpus"][bill.group]
        others = () if quick or not np.isnan(bill.n_gpus) else told["varied"]
        device = load_device(device_of(load_system(told["systems"][bill.gpu])))
        naive = _naive_hours(str(bill.model), float(bill.tokens), device.peak("bf16", "matrix"))
        for gpus in dict.fromkeys((stated, *others)):
            record = {"bill": bill.id, "gpus": gpus, "stated": gpus == stated,
                      "measured_gpu_hours": bill.gpu_hours, "naive_gpu_hours": naive}  # fmt: skip
            try:
                found = run_cost(
                    bill.model, told["systems"][bill.gpu], gpus, float(bill.tokens),
                    batch=int(bill.global_batch), seq=int(bill.seq), cache=cache,
                )  # fmt: skip
            except InputError as error:
                records.append(record | {"note": str(error)})
                continue
            hours = dict(zip(("gpu_hours", "low", "high"), found.row("gpu_hours"), strict=True))
            records.append(record | hours | {"note": found.words})
    frame = pd.DataFrame(records)
    frame["inside"] = frame["measured_gpu_hours"].between(frame["low"], frame["high"])
    judged = frame[frame["stated"]]
    closing = f"{int(judged['inside'].sum())} of {len(judged)} bills inside, goal {told['goal']}"
    line = _BILLED.line("runs, bills of GPU hours", judged)
    return Found(closing, {"bills": frame}, [line], "bills")


def _naive_hours(model: str, tokens: float, peak_flops_per_s: float) -> float:
    told = facts("runs.toml")["bills"]
    flops = told["flops_per_parameter_and_token"] * load_shape(model).parameters * tokens
    return float(flops / (peak_flops_per_s * told["mfu"]) / HOUR_S)


_PROGRAM = "hybridperf_calibration.training_steps.killed"
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
    seed: int = 0


WHOLE = Effort((5, 40), 20, 2.0)
QUICK = Effort((5, 40), 6, 1.5)


def killed(effort: Effort, cores: str | None = None) -> Found:
    """Goodput of the killed loop, predicted beside measured, for both intervals."""
    rng = np.random.default_rng(effort.seed)
    even = -np.log1p(-(np.arange(effort.kills) + 0.5) / effort.kills) * effort.mean_s
    phases: list[dict[str, Any]] = []
    for interval in effort.intervals:
        phases.append({"interval_steps": interval, "gaps_s": rng.permutation(even).tolist()})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "spec.json").write_text(json.dumps(phases))
        run_program(_PROGRAM, [
            str(folder / "spec.json"), "--folder", str(folder / "run"), "--out",
            str(folder / "out.json"), "--cores", cores or usable_core(),
        ])  # fmt: skip
        found: list[Any] = read_json(folder / "out.json", "killed-run", _SCHEMA_VERSION)["phases"]
    rows = [
        _compared(interval, one, float(even.mean()))
        for interval, one in zip(effort.intervals, found, strict=True)
    ]
    frame = pd.DataFrame(rows)
    lines = [
        ResultLine(
            f"runs, killed loop, {one.interval_steps} steps", abs(one.error), effort.kills, _GOAL,
            {_CHECKPOINTS_ALONE: abs(one.checkpoints_alone / one.measured - 1),
             _FIRST_ORDER: abs(one.first_order / one.measured - 1)}, "error of goodput",
        )
        for one in frame.itertuples()
    ]  # fmt: skip
    closing = f"{effort.kills} kills each, one in {even.mean():.2g} s in the mean"
    return Found(closing, {"killed": frame}, lines, "kills")


def _compared(interval: int, found: Mapping[str, Any], mean_s: float) -> dict[str, Any]:
    """One interval's killed loop, and what is predicted from the undisturbed one."""
    of = {name: float(found["calm"][name]) for name in ("step_s", "checkpoint_s", "restart_s")}
    killed = found["killed"]
    if killed["step_s"] is None:
        raise InputError(
            f"expected a loop that gets on between kills, none wrote a checkpoint at {interval}"
            " steps; run it on a machine that does less"
        )
    useful_s, rate = interval * of["step_s"], 1.0 / mean_s
    cycle = FailureCycle(rate, useful_s, of["checkpoint_s"], restart_s=of["restart_s"])
    predicted = float(goodput(cycle).useful)
    measured = int(found["steps"]) * float(killed["step_s"]) / float(found["seconds"])
    segment_s = useful_s + of["checkpoint_s"]
    first = useful_s / segment_s * (1 - rate * (segment_s / 2 + of["restart_s"]))
    return {
        "interval_steps": interval, **of, "measured": measured, "predicted": predicted,
        "error": predicted / measured - 1 if measured else np.inf,
        "checkpoints_alone": useful_s / segment_s, "first_order": first,
        "killed_step_s": killed["step_s"], "killed_restart_s": killed["restart_s"],
    }  # fmt: skip
