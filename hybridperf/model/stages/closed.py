"""By closed forms at the machine's numbers.

datasheet    max(arithmetic / peak, bytes / bandwidth)
knobs        the calibrated roofline (`ops/roofline.py`) with the knobs of the op's group
learned      x exp(bounded correction), of groups that were measured (`learning/prior/alone.py`)
form         forms of their own (`ops/images.py`): convolutions in groups, norms and pools of images
             on GPUs; on cards that sum in 32 bits at half rate, whatever they have no rows of
bound        what nobody knows: between its roofline and sixteen times that
fused        loops, norms and copies as a framework fuses them into a step: by the datasheet
varied       closed form at varied knobs over closed form at the fitted ones: what knobs of a
             group mean for ops that other stages price
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.hardware import LEVELS
from hybridperf.io.namespace import Array, array_module
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning.inputs import inputs_of
from hybridperf.model.batch import Batch
from hybridperf.model.platform import OpTable, Platform, durations, neutral_knobs, op_table, seconds
from hybridperf.model.sources import FUSED, Code, Source
from hybridperf.model.stages.family import by_family, log_variance, told_of
from hybridperf.model.stages.step import NOTHING_S, Machine, Priced, Stage, Step
from hybridperf.model.stages.who import FORMS, Who, is_measured, who
from hybridperf.ops import BOUND
from hybridperf.ops.images import GpuFacts
from hybridperf.ops.rows import KERNEL_S

# Deviations of logs of ops by forms of their own, believed: of one op, of what all of them have in
# common. Nine in ten whole steps of timm's models that no constant has seen lie within 16 %
FORM_WIDTH, SHARED_FORM_WIDTH = 0.45, 0.15
# Plain kernels reach all of their roofline or a sixteenth, as strided ones do: believed
_BOUND_TIMES = 4.0
_BOUND_WIDTH = math.log(_BOUND_TIMES) / NINE_OF_TEN


def roofline_log_s(batch: Batch, machine: Machine, xp: Any = np) -> Array:
    """Log of the datasheet's seconds [R], at the machine's numbers."""
    return _log_s(batch, dataclasses.replace(machine.numbers, knobs=neutral_knobs()), 1.0, xp)


def rooflines(batches: Sequence[Batch], machine: Machine, xp: Any = np) -> list[Array]:
    """`roofline_log_s` of each batch, calculated at once."""
    numbers = dataclasses.replace(machine.numbers, knobs=neutral_knobs())
    tables = [op_table(one.part) for one in batches]
    module = np if xp is np else array_module(*jax.tree.leaves(tables))
    together = jax.tree.map(lambda *parts: module.concatenate(parts), *tables)
    ends, log_s = np.cumsum([len(one) for one in batches]).tolist(), _logs(together, numbers, xp)
    return [log_s[end - len(one) : end] for one, end in zip(batches, ends, strict=True)]


def closed_log_s(batch: Batch, machine: Machine, xp: Any = np) -> Array:
    """Log of the closed form's seconds [R] with the knobs of the machine's numbers."""
    return _log_s(batch, machine.numbers, floors(batch, machine), xp)


def floors(batch: Batch, machine: Machine) -> float:
    """Share of its group's launch floor that each op pays.

    None where it is compiled into a caller; issued apart on a GPU, at most `KERNEL_S`.
    """
    if who(batch, machine.model) is Who.FAMILY:  # as it is
        return 1.0
    if batch.inlined:
        return 0.0
    if not batch.issued_apart or machine.device.kind != "gpu":
        return 1.0
    return KERNEL_S / max(float(machine.model.knobs.floor_s[batch.part.group[0]]), KERNEL_S)


def _log_s(batch: Batch, numbers: Platform, share: float, xp: Any) -> Array:
    return _logs(op_table(batch.part, share), numbers, xp)


def _logs(of: OpTable, numbers: Platform, xp: Any) -> Array:
    found = seconds(of, numbers) if xp is np else durations(of, numbers)
    return xp.log(found + NOTHING_S)  # of what takes no time, too, slopes are those of its seconds


def by_knobs(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """The calibrated roofline, and what was learned of the op's group."""
    knobs = closed_log_s(batch, machine, xp) - log_s
    report = machine.model.groups.get(batch.group)
    far, source = np.full(len(batch), np.inf), Source(Code.DATASHEET, batch.group)
    if report is None:
        return [Step("knobs", knobs, source, np.nan, np.nan, far)]
    inputs = inputs_of(batch.op, batch.work, len(batch))
    if is_measured(machine.model, batch):
        outside = report.box.outside(inputs)
        variance = report.deviation(outside) ** 2
        source = Source(Code.OWN_ROWS, batch.group, rows=report.rows)
        step = Step("knobs", knobs, source, variance, variance, outside)
    else:
        source = dataclasses.replace(source, rows=report.rows, only=report.dtypes)
        step = Step("knobs", knobs, source, np.nan, np.nan, far)
    if report.residual is None:
        return [step]
    return [step, Step("learned", report.correction(inputs), source)]


def by_form(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Seconds of a form of its own."""
    gpu, numbers = GpuFacts.of(machine.device, batch.op), machine.numbers
    assert gpu is not None  # `who` has asked
    gpu = dataclasses.replace(
        gpu, peak_flops_per_s=gpu.peak_flops_per_s * numbers.peak_flops_scale,
        vector_flops_per_s=gpu.vector_flops_per_s * numbers.peak_flops_scale,
        memory_bytes_per_s=numbers.memory_bytes_per_s,
        l2_bytes=numbers.level_bytes[LEVELS.index("l2")],
    )  # fmt: skip
    form_s = batch.whole(FORMS[batch.op.group](batch.op, gpu))
    form = xp.log(xp.maximum(form_s, NOTHING_S)) - log_s
    source, far = Source(Code.FORM, "images"), np.full(len(batch), np.inf)
    return [Step("form", form, source, FORM_WIDTH**2, SHARED_FORM_WIDTH**2, far)]


def by_bound(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """The middle of what a plain kernel may take; all of them may be off alike."""
    del machine, log_s
    bounds, far = (
        Source(Code.BELIEF, BOUND, assumed="a bound by operands and plain arithmetic"),
        np.full(len(batch), np.inf),
    )
    factor = np.full(len(batch), math.log(_BOUND_TIMES))
    return [Step("bound", factor, bounds, _BOUND_WIDTH**2, _BOUND_WIDTH**2, far)]


def by_bandwidth(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """A fused loop as the datasheet has it: there is nothing to measure; how far off it is is
    believed of what was measured of such ops by themselves.
    """
    variance: Array = np.nan  # what is traced asks for no interval, and is told none
    if xp is np and (of := who(batch.by_itself, machine.model)) is Who.FAMILY:
        told = machine.told.get(id(batch)) or told_of([batch], machine)[id(batch)]
        variance = log_variance(told[-1])
    elif xp is np and of is Who.GROUP:
        variance = by_knobs(batch.by_itself, machine, log_s, xp)[0].log_variance
    nothing = np.zeros(len(batch))
    return [Step("datasheet", nothing, FUSED, variance, variance, nothing)]


def by_varied_knobs(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """What varied knobs of a group change of ops that go by something else than these knobs."""
    del log_s
    fitted = machine.model.knobs
    if machine.numbers.knobs is fitted or who(batch, machine.model) in (Who.GROUP, Who.DATASHEET):
        return []
    before = machine._replace(numbers=dataclasses.replace(machine.numbers, knobs=fitted))
    moved = closed_log_s(batch, machine, xp) - closed_log_s(batch, before, xp)
    return [Step("knobs", moved, Source(Code.KNOBS, batch.group))]


# by a device's own numbers and rows alone
OWN: Mapping[Who, Stage] = {
    Who.BOUND: by_bound, Who.FORM: by_form, Who.FAMILY: by_family, Who.GROUP: by_knobs,
    Who.DATASHEET: by_knobs,
}  # fmt: skip


def priced_alone(batch: Batch, machine: Machine) -> Priced:
    """What a device's own rows say of ops, else its datasheet; traced where sizes are."""
    machine, xp = machine.alone, batch.xp
    log_s = roofline_log_s(batch, machine, xp)
    stage = OWN[who(batch, machine.model)]
    return Priced(log_s, log_s).after(stage(batch, machine, log_s, xp))
