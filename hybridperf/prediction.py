"""A workload on a model: seconds, where they go, what they are held up by, and how sure we are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.evaluate import Timeline, check_durations, critical_path, makespan, timeline
from hybridperf.io import InputError
from hybridperf.lower import Lowered, lower
from hybridperf.model import OpTable, PerfModel, widening
from hybridperf.ops import GROUPS, columns
from hybridperf.workload import Workload

COVERAGE = 0.9  # of a step's interval
_DRAWS = 256
_UNKNOWN_SHARE = 0.05
_LARGEST_LOG_ERROR = 5.0


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Seconds of one step, with what they are made of. N nodes of the graph, U unique ops."""

    workload: Workload
    model: PerfModel
    time_s: float
    low_s: float | None  # 90 % interval; None where the model has no measurements to take it from
    high_s: float | None
    roofline_s: float  # the same step by the datasheet alone
    op_s: np.ndarray  # [U] seconds of each unique op
    op_roofline_s: np.ndarray  # [U] by the datasheet alone
    op_group: np.ndarray  # int [U] index into GROUPS
    op_in_range: np.ndarray  # bool [U] lies within what was measured
    timeline: Timeline  # [N] each
    on_critical_path: np.ndarray  # bool [N]
    in_range: bool  # every op does
    notes: tuple[str, ...]

    def breakdown(self) -> pd.DataFrame:
        """Seconds by group of ops, largest first: `group, seconds, share, roofline_s, ops, in_range`."""
        row = self.workload.graph.row - 1
        frame = pd.DataFrame({
            "group": [GROUPS[g] for g in self.op_group[row]], "seconds": self.op_s[row], "roofline_s": self.op_roofline_s[row],
            "in_range": self.op_in_range[row],
        })  # fmt: skip
        out = frame.groupby("group").agg(
            seconds=("seconds", "sum"),
            roofline_s=("roofline_s", "sum"),
            ops=("seconds", "size"),
            in_range=("in_range", "all"),
        )
        out.insert(1, "share", out["seconds"] / out["seconds"].sum())
        return out.sort_values("seconds", ascending=False).reset_index()

    def ops(self) -> pd.DataFrame:
        """Every node in issue order: `label, group, start_s, seconds, roofline_s, critical` and the op's dimensions."""
        row = self.workload.graph.row - 1
        frame = pd.DataFrame({
            "label": self.workload.graph.labels, "group": [GROUPS[g] for g in self.op_group[row]],
            "start_s": self.timeline.start_s, "seconds": self.op_s[row], "roofline_s": self.op_roofline_s[row],
            "critical": self.on_critical_path,
        })  # fmt: skip
        dims = pd.DataFrame([columns(self.workload.calls[r].op) for r in row])
        return pd.concat([frame, dims], axis=1)


def predict(model: PerfModel, workload: Workload) -> Prediction:
    """Time of one step of `workload` on `model`'s device; `InputError` if it was compiled for another kind of device."""
    check_backend(model, workload)
    table = model.table(workload.calls)
    lowered = lower(workload.graph)
    op_s = check_durations(lowered, model.op_seconds(table))
    times = timeline(lowered, op_s)
    path = critical_path(lowered, op_s)
    op_roofline_s = model.roofline_seconds(table)
    roofline_s = timeline(lowered, op_roofline_s).end_s.max()
    time_s = float(times.end_s.max())
    outside = model.outside(workload.calls)
    interval = _interval(model, workload, lowered, table.group, op_s, outside)
    inside = _inside(model, workload, outside)
    critical = np.zeros(len(workload.graph), bool)
    critical[path.node[~path.is_launch]] = True
    return Prediction(
        workload=workload,
        model=model,
        time_s=time_s,
        low_s=None if interval is None else min(interval[0], time_s),
        high_s=None if interval is None else max(interval[1], time_s),
        roofline_s=float(roofline_s),
        op_s=op_s,
        op_roofline_s=op_roofline_s,
        op_group=table.group,
        op_in_range=inside,
        timeline=times,
        on_critical_path=critical,
        in_range=bool(inside.all()),
        notes=(*workload.notes, *_notes(model, table, op_s, inside, workload)),
    )


_makespan = jax.jit(makespan)


def check_backend(model: PerfModel, workload: Workload) -> None:
    """`InputError` for a step that was compiled for another kind of device."""
    if workload.backend is not None and workload.backend != model.device.kind:
        raise InputError(
            f"{workload.name} was compiled for a {workload.backend} and {model.device.id} is a {model.device.kind}, which fuses"
            f" differently; import it on a machine with a {model.device.kind}, or choose a {workload.backend} model"
        )


def _interval(
    model: PerfModel, workload: Workload, lowered: Lowered, group: np.ndarray, op_s: np.ndarray, outside: np.ndarray
) -> tuple[float, float] | None:
    """90 % interval of the step: a held-out error is drawn for each group of ops, shared by all its ops, one change of the whole machine's
    slowness (`PerfModel.drift`) for all of them, and both are sent through the evaluator.

    An op outside the measured range errs more, see `widening`. None where over a twentieth of the step has no known error.
    """
    row = workload.graph.row - 1
    unknown = [u for u in range(len(op_s)) if not (r := model.groups.get(GROUPS[group[u]])) or not r.errors or r.half_width is None]
    unknown += list(_unmeasured(model, workload))
    if op_s[row][np.isin(row, unknown)].sum() > _UNKNOWN_SHARE * op_s[row].sum():
        return None
    rng = np.random.default_rng(0)
    drawn = np.zeros((len(GROUPS), _DRAWS))
    for g in np.unique(group):
        report = model.groups.get(GROUPS[g])
        if report is not None and report.errors:
            # log(predicted / measured): what is true lies that much lower
            drawn[g] = -_draw(report.errors, rng)
    widen = widening(np.where(np.isfinite(outside), outside, 0.0))
    error = np.clip(widen[:, None] * drawn[group], -_LARGEST_LOG_ERROR, _LARGEST_LOG_ERROR)
    # calibration and step each met the machine in some state
    state = _draw(model.drift, rng) - _draw(model.drift, rng) if model.drift else 0.0
    seconds = op_s[:, None] * np.exp(error + state)
    steps = np.asarray(_makespan(lowered.program, jnp.asarray(seconds)), np.float64)
    low, high = np.quantile(steps, [0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2], method="hazen")
    return float(low), float(high)


def _draw(quantiles: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Values [_DRAWS] of a distribution given by evenly spaced quantiles, one from each equal part of it."""
    return np.interp(rng.permutation((np.arange(_DRAWS) + 0.5) / _DRAWS), np.linspace(0, 1, len(quantiles)), quantiles)


def _unmeasured(model: PerfModel, workload: Workload) -> dict[int, str]:
    """Unique ops whose number format the model has no measurements of, with what to say."""
    found = {}
    for at, call in enumerate(workload.calls):
        group = GROUPS[int(call.op.group_index())]
        report = model.groups.get(group)
        if report is not None and not report.measured_dtype(call.op):
            found[at] = f"no {group} in {call.op.dtype} was measured, only {', '.join(report.dtypes)}"
    return found


def _inside(model: PerfModel, workload: Workload, outside: np.ndarray) -> np.ndarray:
    """Whether each unique op lies within what was measured, its number format included."""
    inside = outside == 0
    inside[list(_unmeasured(model, workload))] = False
    return inside


def _notes(model: PerfModel, table: OpTable, op_s: np.ndarray, inside: np.ndarray, workload: Workload) -> list[str]:
    if not model.groups:
        return [f"datasheet roofline of {model.device.id}: no measurements in this model"]
    notes = []
    row = workload.graph.row - 1
    total = op_s[row].sum()
    for group in model.uncalibrated(table):
        share = op_s[row][table.group[row] == GROUPS.index(group)].sum() / total
        notes.append(f"no {group} measurements: datasheet roofline for {share:.1%} of the step")
    unmeasured = _unmeasured(model, workload)
    for said in sorted(set(unmeasured.values())):
        share = op_s[row][np.isin(row, [at for at, what in unmeasured.items() if what == said])].sum() / total
        notes.append(f"{said}: {share:.1%} of the step is a guess")
    remarks = np.array(model.remarks(workload.calls), object)
    for said in sorted(set(remarks[row]) - {""}):
        notes.append(f"{said} ({op_s[row][remarks[row] == said].sum() / total:.0%} of the step)")
    outside = op_s[row][~inside[row]].sum() / total
    if outside > 0.005:
        notes.append(f"{outside:.0%} of the step lies outside the calibrated range of sizes")
    return notes
