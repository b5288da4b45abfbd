"""A whole training run: days, money and energy of so many steps on a cluster that fails.

    days = steps x step / goodput        goodput: `goodput.py`, its failures: `failures.py`

The step comes from the engine (a plan's best layout) or is given. Checkpoints cost what their bytes
take to the place where they go:

    sync     to storage, training stands still meanwhile
    async    copied to CPU memory, training stands still for that; written behind training
    memory   the same, and each copy also lies in another node's memory, from which most failures
             restart; one of several goes on to storage

Every number that nobody gave is a belief with a width; intervals are the 5th and 95th percentile
over draws of all of them, of the step's own interval, and of how many failures so long a run meets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hybridperf.engine.economy import DAY_S, HOUR_S
from hybridperf.engine.repeated_step import Step
from hybridperf.engine.step_features import StepParts
from hybridperf.io import InputError, unknown
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.runs import goodput
from hybridperf.runs.failures import JOB, Component, JobRate, components, facts, job_rate

CHECKPOINTS = ("sync", "async", "memory")
_DRAWS = 2000
_MOST_PER_WRITE = 64.0
_LONGEST_S = 100 * 365 * DAY_S
BELIEFS = tuple(facts()["beliefs"])
_LEAST = {
    "step_longer": 0.1, "storage_bytes_per_s_per_node": 1.0, "memory_bytes_per_s_per_gpu": 1.0,
    "repair_s": 1.0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """How a run is kept alive; None: what `failures.toml` believes, or the best.

    Attributes:
        checkpoint: sync, async or memory.
        interval_s: useful seconds between checkpoints; None: the best.
        spares: nodes that wait; None: as many as make the run cheapest.
        mtbf_s: between failures, by component or of the "job" (`failures.components`).
        evaluation_share: seconds of evaluation per second of training.
        stalls_per_day: of training: a slow node, until it is found.
        stall_s: that each costs.
        by_hand: people notice failures and restart the job, not programs.
        warmup_s: before the first step, once: compiling, loading, a slow start.
        given: beliefs that are known: name of `failures.toml`, value.
    """

    checkpoint: str = "async"
    interval_s: float | None = None
    spares: int | None = None
    mtbf_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    evaluation_share: float = 0.0
    stalls_per_day: float = 0.0
    stall_s: float = 0.0
    warmup_s: float = 0.0
    by_hand: bool = False
    given: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """What a run takes.

    Attributes:
        table: days, goodput, uptime (share of the time that the job runs), failures, gpu_hours,
            usd, energy_j, each `expected`, `low` and `high`.
        lost: shares of the time by what it goes to (`Goodput`).
        cycle: failures and checkpoints as they were chosen.
        spares: how many nodes wait.
        words: what runs.
        notes: beliefs, each with its source.
        step_s: seconds of a step, in the mean.
        step: what is repeated.
        steps: how often.
        settings: how the run is kept alive.
    """

    table: pd.DataFrame
    lost: dict[str, float]
    cycle: goodput.FailureCycle
    spares: int
    words: str
    notes: tuple[str, ...]
    step_s: float
    step: Step
    steps: float
    settings: RunSettings

    def row(self, name: str) -> tuple[float, float, float]:
        """(expected, low, high) of one line of the table."""
        one = self.table.set_index("what").loc[name]
        return float(one["expected"]), float(one["low"]), float(one["high"])


def training_run(step: Step, steps: float, settings: RunSettings | None = None) -> TrainingRun:
    """Days, money and energy of a run, with intervals.

    Args:
        step: what is repeated.
        steps: how often.
        settings: how the run is kept alive.

    Raises:
        InputError: a number is below its least, or two contradict each other.
    """
    settings = settings or RunSettings()
    told, known = _told(settings), known_of(step, steps, settings)
    found, expected = expected_of(step, steps, settings, known)
    if float(found.useful) < 1e-3:
        raise InputError(
            f"expected a run that gets on, got {float(found.useful):.1e} of its time useful with"
            f" {float(known.cycle.failures_per_s) * DAY_S:.3g} failures a day; give rarer failures,"
            " shorter restarts or faster checkpoints"
        )
    middle, count = known.middle, int(known.spares.count)
    draws = _draws(step, steps, settings, known, found)
    table = pd.DataFrame([
        {"what": name, "expected": float(value),
         "low": min(float(value), float(np.quantile(draws[name], 0.05))),
         # the mean of what fewer than one run in twenty meets lies above the 95th percentile
         "high": max(float(value), float(np.quantile(draws[name], 0.95)))}
        for name, value in expected.items()
    ])  # fmt: skip
    notes = [f"{name} {value:g} ({told[name]['source']})"
             for name, value in middle.items() if name not in settings.given]  # fmt: skip
    if not step.state_bytes:
        notes.insert(0, "state_bytes 0 (not given: checkpoints and their loading cost nothing)")
    if set(settings.mtbf_s) != {JOB}:
        notes.append(f"failures by {' '.join(facts()['source'].split())}")
    if step.stall_chance > 0:
        notes.append(
            f"expected of a run that does not stall; one in {round(1 / step.stall_chance)} like"
            f" this does, and takes {step.stalled_s / step.step_s:.2g} times as long"
        )
    if step.economy is not None:
        notes += step.economy.notes
    lost = {name: float(share) for name, share in found.shares().items()}
    return TrainingRun(
        table, lost, known.cycle, count, step.words, tuple(notes), step.step_s, step, steps,
        settings,
    )  # fmt: skip


class Known(NamedTuple):
    """What a run goes by: beliefs, and what was chosen at their medians."""

    middle: Mapping[str, Any]  # beliefs' medians
    parts: Mapping[str, Component]  # by which it fails
    cycle: goodput.FailureCycle
    spares: goodput.Spares


def _told(settings: RunSettings) -> dict[str, Any]:
    """Beliefs that nobody gave a value for and others, with their sources."""
    return facts()["beliefs"] | (facts()["by_hand"] if settings.by_hand else {})


def known_of(step: Step, steps: float, settings: RunSettings) -> Known:
    """Failures, the interval between checkpoints and the spares of a run; `InputError` for what
    cannot be.
    """
    _check(step, steps, settings)
    middle = {name: one["value"] for name, one in _told(settings).items()} | dict(settings.given)
    parts = components(step.gpus, step.nodes, settings.mtbf_s)
    rate = job_rate(parts)
    cycle = cycle_of(step, settings, middle, rate)
    if settings.interval_s is None:
        free = ("checkpoints_per_write",) if settings.checkpoint == "memory" else ()
        bounds = {"checkpoints_per_write": (1.0, _MOST_PER_WRITE)} if free else {}
        cycle = goodput.best_interval(cycle, free, bounds, step.step_s * middle["step_longer"])
    elif settings.interval_s < cycle.lag_s:
        raise InputError(
            f"expected an interval of at least the {cycle.lag_s:.3g} s that writing a checkpoint"
            f" takes, got {settings.interval_s:g} s; give a longer one or faster storage"
        )
    waiting = goodput.Spares(0.0, middle["repair_s"], rate.broken)
    count = settings.spares
    count = goodput.best_spares(cycle, waiting, step.nodes) if count is None else count
    return Known(middle, parts, cycle, dataclasses.replace(waiting, count=float(count)))


def expected_of(
    step: Step, steps: Any, settings: RunSettings, known: Known
) -> tuple[goodput.Goodput, dict[str, Any]]:
    """Where the time of a run goes, and what it takes in the mean; numbers may be traced."""
    found, _ = goodput.with_spares(known.cycle, known.spares)
    useful_s = steps * step.step_s * known.middle["step_longer"] + settings.warmup_s
    return found, _totals(step, useful_s, found, known.spares.count)


def cycle_of(
    step: Step, settings: RunSettings, known: Mapping[str, Any], rate: JobRate
) -> goodput.FailureCycle:  # fmt: skip
    """What bytes and bandwidths make of checkpoints and restarts."""
    write_s = step.state_bytes / (step.nodes * known["storage_bytes_per_s_per_node"])
    copy_s = step.state_bytes / (step.gpus * known["memory_bytes_per_s_per_gpu"])
    memory = settings.checkpoint == "memory"
    behind = settings.checkpoint != "sync"
    return goodput.FailureCycle(
        failures_per_s=rate.per_s,
        interval_s=1.0 if settings.interval_s is None else settings.interval_s,
        checkpoint_s=copy_s if behind else write_s,
        detection_s=known["detection_s"],
        restart_s=known["restart_s"] + write_s,
        lag_s=write_s if behind else 0.0,
        survived=rate.survived if memory else 0.0,
        memory_restart_s=known["restart_s"] + copy_s,
        checkpoints_per_write=8.0 if memory else 1.0,
        planned_per_s=known["planned_per_day"] / DAY_S,
        planned_s=known["planned_s"],
        evaluation_share=settings.evaluation_share,
        stalls_per_s=settings.stalls_per_day / DAY_S,
        stall_s=settings.stall_s,
    )  # fmt: skip


def _draws(
    step: Step, steps: float, settings: RunSettings, at: Known, found: goodput.Goodput
) -> dict[str, Any]:
    """What the run takes in draws of all that is not known [D]; fixed seed."""
    believed = {name: (one["value"], one["width"]) for name, one in _told(settings).items()}
    believed |= {name: (value, 0.0) for name, value in settings.given.items()}
    parts, chosen, spares = at.parts, at.cycle, at.spares
    useful_s = steps * step.step_s * at.middle["step_longer"] + settings.warmup_s
    rng = np.random.default_rng(0)
    known = {
        name: value * np.exp(width * rng.standard_normal(_DRAWS))
        for name, (value, width) in believed.items()
    }
    logs = {name: rng.standard_normal(_DRAWS) for name in parts}
    rate = job_rate(parts, logs)
    count = float(rate.per_s.mean() * useful_s / found.useful)
    met = rng.poisson(count, _DRAWS) / max(count, 1e-9) if count < 1e6 else 1.0
    rate_met = dataclasses.replace(rate, per_s=rate.per_s * np.maximum(met, 1e-3))
    cycle = dataclasses.replace(
        cycle_of(step, settings, known, rate_met),
        interval_s=chosen.interval_s, checkpoints_per_write=chosen.checkpoints_per_write,
    )  # fmt: skip
    waiting = goodput.Spares(spares.count, known["repair_s"], rate.broken)
    if settings.spares is None:  # as many for each failure under repair as was chosen
        load = rate.per_s * rate.broken * known["repair_s"]
        usual = chosen.failures_per_s * spares.broken * spares.repair_s
        waiting = dataclasses.replace(waiting, count=spares.count * np.maximum(load / usual, 1e-3))
    share, _ = goodput.with_spares(cycle, waiting)
    normal = rng.standard_normal(_DRAWS)
    far = np.where(normal < 0, math.log(step.step_s / step.low_s),
                   math.log(step.high_s / step.step_s))  # fmt: skip
    drawn_s = step.step_s * np.exp(normal * far / NINE_OF_TEN) * known["step_longer"]
    if step.stall_chance > 0:  # a second branch, not a wider first one
        stalls = rng.random(_DRAWS) < step.stall_chance
        drawn_s = drawn_s * np.where(stalls, step.stalled_s / step.step_s, 1.0)
    total_s = steps * drawn_s + settings.warmup_s
    return _totals(step, total_s, share, waiting.count)


def _totals(step: Step, useful_s: Any, found: goodput.Goodput, spares: Any) -> dict[str, Any]:
    """What a run of so many useful seconds takes."""
    wall_s = useful_s / found.useful
    out = {
        "days": wall_s / DAY_S,
        "goodput": found.useful,
        "uptime": 1.0 - found.detection - found.restart - found.planned,
        "failures": found.failures_per_s * wall_s,
    }
    paid = step.gpus + spares * step.gpus_per_node
    out["gpu_hours"] = paid * wall_s / HOUR_S
    if step.economy is None:
        return out
    rates = step.economy
    step_parts = step.parts or StepParts.busy(step.step_s)
    extra_w = rates.energy_j(step.gpus, step_parts) / step.step_s - rates.standing_w(step.gpus)
    works = found.useful + found.redone + found.evaluation + found.stalls
    energy_j = wall_s * (rates.standing_w(paid) + works * extra_w)
    if rates.owned:
        out["usd"] = rates.energy_usd(energy_j)
    elif rates.usd_per_hour is not None:
        out["usd"] = out["gpu_hours"] * rates.usd_per_hour
    return out | {"energy_j": energy_j}


def _check(step: Step, steps: float, settings: RunSettings) -> None:
    """`InputError` for what cannot be."""
    if settings.checkpoint not in CHECKPOINTS:
        raise unknown(
            "checkpoint", settings.checkpoint, CHECKPOINTS, f"known are {', '.join(CHECKPOINTS)}"
        )
    for name in settings.given:
        if name not in BELIEFS:
            raise unknown("setting", name, BELIEFS, f"known are {', '.join(BELIEFS)}")
    above = {"steps": steps, "step_s": step.step_s, "gpus": step.gpus,
             "interval_s": 1.0 if settings.interval_s is None else settings.interval_s}  # fmt: skip
    for name, value in above.items():
        if not 0 < value < math.inf:
            raise InputError(f"expected {name} above 0, got {value:g}")
    least = {
        "evaluation_share": settings.evaluation_share, "stalls_per_day": settings.stalls_per_day,
        "stall_s": settings.stall_s, "warmup_s": settings.warmup_s, "spares": settings.spares or 0,
        **settings.given,
    }  # fmt: skip
    for name, value in least.items():
        low = _LEAST.get(name, 0.0)
        if not low <= value < math.inf:
            raise InputError(f"expected {name} of {low:g} or more, got {value:g}")
    if (settings.stalls_per_day > 0) != (settings.stall_s > 0):
        raise InputError("expected both stalls_per_day and stall_s above 0 or neither; give both")
    if settings.spares is not None and settings.spares > step.nodes:
        raise InputError(
            f"expected at most as many spares as the job has nodes, {step.nodes}, got"
            f" {settings.spares}"
        )
    if steps * step.step_s > _LONGEST_S:
        raise InputError(
            f"expected a run of less than a century, got {steps:.3g} steps of {step.step_s:.3g} s;"
            " give fewer steps or tokens"
        )
    if settings.interval_s is not None and settings.interval_s < step.step_s:
        raise InputError(
            f"expected an interval of a step or longer, {step.step_s:.3g} s, got"
            f" {settings.interval_s:g} s"
        )
