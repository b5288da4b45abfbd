"""Busy streams, exposed communication and the critical path of many configurations at once.

    busy       of a stream       seconds it runs: its ops counted, times their seconds
    exposed    of a rank         |communication or compute| - |compute|, where |.| are seconds in
                                 which at least one such op runs
    critical   of a group of ops seconds of the longest path spent in it: they add up to the
                                 makespan (by the back-pointers of its gradient)

Axes: S steps, U rows of the duration table, B configurations, C columns. Starts [S, B] would not
fit for all B: they are made for a block of configurations, used, and forgotten. The streams of a
rank, each in order of time already, are merged as they lie: at each turn every configuration takes
its next interval; sorting costs ten times as much.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridperf.engine.evaluate import BLOCK, LINE, in_blocks, makespan, step_starts
from hybridperf.engine.graph import Graph
from hybridperf.engine.lower import ZERO_ROW, Lowered, StepProgram
from hybridperf.io import InputError, unknown

OUTPUTS = ("time_s", "busy_s", "exposed_s", "critical_s")
COMPUTE, COMM = "compute", "comm"  # all streams but the first communicate
_BLOCK_BYTES = 64e6  # of starts and intervals of one block


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class _RankStreams:
    """Streams of one rank in turn, compute first; each ends in an entry that never starts."""

    step: np.ndarray  # int32 [M], S for never
    row: np.ndarray  # int32 [M], ZERO_ROW for never
    first: np.ndarray  # entry that each stream begins at; int32 [streams]
    computes: bool = dataclasses.field(metadata={"static": True})  # the first stream does

    @property
    def communicates(self) -> bool:
        return len(self.first) > self.computes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OutputPlan:
    """What is to be worked out of one step's durations."""

    columns: tuple[str, ...] = dataclasses.field(metadata={"static": True})  # [C]
    # some of OUTPUTS, in the order of the columns
    asked: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    busy: np.ndarray  # how often each stream runs each row; [streams, U]
    group: np.ndarray  # 1 where a row is of a group; [groups, U]
    ranks: tuple[_RankStreams, ...]  # that differ
    # which of them each rank in use is
    rank_of: tuple[int, ...] = dataclasses.field(metadata={"static": True})


def outputs_of(lowered: Lowered, groups: Sequence[str], asked: Sequence[str]) -> OutputPlan:
    """A plan for some of `OUTPUTS` of a lowered graph.

    Columns are `time_s`; `busy_compute_s` and so on by stream; `exposed_s`; `critical_gemm_s` and
    so on by group; of several ranks `busy_rank0_compute_s` and `exposed_rank0_s`.

    Args:
        lowered: the graph.
        groups: the group of each row of the duration table, [U].
        asked: names among `OUTPUTS`.
    """
    asked = tuple(dict.fromkeys(asked))
    for name in asked:
        if name not in OUTPUTS:
            raise unknown("output", str(name), OUTPUTS, f"there are {', '.join(OUTPUTS)}")
    if not asked:
        raise InputError(f"expected at least one output among {', '.join(OUTPUTS)}, got none")
    graph = lowered.graph
    streams = ", ".join(graph.stream_names)
    if "exposed_s" in asked and COMPUTE not in graph.stream_names:
        needs = f"needs a stream named {COMPUTE}, the step has {streams}"
        raise InputError(f"exposed_s {needs}; rename one or leave it out")
    ranks = np.unique(graph.rank)
    busy_names, busy = _busy(graph, len(groups))
    used = np.unique(np.concatenate([graph.row, graph.launch_row]))
    in_use = {groups[row - 1] for row in used[used != ZERO_ROW]}
    names = [name for name in dict.fromkeys(groups) if name in in_use]
    # ranks that always do the same at the same time run the same steps
    kinds: dict[tuple[bytes, bytes], int] = {}
    different, rank_of = [], []
    for rank in ranks:
        found = _streams(lowered, int(rank))
        key = found.step.tobytes(), found.first.tobytes()
        if key not in kinds:
            different.append(found)
        rank_of.append(kinds.setdefault(key, len(kinds)))
    exposed = [f"exposed_rank{rank}_s" for rank in ranks] if len(ranks) > 1 else ["exposed_s"]
    critical = [f"critical_{name}_s" for name in names]
    columns = dict(zip(OUTPUTS, (["time_s"], busy_names, exposed, critical), strict=True))
    all_columns = tuple(name for output in asked for name in columns[output])
    if len(set(all_columns)) < len(all_columns):
        same = "two streams have names that make one column of busy seconds"
        raise InputError(f"{same}: {streams}; rename one")
    return OutputPlan(
        columns=all_columns,
        asked=asked,
        busy=busy,
        group=np.array([[name == group for group in groups] for name in names], float),
        ranks=tuple(different) if "exposed_s" in asked else (),
        rank_of=tuple(rank_of),
    )


def batch_outputs(plan: OutputPlan, program: StepProgram, durations: jax.Array) -> jax.Array:
    """The plan's columns [C, B] from seconds per row `durations` [U, B]; its caller compiles it."""
    most = BLOCK
    if "exposed_s" in plan.asked:
        largest = len(program.row) + 3 * max(len(rank.step) for rank in plan.ranks)
        lines = int(_BLOCK_BYTES / (largest * durations.dtype.itemsize * LINE))
        most = min(BLOCK, max(1, lines) * LINE)

    def columns(some: jax.Array) -> jax.Array:
        out: dict[str, jax.Array] = {}
        if "critical_s" in plan.asked:
            time_s, back = jax.vjp(functools.partial(makespan, program), some)
            (times_on_path,) = back(jnp.ones_like(time_s))
            out["time_s"] = time_s[None]
            out["critical_s"] = _weighted(plan.group, times_on_path * some)
        elif "time_s" in plan.asked:
            out["time_s"] = makespan(program, some)[None]
        if "busy_s" in plan.asked:
            out["busy_s"] = _weighted(plan.busy, some)
        if "exposed_s" in plan.asked:
            exposed_s = [jnp.zeros_like(some[0])] * len(plan.ranks)
            if any(rank.communicates for rank in plan.ranks):
                start_s = step_starts(program, some)
                exposed_s = [_exposed_s(rank, start_s, some) for rank in plan.ranks]
            out["exposed_s"] = jnp.stack([exposed_s[at] for at in plan.rank_of])
        return jnp.concatenate([out[name] for name in plan.asked])

    return in_blocks(columns, durations, most)


def _busy(graph: Graph, rows: int) -> tuple[list[str], np.ndarray]:
    """Names of the streams in use, by rank, and how often each runs each row [streams, rows]."""
    lanes, lane = np.unique(np.stack([graph.rank, graph.stream]), axis=1, return_inverse=True)
    counts = np.zeros((lanes.shape[1], rows + 1))
    np.add.at(counts, (lane.ravel(), graph.row), 1)
    several = len(np.unique(graph.rank)) > 1
    names = [
        (f"rank{rank}_" if several else "") + re.sub(r"\W", "_", graph.stream_names[stream])
        for rank, stream in lanes.T
    ]
    return [f"busy_{name}_s" for name in names], counts[:, 1:]


def _streams(lowered: Lowered, rank: int) -> _RankStreams:
    graph, never = lowered.graph, len(lowered.program.row)
    step: list[np.ndarray] = []
    row: list[np.ndarray] = []
    first: list[int] = []
    on_rank = (graph.rank == rank) & (graph.row != ZERO_ROW)
    names, used = graph.stream_names, np.unique(graph.stream[on_rank]).tolist()
    in_order = sorted(used, key=lambda stream: names[stream] != COMPUTE)
    for stream in in_order:
        nodes = np.flatnonzero(on_rank & (graph.stream == stream))
        first.append(sum(len(each) for each in step))
        step.append(np.append(lowered.step_of_node[nodes], never))
        row.append(np.append(graph.row[nodes], ZERO_ROW))
    none = np.zeros(0, np.int32)
    steps, rows = (np.concatenate([none, *each]).astype(np.int32) for each in (step, row))
    computes = bool(in_order) and names[in_order[0]] == COMPUTE
    return _RankStreams(steps, rows, np.array(first, np.int32), computes)


def _weighted(weights: np.ndarray, durations: jax.Array) -> jax.Array:
    given = jnp.asarray(weights, durations.dtype)
    return jnp.matmul(given, durations, precision=lax.Precision.HIGHEST)


def _exposed_s(rank: _RankStreams, start_s: jax.Array, durations: jax.Array) -> jax.Array:
    """Seconds [B] in which only communication runs, from `start_s` [S, B] and durations [U, B]."""
    if not rank.communicates:
        return jnp.zeros_like(durations[0])
    never = jnp.full_like(durations[:1], jnp.inf)
    starts = jnp.concatenate([start_s, never])[rank.step]  # [M, B]
    ends = starts + jnp.concatenate([jnp.zeros_like(never), durations])[rank.row]
    column = jnp.arange(durations.shape[1])
    streams = len(rank.first)

    def take(_: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Take the interval that starts next: what is new to all streams, or to compute."""
        at, next_start, next_end, reached, computed, exposed = carry  # [streams, B] thrice, [B]
        which = jnp.argmin(next_start, axis=0)
        start, end, here = (_picked(each, which, streams) for each in (next_start, next_end, at))
        new = jnp.maximum(end - jnp.maximum(start, reached), 0)
        reached = jnp.maximum(reached, end)
        if rank.computes:
            by_compute = which == 0
            new -= jnp.where(by_compute, jnp.maximum(end - jnp.maximum(start, computed), 0), 0)
            computed = jnp.where(by_compute, jnp.maximum(computed, end), computed)
        its = which == jnp.arange(streams)[:, None]
        at, after = jnp.where(its, here + 1, at), (here + 1, column)
        following = (each.at[after].get(mode="promise_in_bounds") for each in (starts, ends))
        new_start, new_end = following
        next_start = jnp.where(its, new_start, next_start)
        next_end = jnp.where(its, new_end, next_end)
        return at, next_start, next_end, reached, computed, exposed + new

    zero = jnp.zeros_like(durations[0])
    at = jnp.broadcast_to(jnp.asarray(rank.first)[:, None], (streams, len(zero)))
    first = starts[rank.first], ends[rank.first]
    exposed = lax.fori_loop(0, len(rank.step) - streams, take, (at, *first, zero, zero, zero))[-1]
    return jnp.maximum(exposed, 0)  # rounding may leave less than nothing


def _picked(rows: jax.Array, which: jax.Array, streams: int) -> jax.Array:
    """`rows[which[b], b]` for each b, by choosing: of so few rows cheaper than looking them up."""
    picked = rows[0]
    for row in range(1, streams):
        picked = jnp.where(which == row, rows[row], picked)
    return picked
