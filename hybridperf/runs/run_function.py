"""A training run as a pure function of its numbers, for JAX: days, money and energy by a step's
seconds, failures, checkpoints, spares, rents and beliefs.

    run = hp.run_function(hp.given_step(2.5, gpus=4096, device="h100_sxm"), steps=1e6)
    run(run.knobs)["days"]                               # today's: `hp.training_run`'s
    jax.grad(lambda k: run(k)["usd"])(run.knobs)         # USD for a second of a step, ...
    run({"step_s": f(knobs)})["days"]                    # of a step that is a function itself

It is `training_run` in the mean, the same formulas (`goodput.py`). Held are the number of GPUs, the
way checkpoints are written, and a step's shares of arithmetic, messages and waiting, by which it
draws power. The interval between checkpoints and the spares are those that are best today; where
they are free, slopes by all else are the same (the envelope theorem).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hybridperf.engine.elasticities import elasticities
from hybridperf.engine.knobs import KnobFunction, Knobs
from hybridperf.engine.repeated_step import Step
from hybridperf.engine.step_features import StepParts
from hybridperf.fields.frames import answering
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array
from hybridperf.runs.failures import JOB, facts, job_rate
from hybridperf.runs.goodput import Spares
from hybridperf.runs.training_run import (
    Known,
    RunSettings,
    TrainingRun,
    cycle_of,
    expected_of,
    known_of,
    training_run,
)

if TYPE_CHECKING:
    import pandas

_OF_STEP = ("step_s", "state_bytes")
_OF_SETTINGS = ("evaluation_share", "stalls_per_day", "stall_s", "warmup_s")
_OF_ECONOMY = ("full_w", "idle_w", "host_w", "pue", "usd_per_kwh", "message_share")


def run_function(
    step: Step | Any, steps: float, settings: RunSettings | None = None
) -> KnobFunction:
    """What a training run takes in the mean, as a pure JAX function of its numbers.

    Args:
        step: what is repeated (`hp.given_step`), or a plan, whose best layout is.
        steps: how often.
        settings: how the run is kept alive; where they leave the interval between checkpoints and
            the spares open, those that are best at today's numbers.

    Returns:
        A function of knobs, `f(knobs) -> results`: a dict of `days`, `goodput` (share of the time),
        `uptime`, `failures`, `gpu_hours`, and of a device's economy `energy_j`, `usd`, as
        `hp.training_run` has them. Its `knobs` are those of the step, `steps`, `interval_s`,
        `spares` (nodes), those of the settings, `mtbf_s` (seconds between failures of one part, by
        component, or of the "job"), `economy` (rates and watts), and `beliefs`; `f.units` has
        their units.

    Raises:
        InputError: as `hp.training_run`.
    """
    step = step if isinstance(step, Step) else answering("plans").step_of_plan(step)
    settings = settings or RunSettings()
    training_run(step, steps, settings)  # refuses what cannot be
    known = known_of(step, steps, settings)
    cycle = known.cycle
    usual: dict[str, Any] = {
        **{name: float(getattr(step, name)) for name in _OF_STEP}, "steps": float(steps),
        "interval_s": float(cycle.interval_s), "spares": float(known.spares.count),
        **{name: float(getattr(settings, name)) for name in _OF_SETTINGS},
        "mtbf_s": _mtbf_s(step, settings, known),
        "beliefs": {name: float(value) for name, value in known.middle.items()},
    }  # fmt: skip
    if settings.checkpoint == "memory":
        usual["checkpoints_per_write"] = float(cycle.checkpoints_per_write)
    if step.economy is not None:
        usual["economy"] = {name: float(getattr(step.economy, name)) for name in _OF_ECONOMY}
        if step.economy.usd_per_hour:
            usual["economy"]["usd_per_hour"] = float(step.economy.usd_per_hour)

    def results(_: Any, knobs: Knobs) -> dict[str, Array]:
        return _results(step, settings, known, usual, knobs)

    return KnobFunction(f"days, money and energy of a run of {step.words}", usual, results)


def run_elasticities(run: TrainingRun, result: str) -> pandas.DataFrame:
    """How strongly each number drives a run, the strongest first: those of `run_function`, and
    those of the machine, through the seconds of its step.

    Args:
        run: what `training_run` gives.
        result: which of its results, as "days" or "usd".

    Returns:
        The table of `hp.elasticities`.
    """
    found = elasticities(run_function(run.step, run.steps, run.settings), result)
    if run.step.drives is None:
        return found
    by_step = float(found.set_index("knob")["elasticity"].get("step_s", 0.0))
    machine = run.step.drives()
    whole = [found, machine.assign(elasticity=by_step * machine["elasticity"])]
    order = {"key": abs, "ascending": False, "ignore_index": True}
    return pd.concat(whole).sort_values("elasticity", **order)


def _mtbf_s(step: Step, settings: RunSettings, known: Known) -> dict[str, float]:
    """Seconds between failures of one part, or of the job where that is given."""
    if JOB in settings.mtbf_s:
        return {JOB: float(settings.mtbf_s[JOB])}
    units = {"gpu": step.gpus, "node": step.nodes}
    of = facts()["components"]
    return {name: units[of[name]["unit"]] / one.per_s for name, one in known.parts.items()}


def _results(
    step: Step, settings: RunSettings, known: Known, usual: Knobs, knobs: Knobs
) -> dict[str, Array]:
    beliefs = knobs["beliefs"]
    parts = step.parts or StepParts.busy(step.step_s)
    longer = knobs["step_s"] / usual["step_s"]
    economy = step.economy and dataclasses.replace(step.economy, **knobs["economy"])
    step = dataclasses.replace(
        step, **{name: knobs[name] for name in _OF_STEP}, economy=economy,
        parts=StepParts(*(part * longer for part in parts)),
    )  # fmt: skip
    settings = dataclasses.replace(settings, **{name: knobs[name] for name in _OF_SETTINGS})
    times = {name: usual["mtbf_s"][name] / mtbf_s for name, mtbf_s in knobs["mtbf_s"].items()}
    failing = {
        name: dataclasses.replace(one, per_s=one.per_s * times.get(name, times.get(JOB, 1.0)))
        for name, one in known.parts.items()
    }
    rate = job_rate(failing)
    cycle = dataclasses.replace(
        cycle_of(step, settings, beliefs, rate), interval_s=knobs["interval_s"],
        checkpoints_per_write=knobs.get("checkpoints_per_write", 1.0),
    )  # fmt: skip
    spares = Spares(knobs["spares"], beliefs["repair_s"], rate.broken)
    known = Known(beliefs, failing, cycle, spares)
    return expected_of(step, knobs["steps"], settings, known)[1]
