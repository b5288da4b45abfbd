"""Another kernel than the one that was measured, and operands that do not lie as it reads them.

law          attention by what a kernel took that this project measured
published    attention at the share of the peak that its authors publish, over the measured one
operands     beside it, what products and convolutions take whose operands lie badly
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.model.batch import Batch, stacked
from hybridperf.model.sources import Code, Source
from hybridperf.model.stages.step import Machine, Step
from hybridperf.model.stages.who import Who, is_measured, who
from hybridperf.ops import OpCall, PrefillAttention
from hybridperf.ops.attention_kernels import (
    BY_LAW,
    SHARES,
    has_law,
    law_seconds,
    published_factor,
    published_share,
)
from hybridperf.ops.operand_order import ROWS, order_belief, order_seconds, turning_seconds


def by_attention_kernel(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """A generation of fused attention that is not the measured one."""
    kernel, device = batch.kernel, machine.device
    if kernel not in SHARES or who(batch, machine.model) is Who.FORM:
        return []
    factor, steps = 0.0, []
    if published_share(kernel, device.arch) is not None:
        factor = np.log(_published_factor(kernel, batch.op.dtype, machine.model))
    if has_law(kernel, batch.op.group, device):
        peak = batch.part.peak_flops_per_s * machine.numbers.peak_flops_scale
        by_law = xp.log(law_seconds(batch.op, device, peak, xp)) - log_s
        free = batch.size("window") == 0
        source = np.full(len(batch), Source(Code.LAW, batch.group, "h200_sxm", assumed=BY_LAW))
        if xp is np:
            source[~free] = Source(Code.PUBLISHED, kernel)
        return [Step("law", xp.where(free, by_law, factor), source)]
    if factor:
        whole = factor * np.ones(len(batch))
        steps.append(Step("published", whole, Source(Code.PUBLISHED, kernel)))
    return steps


def by_operands(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Operands that do not lie as kernels for tensor cores read them."""
    numbers, device = machine.numbers, machine.device
    op: Any = batch.op
    if op.group == "convolution":
        if who(batch, machine.model) is Who.FORM:  # has its own turns
            return []
        more_s = batch.whole(turning_seconds(op, numbers.memory_bytes_per_s))
        return [Step("operands", xp.log1p(more_s / xp.exp(log_s)), Source(Code.BELIEF, op.group))]
    if batch.kernel not in ROWS:
        return []
    peak = device.peak(op.dtype, "matrix") * numbers.peak_flops_scale
    more_s = order_seconds(batch.kernel, batch.work, device, peak, xp)
    width, remark = order_belief(device)
    source = Source(Code.BELIEF, batch.kernel, assumed=remark)
    return [Step("operands", xp.log1p(more_s / xp.exp(log_s)), source, width**2, width**2)]


def _published_factor(kernel: str, dtype: str, model: Any) -> float:
    """Seconds of a generation of fused attention over those that are priced."""
    known = model.attention_factors
    if (kernel, dtype) not in known:
        known[kernel, dtype] = _factor(kernel, dtype, model)
    return known[kernel, dtype]


def _factor(kernel: str, dtype: str, model: Any) -> float:
    measured = model.measured
    priced, device = measured, measured.device
    attention = PrefillAttention(dtype, 1.0, 4096.0, 16.0, 128.0)
    (batch,) = stacked([OpCall(attention)], device)
    if model.references is not None and not is_measured(measured, batch):
        # shares were published of devices with as much power as they take
        unlimited = model.device.model_copy(update={"tdp_w": None})
        priced = dataclasses.replace(measured, device=unlimited)

    def seconds(call: OpCall) -> float:
        return float(priced.op_seconds(priced.table([call]))[0])

    return published_factor(kernel, dtype, model.device.arch, device, seconds)
