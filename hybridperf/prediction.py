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

from hybridperf.evaluate import Timeline, check_durations, critical_path, in_blocks, makespan, timeline
from hybridperf.folding import FOLD_BLOCK, Folded, folded, makespan_of
from hybridperf.io import InputError, unknown
from hybridperf.lower import Lowered, Program, lower
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
        lowered = lower(workload.graph)
        table, platform = model.table(workload.calls), model.platform()
        _check_numbers(workload, table, platform)
        self._workload = workload
        self._outputs = None if outputs is None else outputs_of(lowered, [GROUPS[group] for group in table.group], outputs)
        program = (folded(lowered) if self._outputs is None else None) or lowered.program  # what else is asked needs every step
        self._program: Program | Folded = jax.device_put(program)  # once, not at each call
        # knobs of the groups that the step has, and no others: each that varies is an array [G, B]
        used, group = np.unique(table.group, return_inverse=True)
        used = np.pad(used, (0, (1 << (len(used) - 1).bit_length()) - len(used)), mode="edge")  # few lengths, few compiled functions
        self._groups = [GROUPS[int(at)] for at in used]
        knobs = dataclasses.replace(platform.knobs, **{name: np.asarray(getattr(platform.knobs, name))[used] for name in GROUP_KNOBS})
        self._platform = dataclasses.replace(platform, knobs=knobs)
        self._fixed = canonical(self._platform)
        self._table = canonical(dataclasses.replace(table, group=group.astype(np.int32)))
        devices = jax.local_devices()
        self._mesh = jax.sharding.Mesh(np.array(devices), (_BATCH,)) if len(devices) > 1 else None

    def __call__(self, **knobs: Any) -> Any:
        """Seconds [B], see `predict_batch`; with `outputs` a dict of columns [B]."""
        values = _checked_knobs(knobs)
        size = len(next(iter(values.values())))
        if self._mesh is not None:  # every device takes as many
            values = {name: np.pad(value, (0, -size % self._mesh.size), mode="edge") for name, value in values.items()}
        dtype = self._fixed.peak_flops_scale.dtype
        varied = {name: value.astype(dtype) for name, value in self._varied(values).items()}  # by NumPy: JAX takes 50 us for each
        if self._outputs is None:
            seconds = _batch_seconds(self._program, self._table, self._fixed, varied, self._mesh)
            return self._checked(np.asarray(seconds, np.float64)[None, :size], varied)[0]
        found = _batch_outputs(self._outputs, self._program, self._table, self._fixed, varied, self._mesh)
        columns = self._checked(np.asarray(found, np.float64)[:, :size], varied)
        return dict(zip(self._outputs.columns, columns, strict=True))

    def _checked(self, answers: np.ndarray, varied: Mapping[str, Any]) -> np.ndarray:
        """`answers` [columns, B]; `InputError` for knobs that, though numbers themselves, make an op's seconds none."""
        wrong = ~np.isfinite(answers).all(axis=0)
        if not wrong.any():
            return answers
        at = int(np.flatnonzero(wrong)[0])
        op_s = np.asarray(_priced(self._table, self._fixed, {name: values[..., at : at + 1] for name, values in varied.items()}))[:, 0]
        for op in np.flatnonzero(~np.isfinite(op_s)).tolist():
            raise InputError(f"{_named(self._workload, op)} would take {op_s[op]} s in configuration {at}; check the knobs and the model")
        raise InputError(f"the ops of configuration {at} take more seconds together than a number holds; check the knobs and the model")

    def _varied(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What varies of the platform, by field or knob: [B] or [G, B]."""
        fields: dict[str, np.ndarray] = {}
        for name, value in sorted(values.items(), key=lambda item: "__" in item[0]):  # a group's own value is the last word
            group, _, knob = name.rpartition("__")
            if name in _PLATFORM_KNOBS:
                fields[name] = value
            elif knob in GROUP_KNOBS and (not group or group in GROUPS):
                base = fields.get(knob, np.asarray(getattr(self._platform.knobs, knob))[:, None])
                of_group = np.array([not group or one == group for one in self._groups])[:, None]
                fields[knob] = np.where(of_group, value, base) if group else base * value
            else:
                raise unknown("knob", name, knob_names(), f"known are memory_bytes_per_s, peak_flops_scale, {', '.join(GROUP_KNOBS)}")
        return fields


def _check_numbers(workload: Workload, table: OpTable, platform: Platform) -> None:
    """`InputError` naming the op where a number of the model or the step cannot give seconds, before anything is compiled."""
    for field in dataclasses.fields(platform.knobs):
        values = np.asarray(getattr(platform.knobs, field.name), np.float64)
        shared = field.name not in GROUP_KNOBS  # by all groups
        wrong = np.full(len(table.group), not (values >= 0).all()) if shared else ~(values[table.group] >= 0)
        least = np.nanmin(values) if shared and not np.isnan(values).all() else np.nan
        _refuse(workload, wrong, np.full(len(wrong), least) if shared else values[table.group], f"its knob {field.name}")
    for field in dataclasses.fields(table.work):
        values = np.asarray(getattr(table.work, field.name), np.float64)
        _refuse(workload, ~(values >= 0), values, f"its {field.name}")
    _refuse(workload, ~np.isfinite(table.correction), table.correction, "its learned correction")


def _refuse(workload: Workload, wrong: np.ndarray, values: np.ndarray, what: str) -> None:
    for op in np.flatnonzero(wrong)[:1].tolist():
        raise InputError(
            f"{_named(workload, op)} can have no time: {what} is {values[op]}, expected 0 or more; check the model and the step"
        )


def _named(workload: Workload, op: int) -> str:
    """A unique op for people, with where it is met first."""
    graph, group = workload.graph, GROUPS[int(workload.calls[op].op.group_index())]
    users = np.flatnonzero((graph.row == op + 1) | (graph.launch_row == op + 1))
    return f"{group} (first used by node {users[0]} {graph.labels[users[0]]!r})" if len(users) else f"{group} (used by no node)"


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


def step_seconds(program: Any, table: OpTable, platform: Platform) -> Any:
    """Seconds of one step, one platform; pure and differentiable: the function that searches descend."""
    return makespan(program, durations(table, platform)[:, None])[0]


def _batch_seconds_impl(program: Program | Folded, table: OpTable, fixed: Platform, varied: dict[str, Any], mesh: Mesh | None) -> Any:
    def seconds(program: Program | Folded, table: OpTable, fixed: Platform, varied: dict[str, Any]) -> Any:
        # priced and evaluated block by block: durations of the whole batch would leave the cache
        if isinstance(program, Folded):
            return in_blocks(lambda some: makespan_of(program, _priced(table, fixed, some)), varied, FOLD_BLOCK)
        return in_blocks(lambda some: makespan(program, _priced(table, fixed, some)), varied)

    return _over_devices(seconds, P(_BATCH), (program, table, fixed), varied, mesh)


def _priced(table: OpTable, fixed: Platform, varied: Mapping[str, Any]) -> Any:
    """Durations [U, B] on a platform some of whose fields and knobs vary."""

    def replaced(fields: Mapping[str, Any], base: Platform) -> Platform:
        knobs = dataclasses.replace(base.knobs, **{name: value for name, value in fields.items() if name in GROUP_KNOBS})
        return dataclasses.replace(base, knobs=knobs, **{name: value for name, value in fields.items() if name in _PLATFORM_KNOBS})

    axes = replaced({name: value.ndim - 1 for name, value in varied.items()}, jax.tree.map(lambda _: None, fixed))
    return batched_durations(table, replaced(varied, fixed), axes)


def _batch_outputs_impl(plan: Outputs, program: Program, table: OpTable, fixed: Platform, varied: dict[str, Any], mesh: Mesh | None) -> Any:
    def columns(plan: Outputs, program: Program, table: OpTable, fixed: Platform, varied: dict[str, Any]) -> Any:
        return in_blocks(lambda some: batch_outputs(plan, program, _priced(table, fixed, some)), varied)

    return _over_devices(columns, P(None, _BATCH), (plan, program, table, fixed), varied, mesh)


def _over_devices(function: Callable[..., Any], answers: P, shared: tuple[Any, ...], varied: dict[str, Any], mesh: Mesh | None) -> Any:
    """`function(*shared, varied)`, each device doing its part of the batch."""
    if mesh is None:
        return function(*shared, varied)
    split = jax.tree.map(lambda leaf: P(*[None] * (leaf.ndim - 1), _BATCH), varied)
    # by hand, not left to the partitioner: it would cut the evaluator's blocks apart and have devices talk at every step
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(*[P()] * len(shared), split), out_specs=answers, check_vma=False)
    return mapped(*shared, varied)


_batch_seconds = jax.jit(_batch_seconds_impl, static_argnums=4)
_batch_outputs = jax.jit(_batch_outputs_impl, static_argnums=5)
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


def gradient(model: PerfModel, workload: Workload) -> Platform:
    """d seconds / d each number of the platform, exact (back-pointers through the longest path)."""
    check_backend(model, workload)
    program, table = lower(workload.graph).program, canonical(model.table(workload.calls))
    return _slopes(program, table, canonical(model.platform()))


_slopes = jax.jit(jax.grad(step_seconds, argnums=2))
