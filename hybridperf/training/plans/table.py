"""A plan as a table: all legal layouts, fitting and best ones first, with what each takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from hybridperf.engine.economy import DAY_S
from hybridperf.engine.step_features import StepParts
from hybridperf.io import InputError, is_stream, replacing
from hybridperf.training.plans.costs import PricedSpace
from hybridperf.training.plans.ranked import RankedLayouts, tokens_of
from hybridperf.training.plans.space import LayoutSpace
from hybridperf.workloads.transformer.columns import RECOMPUTE, SCHEDULES

_COUNTS = (
    "tp", "sequence_parallel", "pp", "vp", "dp", "cp", "ep", "expert_tp", "zero", "shard_ranks",
    "micro_batch", "accumulation",
)  # fmt: skip
_WORDS = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
_SECONDS = ("compute_s", "exposed_comm_s", "bubble_s", "host_s")


def at_ranks(plan: RankedLayouts, ranks: np.ndarray) -> pd.DataFrame:
    """Layouts by rank with what each takes, one row each, indexed by rank."""
    return of_choices(plan, plan.ranked[ranks], pd.Index(ranks))


def of_choices(plan: RankedLayouts, at: np.ndarray, names: pd.Index) -> pd.DataFrame:
    """Layouts (case, place) [N, 2] with what each takes, one row each, by name [N]."""
    frames, places = [], []
    for number, case in enumerate(plan.cases):
        here = np.flatnonzero(at[:, 0] == number)
        if len(here):
            rows = at[here, 1]
            frames.append(_table(plan, case, case.rows[rows], rows).to_pandas())
            places.append(here)
    return pd.concat(frames).iloc[np.argsort(np.concatenate(places))].set_index(names)


def check_name(path: str | os.PathLike) -> Path:
    """The path, if its ending says a format; `InputError` otherwise."""
    path = Path(path)
    if path.suffix not in (".parquet", ".csv") and not is_stream(path):
        raise InputError(
            f"expected an output name ending in .parquet or .csv, got {path.name}; rename it"
        )
    return path


def write_layouts(plan: RankedLayouts, path: str | os.PathLike) -> int:
    """Write the layouts that a plan keeps (.parquet, .csv), the best first; returns rows.

    Behind them those that do not fit, unless more are legal than the plan keeps.

    Columns: what all have in common, in those of `steps`; `fits`; fields of a layout; `time_s` and
    what it is made of, empty where memory is too small; `memory_bytes`; `tokens_per_s, mfu,
    energy_j, usd` of a step; `days, total_usd` where a number of tokens was given.
    """
    path = check_name(path)
    fitting, others = [], []
    for number, case in enumerate(plan.cases):
        ranked = plan.ranked_in(number)
        fits = (case.memory_bytes <= case.setup.capacity_bytes)[case.space.base_of]
        fitting.append(_table(plan, case, case.rows[ranked], ranked))
        others.append(_table(plan, case, np.flatnonzero(~fits & plan.all_kept), None))
    table = _with_shared(pa.concat_tables([*fitting, *others]), plan.setup.shared_columns)
    with replacing(path, "wb") as handle:
        if path.suffix == ".parquet":
            few = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
            pyarrow.parquet.write_table(
                table, handle, compression="lz4", use_dictionary=few, write_statistics=False
            )
        else:
            pyarrow.csv.write_csv(table, handle)
    return int(table.num_rows)


def _with_shared(table: pa.Table, shared: Mapping[str, Any]) -> pa.Table:
    """A table with columns of one value each before its own."""
    rows = np.zeros(table.num_rows, np.int32)
    for name, value in reversed([*shared.items()]):
        words = isinstance(value, str)
        column = _coded(rows, [value]) if words else pa.array(_same(value, rows))
        table = table.add_column(0, name, column)
    return table


def _table(
    plan: RankedLayouts, case: PricedSpace, rows: np.ndarray, at: np.ndarray | None
) -> pa.Table:
    """Rows of a space as columns; `at`: their places among the priced ones, None: they are none."""
    space, rates = case.space, plan.economy
    base, base_of = space.base, space.base_of[rows]
    memory = case.memory_bytes[base_of]
    out: dict[str, Any] = {
        "gpus": _same(space.gpus, rows),
        "global_batch": _same(space.global_batch, rows),
        "fits": memory <= case.setup.capacity_bytes,
    }
    for name in _COUNTS:
        column = np.asarray(getattr(base, name))[base_of]
        out[name] = column.astype(bool) if name == "sequence_parallel" else column.astype(np.int32)
    for name, words in _WORDS.items():
        out[name] = _coded(np.asarray(getattr(base, name))[base_of], words)
    out["order"] = _orders(space, rows)
    if at is None:
        run = () if plan.tokens is None else ("days", "total_usd", "total_energy_j")
        taken = ("memory_bytes", "tokens_per_s", "mfu", "energy_j", "usd", *run)
        nothing = dict.fromkeys(("time_s", *_SECONDS, *taken), pa.nulls(len(rows), pa.float64()))
        return pa.table(out | nothing | {"memory_bytes": memory})
    parts = StepParts(*(part[at] for part in case.parts))
    step_s, tokens, gpus = parts.step_s, tokens_of(case), space.gpus
    energy, usd = rates.energy_j(gpus, parts), rates.usd(gpus, parts)
    flops, peak = case.setup.shape.model_flops(tokens), case.setup.mfu_flops_per_s
    out |= {"time_s": step_s} | {name: getattr(parts, name) for name in _SECONDS}
    out |= {"memory_bytes": memory, "tokens_per_s": tokens / step_s}
    out |= {"mfu": flops / (step_s * gpus * peak), "energy_j": energy, "usd": usd}
    if plan.tokens is not None:
        steps = plan.tokens / tokens
        out |= {"days": steps * step_s / DAY_S, "total_usd": steps * usd}
        out |= {"total_energy_j": steps * energy}
    return pa.table(out)


def _orders(space: LayoutSpace, rows: np.ndarray) -> pa.Array:
    orders = [" ".join(place.order) for place in space.places]
    words = list(dict.fromkeys(orders))
    code = {word: at for at, word in enumerate(words)}
    return _coded(np.array([code[order] for order in orders])[space.place_of[rows]], words)


def _same(value: int, rows: np.ndarray) -> np.ndarray:
    return np.full(len(rows), value, np.int32)


def _coded(codes: np.ndarray, words: Any) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32)), pa.array(list(words), pa.string())
    )
