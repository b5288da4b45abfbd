"""Training steps of PyTorch that two processes of this machine share, joined by gloo, predicted and
run for real: replicated by DDP, or sharded by FSDP2 (`rank_steps.py`).

Each process runs on a core of its own. A step is predicted from what one rank is captured to call,
its messages priced by collectives measured between two such processes: `hybridperf calibrate
--library torch`, and again with `--collectives --cores-each 1`, into one folder. Judged are the
seconds of the rank that works longer, by its core's processor time, since other programs share
these cores.
"""

import datetime
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims import harness
from hybridperf.engine.prediction import predict
from hybridperf.io import InputError, read_json, replacing, write_json
from hybridperf.model import PerfModel
from hybridperf.model.fit.programs import run_program
from hybridperf.validate import measured_steps
from hybridperf.validate.measured_steps import MeasuredStep, StepComparison

PROCESSES = 2
GOAL = 0.15
_SUMMARY_SCHEMA_VERSION = 1

STEPS = tuple(f"benchmarks.claims.rank_steps:{name}" for name in (
    "replicated_mlp", "replicated_cnn", "replicated_resnet", "replicated_gpt",
    "sharded_mlp", "sharded_gpt", "sharded_autoencoder", "sharded_lstm",
))  # fmt: skip


def run(
    model: PerfModel, out: str | os.PathLike, *, steps: Sequence[str] = STEPS, rounds: int = 8,
    say: Callable[[str], None] = print,
) -> Mapping[str, Any]:  # fmt: skip
    """Measure the steps, predict each; leaves `summary.json`, `results.json` and `steps.png`.

    Args:
        model: of this machine through PyTorch, with collectives.
        out: where everything is written.
        steps: "module:function" each, called where a process group is.
        rounds: turns of each step.
        say: takes lines of the report.

    Raises:
        InputError: the model is of another library, or knows no collectives.
    """
    out, start_s = Path(out), time.perf_counter()
    if model.provenance.get("library") != "torch" or model.collectives is None:
        raise InputError(
            "expected a model measured through PyTorch that knows collectives; run `hybridperf"
            " calibrate --library torch` with its folder, and again with `--collectives"
            " --cores-each 1`"
        )
    say(f"running {len(steps)} steps on {PROCESSES} processes, one core each")
    measured = measure_ranks(out / "steps", steps, PROCESSES, rounds=rounds)
    compared = [StepComparison(step, predict(model, step.workload)) for step in measured]
    summary = measured_steps.summarise(compared)
    say("\n" + measured_steps.table(compared))
    say("\n" + measured_steps.summary_text(summary))
    for note in dict.fromkeys(note for one in compared for note in one.predicted.notes):
        say(f"note: {note}")
    least = min(step.cpu_share for step in measured)
    say(f"note: a step got its cores for {least:.0%} of the time at least; the rest is not counted")
    measured_steps.plot(compared, out / "steps.png")
    summary = {
        "date": datetime.date.today().isoformat(), "model": harness.model_record(model),
        "goal": GOAL, **summary,
    }  # fmt: skip
    write_json(out / "summary.json", "validate-ranks", _SUMMARY_SCHEMA_VERSION, summary)
    kinds = {"replicated by DDP": "replicated", "sharded by FSDP2": "sharded"}
    lines = [measured_steps.result_line(compared, f"steps on {PROCESSES} processes", GOAL)]
    for kind, word in kinds.items():
        of = [one for one in compared if f":{word}" in one.measured.name]
        lines += [measured_steps.result_line(of, kind, GOAL)] if len(of) > 1 else []
    harness.write_results(out, "ranks", lines)
    say(f"\nsummary.json and steps.png are in {out}; {time.perf_counter() - start_s:.0f} s in all")
    return summary


def measure_ranks(
    folder: Path, steps: Sequence[str], processes: int, *, rounds: int = 8, seconds: float = 0.2
) -> list[MeasuredStep]:
    """Run steps of PyTorch ("module:function") that processes of this machine share, in turns.

    Args:
        folder: where what was measured is left.
        steps: each called where a process group is.
        processes: one on each core.
        rounds: turns of each step.
        seconds: of a turn.
    """
    with replacing(folder / "steps.spec.json") as handle:
        json.dump([{"function": step} for step in steps], handle, indent=1)
    options = ["--steps", str(folder / "steps.spec.json"), "--out", str(folder)]
    options += ["--processes", str(processes), "--rounds", str(rounds), "--seconds", str(seconds)]
    run_program("hybridperf_calibration.training_steps.torch_ranks", options)
    found = []
    for step in read_json(folder / "steps.json", "steps", measured_steps.STEPS_SCHEMA_VERSION)[
        "steps"
    ]:
        kept = {name: step[name] for name in measured_steps.KEPT if name in step}
        found.append(
            MeasuredStep(workload=measured_steps.captured(step["name"], processes), **kept)
        )
    return found
