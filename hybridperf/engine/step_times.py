"""Seconds of a step of an engine that serves requests, by what the step holds.

A step of continuous batching (Yu et al., Orca, OSDI 2022; chunked prompts: Agrawal et al.,
Sarathi-Serve, OSDI 2024) computes one token of each sequence that decodes and a chunk of prompts:

    kernels = products(tokens) + decode(sequences, keys of each) + prefill(tokens, keys of each)
    step = max(slower x kernels + gaps + sequences x host of each, launches) + host

Launches are those of steps that are no CUDA graphs: with prompts, or all of them (eager). The host
launches kernel by kernel and the GPU runs what was launched: the longer of both. A prompt that
joins sequences finds its step prepared while the one before runs (the overlap and asynchronous
schedulers of all engines): what is left is the launches themselves, `AHEAD_LAUNCH_S` each.
`products` is everything that does not look at the cache, of all tokens together. Three tables over
sizes hold what the calls of a step take, composed once by the graph's own prices; between their
points seconds are interpolated linearly in logs, beyond them as the last two points say.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.io.namespace import Array, array_module, floats, fresh_views
from hybridperf.model import PerfModel, Platform
from hybridperf.model.calls import Call, CallChain
from hybridperf.model.serving_effects import AHEAD_LAUNCH_S, ServingEffects
from hybridperf.model.step_table import row_seconds, step_durations, step_table

_NOTHING_S = 1e-12
_RAN = ("slower", "gaps_s", "sequence_s", "launched_s", "ahead_s", "eager", "host_s")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "tokens",
        "products_s",
        "sequences",
        "keys",
        "decode_s",
        "chunk",
        "chunk_keys",
        "prefill_s",
        "host_s",
        "which",
        "beside_s",
        "messages_s",
        "kernels",
        "slower",
        "gaps_s",
        "sequence_s",
        "launched_s",
        "ahead_s",
        "eager",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of a step over rising sizes, all above zero.

    Of one engine, or of E at once (`stacked`): tables then begin with an axis of engines, and
    `which` says whose step each size asked for is of.
    """

    tokens: Array  # [K] of a step
    products_s: Array  # [K]
    sequences: Array  # [S] that decode
    keys: Array  # [X] that each of them looks at
    decode_s: Array  # [S, X]
    chunk: Array  # [Q] tokens of prompts
    chunk_keys: Array  # [P] that each of them looks at, in the mean
    prefill_s: Array  # [Q, P]
    host_s: Array = 0.0  # of each step, whatever it holds; of several engines as sizes asked for
    which: Array = None  # int [N], of sizes [N] or [N, ...]; None: one engine's tables
    beside_s: Array = None  # [S, X] decode_s in a step with prompts; None: the same
    # [K] of a step's messages where one half of its tokens computes while those of the other half
    # travel; the products are the rest then. None: they are among the products
    messages_s: Array = None
    kernels: Array = 0.0  # of a step that decodes; of several engines [E]
    # as a framework runs them (`as_run`); of several engines as sizes asked for
    slower: Array = 1.0  # times as long as the tables say
    gaps_s: Array = 0.0  # between kernels
    sequence_s: Array = 0.0  # of the host, each sequence that decodes
    launched_s: Array = 0.0  # of the host, all kernels of a step that is no CUDA graph
    ahead_s: Array = 0.0  # the same, launched while the step before runs
    eager: Array = 0.0  # 1: steps without prompts are none either

    @staticmethod
    def stacked(some: Sequence[StepTimes]) -> StepTimes:
        """Engines [E] that were composed at the same sizes, without a host's seconds."""
        parts = ("products_s", "decode_s", "prefill_s")
        tables = {name: np.stack([getattr(one, name) for one in some]) for name in parts}
        tables["kernels"] = np.array([one.kernels for one in some], float)
        if any(one.beside_s is not None for one in some):
            beside = [one.decode_s if one.beside_s is None else one.beside_s for one in some]
            tables["beside_s"] = np.stack(beside)
        if any(one.messages_s is not None for one in some):
            none_s = np.full_like(some[0].products_s, _NOTHING_S)
            messages = [none_s if one.messages_s is None else one.messages_s for one in some]
            tables["messages_s"] = np.stack(messages)
        return dataclasses.replace(some[0], **tables, host_s=0.0)

    def of(self, which: Array) -> StepTimes:
        """Of stacked engines those that sizes [N] are of."""
        return dataclasses.replace(self, which=which)

    def as_run(
        self, effects: ServingEffects, launches: Array = 0.0, eager: Array = 0.0, made: Array = 1.0
    ) -> StepTimes:
        """Steps as a framework runs them.

        Args:
            effects: of the framework.
            launches: kernels of a step that is no CUDA graph.
            eager: 1 where steps without prompts are none either.
            made: tokens of a sequence in each step, with drafts.
        """
        kernels = self.kernels if self.which is None else self.kernels[self.which]
        launched_s = effects.launch_s * launches
        ahead_s = array_module(launched_s).minimum(launched_s, AHEAD_LAUNCH_S * launches)
        return dataclasses.replace(
            self, slower=effects.kernels, gaps_s=effects.gap_s * kernels,
            sequence_s=effects.sequence_s * made, launched_s=launched_s, ahead_s=ahead_s,
            eager=eager, host_s=self.host_s + effects.step_s,
        )  # fmt: skip

    def seconds(
        self, sequences: Array, keys: Array, chunk: Array = 0.0, chunk_keys: Array = 0.0,
        awaited: Array = False,
    ) -> Array:  # fmt: skip
        """Seconds of steps, of any shape; NumPy, or differentiable in JAX.

        Args:
            sequences: that decode, one token each.
            keys: that each of them looks at, in the mean.
            chunk: tokens of prompts.
            chunk_keys: that each of those looks at, in the mean: of a prompt of n tokens whose
                first k are in the cache, k + (n - k) / 2.
            awaited: whether its prompts' tokens are asked for, bool: nothing of what those wait for
                was launched ahead.
        """
        times = fresh_views(self)
        sequences, keys = floats(sequences), floats(keys)
        chunk, chunk_keys = floats(chunk), floats(chunk_keys)
        held = sequences + chunk
        module = array_module(sequences, keys, chunk, chunk_keys, *jax.tree.leaves(times))
        which = times.which
        ran: list[Array] = [floats(getattr(times, name)) for name in _RAN]
        if which is not None:  # sizes may have axes beyond the engines'
            most = max(one.ndim for one in (sequences, keys, chunk, chunk_keys))
            which = which.reshape(which.shape + (1,) * (most - which.ndim))
            ran = [one.reshape(one.shape + (1,) * (most - one.ndim)) if one.ndim else one
                   for one in ran]  # fmt: skip
        axes: tuple[tuple[Array, Array], ...] = ((times.tokens, held),)
        products = between(axes, times.products_s, which) * (held > 0)
        messages = None
        if times.messages_s is not None:
            messages = between(axes, times.messages_s, which) * (held > 0)
        axes = ((times.sequences, sequences), (times.keys, keys))
        decode = between(axes, times.decode_s, which)
        if times.beside_s is not None:
            decode = module.where(chunk > 0, between(axes, times.beside_s, which), decode)
        axes = ((times.chunk, chunk), (times.chunk_keys, chunk_keys))
        prefill = between(axes, times.prefill_s, which) * (chunk > 0)
        computed = products + decode * (sequences > 0) + prefill
        if messages is not None:
            computed = module.maximum(computed, messages)
        return _as_run(module, computed, sequences, chunk, awaited, *ran)

    @functools.cached_property
    def known(self) -> KnownSteps:
        """The same of one engine whose numbers are known, asked step after step."""
        return KnownSteps(self)


def _as_run(
    module: Any, computed: Array, sequences: Array, chunk: Array, awaited: Array, slower: Array,
    gaps_s: Array, sequence_s: Array, launched_s: Array, ahead_s: Array, eager: Array,
    host_s: Array,
) -> Array:  # fmt: skip
    """Seconds of steps whose kernels would compute so long, with all that a framework adds."""
    held = sequences + chunk
    kernels_s = slower * computed + gaps_s * (held > 0)
    kernels_s = kernels_s + sequence_s * sequences
    ahead = (sequences > 0) & module.logical_not(awaited)
    with_prompts_s = module.where(ahead, ahead_s, launched_s) * (chunk > 0)
    launched_s = module.maximum(with_prompts_s, eager * launched_s * (held > 0))
    return module.asarray(module.maximum(kernels_s, launched_s) + host_s * (held > 0))


class KnownSteps:
    """`StepTimes.seconds` for a simulation, which asks for single steps a million times: numbers
    without arrays, logs of tables taken once.
    """

    def __init__(self, times: StepTimes) -> None:
        assert times.which is None, "one engine's tables"

        def read(values: Array, *axes: Array) -> _KnownTable | None:
            return None if values is None else _KnownTable(axes, values)

        self._products = _KnownTable((times.tokens,), times.products_s)
        self._messages = read(times.messages_s, times.tokens)
        self._decode = _KnownTable((times.sequences, times.keys), times.decode_s)
        self._beside = read(times.beside_s, times.sequences, times.keys)
        self._prefill = _KnownTable((times.chunk, times.chunk_keys), times.prefill_s)
        self._ran = [float(getattr(times, name)) for name in _RAN]
        self._launched_s = float(times.launched_s)
        self._lines: dict[tuple[int, int], tuple[float, float, float]] = {}

    def seconds(
        self, sequences: float, keys: Array, chunk: float = 0.0, chunk_keys: float = 0.0,
        awaited: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Of steps [N] of keys [N], or of one; the rest is the same in all."""
        told = [self.step(sequences, one, chunk, chunk_keys, awaited) for one in np.ravel(keys)]
        return np.reshape(told, np.shape(keys))

    def step(
        self, sequences: float, keys: float, chunk: float = 0.0, chunk_keys: float = 0.0,
        awaited: bool = False,
    ) -> float:  # fmt: skip
        """Of one step, a number."""
        computed = self._computed(sequences, keys, chunk, chunk_keys)
        return _as_run(_Numbers, computed, sequences, chunk, awaited, *self._ran)

    def with_prompts(
        self, sequences: float, keys: float, chunk: float, chunk_keys: float
    ) -> tuple[float, float]:
        """Of one step, and how much longer it is where its prompts' tokens are awaited."""
        computed = self._computed(sequences, keys, chunk, chunk_keys)
        seconds = _as_run(_Numbers, computed, sequences, chunk, False, *self._ran)
        if not self._launched_s:
            return seconds, 0.0
        awaited_s = _as_run(_Numbers, computed, sequences, chunk, True, *self._ran)
        return seconds, awaited_s - seconds

    def _computed(self, sequences: float, keys: float, chunk: float, chunk_keys: float) -> float:
        computed, held = 0.0, sequences + chunk
        if held > 0:
            computed = self._products(held)
        if sequences > 0:
            decode = self._beside if chunk > 0 and self._beside is not None else self._decode
            computed += decode(sequences, keys)
        if chunk > 0:
            computed += self._prefill(chunk, chunk_keys)
        if held > 0 and self._messages is not None:
            computed = max(computed, self._messages(held))
        return computed

    def steps(
        self, sequences: int, keys: float, gain: float, most: int, until_s: float = math.inf
    ) -> tuple[int, float]:
        """How many steps without prompts there are and what they take, up to `most` or to the first
        that ends `until_s` or later.

        Keys grow by `gain` a step. Between 32 sizes for each doubling of them, steps lie on a line,
        so many are a closed sum (a hundred-thousandth off at most).

        Args:
            sequences: that decode, one or more.
            keys: that each of them looks at in the first of the steps, in the mean.
            gain: tokens a step.
            most: steps, one or more.
            until_s: from the first one's beginning.
        """
        done, so_far_s = 0, 0.0
        while True:
            at = keys + gain * done
            cell = math.floor(math.log2(at) * _CELLS)
            line = self._lines.get((sequences, cell))
            if line is None:
                line = self._line(sequences, cell)
            base_s, slope, end = line
            first_s, half = base_s + slope * at, 0.5 * gain * slope
            count = math.ceil((end - at) / gain) or 1
            if count > most - done:
                count = most - done
            took_s = count * (first_s + half * (count - 1))
            left_s = until_s - so_far_s
            if took_s >= left_s:
                count = _first_beyond(left_s, first_s - half, half, count)
                return done + count, so_far_s + count * (first_s + half * (count - 1))
            done, so_far_s = done + count, so_far_s + took_s
            if done >= most:
                return done, so_far_s

    def _line(self, sequences: int, cell: int) -> tuple[float, float, float]:
        """Seconds at no key, and of each further one; where the line ends."""
        ends = 2.0 ** (cell / _CELLS), 2.0 ** ((cell + 1) / _CELLS)
        low_s, high_s = (self.step(sequences, keys) for keys in ends)
        slope = (high_s - low_s) / (ends[1] - ends[0])
        found = self._lines[sequences, cell] = low_s - slope * ends[0], slope, ends[1]
        return found


_CELLS = 32  # lines that keys of one doubling lie on


def _first_beyond(seconds: float, each_s: float, half: float, most: int) -> int:
    """The least n from 1 to `most` for which n `each_s` + n^2 `half` is not below `seconds`."""
    if seconds <= each_s + half:
        return 1
    root = math.sqrt(max(each_s * each_s + 4.0 * half * seconds, 0.0))
    count = min(max(math.ceil(2.0 * seconds / (each_s + root)), 1), most)
    while count < most and count * (each_s + half * count) < seconds:
        count += 1  # what rounding lost
    while count > 1 and (count - 1) * (each_s + half * (count - 1)) >= seconds:
        count -= 1
    return count


class _Numbers:
    """What `_as_run` asks of a namespace, of single numbers."""

    maximum = max
    logical_not = operator.not_

    @staticmethod
    def where(condition: bool, true: float, false: float) -> float:
        return true if condition else false

    @staticmethod
    def asarray(number: float) -> float:
        return number


class _KnownTable:
    """What `between` tells, of numbers."""

    def __init__(self, axes: Sequence[Array], values: Array) -> None:
        self._least = [float(sizes[0]) for sizes in axes]
        self._axes = [np.log(floats(sizes)).tolist() for sizes in axes]
        logs = np.log(floats(values))
        # of a table with one axis: that of an axis of one point beside it
        self._logs: list[list[float]] = (logs if logs.ndim > 1 else logs[:, None]).tolist()
        self._places: dict[float, tuple[int, float]] = {}  # of sizes on the first axis so far

    def __call__(self, first: float, second: float = 0.0) -> float:
        place = self._places.get(first)
        if place is None:
            place = self._places[first] = self._place(0, first)
        left, share = place
        line, after = self._logs[left], self._logs[left + 1 if share else left]
        if len(line) == 1:
            return math.exp(line[0] + share * (after[0] - line[0]))
        at, part = self._place(1, second)
        low = line[at] + part * (line[at + 1] - line[at])
        high = after[at] + part * (after[at + 1] - after[at])
        return math.exp(low + share * (high - low))

    def _place(self, axis: int, sought: float) -> tuple[int, float]:
        """The point before a number, and how far it is on the way to the next."""
        sizes, at = self._axes[axis], math.log(max(sought, self._least[axis]))
        if len(sizes) == 1:
            return 0, 0.0
        left = bisect.bisect_right(sizes, at, 1, len(sizes) - 1) - 1
        return left, (at - sizes[left]) / (sizes[left + 1] - sizes[left])


def chain_seconds(
    model: PerfModel, calls: Sequence[Call], chains: Sequence[CallChain]
) -> np.ndarray:
    """Seconds of chains of calls [C], which count from 1; every call is priced once."""
    return row_seconds(model, [*calls, *chains])[len(calls) :]


def chain_seconds_by(
    model: PerfModel, calls: Sequence[Call], chains: Sequence[CallChain]
) -> Callable[[Platform], Array]:
    """The same on variations of the machine, differentiable in their numbers."""
    table = step_table(model, [*calls, *chains])
    return lambda platform: step_durations(table, platform)[len(calls) :]


def between(
    axes: tuple[tuple[Array, Array], ...], values: Array, which: Array | None = None
) -> Array:
    """A table's value at points between its own, linear in logs of sizes and values.

    Args:
        axes: for each axis of the table its rising sizes [n] and where its value is wanted (any
            shape, those of all axes broadcast). Below the least size its value counts; above the
            largest the line of the last two.
        values: of the table, all above zero.
        which: of several tables [E, ...], int; None: `values` are one.
    """
    module = array_module(values, *(one for axis in axes for one in axis))
    logs = module.log(floats(values))
    sought = [module.log(module.maximum(where, floats(sizes)[0])) for sizes, where in axes]
    if module is np:
        return np.exp(
            _by_corners([np.log(floats(sizes)) for sizes, _ in axes], sought, logs, which)
        )
    if any(array_module(sizes) is not np for sizes, _ in axes):
        logs = module.asarray(logs)
        table = (logs, False) if which is None else (logs[which], True)
        return module.exp(_by_weights([module.log(sizes) for sizes, _ in axes], sought, *table))
    return module.exp(_read([np.log(floats(sizes)) for sizes, _ in axes], sought, logs, which))


def _read(known: list[np.ndarray], sought: list[Array], logs: Array, which: Array | None) -> Array:
    """Numbers of a table in JAX: values by its corners, the quicker way; slopes by weights, which
    compile sooner and run quicker.
    """

    @jax.custom_jvp
    def read(sought: list[Array], logs: Array, which: Array | None) -> Array:
        return _by_corners(known, sought, jax.numpy.asarray(logs), which)

    @read.defjvp
    def _(at: tuple[Array, ...], ways: tuple[Array, ...]) -> tuple[Array, Array]:
        which = at[2]

        def weighed(sought: list[Array], logs: Array) -> Array:
            table = (logs, False) if which is None else (logs[which], True)
            return _by_weights(known, sought, *table)

        return jax.jvp(weighed, at[:2], ways[:2])

    return read(jax.numpy.broadcast_arrays(*sought), jax.numpy.asarray(logs), which)


def _by_corners(
    known: list[np.ndarray], sought: list[Array], logs: Array, which: Array | None
) -> Array:
    """By the corners of the cell that a place lies in."""
    module = array_module(logs, *sought)
    logs = logs.reshape(-1)
    most = max(one.ndim for one in (*sought, *(() if which is None else (which,))))
    # of each corner, [corners, ...]: its place in the table, rows after each other, and its weight
    place = 0 if which is None else which.reshape((1,) * (most + 1 - which.ndim) + which.shape)
    weight: Array = 1.0
    for sizes, at in zip(known, sought, strict=True):
        at = at.reshape((1,) * (most - at.ndim) + at.shape)
        if len(sizes) == 1:  # the same everywhere, in the shape of the others
            place, weight = place + 0 * at.astype(int)[None], weight + 0.0 * at[None]
            continue
        left = module.clip(_before(sizes, at), 0, len(sizes) - 2)
        sizes = module.asarray(sizes)
        share = (at - sizes[left]) / (sizes[left + 1] - sizes[left])
        ends, parts = module.stack([left, left + 1]), module.stack([1.0 - share, share])
        place = _paired(place * len(sizes), ends, module.add)
        weight = _paired(weight, parts, module.multiply)
    found = logs[place] if module is np else logs.at[place].get(mode="clip")
    return (weight * found).sum(0)


def _before(known: np.ndarray, at: Array) -> Array:
    """Place of the last of rising numbers that is not above each of some."""
    if array_module(at) is np:
        return np.searchsorted(known, at, side="right") - 1
    # all compared: a search is a loop, which takes longer to compile than these few numbers
    return jax.numpy.searchsorted(known, at, side="right", method="compare_all") - 1


def _by_weights(known: list[Array], sought: list[Array], values: Array, stacked: bool) -> Array:
    """The same in JAX by a weight for each number of the table."""
    jnp = jax.numpy
    weights = []
    for sizes, at in zip(known, jnp.broadcast_arrays(*sought), strict=True):
        one = jnp.ones_like(at)[..., None]
        passed = jnp.maximum((at[..., None] - sizes[:-1]) / jnp.diff(sizes), 0.0)
        if len(sizes) > 1:  # beyond the largest the line of the last two
            passed = jnp.concatenate([jnp.minimum(passed[..., :-1], 1.0), passed[..., -1:]], -1)
        ends = jnp.concatenate([one, passed], -1), jnp.concatenate([passed, 0.0 * one], -1)
        weights.append(ends[0] - ends[1])
    if not stacked:
        values, weights = jnp.tensordot(weights[0], values, 1, precision="highest"), weights[1:]
    for left, one in zip(range(len(weights))[::-1], weights, strict=True):
        values = (values * one.reshape(one.shape + (1,) * left)).sum(-1 - left)
    return values


def _paired(corners: Array, ends: Array, joined: Callable[[Array, Array], Array]) -> Array:
    """Each corner [corners, ...] with each of two ends [2, ...], one axis after the other."""
    if not hasattr(corners, "ndim") or not corners.ndim:
        return joined(corners, ends)
    both = joined(corners[:, None], ends[None])
    return both.reshape(-1, *both.shape[2:])
