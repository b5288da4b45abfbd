"""What the calibration has not seen, predicted and run on this machine: twelve training steps, of
JAX, or of PyTorch (`torch_steps.py`) where the model was measured through that; steps of a user's
own kinds (`jax_steps.py`; PyTorch's twelve hold them already); and a decoder that is served
(`here_served.py`).

Of JAX: six recommendation models and six transformers, each of whose sizes (batch, width, depth,
tables or vocabulary) spreads over a factor of 8 at least, and none of which the demo uses; about a
millisecond to a quarter of a second each on one slow core, together 3 GB. They run in a process of
their own on the cores that the model was calibrated on, and each is predicted from the very program
that ran.
"""

import datetime
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.engine.prediction import predict
from hybridperf.io import read_json, write_json, write_table
from hybridperf.model import PerfModel
from hybridperf.model.fit.programs import default_backend, usable_core
from hybridperf.validate import harness, here_served, measured_steps, step_ops, torch_estimator
from hybridperf.validate.measured_steps import (
    MeasuredStep,
    StepComparison,
    StepSpec,
    measure_steps,
)

SUMMARY_SCHEMA_VERSION = 2  # since then all baselines by name, and a verdict
TASKS = ("steps", "kinds", "served")
_SAME_SPEED = 0.05  # between two days of one machine
_TURNS = 2
_ROUNDS = 8  # over a minute or two: one disturbance does not cover them all
_UNDISTURBED = 0.9  # share of the processor that a step has on a core of its own: 0.97 and more

STEPS: Sequence[StepSpec] = harness.facts("here.toml")["here"]
TORCH_STEPS: Sequence[StepSpec] = harness.facts("here.toml")["here_torch"]
KINDS: Sequence[StepSpec] = harness.facts("here.toml")["here_kinds"]
_TORCH_KINDS = ("cnn", "resnet", "vit", "lstm", "gnn")  # functions of `torch_steps.py`


def run(
    model: PerfModel,
    out: str | os.PathLike,
    *,
    cores: str | None = None,
    steps: Sequence[Mapping[str, Any]] | None = None,
    kinds: Sequence[Mapping[str, Any]] | None = None,
    ops: bool = False,
    tasks: Collection[str] = TASKS[:1],
    say: Callable[[str], None] = print,
) -> Mapping[str, Any]:
    """Measure, predict, leave figures in `out`; returns the summary of the steps, `summary.json`;
    where they are not asked for, that of the kinds, `kinds/summary.json`.

    Args:
        model: of this machine.
        out: a folder; `steps.png`, `served.csv` and `results.json` are left there, too.
        cores: to run on; else those that the model was calibrated on, else one.
        steps: that are run; all if not given.
        kinds: of the task `kinds`, that are run; all if not given.
        ops: profile the steps, too, and leave `ops/*.csv`, the ops of each step as they were
            predicted and as they were measured.
        tasks: of `TASKS`.
        say: takes what is printed.
    """
    out = Path(out)
    summary: Mapping[str, Any] = {}
    compared: list[StepComparison] = []
    lines: list[harness.ResultLine] = []
    harness.refuse_other_backend(model.device, default_backend())
    cores = cores or str(model.provenance.get("cores") or usable_core())
    if "steps" in tasks:
        some = steps_of(model) if steps is None else steps
        summary, compared = _steps(model, out, cores, some, ops, say)
        name = f"{len(compared)} training steps, {cores}"
        lines.append(measured_steps.result_line(compared, name))
    if "kinds" in tasks:
        some = kinds_of(model) if kinds is None else kinds
        ran = [one for one in compared if one.measured.config in [spec["config"] for spec in some]]
        if not ran:
            of_kinds, ran = _steps(model, out / "kinds", cores, some, ops, say)
            summary = summary or of_kinds
        name = f"{len(ran)} steps of CNNs, ViTs, LSTMs, graph networks, {cores}"
        lines.append(measured_steps.result_line(ran, name))
        say("\n" + harness.lines_table(lines, "steps"))
    if "served" in tasks:
        lines += here_served.run(model, out, cores=cores, say=say)
    harness.write_results(out, "here", lines)
    return summary


def _steps(
    model: PerfModel, out: Path, cores: str, steps: Sequence[Mapping[str, Any]], ops: bool,
    say: Callable[[str], None],
) -> tuple[Mapping[str, Any], list[StepComparison]]:  # fmt: skip
    start_s = time.perf_counter()
    say(f"running {len(steps)} training steps on core {cores}, about {8 * len(steps)} seconds")
    estimated_s: list[dict[str, float]] = [{} for _ in steps]
    unknown: list[str] = []
    if steps_of(model) is TORCH_STEPS:
        measured, written = _each_alone(out / "steps", steps, cores), out / "steps" / "0"
        functions = [step.config["function"] for step in measured]
        estimated_s, unknown = torch_estimator.estimates(functions, model.device.kind)
    else:
        measured = measure_steps(out / "steps", steps, cores=cores, profile=ops, rounds=_ROUNDS)
        written = out / "steps"
    compared = [
        StepComparison(step, predict(model, step.workload), estimate_s)
        for step, estimate_s in zip(measured, estimated_s, strict=True)
    ]
    version = measured_steps.STEPS_SCHEMA_VERSION
    machine = read_json(written / "steps.json", "steps", version)["machine"]
    summary = measured_steps.summarise(compared)
    steps_text = measured_steps.table(compared)
    verdict = measured_steps.verdict(compared, summary)
    text = measured_steps.summary_text(summary)
    say("\n" + steps_text + "\n\n" + text + "\n" + verdict.words)
    for note in [*_notes(model, machine, compared), *unknown]:
        say(f"note: {note}")
    if ops:
        for record, groups in zip(summary["steps"], _ops(compared, out, say), strict=True):
            record["groups"] = groups
    measured_steps.plot(compared, out / "steps.png")
    summary = {
        "machine": machine, "cores": cores, "date": datetime.date.today().isoformat(),
        "model": harness.model_record(model), **summary, "no_baseline": unknown,
        "beats_baselines": verdict.beats, "verdict": verdict.words,
        "elapsed_s": time.perf_counter() - start_s,
    }  # fmt: skip
    write_json(out / "summary.json", "validate-here", SUMMARY_SCHEMA_VERSION, summary)
    say(
        f"\nsummary.json, steps.png{', ops/*.csv' if ops else ''} and the programs are in {out};"
        f" {summary['elapsed_s']:.0f} s in all"
    )
    return summary, compared


def steps_of(model: PerfModel) -> Sequence[StepSpec]:
    """The unseen steps of the library that the model was measured through."""
    return TORCH_STEPS if model.provenance.get("library") == "torch" else STEPS


def kinds_of(model: PerfModel) -> Sequence[StepSpec]:
    """Those of a user's own kinds; of PyTorch some of its unseen steps."""
    if steps_of(model) is STEPS:
        return KINDS
    named = [f"hybridperf.validate.torch_steps:{name}" for name in _TORCH_KINDS]
    return [spec for spec in TORCH_STEPS if spec["config"]["function"] in named]


def _each_alone(folder: Path, steps: Sequence[Mapping[str, Any]], cores: str) -> list[MeasuredStep]:
    """Each step in processes of its own, in two turns: a step that ran before leaves memory behind
    that PyTorch's next one would not have; the turn that was disturbed less counts.
    """
    turns = [
        [
            measure_steps(folder / str(at), [step], cores=cores, rounds=_ROUNDS // _TURNS)[0]
            for at, step in enumerate(steps)
        ]
        for _ in range(_TURNS)
    ]
    return [min(of_one, key=lambda one: one.time_s) for of_one in zip(*turns, strict=True)]


def _ops(
    compared: Sequence[StepComparison], out: Path, say: Callable[[str], None]
) -> list[list[dict[str, Any]]]:
    """Say and write the ops of each step; returns each step's groups as plain data."""
    found = [step_ops.compare_ops(c.measured, c.predicted) for c in compared]
    for number, step in enumerate(found):
        write_table(step.ops, out / "ops" / f"step{number}.csv")
        say("\n" + step_ops.step_text(step))
    say("\n" + step_ops.all_steps_text(found))
    return [step_ops.by_group(step).to_dict("records") for step in found]


def _notes(
    model: PerfModel, machine: Mapping[str, Any], compared: Sequence[StepComparison]
) -> list[str]:
    """What a reader of the figures must know, once each."""
    notes = []
    least = min(c.measured.cpu_share for c in compared)
    if machine["backend"] == "cpu" and least < _UNDISTURBED:
        notes.append(
            f"other programs had these cores, too: a step got {least:.0%} of the time it was"
            " measured in; run again when idle"
        )
    then = model.provenance.get("machine") or {}
    for name, what in (("yardstick_product_s", "multiplies"), ("yardstick_copy_s", "copies")):
        if not (then.get(name) and machine.get(name)):
            continue
        slower = machine[name] / then[name] - 1
        if abs(slower) > _SAME_SPEED:
            word = "slower" if slower > 0 else "faster"
            how = f"{abs(slower):.0%} {word} today than when it was calibrated"
            notes.append(f"this machine {what} {how}")
    calibrated_on, here = then.get("cpu_model"), machine["cpu_model"]
    if calibrated_on and calibrated_on != here:
        notes.append(f"the model was calibrated on {calibrated_on}, these steps ran on {here}")
    by_note: dict[str, list[str]] = {}
    for number, c in enumerate(compared, start=1):
        for note in c.predicted.notes:
            by_note.setdefault(note, []).append(str(number))
    return notes + [
        f"{note} ({'all steps' if len(at) == len(compared) else 'step ' + ', '.join(at)})"
        for note, at in by_note.items()
    ]
