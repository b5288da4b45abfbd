"""Where on a cluster the groups of a layout lie: the orders of its dimensions that differ in any
group's nodes.

`Layout.order` is which dimension varies fastest over neighbouring ranks. Dimensions of one rank
can stand anywhere, and many orders put every group on as many nodes as another does: such orders
cost the same, and the first of them in the usual order stands for all.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import NamedTuple

from hybridperf.workloads.transformer.groups import Span, span
from hybridperf.workloads.transformer.layout import ORDER, Layouts, Order

_GROUPS = ("tp", "cp", "pp", "data", "ep", "expert_data")
_SHARDED = ("shard", "replica")


class Division(NamedTuple):
    """How ranks are divided: what the nodes of groups depend on, besides the order."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    expert_tp: int
    zero: bool  # whether anything is sharded over data ranks
    shard_ranks: int

    @property
    def columns(self) -> Layouts:
        """As a layout of numbers."""
        return Layouts(
            self.tp, 0, self.pp, 1, self.dp, self.cp, self.ep, self.expert_tp, int(self.zero),
            self.shard_ranks, 1, 1, 0, 0
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    """One order, how many orders mean the same, and the span of each group."""

    division: Division
    order: Order
    alike: int
    spans: Mapping[str, Span]


@functools.lru_cache(maxsize=65536)
def places(division: Division, gpus_per_node: int) -> tuple[Place, ...]:
    """The orders of a division that differ, the usual one first."""
    columns = division.columns
    wide = tuple(name for name in ORDER if name != "ep" and getattr(columns, name) > 1)
    names = _GROUPS + (_SHARDED if division.zero else ())
    found: dict[tuple[Span, ...], list[Order]] = {}
    for chosen in itertools.permutations(wide):
        order = (*chosen, *(name for name in ORDER if name not in chosen))
        order = ORDER if chosen == wide else order
        spans = tuple(span(columns, name, gpus_per_node, order) for name in names)
        found.setdefault(spans, []).append(order)
    return tuple(
        Place(division, orders[0], len(orders), dict(zip(names, spans, strict=True)))
        for spans, orders in found.items()
    )
