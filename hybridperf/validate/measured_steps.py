"""Training steps that ran on this machine: measured by the calibration package's programs, and
predicted from the programs that ran; beside what needs no calibration (`step_baselines`).
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError, read_json, replacing
from hybridperf.model.fit.programs import run_program, usable_core
from hybridperf.report import plots, text
from hybridperf.validate.harness import ResultLine
from hybridperf.validate.scores import mape, scores
from hybridperf.validate.step_baselines import OF_OTHERS, baselines
from hybridperf.workloads.own import made_by
from hybridperf.workloads.programs.jax.program import load_program
from hybridperf.workloads.programs.torch.fakes import without_memory
from hybridperf.workloads.programs.torch.program import from_torch

STEPS_SCHEMA_VERSION = 2  # of measured steps
_OWN_CORE = 0.8  # processor seconds a second, below which others had the core


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """A training step that ran here: seconds, and the program that ran."""

    name: str
    time_s: float  # a usual call (the median) of the round that was disturbed least
    least_s: float  # over all repeats, as is the median
    median_s: float
    repeats: int
    noise: float  # how far a round's median lies above it, a share: the median over the rounds
    # processor seconds per second measured: on a CPU, far below 1 if others had the core
    cpu_share: float
    workload: Workload
    config: Mapping[str, Any]
    peak_bytes: float | None = None  # the most that was allocated at once, where asked
    op_s: Mapping[str, float] | None = None  # by instruction of the program, where profiled


KEPT = [one.name for one in dataclasses.fields(MeasuredStep) if one.name != "workload"]
StepSpec = dict[str, Any]  # of `hybridperf_calibration.training_steps.run`


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
    spec_path = str(folder / "steps.spec.json")
    options = [spec_path, "--out", str(out), "--programs", str(folder / "programs")]
    options += ["--cores", cores or usable_core(), "--rounds", str(rounds)]
    options += ["--profile"] if profile else []
    run_program("hybridperf_calibration.training_steps.run", options, "running steps")
    found = []
    for step in read_json(out, "steps", STEPS_SCHEMA_VERSION)["steps"]:
        if "program" in step:
            program = load_program(folder / "programs" / step["program"])
        else:
            program = captured(step["config"]["function"])
        found.append(MeasuredStep(workload=program, **{name: step[name] for name in KEPT}))
    return found


def captured(step: str, ranks: int = 1) -> Workload:
    """A step of PyTorch, "module:function", as this CPU runs it, or one rank of so many processes;
    it takes no memory.
    """
    with without_memory(ranks):
        fn, args, *optimizer = made_by(step)
        made = (*optimizer, None)[0]
        return from_torch(fn, *args, optimizer=made, name=step, backend="cpu")


def measure(
    step: str, *, cores: str | None = None, rounds: int = 4, library: str = "jax"
) -> MeasuredStep:
    """A step of one's own, run on this machine in a process of its own, pinned.

    Args:
        step: "module:function" of what `hybridperf predict --jax` (`--torch`) takes, found from
            this folder.
        cores: to pin to, such as "0" or "0-3"; one core if not given.
        rounds: times that the step has its turn; how far they differ is the noise.
        library: that runs it, jax or torch.

    Raises:
        InputError: the function cannot be called, or does not give (fn, args).
    """
    if not isinstance(step, str) or ":" not in step:
        needs = "expected a step as 'module:function', which a process of its own can import"
        raise InputError(f"{needs}, got {step!r}")
    with tempfile.TemporaryDirectory() as folder:
        workload = "own_torch" if library == "torch" else "own"
        spec = [{"workload": workload, "config": {"function": step}}]
        return measure_steps(folder, spec, cores=cores, rounds=rounds)[0]


@dataclasses.dataclass(frozen=True)
class StepComparison:
    """One step, measured and predicted from the very program that ran."""

    measured: MeasuredStep
    predicted: Prediction
    # seconds by another estimator's name, where one is to be compared with
    estimated_s: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.time_s / self.measured.time_s - 1

    @property
    def roofline_error(self) -> float:
        """The same of the datasheet roofline."""
        return self.predicted.roofline_s / self.measured.time_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted peak of memory over the measured one, less one; None where one is unknown."""
        peak, held = self.predicted.workload.peak_memory, self.measured.peak_bytes
        return peak.bytes / held - 1 if peak is not None and held else None

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the interval; None without one."""
        low_s, high_s = self.predicted.low_s, self.predicted.high_s
        return None if low_s is None or high_s is None else low_s <= self.measured.time_s <= high_s

    def record(self) -> dict[str, Any]:
        """Everything above as plain data."""
        step, p = self.measured, self.predicted
        return {
            "name": step.name, "config": dict(step.config), "measured_s": step.time_s,
            "measured_least_s": step.least_s, "measured_median_s": step.median_s,
            "repeats": step.repeats, "noise": step.noise, "cpu_share": step.cpu_share,
            "predicted_s": p.time_s, "low_s": p.low_s, "high_s": p.high_s,
            "roofline_s": p.roofline_s, "error": self.error, "inside": self.inside,
            "roofline_error": self.roofline_error, "flops": p.workload.flops,
            "notes": list(p.notes), "peak_bytes": step.peak_bytes,
            "memory_error": self.memory_error,
        }  # fmt: skip


_NAME = 44  # characters of a step's name beside its errors
_SHOWN = ["name", "measured_s", "noise", "predicted_s", "error", "low_s", "high_s", "inside",
          "roofline_s", "roofline_error", "memory_error"]  # fmt: skip


def table(compared: Sequence[StepComparison]) -> str:
    """Predicted and measured seconds as text, a line for each step."""
    return text.frame_table(pd.DataFrame([one.record() for one in compared])[_SHOWN])


def plot(compared: Sequence[StepComparison], path: Path) -> None:
    """Predicted against measured seconds, with intervals, beside the strongest baseline."""
    measured_s = [c.measured.time_s for c in compared]
    ways = _baselines(compared)
    best = min(ways, key=lambda name: mape(ways[name], measured_s))
    plots.measured_plot(
        [c.measured.name for c in compared], measured_s, [c.predicted.time_s for c in compared],
        path, [(c.predicted.low_s, c.predicted.high_s) for c in compared],
        (best, ways[best].tolist()),
    )  # fmt: skip


def _baselines(compared: Sequence[StepComparison]) -> dict[str, np.ndarray]:
    """Seconds of each step [N] by every baseline, and by estimators that know all steps."""
    measured_s = [c.measured.time_s for c in compared]
    found = baselines([c.predicted for c in compared], measured_s)
    for name in compared[0].estimated_s:
        if all(name in c.estimated_s for c in compared):
            found[name] = np.array([c.estimated_s[name] for c in compared])
    return found


def summarise(compared: Sequence[StepComparison]) -> dict[str, Any]:
    """Errors of all steps together, as shares, next to those of the baselines; coverage."""
    measured_s = [c.measured.time_s for c in compared]
    ways = _baselines(compared)
    worst = max(compared, key=lambda c: abs(c.error))
    with_interval = [c for c in compared if c.inside is not None]
    memory = [abs(c.memory_error) for c in compared if c.memory_error is not None]
    return {
        "steps": [
            {**c.record(), "baselines_s": {name: float(s[at]) for name, s in ways.items()}}
            for at, c in enumerate(compared)
        ],
        "mean_error": mape([c.predicted.time_s for c in compared], measured_s),
        "worst_error": worst.error, "worst_step": worst.measured.name,
        "inside": sum(bool(c.inside) for c in with_interval), "with_interval": len(with_interval),
        "baselines": {name: mape(seconds, measured_s) for name, seconds in ways.items()},
        "mean_noise": float(np.mean([c.measured.noise for c in compared])),
        "median_memory_error": float(np.median(memory)) if memory else None,
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether predictions beat all that needs no calibration."""

    beats: bool | None  # None: it cannot be judged
    words: str


def verdict(compared: Sequence[StepComparison], found: Mapping[str, Any]) -> Verdict:
    """What a run of steps shows, and where it shows nothing good, the likely reason; `found`: what
    `summarise` says of them.
    """
    error, noise, others = found["mean_error"], found["mean_noise"], found["baselines"]
    if len(compared) < 2:
        return Verdict(None, "cannot be judged: one step alone has no other to take a constant of")
    best = min(others, key=lambda name: others[name])
    both = f"{text.percent(error)} off, {best} {text.percent(others[best])}"
    if error <= others[best]:
        return Verdict(True, f"better than without a calibration: {both}")
    busy = min(compared, key=lambda one: one.measured.cpu_share).measured
    again = "run it again with nothing else on the machine"
    if busy.cpu_share < _OWN_CORE:
        had = f"{busy.name} had {text.percent(busy.cpu_share)} of its core, others the rest"
        return Verdict(None, f"cannot be judged: {both}, but {had}; {again}")
    if error - others[best] <= noise:
        floor = f"they differ by less than the noise floor of {text.percent(noise)}"
        return Verdict(None, f"cannot be judged: {both}; {floor}; {again}")
    worst = max(compared, key=lambda one: abs(one.error))
    longest = worst.predicted.breakdown().iloc[0]
    mend = "`hybridperf calibrate` without --quick measures for twenty minutes"
    if "--full" in str(worst.predicted.model.provenance.get("made_by")):
        mend = "calibrate again with nothing else on the machine"
    return Verdict(
        False,
        f"worse than without a calibration: {both}. Likely reason: {worst.measured.name} is off by"
        f" {text.percent(worst.error)} and spends {text.percent(longest['share'])} in"
        f" {longest['group']}, of which this calibration knows too little. What to do:"
        f" {mend}; until then do not trust steps that look like it here",
    )


def result_line(
    compared: Sequence[StepComparison], name: str, goal: float | None = None
) -> ResultLine:
    """All steps together as `results.json` keeps them."""
    summary = summarise(compared)
    steps = pd.DataFrame(summary["steps"])
    found = scores(*(steps[name] for name in ("measured_s", "predicted_s", "low_s", "high_s")))
    return dataclasses.replace(ResultLine.of(name, found, goal), baselines=summary["baselines"])


def summary_text(summary: Mapping[str, Any]) -> str:
    """What `summarise` found: the error of each step and their mean, by this model and by every
    baseline, then the rest in a few lines.
    """
    others, steps = summary["baselines"], summary["steps"]
    rows = [
        [text.short(step["name"], _NAME), step["error"],
         *(step["baselines_s"][name] / step["measured_s"] - 1 for name in others)]
        for step in steps
    ]  # fmt: skip
    rows.append([f"mean of {len(steps)}, absolute", summary["mean_error"], *others.values()])
    heads = ["error", "this model", *(name.removesuffix(OF_OTHERS) for name in others)]
    errors = text.table(heads, [[name, *map(text.percent, shares)] for name, *shares in rows])
    hits = "no interval: no measurements in this model"
    if intervals := summary["with_interval"]:
        hits = f"{summary['inside']} of {intervals} inside the 90 % interval"
    said = [f"worst {text.percent(summary['worst_error'])} ({summary['worst_step']}); {hits}"]
    said.append(f"noise floor of the measurement {text.percent(summary['mean_noise'])}")
    if summary["median_memory_error"] is not None:
        off = text.percent(summary["median_memory_error"])
        said.append(f"peak of allocated memory, median error {off}")
    if len(steps) > 1:
        said.append("constants are the best of the other steps, of each step anew")
    return "\n".join([errors, *said])
