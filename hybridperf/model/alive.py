"""Learned corrections that move with the machine: what a price becomes where numbers of the
datasheet are varied, as a traced function of them.

A table of ops holds the correction c of each op at today's machine m0. On a varied machine m with
group knobs k (k0 today's) an op takes

    log t(k, m) = c + log t0(k, m) + shift(m)
    shift(m)    = A(m) - A(m0) - ( log t0(k0, m) - log t0(k0, m0) )

t0 is the closed form of `ops.roofline`; A, the anchor, is what prices the op on a machine:

- an op that a family prices: the family's own form, network and process, read at the varied numbers
  as they would stand in a datasheet (rates in its form, capacities in its inputs);
- a loop that a framework fuses: the datasheet's roofline, bytes over bandwidth;
- any other, such as one borrowed from another device's calibration or of a group that was measured
  on a CPU, whose correction depends on the op alone: log t0(k0, m), so that its shift is zero.

So a number of the machine (`MACHINE`) means what the datasheet means by it, and a group's knob what
the closed form means: a factor t0(k, m) / t0(k0, m) on whatever prices the op. `hold` leaves the
shift out: every op then follows the closed form in all knobs.

What a family reads of an op is linear in the logs of `MACHINE`: slopes are taken once, by reading
the ops again on a device of twice the number. Equal ops are evaluated once.

Axes: O ops of a table, n of them with an anchor of their own, R different rows of a family.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.hardware import LEVELS, DeviceSpec
from hybridperf.io.namespace import QUICKLY_COMPILED, Array, array_module, put
from hybridperf.learning.prior import Adapted, FamilyRows
from hybridperf.learning.residual import Inputs
from hybridperf.model import prior_pricing as by_prior
from hybridperf.model.own_ops import OwnOps
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.platform import OpTable, Platform, canonical, durations, neutral_knobs
from hybridperf.model.reference_device import as_measured, is_measured, refers
from hybridperf.ops import Call as StartProgram
from hybridperf.ops import OpCall
from hybridperf.ops.table import stacked

MACHINE = ("peak_flops_scale", "memory_bytes_per_s", "level_bytes")
"""Fields of a `Platform` that corrections depend on; of the levels' bytes that of L2."""
_L2 = LEVELS.index("l2")
_TWICE = 2.0
_STEP = 0.02  # of a log: single precision leaves a slope four digits


@dataclasses.dataclass(frozen=True, eq=False)
class FamilyTerm:
    """Some ops of one family, and how what the family reads of them moves with the machine."""

    adapted: Adapted
    biased: bool  # whether a product without a bias is held to one with (`prior_pricing.predicted`)
    rows: FamilyRows  # [R] different ones, on today's machine
    of: np.ndarray  # int [n] which of them each op is
    # by name of `MACHINE`, d / d log of it: of logs of serial steps [R], of what is gathered
    # [R, .] or None, of inputs [R, f]
    slopes: Mapping[str, tuple[np.ndarray, np.ndarray | None, np.ndarray]]

    def log_s(self, logs: Mapping[str, Any]) -> Any:
        """Logs of seconds [n] where numbers of the machine are exp(`logs`) times today's."""
        rows, xp = self.rows, array_module(*logs.values())
        steps, gathers, inputs = rows.steps, rows.gathers, rows.inputs.values
        for name, log in logs.items():
            of_steps, of_gathers, of_inputs = self.slopes[name]
            if of_steps.any():
                steps = steps * xp.exp(of_steps * log)
            if of_gathers is not None and of_gathers.any():
                gathers = gathers + of_gathers * log
            if of_inputs.any():
                inputs = inputs + of_inputs * log
        rates = {name: xp.exp(log) for name, log in logs.items()}
        moved = dataclasses.replace(
            rows, steps=steps, gathers=gathers, inputs=Inputs(rows.inputs.names, inputs),
            peak_flops_per_s=rows.peak_flops_per_s * rates.get("peak_flops_scale", 1.0),
            memory_bytes_per_s=rows.memory_bytes_per_s * rates.get("memory_bytes_per_s", 1.0),
        )  # fmt: skip
        found = (
            by_prior.predicted(self.adapted, moved) if self.biased else self.adapted.predict(moved)
        )
        return found.log_s[self.of]


@dataclasses.dataclass(frozen=True, eq=False)
class Anchors:
    """What prices each of n ops at the machine itself."""

    families: tuple[FamilyTerm, ...]
    # places among the n of what each term prices; fused loops come last
    places: tuple[np.ndarray, ...]
    fused: np.ndarray
    # places of ops that a step issues apart, and what they take then
    apart: tuple[tuple[np.ndarray, LoopsAlone | ProductsAlone], ...]

    def log_s(
        self, ops: OpTable, platform: Platform, logs: Mapping[str, Any], xp: ModuleType
    ) -> Any:
        """A [n] of the ops [n] on a platform whose numbers are exp(`logs`) times today's."""
        found = xp.zeros(len(ops.group), ops.peak_flops_per_s.dtype)
        for term, at in zip(self.families, self.places, strict=True):
            found = put(found, at, term.log_s(logs))
        for at, alone in self.apart:
            found = put(found, at, alone(found[at], logs))
        if len(self.fused):
            some = jax.tree.map(lambda leaf: leaf[self.fused], ops)
            some = dataclasses.replace(some, group=np.arange(len(self.fused)))
            bare = dataclasses.replace(platform, knobs=_neutral(len(self.fused)))
            found = put(found, self.fused, xp.log(durations(some, bare, xp)))
        return found


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AliveCorrections:
    """The shift of a table's corrections, as a pytree; see `alive_corrections`."""

    at: Array  # int [n] places in the table
    today: Platform  # m0 and k0
    offset: Array  # [n] A(m0) - log t0(k0, m0)
    anchors: Anchors = dataclasses.field(metadata={"static": True})

    def log_shift(
        self, ops: OpTable, platform: Platform, varied: Collection[str] = MACHINE
    ) -> Array:
        """What to add to the corrections of a table [O] on a platform.

        `varied`: fields of it that may differ from today's, of `MACHINE`; none: no shift.
        """
        varied = [name for name in MACHINE if name in varied]
        if not varied:
            return jnp.zeros_like(ops.correction)
        shift = self._over_closed(ops, platform, varied, jnp) - self.offset
        return jnp.zeros_like(ops.correction).at[self.at].set(shift)

    def slopes(self, ops: OpTable) -> dict[str, np.ndarray]:
        """d shift / d number [n] on today's machine, by name of `MACHINE`; of L2's bytes.

        In single precision by differences, which have nothing to compile and are as good.
        """
        single = jnp.result_type(float) == np.float32
        logs = np.zeros(len(MACHINE))
        if single:
            moved = _STEP * np.eye(len(MACHINE))
            ends = [self._at_logs(ops, logs + side * one, np) for one in moved for side in (1, -1)]
            by_log = (np.array(ends[::2]) - np.array(ends[1::2])) / (2 * _STEP)
        else:
            fresh, table = canonical((dataclasses.replace(copy.deepcopy(self), offset=0.0), ops))
            jacobian = jax.jit(
                jax.jacfwd(lambda logs, one, ops: one._at_logs(ops, logs, jnp)),
                compiler_options=QUICKLY_COMPILED,
            )
            by_log = np.asarray(jacobian(jnp.asarray(logs), fresh, table)).T
        today = [getattr(self.today, name) for name in MACHINE]
        today[-1] = np.asarray(today[-1])[_L2]
        return {
            name: of / float(value) for name, of, value in zip(MACHINE, by_log, today, strict=True)
        }

    def _at_logs(self, ops: OpTable, logs: Array, xp: ModuleType) -> Array:
        """A(m) - log t0(k0, m) [n] where each of `MACHINE` is exp(logs) [3] times today's."""
        fields = {name: getattr(self.today, name) for name in MACHINE}
        times = xp.exp(logs)
        fields = {
            name: value
            * (
                times[at]
                if name != "level_bytes"
                else xp.where(np.arange(len(LEVELS)) == _L2, times[at], 1.0)
            )
            for at, (name, value) in enumerate(fields.items())
        }
        return self._over_closed(ops, dataclasses.replace(self.today, **fields), MACHINE, xp)

    def _over_closed(
        self, ops: OpTable, platform: Platform, varied: Sequence[str], xp: ModuleType
    ) -> Array:
        """A(m) - log t0(k0, m) [n]."""
        logs = {}
        for name in varied:
            here, there = (xp.asarray(getattr(one, name)) for one in (platform, self.today))
            if name == "level_bytes":
                here, there = here[_L2], there[_L2]
            logs[name] = xp.log(here / there)
        mine = jax.tree.map(lambda leaf: xp.asarray(leaf)[self.at], ops)
        mine = dataclasses.replace(mine, correction=xp.zeros_like(mine.correction))
        machine = dataclasses.replace(
            self.today, **{name: getattr(platform, name) for name in MACHINE}
        )
        closed = xp.log(durations(mine, machine, xp))
        return self.anchors.log_s(mine, machine, logs, xp) - closed


def no_op() -> OpCall:
    """What stands in the table of a step without ops."""
    return OpCall(StartProgram("fp32", 0.0))


def alive_corrections(
    model: PerfModel, calls: Sequence[OpCall], platform: Platform
) -> AliveCorrections | None:
    """How the corrections of ops [O] move with the machine; None where none does.

    Args:
        model: the machine.
        calls: the ops, in the order of the table that is asked about.
        platform: today's numbers, with the knobs of the groups as that table numbers them.
    """
    own = OwnOps(model, model._as_measured(calls))
    takes_time = model.op_seconds(_bare(own.table())) > 0
    borrowed = borrowed_elsewhere(model, own.calls)
    lawful = np.isin(np.arange(len(calls)), list(own.by_law))
    own_price = takes_time & ~borrowed & ~lawful & ~own.fused
    members = _members(model, own.calls) if model.families else {}
    kept: dict[str, tuple[np.ndarray, FamilyTerm]] = {}
    for name, (at, term) in members.items():
        here = own_price[at]
        if here.any():
            kept[name] = at[here], dataclasses.replace(term, of=term.of[here])
    fused = np.flatnonzero(own.fused & takes_time)
    places = [at for at, _ in kept.values()]
    all_at = np.concatenate([*places, fused]) if places or len(fused) else fused
    if not len(all_at):
        return None
    starts = np.cumsum([0, *map(len, places), len(fused)])
    ranges = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    apart = []
    for (name, (at, _)), where in zip(kept.items(), ranges, strict=False):
        mine = [own.calls[i] for i in at]
        if found := _issued_apart(model, name, mine):
            apart.append((where[found[0]], found[1]))
    anchors = Anchors(
        tuple(term for _, term in kept.values()), tuple(ranges[:-1]), ranges[-1], tuple(apart)
    )
    today = dataclasses.replace(platform, links=None, effects=None)
    return AliveCorrections(all_at.astype(np.int32), today, np.zeros(len(all_at)), anchors)


def in_precision(alive: AliveCorrections, ops: OpTable) -> AliveCorrections:
    """As JAX arrays of its present precision, with the offset: no shift on today's machine.

    In single precision NumPy knows it well enough; in double, networks of NumPy do not.
    """
    offset = 0.0
    if jnp.result_type(float) == np.float32:
        offset = alive._over_closed(ops, alive.today, (), np)
    # arrays that JAX has not met in another precision, see `io.namespace`
    fresh, table = canonical((dataclasses.replace(copy.deepcopy(alive), offset=offset), ops))
    if jnp.result_type(float) == np.float32:
        return fresh
    # level 0: run once, and compiled in a third of the time
    found = jax.jit(
        lambda one, ops: one._over_closed(ops, one.today, MACHINE, jnp),
        compiler_options=QUICKLY_COMPILED,
    )(fresh, table)
    return dataclasses.replace(fresh, offset=found)


def borrowed_elsewhere(model: PerfModel, calls: Sequence[OpCall]) -> np.ndarray:
    """Whether each op is priced by another device's calibration [O], which its shift leaves to the
    closed form: as large a share of the varied datasheet's roofline as of today's.
    """
    if model.stand_in is not None:
        return np.ones(len(calls), bool)
    if not refers(model):
        return np.zeros(len(calls), bool)
    return np.array([not is_measured(model, as_measured(model, one.op)) for one in calls], bool)


def _bare(table: OpTable) -> OpTable:
    return dataclasses.replace(table, correction=np.zeros_like(table.correction))


def _neutral(groups: int) -> Any:
    """Neutral knobs of so many groups."""
    knobs = neutral_knobs()
    return jax.tree.map(
        lambda leaf: np.resize(leaf, groups) if len(leaf) != len(LEVELS) else leaf, knobs
    )


def _members(model: PerfModel, calls: Sequence[OpCall]) -> dict[str, tuple[np.ndarray, FamilyTerm]]:
    """By family, the ops that it prices: (places, the term)."""
    out = {}
    for name, (at, *on) in _read_on_each(model.families, model.device, calls).items():
        adapted = model.families[name]
        out[name] = at, _term(adapted, True, on)
    return out


def _derived(model: PerfModel, family: str, calls: Sequence[OpCall]) -> FamilyTerm:
    """Ops that are asked for beside those of a step, all of one family."""
    adapted = model.families[family]
    _, *on = _read_on_each({family: adapted}, model.device, calls)[family]
    return _term(adapted, False, on)


def _read_on_each(
    families: Mapping[str, Adapted], device: DeviceSpec, calls: Sequence[OpCall]
) -> dict[str, tuple[Any, ...]]:
    """By family: places, rows on the device, and on it with twice of each of `MACHINE`."""
    found: dict[str, list[Any]] = {}
    for on in (device, *(_with_twice(device, name) for name in MACHINE)):
        for name, (at, rows, _) in by_prior.members(
            families, on, calls, stacked(calls, on)
        ).items():
            found.setdefault(name, [at]).append(rows)
    return {name: tuple(of) for name, of in found.items()}


def _with_twice(device: DeviceSpec, name: str) -> DeviceSpec:
    peaks = {dtype: _TWICE * rate for dtype, rate in device.peak_flops_per_s.items()}
    changes: dict[str, dict[str, Any]] = {
        "peak_flops_scale": {"peak_flops_per_s": peaks},
        "memory_bytes_per_s": {"memory_bytes_per_s": _TWICE * device.memory_bytes_per_s},
        "level_bytes": {"l2_bytes": _TWICE * (device.l2_bytes or 0.0)},
    }
    return device.model_copy(update=changes[name])


def _term(adapted: Adapted, biased: bool, on: Sequence[FamilyRows]) -> FamilyTerm:
    """Rows on today's device, then on those of twice each number of `MACHINE`."""
    columns = [np.concatenate([one.work(), one.inputs.values], 1) for one in on]
    slot = np.unique(on[0].implementation.astype(str), return_inverse=True)[1]
    keys = np.concatenate([slot[:, None], *columns], 1)
    _, first, of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    rows, *twice = (one.rows(first) for one in on)
    by = math.log(_TWICE)
    slopes = {}
    for name, there in zip(MACHINE, twice, strict=True):
        more = np.maximum(there.steps, 1e-300) / np.maximum(rows.steps, 1e-300)
        gathers = None if rows.gathers is None else (there.gathers - rows.gathers) / by
        inputs = (there.inputs.values - rows.inputs.values) / by
        slopes[name] = np.log(more) / by, gathers, inputs
    return FamilyTerm(adapted, biased, rows, np.reshape(of, -1), slopes)


@dataclasses.dataclass(frozen=True, eq=False)
class LoopsAlone:
    """What loops take issued apart (`prior_pricing.kernels_alone`), on a varied machine."""

    loops: by_prior.LoopsApart
    long: FamilyTerm

    def __call__(self, log_s: Any, logs: Mapping[str, Any]) -> Any:
        """Logs of seconds from those that tables of single ops have."""
        long_log_s = self.long.log_s(logs)
        xp = array_module(log_s, long_log_s)
        alone_s = self.loops.least_s + self.loops.share * xp.exp(long_log_s)
        return xp.minimum(log_s, xp.log(alone_s))


@dataclasses.dataclass(frozen=True, eq=False)
class ProductsAlone:
    """What products take issued apart (`prior_pricing.products_alone`), on a varied machine."""

    making: FamilyTerm
    wide: FamilyTerm

    def __call__(self, log_s: Any, logs: Mapping[str, Any]) -> Any:
        """Logs of seconds from those that tables of quantised layers have."""
        making_log_s, wide_log_s = self.making.log_s(logs), self.wide.log_s(logs)
        xp = array_module(log_s, making_log_s, wide_log_s)
        whole_s = xp.exp(log_s)
        left_s = xp.maximum(whole_s - xp.exp(making_log_s), by_prior.LEAST_PRODUCT * whole_s)
        return xp.minimum(xp.log(left_s), wide_log_s)


def _issued_apart(
    model: PerfModel, family: str, calls: Sequence[OpCall]
) -> tuple[np.ndarray, LoopsAlone | ProductsAlone] | None:
    """(places of calls that a step issues apart, what they take then); None: there are none."""
    if family in by_prior.LOOPS and model.device.kind == "gpu":
        loops = by_prior.loops_apart(calls)
        if loops is None:
            return None
        return loops.at, LoopsAlone(loops, _derived(model, family, loops.long))
    if family == by_prior.PRODUCTS and by_prior.QUANTISE in model.families:
        products = by_prior.products_apart(calls)
        if products is None:
            return None
        making = _derived(model, by_prior.QUANTISE, products.making)
        wide = _derived(model, by_prior.PRODUCTS, products.wide)
        return products.at, ProductsAlone(making, wide)
    return None
