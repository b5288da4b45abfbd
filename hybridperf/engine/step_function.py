"""A step's seconds as a pure function of the machine's numbers, for JAX.

    f = hp.step_function(model, workload)
    f(f.knobs)                                           # today's seconds: hp.predict's
    jax.grad(f)(f.knobs)["memory_bytes_per_s"]           # seconds per byte/s
    jax.vmap(f)({"memory_bytes_per_s": rates})           # the rest as today

`f.knobs` is a dict of named numbers, `f.units` their units, and `flat` gives both by the names that
`hp.predict_batch` and `hp.elasticities` use:

    peak_flops_scale            factor on the device's peak FLOP/s of every number format
    memory_bytes_per_s          the device's memory bandwidth
    levels  l2: level_bytes, level_speedup, line_s, level_capacity     `l2__level_bytes`
    groups  gemm: floor_s, compute_efficiency, memory_efficiency, ...  `gemm__floor_s`
    links   intra_bytes_per_s, rank_bytes_per_s, node_bytes_per_s, host_link_bytes_per_s,
            link_latency_s
    effects launch_s, ...: what a training step adds (`StepEffects`)

A step has the levels of its device, the groups of its ops, links where it has collectives, effects
where it is a training step. How corrections move with the device's numbers stands in
`model/alive.py`. Those of a collective are held, as they are on another system
(`CollectiveModel.on`): a faster or quicker link makes no collective slower.

The slope is that of the longest path, exact but at ties, where it is that of one of the paths.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives.traffic import Links
from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.knobs import (
    Knobs,
    clipped,
    compiled,
    completed,
    farthest,
    units_of,
    within_reach,
)
from hybridperf.engine.lower import Lowered, StepProgram, lower
from hybridperf.engine.prediction import check_backend
from hybridperf.engine.workload import Workload, priced
from hybridperf.hardware import LEVELS
from hybridperf.io.namespace import Array, array_module
from hybridperf.model import GROUP_KNOBS, LEVEL_KNOBS, PerfModel, Platform, canonical
from hybridperf.model.alive import (
    MACHINE,
    AliveCorrections,
    CorrectionsNear,
    alive_corrections,
    corrections_near,
    in_precision,
)
from hybridperf.model.calls import no_op
from hybridperf.model.step_effects import NAMES
from hybridperf.model.step_table import StepTable, split, step_durations
from hybridperf.ops import GROUPS

PLATFORM_KNOBS = ("memory_bytes_per_s", "peak_flops_scale")
LINK_KNOBS = tuple(field.name for field in dataclasses.fields(Links))
_MOST_SMOOTHING = 8.0  # a plain sum has 1
_MOST_NEAR = 64  # machines whose corrections are kept


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepRows:
    """What the durations of a step depend on besides the platform."""

    table: StepTable
    # None: corrections are held, or depend on no number
    alive: AliveCorrections | CorrectionsNear | None

    def durations(
        self, platform: Platform, varied: Collection[str] = MACHINE, xp: ModuleType = jnp
    ) -> Array:
        """Seconds of each row [U] on a platform; `varied`: fields of `MACHINE` that may differ from
        today's. In NumPy (`xp`) as `step_durations`.
        """
        table = self.table
        if self.alive is not None and any(name in varied for name in MACHINE):
            shift = self.alive.log_shift(table.ops, platform, varied)
            ops = dataclasses.replace(table.ops, correction=table.ops.correction + shift)
            table = dataclasses.replace(table, ops=ops)
        return step_durations(table, platform, xp)


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedStep:
    """A step on a machine in NumPy: what is made once, whatever is asked of it then."""

    workload: Workload
    lowered: Lowered
    rows: StepRows
    platform: Platform  # with the knobs of `groups` alone
    groups: tuple[str, ...]  # of the step's ops, the last repeated up to a power of two
    # (shift, slopes) of corrections on the machines of the last calls, by logs of their numbers
    near: dict[tuple[float, ...], tuple[np.ndarray, np.ndarray | None]] = dataclasses.field(
        default_factory=dict, repr=False
    )

    @staticmethod
    def of(model: PerfModel, workload: Workload, hold_corrections: bool = False) -> PreparedStep:
        """`InputError` where the machine cannot price the step."""
        check_backend(model, workload)
        lowered = lower(workload.graph)
        table, platform = priced(model, workload)
        used, group = np.unique(table.ops.group, return_inverse=True)
        # few lengths, few compiled functions
        used = np.pad(used, (0, (1 << (len(used) - 1).bit_length()) - len(used)), mode="edge")
        of_used = {name: np.asarray(getattr(platform.knobs, name))[used] for name in GROUP_KNOBS}
        knobs = dataclasses.replace(platform.knobs, **of_used)
        platform = dataclasses.replace(platform, knobs=knobs)
        ops = dataclasses.replace(table.ops, group=group.astype(np.int32))
        table, alive = dataclasses.replace(table, ops=ops), None
        if not hold_corrections:
            calls = list(split(workload.calls)[0].values())
            alive = alive_corrections(model, calls or [no_op()], table.ops, platform)
        names = tuple(GROUPS[int(at)] for at in used)
        return PreparedStep(workload, lowered, StepRows(table, alive), platform, names)

    def in_precision(self) -> tuple[StepRows, Platform]:
        """Rows and platform as JAX arrays of its present precision."""
        rows, platform = self.rows, canonical(self.platform)
        alive = None
        if isinstance(rows.alive, AliveCorrections):
            alive = in_precision(rows.alive)
        held = canonical(dataclasses.replace(rows, alive=None))
        return dataclasses.replace(held, alive=alive), platform

    def settled(self, rows: StepRows, knobs: Knobs, with_slopes: bool) -> StepRows:
        """Rows as `in_precision` gives them, their corrections by NumPy where the numbers of the
        machine that these depend on are known: JAX traces and compiles none of the price then.

        `with_slopes`: whether slopes by these numbers will be asked for.
        """
        if array_module(*self._machine(knobs)) is jnp:
            return rows
        near = self.known(knobs, with_slopes).alive
        return rows if near is None else dataclasses.replace(rows, alive=canonical(near))

    def known(self, knobs: Knobs, with_slopes: bool) -> StepRows:
        """The same in NumPy, on a machine whose numbers are known."""
        alive, of, l2 = self.rows.alive, self.platform, LEVELS.index("l2")
        if not isinstance(alive, AliveCorrections):
            return self.rows
        precision, reach = jnp.result_type(float), farthest()
        today = of.peak_flops_scale, of.memory_bytes_per_s, np.asarray(of.level_bytes)[l2]
        usual = np.array([float(value) for value in today], precision)
        told = np.array(self._machine(knobs), precision)
        numbers = np.clip(told, usual / reach, usual * reach)
        there = np.where(usual > 0, numbers / np.where(usual > 0, usual, 1.0), 1.0)
        key = tuple(there.tolist())
        shift, by_log = self.near.get(key, (None, None))
        if shift is None or (with_slopes and by_log is None):
            if len(self.near) >= _MOST_NEAR:
                self.near.clear()
            logs = np.log(there.astype(np.float64))
            shift, by_log = corrections_near(alive, self.rows.table.ops, logs, with_slopes)
            self.near[key] = shift, by_log
        slopes = np.zeros((len(shift), len(MACHINE))) if by_log is None else by_log
        near = CorrectionsNear(alive.at, shift, slopes, numbers)
        return dataclasses.replace(self.rows, alive=near)

    @staticmethod
    def _machine(knobs: Knobs) -> tuple[Array, ...]:
        """Of the knobs those that corrections depend on, as `MACHINE`."""
        own = knobs["levels"].get("l2", {}).get("level_bytes", 0.0)
        return knobs["peak_flops_scale"], knobs["memory_bytes_per_s"], own

    @property
    def knobs(self) -> dict[str, Any]:
        """Today's numbers by name, float64."""
        return self.named(self.platform)

    def named(self, numbers: Platform) -> dict[str, Any]:
        """Numbers of a platform of this step, or their slopes, as dicts of floats."""
        out: dict[str, Any] = {name: float(getattr(numbers, name)) for name in PLATFORM_KNOBS}
        out["levels"] = levels = {}
        for at, level in enumerate(LEVELS):
            size = float(np.asarray(self.platform.level_bytes)[at])
            if size > 0:
                own = {name: float(getattr(numbers.knobs, name)[at]) for name in LEVEL_KNOBS}
                # main memory has no end
                bytes_ = (
                    {"level_bytes": float(numbers.level_bytes[at])} if np.isfinite(size) else {}
                )
                levels[level] = bytes_ | own
        out["groups"] = {
            group: {name: float(getattr(numbers.knobs, name)[at]) for name in GROUP_KNOBS}
            for at, group in enumerate(dict.fromkeys(self.groups))
        }
        if self.rows.table.collectives is not None:
            out["links"] = {name: float(getattr(numbers.links, name)) for name in LINK_KNOBS}
        if self.workload.in_step is not None:
            effects = np.asarray(numbers.effects)
            out["effects"] = {name: float(effects[at]) for at, name in enumerate(NAMES)}
        return out


def platform_at(today: Platform, groups: tuple[str, ...], knobs: Knobs) -> Platform:
    """A platform with all of a step's knobs; of known knobs [B] one in NumPy whose leaves have a
    first axis.
    """
    xp = array_module(*jax.tree.leaves(knobs))
    shape = jnp.shape(knobs["memory_bytes_per_s"])

    def with_own(name: str, numbers: Array) -> Array:
        """Numbers of all levels [..., L]."""
        some = {at: knobs["levels"].get(level, {}).get(name) for at, level in enumerate(LEVELS)}
        each = [numbers[at] if own is None else own for at, own in some.items()]
        return xp.stack([xp.broadcast_to(one, shape) for one in each], -1)

    level_bytes = with_own("level_bytes", today.level_bytes)
    of_levels = {name: with_own(name, getattr(today.knobs, name)) for name in LEVEL_KNOBS}
    of_groups = {
        name: xp.stack([knobs["groups"][group][name] for group in groups], -1)
        for name in GROUP_KNOBS
    }
    changed: dict[str, Any] = {name: knobs[name] for name in PLATFORM_KNOBS}
    if "links" in knobs:
        assert today.links is not None
        changed["links"] = dataclasses.replace(today.links, **knobs["links"])
    if "effects" in knobs:
        changed["effects"] = xp.stack([knobs["effects"][name] for name in NAMES], -1)
    varied = dataclasses.replace(today.knobs, **of_levels, **of_groups)
    platform = dataclasses.replace(today, level_bytes=level_bytes, knobs=varied, **changed)
    near = within_reach(platform, today)
    smoothing = clipped(near.knobs.smoothing, 0.0, _MOST_SMOOTHING)
    return dataclasses.replace(near, knobs=dataclasses.replace(near.knobs, smoothing=smoothing))


def seconds_at(
    program: StepProgram, rows: StepRows, today: Platform, groups: tuple[str, ...], knobs: Knobs
) -> Array:
    """Seconds of a step at all of its knobs: what `StepFunction` calls."""
    platform = platform_at(today, groups, knobs)
    return makespan(program, rows.durations(platform)[:, None])[0]


@functools.cache
def _seconds(groups: tuple[str, ...]) -> Callable[..., Any]:
    """`seconds_at` by (program, rows, today's platform) and knobs."""

    def told(arrays: Any, knobs: Knobs) -> Array:
        program, rows, today = arrays
        return seconds_at(program, rows, today, groups, knobs)

    return compiled(told)


def step_function(
    model: PerfModel, workload: Workload, *, hold_corrections: bool = False
) -> StepFunction:
    """Seconds of one step as a pure JAX function of the machine's numbers.

    Args:
        model: the machine.
        workload: the step, any that `hp.predict` takes.
        hold_corrections: whether what was learned of each op stays as it is on today's machine
            where numbers of the device vary (`model/alive.py`).

    Returns:
        A function of knobs, `f(knobs) -> seconds`, with today's as `f.knobs` and their units as
        `f.units`.

    Raises:
        InputError: when the machine cannot price the step.
    """
    return StepFunction(model, workload, hold_corrections=hold_corrections)


class StepFunction:
    """Seconds of one step by knobs; make one with `hp.step_function`.

    An ordinary JAX function: `jax.jit`, `jax.grad`, `jax.vmap`, `jax.hessian` and optimisers work
    on it. It is compiled once, and shares what is compiled with steps of the same structure.
    """

    def __init__(self, model: PerfModel, workload: Workload, *, hold_corrections: bool = False):
        self._step = PreparedStep.of(model, workload, hold_corrections)
        self._program = jax.device_put(contracted(self._step.lowered.program))
        self._by_precision: dict[Any, tuple[Any, ...]] = {}

    def __repr__(self) -> str:
        names = ", ".join(self.knobs)
        return f"<StepFunction: seconds of {self._step.workload.name} by {names}>"

    @property
    def knobs(self) -> dict[str, Any]:
        """Today's values, in JAX' present precision; a copy, which may be written to."""
        return jax.tree.map(lambda value: value, self._arrays()[2])

    @property
    def units(self) -> dict[str, Any]:
        """Units of `knobs`, in the same places; "1" for what has none."""
        return units_of(self._step.knobs)

    def __call__(self, knobs: Knobs) -> Array:
        """Seconds of the step.

        Args:
            knobs: numbers as `self.knobs` has them; those left out keep today's values.

        Raises:
            InputError: when a knob is unknown or no number.
        """
        rows, today, usual = self._arrays()
        whole = completed(usual, knobs)
        return _seconds(self._step.groups)((self._program, rows, today), whole, self._settled)

    def _settled(self, arrays: Any, knobs: Knobs, with_slopes: bool) -> Any:
        program, rows, today = arrays
        return program, self._step.settled(rows, knobs, with_slopes), today

    def slopes(self) -> dict[str, Any]:
        """d seconds / d knob at today's values: `jax.grad(self)(self.knobs)`, as floats."""
        return jax.tree.map(float, jax.grad(self)(self.knobs))

    def _arrays(self) -> tuple[StepRows, Platform, dict[str, Any]]:
        """(rows, today's platform, today's knobs) in JAX' present precision."""
        precision = jnp.result_type(float)
        if precision not in self._by_precision:
            with jax.ensure_compile_time_eval():
                rows, today = self._step.in_precision()
                knobs = jax.tree.map(lambda x: jnp.asarray(x, precision), self._step.knobs)
            self._by_precision[precision] = rows, today, knobs
        return self._by_precision[precision]


def flat(knobs: Knobs) -> dict[str, Any]:
    """Values by the names of `predict_batch`: `gemm__floor_s`, `l2__level_bytes`, `launch_s`."""
    return dict(_flattened(knobs))


def _flattened(knobs: Knobs) -> Iterator[tuple[str, Any]]:
    for name, value in knobs.items():
        if name in ("levels", "groups"):
            for whose, own in value.items():
                yield from ((f"{whose}__{knob}", number) for knob, number in own.items())
        elif name in ("links", "effects"):
            yield from value.items()
        else:
            yield name, value
