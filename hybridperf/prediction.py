"""A workload on a model: seconds, where they go, what they are held up by, and how sure we are.

`predict` answers for one machine. `predict_batch` answers for many variations of it at once: any of the platform's numbers may be
given as an array [B], and everything from knob to makespan is one compiled, differentiable function of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from hybridperf.evaluate import Timeline, check_durations, critical_path, makespan, timeline
from hybridperf.io import InputError, unknown
from hybridperf.lower import Lowered, lower
from hybridperf.model import (
    GROUP_KNOBS,
    OpTable,
    PerfModel,
    Platform,
    batched_durations,
    canonical,
    durations,
    widening,
)  # fmt: skip
from hybridperf.ops import GROUPS, columns
from hybridperf.outputs import Outputs, batch_outputs, outputs_of
from hybridperf.workload import Workload

COVERAGE = 0.9  # of a step's interval
_DRAWS = 256
_BATCH = "batch"  # axis of the devices that share a batch
_PLATFORM_KNOBS = ("memory_bytes_per_s", "peak_flops_scale")
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


def predict_batch(model: PerfModel, workload: Workload, **knobs: Any) -> np.ndarray:
    """Seconds [B] of one step on B variations of the platform.

    `knobs` are arrays [B] by name: `memory_bytes_per_s`, `peak_flops_scale`, or any of the model's knobs, for a group as
    `gemm__compute_efficiency` or for all groups as `compute_efficiency` (a factor on each group's own value).
    """
    return BatchPredictor(model, workload)(**knobs)


class BatchPredictor:
    """`predict_batch` for many batches: the step is lowered and its ops are priced once. Several devices share each batch.

    With `outputs`, some of `hybridperf.outputs.OUTPUTS`, a call gives their columns by name instead of the plain array: `time_s`,
    `busy_compute_s`, `exposed_s`, `critical_gemm_s`; [B] each.
    """

    def __init__(self, model: PerfModel, workload: Workload, outputs: Sequence[str] | None = None):
        check_backend(model, workload)
        self._platform = model.platform()
        lowered, table = lower(workload.graph), model.table(workload.calls)
        self._workload = workload
        self._check(model.op_seconds(table)[:, None], f"by model {model.device.id}")
        self._program, self._table = lowered.program, canonical(table)
        self._outputs = None if outputs is None else outputs_of(lowered, [GROUPS[group] for group in table.group], outputs)
        devices = jax.local_devices()
        self._mesh = jax.sharding.Mesh(np.array(devices), (_BATCH,)) if len(devices) > 1 else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of what a call gives."""
        return ("time_s",) if self._outputs is None else self._outputs.columns

    def __call__(self, **knobs: Any) -> Any:
        """Seconds [B], see `predict_batch`; with `outputs` a dict of columns [B]."""
        values = _checked_knobs(knobs)
        size = len(next(iter(values.values())))
        if self._mesh is not None:  # every device takes as many
            values = {name: np.pad(value, (0, -size % self._mesh.size), mode="edge") for name, value in values.items()}
        varied, axes = _varied(self._platform, values)
        platform = canonical(varied)
        if self._outputs is None:
            seconds = np.asarray(_batch_seconds(self._program, self._table, platform, _Axes(axes), self._mesh), np.float64)[:size]
            self._check_answers(seconds, platform, axes)
            return seconds
        found = _batch_outputs(self._outputs, self._program, self._table, platform, _Axes(axes), self._mesh)
        columns = np.asarray(found, np.float64)[:, :size]
        self._check_answers(columns, platform, axes)
        return dict(zip(self._outputs.columns, columns, strict=True))

    def _check_answers(self, answers: np.ndarray, platform: Platform, axes: Platform) -> None:
        """`InputError` for a configuration whose knobs, though numbers themselves, make an op's seconds none."""
        wrong = ~np.isfinite(answers.reshape(-1, answers.shape[-1])).all(axis=0)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            one = jax.tree.map(lambda x, axis: x if axis is None else np.take(x, [at], axis), platform, axes, is_leaf=lambda x: x is None)
            self._check(np.asarray(batched_durations(self._table, one, axes)), f"in configuration {at}")
            raise InputError(f"the ops of configuration {at} take more seconds together than a number holds; check its knobs")

    def _check(self, durations: np.ndarray, where: str) -> None:
        wrong = ~(np.isfinite(durations) & (durations >= 0))
        if wrong.any():
            op, b = np.argwhere(wrong)[0]
            said = f"{_named(self._workload, int(op))} would take {durations[op, b]} s {where}"
            raise InputError(f"{said}, expected 0 or more; check the model and its knobs")


def knob_names() -> list[str]:
    """What `predict_batch` varies, the knobs of single groups included."""
    return [*_PLATFORM_KNOBS, *GROUP_KNOBS, *(f"{g}__{k}" for g in GROUPS for k in GROUP_KNOBS)]


def _checked_knobs(knobs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Knobs as float64 [B], every number above zero; `InputError` where they are not."""
    try:
        values = {name: np.atleast_1d(np.asarray(value, np.float64)) for name, value in knobs.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"knobs must be numbers or arrays of numbers: {error}") from error
    if any(value.ndim != 1 or not len(value) for value in values.values()):
        raise InputError(f"knobs must be arrays [B] of at least one number, got shapes { {n: v.shape for n, v in values.items()} }")
    if not values:
        raise InputError("expected at least one knob as an array, such as memory_bytes_per_s=[...]; got none")
    sizes = {name: len(value) for name, value in values.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"all knobs need the same length, got {sizes}")
    for name, value in values.items():
        with np.errstate(over="ignore"):
            held = value.astype(jnp.result_type(float))  # a positive number may be none in the precision that is computed in
        right = np.isfinite(held) & (held >= np.finfo(held.dtype).tiny)
        if not right.all():
            raise InputError(f"knob {name} must be positive numbers{_in_reach(value[~right][0], held.dtype)}, got {value[~right][0]}")
    return values


def _in_reach(value: float, dtype: np.dtype) -> str:
    """What more to say of a positive number that a number format does not hold."""
    return f" from {np.finfo(dtype).tiny:.2g} to {np.finfo(dtype).max:.2g}" if np.isfinite(value) and value > 0 else ""


def _named(workload: Workload, op: int) -> str:
    """A unique op for people, with where it is met first."""
    graph, group = workload.graph, GROUPS[int(workload.calls[op].op.group_index())]
    users = np.flatnonzero((graph.row == op + 1) | (graph.launch_row == op + 1))
    return f"{group} (first used by node {users[0]} {graph.labels[users[0]]!r})" if len(users) else f"{group} (used by no node)"


def step_seconds(program: Any, table: OpTable, platform: Platform) -> Any:
    """Seconds of one step, one platform; pure and differentiable: the function that searches descend."""
    return makespan(program, durations(table, platform)[:, None])[0]


class _Axes:
    """Batch axes of a platform's leaves as a hashable static argument."""

    def __init__(self, axes: Platform):
        self.axes = axes
        self._key = str(jax.tree.flatten(axes, is_leaf=lambda x: x is None))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Axes) and self._key == other._key


def _batch_seconds_impl(program: Any, table: OpTable, platform: Platform, axes: _Axes, mesh: Mesh | None) -> Any:
    return _shared(lambda _, *args: makespan(*args), P(_BATCH), None, program, table, platform, axes, mesh)


def _batch_outputs_impl(plan: Outputs, program: Any, table: OpTable, platform: Platform, axes: _Axes, mesh: Mesh | None) -> Any:
    return _shared(batch_outputs, P(None, _BATCH), plan, program, table, platform, axes, mesh)


def _shared(
    answer: Callable[..., Any], answer_split: P, plan: Any, program: Any, table: OpTable, platform: Platform, axes: _Axes, mesh: Mesh | None
) -> Any:
    """`answer(plan, program, durations)`, each device of the mesh doing its part of the batch."""

    def mine(plan: Any, program: Any, table: OpTable, platform: Platform) -> Any:
        return answer(plan, program, batched_durations(table, platform, axes.axes))

    if mesh is None:
        return mine(plan, program, table, platform)
    split = jax.tree.map(lambda axis: P() if axis is None else P(*[None] * axis, _BATCH), axes.axes, is_leaf=lambda axis: axis is None)
    # by hand, not left to the partitioner: it would cut the evaluator's blocks apart and have devices talk at every step
    shared = jax.shard_map(mine, mesh=mesh, in_specs=(P(), P(), P(), split), out_specs=answer_split, check_vma=False)
    return shared(plan, program, table, platform)


_batch_seconds = jax.jit(_batch_seconds_impl, static_argnums=(3, 4))
_batch_outputs = jax.jit(_batch_outputs_impl, static_argnums=(4, 5))
_makespan = jax.jit(makespan)


def _varied(platform: Platform, values: Mapping[str, np.ndarray]) -> tuple[Platform, Platform]:
    """The platform with some leaves batched (last axis), and the axes tree for vmap."""
    none = jax.tree.map(lambda _: None, platform)
    fields: dict[str, Any] = {}
    knob_fields: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=lambda item: "__" in item[0]):  # a group's own value is the last word
        group, _, knob = name.rpartition("__")
        if name in _PLATFORM_KNOBS:
            fields[name] = value
        elif knob in GROUP_KNOBS and (not group or group in GROUPS):
            base = knob_fields.get(knob, np.repeat(np.asarray(getattr(platform.knobs, knob))[:, None], len(value), 1)).copy()
            if group:
                base[GROUPS.index(group)] = value
            else:
                base = base * value
            knob_fields[knob] = base
        else:
            raise unknown("knob", name, knob_names(), f"known are memory_bytes_per_s, peak_flops_scale, {', '.join(GROUP_KNOBS)}")
    knobs = dataclasses.replace(platform.knobs, **knob_fields)
    axes = dataclasses.replace(
        none,
        knobs=dataclasses.replace(none.knobs, **dict.fromkeys(knob_fields, 1)),
        **dict.fromkeys(fields, 0),
    )
    return dataclasses.replace(platform, knobs=knobs, **fields), axes


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


def gradient(model: PerfModel, workload: Workload) -> Platform:
    """d seconds / d each number of the platform, exact (back-pointers through the longest path)."""
    check_backend(model, workload)
    program, table = lower(workload.graph).program, canonical(model.table(workload.calls))
    return _slopes(program, table, canonical(model.platform()))


_slopes = jax.jit(jax.grad(step_seconds, argnums=2))
