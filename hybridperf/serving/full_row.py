"""An operating point as a row that says everything: each column of `serve` that a row leaves open,
with what counts there. A table that is filled with them is predicted alike.

Nothing is assumed of a framework that a row does not name, and of engines apart that a benchmark
deploys otherwise than the row's columns say. Numbers of workers and drafts that a row does not tell
are assumed and widen its interval: who names them says that they are so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hybridperf.fields.registry import NO, YES
from hybridperf.model.serving_effects import believed
from hybridperf.serving.rows import (
    FIELDS,
    LAYOUT,
    ServedRow,
    precision_words,
    said_values,
    understood,
)


def assumed(frame: pd.DataFrame) -> pd.DataFrame:
    """What is assumed of R operating points where they say nothing, as `hp.assumed` has it."""
    rows = zip(said_values(frame), understood(frame), strict=True)
    found = [left_open(values, row) for values, row in rows]
    return pd.DataFrame(found, index=frame.index, dtype=object)


def left_open(values: Mapping[str, Any], row: ServedRow) -> dict[str, Any]:
    """Columns that a row leaves open, and what counts there; none of a row that is refused."""
    engine = row.engine
    if engine is None:
        return {}
    kinds = ("",) if row.prefill is None else () if row.as_deployed else ("prefill_", "decode_")
    layout = {f"{kind}{name}" for kind in kinds for name in LAYOUT}
    precision, gemm, experts = precision_words(values, str(values["model_path"]))
    every: dict[str, Any] = {
        field.name: field.default
        for field in FIELDS
        if field.part != "layout" or field.name in layout
    }
    every |= {
        "mode": "agg" if row.prefill is None else "disagg", "concurrency": row.clients,
        "precision": precision or None, "gemm_quant_mode": gemm, "moe_quant_mode": experts,
        "kv_dtype": engine.kv_dtype, "backend_version": row.release or None,
        "max_num_seqs": engine.max_sequences, "max_num_batched_tokens": int(row.chunk),
        "opening_burst": YES if row.at_once else NO, "drafted": engine.drafted,
        "acceptance": engine.acceptance or None,
    }  # fmt: skip
    if len(kinds) > 1:
        every |= {"prefill_num_workers": row.prefill_workers, "decode_num_workers": row.workers}
    every |= {name: said for name, said in row.settings if name != "may_draft"}
    if row.at_once:  # without, to tell them tells that it is a run
        burst = believed(row.framework, row.prefill is not None, release=row.release).burst
        every["requests_per_client"] = row.requests or 1.0 / float(burst)
    else:
        every["requests_per_client"] = None
    return {name: one for name, one in every.items() if one is not None and name not in values}
