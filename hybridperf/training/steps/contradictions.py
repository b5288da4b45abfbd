"""Where a row of training steps contradicts itself: two of its fields say different things about
the same quantity.

    batch       micro-batch x accumulation x data-parallel ranks  against  the global batch
    tokens/s    the row's own  against  global batch x sequence / step time
    per GPU     tokens/s  against  tokens/s of a GPU x GPUs
    MFU         the row's own  against  model FLOPs / (step time x GPUs x peak)
    parameters  the row's own  against  those of its sizes

A row that says too little contradicts nothing. Tolerances are rounding of what was published, and
for MFU how differently people count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hybridperf.training.steps.names import Machine
from hybridperf.training.steps.peaks import peak_flops_per_s
from hybridperf.workloads.transformer import Layout, TransformerShape

RATE_TOLERANCE = 0.02
MFU_TOLERANCE = 0.07
MFU_ROUNDING = 0.05  # percent: some publish one digit after the point
PARAMETER_TOLERANCE = 0.05


def of(
    row: Mapping[str, Any], shape: TransformerShape, layout: Layout, machine: Machine, dtype: str,
    quant: str, global_batch: int | None,
) -> tuple[str, ...]:  # fmt: skip
    """What contradicts itself, one sentence each, in the fields of a row as they stand.

    `shape`, `layout`: those it was understood as; `quant`: recipe of products, "" for `dtype`.
    """
    found = []
    batch = layout.micro_batch * layout.accumulation * layout.dp
    if global_batch is not None and batch != global_batch:
        product = f"{layout.micro_batch} x {layout.accumulation} x {layout.dp} = {batch}"
        found.append(
            f"contradiction: micro-batch x accumulation x dp = {product}, global batch"
            f" {global_batch}"
        )
    step_s, tokens_per_s = number(row, "step_time_s"), number(row, "tokens_per_s")
    tokens = (global_batch or batch) * shape.seq
    per_gpu, gpus = number(row, "tokens_per_s_gpu"), number(row, "n_gpus")
    # whole tokens of a GPU, whose sum is then published too
    tolerance = RATE_TOLERANCE + (0.0 if per_gpu is None else 0.5 / per_gpu)
    rate = None if step_s is None else tokens / step_s
    found += _differs("tokens/s", tokens_per_s, rate, tolerance, "batch x sequence / step time")
    whole = None if per_gpu is None or gpus is None else per_gpu * gpus
    found += _differs("tokens/s", tokens_per_s, whole, RATE_TOLERANCE, "tokens/s of a GPU x GPUs")
    peak, mfu = peak_flops_per_s(machine.spec, dtype, quant), number(row, "mfu")
    found += _mfu_differs(mfu, shape, layout, peak, tokens, step_s)
    own, counted = number(row, "params"), shape.parameters
    found += _differs("parameters", own, counted, PARAMETER_TOLERANCE, "those of the sizes")
    return tuple(found)


def number(row: Mapping[str, Any], field: str) -> float | None:
    """A positive number, None for anything else."""
    try:
        value = float(row.get(field) or math.nan)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _differs(
    what: str, said: float | None, other: float | None, tolerance: float, other_what: str
) -> list[str]:
    if said is None or other is None or abs(math.log(said / other)) <= math.log1p(tolerance):
        return []
    return [f"contradiction: {what} {said:.4g}, but {other_what} {other:.4g}"]


def _mfu_differs(
    percent: float | None, shape: TransformerShape, layout: Layout, peak: float | None,
    tokens: float, step_s: float | None,
) -> list[str]:  # fmt: skip
    """Against FLOPs / (time x peak), however attention and parameters are counted."""
    if percent is None or step_s is None or peak is None:
        return []
    matrices = shape.model_flops(tokens, causal=True)
    attention = shape.model_flops(tokens) - matrices
    six = 6 * shape.active_parameters * tokens
    counts = (matrices, matrices + attention, six, six + attention, six + 2 * attention)
    ours = [flops / (step_s * layout.ranks * peak) for flops in counts]
    nearest = min(ours, key=lambda one: abs(math.log(one * 100 / percent)))
    tolerance = MFU_TOLERANCE + MFU_ROUNDING / percent
    return _differs("MFU", percent / 100, nearest, tolerance, "FLOPs / time / peak")
