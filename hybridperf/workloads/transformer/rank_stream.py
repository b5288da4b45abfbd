"""Lines of work: what each rank of a step does one thing after the other, as nodes of a graph.

A rank computes on one stream and exchanges what its layers wait for (tensor, context, expert
parallelism) on another, in turns: its line. Beside it run reductions of gradients and gathers of
sharded weights (`comm`), and one stream per direction of what is sent to other stages.

A run of steps is either a node per kernel, or composed where the graph would be large: one node for
all its ops and one for all its exchanges (`CallChain`), the same seconds, as a line has no gaps. With a
host, a composed run ends in a node that is launched when all its kernels are, so that the later of
host and device ends it.
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
from hybridperf.workloads.transformer.passes import Step, Steps, flops

EXCHANGE, COMM = "exchange", "comm"


@dataclasses.dataclass(
    frozen=True, eq=False
)  # eq=False: known by identity, as steps are many to compare
class Run:
    """Steps that a rank runs `count` times over."""

    steps: Steps
    count: int
    backward: bool  # launched by the thread of the backward pass

    @functools.cached_property
    def flops(self) -> float:
        return self.count * flops(self.steps)

    @functools.cached_property
    def once(self) -> Run:
        return dataclasses.replace(self, count=1)

    @functools.cached_property
    def without_shards(self) -> Run:
        """Once, without the gathers and scatters that run beside it."""
        return dataclasses.replace(
            self, steps=tuple(step for step in self.steps if step.part != "zero"), count=1
        )


class Lines:
    """Collects a graph and its rows."""

    def __init__(self, host: Host | float | None, each_kernel: bool):
        self.host, self.each_kernel = host, each_kernel
        self.graph, self.calls = GraphBuilder(), dict[Call, int]()
        self.flops = 0.0
        self._last: dict[int, tuple[int, str]] = {}  # of each rank's line: node and stream
        self._waits: dict[int, list[int]] = {}  # for what its next node waits, too
        self._composed: dict[tuple[Run, ...], tuple[int, int, int]] = {}

    def wait(self, rank: int, nodes: Iterable[int]) -> None:
        """What the rank does next comes after these."""
        self._waits.setdefault(rank, []).extend(nodes)

    def run(self, rank: int, runs: tuple[Run, ...], label: str) -> int:
        """Steps on a rank's line; the last node."""
        self.flops += sum(run.flops for run in runs)
        node = -1
        if self.each_kernel:
            for run in runs:
                for step in run.steps * run.count:
                    stream = COMPUTE if step.is_op else EXCHANGE
                    node = self._node(
                        rank, self._row(step), stream, step.name, self._launch(step, run.backward)
                    )
        else:
            ops, exchanges, launched = self._compose(runs, label)
            for row, stream in ((ops, COMPUTE), (exchanges, EXCHANGE)):
                if row:
                    node = self._node(rank, row, stream, label)
            if launched:
                node = self._node(rank, 0, COMPUTE, "launched", launched)
        return node if node >= 0 else self._node(rank, 0, COMPUTE, label)

    def beside(self, rank: int, step: Step, stream: str, after: Sequence[int]) -> int:
        """A step on another stream than the line's."""
        launch = self._launch(step, backward=True)
        return self.graph.op(
            self._row(step),
            label=step.name,
            rank=rank,
            stream=stream,
            after=list(after),
            launch_row=launch,
        )

    def together(
        self, ranks: Sequence[int], step: Step, stream: str, after: Sequence[int] = ()
    ) -> dict[int, int]:
        """A collective among ranks of the graph: an exchange of their lines, or beside them and
        behind `after`.
        """
        if stream == EXCHANGE:
            after = [*after, *(self._last[rank][0] for rank in ranks if rank in self._last)]
        launch = self._launch(step, backward=True)
        nodes = self.graph.collective(
            self._row(step),
            label=step.name,
            ranks=ranks,
            stream=stream,
            after=after,
            launch_row=launch,
        )
        if stream == EXCHANGE:
            self._last |= {rank: (node, stream) for rank, node in nodes.items()}
        return nodes

    def _node(self, rank: int, row: int, stream: str, label: str, launch: int = 0) -> int:
        """The next node of a rank's line."""
        after = self._waits.pop(rank, [])
        last = self._last.get(rank)
        if last is not None and last[1] != stream:
            after.append(last[0])
        node = self.graph.op(
            row, label=label, rank=rank, stream=stream, after=after, launch_row=launch
        )
        self._last[rank] = node, stream
        return node

    def _compose(self, runs: tuple[Run, ...], label: str) -> tuple[int, int, int]:
        """Rows of all ops, of all exchanges, and of what launching them all costs the host; 0 for
        none.
        """
        if runs not in self._composed:
            found = []
            for ops in (True, False):
                times: Counter[int] = Counter()
                for run in runs:
                    for step in run.steps:
                        if step.is_op == ops:
                            times[self._row(step)] += run.count
                found.append(
                    self._known(CallChain(tuple(times.items()), label.split()[0])) if times else 0
                )
            host = self.host
            host_s = (
                0.0
                if host is None
                else sum(
                    run.count * launch_s(host, step, run.backward)
                    for run in runs
                    for step in run.steps
                )
            )
            self._composed[runs] = found[0], found[1], self._seconds(host_s)
        return self._composed[runs]

    def _launch(self, step: Step, backward: bool) -> int:
        return 0 if self.host is None else self._seconds(launch_s(self.host, step, backward))

    def _row(self, step: Step) -> int:
        call = step.call
        return self._known(
            dataclasses.replace(call, issued_apart=True) if isinstance(call, OpCall) else call
        )

    def _known(self, call: Call) -> int:
        return self.calls.setdefault(call, len(self.calls) + 1)

    def _seconds(self, value: float) -> int:
        return self._known(GivenSeconds(round(value, 12))) if value > 0 else 0
