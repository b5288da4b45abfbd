"""A workload on many variations of a machine at once: `step_function` for arrays of knobs [B].

Any of the platform's numbers may be given as an array [B], and everything from knob to makespan is
one compiled, differentiable function of them. A batch is priced and evaluated block by block;
several devices share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import in_blocks, makespan
from hybridperf.engine.folding import FOLD_BLOCK, FoldedProgram, folded, makespan_of
from hybridperf.engine.lower import StepProgram
from hybridperf.engine.step_function import (
    LINK_KNOBS,
    PLATFORM_KNOBS,
    PreparedStep,
    StepRows,
)
from hybridperf.engine.step_width import StepWidth
from hybridperf.engine.workload import Workload
from hybridperf.hardware import LEVELS
from hybridperf.io import InputError, unknown
from hybridperf.io.namespace import SOONER_COMPILED, Array, array_module, is_traced
from hybridperf.model import GROUP_KNOBS, LEVEL_KNOBS, PerfModel, Platform
from hybridperf.model.alive import MACHINE
from hybridperf.model.calls import kind_of, row_kinds
from hybridperf.model.step_effects import NAMES
from hybridperf.model.step_table import StepTable, split
from hybridperf.ops import GROUPS

_FEW = 256  # so many are answered before a quicker function were compiled
_BATCH = "batch"  # axis of the devices that share a batch
_EFFECTS = "effects"  # all step effects as one field [K, B]
_OF_LEVELS = ("level_bytes", *LEVEL_KNOBS)


def predict_batch(
    model: PerfModel, workload: Workload, *, hold_corrections: bool = False, **knobs: ArrayLike
) -> np.ndarray:
    """Seconds of one step on B variations of a machine, evaluated together.

    Knobs that are not given keep the model's value. What was learned of an op is read at the varied
    numbers of the device as of a device whose datasheet has them (`model/alive.py`). Their names
    are:

    - `memory_bytes_per_s`: the device's memory bandwidth, bytes/s.
    - `peak_flops_scale`: factor on the device's peak FLOP/s of every number format.
    - `intra_bytes_per_s`, `rank_bytes_per_s`, `node_bytes_per_s`: bandwidth of a rank inside its
      node, of one rank to other nodes, and of a whole node to other nodes, bytes/s; for steps with
      collectives.
    - `link_latency_s`: seconds that a step of the links takes, as the system's datasheet has it.
    - `LEVEL__KNOB`, for example `l2__level_bytes`: a memory level's `level_bytes`, `level_speedup`
      (bandwidth over memory's), `line_s` (seconds of a strided read), `level_capacity` (share that
      is the step's own).
    - `GROUP__KNOB`, for example `gemm__compute_efficiency`: a knob of one group of ops. Groups are
      those of `Prediction.breakdown()`. Knobs are `floor_s` (least seconds of an op),
      `compute_efficiency` (share of peak FLOP/s), `memory_efficiency` (share of bandwidth),
      `transcendental_flops` (FLOPs of an exp, log, ...), `strided_factor` (cost of strided reads),
      `step_s` (seconds of a serial step), `smoothing` (0: the larger of compute and memory time,
      1: their sum).
    - `KNOB` alone, for example `compute_efficiency`: a factor on every group's own value.
    - a step effect of a training step, for example `launch_s` (`StepEffects`).

    Args:
        model: the machine to vary.
        workload: the step.
        hold_corrections: whether what was learned of each op stays as on today's machine: every op
            then follows its closed form in all knobs, and a batch takes less time.
        knobs: values by name, each above zero: an array [B], or a number that holds for all of B.

    Returns:
        Seconds [B], float64.

    Raises:
        InputError: when a knob is unknown, changes nothing in this step, or is not positive.
    """
    return BatchPredictor(model, workload, hold_corrections=hold_corrections)(**knobs)


class BatchPredictor:
    """`predict_batch` for many batches of one step, which it prepares and compiles only once.

    Where JAX has several devices, they share each batch.

    Args:
        model: the machine to vary.
        workload: the step.
        hold_corrections: as `predict_batch` takes it.
        interval: whether a call also returns the ends of the 90 % interval (`step_width.py`).

    Raises:
        InputError: when the workload was compiled for another kind of device, or no interval of
            the step is known.
    """

    def __init__(
        self, model: PerfModel, workload: Workload, *, hold_corrections: bool = False,
        interval: bool = False,
    ):  # fmt: skip
        step = PreparedStep.of(model, workload, hold_corrections)
        _check_numbers(workload, step.rows.table, step.platform)
        self._workload, self._platform, self._groups = workload, step.platform, step.groups
        self._rows, self._fixed = step.in_precision()
        folds = None if interval else folded(step.lowered)
        program = folds or contracted(step.lowered.program)
        # once, not at each call
        self._program: StepProgram | FoldedProgram = jax.device_put(program)
        self._width = StepWidth.of(model, step) if interval else None
        devices = jax.local_devices()
        self._mesh = jax.sharding.Mesh(np.array(devices), (_BATCH,)) if len(devices) > 1 else None

    def __call__(self, **knobs: ArrayLike) -> Any:
        """Seconds of the step on B variations of the machine.

        Args:
            knobs: values by name, as `predict_batch` takes.

        Returns:
            Seconds [B]; with `interval` a dict of these: `time_s`, `low_s`, `high_s`.

        Raises:
            InputError: when a knob is unknown, changes nothing in this step, or is not positive.
        """
        values = _checked_knobs(knobs)
        self._check_matters(values)
        size = len(next(iter(values.values())))
        if self._mesh is not None:  # every device takes as many
            more = (0, -size % self._mesh.size)
            values = {name: np.pad(value, more, mode="edge") for name, value in values.items()}
        dtype = self._fixed.peak_flops_scale.dtype
        # by NumPy: JAX takes 50 us for each
        fields = _varied(self._platform, values, self._groups)
        varied = {name: value.astype(dtype) for name, value in fields.items()}
        # corrections that no field moves are held: what is compiled is shared by more steps
        rows = self._rows
        if not any(name in varied for name in MACHINE):
            rows = dataclasses.replace(rows, alive=None)
        given = (self._width, self._program, rows, self._fixed, varied, self._mesh)
        answers_of = _few_answers if size <= _FEW else _batch_answers
        found = np.asarray(answers_of(*given), np.float64)[..., :size]
        answers = self._checked(np.atleast_2d(found), varied)
        if self._width is None:
            return answers[0]
        return dict(zip(self._width.columns, answers, strict=True))

    def _checked(self, answers: np.ndarray, varied: Mapping[str, Any]) -> np.ndarray:
        """`answers` [columns, B]; `InputError` where knobs give an op no finite seconds."""
        wrong = np.flatnonzero(~np.isfinite(answers).all(axis=0))
        if not len(wrong):
            return answers
        at = int(wrong[0])
        there = {name: values[..., at : at + 1] for name, values in varied.items()}
        op_s = np.asarray(_priced(self._rows, self._fixed, there))[:, 0]
        for op in np.flatnonzero(~np.isfinite(op_s)).tolist():
            raise InputError(
                f"{_named(self._workload, op)} would take {op_s[op]} s in configuration {at}; check"
                " the knobs and the model"
            )
        raise InputError(
            f"the ops of configuration {at} take more seconds together than a number holds; check"
            " the knobs and the model"
        )

    def _check_matters(self, knobs: Iterable[str]) -> None:
        """`InputError` for a knob that changes nothing in this step."""
        for name in knobs:
            why = ""
            if name in LINK_KNOBS and self._rows.table.collectives is None:
                why = "has no collectives"
            if name in NAMES and self._workload.in_step is None:
                why = "is no training step"
            if why:
                nothing = f"{self._workload.name} {why}, so {name} changes nothing"
                raise InputError(f"{nothing}; leave the knob out")


def _varied(
    platform: Platform, values: Mapping[str, Array], groups: Sequence[str]
) -> dict[str, Array]:
    """What varies of a platform with knobs of `groups`, by field or knob: [B] or [..., B]."""
    xp, fields = array_module(*values.values()), dict[str, Array]()
    # a group's own value is the last word
    for name, value in sorted(values.items(), key=lambda item: "__" in item[0]):
        group, _, knob = name.rpartition("__")
        if name in (*PLATFORM_KNOBS, *LINK_KNOBS):
            fields[name] = value
        elif name in NAMES:
            base = xp.asarray(platform.effects)[:, None]
            some = xp.broadcast_to(fields.get(_EFFECTS, base), (len(NAMES), len(value)))
            fields[_EFFECTS] = xp.where(np.array(NAMES)[:, None] == name, value, some)
        elif knob in GROUP_KNOBS and (not group or group in GROUPS):
            base = fields.get(knob, xp.asarray(getattr(platform.knobs, knob))[:, None])
            of_group = np.array([one == group for one in groups])[:, None]
            fields[knob] = xp.where(of_group, value, base) if group else base * value
        elif knob in _OF_LEVELS and group in LEVELS:
            of = platform if knob == "level_bytes" else platform.knobs
            base = fields.get(knob, xp.asarray(getattr(of, knob))[:, None])
            fields[knob] = xp.where(np.array(LEVELS)[:, None] == group, value, base)
        else:
            known = ", ".join((*PLATFORM_KNOBS, *LINK_KNOBS, *GROUP_KNOBS, *NAMES))
            raise unknown("knob", name, knob_names(), f"known are {known}")
    return fields


def _replaced(platform: Platform, fields: Mapping[str, Any]) -> Platform:
    """The platform with what `_varied` gives."""
    knobs, links, plain = (
        {name: value for name, value in fields.items() if name in names}
        for names in (
            (*GROUP_KNOBS, *LEVEL_KNOBS),
            LINK_KNOBS,
            (*PLATFORM_KNOBS, "level_bytes", _EFFECTS),
        )
    )
    assert platform.links is not None or not links
    plain["knobs"] = dataclasses.replace(platform.knobs, **knobs)
    plain["links"] = platform.links and dataclasses.replace(platform.links, **links)
    return dataclasses.replace(platform, **plain)


def _check_numbers(workload: Workload, rows: StepTable, platform: Platform) -> None:
    """`InputError` naming the op where a number of the model or step cannot give seconds."""
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
        # one of memory levels is shared by all groups
        shared = field.name not in GROUP_KNOBS
        values = np.full(len(table.group), values.min()) if shared else values[table.group]
        _refuse(workload, ops, ~(values >= 0), values, f"its knob {field.name}")
    for field in dataclasses.fields(table.work):
        values = np.asarray(getattr(table.work, field.name), np.float64)
        _refuse(workload, ops, ~(values >= 0), values, f"its {field.name}")
    correction = table.correction
    _refuse(workload, ops, ~np.isfinite(correction), correction, "its learned correction")


def _refuse(
    workload: Workload, ops: Sequence[int], wrong: np.ndarray, values: np.ndarray, what: str
) -> None:
    for op in np.flatnonzero(wrong)[:1].tolist():
        raise InputError(
            f"{_named(workload, ops[op])} can have no time: {what} is {values[op]}, expected 0 or"
            " more; check the model and the step"
        )


def _named(workload: Workload, row: int) -> str:
    """In words, a row and the node that uses it first."""
    return f"{row_kinds()[kind_of(workload.calls[row])]} ({workload.graph.user_of(row + 1)})"


def knob_names() -> list[str]:
    """What `predict_batch` varies, the knobs of single groups included."""
    of_groups = [f"{group}__{knob}" for group in GROUPS for knob in GROUP_KNOBS]
    of_levels = [f"{level}__{knob}" for level in LEVELS for knob in _OF_LEVELS]
    own = [*of_groups, *of_levels]
    return [*PLATFORM_KNOBS, *LINK_KNOBS, *GROUP_KNOBS, *own, *NAMES]


def _checked_knobs(knobs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Knobs as float64 [B], every number above zero; `InputError` where they are not."""
    if is_traced(knobs):
        raise InputError(
            "expected numbers for knobs, got what JAX traces; under jax.grad, jit or vmap call"
            " hp.step_function(model, workload), the same seconds as a JAX function"
        )
    try:
        values = {name: np.atleast_1d(np.asarray(v, np.float64)) for name, v in knobs.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"knobs must be numbers or arrays of numbers: {error}") from error
    if any(value.ndim != 1 or not len(value) for value in values.values()):
        shapes = {name: value.shape for name, value in values.items()}
        raise InputError(f"knobs must be arrays [B] of at least one number, got shapes {shapes}")
    if not values:
        example = "such as memory_bytes_per_s=[...]"
        raise InputError(f"expected at least one knob as an array, {example}; got none")
    most = max(len(value) for value in values.values())
    for name, value in knobs.items():
        if np.ndim(value) == 0:  # the same in all configurations
            values[name] = np.repeat(values[name], most)
    sizes = {name: len(value) for name, value in values.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"all knobs need the same length, got {sizes}")
    for name, value in values.items():
        # a positive number may be zero or infinite in the precision of the computation
        with np.errstate(over="ignore"):
            rounded = value.astype(jnp.result_type(float))
        limits = np.finfo(rounded.dtype)
        right = np.isfinite(rounded) & (rounded >= limits.tiny)
        if not right.all():
            wrong = value[~right][0]
            reach = f" from {limits.tiny:.2g} to {limits.max:.2g}"
            reach = reach if np.isfinite(wrong) and wrong > 0 else ""
            raise InputError(f"knob {name} must be positive numbers{reach}, got {wrong}")
    return values


def _priced(rows: StepRows, fixed: Platform, varied: Mapping[str, Array]) -> Array:
    """Durations [U, B] on a platform some of whose fields and knobs vary."""
    no_axes = jax.tree.map(lambda _: None, fixed)
    axes = _replaced(no_axes, {name: value.ndim - 1 for name, value in varied.items()})

    def durations(platform: Platform) -> Array:
        return rows.durations(platform, varied)

    return jax.vmap(durations, in_axes=(axes,), out_axes=-1)(_replaced(fixed, varied))


def _batch_answers_impl(
    width: StepWidth | None, program: StepProgram | FoldedProgram, rows: StepRows,
    fixed: Platform, varied: dict[str, Array], mesh: Mesh | None,
) -> Array:  # fmt: skip
    """Seconds of the step [B], or its interval's columns [C, B]; each device does its part of B."""

    def answers(width: Any, program: Any, rows: StepRows, fixed: Platform, varied: Any) -> Array:
        folds = isinstance(program, FoldedProgram)

        def of_some(some: Mapping[str, Array]) -> Array:
            durations = _priced(rows, fixed, some)
            if width is not None:
                return jnp.stack(width.ends(program, durations))
            return makespan_of(program, durations) if folds else makespan(program, durations)

        # priced and evaluated block by block: durations of the whole batch would leave the cache
        return in_blocks(of_some, varied, FOLD_BLOCK if folds else None)

    shared = width, program, rows, fixed
    if mesh is None:
        return answers(*shared, varied)
    split = jax.tree.map(lambda leaf: P(*[None] * (leaf.ndim - 1), _BATCH), varied)
    specs = (*[P()] * len(shared), split)
    columns = P(_BATCH) if width is None else P(None, _BATCH)
    # by hand, not left to the partitioner: it would cut the evaluator's blocks apart and have
    # devices talk at every step
    mapped = jax.shard_map(answers, mesh=mesh, in_specs=specs, out_specs=columns, check_vma=False)
    return mapped(*shared, varied)


_batch_answers = jax.jit(_batch_answers_impl, static_argnums=5)
_few_answers = jax.jit(_batch_answers_impl, static_argnums=5, compiler_options=SOONER_COMPILED)
