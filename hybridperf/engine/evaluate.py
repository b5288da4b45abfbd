"""When everything ends: the longest path through a lowered graph, for many configurations at once.

Each step (an op with its launch, or a join, see `lower`) starts when its host has launched it and
its at most two predecessors have ended, so a loop over the steps finds the makespan with `max` and
`+` alone:

    C[host_i]     <- C[host_i] + T[launch_row_i]
    S[out_slot_i] <- max(C[host_i] - T[lead_row_i], S[pred_slot_i0], S[pred_slot_i1]) + T[row_i]
    makespan       = S[out_slot of the last step]

T are seconds [1 + U, B], C clocks [hosts, B], S ends [slots, B]. A lead is above 0 only for a run
of steps that stands as one (`contraction`), whose rows are in front of the table's.

Axes: U rows of the duration table, B configurations. The batch comes last, by hand instead of by
`vmap`, so that each read and write is one contiguous row; B first costs 20-500 times the time. Rows
are of *unique* ops: gathered to one row per node the table would leave the cache. One write per
step to each array, since with more XLA copies it at each.

The gradient of a maximum is the path that attains it: d makespan / d T[u] counts how often the
critical path passes row u. The loop forward notes where the latest of the three stood (a tie goes
to the first): in a slot, which keeps an end until its last reader, or on a clock. So one byte says
where the path is, and a loop backwards follows the notes from the last step. It counts by triples
of lead, launch and row, one write per step, and spreads the counts to rows when all are counted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike, DTypeLike

from hybridperf.engine.lower import (
    COUNT_BITS,
    LESSER,
    MOST_USES,
    NO_HOST,
    NO_STEP,
    ZERO_SLOT,
    Lowered,
    StepProgram,
    power_bucket,
    row_bucket,
)

# configurations evaluated together: slots and table of a usual graph stay in a core's cache
BLOCK = 1280
# a block is a multiple of this, 64 bytes of float32: rows that straddle cache lines cost a third
# more time
LINE = 16
_SMALL_BATCH = 128  # beyond it padding takes longer than compiling saves


@jax.jit
def makespan(program: StepProgram, durations: jax.Array) -> jax.Array:
    """Seconds [B] until the last node ends, from seconds per row, `durations` [U, B].

    Row u of the graph is `durations[u - 1]`; row 0, always zero, is added here. Computed in the
    dtype of `durations` and differentiable by them. Compiled once per bucket and
    shape of `durations`. A compiled function cannot refuse values: a row that the table lacks and
    negative seconds are what `check_durations` is for. A NaN in any row makes its configuration
    NaN.
    """
    check_table_shape(durations)
    return _last_end(program, durations)


def last_ends(program: StepProgram, durations: np.ndarray) -> np.ndarray:
    """`makespan` of a NumPy table [U, B]: seconds [B], float64.

    Graphs of a bucket share what is compiled, however many calls they are of: rows and a small
    batch are padded.
    """
    rows, batch = durations.shape
    some = power_bucket(batch) if 1 < batch < _SMALL_BATCH else batch
    padded = np.zeros((row_bucket(rows), some), durations.dtype)
    padded[:rows, :batch] = durations
    return np.asarray(makespan(program, jnp.asarray(padded)), np.float64)[:batch]


def check_table_shape(durations: jax.Array) -> None:
    """`ValueError` for what is no floating-point table [rows, batch]."""
    if durations.ndim != 2 or not jnp.issubdtype(durations.dtype, jnp.floating):
        raise ValueError(
            f"durations are {durations.dtype}{list(durations.shape)}, expected floating-point"
            " seconds [rows, batch]; give a single configuration a batch axis of 1 and convert"
            " integers."
        )


class Timeline(NamedTuple):
    """When each node of a graph runs, in seconds from the start of the step, float64 [N]."""

    start_s: np.ndarray
    end_s: np.ndarray
    # when the rank's host thread begins to launch the node; its end if that is free
    launch_start_s: np.ndarray
    launch_end_s: np.ndarray


def timeline(lowered: Lowered, durations: ArrayLike) -> Timeline:
    """When each node runs in one configuration, from seconds per row `durations` [U]."""
    times = _step_times(lowered, durations)
    ops, hosts, on_clock = lowered.step_of_node, lowered.host_step_of_node, lowered.on_clock
    launch_end = np.where(on_clock, times.launch_end_s[hosts], times.end_s[hosts])
    launched_as_step = np.where(lowered.graph.launch_row > 0, times.start_s[hosts], launch_end)
    launch_start = np.where(on_clock, times.launch_start_s[hosts], launched_as_step)
    return Timeline(times.start_s[ops], times.end_s[ops], launch_start, launch_end)


class CriticalPath(NamedTuple):
    """What the makespan consists of, in order of time: seconds of its M entries add up to it."""

    node: np.ndarray  # int [M]
    is_launch: np.ndarray  # the node's launch by the host is meant, not the node itself; bool [M]


def critical_path(lowered: Lowered, durations: ArrayLike) -> CriticalPath:
    """One longest path of one configuration, from seconds per row `durations` [U].

    A collective is on it once, as the node of the rank that the others waited for.
    """
    graph = lowered.graph
    # node, is_launch by step, by whether its launch is meant
    entries: dict[tuple[int, bool], list[tuple[int, bool]]] = {}
    for node, step in enumerate(lowered.step_of_node.tolist()):
        entries.setdefault((step, False), []).append((node, False))
    for node in np.flatnonzero(graph.launch_row).tolist():
        launch = int(lowered.host_step_of_node[node]), bool(lowered.on_clock[node])
        entries.setdefault(launch, []).append((node, True))

    path: list[tuple[int, bool]] = []
    for at in _steps_on_path(lowered.program, _step_times(lowered, durations)):
        if at in entries:  # else a join, which takes no time and stands for no node
            last_rank = graph.rank[path[-1][0]] if path else None
            on_last_rank = [entry for entry in entries[at] if graph.rank[entry[0]] == last_rank]
            path.append((on_last_rank or entries[at])[0])
    nodes, launches = [node for node, _ in path], [is_launch for _, is_launch in path]
    return CriticalPath(np.array(nodes), np.array(launches))


def check_durations(lowered: Lowered, durations: ArrayLike) -> np.ndarray:
    """`durations` [U] or [U, B] unchanged; `ValueError` for missing, infinite or negative rows."""
    table, graph = np.asarray(durations), lowered.graph
    if table.ndim not in (1, 2) or len(table) < graph.rows:
        raise ValueError(
            f"durations have shape {list(table.shape)}, expected [U] or [U, batch] with U at least"
            f" {graph.rows}, the highest row of the graph; give the seconds of every unique op,"
            " that of row 1 first."
        )
    wrong = ~(np.isfinite(table) & (table >= 0))
    if wrong.any():
        at, *configuration = map(int, np.argwhere(wrong)[0])
        where = "".join(f" in configuration {number}" for number in configuration)
        raise ValueError(
            f"Row {at + 1} ({graph.user_of(at + 1)}) has duration {table[at, *configuration]}"
            f"{where}, expected finite seconds, 0 or more; check the model or measurement it comes"
            " from."
        )
    return table


def _step_times(lowered: Lowered, durations: ArrayLike) -> Timeline:
    """Times of each step and its launch [S + 1]; the last entry is 0 s (NO_STEP = -1)."""
    if np.ndim(durations) != 1:
        expected = "expected [U], one configuration; take one column"
        raise ValueError(f"durations have shape {list(np.shape(durations))}, {expected}.")
    table = [0.0, *np.asarray(check_durations(lowered, durations), np.float64).tolist()]
    program = lowered.program
    arrays = (program.pred_step, program.row, program.host, program.launch_row)
    columns = [array.tolist() for array in arrays]
    start, end, launch_start, launch_end = ([0.0] * (len(program.row) + 1) for _ in range(4))
    clock = [0.0] * program.hosts
    for step, ((first, second), row, host, launch_row) in enumerate(zip(*columns, strict=True)):
        launch_start[step] = clock[host]
        launch_end[step] = clock[host] = clock[host] + table[launch_row]
        start[step] = max(clock[host], end[first], end[second])
        end[step] = start[step] + table[row]
    return Timeline(*map(np.array, (start, end, launch_start, launch_end)))


def _steps_on_path(program: StepProgram, times: Timeline) -> list[tuple[int, bool]]:
    """The longest path in order of time: steps, and whether the launch within the step is meant."""
    path = []
    step, in_launch = len(program.row) - 1, False
    while step != NO_STEP:
        path.append((step, in_launch))
        first, second = program.pred_step[step].tolist()
        if in_launch:
            step = int(program.host_step[step])
        elif program.host[step] != NO_HOST and times.launch_end_s[step] == times.start_s[step]:
            in_launch = True
        else:
            step = second if times.end_s[second] > times.end_s[first] else first
    return path[::-1]


@jax.custom_jvp
def _last_end(program: StepProgram, durations: jax.Array) -> jax.Array:
    """End of the last step [B]."""
    return _ends(program, durations)


@_last_end.defjvp
def _(given: Any, slopes: Any) -> tuple[jax.Array, jax.Array]:
    end, times_on_path = ends_and_times(*given)
    return end, (times_on_path * slopes[1]).sum(0)


@jax.custom_batching.custom_vmap
def _ends(program: StepProgram, durations: jax.Array) -> jax.Array:
    return in_blocks(
        lambda some: nan_kept(some, _forward(program, table_of(program, some))[0]), durations
    )


@jax.custom_jvp
def ends_and_times(program: StepProgram, durations: jax.Array) -> tuple[jax.Array, jax.Array]:
    """End of the last step [B], and how often the longest path passes each row [U, B].

    Both in one pass. How often has no slope: between two durations at which the path changes it is
    the same.
    """
    return _ends_and_times(program, durations)


@ends_and_times.defjvp
def _(given: Any, slopes: Any) -> tuple[Any, Any]:
    end, times_on_path = ends_and_times(*given)
    slope = (times_on_path * slopes[1]).sum(0)
    return (end, times_on_path), (slope, jnp.zeros_like(times_on_path))


@jax.custom_batching.custom_vmap
def _ends_and_times(program: StepProgram, durations: jax.Array) -> tuple[jax.Array, jax.Array]:
    # counted here, block by block, and not in a backward pass, so that the notes [S, B] need not be
    # kept in between
    def end_and_times(some: jax.Array) -> tuple[jax.Array, jax.Array]:
        table = table_of(program, some)
        end, came_from = _forward_and_places(program, table)
        return nan_kept(some, end), _times_on_path(program, came_from, table)[-len(some) :]

    return in_blocks(end_and_times, durations)


def _joined(function: Any, size: int, batched: Any, program: Any, durations: Any) -> Any:
    """A function [..., B] of a program and durations [U, B] where `vmap` asks for `size` of them.

    Those of one program are more configurations of it: the batch stays behind the rows, where each
    read and write is one contiguous row. Programs that differ are evaluated in turn.
    """
    of_program, of_durations = batched
    if not of_durations:
        durations = jnp.broadcast_to(durations, (size, *durations.shape))
    if any(jax.tree.leaves(of_program)):
        program = jax.tree.map(
            lambda leaf, is_batched: (
                leaf if is_batched else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf)))
            ),
            program, of_program,
        )  # fmt: skip
        apart = lax.map(lambda one: function(*one), (program, durations))
        return apart, jax.tree.map(lambda _: True, apart)
    rows, batch = durations.shape[1:]
    found = function(program, jnp.moveaxis(durations, 0, 1).reshape(rows, size * batch))
    apart = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, batch), -2, 0), found
    )
    return apart, jax.tree.map(lambda _: True, apart)


@_ends.def_vmap
def _(size: int, batched: Any, program: Any, durations: Any) -> Any:
    return _joined(_ends, size, batched, program, durations)


@_ends_and_times.def_vmap
def _(size: int, batched: Any, program: Any, durations: Any) -> Any:
    return _joined(_ends_and_times, size, batched, program, durations)


def in_blocks(function: Callable[[Any], Any], arrays: Any, most: int | None = None) -> Any:
    """`function(arrays)` on `most` configurations at a time; arrays and results are [..., B]."""
    batch = jax.tree.leaves(arrays)[0].shape[-1]
    blocks = max(1, -(-batch // (BLOCK if most is None else most)))
    # a search asks for one at a time
    width = -(-batch // (blocks * LINE)) * LINE if batch > LINE else batch
    if width >= batch:
        more = (0, width - batch)
        padded = jax.tree.map(lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [more]), arrays)
        return jax.tree.map(lambda result: result[..., :batch], function(padded))

    def block(number: jax.Array, results: Any) -> Any:
        # the last overlaps with the one before: no padded copy of all
        start = jnp.minimum(number * width, batch - width)
        some = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, width, axis=-1), arrays)

        def written(result: jax.Array, new: jax.Array) -> jax.Array:
            return lax.dynamic_update_slice_in_dim(result, new, start, axis=-1)

        return jax.tree.map(written, results, function(some))

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays)
    empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, shapes))
    return lax.fori_loop(0, blocks, block, empty)


def table_of(program: StepProgram, durations: jax.Array) -> jax.Array:
    """The table that rows of a program point into: M made rows, one of 0 s, `durations` [U, B]."""
    made = len(program.made)
    table = jnp.pad(durations, ((made + 1, 0), (0, 0)))
    if not made:
        return table

    # written one turn late, as an end is in `run_steps`
    def make(this: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        table = _with_row(carry[0], carry[1], this - 1)
        one, other, how = _row(program.made, this)
        one, other = _row(table, one), _row(table, other)
        return table, jnp.where(how == LESSER, jnp.where(one < other, one, other), one + other)

    none = jnp.zeros_like(table[0])
    table, last = lax.fori_loop(program.first_made, made, make, (table, none))
    return _with_row(table, last, jnp.asarray(made - 1))


def _forward_and_places(program: StepProgram, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    """End of the last step [B] and where each found what held it up, a slot or clock; [S, B]."""
    # of the number of a slot, or of a host's clock, which stands at `slots + host`
    place = np.uint8 if program.slots + program.hosts <= 1 + np.iinfo(np.uint8).max else np.uint16

    def came_from(
        host: jax.Array, slots: jax.Array, launched: jax.Array, first: jax.Array, second: jax.Array
    ) -> jax.Array:
        by_host = (launched >= later(first, second)) & (host != NO_HOST)
        by_pred = jnp.where(second > first, slots[1].astype(place), slots[0].astype(place))
        return jnp.where(by_host, (program.slots + host).astype(place), by_pred)

    return _forward(program, table, note=came_from, note_dtype=place)


def _forward(
    program: StepProgram, table: jax.Array, *, note: Callable[..., jax.Array] | None = None,
    note_dtype: DTypeLike | None = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """End of the last step [B] and what is to be noted of each step, [S, B], or [0, B]."""
    sizes = (program.slots, program.hosts)
    slots, clocks = (jnp.zeros((rows, table.shape[1]), table.dtype) for rows in sizes)
    begin, stop = program.first, len(program.row)
    _, _, end, noted = run_steps(
        program, table, slots, clocks, begin, stop, note=note, note_dtype=note_dtype
    )
    return end, noted


def run_steps(
    program: StepProgram, table: jax.Array, slots: jax.Array, clocks: jax.Array, begin: ArrayLike,
    stop: ArrayLike, *, note: Callable[..., jax.Array] | None = None,
    note_dtype: DTypeLike | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Slots and clocks after the steps `begin` to `stop`, the last end [B], `_forward`'s record.

    The slots [slots, ..., B] and clocks [hosts, ..., B] are those of before, with any axes between;
    `table` is [1 + U, B]. The last end is not yet in its slot, and the step before `begin` has to
    be padding.
    """

    # An end is written to its slot one turn late, before the next step reads. Written in its own
    # turn, after reads that the note needs as well, XLA copies all slots at every step: 7-50 times
    # the time.
    def step(this: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        slots, clocks, previous_end, noted = carry
        columns = (program.host, program.launch_row, program.row)
        host, launch_row, row = (_row(column, this) for column in columns)
        pred_slot = _row(program.pred_slot, this)
        slots = _with_row(slots, previous_end, _row(program.out_slot, this - 1))
        clocks = _with_row(clocks, _row(clocks, host) + _row(table, launch_row), host)
        launched, first = _row(clocks, host), _row(slots, pred_slot[0])
        second = _row(slots, pred_slot[1])
        if len(program.made):
            launched -= _row(table, _row(program.lead_row, this))
        ready = later(first, second)
        if note is not None:
            noted = _with_row(noted, note(host, pred_slot, launched, first, second), this)
        return slots, clocks, later(launched, ready) + _row(table, row), noted

    dtype = table.dtype if note_dtype is None else note_dtype
    # all read is written before
    noted = lax.empty((0 if note is None else len(program.row), table.shape[1]), dtype)
    return lax.fori_loop(begin, stop, step, (slots, clocks, slots[ZERO_SLOT], noted))


def nan_kept(durations: jax.Array, end: jax.Array) -> jax.Array:
    """Ends [B], NaN where the durations have one, which `later` may have lost."""
    # a sum is compiled sooner than a search
    return jnp.where(jnp.isnan(durations.sum(axis=0)), jnp.nan, end)


def _times_on_path(program: StepProgram, came_from: jax.Array, table: jax.Array) -> jax.Array:
    """How often each row is on the critical path, in the table's dtype and shape [rows, B]."""
    steps, batch = len(program.row), table.shape[1]
    by_op, by_launch, by_lead = (np.uint16(1 << part * COUNT_BITS) for part in range(3))

    def step(turn: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        here, counts = carry  # [B] and [K, B]
        this = steps - 1 - turn
        columns = (program.out_slot, program.host, program.count)
        out_slot, host, count = (_row(column, this) for column in columns)
        in_op = here == out_slot.astype(here.dtype)
        here = jnp.where(in_op, _row(came_from, this), here)
        # who is on a clock stays there: it waits for nothing but itself
        in_launch = here == (program.slots + host).astype(here.dtype)
        launch = jnp.where(in_op, by_op + by_launch + by_lead, by_launch)
        passed = jnp.where(in_launch, launch, jnp.where(in_op, by_op, np.uint16(0)))
        return here, _with_row(counts, _row(counts, count) + passed, count)

    last = jnp.full(batch, program.out_slot[-1].astype(came_from.dtype))
    start = last, jnp.zeros((len(program.counted), batch), jnp.uint16)
    counts = lax.fori_loop(0, steps - program.first, step, start)[1]

    def spread(this: jax.Array, times: jax.Array) -> jax.Array:
        rows, packed = _row(program.counted, this), _row(counts, this).astype(times.dtype)
        lead, launch, op = (packed >> part * COUNT_BITS & MOST_USES for part in (2, 1, 0))
        times = _with_row(times, _row(times, rows[2]) + op, rows[2])
        times = _with_row(times, _row(times, rows[1]) + launch, rows[1])
        return _with_row(times, _row(times, rows[0]) - lead, rows[0])

    times = jnp.zeros(table.shape, jnp.int32)
    times = lax.fori_loop(program.first_counted, len(program.counted), spread, times)
    return _times_unmade(program, times, table).astype(table.dtype)


def _times_unmade(program: StepProgram, times: jax.Array, table: jax.Array) -> jax.Array:
    """How often each row is on the path, with those that the made ones were made of."""
    made = len(program.made)
    if not made:
        return times

    # one of the two rows a turn: with several writes a turn XLA copies all rows at each
    def unmake(turn: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        times, its = carry
        rows = _row(program.made, made - 1 - turn // 2)
        is_other = turn % 2
        one, other = _row(table, rows[0]), _row(table, rows[1])
        passed = (rows[2] != LESSER) | ((one < other) == (is_other == 0))
        times = _with_row(
            times, _row(times, rows[is_other]) + jnp.where(passed, its, 0), rows[is_other]
        )
        return times, _row(times, made - 1 - (turn + 1) // 2)  # read a turn ahead: the same

    turns = 2 * (made - program.first_made)
    return lax.fori_loop(0, turns, unmake, (times, times[made - 1]))[0]


def later(one: jax.Array, other: jax.Array) -> jax.Array:
    """The later end: one machine instruction, a sixth of the time of a maximum that keeps NaN."""
    return jnp.where(one > other, one, other)


def _row(rows: ArrayLike, number: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(
        jnp.asarray(rows), number, axis=0, keepdims=False, allow_negative_indices=False
    )


def _with_row(rows: jax.Array, row: jax.Array, number: jax.Array | int) -> jax.Array:
    return lax.dynamic_update_index_in_dim(rows, row, number, axis=0, allow_negative_indices=False)
