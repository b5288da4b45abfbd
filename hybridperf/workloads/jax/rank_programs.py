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
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Call, CollectiveCall, Workload
from hybridperf.io import InputError
from hybridperf.workloads.jax.hlo_collectives import matched
from hybridperf.workloads.jax.program import CallRows, OpChain, read_program
from hybridperf.workloads.jax.table_access import RankTables, with_access

# what a rank runs before, between and after its collectives
Segments = list[list[tuple[str, Call]]]


def from_rank_programs(
    contents: Sequence[Mapping[str, Any]],
    *,
    name: str = "",
    loop: bool = True,
    tables: Sequence[RankTables] = (),
    ignore: Collection[str] = (),
) -> Workload:
    """Workload of ranks that run these programs.

    Args:
        contents: what `program` made for ranks 0, 1, ...; one given alone is run by all its ranks.
        name: of the workload; that of the first program by default.
        loop: steps follow each other, as in training.
        tables: of each rank, where their access distributions are known (`table_access`).
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
        collectives = (call for _, call in chains[0].nodes if isinstance(call, CollectiveCall))
        ranks = max((call.ranks for call in collectives), default=1)
        chains, contents = chains * ranks, [contents[0]] * ranks
    names = [str(content["name"]) for content in contents]
    meetings = matched(
        [[call for _, call in chain.nodes if isinstance(call, CollectiveCall)] for chain in chains],
        names,
    )
    labels = [label for label, call in chains[0].nodes if isinstance(call, CollectiveCall)]
    segments = [_segments(chain) for chain in chains]
    if loop and meetings:
        segments = [[[*of_rank[-1], *of_rank[0]], *of_rank[1:-1]] for of_rank in segments]

    builder, rows = GraphBuilder(), CallRows()
    for at in range(len(segments[0])):
        for rank, of_rank in enumerate(segments):
            for label, call in of_rank[at]:
                builder.op(rows.row(call), label=label, rank=rank)
        if at < len(meetings):
            builder.collective(
                rows.row(meetings[at]), label=labels[at], ranks=range(len(chains)), stream="compute"
            )
    return Workload(
        name=name or names[0],
        graph=builder.build(),
        calls=rows.calls,
        backend=contents[0]["backend"],
        flops=sum(chain.count.flops for chain in chains),
        transcendentals=sum(chain.count.transcendentals for chain in chains),
        notes=tuple(dict.fromkeys(note for chain in chains for note in chain.notes)),
    )


def _segments(chain: OpChain) -> Segments:
    segments: Segments = [[]]
    for label, call in chain.nodes:
        if isinstance(call, CollectiveCall):
            segments.append([])
        else:
            segments[-1].append((label, call))
    return segments
