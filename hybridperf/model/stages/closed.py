"""By the datasheet, and by knobs and corrections that were fitted to a device's own groups of ops.

datasheet    max(arithmetic / peak, bytes / bandwidth)
knobs        the calibrated roofline (`ops/roofline.py`) with the knobs of the op's group
learned      x exp(bounded correction), of groups that were measured (`learning/prior/alone.py`)
varied       closed form at varied knobs over closed form at the fitted ones: what knobs of a
             group mean for ops that other stages price

"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.io.namespace import Array, array_module
from hybridperf.learning.inputs import inputs_of
from hybridperf.model.batch import Batch
from hybridperf.model.platform import OpTable, Platform, durations, neutral_knobs, seconds
from hybridperf.model.sources import Code, Source
from hybridperf.model.stages.step import NOTHING_S, Machine, Step
from hybridperf.model.stages.who import Who, who
from hybridperf.ops import GROUPS
from hybridperf.ops.rows import KERNEL_S


def roofline_log_s(batch: Batch, machine: Machine, xp: Any = np) -> Array:
    """Log of the datasheet's seconds [R], at the machine's numbers."""
    return _log_s(batch, dataclasses.replace(machine.numbers, knobs=neutral_knobs()), 1.0, xp)


def rooflines(batches: Sequence[Batch], machine: Machine, xp: Any = np) -> list[Array]:
    """`roofline_log_s` of each batch, calculated at once."""
    numbers = dataclasses.replace(machine.numbers, knobs=neutral_knobs())
    columns = [table(one, 1.0) for one in batches]
    together = jax.tree.map(lambda *parts: array_module(*parts).concatenate(parts), *columns)
    ends = np.cumsum([len(one) for one in batches])
    log_s = _logs(together, numbers, xp)
    return [log_s[end - len(one) : end] for one, end in zip(batches, ends.tolist(), strict=True)]


def closed_log_s(batch: Batch, machine: Machine, xp: Any = np) -> Array:
    """Log of the closed form's seconds [R] with the knobs of the machine's numbers."""
    return _log_s(batch, machine.numbers, floors(batch, machine), xp)


def table(batch: Batch, share: float) -> OpTable:
    """The batch as `durations` reads it, without corrections; `share`: of launch floors."""
    rows = len(batch)
    return OpTable(
        work=batch.work, peak_flops_per_s=np.full(rows, batch.part.peak_flops_per_s),
        group=np.full(rows, GROUPS.index(batch.group), np.int32), times=np.ones(rows),
        floors=np.full(rows, share), correction=np.zeros(rows),
    )  # fmt: skip


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
    floor_s = float(np.asarray(machine.model.knobs.floor_s)[GROUPS.index(batch.group)])
    return KERNEL_S / max(floor_s, KERNEL_S)


def _log_s(batch: Batch, numbers: Platform, share: float, xp: Any) -> Array:
    return _logs(table(batch, share), numbers, xp)


def _logs(of: OpTable, numbers: Platform, xp: Any) -> Array:
    found = seconds(of, numbers) if xp is np else durations(of, numbers)
    return xp.log(found + NOTHING_S)  # of what takes no time, too, slopes are those of its seconds


def by_knobs(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """The calibrated roofline, and what was learned of the op's group."""
    of, model = who(batch, machine.model), machine.model
    if of not in (Who.GROUP, Who.DATASHEET):
        return []
    knobs = closed_log_s(batch, machine, xp) - log_s
    report = model.groups.get(batch.group)
    if report is None:
        far = np.full(len(batch), np.inf)
        return [Step("knobs", knobs, Source(Code.DATASHEET, batch.group), np.nan, np.nan, far)]
    inputs = inputs_of(batch.op, batch.work, len(batch))
    measured = of is Who.GROUP
    outside = report.outside(inputs) if measured else np.full(len(batch), np.inf)
    variance = report.deviation(outside) ** 2 if measured else np.nan
    only = () if measured else report.dtypes
    code = Code.OWN_ROWS if measured else Code.DATASHEET
    source = Source(code, batch.group, rows=report.rows, only=only)
    steps = [Step("knobs", knobs, source, variance, variance, outside)]
    if report.residual is not None:
        steps.append(Step("learned", report.correction(inputs), source))
    return steps


def by_varied_knobs(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """What varied knobs of a group change of ops that go by something else than these knobs."""
    del log_s
    fitted = machine.model.knobs
    if machine.numbers.knobs is fitted or who(batch, machine.model) in (Who.GROUP, Who.DATASHEET):
        return []
    before = machine._replace(numbers=dataclasses.replace(machine.numbers, knobs=fitted))
    moved = closed_log_s(batch, machine, xp) - closed_log_s(batch, before, xp)
    return [Step("knobs", moved, Source(Code.KNOBS, batch.group))]
