"""Another kernel than the one that was measured, and operands that do not lie as it reads them.

law          attention by what a kernel took that this project measured
published    attention at the share of the peak that its authors publish, over the measured one
variant      products of groups and of scans by kernels of their own
streamed     of few rows with weights alone narrow, by kernels that read these as they come
operands     beside it, what products and convolutions take whose operands lie badly
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io.namespace import Array
from hybridperf.model.batch import Batch, stacked
from hybridperf.model.sources import Code, Source
from hybridperf.model.stages.family import kernel_tables
from hybridperf.model.stages.step import Machine, Priced, Step
from hybridperf.model.stages.who import goes_by_form, is_measured
from hybridperf.ops import OpCall, PrefillAttention, attention_kernels, operand_order
from hybridperf.ops.quantise import SCHEMES, scheme_dtype
from hybridperf.ops.scores import ScoreGpu, library_of, library_s


def by_attention_kernel(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """A generation of fused attention that is not the measured one."""
    kernel, device = batch.kernel, machine.device
    if kernel not in attention_kernels.SHARES or goes_by_form(batch, machine.model):
        return []
    factor, published = 0.0, Source(Code.PUBLISHED, kernel)
    if attention_kernels.published_share(kernel, device.arch) is not None:
        factor = np.log(_published_factor(kernel, batch.op.dtype, machine.model))
    if attention_kernels.has_law(kernel, batch.op, device):
        library, numbers = library_of(kernel, device.arch), machine.numbers
        assert library is not None  # the table has it
        scale = numbers.peak_flops_scale
        peak = batch.part.peak_flops_per_s * scale
        gpu = ScoreGpu.of(device, peak, scale, numbers.memory_bytes_per_s)
        by_law = xp.log(library_s(batch.op, gpu, library)) - log_s
        free = batch.size("window") == 0
        law = Source(Code.LAW, batch.group, library.seen, assumed=library.says)
        source = np.full(len(batch), law)
        if xp is np:
            source[~free] = published
        return [Step("law", xp.where(free, by_law, factor), source)]
    return [Step("published", factor * np.ones(len(batch)), published)] if factor else []


def by_variant(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Products by other kernels than the library's that is priced (`[variants]` of `kernels.toml`):
    of groups, or within a scan; quicker ones take no less than their arithmetic at the peak.
    """
    known = kernel_tables()["variants"].get(batch.variant)
    if known is None or batch.op.unit != "matrix":
        return []
    peak = batch.part.peak_flops_per_s * machine.numbers.peak_flops_scale
    room = xp.minimum(xp.log(batch.whole(batch.work.flops) / peak) - log_s, 0.0)
    factor = xp.maximum(np.log(_variant_factor(batch, known)), room)
    source = Source(Code.BELIEF, batch.variant, assumed=known["source"])
    variance = known["width"] ** 2
    return [Step("variant", factor, source, variance, variance)]


def by_streaming(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Products of few rows, whose weights alone are narrow, by a framework's kernels that read
    these as they come (`[streams]` of `kernels.toml`): a start, and a share of the bandwidth.
    """
    known = kernel_tables()["streams"]
    # a call names its framework, each row of a table its own
    named = batch.framework or batch.part.labels.get("framework", "")
    here = np.isin(named, known["frameworks"])
    if not here.any():
        return []
    op = batch.op
    scheme = SCHEMES.get(getattr(op, "quant", ""))
    if op.group != "gemm" or scheme is None or scheme.arithmetic:
        return []
    if scheme.weight_bytes >= scheme.incoming_bytes:
        return []
    read_s = batch.whole(batch.work.bytes) / (known["share"] * machine.numbers.memory_bytes_per_s)
    by_law = xp.log(known["start_s"] + read_s) - log_s
    # more rows are never quicker than what reading their weights takes
    few = batch.size("m") <= known["rows"]
    streamed = xp.where(here, xp.where(few, by_law, xp.maximum(by_law, 0.0)), 0.0)
    source = Source(Code.BELIEF, batch.group, assumed=known["source"])
    return [Step("streamed", streamed, source)]


def multiplied_more(batch: Batch, priced: Priced) -> float:
    """How often tensor cores do the work of a product: tiles are padded for ragged groups."""
    del priced
    known = kernel_tables()["variants"].get(batch.variant, {})
    return _variant_factor(batch, known) if known.get("padded") else 1.0


def _variant_factor(batch: Batch, known: Mapping[str, Any]) -> float:
    op: Any = batch.op
    size = DTYPE_BYTES[scheme_dtype(op.dtype, getattr(op, "quant", ""))]
    return float(known["wide" if size >= DTYPE_BYTES["fp16"] else "narrow"])


def by_operands(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Operands that do not lie as kernels for tensor cores read them."""
    numbers, device, kernel = machine.numbers, machine.device, batch.kernel
    op: Any = batch.op
    if op.group == "convolution":
        if goes_by_form(batch, machine.model):  # has its own turns
            return []
        more_s = batch.whole(operand_order.turning_seconds(op, numbers.memory_bytes_per_s))
        source, variance = Source(Code.BELIEF, op.group), 0.0
    elif kernel in operand_order.ROWS:
        peak = device.peak(op.dtype, "matrix") * numbers.peak_flops_scale
        more_s = operand_order.order_seconds(kernel, batch.work, device, peak, xp)
        width, remark = operand_order.order_belief(device)
        source, variance = Source(Code.BELIEF, kernel, assumed=remark), width**2
    else:
        return []
    return [Step("operands", xp.log1p(more_s / xp.exp(log_s)), source, variance, variance)]


def _published_factor(kernel: str, dtype: str, model: Any) -> float:
    """Seconds of a generation of fused attention over those that are priced."""
    known = model.attention_factors
    if (kernel, dtype) not in known:
        priced, device = model.measured, model.measured.device
        (batch,) = stacked([OpCall(PrefillAttention(dtype, 1.0, 4096.0, 16.0, 128.0))], device)
        if model.references is not None and not is_measured(priced, batch):
            # shares were published of devices with as much power as they take
            unlimited = model.device.model_copy(update={"tdp_w": None})
            priced = dataclasses.replace(priced, device=unlimited)

        def seconds(call: OpCall) -> float:
            return float(priced.op_seconds(priced.table([call]))[0])

        known[kernel, dtype] = attention_kernels.published_factor(
            kernel, dtype, model.device.arch, device, seconds
        )
    return known[kernel, dtype]
