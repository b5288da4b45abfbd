"""Tables of plans: the best layout of each row and what it takes; and its step, for runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.engine.repeated_step import Step
from hybridperf.engine.step_features import StepParts
from hybridperf.fields import fields_of
from hybridperf.fields.columns import answered
from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts
from hybridperf.hardware.machines import aliases
from hybridperf.io import InputError
from hybridperf.io.numbers import number_of_tokens
from hybridperf.training.plans.explain import drives
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.ranked import stalled_steps, step_intervals
from hybridperf.training.plans.run import Plan, plan
from hybridperf.workloads.memory import model_states

if TYPE_CHECKING:
    import pandas

_LAYOUT = ("tp", "pp", "dp", "cp", "ep", "vp", "zero", "micro_batch", "recompute", "schedule")
_OF_STEP = ("low_s", "high_s", "tokens_per_s", "mfu", "memory_bytes", "usd", "energy_j", "days",
            "total_usd")  # fmt: skip
NUMBERS = ("predicted_s", *_OF_STEP)
WORDS = ("best_recompute", "best_schedule", "layout", "note")
COLUMNS = (*NUMBERS, *(f"best_{name}" for name in _LAYOUT), "layout", "note")
# a field of a row -> the argument of `plan`; the others that steps define are those of a layout
_ARGUMENTS = {"gpu": "device", "global_batch": "batch", "seq": "seq", "framework": "framework"}
_NEEDED = ("model", "system", "n_gpus")
_KEPT = 64  # layouts; the best alone counts


def predict_plans(rows: Rows) -> pandas.DataFrame:
    """The best layout of each row's model on its devices, and what it takes.

        hp.predict_plans([{"model": "llama3-70b", "system": "dgx_h100", "n_gpus": n}
                          for n in (64, 128, 256)])

    Adds `predicted_s, low_s, high_s, tokens_per_s, mfu, memory_bytes, usd, energy_j`, `days` and
    `total_usd` where `tokens` are given, the layout as `best_tp`, `best_pp`, ... and in words in
    `layout`, `note`. `hp.plan` tells more of one of them.

    Args:
        rows: R plans: model, system, n_gpus, global_batch, seq, framework, precision, tokens,
            objective, memory_bytes, and fields of a layout that are pinned.

    Raises:
        InputError: for a column that resembles one that is read.
    """
    return in_parts(as_frame(rows), _plans(), "plans", first=4)


def _plans() -> Predict:
    return lambda part, _: answered(part, "plans", _of_row, COLUMNS, WORDS)


def arguments_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """What `plan` is asked for a row besides tokens and objective.

    Raises:
        InputError: for a row that names no model, system or number of devices.
    """
    lacking = [name for name in _NEEDED if name not in said]
    if lacking:
        raise InputError(f"expected {', '.join(lacking)} of a plan in a row, got none")
    given = {ours: said[name] for name, ours in _ARGUMENTS.items() if name in said}
    if word := said.get("precision"):
        meant = aliases()["precision"][word]
        given |= {name: meant[name] for name in ("dtype", "quant") if name in meant}
    steps = fields_of("steps")
    others = {*_NEEDED, *_ARGUMENTS, "precision", "id", "gpus_per_node"}
    only = {name: [one] for name, one in said.items() if name in steps and name not in others}
    first = {"model": said["model"], "system": said["system"], "gpus": said["n_gpus"]}
    return {**first, **given, "only": only or None}


def _of_row(said: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row's best layout."""
    more: dict[str, Any] = {name: said[name] for name in ("objective", "memory_bytes")
                            if name in said}  # fmt: skip
    if "tokens" in said:
        more["tokens"] = number_of_tokens(said["tokens"])
    best = plan(**arguments_of(said), **more, limit=_KEPT)
    row = best.top(1).iloc[0]
    out = {name: float(row[name]) for name in _OF_STEP if name in row}
    layout = {f"best_{name}": row[name] for name in _LAYOUT}
    notes = "; ".join(best.notes)
    words = {"layout": layout_words(best.best), "note": notes}
    return {"predicted_s": float(row["time_s"]), **out, **layout, **words}


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
    best = plan(model, system, gpus, batch=batch, limit=_KEPT, only=dict(only) or None, **asked)
    case = best.cases[best.choice(0).case]
    return step_of_plan(best), case.space.global_batch * best.setup.shape.seq


QUESTION = Question(_plans, COLUMNS, registry="plans", chunk=16)
