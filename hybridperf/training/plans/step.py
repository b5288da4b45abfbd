"""The step of a plan's best layout, as a training run repeats it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridperf.engine.repeated_step import Step
from hybridperf.engine.step_features import StepParts
from hybridperf.training.plans.explain import drives
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.ranked import stalled_steps, step_intervals
from hybridperf.training.plans.run import Plan, plan
from hybridperf.workloads.memory import model_states

_LAYOUTS = 64  # the best alone counts


def step_of_plan(found: Plan) -> Step:
    """Step of a plan's best layout, as a training run repeats it."""
    row, choice = found.top(1).iloc[0], found.choice(0)
    case, states = found.cases[choice.case], model_states()
    chosen = np.array([[choice.case, choice.at]])
    chance, stalled_s = (float(one[0]) for one in stalled_steps(found, chosen))
    low_s, high_s = float(row["low_s"]), float(row["high_s"])
    if chance > 0:
        low_s, high_s = (float(one[0]) for one in step_intervals(found, chosen, stalls=False))
    where = f"{found.setup.shape.name} on {case.space.gpus} x {found.setup.device.id}"
    return Step(
        float(row["time_s"]), low_s, high_s, case.space.gpus,
        case.setup.gpus_per_node, found.setup.shape.parameters * (states.weight + states.optimizer),
        StepParts(*(part[choice.at] for part in case.parts)), found.economy,
        f"{where}, batch {case.space.global_batch}: {layout_words(found.best)}",
        chance, stalled_s, functools.partial(drives, found),
    )  # fmt: skip


def best_step(
    model: Any, system: str, gpus: int, batch: int | None, asked: Mapping[str, Any]
) -> tuple[Step, int]:
    """`_planned`, kept where what it is asked by are words and numbers that name no file."""
    only = {
        name: tuple(values) if isinstance(values, list) else values
        for name, values in (asked.get("only") or {}).items()
    }
    given = {name: value for name, value in asked.items() if name != "only" and value is not None}
    said = (model, system, *given.values())
    # what files say may change, and not everything can be looked up
    keeps = all(isinstance(one, str | int | float) and not os.path.exists(str(one)) for one in said)
    planned = _planned if keeps else _planned.__wrapped__
    return planned(model, system, gpus, batch, tuple(only.items()), **given)


@functools.lru_cache(64)
def _planned(
    model: Any, system: str, gpus: int, batch: int | None, only: tuple[tuple[str, Any], ...],
    **asked: Any,
) -> tuple[Step, int]:  # fmt: skip
    """The best layout's step and its tokens; kept, since neither a run's settings nor its tokens
    change it.
    """
    best = plan(model, system, gpus, batch=batch, limit=_LAYOUTS, only=dict(only) or None, **asked)
    case = best.cases[best.choice(0).case]
    return step_of_plan(best), case.space.global_batch * best.setup.shape.seq
