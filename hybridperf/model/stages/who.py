"""Who says what an op takes: the first of a list that knows such ops.

    bound       what nobody knows: a multiple of what its operands and arithmetic take at least
    form        a closed form of its own, where rows say nothing of such ops (`ops/images.py`)
    fused       a loop that a framework fuses into a step: bytes at the datasheet's bandwidth
    family      rows of this device, or what other devices show of a family (an adapted prior)
    group       rows of this device, by knobs of its own
    stand-in    rows of the device whose calibration stands for this one
    usual       what all devices show of products in fp32 that no relative of this one measured
    borrowed    what other devices' calibrations say (`borrowed.py`)
    datasheet   the roofline

That depends on nothing that varies within a batch. Machines are `PerfModel`s.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError, shipped_toml
from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.model.batch import Batch
from hybridperf.ops import BOUND, FUSED, Op, images

# seconds of kinds of ops that have a closed form of their own
FORMS: Mapping[str, Callable[[Any, images.GpuFacts], Any]] = {
    "convolution": images.convolution_s, "image_norm": images.image_norm_s,
    "image_pool": images.image_pool_s, "gemm": images.product_s, "batched_gemm": images.product_s,
    "prefill_attention": images.attention_s, "encoder_attention": images.attention_s,
}  # fmt: skip
_SUMMED_IN_32_BITS = ("fp16", "bf16", "fp8")  # int8 has sums of its own, at the full rate
_TWINS = {"fp16": "bf16", "bf16": "fp16"}

SINGLE = "matmul_fp32"  # products in single precision
Who = enum.Enum("Who", "BOUND FORM FUSED FAMILY GROUP STAND_IN USUAL BORROWED DATASHEET")


def who(batch: Batch, model: Any) -> Who:
    """Who says what the ops of a batch take on a machine."""
    if batch.variant == BOUND:
        return Who.BOUND
    if goes_by_form(batch, model):
        return Who.FORM
    if batch.kernel == FUSED:
        return Who.FUSED
    other, family, inlined = model.stand_in, batch.family, batch.inlined
    if not _met_elsewhere(batch, family, model, other or model):
        if not inlined and family in model.families:
            return Who.FAMILY
        if is_measured(model, batch):
            return Who.GROUP if batch.group in model.groups else Who.DATASHEET
        if other is not None and is_measured(other, as_measured(other, batch)):
            return Who.STAND_IN
    refers = model.refers
    usual = refers and family == SINGLE and not inlined and model.usual
    if usual and SINGLE in usual():
        return Who.USUAL
    return Who.BORROWED if refers else Who.DATASHEET


def goes_by_form(batch: Batch, model: Any) -> bool:
    """Whether a closed form of its own says what ops take.

    Norms and pools of images always do: no table has them. Convolutions in groups, where no rows in
    groups were measured: what was learned of dense ones says nothing of them. Dense ones, products
    and attention, on cards that sum in 32 bits at half rate, where they have no rows: shares that
    other cards reach of their peaks do not carry over. A bare datasheet stays one.
    """
    op, known = batch.op, model.references or model.stand_in or model.families
    kind = op.group
    if kind not in FORMS or not known or images.GpuFacts.of(model.device, op) is None:
        return False
    if op.unit != "matrix":
        return True
    if kind == "convolution" and batch.group != kind:
        report = model.measured.groups.get(batch.group)
        return report is None or not report.lowest
    plain = op.dtype in _SUMMED_IN_32_BITS and not getattr(op, "quant", "")
    if not plain or model.device.fp32_sums_rate == 1.0:
        return False
    return not is_measured(model.measured, as_measured(model.measured, batch))


def is_measured(model: Any, batch: Batch) -> bool:
    """Whether a calibration has rows of such ops in such numbers."""
    adapted, report = model.families.get(batch.family), model.groups.get(batch.group)
    # the report of a group that a family prices has neither a range nor formats
    own = report is not None and bool(report.dtypes or report.lowest)
    return (adapted is not None and adapted.rows > 0) or (own and report.measured_dtype(batch.op))


def has_met(model: Any, batch: Batch) -> bool:
    """Whether a calibration that has rows of ops of the matrix unit has some in such numbers, there
    or in its prior.
    """
    return batch.family not in model.families or _in_slots(model, batch)


def _met_elsewhere(batch: Batch, family: str, model: Any, own: Any) -> bool:
    """Whether another device than `own` alone has measured ops of the matrix unit in such numbers:
    what a GPU takes without TF32 says nothing of its tensor cores.
    """
    if family not in own.families or _in_slots(own, as_measured(own, batch)):
        return False
    if batch.op.unit != "matrix" or not model.refers:
        return False
    others = (one for one in model.references() if rate(one.device, batch.op))
    there = ((one, as_measured(one, batch.on(one.device))) for one in others)
    return any(has_met(*each) and is_measured(*each) for each in there)


def as_measured(model: Any, batch: Batch) -> Batch:
    """The batch in the 16-bit format that a calibration has, where both multiply at one rate; of
    both in the one that the batch's library was measured in, else its own.

    Rows of both on one device are of two libraries and tell these apart, not the formats.
    """
    op = batch.op
    twin, peak = _TWINS.get(op.dtype), rate(model.device, op)
    if twin is None or not peak:
        return batch
    twin_op = dataclasses.replace(op, dtype=twin)
    if rate(model.device, twin_op) != peak:
        return batch
    first = _formats_of(model.device.arch).get(batch.framework, op.dtype)
    both = sorted((batch, batch.of(twin_op, model.device)), key=lambda one: one.op.dtype != first)
    return next((one for one in both if _in_slots(model, one)), batch)


@functools.cache
def _formats_of(arch: str) -> Mapping[str, str]:
    """Libraries of products, each with the 16-bit format of its rows (`kernels.toml`)."""
    known = shipped_toml("hybridperf.model", "kernels.toml")["library"]
    return known["usual"] | known.get(arch.split()[-1], {})


def rate(device: DeviceSpec, op: Op) -> float:
    """FLOP/s of a device in an op's numbers; 0 where it has none."""
    try:
        return device.peak(op.peak_dtype, op.unit)
    except InputError:
        return 0.0


def _in_slots(model: Any, batch: Batch) -> bool:
    """Whether an adapted prior has met ops of this family and number format."""
    adapted = model.families.get(batch.family)
    if adapted is None:
        return False
    names = adapted.knobs.implementations
    return batch.op.dtype in {OpImplementation.parse(name).dtype for name in names}
