"""Seconds of ops on GPUs by the closed forms of `ops/images.py`: of those that the device has no
rows of, and of fused norms and pools, which no table has.

    norms and pools of images    always: in units of a loop
    convolutions in groups       where no rows in groups were measured here: what was learned of
                                 dense ones says nothing of them
    dense ones, products,        on cards that sum in 32 bits at half rate, where they have no rows:
    attention                    shares that other cards reach of their peaks do not carry over; on
                                 others the share of a measured card stands
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.model.reference_device import Calibration, as_measured, is_measured
from hybridperf.ops import (
    BatchedGemm,
    Convolution,
    EncoderAttention,
    Gemm,
    Op,
    OpCall,
    PrefillAttention,
)
from hybridperf.ops.images import (
    GpuFacts,
    ImageNorm,
    ImagePool,
    attention_s,
    convolution_s,
    image_norm_s,
    image_pool_s,
    product_s,
)
from hybridperf.ops.operand_order import order_seconds
from hybridperf.ops.table import stacked

FORMS: Mapping[type[Op], Callable[[Any, GpuFacts], Any]] = {
    Convolution: convolution_s, ImageNorm: image_norm_s, ImagePool: image_pool_s,
    Gemm: product_s, BatchedGemm: product_s,
    PrefillAttention: attention_s, EncoderAttention: attention_s,
}  # fmt: skip


def by_form(model: Calibration, calls: Sequence[OpCall]) -> tuple[np.ndarray, np.ndarray]:
    """(places of calls that go by a closed form, their seconds)."""
    asked = [at for at, call in enumerate(calls) if type(call.op) in FORMS]
    measured, seconds = model.stand_in or model, np.full(len(calls), np.nan)
    some = [calls[at] for at in asked]
    for part in stacked(some, model.device):
        gpu = GpuFacts.of(model.device, part.op)
        if gpu is None:
            continue
        places = np.array([asked[at] for at in part.rows])
        goes = np.array([_goes(measured, gpu, calls[at].op) for at in places])
        times = np.array([calls[at].times for at in places])
        found_s = np.broadcast_to(FORMS[type(part.op)](part.op, gpu), len(places))
        seconds[places[goes]] = (found_s * times)[goes]
        for place in places[goes] if part.op.group != Convolution.group else ():
            seconds[place] += order_seconds(calls[place], model.device)
    at = np.flatnonzero(np.isfinite(seconds))
    return at, seconds[at]


def _goes(model: Calibration, gpu: GpuFacts, op: Op) -> bool:
    """Whether an op goes by its form."""
    if op.unit != "matrix":
        return True
    if bool(np.all(op.is_other())) and isinstance(op, Convolution):
        report = model.groups.get(op.other_group)
        return report is None or not report.lowest
    narrow = DTYPE_BYTES[op.dtype] == DTYPE_BYTES["fp16"] and not getattr(op, "quant", "")
    return narrow and bool(gpu.half_rate) and not is_measured(model, as_measured(model, op))
