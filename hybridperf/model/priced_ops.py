"""Many ops priced at once: calls of a graph and rows of a table, through the same stages.

Axes: U ops.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridperf.fields import fields_of
from hybridperf.fields.columns import as_given, with_answers
from hybridperf.hardware import device_id
from hybridperf.io.later import pd
from hybridperf.io.process import check_not_forked
from hybridperf.model.batch import Batch, batches_of, stacked
from hybridperf.model.explain import waterfalls
from hybridperf.model.group_report import WIDE, below_roofline, narrowed_by
from hybridperf.model.lookup_prior import is_lookup
from hybridperf.model.platform import OpTable, seconds
from hybridperf.model.sources import Code, Source, how, not_measured
from hybridperf.model.stages import NOTHING_S, Machine, Priced, as_measured, floors, price_batches
from hybridperf.model.stages.family import UNKNOWN_KERNEL_OCTAVES
from hybridperf.model.variance import Components, ends
from hybridperf.ops import OpCall
from hybridperf.ops.roofline import Work
from hybridperf.ops.table import parse_ops


@dataclasses.dataclass(frozen=True)
class PricedOps:
    """Some ops on a machine, each by itself."""

    machine: Machine
    batches: tuple[tuple[Batch, Priced], ...]
    count: int  # U; of those in no batch nothing is known

    @staticmethod
    def of(model: Any, batches: Iterable[Batch], count: int) -> PricedOps:
        """Each batch in the number format that was measured."""
        machine = Machine.of(model)
        known = [as_measured(model, batch) for batch in batches]
        priced = price_batches(known, machine)
        return PricedOps(machine, tuple(zip(known, priced, strict=True)), count)

    @staticmethod
    def of_calls(model: Any, calls: Sequence[OpCall]) -> PricedOps:
        """Calls of a graph; `InputError` for a dtype without a peak on the device."""
        return PricedOps.of(model, stacked(calls, model.device), len(calls))

    def column(self, of: Callable[[Batch, Priced], Any], empty: Any = np.nan) -> np.ndarray:
        """What is asked of each batch, in the places of its ops [U]; `empty` where none is."""
        out = np.full(self.count, empty, float if type(empty) is float else object)
        for batch, priced in self.batches:
            out[batch.part.rows] = of(batch, priced)
        return out

    def table(self, times: np.ndarray) -> OpTable:
        """The ops as arrays: their work, and what the stages say as a correction to the closed form
        at the machine's own knobs. `times` [U]: executions in a row.
        """

        def count(name: str) -> np.ndarray:
            return self.column(lambda batch, _: getattr(batch.work, name))

        out = OpTable(
            Work(*(count(field.name) for field in dataclasses.fields(Work))),
            self.column(lambda batch, _: batch.part.peak_flops_per_s),
            self.column(lambda batch, _: batch.part.group).astype(np.int32), np.ones(self.count),
            self.column(lambda batch, _: floors(batch, self.machine)), np.zeros(self.count),
        )  # fmt: skip
        closed = np.log(seconds(out, self.machine.numbers) + NOTHING_S)
        log_s = self.column(lambda _, priced: priced.log_s)
        some = np.minimum(closed, log_s) > np.log(2 * NOTHING_S)
        return dataclasses.replace(out, times=times, correction=np.where(some, log_s - closed, 0.0))

    @functools.cached_property
    def outside(self) -> np.ndarray:
        """Octaves between each op and what was measured [U]; infinite where nobody measured it."""
        return self.column(lambda _, priced: priced.owner.outside)

    def components(self, drift: Sequence[float] = ()) -> Components:
        """Components of the variance of the ops' logs [U].

        A measured op shares all with its family, and the machine's state with all. One that goes by
        other devices shares what large ops of a step are off by, lookups apart, and by itself is
        off as far as single rows are. `drift`: of the machine, as `PerfModel` has it.
        """

        def shares(batch: Batch, priced: Priced) -> np.ndarray:
            others = "class: lookups" if is_lookup(batch.op) else "class: ops"
            measured = np.isfinite(priced.owner.outside)
            return np.where(measured, f"family: {batch.group}", others)

        total = self.column(lambda _, priced: priced.log_variance)
        shared = self.column(lambda _, priced: priced.shared_log_variance)
        own = np.sqrt(np.maximum(total - shared, 0.0))
        found = Components.of(np.sqrt(total), own, self.column(shares, "").tolist())
        if not len(drift):
            return found
        state = np.full(len(total), np.sqrt(2) * np.std(drift))  # once each at both times
        names = (*found.names, "machine: state")
        return Components(found.own, np.vstack([found.shared, state]), names)

    @functools.cached_property
    def sources(self) -> np.ndarray:
        """By whom each op is priced by itself, object [U] of Source."""
        return self.column(lambda _, priced: priced.owner.sources(), None)

    @functools.cached_property
    def remarks(self) -> np.ndarray:
        """What was assumed of each op, or never met, object [U] of str; empty where nothing."""

        def last(batch: Batch, priced: Priced) -> np.ndarray:
            out = np.full(len(batch), "", object)
            for step in priced.steps:
                words = [_remark(one, self.machine.device.id) for one in step.sources()]
                out = np.where(np.array(words, object) != "", words, out)
            return out

        return self.column(last, "")

    @functools.cached_property
    def unmeasured(self) -> dict[int, str]:
        """Ops whose number format nobody measured, with a note."""
        notes = self.column(
            lambda batch, priced: [
                not_measured(one, batch.group, batch.op.dtype) for one in priced.owner.sources()
            ],
            "",
        )
        return {at: note for at, note in enumerate(notes.tolist()) if note}


COLUMNS = ("predicted_s", "low_s", "high_s", "roofline_s", "in_range", "note")  # that are added


def predict_ops(
    model: Any, frame: pd.DataFrame, explain: bool = False, whole: bool = False
) -> pd.DataFrame:
    """See `PerfModel.predict_ops`; `whole`: see `parse_ops`."""
    check_not_forked()
    frame = as_given(frame, COLUMNS)
    parsed = parse_ops(frame, model.device, whole=whole)
    batches = (batch for part in parsed.parts for batch in batches_of(part))
    priced = PricedOps.of(model, batches, len(frame))
    time_s = priced.column(lambda _, one: one.seconds())
    roofline_s = priced.column(lambda _, one: np.exp(one.roofline_log_s))
    roofline_s[roofline_s <= 2 * NOTHING_S] = 0.0
    low_s, high_s = ends(time_s, np.sqrt(priced.column(lambda _, one: one.log_variance)))
    times = np.nan_to_num(high_s / low_s)

    def wide(batch: Batch, _: Priced) -> list[str]:
        sizes = [name for name in batch.op.dimensions() if name in frame]
        named = {"op": batch.part.name, "dtype": batch.op.dtype}
        return [
            narrowed_by(times[at], named | {name: frame[name].iloc[at] for name in sizes})
            if times[at] > WIDE else ""
            for at in batch.part.rows.tolist()
        ]  # fmt: skip

    reuse_bytes = priced.column(lambda batch, _: batch.work.reuse_bytes, np.inf)
    said = (
        parsed.problem, _elsewhere(frame, model.device.id, parsed.problem == ""),
        priced.column(lambda batch, one: _notes(batch, one, model), ""),
        below_roofline(model.device, time_s, roofline_s, reuse_bytes), priced.column(wide, ""),
    )  # fmt: skip
    told = {}
    if explain:
        told["explained"] = priced.column(
            lambda batch, one: [*map(str, waterfalls(batch, one, priced.machine))], ""
        )
    notes = ["; ".join(filter(None, of_row)) for of_row in zip(*said, strict=True)]
    return with_answers(frame, {
        "predicted_s": time_s, "low_s": low_s, "high_s": high_s, "roofline_s": roofline_s,
        "in_range": priced.outside == 0, "note": notes, **told,
    })  # fmt: skip


def _elsewhere(frame: pd.DataFrame, device: str, good: np.ndarray) -> list[str]:
    """What is said of rows [R] that were measured on another device than they are predicted for."""
    fields = fields_of("ops")
    named = [
        name for name in frame if (call := fields.called(str(name))) and call[0].name == "device"
    ]
    if not named or device == "here":
        return [""] * len(frame)
    codes, names = pd.factorize(frame[named[0]])
    others = [(device_id(str(name)) or str(name)) != device for name in names]
    other = np.array([*others, False])[codes] & good
    return np.where(other, f"the row is of another device, predicted for {device}", "").tolist()


def _remark(source: Source, device: str) -> str:
    alone = f"prior alone: no {source.what} of {device} was measured"
    return "; ".join(filter(None, (alone if source.code is Code.PRIOR else "", source.assumed)))


def _notes(batch: Batch, priced: Priced, model: Any) -> list[str]:
    """What a table says of rows that were not measured, or lie outside of what was [R]."""
    sources = priced.owner.sources()
    slack = [UNKNOWN_KERNEL_OCTAVES * source.unknown_kernel for source in sources]
    pairs = list(zip(sources, np.greater(priced.owner.outside, slack).tolist(), strict=True))
    said = {pair: _note(*pair, batch, model) for pair in dict.fromkeys(pairs)}
    return [said[pair] for pair in pairs]


def _note(source: Source, far: bool, batch: Batch, model: Any) -> str:
    by_datasheet = source.code is Code.DATASHEET
    if source.code in (Code.OWN_ROWS, Code.PRIOR):
        beyond = f"outside the measured range of {source.what}" if far else ""
        return "; ".join(filter(None, (_remark(source, model.device.id), beyond)))
    if source.only:
        only = not_measured(source, batch.group, batch.op.dtype)
        return only if by_datasheet or not how(source) else f"{only}: {how(source)}"
    if by_datasheet and not (model.groups or model.refers or model.stand_in):
        return "datasheet roofline: this model has no measurements"
    here = " in this model" if by_datasheet else ""
    return f"no {batch.group} measurements{here}: {how(source)}"
