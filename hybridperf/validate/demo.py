"""The main job on this machine, end to end: measure it, predict real training steps, run them, show
both numbers.

Everything printed and written comes from this run. The steps' sizes are in no calibration case;
each step is predicted from the program that then runs.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.engine.batches import predict_batch
from hybridperf.engine.prediction import Prediction, predict
from hybridperf.io import write_json
from hybridperf.model.fit.this_machine import Calibration, cores_for, measure
from hybridperf.report import fits, plots, text
from hybridperf.traces import perfetto
from hybridperf.validate import harness, measured_steps
from hybridperf.validate.measured_steps import StepComparison, StepSpec, measure_steps

CONFIGURATIONS = 10_000
CALIBRATION_BUDGET_S = 60.0
SUMMARY_SCHEMA_VERSION = 2  # since then all baselines by name
_FOUND = ("steps", "mean_error", "baselines", "mean_noise")

_STEPS: Sequence[StepSpec] = harness.facts("here.toml")["demo"]


def run(
    out: str | os.PathLike, cores: str | None = None, say: Callable[[str], None] = print
) -> Mapping[str, Any]:
    """Do it all; leaves summary, results, pictures, timeline and model in `out`."""
    out, cores, start_s = Path(out), cores or cores_for(Path(out) / "model"), time.perf_counter()
    say(f"1/4 measuring this machine on core {cores}, a minute and a half (resumes if stopped)")
    measured = measure(out / "model", setting="quick", cores=cores, budget_s=CALIBRATION_BUDGET_S)
    say("\n2/4 running six real training steps whose sizes are not in the calibration")
    with ThreadPoolExecutor(1) as pool:  # the steps compile for as long as the fit takes
        running = pool.submit(measure_steps, out / "steps", _STEPS, cores=cores)
        calibration = measured.fit()
        plots.roofline_plot(calibration.model, calibration.rows, out / "roofline.png")
        steps = running.result()
    say(fits.fit_report(calibration.report))
    compared = [StepComparison(step, predict(calibration.model, step.workload)) for step in steps]
    last = compared[-1].predicted
    say("\n" + measured_steps.table(compared))

    say(f"\n3/4 evaluating {CONFIGURATIONS:,} variations of this machine in one batch")
    batch = _evaluate_batch(calibration, last)
    say(
        f"{last.workload.name} ({batch['nodes']} ops):"
        f" {batch['configurations_per_s']:,.0f} configurations per second"
        f" ({batch['first_call_s']:.2f} s with compilation); from"
        f" {text.seconds(batch['fastest_s'])} to {text.seconds(batch['slowest_s'])}"
    )
    say("\n4/4 pictures and timeline")
    measured_steps.plot(compared, out / "steps.png")
    perfetto.write_timeline(last, out / "timeline.json")

    found = measured_steps.summarise(compared)
    verdict = measured_steps.verdict(compared, found)
    summary = {
        **{name: calibration.model.provenance[name] for name in ("machine", "date")},
        "calibration": calibration.report.summary(),
        **{name: found[name] for name in _FOUND},
        "beats_baselines": verdict.beats,
        "verdict": verdict.words,
        "batch": batch,
        "elapsed_s": time.perf_counter() - start_s,
    }
    write_json(out / "summary.json", "demo-summary", SUMMARY_SCHEMA_VERSION, summary)
    steps_line = measured_steps.result_line(compared, f"{len(compared)} training steps, {cores}")
    harness.write_results(out, "demo", [steps_line])
    say(
        "roofline.png, steps.png, timeline.json (https://ui.perfetto.dev), summary.json and the"
        f" model are in {out}"
    )
    say("\n" + measured_steps.summary_text(found) + f"\n{summary['elapsed_s']:.0f} s in all")
    say(verdict.words)
    return summary


def _evaluate_batch(calibration: Calibration, prediction: Prediction) -> dict[str, Any]:
    """Vary bandwidth, arithmetic and op floors over a factor of 16 each; how many a second."""
    rng = np.random.default_rng(0)
    factors = [2.0 ** rng.uniform(-2, 2, CONFIGURATIONS) for _ in range(3)]
    bandwidth = calibration.model.device.memory_bytes_per_s * factors[0]
    scales = {"peak_flops_scale": factors[1], "floor_s": factors[2]}
    knobs: dict[str, Any] = {"memory_bytes_per_s": bandwidth, **scales}
    took = []
    for _ in range(4):
        start_s = time.perf_counter()
        seconds = predict_batch(calibration.model, prediction.workload, **knobs)
        took.append(time.perf_counter() - start_s)
    return {
        "configurations": CONFIGURATIONS,
        "nodes": len(prediction.workload.graph),
        "unique_ops": len(prediction.workload.calls),
        "configurations_per_s": CONFIGURATIONS / min(took[1:]),
        "first_call_s": took[0],
        "fastest_s": float(seconds.min()),
        "slowest_s": float(seconds.max()),
    }
