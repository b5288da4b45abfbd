"""Rank streams: what each rank of a step does one thing after the other, as nodes of a graph.

A rank computes on one stream and exchanges what its layers wait for (tensor, context, expert
parallelism) on another, in turns: its rank stream. Reductions of gradients and gathers of sharded
weights run next to it (`comm`), and so do sums of shards over their copies (`replicas`) and what is
sent to other stages, a stream per direction.

A run of steps is either a node per kernel, or composed where the graph would be large: one node for
all its ops and one for all its exchanges (`CallChain`): the same seconds, since it has no gaps.
With a host, a run begins with a launch and ends in a node that is launched when all its kernels
are, so that the later of host and device ends it. What a traced host needs to launch a step's
kernels goes by the names of its framework's overheads (`launch_s`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence

import hybridperf.ops as ops
from hybridperf.engine.graph import COMPUTE, GraphBuilder
from hybridperf.hardware import Host
from hybridperf.model.calls import Call, CallChain, Exposed, GivenSeconds, StepPlace
from hybridperf.workloads.transformer.in_step import (
    call_in_step,
    inside_a_node,
    place_of,
    priced_call,
)
from hybridperf.workloads.transformer.passes import SHARDED, PassStep, Steps, flops

EXCHANGE, COMM, REPLICAS = "exchange", "comm", "replicas"
BELIEVED = "believed"  # a host that launches as the model's step effects say
_Row = tuple[Call, StepPlace]


@dataclasses.dataclass(frozen=True, eq=False)  # known by identity: steps are many to compare
class RepeatedSteps:
    """Steps that a rank runs `count` times over."""

    steps: Steps
    count: int
    backward: bool  # launched by the thread of the backward pass
    block: str = ""  # "layer" or "outer": whose correction counts
    # what the host waits for, each time, before it launches them: role and how often
    waits: tuple[tuple[str, float], ...] = ()
    shown: Steps = ()  # parts of overlapped gathers that hold the rank up all the same

    @functools.cached_property
    def flops(self) -> float:
        return self.count * flops(self.steps)

    @functools.cached_property
    def once(self) -> RepeatedSteps:
        return dataclasses.replace(self, count=1)

    @functools.cached_property
    def without_shards(self) -> RepeatedSteps:
        """Once, without the gathers and scatters that overlap it."""
        own = tuple(step for step in self.steps if step.part not in SHARDED)
        inside = ((one, inside_a_node(one.collective)) for one in self.steps if one.part in SHARDED)
        shown = tuple(dataclasses.replace(one, call=part) for one, part in inside if part)
        return dataclasses.replace(self._but(own), count=1, shown=shown)

    @functools.cached_property
    def without_exchanges(self) -> RepeatedSteps:
        """Without messages of experts, which are launched elsewhere."""
        return self._but(tuple(step for step in self.steps if step.part != "ep"))

    def _but(self, own: Steps) -> RepeatedSteps:
        """With these steps alone; its host launches the others, too."""
        launched = (("collective_launch", float(len(self.steps) - len(own))),)
        waits = (*self.waits, *launched) if len(own) < len(self.steps) else self.waits
        return dataclasses.replace(self, steps=own, waits=waits)


class RankStreams:
    """Collects a graph and its rows.

    `host`: seconds per launch, the overheads of a traced host, BELIEVED, or None for none.
    """

    def __init__(self, host: Host | float | str | None, each_kernel: bool, framework: str = ""):
        self.host, self.each_kernel, self.framework = host, each_kernel, framework
        self.graph, self.rows = GraphBuilder(), dict[_Row, int]()
        self.flops = 0.0
        self._last: dict[int, tuple[int, str]] = {}  # of each rank stream: node and stream
        self._waits: dict[int, list[int]] = {}  # for what its next node waits, too
        self._running: dict[int, Steps] = {}  # the repeated steps of each rank
        self._composed: dict[RepeatedSteps, tuple[int, ...]] = {}

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls of all rows, in the order of the rows."""
        return tuple(call for call, _ in self.rows)

    @property
    def places(self) -> tuple[StepPlace, ...]:
        """Places in the step of all rows, in the order of the rows."""
        return tuple(place for _, place in self.rows)

    def wait(self, rank: int, nodes: Iterable[int]) -> None:
        """What the rank does next comes after these."""
        self._waits.setdefault(rank, []).extend(nodes)

    def hold(self, rank: int, nodes: Sequence[int] = ()) -> None:
        """What the rank does and its host launches next comes after these and all that it did."""
        self.wait(rank, nodes)
        if self.host is not None:
            self._node(rank, 0, COMPUTE, "awaited", blocking=True)

    def spend(self, rank: int, role: str, times: float, label: str) -> int:
        """Time that a rank stream loses."""
        row = self._row(GivenSeconds(0.0, label), StepPlace(role, times))
        return self._node(rank, row, COMPUTE, label)

    def spend_beside(
        self, rank: int, role: str, times: float, label: str, after: Sequence[int]
    ) -> int:
        """Time that what travels next to a rank stream loses."""
        row = self._row(GivenSeconds(0.0, label), StepPlace(role, times))
        return self.graph.op(row, label=label, rank=rank, stream=COMM, after=list(after))

    def slowed(self, rank: int, step: PassStep, role: str) -> int:
        """What a rank stream loses to a message beside it, as a role says of its seconds."""
        row = self._row(call_in_step(step.call), StepPlace(role))
        return self._node(rank, row, EXCHANGE, f"slowed by {step.name}")

    def run(self, rank: int, runs: tuple[RepeatedSteps, ...], label: str) -> int:
        """Steps on a rank stream; the last node.

        The host runs ahead among repeated steps and no further.
        """
        self.flops += sum(run.flops for run in runs)
        node = -1
        for run in runs:
            if self._running.get(rank) is not run.steps:
                self.hold(rank)
                self._running[rank] = run.steps
            ops, exchanges, first, launched = self._compose(run, label)
            nodes = [(ops, COMPUTE, label), (exchanges, EXCHANGE, label)]
            if self.each_kernel:
                nodes = self._kernels(run) * run.count
            for row, stream, name in nodes:
                if row:
                    node = self._node(rank, row, stream, name, first)
                    first = 0
            if launched:
                node = self._node(rank, 0, COMPUTE, "launched", launched)
        return node if node >= 0 else self._node(rank, 0, COMPUTE, label)

    def _kernels(self, run: RepeatedSteps) -> list[tuple[int, str, str]]:
        """Row, stream and name of each kernel of a run, once."""
        shown = [
            (self._row(*_shown(step, run)), EXCHANGE, f"shown of {step.name}") for step in run.shown
        ]
        return shown + [
            (self._step_row(step, run), COMPUTE if step.is_op else EXCHANGE, step.name)
            for step in run.steps
        ]

    def overlapped(self, rank: int, step: PassStep, stream: str, after: Sequence[int]) -> int:
        """A step on a stream next to the rank stream; the host has issued it long before."""
        row = self._row(*self._placed(step, RepeatedSteps((step,), 1, backward=True)))
        return self.graph.op(row, label=step.name, rank=rank, stream=stream, after=list(after))

    def together(
        self, ranks: Sequence[int], step: PassStep, stream: str, after: Sequence[int] = ()
    ) -> dict[int, int]:
        """A collective among ranks of the graph: an exchange, or behind `after` on a stream."""
        if stream == EXCHANGE:
            after = [*after, *(self._last[rank][0] for rank in ranks if rank in self._last)]
        run = RepeatedSteps((step,), 1, backward=True)
        row, launch = self._row(*self._placed(step, run)), self._launch_row(step, run)
        nodes = self.graph.collective(
            row, label=step.name, ranks=ranks, stream=stream, after=after, launch_row=launch
        )
        if stream == EXCHANGE:
            self._last |= {rank: (node, stream) for rank, node in nodes.items()}
        return nodes

    def _node(
        self, rank: int, row: int, stream: str, label: str, launch: int = 0, blocking: bool = False
    ) -> int:
        """The next node of a rank stream."""
        waits = self._waits.pop(rank, [])
        last = self._last.get(rank)
        if last is not None and last[1] != stream:
            waits.append(last[0])
        node = self.graph.op(
            row, label=label, rank=rank, stream=stream, after=waits, launch_row=launch,
            blocking=blocking,
        )  # fmt: skip
        self._last[rank] = node, stream
        return node

    def _compose(self, run: RepeatedSteps, label: str) -> tuple[int, ...]:
        """Rows of all ops, of all exchanges, of the first launch and of all others; 0 for none."""
        if run not in self._composed:
            found = []
            for ops in (True, False):
                mine = [self._step_row(one, run) for one in run.steps if one.is_op == ops]
                mine += [] if ops else [self._row(*_shown(one, run)) for one in run.shown]
                found.append(self._chain(mine, run, label))
            rows = [self._launch_row(step, run) for step in run.steps]
            first = next(filter(None, rows), 0)
            block = "host" if run.block == "layer" else run.block
            rows += [
                self._row(GivenSeconds(0.0), StepPlace(role, times, block))
                for role, times in (run.waits if self.host is not None else ())
            ]
            found += [first, self._chain(filter(None, rows), run, "launched", but=first)]
            self._composed[run] = tuple(found)
        return self._composed[run]

    def _chain(self, rows: Iterable[int], run: RepeatedSteps, label: str, but: int = 0) -> int:
        """A row of all these, as often as they run, `but` one of one of them; 0 for none."""
        times = Counter({row: run.count * often for row, often in Counter(rows).items()})
        parts = tuple((+(times - Counter([but]))).items())
        return self._row(CallChain(parts, label.split()[0]), StepPlace()) if parts else 0

    def _step_row(self, step: PassStep, run: RepeatedSteps) -> int:
        """The row of a step; of a message beside an op, of what outlasts it."""
        row = self._row(*self._placed(step, run))
        if step.beside is None:
            return row
        place = StepPlace("attention", 0.0, run.block)
        beside = self._row(call_in_step(step.beside), place)
        return self._row(Exposed(row, beside, step.collective.collective), StepPlace())

    def _placed(self, step: PassStep, run: RepeatedSteps) -> _Row:
        return priced_call(step), place_of(step, self.framework, run.block)

    def _launch_row(self, step: PassStep, run: RepeatedSteps) -> int:
        block = "host" if run.block == "layer" else run.block
        if self.host is None:
            return 0
        if not isinstance(self.host, str):
            seconds = round(launch_s(self.host, step, run.backward), 12)
            return self._row(GivenSeconds(seconds), StepPlace(block=block)) if seconds else 0
        if not step.is_op:
            block = "" if step.part in (*SHARDED, "dp") else block
            return self._row(GivenSeconds(0.0), StepPlace("collective_launch", 1.0, block))
        if run.backward:  # so many times two effects' product
            role = StepPlace("backward_launch", 1.0, block)
            return self._row(GivenSeconds(float(step.kernels)), role)
        return self._row(GivenSeconds(0.0), StepPlace("launch", float(step.kernels), block))

    def _row(self, call: Call, place: StepPlace) -> int:
        return self.rows.setdefault((call, place), len(self.rows) + 1)


def _shown(step: PassStep, run: RepeatedSteps) -> _Row:
    return step.call, StepPlace("gather_shown", 1.0, run.block)


KERNEL_CALL = "cudaLaunchKernel"
_Names = tuple[tuple[str, ...], tuple[str, ...]]  # forward and backward; versions differ in names
_LINEAR = ("aten::linear", "aten::addmm", "aten::mm")
_LINEAR_BACKWARD = ("AddmmBackward0", "MmBackward0", "AddmmBackward", "MmBackward")
_NORM: _Names = (("aten::layer_norm", "aten::native_layer_norm"), ("NativeLayerNormBackward0",))
_NAMES: dict[type, _Names] = {
    ops.Gemm: (_LINEAR, _LINEAR_BACKWARD),
    ops.BatchedGemm: (("aten::bmm", "aten::baddbmm"), ("BmmBackward0", "BmmBackward")),
    ops.Norm: _NORM,
    ops.RmsNorm: _NORM,
    ops.Softmax: (("aten::softmax", "aten::_softmax"), ("SoftmaxBackward0",)),
    ops.Gather: (("aten::embedding", "aten::index"), ("EmbeddingBackward0",)),
    ops.ScatterAdd: (("aten::embedding",), ("EmbeddingBackward0",)),
    ops.Reduction: (("aten::sum",), ("aten::sum",)),
    ops.Copy: (("aten::copy_", "aten::cat"), ("aten::copy_", "aten::cat")),
    ops.OptimizerUpdate: (("Optimizer.step#Adam.step", "aten::add_"),) * 2,
}
_OTHERS: _Names = (("aten::mul", "aten::add"), ("MulBackward0", "MulBackward"))
_COLLECTIVES = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "all_gather": ("c10d::_allgather_base_", "nccl:all_gather"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:reduce_scatter"),
    **dict.fromkeys(
        ("alltoall", "dispatch", "combine"), ("c10d::alltoall_base_", "nccl:all_to_all")
    ),
    "sendrecv": ("c10d::send", "nccl:send"),
}


def launch_s(host: Host | float, step: PassStep, backward: bool) -> float:
    """Seconds the host spends on a step: between ops, before, in and after each launch.

    Args:
        host: a traced host, or the seconds of each launch.
        step: what is launched.
        backward: by the thread of the backward pass, whose ops have other names.
    """
    if not isinstance(host, Host):
        return host * step.kernels
    if step.is_op:
        names = _NAMES.get(type(step.op), _OTHERS)[backward]
    else:
        names = _COLLECTIVES[step.collective.collective]
    between_s = 0.0 if host.between_ops_s is None else host.between_ops_s.mean_s
    call_s = host.seconds("launch_call_s", (KERNEL_CALL,))
    more_s = (step.kernels - 1) * (host.seconds("between_launches_s", names) + call_s)
    before_s = host.seconds("before_launch_s", names)
    return between_s + before_s + call_s + more_s + host.seconds("after_launch_s", names)
