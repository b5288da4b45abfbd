"""Identical layers evaluated once and raised to a power: a deep step at the cost of a shallow one.

A step of a lowered graph takes maxima of ends and adds seconds to them, so a whole layer is a
matrix of max and plus. Whatever layers hand on, the ends that later steps read and the clocks of
the hosts, is its vector x of K numbers:

    A[d, s]     = longest path through the layer from s to d
    (A x)[d]    = max over s of  A[d, s] + x[s]          x after a layer
    (A A)[d, s] = max over k of  A[d, k] + A[k, s]       two layers

Layers that read the same rows of the duration table have the same A, and m of them are A^m by about
log2(m) squarings. What comes before and after them is evaluated step by step. `folded` finds the
repetition in a program's arrays:

1. Steps, runs contracted (`contraction`), repeat with a period of p where rows, host and the
   distances to the steps they read do.
2. Between two layers stand boundaries. An end is handed on if a step before the boundary writes it
   and one behind reads it: it is known by its distance to the boundary, which must be the same at
   every boundary of the repetition.
3. An end from before all the layers that is read behind all of them is not handed on: its slot
   keeps it meanwhile.

Axes: B configurations, K numbers handed on. Values only: their gradient is that of the plain
evaluator's `makespan`, which is equal to float rounding, and asking for it here is refused by JAX.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from hybridperf.engine import lower
from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import (
    check_table_shape,
    in_blocks,
    later,
    nan_kept,
    run_steps,
    table_of,
)
from hybridperf.engine.lower import NO_HOST, NO_STEP, Lowered, StepProgram, step_bucket

LARGEST_STATE = 24  # numbers handed on: their cube is paid at each squaring
# configurations folded together: two matrices and the slots of a layer stay in a core's cache
FOLD_BLOCK = 512
# Measured by tests/bench_evaluator.py, in units of one step of the plain evaluator:
PRODUCT_COST = 0.5  # one maximum of sums, K^3 of them a squaring
STEP_COST = 1.2  # a step in the smaller blocks here
WORTH = 0.8  # of the plain evaluator's cost


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FoldedProgram:
    """A program whose repeated layers stand in it once. Its depth is `times`, an input when
    compiled.

    Axes: K numbers handed on. They stand in the rows of slots and clocks joined, a host's clock at
    `slots + host`.
    """

    # steps before the layers, of one layer, behind the layers; a step of padding in front of each
    program: StepProgram
    layer: np.ndarray  # first step of the layer; []
    behind: np.ndarray  # first step behind the layers; []
    times: np.ndarray  # how often the layer runs; []
    before: np.ndarray  # where the numbers stand when the layer begins; [K]
    after: np.ndarray  # where they stand when it ends; [K]
    at_last: np.ndarray  # where the steps behind the layers look for them; [K]


def folded(lowered: Lowered) -> FoldedProgram | None:
    """The program with its repeated layers folded; None where folding would not be faster."""
    program = contracted(lowered.program)
    first = int(program.first)
    steps = _ProgramSteps.of(program)
    tried = [_repetition(steps, period) for period in _periods(steps.code)]
    repetitions = [found for found in tried if found is not None]
    best = min(repetitions, key=lambda found: found.cost(len(steps.code)), default=None)
    if best is None or best.cost(len(steps.code)) > WORTH * len(steps.code):
        return None

    begin, period = best.begin, best.period
    end = begin + best.times * period
    parts = [np.arange(0, begin), np.arange(begin, begin + period), np.arange(end, len(steps.code))]
    kept = np.concatenate([step for part in parts for step in ([NO_STEP], part)])
    padding = step_bucket(len(kept)) - len(kept)

    def cut(column: np.ndarray, value: int) -> np.ndarray:
        inner = column.ndim - 1
        is_padding = (kept == NO_STEP).reshape(-1, *[1] * inner)
        live = np.where(is_padding, value, column[first:][kept])
        widths = [(padding, 0)] + [(0, 0)] * inner
        return np.pad(live, widths, constant_values=value).astype(np.int32)

    def places(boundary: int) -> np.ndarray:
        ends = [int(program.out_slot[first + boundary - age]) for age in best.ages]
        return np.array([*ends, *(program.slots + host for host in best.hosts)], np.int32)

    layer = padding + begin + 2  # behind the padding of its own and that of the steps before it
    # nothing walks back through a folded program
    none = np.full_like(cut(program.pred_step, NO_STEP), NO_STEP)
    return FoldedProgram(
        program=replace(
            program,
            pred_slot=cut(program.pred_slot, lower.ZERO_SLOT),
            pred_step=none,
            out_slot=cut(program.out_slot, lower.TRASH_SLOT),
            row=cut(program.row, lower.ZERO_ROW),
            host=cut(program.host, NO_HOST),
            launch_row=cut(program.launch_row, lower.ZERO_ROW),
            host_step=none[:, 0],
            first=np.array(padding + 1, np.int32),
            lead_row=cut(program.lead_row, lower.ZERO_ROW),
            count=none[:, 0],
            counted=program.counted[:0],
        ),
        layer=np.array(layer, np.int32),
        behind=np.array(layer + period + 1, np.int32),
        times=np.array(best.times, np.int32),
        before=places(begin),
        after=places(begin + period),
        at_last=places(end),
    )


@jax.jit
def makespan_of(folded: FoldedProgram, durations: jax.Array) -> jax.Array:
    """Seconds [B] until the last node ends, from seconds per row `durations` [U, B].

    Equal to `makespan` up to float rounding. Compiled once per bucket, K and shape of `durations`,
    whatever the depth; like `makespan` it cannot refuse values.
    """
    check_table_shape(durations)
    return in_blocks(lambda some: nan_kept(some, _last_end(folded, some)), durations, FOLD_BLOCK)


def _last_end(folded: FoldedProgram, durations: jax.Array) -> jax.Array:
    """End of the last step [B]."""
    program = folded.program
    table = table_of(program, durations)
    size, batch = len(folded.before), table.shape[1]
    rows = jnp.zeros((program.slots + program.hosts, batch), table.dtype)
    rows = _run(program, table, rows, program.first, folded.layer)
    x = rows[folded.before]

    # the paths from each number on its own: nothing comes from elsewhere, slot 0 included
    apart = jnp.where(jnp.eye(size, dtype=bool), 0, -jnp.inf).astype(table.dtype)[:, :, None]
    nowhere = jnp.full((program.slots + program.hosts, size, batch), -jnp.inf, table.dtype)
    units = nowhere.at[folded.before].set(apart)
    matrix = _run(program, table, units, folded.layer, folded.behind)[folded.after]

    rows = rows.at[folded.at_last].set(_power_applied(matrix, x, folded.times))
    slots, clocks = rows[: program.slots], rows[program.slots :]
    return run_steps(program, table, slots, clocks, folded.behind, len(program.row))[2]


def _run(
    program: StepProgram, table: jax.Array, rows: jax.Array, begin: ArrayLike, stop: ArrayLike
) -> jax.Array:
    """Slots and clocks joined, after the steps `begin` to `stop`, the last of which is padding."""
    slots, clocks = rows[: program.slots], rows[program.slots :]
    return jnp.concatenate(run_steps(program, table, slots, clocks, begin, stop)[:2])


def _power_applied(matrix: jax.Array, x: jax.Array, times: ArrayLike) -> jax.Array:
    """`matrix` [K, K, B] applied `times` times, once or more, to `x` [K, B]."""

    def digit(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        power, x, left = carry
        applied = jnp.where(left & 1, _product(power, x[:, None])[:, 0], x)
        return _product(power, power), applied, left >> 1

    digits = 32 - lax.clz(jnp.asarray(times))
    power, x, _ = lax.fori_loop(0, digits - 1, digit, (matrix, x, times))
    return _product(power, x[:, None])[:, 0]  # the first digit is 1, and needs no further square


def _product(one: jax.Array, other: jax.Array) -> jax.Array:
    """Maxima of sums over k, written out: one compiled loop, five times as fast as a reduction."""
    return reduce(later, (one[:, k, None] + other[None, k] for k in range(one.shape[1])))


class _ProgramSteps(NamedTuple):
    """The steps of a program without its padding, numbered from 0. Axes: S steps."""

    # what each does, as a number: same row, host, launch row, distances of reads; int [S]
    code: np.ndarray
    pred_step: np.ndarray  # [S, 2]
    host: np.ndarray  # [S]
    last_reader: np.ndarray  # the last step that reads its end, itself if none does; int [S]

    @staticmethod
    def of(program: StepProgram) -> "_ProgramSteps":
        first = int(program.first)
        number = np.arange(len(program.row) - first)
        pred = program.pred_step[first:]
        pred = np.where(pred == NO_STEP, NO_STEP, pred - first)
        distance = np.sort(np.where(pred == NO_STEP, 0, number[:, None] - pred), axis=1)
        code = np.zeros(len(number), np.int64)
        names = ("row", "host", "launch_row", "lead_row")
        columns = (getattr(program, name)[first:] for name in names)
        for column in (*columns, *distance.T):
            code = _numbered(code, column)
        last_reader = number.copy()
        for column in pred.T:
            np.maximum.at(last_reader, column[column != NO_STEP], number[column != NO_STEP])
        return _ProgramSteps(code, pred, program.host[first:], last_reader)


class _Repetition(NamedTuple):
    """Layers of `period` steps from step `begin` on."""

    begin: int
    period: int
    times: int
    # how far before a boundary the steps stand whose ends are handed on, ascending
    ages: tuple[int, ...]
    hosts: tuple[int, ...]  # whose clocks are

    def cost(self, steps: int) -> float:
        """In steps of the plain evaluator, whose cost is `steps`."""
        size, digits = len(self.ages) + len(self.hosts), self.times.bit_length()
        single = steps - self.times * self.period + self.period * size
        return STEP_COST * single + PRODUCT_COST * (size**3 * (digits - 1) + size**2 * digits)


def _numbered(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each pair of numbers of 0 or more, the same for the same pair."""
    return np.unique(one * (1 + int(other.max())) + other, return_inverse=True)[1]


def _periods(code: np.ndarray) -> list[int]:
    """Usual distances between a run of 1, 2, 4, ... steps and the next equal run.

    A layer may repeat steps within itself; runs as long as the layer recur in the next layer only.
    """
    found: dict[int, None] = {}
    run, length = code, 1
    while len(run) > length:
        order = np.argsort(run, kind="stable")
        again = np.diff(order)[np.diff(run[order]) == 0]
        if not len(again):
            break
        found |= dict.fromkeys(period for period, _ in Counter(again.tolist()).most_common(3))
        run, length = _numbered(run[:-length], run[length:]), 2 * length
    return list(found)


def _repetition(steps: _ProgramSteps, period: int) -> _Repetition | None:
    """The longest stretch of layers of `period` steps, cut where they hand on the fewest ends."""
    begin, stop = _longest(steps.code[period:] == steps.code[:-period])
    # something stays behind the layers: the makespan is the end of the last step
    stop = min(stop + period, len(steps.code) - 1)
    if stop - begin < 2 * period:
        return None
    # where in a layer the fewest ends are handed on, looked for in the middle
    number = np.arange(len(steps.code))
    read = steps.last_reader > number
    # behind each step
    closed = np.bincount(steps.last_reader[read], minlength=len(number))
    open_ends: np.ndarray = np.cumsum(read - closed)
    middle = begin + (stop - begin) // period // 2 * period
    begin += int(np.argmin(open_ends[middle - 1 : middle - 1 + period]))
    boundaries = np.arange(begin, stop + 1, period)
    hosts = tuple(sorted(set(steps.host[begin : begin + period].tolist()) - {NO_HOST}))

    crossing = np.flatnonzero(read)
    kept = (crossing < boundaries[0]) & (steps.last_reader[crossing] >= boundaries[-1])
    ages: list[list[int]] = [[] for _ in boundaries]
    since = np.searchsorted(boundaries, crossing, side="right")
    until = np.searchsorted(boundaries, steps.last_reader[crossing], side="right")
    if (until - since)[~kept].sum() > LARGEST_STATE * len(boundaries):
        return None  # ends that pile up, layer after layer
    columns = (each[~kept].tolist() for each in (crossing, since, until))
    for step, one, other in zip(*columns, strict=True):
        for at in range(one, other):
            ages[at].append(int(boundaries[at]) - step)

    same = np.array([one == other for one, other in zip(ages[1:], ages, strict=False)], bool)
    one, other = _longest(same)
    handed_on = tuple(sorted(ages[one]))
    size = len(handed_on) + len(hosts)
    begin = int(boundaries[one])
    if other - one < 2 or not 0 < size <= LARGEST_STATE:
        return None
    number, pred = number[begin : begin + period], steps.pred_step[begin : begin + period]
    unreached = (pred == NO_STEP).all(axis=1) & (steps.host[number] == NO_HOST)
    outside = {begin - int(step) for step in pred[(pred != NO_STEP) & (pred < begin)]}
    # an end that depends on nothing handed on, or on one that its slot keeps
    if unreached.any() or outside - set(handed_on):
        return None
    return _Repetition(begin, period, other - one, handed_on, hosts)


def _longest(true: np.ndarray) -> tuple[int, int]:
    """Where the longest run of true values begins and stops."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], true, [False]]).astype(np.int8)))
    begins, stops = edges[::2], edges[1::2]
    if not len(begins):
        return 0, 0
    at = int(np.argmax(stops - begins))
    return int(begins[at]), int(stops[at])
