"""Where a row of training steps contradicts itself: two of its fields say different things about the same quantity.

    batch       micro-batch x accumulation x data-parallel ranks  against  the global batch
    tokens/s    the row's own  against  global batch x sequence / step time
    per GPU     tokens/s  against  tokens/s of a GPU x GPUs
    MFU         the row's own  against  model FLOPs / (step time x GPUs x peak)
    parameters  the row's own  against  those of its sizes

A row that says too little contradicts nothing. Tolerances are rounding of what was published, and for MFU how differently people count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.steps.names import Machine
from hybridperf.workloads.transformer import Layout, TransformerShape

RATE_TOLERANCE = 0.02
MFU_TOLERANCE = 0.10  # some count the causal half of attention, some the embedding
MFU_ROUNDING = 0.05  # percent: some publish one digit after the point
PARAMETER_TOLERANCE = 0.05


def of(
    row: Mapping[str, Any], shape: TransformerShape, layout: Layout, machine: Machine, dtype: str, global_batch: int | None
) -> tuple[str, ...]:
    """What contradicts itself, one sentence each."""
    found = []
    batch = layout.micro_batch * layout.accumulation * layout.dp
    if global_batch is not None and batch != global_batch:
        product = f"{layout.micro_batch} x {layout.accumulation} x {layout.dp} = {batch}"
        found.append(f"contradiction: micro-batch x accumulation x dp = {product}, global batch {global_batch}")
    step_s, tokens_per_s = number(row, "step_time_s"), number(row, "tokens_per_s")
    tokens = (global_batch or batch) * shape.seq
    found += _differs("tokens/s", tokens_per_s, None if step_s is None else tokens / step_s, RATE_TOLERANCE, "batch x sequence / step time")
    per_gpu, gpus = number(row, "tokens_per_s_gpu"), number(row, "n_gpus")
    whole = None if per_gpu is None or gpus is None else per_gpu * gpus
    found += _differs("tokens/s", tokens_per_s, whole, RATE_TOLERANCE, "tokens/s of a GPU x GPUs")
    mfu = number(row, "mfu")
    if mfu is not None:
        ours = _mfu(shape, layout, machine, dtype, tokens, step_s)
        found += _differs("MFU", mfu / 100, ours, MFU_TOLERANCE + MFU_ROUNDING / mfu, "FLOPs / time / peak")
    found += _differs("parameters", number(row, "params"), shape.parameters, PARAMETER_TOLERANCE, "those of the sizes")
    return tuple(found)


def number(row: Mapping[str, Any], field: str) -> float | None:
    """A positive number, None for anything else."""
    try:
        value = float(row.get(field) or math.nan)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _differs(what: str, said: float | None, other: float | None, tolerance: float, other_what: str) -> list[str]:
    if said is None or other is None or abs(math.log(said / other)) <= math.log1p(tolerance):
        return []
    return [f"contradiction: {what} {said:.4g}, but {other_what} {other:.4g}"]


def _mfu(shape: TransformerShape, layout: Layout, machine: Machine, dtype: str, tokens: float, step_s: float | None) -> float | None:
    """Of the matrix unit's dense peak; None where the device has none of that dtype."""
    try:
        peak = load_device(machine.device).peak(dtype, "matrix")
    except InputError:
        return None
    return None if step_s is None else shape.model_flops(tokens) / (step_s * layout.ranks * peak)
