"""A placement priced as its ranks run it: one fused kernel over all tables of a rank, whose rows
share the caches; on a CPU one table after the other, as XLA does it.

The sums of `cost.py` take each table's reuse as if it were alone; in one kernel the rows of the
others come between. So the search goes by the sums and what it comes to is priced here, kernel by
kernel.

Axes: T tables, R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Call, CollectiveCall, Held, Workload
from hybridperf.explore.sharding.cost import MEMORY, SENT, Cost, Parts
from hybridperf.explore.sharding.lookups import DIRECTIONS, options
from hybridperf.model import PerfModel
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import Direction, lookup_calls


class Fused:
    """Prices placements kernel by kernel; a rank that holds the same tables is priced once."""

    def __init__(
        self, cost: Cost, tables: Sequence[Table], model: PerfModel, batch: float, optimizer: str
    ):
        self._cost, self._tables, self._model, self._batch, self._optimizer = (
            cost,
            list(tables),
            model,
            batch,
            optimizer,
        )
        self._known: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, 0.0)}

    def lookup_seconds(self, placement: Sequence[int] | np.ndarray) -> np.ndarray:
        """Forward and backward of each rank [2, R]."""
        held = self._held(placement)
        if new := [some for some in dict.fromkeys(held) if some not in self._known]:
            self._price(new)
        return np.array([self._known[some] for some in held]).T

    def parts(self, placement: Sequence[int] | np.ndarray) -> Parts:
        """What a step consists of."""
        forward_s, backward_s = self.lookup_seconds(placement)
        sent = self._cost.sums(placement)[:, SENT]
        return self._cost.parts(
            forward_s.max(),
            backward_s.max(),
            sent.max(),
            sent.reshape(self._cost.nodes, -1).sum(1).max(),
        )

    def workload(self, placement: Sequence[int] | np.ndarray) -> Workload:
        """The same as a step that `predict` takes, which says how sure it is."""
        ranks, build, calls = range(self._cost.ranks), GraphBuilder(), list[Call]()
        sums = self._cost.sums(placement)

        def look_up(direction: Direction, after: Mapping[int, int]) -> list[int]:
            nodes = []
            for rank, some in enumerate(self._held(placement)):
                for call in self._calls(some, direction):
                    calls.append(call)
                    waits = [after[rank]] if after else []
                    nodes.append(
                        build.op(len(calls), label=f"lookups {direction}", rank=rank, after=waits)
                    )
            return nodes

        last = look_up("forward", {})
        met: dict[int, int] = {}
        if self._cost.alltoall is not None:
            pairs = np.repeat(sums[:, SENT, None], len(ranks), 1)
            for label, sizes in (("bags", pairs), ("gradients", pairs.T)):
                calls.append(
                    CollectiveCall.between(tuple(map(tuple, sizes.tolist())), self._cost.nodes)
                )
                met = build.collective(
                    len(calls), label=f"all-to-all of {label}", ranks=ranks, after=last
                )
                last = []
        look_up("backward", met)
        fullest = int(sums[:, MEMORY].argmax())
        held = Held(float(sums[fullest, MEMORY]), f"rank {fullest} holds tables of")
        return Workload("what placement decides of a step", build.build(), tuple(calls), held=held)

    def _held(self, placement: Sequence[int] | np.ndarray) -> list[tuple[int, ...]]:
        """Tables of each rank."""
        at = np.asarray(placement)
        return [tuple(np.flatnonzero(at == rank).tolist()) for rank in range(self._cost.ranks)]

    def _calls(self, some: Sequence[int], direction: Direction) -> list[OpCall]:
        """The kernels that look up some tables of a rank."""
        of, found = options(self._model, direction, self._optimizer), []
        for tables in self._kernels(some):
            beside = [self._tables[at] for at in some if self._tables[at] not in tables]
            found.append(
                lookup_calls(tables, self._batch, direction, beside=beside, in_step=True, **of)
            )
        return found

    def _kernels(self, some: Sequence[int]) -> list[list[Table]]:
        """Tables that one kernel looks up together: of one number format."""
        if self._model.device.kind == "cpu":
            return [[self._tables[at]] for at in some]
        dtypes = dict.fromkeys(self._tables[at].dtype for at in some)
        return [
            [self._tables[at] for at in some if self._tables[at].dtype == dtype] for dtype in dtypes
        ]

    def _price(self, held: Sequence[tuple[int, ...]]) -> None:
        calls, owner = [], []
        for number, some in enumerate(held):
            for way, direction in enumerate(DIRECTIONS):
                new = self._calls(some, direction)
                calls += new
                owner += [(number, way)] * len(new)
        out = np.zeros((len(held), len(DIRECTIONS)))
        np.add.at(out, tuple(np.array(owner).T), self._model.op_seconds(self._model.table(calls)))
        self._known |= {
            some: (float(both[0]), float(both[1])) for some, both in zip(held, out, strict=True)
        }
