"""When everything ends: the longest path through a lowered graph, for many configurations at once.

Each step (an op, a launch or a join, see `lower`) starts when its at most two predecessors have ended, so a scan over
the steps finds the makespan with `max` and `+` alone:

    S[out_slot_i] <- max(S[pred_slot_i0], S[pred_slot_i1]) + T[row_i]          T  seconds [1 + U, B], S  ends [slots, B]
    makespan       = S[out_slot of the last step]

Axes: U rows of the duration table, B configurations. The batch comes last, by hand instead of by `vmap`, so that each
read and write is one contiguous row; B first costs 20-500 times the time. Rows are of *unique* ops: gathered to one row
per node the table would leave the cache. One write per step, since with more XLA copies the state at each.

The gradient of a maximum is the path that attains it: d makespan / d T[u] counts how often the critical path passes row
u. The forward scan notes which predecessor was later (a tie goes to the first), a scan backwards follows the notes from
the last step and counts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from hybridperf.lower import NO_STEP, TRASH_SLOT, ZERO_SLOT, Lowered, Program

BLOCK = 2048  # configurations evaluated together: slots and table of a usual graph stay in a core's cache


@jax.jit
def makespan(program: Program, durations: jax.Array) -> jax.Array:
    """Seconds [B] until the last node ends, from seconds per row, `durations` [U, B].

    Row u of the graph is `durations[u - 1]`; row 0, always zero, is added here. Computed in the dtype of `durations`
    and differentiable by them, in reverse mode. Compiled once per bucket and shape of `durations`. A compiled function
    cannot refuse values: a row that the table lacks, NaN and negative seconds are what `check_durations` is for.
    """
    if durations.ndim != 2 or not jnp.issubdtype(durations.dtype, jnp.floating):
        raise ValueError(
            f"durations are {durations.dtype}{list(durations.shape)}, expected floating-point seconds [rows, batch]; "
            "give a single configuration a batch axis of 1 and convert integers."
        )
    return _last_end(program, jnp.pad(durations, ((1, 0), (0, 0))))


class Timeline(NamedTuple):
    """When each node of a graph runs, in seconds from the start of the step, float64 [N]."""

    start_s: np.ndarray
    end_s: np.ndarray
    launch_start_s: np.ndarray  # when the rank's host thread begins to launch the node; its end if that is free
    launch_end_s: np.ndarray


def timeline(lowered: Lowered, durations: ArrayLike) -> Timeline:
    """When each node runs in one configuration, from seconds per row `durations` [U]."""
    start, end = _step_times(lowered, durations)
    ops, hosts = lowered.step_of_node, lowered.host_step_of_node
    launch_start = np.where(lowered.graph.launch_row > 0, start[hosts], end[hosts])
    return Timeline(start[ops], end[ops], launch_start, end[hosts])


class CriticalPath(NamedTuple):
    """What the makespan consists of, in order of time: the seconds of its M entries add up to it."""

    node: np.ndarray  # int [M]
    is_launch: np.ndarray  # the node's launch by the host is meant, not the node itself; bool [M]


def critical_path(lowered: Lowered, durations: ArrayLike) -> CriticalPath:
    """The longest path in one configuration, from seconds per row `durations` [U]; one of them if several tie.

    A collective is on it once, as the node of the rank that the others waited for.
    """
    _, end = _step_times(lowered, durations)
    pred_step = lowered.program.pred_step
    steps = [len(pred_step) - 1]
    while steps[-1] != NO_STEP:
        first, second = pred_step[steps[-1]].tolist()
        steps.append(second if end[second] > end[first] else first)

    graph = lowered.graph
    nodes_of: dict[int, list[int]] = {}
    for node, step in enumerate(lowered.step_of_node.tolist()):
        nodes_of.setdefault(step, []).append(node)
    launches = {int(lowered.host_step_of_node[node]): int(node) for node in np.flatnonzero(graph.launch_row)}

    path: list[tuple[int, bool]] = []
    for step in steps[-2::-1]:  # in order of time, without NO_STEP
        if step in launches:
            path.append((launches[step], True))
        elif step in nodes_of:  # else a join, which takes no time and stands for no node
            last_rank = graph.rank[path[-1][0]] if path else None
            on_last_rank = [node for node in nodes_of[step] if graph.rank[node] == last_rank]
            path.append(((on_last_rank or nodes_of[step])[0], False))
    return CriticalPath(np.array([node for node, _ in path]), np.array([is_launch for _, is_launch in path]))


def check_durations(lowered: Lowered, durations: ArrayLike) -> np.ndarray:
    """`durations` [U] or [U, B] unchanged, if every row that the graph points to is there, finite and not negative."""
    table, graph = np.asarray(durations), lowered.graph
    if table.ndim not in (1, 2) or len(table) < graph.rows:
        raise ValueError(
            f"durations have shape {list(table.shape)}, expected [U] or [U, batch] with U at least {graph.rows}, the "
            "highest row of the graph; give the seconds of every unique op, that of row 1 first."
        )
    wrong = ~(np.isfinite(table) & (table >= 0))
    if wrong.any():
        at, *configuration = map(int, np.argwhere(wrong)[0])
        row = at + 1
        users = np.flatnonzero((graph.row == row) | (graph.launch_row == row)).tolist()
        user = f"first used by node {users[0]} {graph.labels[users[0]]!r}" if users else "used by no node"
        where = "".join(f" in configuration {number}" for number in configuration)
        raise ValueError(
            f"Row {row} ({user}) has duration {table[at, *configuration]}{where}, expected finite seconds, 0 or more; "
            "check the model or measurement it comes from."
        )
    return table


def _step_times(lowered: Lowered, durations: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each step, float64 [S + 1]: the last entry, 0 s, is found at NO_STEP = -1."""
    if np.ndim(durations) != 1:
        raise ValueError(f"durations have shape {list(np.shape(durations))}, expected [U], one configuration; take one column.")
    table = [0.0, *np.asarray(check_durations(lowered, durations), np.float64).tolist()]
    program = lowered.program
    start, end = [0.0] * (len(program.row) + 1), [0.0] * (len(program.row) + 1)
    for step, ((first, second), row) in enumerate(zip(program.pred_step.tolist(), program.row.tolist(), strict=True)):
        start[step] = max(end[first], end[second])
        end[step] = start[step] + table[row]
    return np.array(start), np.array(end)


@jax.custom_vjp
def _last_end(program: Program, table: jax.Array) -> jax.Array:
    """End of the last step [B] for a table whose row 0 is zero."""
    return _in_blocks(lambda block: _forward(program, block, note_later=False)[0], table)


def _last_end_fwd(program: Program, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Counted here, block by block, and not in the backward pass, so that the notes [S, B] need not be kept in between.
    def end_and_times(block: jax.Array) -> tuple[jax.Array, jax.Array]:
        end, second_is_later = _forward(program, block, note_later=True)
        return end, _times_on_path(program, second_is_later, block)

    return _in_blocks(end_and_times, table)


def _last_end_bwd(times_on_path: jax.Array, cotangent: jax.Array) -> tuple[None, jax.Array]:
    return None, times_on_path * cotangent


_last_end.defvjp(_last_end_fwd, _last_end_bwd)


def _in_blocks(function: Callable[[jax.Array], Any], table: jax.Array) -> Any:
    """`function(table)`, whose results are [..., B], computed for up to `BLOCK` configurations at a time."""
    batch = table.shape[1]
    if batch <= BLOCK:
        return function(table)
    blocks = -(-batch // BLOCK)
    width = -(-batch // blocks)  # equal blocks: at most one configuration of padding in each
    table = jnp.pad(table, ((0, 0), (0, blocks * width - batch)))
    by_block = lax.map(function, jnp.swapaxes(table.reshape(-1, blocks, width), 0, 1))

    def joined(result: jax.Array) -> jax.Array:
        result = jnp.moveaxis(result, 0, -2)
        return result.reshape(*result.shape[:-2], -1)[..., :batch]

    return jax.tree.map(joined, by_block)


def _forward(program: Program, table: jax.Array, *, note_later: bool) -> tuple[jax.Array, Any]:
    """End of the last step [B] and, if asked, if each step's second predecessor was the later one, uint8 [S, B]."""

    # An end is written to its slot one turn late, before the next step reads. Written in its own turn, after reads that
    # the note needs as well, XLA copies all slots at every step: 7-50 times the time.
    def step(carry: tuple[jax.Array, jax.Array], at: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array | None]:
        slots, previous_end = carry
        previous_slot, pred_slot, row = at
        slots = _with_row(slots, previous_end, previous_slot)
        first, second = _row(slots, pred_slot[0]), _row(slots, pred_slot[1])
        end = jnp.maximum(first, second) + _row(table, row)
        return (slots, end), (second > first).astype(jnp.uint8) if note_later else None

    slots = jnp.zeros((program.slots, table.shape[1]), table.dtype)
    previous_slot = jnp.concatenate([jnp.full(1, TRASH_SLOT, jnp.int32), program.out_slot[:-1]])
    start = slots, slots[ZERO_SLOT]
    (_, end), second_is_later = lax.scan(step, start, (previous_slot, program.pred_slot, program.row))
    return end, second_is_later


def _times_on_path(program: Program, second_is_later: jax.Array, table: jax.Array) -> jax.Array:
    """How often each row is on the critical path, in the table's dtype and shape [rows, B]."""

    def step(carry: tuple[jax.Array, jax.Array], at: Any) -> tuple[tuple[jax.Array, jax.Array], None]:
        here, times = carry  # the path's current step [B]
        this, pred_step, row, later = at
        on_path = here == this
        times = _with_row(times, _row(times, row) + on_path.astype(times.dtype), row)
        here = jnp.where(on_path, jnp.where(later != 0, pred_step[1], pred_step[0]), here)
        return (here, times), None

    numbers = jnp.arange(len(program.row), dtype=jnp.int32)
    start = jnp.full(table.shape[1], len(program.row) - 1, jnp.int32), jnp.zeros_like(table)
    (_, times), _ = lax.scan(step, start, (numbers, program.pred_step, program.row, second_is_later), reverse=True)
    return times


def _row(rows: jax.Array, number: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(rows, number, axis=0, keepdims=False, allow_negative_indices=False)


def _with_row(rows: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(rows, row, number, axis=0, allow_negative_indices=False)
