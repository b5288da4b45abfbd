"""One Workload of the programs that ranks run together: each rank's ops in order, and collectives.

XLA compiles one program for all devices of a mesh, so that all ranks run the same one; where they
differ (each process compiled its own, with its own embedding tables in it) every rank's is given.
The k-th collective of one rank is that of all others.

A training loop runs a step after the other and ranks wait for each other in collectives only, not
between steps. So the time from step to step is that of a graph in which what follows the last
collective of a step comes first:

    rank 0    [after the last one, before the first one]  collective  [...]  collective
    rank 1    [after the last one, before the first one]      "       [...]      "

Where programs have no collective, or `loop` is off, ranks start a step together and it ends with
the last of them.

A program says how many rows it gathers from how large a table and not which: its lookups count as
uniform. Where the tables of a rank are known with their access distributions, the gather into each
table's bags and the scatter of its gradients are found by their sizes and priced as embedding bags
of that table alone: XLA goes through one table after the other, so that only lookups of the same
table come between two of a row. (Taken for one kernel over all tables, updates came out 1.4 times
too slow.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.ops import Gather, OpCall, ScatterAdd
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import Direction, lookup_calls
from hybridperf.workloads.placement import plain
from hybridperf.workloads.programs.jax.hlo_collectives import matched
from hybridperf.workloads.programs.jax.program import OpChain, read_program

# what a rank runs before, between and after its collectives
Segments = list[list[tuple[str, Call]]]
_LOOKED_UP: tuple[tuple[type[Gather | ScatterAdd], Direction], ...] = (
    (Gather, "forward"),
    (ScatterAdd, "backward"),
)


def from_rank_programs(
    contents: Sequence[Mapping[str, Any]], *, name: str = "", loop: bool = True,
    tables: Sequence[RankTables] = (), ignore: Collection[str] = (),
) -> Workload:  # fmt: skip
    """Workload of ranks that run these programs.

    Args:
        contents: what `program` made for ranks 0, 1, ...; one given alone is run by all its ranks.
        name: of the workload; that of the first program by default.
        loop: steps follow each other, as in training.
        tables: of each rank, where their access distributions are known (`table_access` below).
        ignore: opcodes or custom-call targets to leave out.

    Raises:
        InputError: the programs' collectives do not fit together.
    """
    if not contents:
        raise InputError("expected the program of each rank, got none")
    if len({content["backend"] for content in contents}) > 1:
        raise InputError(
            "the ranks' programs were compiled for different kinds of devices; compile them on one"
        )
    chains = [read_program(content, ignore=ignore) for content in contents]
    if tables:
        chains = [with_access(chain, held) for chain, held in zip(chains, tables, strict=True)]
    if len(chains) == 1:
        ranks = max((call.ranks for _, call in chains[0].collectives), default=1)
        chains, contents = chains * ranks, [contents[0]] * ranks
    names = [str(content["name"]) for content in contents]
    collectives = [chain.collectives for chain in chains]
    meetings = matched([[call for _, call in of_rank] for of_rank in collectives], names)
    segments = [_segments(chain) for chain in chains]
    if loop and meetings:
        segments = [[[*of_rank[-1], *of_rank[0]], *of_rank[1:-1]] for of_rank in segments]

    builder, rows = GraphBuilder(), dict[Call, int]()  # unique rows of durations, from 1
    for at in range(len(segments[0])):
        for rank, of_rank in enumerate(segments):
            for label, call in of_rank[at]:
                builder.op(rows.setdefault(call, len(rows) + 1), label=label, rank=rank)
        if at < len(meetings):
            row, together = rows.setdefault(meetings[at], len(rows) + 1), range(len(chains))
            builder.collective(row, label=collectives[0][at][0], ranks=together, stream="compute")
    return Workload(
        name=name or names[0], graph=builder.build(), calls=tuple(rows),
        backend=contents[0]["backend"], flops=sum(chain.count.flops for chain in chains),
        transcendentals=sum(chain.count.transcendentals for chain in chains),
        notes=tuple(dict.fromkeys(note for chain in chains for note in chain.notes)),
    )  # fmt: skip


def _segments(chain: OpChain) -> Segments:
    segments: Segments = [[]]
    for label, call in chain.nodes:
        if isinstance(call, CollectiveCall):
            segments.append([])
        else:
            segments[-1].append((label, call))
    return segments


@dataclasses.dataclass(frozen=True)
class RankTables:
    """Tables that lie on one rank, and the samples of a batch of all ranks together."""

    tables: Sequence[Table]
    batch: float


def with_access(chain: OpChain, held: RankTables) -> OpChain:
    """The chain with one op per table's lookups and updates; `InputError` for a table it lacks."""
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
            nodes[at] = (nodes[at][0], plain(call))
    return dataclasses.replace(chain, nodes=tuple(nodes))


def _find(
    nodes: Sequence[tuple[str, Call]], kind: type[Gather | ScatterAdd], table: Table, batch: float,
    taken: Sequence[int],
) -> int:  # fmt: skip
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
