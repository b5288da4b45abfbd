"""Many steps of different structure at once, each with seconds of its own: programs of one bucket
share one compiled call.

`makespan` is compiled for a bucket of steps, slots and hosts and a shape of durations, and is
called for one program at a time. Here programs that agree in all of those, once rows and
configurations are padded to buckets too, are stacked and evaluated one after the other inside one
compiled loop. How many there are is a number given to the loop, not a shape.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from hybridperf.engine.evaluate import LINE, check_durations, makespan
from hybridperf.engine.lower import Lowered, Program
from hybridperf.io import InputError

# seconds in one call, 64 MB of float32: a bucket with more is evaluated in several calls
LARGEST_STACK = 2**24
_FEWEST_ROWS = 64


def makespans(graphs: Sequence[Lowered], durations: Sequence[ArrayLike]) -> list[np.ndarray]:
    """Seconds [B_g] until the last node of each graph g ends, from its own seconds per row,
    `durations[g]` [U_g, B_g].

    In the order given, each in the dtype of its durations. `InputError` naming the graph for what
    `check_durations` refuses, before anything is compiled.
    """
    if len(graphs) != len(durations):
        raise InputError(
            f"{len(graphs)} graphs came with {len(durations)} tables of durations, expected one [U,"
            " batch] for each graph."
        )
    tables = [
        _checked(number, graph, table)
        for number, (graph, table) in enumerate(zip(graphs, durations, strict=True))
    ]
    buckets: dict[tuple, list[int]] = {}
    for number, (graph, table) in enumerate(zip(graphs, tables, strict=True)):
        program = graph.program
        bucket = (
            len(program.row),
            program.slots,
            program.hosts,
            _row_bucket(len(table)),
            _batch_bucket(table.shape[1]),
            table.dtype,
        )
        buckets.setdefault(bucket, []).append(number)
    results: dict[int, np.ndarray] = {}
    for (_, _, _, rows, batch, dtype), members in buckets.items():
        most = 1 << max(0, (LARGEST_STACK // (rows * batch)).bit_length() - 1)
        for at in range(0, len(members), most):
            some = members[at : at + most]
            stacked = min(most, 1 << (len(some) - 1).bit_length())
            given = np.zeros((stacked, rows, batch), dtype)
            for place, number in enumerate(some):
                given[place, : len(tables[number]), : tables[number].shape[1]] = tables[number]
            programs = [graphs[number].program for number in some]
            programs += programs[:1] * (stacked - len(some))  # never reached
            ends = np.asarray(
                _each(
                    jax.tree.map(lambda *leaves: np.stack(leaves), *programs),
                    given,
                    np.int32(len(some)),
                )
            )
            results |= {
                number: ends[place, : tables[number].shape[1]] for place, number in enumerate(some)
            }
    return [results[number] for number in range(len(graphs))]


@jax.jit
def _each(programs: Program, durations: jax.Array, count: jax.Array) -> jax.Array:
    """Ends [G, B] of the first `count` of G programs, from their `durations` [G, U, B]."""

    def one(number: jax.Array, ends: jax.Array) -> jax.Array:
        program, table = jax.tree.map(
            lambda leaf: lax.dynamic_index_in_dim(jnp.asarray(leaf), number, keepdims=False),
            (programs, durations),
        )
        return lax.dynamic_update_index_in_dim(ends, makespan(program, table), number, axis=0)

    return lax.fori_loop(
        0, count, one, jnp.zeros((durations.shape[0], durations.shape[2]), durations.dtype)
    )


def _checked(number: int, graph: Lowered, durations: ArrayLike) -> np.ndarray:
    table = np.asarray(durations)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.floating) or not table.shape[1]:
        raise InputError(
            f"Graph {number}: durations are {table.dtype}{list(table.shape)}, expected"
            " floating-point seconds [rows, batch]; give a single configuration a batch axis of 1"
            " and convert integers."
        )
    try:
        return check_durations(
            graph, table.astype(jax.dtypes.canonicalize_dtype(table.dtype), copy=False)
        )
    except ValueError as error:
        raise InputError(f"Graph {number}: {error}") from None


def _row_bucket(rows: int) -> int:
    """Powers of two: rows cost memory, not time."""
    return max(_FEWEST_ROWS, 1 << (rows - 1).bit_length())


def _batch_bucket(batch: int) -> int:
    """Four sizes an octave, multiples of a line: a padded configuration costs as much as another.
    One alone stays alone.
    """
    if batch == 1:
        return 1
    step = max(LINE, (1 << (batch - 1).bit_length()) // 8)
    return -(-batch // step) * step
