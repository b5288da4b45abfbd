"""Many ops priced at once: calls of a graph and rows of a table, through the same stages.

Axes: U ops.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.later import pd
from hybridperf.io.process import check_not_forked
from hybridperf.model.batch import Batch, batches_of, stacked
from hybridperf.model.explain import waterfalls
from hybridperf.model.group_report import WIDE, below_roofline, narrowed_by
from hybridperf.model.lookup_prior import is_lookup
from hybridperf.model.platform import OpTable
from hybridperf.model.sources import Code, Source, how, not_measured
from hybridperf.model.stages import (
    Machine,
    Priced,
    closed_log_s,
    price_batch,
    price_batches,
    roofline_log_s,
)
from hybridperf.model.stages.closed import floors
from hybridperf.model.stages.closed import table as closed_table
from hybridperf.model.stages.family import UNKNOWN_KERNEL_OCTAVES
from hybridperf.model.stages.step import NOTHING_S, sources_of
from hybridperf.model.stages.who import as_measured
from hybridperf.model.variance import Components, ends
from hybridperf.ops import OpCall
from hybridperf.ops.roofline import Work
from hybridperf.ops.table import parse_ops

_WORK_FIELDS = tuple(field.name for field in dataclasses.fields(Work))


@dataclasses.dataclass(frozen=True)
class PricedOps:
    """Some ops on a machine, each by itself."""

    machine: Machine
    batches: tuple[tuple[Batch, Priced], ...]
    count: int

    @staticmethod
    def of(model: Any, calls: Sequence[OpCall]) -> PricedOps:
        """Calls of a graph; `InputError` for a dtype without a peak on the device."""
        machine = Machine.of(model)
        batches = [as_measured(model, batch) for batch in stacked(calls, model.device)]
        priced = tuple(zip(batches, price_batches(batches, machine), strict=True))
        return PricedOps(machine, priced, len(calls))

    def table(self, times: np.ndarray) -> OpTable:
        """The ops as arrays: their work, and what the stages say as a correction to the closed form
        at the machine's own knobs. `times` [U]: executions in a row.
        """
        shape, machine = self.count, self.machine
        out = OpTable(
            Work(**{name: np.zeros(shape) for name in _WORK_FIELDS}), np.zeros(shape),
            np.zeros(shape, np.int32), times, np.ones(shape), np.zeros(shape),
        )  # fmt: skip
        for batch, priced in self.batches:
            at, own = batch.part.rows, closed_table(batch, floors(batch, machine))
            for name in _WORK_FIELDS:
                getattr(out.work, name)[at] = getattr(own.work, name)
            out.peak_flops_per_s[at], out.group[at] = own.peak_flops_per_s, own.group
            out.floors[at] = own.floors
            closed = closed_log_s(batch, machine)
            some = np.minimum(closed, priced.log_s) > np.log(2 * NOTHING_S)
            out.correction[at] = np.where(some, priced.log_s - closed, 0.0)
        return out

    def placed(self, name: str) -> np.ndarray:
        """A property of `Priced`, or of who says what an op takes by itself [U]."""
        out = np.full(self.count, np.nan)
        for batch, priced in self.batches:
            of = priced if hasattr(priced, name) else priced.owner
            out[batch.part.rows] = getattr(of, name)
        return out

    @functools.cached_property
    def outside(self) -> np.ndarray:
        """Octaves between each op and what was measured [U]; infinite where nobody measured it."""
        return self.placed("outside")

    @functools.cached_property
    def shared_with(self) -> list[tuple[str, str]]:
        """What the ops share their error with [U]: (class, which) of those that go by other
        devices, else (family, group).
        """
        out = [("", "")] * self.count
        for batch, priced in self.batches:
            lookups = "lookups" if is_lookup(batch.op) else "ops"
            known = np.isfinite(np.broadcast_to(np.asarray(priced.owner.outside), (len(batch),)))
            for at, measured in zip(batch.part.rows.tolist(), known.tolist(), strict=True):
                out[at] = ("family", batch.group) if measured else ("class", lookups)
        return out

    def components(self, drift: Sequence[float] = ()) -> Components:
        """Components of the variance of the ops' logs [U].

        A measured op shares all with its family, and the machine's state with all. One that goes by
        other devices shares what large ops of a step are off by, and by itself is off as far as
        single rows are. `drift`: of the machine, as `PerfModel` has it.
        """
        total, shared = map(self.placed, ("log_variance", "shared_log_variance"))
        shares = [f"{kind}: {which}" for kind, which in self.shared_with]
        own = np.sqrt(np.maximum(total - shared, 0.0))
        found = Components.of(np.sqrt(total), own, shares)
        if not len(drift):
            return found
        state = np.full(len(total), np.sqrt(2) * np.std(drift))  # once each at both times
        names = (*found.names, "machine: state")
        return Components(found.own, np.vstack([found.shared, state]), names)

    @functools.cached_property
    def sources(self) -> np.ndarray:
        """By whom each op is priced by itself, object [U] of Source."""
        out = np.empty(self.count, object)
        for batch, priced in self.batches:
            out[batch.part.rows] = sources_of(priced.owner, len(batch))
        return out

    @functools.cached_property
    def remarks(self) -> np.ndarray:
        """What was assumed of each op, or never met, object [U] of str; empty where nothing."""
        out = np.full(self.count, "", object)
        for batch, priced in self.batches:
            for step in priced.steps:
                words = [_remark(one, self.machine) for one in sources_of(step, len(batch))]
                given = np.array(words, object)
                out[batch.part.rows] = np.where(given != "", given, out[batch.part.rows])
        return out

    @functools.cached_property
    def unmeasured(self) -> dict[int, str]:
        """Ops whose number format nobody measured, with a note."""
        found = {}
        for batch, priced in self.batches:
            for at, one in zip(batch.part.rows, sources_of(priced.owner, len(batch)), strict=True):
                if note := not_measured(one, batch.group, batch.op.dtype):
                    found[int(at)] = note
        return found


def _remark(source: Source, machine: Machine) -> str:
    alone = f"prior alone: no {source.what} of {machine.device.id} was measured"
    return "; ".join(filter(None, (alone if source.code is Code.PRIOR else "", source.assumed)))


_PREDICTED = ("predicted_s", "low_s", "high_s", "roofline_s")


def predict_ops(model: Any, frame: pd.DataFrame, explain: bool = False) -> pd.DataFrame:
    """See `PerfModel.predict_ops`."""
    check_not_forked()
    parsed, machine = parse_ops(frame, model.device), Machine.of(model)
    out = {name: np.full(len(frame), np.nan) for name in _PREDICTED}
    in_range, note = np.zeros(len(frame), bool), parsed.problem
    explained = np.full(len(frame), "", object)
    reuse_bytes, why_wide = np.full(len(frame), np.inf), np.full(len(frame), "", object)
    for part in parsed.parts:
        dimensions = [name for name in part.op.dimensions() if name in frame]
        for given in batches_of(part):
            batch = as_measured(model, given)
            priced, at = price_batch(batch, machine), batch.part.rows
            owner, sources = priced.owner, sources_of(priced.owner, len(batch))
            out["predicted_s"][at] = priced.seconds()
            roofline = np.exp(roofline_log_s(batch, machine))
            out["roofline_s"][at] = np.where(roofline > 2 * NOTHING_S, roofline, 0.0)
            low_s, high_s = ends(priced.seconds(), np.sqrt(priced.log_variance))
            out["low_s"][at], out["high_s"][at] = low_s, high_s
            in_range[at] = owner.outside == 0
            reuse_bytes[at] = batch.work.reuse_bytes
            if explain:
                explained[at] = [str(one) for one in waterfalls(batch, priced, machine)]
            note[at] = _notes(model, batch, sources, np.asarray(owner.outside))
            times = np.nan_to_num(out["high_s"][at] / out["low_s"][at])
            for row, wide in zip(at[times > WIDE].tolist(), times[times > WIDE], strict=True):
                sizes = {name: frame[name].iloc[row] for name in dimensions}
                named = {"op": part.name, "dtype": batch.op.dtype, **sizes}
                why_wide[row] = narrowed_by(wide, named)
    seconds = out["predicted_s"], out["roofline_s"]
    below = below_roofline(model.device, *seconds, reuse_bytes)
    whole = zip(note, below, why_wide, strict=True)
    notes = ["; ".join(filter(None, of_row)) for of_row in whole]
    told = {"explained": explained} if explain else {}
    return frame.assign(**out, in_range=in_range, note=notes, **told)


def _notes(model: Any, batch: Batch, sources: np.ndarray, outside: np.ndarray) -> list[str]:
    """What a table says of rows that were not measured, or lie outside of what was [R]."""
    group, machine = batch.group, Machine.of(model)
    known: dict[tuple[Source, bool], str] = {}
    slack = [UNKNOWN_KERNEL_OCTAVES * source.unknown_kernel for source in sources]
    beyond = outside > np.array(slack)
    for source, far in zip(sources, beyond, strict=True):
        if (source, far) in known:
            continue
        if source.code in (Code.OWN_ROWS, Code.PRIOR):
            what = f"outside the measured range of {source.what}" if far else ""
            words = [_remark(source, machine), what]
        elif source.only:
            by = "" if source.code is Code.DATASHEET else how(source)
            only = not_measured(source, group, batch.op.dtype)
            words = [": ".join(filter(None, (only, by)))]
        elif source.code is Code.DATASHEET and not (model.groups or machine.tells):
            words = ["datasheet roofline: this model has no measurements"]
        else:
            here = " in this model" if source.code is Code.DATASHEET else ""
            words = [f"no {group} measurements{here}: {how(source)}"]
        known[source, far] = "; ".join(filter(None, words))
    return [known[pair] for pair in zip(sources, beyond, strict=True)]
