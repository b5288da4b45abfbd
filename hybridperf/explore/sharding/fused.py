"""A placement priced as its ranks run it: one fused kernel over a rank's tables, sharing caches.

On a CPU lookups run one table after the other, as XLA does it.

The sums of `cost.py` take each table's reuse as if it were alone; in one kernel the rows of the
others come between. So the search goes by the sums and what it comes to is priced here, kernel by
kernel.

Axes: T tables, R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import PeakMemory, Workload
from hybridperf.explore.sharding.cost import (
    DIRECTIONS,
    MEMORY,
    SENT,
    PlacementCost,
    PlacementParts,
    options,
)
from hybridperf.model import PerfModel
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.step_table import row_seconds
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import Direction, lookup_calls


class KernelPricer:
    """Prices placements kernel by kernel; a rank that holds the same tables is priced once."""

    def __init__(
        self, cost: PlacementCost, tables: Sequence[Table], model: PerfModel, batch: float,
        optimizer: str,
    ):  # fmt: skip
        self._cost, self._tables, self._model = cost, list(tables), model
        self._batch, self._optimizer = batch, optimizer
        self._known: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, 0.0)}

    def lookup_seconds(self, placement: Sequence[int] | np.ndarray) -> np.ndarray:
        """Forward and backward of each rank [2, R]."""
        held = self._held(placement)
        if new := [some for some in dict.fromkeys(held) if some not in self._known]:
            self._price(new)
        return np.array([self._known[some] for some in held]).T

    def parts(self, placement: Sequence[int] | np.ndarray) -> PlacementParts:
        """Seconds of a step by part under a placement (rank of each table)."""
        forward_s, backward_s = self.lookup_seconds(placement)
        sums = self._cost.sums(placement)
        maxima = forward_s, backward_s, sums[:, SENT], self._cost.by_node(sums)
        return self._cost.parts(*map(np.max, maxima))

    def workload(self, placement: Sequence[int] | np.ndarray) -> Workload:
        """The same as a step for `predict`, which gives its interval."""
        ranks, build, calls = range(self._cost.ranks), GraphBuilder(), list[Call]()
        sums = self._cost.sums(placement)

        def look_up(direction: Direction, after: Mapping[int, int]) -> list[int]:
            nodes = []
            for rank, some in enumerate(self._held(placement)):
                waits, label = [after[rank]] if after else [], f"lookups {direction}"
                for call in self._calls(some, direction):
                    calls.append(call)
                    nodes.append(build.op(len(calls), label=label, rank=rank, after=waits))
            return nodes

        last = look_up("forward", {})
        met: dict[int, int] = {}
        if self._cost.alltoall is not None:
            pairs = np.repeat(sums[:, SENT, None], len(ranks), 1)
            for what, sizes in (("bags", pairs), ("gradients", pairs.T)):
                pair_bytes, label = tuple(map(tuple, sizes.tolist())), f"all-to-all of {what}"
                calls.append(CollectiveCall.between(pair_bytes, self._cost.nodes))
                met = build.collective(len(calls), label=label, ranks=ranks, after=last)
                last = []
        look_up("backward", met)
        fullest = int(sums[:, MEMORY].argmax())
        held = PeakMemory(float(sums[fullest, MEMORY]), f"rank {fullest} holds tables of")
        name = "what placement decides of a step"
        return Workload(name, build.build(), tuple(calls), peak_memory=held)

    def _held(self, placement: Sequence[int] | np.ndarray) -> list[tuple[int, ...]]:
        at = np.asarray(placement)
        return [tuple(np.flatnonzero(at == rank).tolist()) for rank in range(self._cost.ranks)]

    def _calls(self, some: Sequence[int], direction: Direction) -> list[OpCall]:
        """The kernels that look up some tables of a rank."""
        of, calls = options(self._model, direction, self._optimizer), []
        for tables in self._kernels(some):
            beside = [self._tables[at] for at in some if self._tables[at] not in tables]
            of_step = {"beside": beside, "in_step": True, **of}
            calls.append(lookup_calls(tables, self._batch, direction, **of_step))
        return calls

    def _kernels(self, some: Sequence[int]) -> list[list[Table]]:
        """Tables that one kernel looks up together: of one number format."""
        if self._model.device.kind == "cpu":
            return [[self._tables[at]] for at in some]
        by_dtype: dict[str, list[Table]] = {}
        for at in some:
            by_dtype.setdefault(self._tables[at].dtype, []).append(self._tables[at])
        return list(by_dtype.values())

    def _price(self, held: Sequence[tuple[int, ...]]) -> None:
        calls, owner = [], []
        for number, some in enumerate(held):
            for way, direction in enumerate(DIRECTIONS):
                new = self._calls(some, direction)
                calls += new
                owner += [(number, way)] * len(new)
        out = np.zeros((len(held), len(DIRECTIONS)))
        seconds = row_seconds(self._model, calls)
        np.add.at(out, tuple(np.array(owner).T), seconds)
        for some, (forward_s, backward_s) in zip(held, out.tolist(), strict=True):
            self._known[some] = forward_s, backward_s


class SplitTables(NamedTuple):
    """Tables in pieces, and what placements of them cost."""

    pieces: Sequence[Table]
    owners: Sequence[str]
    cost: PlacementCost
    fused: KernelPricer
