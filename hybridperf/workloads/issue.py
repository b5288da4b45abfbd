"""What the host threads of a step's ranks issue, in order: ops of a framework with their kernels,
collectives, copies, waits.

A framework's op costs its host, before, between and after its kernels' launches (`hardware.Host`,
Lin et al.'s T1 to T5):

    between_ops  before_launch  [launch_call  between_launches]  launch_call  after_launch

A kernel is marked as issued apart (`OpCall.issued_apart`): a GPU's model leaves out the launch that
its measurements held. Each kernel's launch holds the host's seconds before it; what follows the
last launch is added to what the rank issues next. Without a host all of this is free: what remains
is what the step takes when a CUDA graph of it is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.outputs import COMM, COMPUTE
from hybridperf.hardware import Host
from hybridperf.model.calls import Call, CollectiveCall, GivenSeconds
from hybridperf.ops import OpCall

COPY = "copy"
KERNEL_CALL, COPY_CALL = "cudaLaunchKernel", "cudaMemcpyAsync"
_COPY_NAMES = ("aten::to",)


@dataclass(frozen=True)
class HostOp:
    """An op of a framework and the kernels it launches."""

    names: tuple[str, ...]  # that its overheads may be kept under: versions differ
    kernels: tuple[Call, ...] = ()
    waits: tuple[int, ...] = ()  # kernels (copies from the host) whose end the host waits for


@dataclass
class StepIssuer:
    """Collects a step. Node ids are the graph's."""

    host: Host | None = None
    graph: GraphBuilder = field(default_factory=GraphBuilder)
    calls: dict[Call, int] = field(default_factory=dict)
    # host seconds after the last launch of each rank
    _owed_s: dict[int, float] = field(default_factory=dict)
    # last node of each rank's stream
    _last: dict[tuple[int, str], int] = field(default_factory=dict)

    def op(self, rank: int, op: HostOp) -> None:
        """An op with its kernels, on the compute stream."""
        self.spend(rank, self._between_ops_s())
        for at, kernel in enumerate(op.kernels):
            self.spend(rank, self._of("between_launches_s" if at else "before_launch_s", op.names))
            self.spend(rank, self._of("launch_call_s", (KERNEL_CALL,)))
            self._node(rank, COMPUTE, kernel, op.names[0], blocking=at in op.waits)
        last = "after_launch_s" if op.kernels else "without_launch_s"
        self.spend(rank, self._of(last, op.names))

    def copy(
        self, rank: int, seconds: float, label: str, *, stream: str = COPY, blocking: bool
    ) -> int:
        """A copy from the host to the device; a blocking one holds the host up."""
        self._spend_copy(rank)
        node = self._node(rank, stream, GivenSeconds(seconds, label), _COPY_NAMES[0], blocking)
        self.spend(rank, self._of("after_launch_s", _COPY_NAMES))
        return node

    def fetch(self, rank: int) -> None:
        """The host reads a number of the device's, after everything on its compute stream."""
        self._spend_copy(rank)
        launch = self._row(self._owed_s.pop(rank, 0.0))
        self._last[rank, COMPUTE] = self.graph.op(
            0, label=_COPY_NAMES[0], rank=rank, launch_row=launch, blocking=True
        )

    def _spend_copy(self, rank: int) -> None:
        before_s = self._between_ops_s() + self._of("before_launch_s", _COPY_NAMES)
        self.spend(rank, before_s + self._of("launch_call_s", (COPY_CALL,)))

    def collective(self, call: CollectiveCall, op: HostOp, ranks: Sequence[int]) -> dict[int, int]:
        """Nodes by rank on the communication streams; it begins when all `ranks` have issued it."""
        for rank in ranks:
            self.spend(rank, self._between_ops_s() + self._of("before_launch_s", op.names))
            self._settle(rank)
        launch = self._row(self._of("launch_call_s", (KERNEL_CALL,)))
        computed = [self._last[rank, COMPUTE] for rank in ranks if (rank, COMPUTE) in self._last]
        row = self.calls.setdefault(call, len(self.calls) + 1)
        nodes = self.graph.collective(
            row, label=op.names[0], ranks=list(ranks), stream=COMM, after=computed,
            launch_row=launch,
        )  # fmt: skip
        for rank in ranks:
            self.spend(rank, self._of("after_launch_s", op.names))
            self._last[rank, COMM] = nodes[rank]
        return nodes

    def wait(self, rank: int, node: int, label: str, *, blocking: bool = False) -> None:
        """What the rank computes next comes after `node`; `blocking`: its host too."""
        self._settle(rank)
        self._last[rank, COMPUTE] = self.graph.op(
            0, label=label, rank=rank, stream=COMPUTE, after=[node], blocking=blocking
        )

    def spend(self, rank: int, seconds: float) -> None:
        """The rank's host is busy for so long before what it issues next."""
        self._owed_s[rank] = self._owed_s.get(rank, 0.0) + seconds

    def load(self, rank: int, seconds: float) -> None:
        """The rank's host has its batch only after so long."""
        self.spend(rank, seconds)
        self._settle(rank, "loading")

    def finish(self) -> None:
        """Hosts are done with what they issued."""
        for rank in list(self._owed_s):
            self._settle(rank)

    def _node(self, rank: int, stream: str, call: Call, label: str, blocking: bool) -> int:
        if isinstance(call, OpCall):
            call = replace(call, issued_apart=True)
        row = self.calls.setdefault(call, len(self.calls) + 1)
        launch = self._row(self._owed_s.pop(rank, 0.0))
        node = self.graph.op(
            row, label=label, rank=rank, stream=stream, launch_row=launch, blocking=blocking
        )
        self._last[rank, stream] = node
        return node

    def _settle(self, rank: int, label: str = "host") -> None:
        if owed_s := self._owed_s.pop(rank, 0.0):
            self.graph.op(0, label=label, rank=rank, launch_row=self._row(owed_s))

    def _row(self, seconds: float) -> int:
        if seconds <= 0:
            return 0
        return self.calls.setdefault(GivenSeconds(round(seconds, 12)), len(self.calls) + 1)

    def _between_ops_s(self) -> float:
        if self.host is None or self.host.between_ops_s is None:
            return 0.0
        return self.host.between_ops_s.mean_s

    def _of(self, overhead: str, names: Sequence[str]) -> float:
        return 0.0 if self.host is None else self.host.seconds(overhead, names)
