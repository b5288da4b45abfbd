"""Rank streams: what each rank of a step does one thing after the other, as nodes of a graph.

A rank computes on one stream and exchanges what its layers wait for (tensor, context, expert
parallelism) on another, in turns: its rank stream. Reductions of gradients and gathers of sharded
weights run next to it (`comm`), as does one stream per direction of what is sent to other stages.

A run of steps is either a node per kernel, or composed where the graph would be large: one node for
all its ops and one for all its exchanges (`CallChain`): the same seconds, since it has no gaps.
With a host, a composed run ends in a node that is launched when all its kernels are, so that the
later of host and device ends it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.outputs import COMPUTE
from hybridperf.engine.workload import Call, CallChain, GivenSeconds
from hybridperf.hardware import Host
from hybridperf.ops import OpCall
from hybridperf.workloads.transformer.launching import launch_s
from hybridperf.workloads.transformer.passes import PassStep, Steps, flops

EXCHANGE, COMM = "exchange", "comm"


@dataclasses.dataclass(frozen=True, eq=False)  # known by identity: steps are many to compare
class RepeatedSteps:
    """Steps that a rank runs `count` times over."""

    steps: Steps
    count: int
    backward: bool  # launched by the thread of the backward pass

    @functools.cached_property
    def flops(self) -> float:
        return self.count * flops(self.steps)

    @functools.cached_property
    def once(self) -> RepeatedSteps:
        return dataclasses.replace(self, count=1)

    @functools.cached_property
    def without_shards(self) -> RepeatedSteps:
        """Once, without the gathers and scatters that overlap it."""
        own = tuple(step for step in self.steps if step.part != "zero")
        return dataclasses.replace(self, steps=own, count=1)


class RankStreams:
    """Collects a graph and its rows."""

    def __init__(self, host: Host | float | None, each_kernel: bool):
        self.host, self.each_kernel = host, each_kernel
        self.graph, self.calls = GraphBuilder(), dict[Call, int]()
        self.flops = 0.0
        self._last: dict[int, tuple[int, str]] = {}  # of each rank stream: node and stream
        self._waits: dict[int, list[int]] = {}  # for what its next node waits, too
        self._composed: dict[tuple[RepeatedSteps, ...], tuple[int, int, int]] = {}

    def wait(self, rank: int, nodes: Iterable[int]) -> None:
        """What the rank does next comes after these."""
        self._waits.setdefault(rank, []).extend(nodes)

    def run(self, rank: int, runs: tuple[RepeatedSteps, ...], label: str) -> int:
        """Steps on a rank stream; the last node."""
        self.flops += sum(run.flops for run in runs)
        node = -1
        if self.each_kernel:
            for run in runs:
                for step in run.steps * run.count:
                    stream = COMPUTE if step.is_op else EXCHANGE
                    row, launch = self._row(step), self._launch(step, run.backward)
                    node = self._node(rank, row, stream, step.name, launch)
        else:
            ops, exchanges, launched = self._compose(runs, label)
            for row, stream in ((ops, COMPUTE), (exchanges, EXCHANGE)):
                if row:
                    node = self._node(rank, row, stream, label)
            if launched:
                node = self._node(rank, 0, COMPUTE, "launched", launched)
        return node if node >= 0 else self._node(rank, 0, COMPUTE, label)

    def overlapped(self, rank: int, step: PassStep, stream: str, after: Sequence[int]) -> int:
        """A step on a stream next to the rank stream."""
        launch, row = self._launch(step, backward=True), self._row(step)
        return self.graph.op(
            row, label=step.name, rank=rank, stream=stream, after=list(after), launch_row=launch
        )

    def together(
        self, ranks: Sequence[int], step: PassStep, stream: str, after: Sequence[int] = ()
    ) -> dict[int, int]:
        """A collective among ranks of the graph: an exchange, or behind `after` on a stream."""
        if stream == EXCHANGE:
            after = [*after, *(self._last[rank][0] for rank in ranks if rank in self._last)]
        launch, row = self._launch(step, backward=True), self._row(step)
        nodes = self.graph.collective(
            row, label=step.name, ranks=ranks, stream=stream, after=after, launch_row=launch
        )
        if stream == EXCHANGE:
            self._last |= {rank: (node, stream) for rank, node in nodes.items()}
        return nodes

    def _node(self, rank: int, row: int, stream: str, label: str, launch: int = 0) -> int:
        """The next node of a rank stream."""
        after = self._waits.pop(rank, [])
        last = self._last.get(rank)
        if last is not None and last[1] != stream:
            after.append(last[0])
        node = self.graph.op(
            row, label=label, rank=rank, stream=stream, after=after, launch_row=launch
        )
        self._last[rank] = node, stream
        return node

    def _compose(self, runs: tuple[RepeatedSteps, ...], label: str) -> tuple[int, int, int]:
        """Rows of all ops, of all exchanges, and of what launching them costs; 0 for none."""
        if runs not in self._composed:
            found = []
            for ops in (True, False):
                times: Counter[int] = Counter()
                for run in runs:
                    for step in run.steps:
                        if step.is_op == ops:
                            times[self._row(step)] += run.count
                chain = CallChain(tuple(times.items()), label.split()[0])
                found.append(self._known(chain) if times else 0)
            host, host_s = self.host, 0.0
            if host is not None:
                host_s = sum(
                    run.count * launch_s(host, step, run.backward)
                    for run in runs
                    for step in run.steps
                )
            self._composed[runs] = found[0], found[1], self._seconds(host_s)
        return self._composed[runs]

    def _launch(self, step: PassStep, backward: bool) -> int:
        return 0 if self.host is None else self._seconds(launch_s(self.host, step, backward))

    def _row(self, step: PassStep) -> int:
        call = step.call
        if isinstance(call, OpCall):
            call = dataclasses.replace(call, issued_apart=True)
        return self._known(call)

    def _known(self, call: Call) -> int:
        return self.calls.setdefault(call, len(self.calls) + 1)

    def _seconds(self, value: float) -> int:
        return self._known(GivenSeconds(round(value, 12))) if value > 0 else 0
