"""Lookups of a compiled program, priced with what batches look up.

A program says how many rows it gathers from how large a table and not which: its lookups count as
uniform. Where the tables of a rank are known with their access distributions, the gather into each
table's bags and the scatter of its gradients are found by their sizes and priced as embedding bags
of that table alone: XLA goes through one table after the other, so that only lookups of the same
table come between two of a row. (Taken for one kernel over all tables, updates came out 1.4 times
too slow.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.engine.workload import Call
from hybridperf.io import InputError
from hybridperf.ops import Gather, OpCall, ScatterAdd
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import Direction, lookup_calls
from hybridperf.workloads.jax.program import OpChain

_LOOKED_UP: tuple[tuple[type[Gather | ScatterAdd], Direction], ...] = (
    (Gather, "forward"),
    (ScatterAdd, "backward"),
)


@dataclasses.dataclass(frozen=True)
class RankTables:
    """Tables that lie on one rank, and the samples of a batch of all ranks together."""

    tables: Sequence[Table]
    batch: float


def with_access(chain: OpChain, held: RankTables) -> OpChain:
    """The chain with one op for each table's lookups, one for its updates; `InputError` names a
    table that it does not look up.
    """
    if not held.tables:
        return chain
    nodes = list(chain.nodes)
    for kind, direction in _LOOKED_UP:
        taken: list[int] = []
        for table in held.tables:
            at = _find(nodes, kind, table, held.batch, taken)
            taken.append(at)
            others = [other for other in held.tables if other is not table]
            call = lookup_calls(
                [table], held.batch, direction, duplicates="each", beside=others, in_step=True
            )
            nodes[at] = (nodes[at][0], _plain(call))
    return dataclasses.replace(chain, nodes=tuple(nodes))


def _plain(call: OpCall) -> OpCall:
    """With dimensions as plain numbers: rows of a duration table are told apart by them."""
    sizes = {field.name: getattr(call.op, field.name) for field in dataclasses.fields(call.op)}
    numbers: dict[str, Any] = {
        name: value if isinstance(value, str) else float(np.asarray(value).item())
        for name, value in sizes.items()
    }
    return dataclasses.replace(call, op=dataclasses.replace(call.op, **numbers))


def _find(
    nodes: Sequence[tuple[str, Call]],
    kind: type[Gather | ScatterAdd],
    table: Table,
    batch: float,
    taken: Sequence[int],
) -> int:
    """The node that is a table's, by its sizes; of two alike the first that is not taken."""
    sizes = (float(batch * table.pooling), float(table.dim), float(table.rows))
    for at, (_, call) in enumerate(nodes):
        if at in taken or not (isinstance(call, OpCall) and isinstance(call.op, kind)):
            continue
        if (float(call.op.rows), float(call.op.cols), float(call.op.vocab)) == sizes:
            return at
    raise InputError(
        f"the program has no {kind.__name__} of {sizes[0]:g} rows of table {table.name}; give the"
        " tables that it looks up"
    )
