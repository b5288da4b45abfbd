"""A step as a model prices it: unique rows, and a graph whose nodes point into them.

Row u of the duration table (from 1; row 0 is always zero) belongs to `calls[u - 1]`: an op, a
collective, seconds that are given, or a chain of such rows. A step repeats the same op on the same
shapes many times, so the table is far shorter than the graph, and pricing it costs little however
deep the model is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex, overload

import numpy as np

from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.engine.graph import Graph
from hybridperf.ops import GROUPS, OpCall, columns

GIVEN, CHAIN = "given", "chain"


class _Kinds(Sequence[str]):
    """Groups of ops, then collectives by name, then seconds by origin; as registered by now."""

    def __len__(self) -> int:
        return len(GROUPS) + len(COLLECTIVES) + 2

    @overload
    def __getitem__(self, at: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: SupportsIndex | slice) -> str | Sequence[str]:
        return (*GROUPS, *COLLECTIVES, GIVEN, CHAIN)[at]


KINDS = _Kinds()  # what a row's seconds are reported under


@dataclasses.dataclass(frozen=True)
class CollectiveCall:
    """A collective of all its ranks; `bytes` per rank, as in tables (`collectives/algorithms`)."""

    collective: str  # our name of it
    bytes: float
    ranks: int
    nodes: int = 1
    # of an all-to-all whose ranks differ: from rank i to rank j [n, n]
    pair_bytes: tuple[tuple[float, ...], ...] | None = None
    words: tuple[tuple[str, str], ...] = ()  # `lib`, `variant`, ... as in tables, where known

    @property
    def ranks_per_node(self) -> int:
        """Most that lie on one node, where they are spread as evenly as whole ranks can be."""
        return -(-self.ranks // self.nodes)

    @staticmethod
    def between(
        pair_bytes: tuple[tuple[float, ...], ...], nodes: int = 1,
        words: tuple[tuple[str, str], ...] = (),
    ) -> CollectiveCall:  # fmt: skip
        """An all-to-all by what each rank sends to each [n, n]."""
        most, ranks = max(sum(row) for row in pair_bytes), len(pair_bytes)
        return CollectiveCall("alltoall", most, ranks, nodes, pair_bytes, words)


@dataclasses.dataclass(frozen=True)
class GivenSeconds:
    """Time that is known without a model: what a host takes to launch, or to read a batch."""

    value: float
    what: str = "host"


@dataclasses.dataclass(frozen=True)
class CallChain:
    """Rows one after the other as one row and one node: a part that is composed, not flattened."""

    # (row, counted from 1, that is none of this kind; how often)
    parts: tuple[tuple[int, int], ...]
    what: str = CHAIN


Call = OpCall | CollectiveCall | GivenSeconds | CallChain


def kind_of(call: Call) -> int:
    """Index into KINDS of what a row's seconds are reported under."""
    if isinstance(call, OpCall):
        return int(call.op.group_index())
    if isinstance(call, CollectiveCall):
        return KINDS.index(call.collective)
    return KINDS.index(CHAIN if isinstance(call, CallChain) else GIVEN)


def call_columns(call: Call) -> dict[str, object]:
    """A row of the duration table as a row of a table for people."""
    if isinstance(call, OpCall):
        return columns(call.op)
    if isinstance(call, CollectiveCall):
        sizes = {"bytes": call.bytes, "n_gpus": call.ranks, "n_nodes": call.nodes}
        return {"op": call.collective, **sizes}
    return {"op": call.what}


class PeakMemory(NamedTuple):
    """The most that a device must hold for a step."""

    bytes: float
    what: str  # "rank 3 holds tables, MLPs and bags of", followed by the bytes
    largest_part: str = ""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One step of work: a graph of calls on streams of ranks; what `hp.predict` prices."""

    name: str
    graph: Graph  # nodes with their rank, stream and what they wait for
    calls: tuple[Call, ...]  # different ops, collectives and given seconds, that nodes refer to
    backend: str | None = None  # kind of device it was compiled for ("cpu", "gpu"); None: any
    flops: float = 0.0  # arithmetic of one step, as counted from the program
    transcendentals: float = 0.0  # exp, log, tanh, ... of one step
    notes: tuple[str, ...] = ()  # what was assumed or left out
    peak_memory: PeakMemory | None = None  # None: not counted
    # standard deviation of the log of the step's seconds beyond the errors of single calls
    deviation: float = 0.0
    given_deviation: float = 0.0  # the same of all given seconds together

    def __repr__(self) -> str:
        nodes, ranks = len(self.graph), len(np.unique(self.graph.rank))
        counts = f"nodes: {nodes:,}, ranks: {ranks:,}, different calls: {len(self.calls):,}"
        flops = f", flops: {self.flops:.4g}" if self.flops else ""
        backend = f", compiled for: {self.backend}" if self.backend else ""
        return f"<Workload: {self.name}; {counts}{flops}{backend}, notes: {len(self.notes)}>"

    def times_run(self) -> np.ndarray:
        """How often the graph runs each row [U], including runs as a part of a chain."""
        times = np.bincount(self.graph.row, minlength=len(self.calls) + 1)[1:]
        for at, call in enumerate(self.calls):
            if isinstance(call, CallChain):
                for row, often in call.parts:
                    times[row - 1] += often * times[at]
                times[at] = 0
        return times
