"""Tables of whole training runs: days, money and energy of each, with failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hybridperf.fields import fields_of
from hybridperf.fields.columns import answered
from hybridperf.fields.frames import Predict, Question, Rows, answering, as_frame, in_parts
from hybridperf.io import InputError
from hybridperf.runs.run_of_plan import given_step, run_cost
from hybridperf.runs.training_run import RunSettings, TrainingRun, training_run

if TYPE_CHECKING:
    import pandas

_TOTALS = ("goodput", "uptime", "failures", "gpu_hours", "usd", "energy_j")
WORDS = ("layout", "note")
COLUMNS = (
    "predicted_days", "days_low", "days_high",
    *(f"{name}{end}" for name in _TOTALS for end in ("", "_low", "_high")),
    "predicted_step_s", "spare_nodes", "checkpoint_every_s", *WORDS,
)  # fmt: skip
_OF_STEP = ("state_bytes", "gpus_per_node", "width")


def predict_runs(rows: Rows) -> pandas.DataFrame:
    """Days, goodput, money and energy of whole training runs, with failures.

        hp.predict_runs([{"model": "llama3-70b", "system": "dgx_h100", "n_gpus": 1024,
                          "tokens": "15T", "checkpoint": "async"}])

    Adds `predicted_days, days_low, days_high`; `goodput`, `uptime`, `failures`, `gpu_hours`, `usd`,
    `energy_j`, each with `_low` and `_high`; `predicted_step_s`, `spare_nodes`,
    `checkpoint_every_s`, `layout`, `note`. The step is that of the best layout, within what a row
    pins of it (`tp=8`), or `step_time_s`.

    Args:
        rows: R runs, in the columns of `hybridperf run --help`.

    Raises:
        InputError: for a column that resembles one that is read.
    """
    return in_parts(as_frame(rows), _runs(), "runs", first=4)


def _runs() -> Predict:
    return lambda part, _: answered(part, "runs", lambda said: _columns(_run(said)), COLUMNS, WORDS)


def _run(said: Mapping[str, Any]) -> TrainingRun:
    """The run of a row."""
    fields = fields_of("runs")
    own = {name: said[name] for name in fields.of("settings") if name in said}
    beliefs = {name: said[name] for name in fields.of("beliefs") if name in said}
    mtbf = {"job": said["job_mtbf_s"]} if "job_mtbf_s" in said else {}
    spares = own.pop("spares", None)
    settings = RunSettings(
        **own, spares=None if spares is None else int(spares), mtbf_s=mtbf, given=beliefs
    )
    if "step_time_s" not in said:
        if of_step := [name for name in fields.of("step") if name in said]:
            raise InputError(f"expected step_time_s with {of_step[0]} in a row of a run, got none")
        if "tokens" not in said:
            raise InputError("expected tokens, or step_time_s and steps, in a run, got neither")
        asked = answering("plans").arguments_of(said)
        return run_cost(**asked, tokens=said["tokens"], settings=settings)
    if "model" in said or "tokens" in said:
        raise InputError(
            "expected model, system and tokens, or step_time_s and steps, in a run, got both"
        )
    if lacking := [name for name in ("n_gpus", "steps") if name not in said]:
        raise InputError(f"expected {lacking[0]} with step_time_s in a row of a run, got none")
    more = {name: said[name] for name in _OF_STEP if name in said}
    step = given_step(said["step_time_s"], said["n_gpus"], device=said.get("gpu"), **more)
    found = training_run(step, said["steps"], settings)
    of_plans = set(said) & {*fields_of("plans").by_name} - {"n_gpus", "gpu", "id"}
    if not of_plans:
        return found
    unread = f"not read with step_time_s: {', '.join(sorted(of_plans))}"
    return dataclasses.replace(found, notes=(*found.notes, unread))


def _columns(found: TrainingRun) -> dict[str, Any]:
    table = found.table.set_index("what")
    out: dict[str, Any] = {}
    for name in map(str, table.index):
        out[name], out[f"{name}_low"], out[f"{name}_high"] = found.row(name)
    out["predicted_days"] = out.pop("days")
    every_s = float(found.cycle.interval_s)
    return out | {
        "predicted_step_s": found.step_s, "spare_nodes": found.spares,
        "checkpoint_every_s": every_s, "layout": found.words, "note": "; ".join(found.notes),
    }  # fmt: skip


QUESTION = Question(_runs, COLUMNS, "predicted_days", "runs", chunk=64)
