"""What a device's own measurements say of ops: their seconds, how far they lie outside of what was
measured, and what was assumed. Priors and groups are asked once for all of it.

Axes: U ops.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.learning.inputs import Inputs, concatenate, inputs_of
from hybridperf.learning.prior import FamilyRows, Predicted
from hybridperf.learning.prior.adapted import LEAST_CALIBRATING
from hybridperf.model import prior_pricing as by_prior
from hybridperf.model.group_report import GroupReport, widening
from hybridperf.model.platform import OpTable
from hybridperf.model.reference_device import Calibration
from hybridperf.ops import FUSED, GROUPS, OpCall
from hybridperf.ops.attention_kernels import BY_LAW, SHARES, measured_seconds
from hybridperf.ops.operand_order import order_remark, order_width
from hybridperf.ops.roofline import Work
from hybridperf.ops.table import OpRows, stacked

# an implementation never met counts as so far outside what was measured
_UNKNOWN_SLOT_OCTAVES = 1.0
_WORK_FIELDS = tuple(field.name for field in dataclasses.fields(Work))


class _Family(NamedTuple):
    """What an adapted prior says of the ops that it knows."""

    at: np.ndarray  # their places
    rows: FamilyRows
    assumed: np.ndarray
    predicted: Predicted


class OwnOps:
    """Some ops on a calibrated device."""

    def __init__(self, model: Calibration, calls: Sequence[OpCall]):
        self.model, self.calls = model, calls
        self._parts = stacked(calls, model.device)
        self.group = np.zeros(len(calls), np.int32)
        for part in self._parts:
            self.group[part.rows] = part.group

    def table(self) -> OpTable:
        """The ops as arrays."""
        model, calls = self.model, self.calls
        work = Work(**{name: np.zeros(len(calls)) for name in _WORK_FIELDS})
        peaks = np.zeros(len(calls))
        for part in self._parts:
            peaks[part.rows] = part.peak_flops_per_s
            for name in _WORK_FIELDS:
                getattr(work, name)[part.rows] = getattr(part.work, name)
        table = OpTable(
            work=work, peak_flops_per_s=peaks, group=self.group,
            times=np.array([call.times for call in calls]), floors=self._floors(),
            correction=self._by_group(GroupReport.correction, 0.0),
        )  # fmt: skip
        for name, family in self._families.items():
            at = family.at
            if name not in by_prior.LOOPS:
                table.floors[at] = 1.0  # as they are, see `kernels_alone`
            # a correction to the closed form as it stands here, so that knobs keep their meaning
            once = dataclasses.replace(table, times=np.ones(len(calls)))
            bare = jax.tree.map(lambda leaf, at=at: leaf[at], once)
            log_s = family.predicted.log_s
            mine = [calls[i] for i in at]
            if name in by_prior.LOOPS:
                adapted = model.families[name]
                log_s = by_prior.kernels_alone(name, adapted, model.device, mine, log_s)
            elif name == by_prior.PRODUCTS:
                log_s = by_prior.products_alone(model.families, model.device, mine, log_s)
            table.correction[at] = log_s - np.log(model.op_seconds(bare))
        return table

    @functools.cached_property
    def outside(self) -> np.ndarray:
        """How far each op lies outside what was measured [U], in octaves.

        0 inside, infinite where its group or its number format was not measured.
        """
        out = self._by_group(GroupReport.outside, np.inf)
        for name, family in self._families.items():
            known = by_prior.known(self.model.families[name], family.rows)
            out[family.at] = family.predicted.outside + np.where(known, 0.0, _UNKNOWN_SLOT_OCTAVES)
        out[list(self.unmeasured)] = np.inf
        return np.where(self.fused, 0.0, out)

    @functools.cached_property
    def unmeasured(self) -> dict[int, str]:
        """Ops whose number format nobody measured, with a note."""
        found = {}
        for at in np.flatnonzero(~self.fused).tolist():
            op, report = self.calls[at].op, self.report(at)
            if report is not None and not report.measured_dtype(op):
                only = f"only {', '.join(report.dtypes)}"
                found[at] = f"no {GROUPS[self.group[at]]} in {op.dtype} was measured, {only}"
        return found

    @functools.cached_property
    def remarks(self) -> np.ndarray:
        """What an adapted prior assumed of each op, or never met [U]; empty where nothing."""
        out = np.full(len(self.calls), "", object)
        for name, (at, rows, assumed, _) in self._families.items():
            adapted, device = self.model.families[name], self.model.device
            out[at] = by_prior.remarks(name, adapted, device, rows, assumed)
        out[[*self.by_law]] = BY_LAW
        told = [order_remark(call, self.model.device) for call in self.calls]
        out = np.where(np.array(told, bool), np.array(told, object), out)
        return np.where(self.fused, "", out)

    @functools.cached_property
    def fused(self) -> np.ndarray:
        """Whether each op is priced as a framework fuses it [U]: there is nothing to measure."""
        return np.array([call.kernel == FUSED for call in self.calls], bool)

    @functools.cached_property
    def by_law(self) -> dict[int, float]:
        """Seconds of ops, by place, whose kernel has a measured law of its own."""
        found = {}
        for at, call in enumerate(self.calls):
            if call.kernel in SHARES:
                once_s = measured_seconds(call.kernel, call.op, self.model.device)
                if once_s is not None:
                    found[at] = once_s * call.times
        return found

    def spread(self, believed: np.ndarray) -> np.ndarray:
        """Deviations of the logs of seconds [U]: those of measured groups, else as `believed`."""
        out = np.array(believed)
        for at in np.flatnonzero(np.isfinite(self.outside) & ~self.fused).tolist():
            report = self.report(at)
            if report is not None and report.half_width is not None:
                width = np.log1p(report.half_width) / NINE_OF_TEN
                out[at] = width * widening(self.outside[[at]])[0]
        for name, family in self._families.items():
            if self.model.families[name].rows < LEAST_CALIBRATING:  # each as a table of ops has it
                log_width = family.predicted.high_log_s - family.predicted.log_s
                out[family.at] = log_width / NINE_OF_TEN
        return np.hypot(out, [order_width(call, self.model.device) for call in self.calls])

    def report(self, at: int) -> GroupReport | None:
        """How far to trust an op's group; None where it was not measured."""
        return self.model.groups.get(GROUPS[self.group[at]])

    @functools.cached_property
    def _families(self) -> dict[str, _Family]:
        model = self.model
        members = by_prior.members(model.families, model.device, self.calls, self._parts)
        return {
            name: _Family(*found, by_prior.predicted(model.families[name], found[1]))
            for name, found in members.items()
        }

    def _floors(self) -> np.ndarray:
        """Share of its group's floor that each op pays [U]; issued apart, at most `KERNEL_S`."""
        floor_s, gpu = np.asarray(self.model.knobs.floor_s)[self.group], self.model.device.kind
        alone = np.array([call.issued_apart and gpu == "gpu" for call in self.calls], bool)
        share = np.where(alone, by_prior.KERNEL_S / np.maximum(floor_s, by_prior.KERNEL_S), 1.0)
        return np.where([call.inlined for call in self.calls], 0.0, share)

    def _by_group(
        self, ask: Callable[[GroupReport, Inputs], np.ndarray], unmeasured: float
    ) -> np.ndarray:
        """What a function of each op's group report gives [U]."""
        out = np.full(len(self.calls), unmeasured)
        for name, (places, inputs) in self._inputs.items():
            out[places] = ask(self.model.groups[name], inputs)
        return out

    @functools.cached_property
    def _inputs(self) -> dict[str, tuple[np.ndarray, Inputs]]:
        """By group that was measured, the places of its ops and their inputs; not of fused ones."""
        found: dict[str, list[tuple[OpRows, np.ndarray]]] = {}
        for part in self._parts:
            apart = ~self.fused[part.rows]
            for group in np.unique(part.group[apart]).tolist():
                if GROUPS[group] in self.model.groups:
                    mine = apart & (part.group == group)
                    found.setdefault(GROUPS[group], []).append((part, mine))
        return {
            group: (
                np.concatenate([part.rows[keep] for part, keep in some]),
                concatenate(itertools.starmap(
                    inputs_of, [(part.op, part.work, len(part.rows), keep) for part, keep in some]
                )),
            )
            for group, some in found.items()
        }  # fmt: skip
