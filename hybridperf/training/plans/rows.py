"""Rows of plans: each a model on so many devices, with its best layout and what that takes.

predicted_s low_s high_s    seconds of a step of the best layout; 90 % intervals
tokens_per_s mfu            of all devices
memory_bytes                of the fullest one
usd energy_j                of a step
days total_usd              of the training, where `tokens` are given
best_tp best_pp ...         fields of the layout, and `layout`, all of it in words
note                        why a row has no plan, else what was assumed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.fields.columns import answered
from hybridperf.hardware.machines import aliases
from hybridperf.io import InputError
from hybridperf.io.numbers import number_of_tokens
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.run import plan
from hybridperf.training.steps.batch import PriceCache, shared_price_cache

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


def plan_rows(frame: pd.DataFrame, cache: PriceCache | None = None) -> pd.DataFrame:
    """Plan each row of a table (columns: `fields/plans.toml`); equal rows once.

    Args:
        frame: the rows.
        cache: prices kept between calls; None: those of this process.
    """
    cache = cache or shared_price_cache()
    return answered(frame, "plans", lambda said: _planned(said, cache), COLUMNS, WORDS)


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


def _planned(said: Mapping[str, Any], cache: PriceCache) -> dict[str, Any]:
    """The columns of a row's best layout."""
    more: dict[str, Any] = {name: said[name] for name in ("objective", "memory_bytes")
                            if name in said}  # fmt: skip
    if "tokens" in said:
        more["tokens"] = number_of_tokens(said["tokens"])
    best = plan(**arguments_of(said), **more, cache=cache, limit=_KEPT)
    row = best.top(1).iloc[0]
    out = {name: float(row[name]) for name in _OF_STEP if name in row}
    layout = {f"best_{name}": row[name] for name in _LAYOUT}
    notes = "; ".join(best.notes)
    words = {"layout": layout_words(best.best), "note": notes}
    return {"predicted_s": float(row["time_s"]), **out, **layout, **words}
