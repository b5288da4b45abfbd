"""A workload on many variations of a machine at once.

Any of the platform's numbers may be given as an array [B], and everything from knob to makespan is
one compiled, differentiable function of them. A batch is priced and evaluated block by block;
several devices share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from hybridperf.collectives.links import Links
from hybridperf.engine.evaluate import in_blocks, makespan
from hybridperf.engine.folding import FOLD_BLOCK, Folded, folded, makespan_of
from hybridperf.engine.lower import Program, lower
from hybridperf.engine.outputs import Outputs, batch_outputs, outputs_of
from hybridperf.engine.prediction import check_backend
from hybridperf.engine.step_table import (
    StepTable,
    batched_step_durations,
    split,
    step_durations,
    step_table,
)
from hybridperf.engine.workload import KINDS, Workload, kind_of
from hybridperf.io import InputError, unknown
from hybridperf.model import GROUP_KNOBS, OpTable, PerfModel, Platform, canonical
from hybridperf.ops import GROUPS

_BATCH = "batch"  # axis of the devices that share a batch
_PLATFORM_KNOBS = ("memory_bytes_per_s", "peak_flops_scale")
_LINK_KNOBS = tuple(field.name for field in dataclasses.fields(Links))


def predict_batch(model: PerfModel, workload: Workload, **knobs: Any) -> np.ndarray:
    """Seconds [B] of one step on B variations of the platform.

    `knobs`: arrays [B], or numbers that hold for all of B, by name: `memory_bytes_per_s`,
    `peak_flops_scale`; a knob of one group as `gemm__compute_efficiency`, or of all groups as
    `compute_efficiency` (a factor on each group's own value); of a step with collectives also
    `intra_bytes_per_s`, `rank_bytes_per_s`, `node_bytes_per_s`. `InputError` for an unknown one, or
    where one is not positive.
    """
    return BatchPredictor(model, workload)(**knobs)


class BatchPredictor:
    """`predict_batch` for many batches, which several devices share: the step is lowered once.

    With `outputs`, some of `hybridperf.engine.outputs.OUTPUTS`, a call gives their columns [B] by
    name: `time_s`, `busy_compute_s`, `exposed_s`, `critical_gemm_s`.
    """

    def __init__(self, model: PerfModel, workload: Workload, outputs: Sequence[str] | None = None):
        check_backend(model, workload)
        lowered = lower(workload.graph)
        rows, platform = step_table(model, workload.calls), model.platform()
        table = rows.ops
        _check_numbers(workload, rows, platform)
        self._workload = workload
        self._outputs = (
            None
            if outputs is None
            else outputs_of(lowered, [KINDS[kind_of(call)] for call in workload.calls], outputs)
        )
        program = (
            folded(lowered) if self._outputs is None else None
        ) or lowered.program  # what else is asked needs every step
        self._program: Program | Folded = jax.device_put(program)  # once, not at each call
        # knobs of the groups that the step has, and no others: each that varies is an array [G, B]
        used, group = np.unique(table.group, return_inverse=True)
        # few lengths, few compiled functions
        used = np.pad(used, (0, (1 << (len(used) - 1).bit_length()) - len(used)), mode="edge")
        self._groups = [GROUPS[int(at)] for at in used]
        knobs = dataclasses.replace(
            platform.knobs,
            **{name: np.asarray(getattr(platform.knobs, name))[used] for name in GROUP_KNOBS},
        )
        self._platform = dataclasses.replace(platform, knobs=knobs)
        self._fixed = canonical(self._platform)
        self._table = canonical(
            dataclasses.replace(rows, ops=dataclasses.replace(table, group=group.astype(np.int32)))
        )
        devices = jax.local_devices()
        self._mesh = jax.sharding.Mesh(np.array(devices), (_BATCH,)) if len(devices) > 1 else None

    def __call__(self, **knobs: Any) -> Any:
        """Seconds [B], see `predict_batch`; with `outputs` a dict of columns [B]."""
        values = _checked_knobs(knobs)
        size = len(next(iter(values.values())))
        if self._mesh is not None:  # every device takes as many
            values = {
                name: np.pad(value, (0, -size % self._mesh.size), mode="edge")
                for name, value in values.items()
            }
        dtype = self._fixed.peak_flops_scale.dtype
        # by NumPy: JAX takes 50 us for each
        varied = {name: value.astype(dtype) for name, value in self._varied(values).items()}
        if self._outputs is None:
            seconds = _batch_seconds(self._program, self._table, self._fixed, varied, self._mesh)
            return self._checked(np.asarray(seconds, np.float64)[None, :size], varied)[0]
        found = _batch_outputs(
            self._outputs, self._program, self._table, self._fixed, varied, self._mesh
        )
        columns = self._checked(np.asarray(found, np.float64)[:, :size], varied)
        return dict(zip(self._outputs.columns, columns, strict=True))

    def _checked(self, answers: np.ndarray, varied: Mapping[str, Any]) -> np.ndarray:
        """`answers` [columns, B]; `InputError` where knobs give an op no finite seconds."""
        wrong = ~np.isfinite(answers).all(axis=0)
        if not wrong.any():
            return answers
        at = int(np.flatnonzero(wrong)[0])
        op_s = np.asarray(
            _priced(
                self._table,
                self._fixed,
                {name: values[..., at : at + 1] for name, values in varied.items()},
            )
        )[:, 0]
        for op in np.flatnonzero(~np.isfinite(op_s)).tolist():
            raise InputError(
                f"{_named(self._workload, op)} would take {op_s[op]} s in configuration {at}; check"
                " the knobs and the model"
            )
        raise InputError(
            f"the ops of configuration {at} take more seconds together than a number holds; check"
            " the knobs and the model"
        )

    def _varied(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What varies of the platform, by field or knob: [B] or [G, B]."""
        fields: dict[str, np.ndarray] = {}
        # a group's own value is the last word
        for name, value in sorted(values.items(), key=lambda item: "__" in item[0]):
            group, _, knob = name.rpartition("__")
            if name in _PLATFORM_KNOBS or (
                name in _LINK_KNOBS and self._table.collectives is not None
            ):
                fields[name] = value
            elif name in _LINK_KNOBS:
                raise InputError(
                    f"{self._workload.name} has no collectives, so {name} changes nothing; leave"
                    " the knob out"
                )
            elif knob in GROUP_KNOBS and (not group or group in GROUPS):
                base = fields.get(knob, np.asarray(getattr(self._platform.knobs, knob))[:, None])
                of_group = np.array([not group or one == group for one in self._groups])[:, None]
                fields[knob] = np.where(of_group, value, base) if group else base * value
            else:
                raise unknown(
                    "knob",
                    name,
                    knob_names(),
                    f"known are {', '.join((*_PLATFORM_KNOBS, *_LINK_KNOBS, *GROUP_KNOBS))}",
                )
        return fields


def _check_numbers(workload: Workload, rows: StepTable, platform: Platform) -> None:
    """`InputError` naming the op where a number of the model or the step cannot give seconds."""
    table = rows.ops
    op_rows, _, given = split(workload.calls)
    ops = list(op_rows)
    for row, seconds in given.items():
        if not (np.isfinite(seconds.value) and seconds.value >= 0):
            raise InputError(
                f"{_named(workload, row)} is given as {seconds.value} s, expected finite seconds, 0"
                " or more; check the step"
            )
    if not ops:
        return
    for field in dataclasses.fields(platform.knobs):
        values = np.asarray(getattr(platform.knobs, field.name), np.float64)
        shared = field.name not in GROUP_KNOBS  # by all groups
        wrong = (
            np.full(len(table.group), not (values >= 0).all())
            if shared
            else ~(values[table.group] >= 0)
        )
        least = np.nanmin(values) if shared and not np.isnan(values).all() else np.nan
        _refuse(
            workload,
            ops,
            wrong,
            np.full(len(wrong), least) if shared else values[table.group],
            f"its knob {field.name}",
        )
    for field in dataclasses.fields(table.work):
        values = np.asarray(getattr(table.work, field.name), np.float64)
        _refuse(workload, ops, ~(values >= 0), values, f"its {field.name}")
    _refuse(
        workload, ops, ~np.isfinite(table.correction), table.correction, "its learned correction"
    )


def _refuse(
    workload: Workload, ops: Sequence[int], wrong: np.ndarray, values: np.ndarray, what: str
) -> None:
    for op in np.flatnonzero(wrong)[:1].tolist():
        raise InputError(
            f"{_named(workload, ops[op])} can have no time: {what} is {values[op]}, expected 0 or"
            " more; check the model and the step"
        )


def _named(workload: Workload, op: int) -> str:
    """A row for people, with where it is met first."""
    graph, group = workload.graph, KINDS[kind_of(workload.calls[op])]
    users = np.flatnonzero((graph.row == op + 1) | (graph.launch_row == op + 1))
    return (
        f"{group} (first used by node {users[0]} {graph.labels[users[0]]!r})"
        if len(users)
        else f"{group} (used by no node)"
    )


def knob_names() -> list[str]:
    """What `predict_batch` varies, the knobs of single groups included."""
    return [
        *_PLATFORM_KNOBS,
        *_LINK_KNOBS,
        *GROUP_KNOBS,
        *(f"{g}__{k}" for g in GROUPS for k in GROUP_KNOBS),
    ]


def _checked_knobs(knobs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Knobs as float64 [B], every number above zero; `InputError` where they are not."""
    try:
        values = {
            name: np.atleast_1d(np.asarray(value, np.float64)) for name, value in knobs.items()
        }
    except (TypeError, ValueError) as error:
        raise InputError(f"knobs must be numbers or arrays of numbers: {error}") from error
    if any(value.ndim != 1 or not len(value) for value in values.values()):
        raise InputError(
            "knobs must be arrays [B] of at least one number, got shapes"
            f" { {n: v.shape for n, v in values.items()} }"
        )
    if not values:
        raise InputError(
            "expected at least one knob as an array, such as memory_bytes_per_s=[...]; got none"
        )
    most = max(len(value) for value in values.values())
    # the same in all configurations
    numbers = {name for name, value in knobs.items() if np.ndim(value) == 0}
    values = {
        name: np.repeat(value, most) if name in numbers else value for name, value in values.items()
    }
    sizes = {name: len(value) for name, value in values.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"all knobs need the same length, got {sizes}")
    for name, value in values.items():
        with np.errstate(over="ignore"):
            # a positive number may be none in the precision that is computed in
            held = value.astype(jnp.result_type(float))
        right = np.isfinite(held) & (held >= np.finfo(held.dtype).tiny)
        if not right.all():
            raise InputError(
                f"knob {name} must be positive numbers{_in_reach(value[~right][0], held.dtype)},"
                f" got {value[~right][0]}"
            )
    return values


def _in_reach(value: float, dtype: np.dtype) -> str:
    """What more to say of a positive number that a number format does not hold."""
    return (
        f" from {np.finfo(dtype).tiny:.2g} to {np.finfo(dtype).max:.2g}"
        if np.isfinite(value) and value > 0
        else ""
    )


def step_seconds(program: Any, table: StepTable | OpTable, platform: Platform) -> Any:
    """Seconds of one step on one platform: pure and differentiable, for gradient searches."""
    rows = StepTable(table) if isinstance(table, OpTable) else table
    return makespan(program, step_durations(rows, platform)[:, None])[0]


def _batch_seconds_impl(
    program: Program | Folded,
    table: StepTable,
    fixed: Platform,
    varied: dict[str, Any],
    mesh: Mesh | None,
) -> Any:
    def seconds(
        program: Program | Folded, table: StepTable, fixed: Platform, varied: dict[str, Any]
    ) -> Any:
        # priced and evaluated block by block: durations of the whole batch would leave the cache
        if isinstance(program, Folded):
            return in_blocks(
                lambda some: makespan_of(program, _priced(table, fixed, some)), varied, FOLD_BLOCK
            )
        return in_blocks(lambda some: makespan(program, _priced(table, fixed, some)), varied)

    return _over_devices(seconds, P(_BATCH), (program, table, fixed), varied, mesh)


def _priced(table: StepTable, fixed: Platform, varied: Mapping[str, Any]) -> Any:
    """Durations [U, B] on a platform some of whose fields and knobs vary."""

    def replaced(fields: Mapping[str, Any], base: Platform) -> Platform:
        knobs = dataclasses.replace(
            base.knobs, **{name: value for name, value in fields.items() if name in GROUP_KNOBS}
        )
        links = {name: value for name, value in fields.items() if name in _LINK_KNOBS}
        plain = {name: value for name, value in fields.items() if name in _PLATFORM_KNOBS}
        assert base.links is not None or not links
        return dataclasses.replace(
            base,
            knobs=knobs,
            links=base.links and dataclasses.replace(base.links, **links),
            **plain,
        )

    axes = replaced(
        {name: value.ndim - 1 for name, value in varied.items()},
        jax.tree.map(lambda _: None, fixed),
    )
    return batched_step_durations(table, replaced(varied, fixed), axes)


def _batch_outputs_impl(
    plan: Outputs,
    program: Program,
    table: StepTable,
    fixed: Platform,
    varied: dict[str, Any],
    mesh: Mesh | None,
) -> Any:
    def columns(
        plan: Outputs, program: Program, table: StepTable, fixed: Platform, varied: dict[str, Any]
    ) -> Any:
        return in_blocks(
            lambda some: batch_outputs(plan, program, _priced(table, fixed, some)), varied
        )

    return _over_devices(columns, P(None, _BATCH), (plan, program, table, fixed), varied, mesh)


def _over_devices(
    function: Callable[..., Any],
    answers: P,
    shared: tuple[Any, ...],
    varied: dict[str, Any],
    mesh: Mesh | None,
) -> Any:
    """`function(*shared, varied)`, each device doing its part of the batch."""
    if mesh is None:
        return function(*shared, varied)
    split = jax.tree.map(lambda leaf: P(*[None] * (leaf.ndim - 1), _BATCH), varied)
    # by hand, not left to the partitioner: it would cut the evaluator's blocks apart and have
    # devices talk at every step
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(*[P()] * len(shared), split),
        out_specs=answers,
        check_vma=False,
    )
    return mapped(*shared, varied)


_batch_seconds = jax.jit(_batch_seconds_impl, static_argnums=4)
_batch_outputs = jax.jit(_batch_outputs_impl, static_argnums=5)


def gradient(model: PerfModel, workload: Workload) -> Platform:
    """d seconds / d each number of the platform, exact (back-pointers through the longest path)."""
    check_backend(model, workload)
    program, table = lower(workload.graph).program, canonical(step_table(model, workload.calls))
    return _slopes(program, table, canonical(model.platform()))


_slopes = jax.jit(jax.grad(step_seconds, argnums=2))
