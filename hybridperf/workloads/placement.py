"""Who holds which part of which table, and what ranks send each other for it.

R ranks, g = R / nodes of them in a node, B samples of which each rank owns b = B / R; table t gives
D_t numbers per sample.

    table      the whole table on one rank: it looks up all B samples and sends rank j its b of them
    column     D_t / n columns on each of n ranks, each as a table of its own
    row        rows dealt out to n ranks (`embedding/pieces.py`: the first has the hottest): each
               sums those of a sample that it holds, and partial sums are added up, on all R ranks
               by a reduce-scatter, on fewer by an all-to-all and a sum where they arrive
    table_row  rows over the g ranks of one node: a reduce-scatter within it, then all-to-all with
               the ranks in the same place of each node
    data       a copy on each rank, which looks up its own b samples; gradients are all-reduced with
               those of the MLPs

On one rank all are a whole table: there is nothing to exchange or to sum up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from hybridperf.io import InputError
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table, row_pieces

Kind = Literal["table", "row", "column", "data", "table_row"]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which ranks hold an embedding table, and how it is split among them.

    Args:
        kind: "table": whole on one rank; "row" or "column": its rows or columns split evenly;
            "table_row": its rows split over all ranks of one node; "data": a copy on each rank.
        ranks: numbers of the ranks, from 0; empty: all ranks.
    """

    kind: Kind
    ranks: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Shard:
    """What one rank holds of one table."""

    table: Table  # with the rows, columns and pooling that are here
    rank: int
    kind: Kind
    of: int  # number of the table


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of one direction of a step's exchange of bags: forward; backward goes the other way."""

    # from rank to rank in the all-to-all [R, R], what stays at home on the diagonal
    pairs: np.ndarray
    # all-to-one partial sums of row-wise tables over all ranks: a reduce-scatter's input
    scattered_bytes: float
    node_bytes: tuple[float, ...]  # the same within each node, of tables dealt out over it
    summed_bytes: float  # partial sums that each rank adds up after the all-to-all


def shards(
    tables: Sequence[Table], placement: Sequence[Placement], ranks: int, nodes: int
) -> list[Shard]:
    """All shards of all tables; `InputError` that names the table whose placement cannot be."""
    found: list[Shard] = []
    each = f"expected a placement for each of the {len(tables)} tables"
    require(len(placement) == len(tables), f"{each}, got {len(placement)}")
    for of, (table, place) in enumerate(zip(tables, placement, strict=True)):
        listed = isinstance(place.ranks, Sequence) and not isinstance(place.ranks, str)
        placed = f"table {table.name} is placed on ranks {place.ranks!r}"
        require(listed, f"{placed}, expected a tuple of them, as (0,) or (0, 1)")
        holders = tuple(place.ranks) or tuple(range(ranks))
        _check(table, place, holders, ranks, nodes)
        n = len(holders)
        parts = [table] * n
        if place.kind == "column":
            parts = [dataclasses.replace(table, dim=table.dim // n)] * n
        elif place.kind in ("row", "table_row"):
            parts = row_pieces(table, n)
        kind: Kind = "table" if n == 1 else place.kind
        found += [Shard(part, rank, kind, of) for part, rank in zip(parts, holders, strict=True)]
    return found


def traffic(
    held: Sequence[Shard], batch: float, ranks: int, nodes: int, element_bytes: float | None = None
) -> Traffic:
    """What the shards make ranks send in the forward pass.

    Args:
        held: all shards.
        batch: samples of all ranks.
        ranks, nodes: in all.
        element_bytes: of a bag's numbers; None: those of its table's.
    """
    pairs, own, per_node = np.zeros((ranks, ranks)), batch / ranks, ranks // nodes
    scattered, summed, by_node = 0.0, 0.0, np.zeros(nodes)
    holders: dict[int, int] = {}
    for shard in held:
        holders[shard.of] = holders.get(shard.of, 0) + 1
    for shard in held:
        bag = shard.table.row_bytes if element_bytes is None else shard.table.dim * element_bytes
        if shard.kind in ("table", "column"):
            pairs[shard.rank] += own * bag
        elif shard.kind == "row" and holders[shard.of] == ranks:
            scattered += batch * bag / ranks
        elif shard.kind == "row":
            pairs[shard.rank] += own * bag
            summed += own * bag
        elif shard.kind == "table_row":
            by_node[shard.rank // per_node] += batch * bag / per_node
            pairs[shard.rank, shard.rank % per_node :: per_node] += own * bag
    return Traffic(pairs, scattered, tuple(by_node.tolist()), summed)


def plain(call: OpCall) -> OpCall:
    """A lookup with its dimensions as plain numbers, by which rows of durations are told apart."""
    names = call.op.dimensions()
    numbers: dict[str, Any] = {name: float(getattr(call.op, name)) for name in names}
    return dataclasses.replace(call, op=dataclasses.replace(call.op, **numbers))


def require(holds: object, sentence: str) -> None:
    """`InputError` with a sentence unless something holds."""
    if not holds:
        raise InputError(sentence)


def _check(
    table: Table, place: Placement, holders: tuple[int, ...], ranks: int, nodes: int
) -> None:
    named, n, per_node = f"table {table.name}", len(holders), ranks // nodes
    kinds, listed = ", ".join(get_args(Kind)), list(holders)
    known = isinstance(place.kind, str) and place.kind in get_args(Kind)
    require(known, f"{named} is placed {place.kind!r}, expected one of {kinds}")
    whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in holders)
    different = whole and len(set(holders)) == n and all(0 <= rank < ranks for rank in holders)
    placed = f"{named} is placed on ranks {listed}"
    require(different, f"{placed}, expected different ones of 0 to {ranks - 1}")
    expected = {
        "table": (
            n == 1, f"{named} is placed whole on {n} ranks, expected one; name it as ranks=(r,)",
        ),
        "data": (
            n == ranks,
            f"{named} is copied to {n} of {ranks} ranks, expected all; leave its ranks out",
        ),
        "column": (
            table.dim % n == 0,
            f"{named} has {table.dim} columns, which do not divide into {n} ranks; choose fewer",
        ),
        "table_row": (
            n == per_node and len({rank // per_node for rank in holders}) == 1,
            f"{named} is dealt out over ranks {listed}, expected all {per_node} of one node",
        ),
    }  # fmt: skip
    require(*expected.get(place.kind, (True, "")))
