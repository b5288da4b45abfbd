"""Learned corrections that move with the machine: what a price becomes where numbers of the
datasheet are varied, as a traced function of them.

A table of ops holds the correction c of each op at today's machine m0. On a varied machine m with
group knobs k (k0 today's) an op takes

    log t(k, m) = c + log t0(k, m) + shift(m)
    shift(m)    = A(m) - A(m0) - ( log t0(k0, m) - log t0(k0, m0) )

t0 is the closed form of `ops.roofline`; A is what the stages of the price say on a machine
(`stages/`), read at the varied numbers as they would stand in a datasheet: rates in the forms of
families, capacities in their inputs, networks and processes with them; a fused loop goes by the
bandwidth, an op borrowed from another device by its share of the varied roofline.

So a number of the machine (`MACHINE`) means what the datasheet means by it, and a group's knob what
the closed form means: a factor t0(k, m) / t0(k0, m) on whatever prices the op. `hold` leaves the
shift out: every op then follows the closed form in all knobs. Ops that the closed form prices have
none.

Axes: O ops of a table, n of them with a shift, R different ones of a batch.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.hardware import LEVELS
from hybridperf.io.namespace import Array, array_module, put
from hybridperf.model.batch import Batch, different
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.platform import OpTable, Platform, canonical, durations
from hybridperf.model.priced_ops import PricedOps
from hybridperf.model.stages import NOTHING_S, Machine, Who, price_batches, who
from hybridperf.ops import OpCall

MACHINE = ("peak_flops_scale", "memory_bytes_per_s", "level_bytes")
"""Fields of a `Platform` that corrections depend on; of the levels' bytes that of L2."""
_L2 = LEVELS.index("l2")
_STEP = 1e-4  # of a log: differences in float64 leave a slope eight digits


@dataclasses.dataclass(frozen=True, eq=False)
class Anchors:
    """What prices each of n ops at the machine itself."""

    model: PerfModel
    # different ops of a kind, and which of them each op is, int [..], in the order of the n
    batches: tuple[tuple[Batch, np.ndarray], ...]

    def log_s(self, platform: Platform, xp: ModuleType) -> Any:
        """A [n] on a platform, at today's knobs of groups."""
        numbers = dataclasses.replace(platform, knobs=self.model.knobs)
        machine = Machine(self.model, numbers)
        priced = price_batches([batch for batch, _ in self.batches], machine, xp)
        found = zip(priced, self.batches, strict=True)
        return xp.concatenate([one.log_s[of] for one, (_, of) in found])


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
        fields = {name: getattr(platform, name) for name in MACHINE if name in varied}
        if not fields:
            return jnp.zeros_like(ops.correction)
        shift = self._over_closed(ops, dataclasses.replace(self.today, **fields), jnp) - self.offset
        return jnp.zeros_like(ops.correction).at[self.at].set(shift)

    def at_logs(self, ops: OpTable, logs: np.ndarray) -> np.ndarray:
        """A(m) - log t0(k0, m) [n], by NumPy: each of `MACHINE` is exp(logs) [3] times today's."""
        times = np.exp(logs)
        of_levels = np.where(np.arange(len(LEVELS)) == _L2, times[2], 1.0)
        scales = dict(zip(MACHINE, (times[0], times[1], of_levels), strict=True))
        fields = {name: getattr(self.today, name) * scale for name, scale in scales.items()}
        return np.asarray(self._over_closed(ops, dataclasses.replace(self.today, **fields), np))

    def _over_closed(self, ops: OpTable, platform: Platform, xp: ModuleType) -> Array:
        """A(m) - log t0(k0, m) [n]."""
        mine = jax.tree.map(lambda leaf: xp.asarray(leaf)[self.at], ops)
        once = {"correction": xp.zeros_like(mine.correction), "times": xp.ones_like(mine.times)}
        closed_s = durations(dataclasses.replace(mine, **once), platform, xp)
        return self.anchors.log_s(platform, xp) - xp.log(xp.maximum(closed_s, NOTHING_S))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CorrectionsNear:
    """The shift of a table's corrections on one machine, and by which it moves there: what a number
    and its slope need of `AliveCorrections`, calculated by NumPy, so that JAX compiles no price.
    """

    at: Array  # int [n] places in the table
    shift: Array  # [n]
    by_log: Array  # [n, 3] by the log of each of `MACHINE`
    numbers: Array  # [3] of `MACHINE` there

    def log_shift(
        self, ops: OpTable, platform: Platform, varied: Collection[str] = MACHINE
    ) -> Array:
        """As `AliveCorrections.log_shift`, linear about the one machine in all of its numbers; of
        platforms in NumPy whose leaves have a first axis [B, O].
        """
        del varied
        level_bytes = platform.level_bytes[..., _L2]
        told = platform.peak_flops_scale, platform.memory_bytes_per_s, level_bytes
        xp = array_module(*told)
        now, some = xp.stack(told, -1), self.numbers > 0
        logs = xp.log(xp.where(some, now / xp.where(some, self.numbers, 1.0), 1.0))
        shift = self.shift + logs @ self.by_log.T
        nothing = xp.zeros((*shift.shape[:-1], *ops.correction.shape), shift.dtype)
        return put(nothing, (..., self.at), shift)


def corrections_near(
    alive: AliveCorrections, ops: OpTable, logs: np.ndarray, with_slopes: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """(shift [n], its slopes [n, 3] by differences where these are asked for) where each of
    `MACHINE` is exp(logs) [3] times today's.
    """
    shift = np.zeros(len(alive.at))
    if np.any(logs):
        shift = alive.at_logs(ops, logs) - alive.offset
    if not with_slopes:
        return shift, None
    steps = _STEP * np.eye(len(MACHINE))
    ends = [[alive.at_logs(ops, logs + side * step) for side in (1, -1)] for step in steps]
    return shift, np.stack([(more - less) / (2 * _STEP) for more, less in ends], 1)


def alive_corrections(
    model: PerfModel, calls: Sequence[OpCall], ops: OpTable, platform: Platform
) -> AliveCorrections | None:
    """How the corrections of ops [O] move with the machine; None where none does.

    Args:
        model: the machine.
        calls: the ops, in the order of the table that is asked about.
        ops: that table.
        platform: today's numbers, with the knobs of the groups as that table numbers them.
    """
    at, batches = [], []
    for batch, priced in PricedOps.of_calls(model, calls).batches:
        some = np.flatnonzero(priced.seconds() > 0)
        if who(batch, model) not in (Who.GROUP, Who.DATASHEET) and len(some):
            at.append(batch.part.rows[some])
            batches.append(different(batch, some))
    if not at:
        return None
    places = np.concatenate(at).astype(np.int32)
    today = dataclasses.replace(platform, links=None, effects=None)
    alive = AliveCorrections(places, today, np.zeros(len(places)), Anchors(model, tuple(batches)))
    # no shift on today's machine
    return dataclasses.replace(alive, offset=alive._over_closed(ops, today, np))


def in_precision(alive: AliveCorrections) -> AliveCorrections:
    """As JAX arrays of its present precision."""
    # arrays that JAX has not met in another precision, see `io.namespace`
    return canonical(copy.deepcopy(alive))
