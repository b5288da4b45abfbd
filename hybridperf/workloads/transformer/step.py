"""A whole training step as a graph: stages of a pipeline, micro-batches in their schedule's order, collectives, optimizer.

Ranks of the graph are the pipeline's stages. Tensor, sequence, context, expert and data peers of a stage do the same at the same time: one
stands for all, and their collectives are priced by size. Streams of a rank: compute (with all collectives that a layer waits for), comm
(reductions of gradients, gathers of sharded weights), one per direction of what is sent to other stages.

A task of the schedule, a stage's forward or backward of one micro-batch, is a chain of kernels. Where the graph would be large, equal calls
of a chain are one node that runs several times: the same seconds, as a chain has no gaps. With a host such a chain ends in a node that is
launched when all of its kernels are: the later of the two ends it.

    gradients   reduced in buckets beside the last micro-batch's backward (`overlap_gradients`), or in one piece behind it
    ZeRO-2, 3   each layer's weights are gathered while the layer before it computes, no earlier: two layers' weights at a time; its
                gradients are scattered beside the next layer's backward
    sends       hold the sender up, or go beside its computations (`overlap_sends`)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hybridperf.graph import GraphBuilder
from hybridperf.hardware import Host
from hybridperf.io import InputError
from hybridperf.ops import OpCall
from hybridperf.schedules import BACKWARD, FORWARD, WEIGHT, Schedule, Task, schedule
from hybridperf.schedules.graph import DOWNSTREAM, UPSTREAM
from hybridperf.workload import Call, CollectiveCall, Seconds, Workload
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.launching import launch_s
from hybridperf.workloads.transformer.parallel import Group
from hybridperf.workloads.transformer.parts import embedding_passes, head_passes, layer_passes, send_call
from hybridperf.workloads.transformer.passes import Passes, Step, Steps, flops
from hybridperf.workloads.transformer.update import gathered, optimizer_passes, summed, tied_reduction
from hybridperf.workloads.transformer.weights import Weights, embedding_weights, head_weights, layer_weights, stage_weights

COMPUTE, COMM = "compute", "comm"
KERNEL_NODES = 20_000  # up to which each kernel is a node
MOST_NODES = 600_000  # that a graph may have


def transformer(config: TransformerConfig, host: Host | None = None) -> Workload:
    """The step as a workload. `host`: what launching costs, of a device's framework; None: nothing."""
    return _Build(config, host).workload()


@dataclasses.dataclass(frozen=True)
class _Unit:
    """A part of a stage that runs as a whole: a layer, an end; `count` equal ones in a row."""

    passes: Passes
    weights: Weights
    count: int = 1

    def steps(self, kind: str, splits_backward: bool) -> Steps:
        """What a task of a kind runs of it."""
        if kind == FORWARD:
            return self.passes.forward
        if kind == WEIGHT:
            return tuple(step for step in self.passes.backward if step.weight_gradient)
        return tuple(step for step in self.passes.backward_with_recompute if not (splits_backward and step.weight_gradient))


class _Build:
    """One step, task by task in an order that ranks may issue it in."""

    def __init__(self, config: TransformerConfig, host: Host | None):
        layout = config.layout
        self.notes = tuple(layout.check(config.shape, gpus_per_node=config.gpus_per_node, strict=False))
        self.c, self.host = config, host
        self.schedule: Schedule = schedule(layout.schedule, layout.pp, layout.accumulation, layout.vp)
        if self.schedule.pipes > 1 and layout.zero:
            raise InputError(f"schedule {layout.schedule!r} with ZeRO-{layout.zero} is not modelled: take zero = 0")
        if self.schedule.splits_backward and layout.zero >= 2:
            raise InputError(f"schedule {layout.schedule!r} with ZeRO-{layout.zero} is not modelled: take zero 0 or 1")
        if self.schedule.splits_backward and layout.recompute != "none":
            raise InputError(f"schedule {layout.schedule!r} with recompute is not modelled: take recompute none")
        self.send = send_call(config)
        self.stages = [self.units(stage) for stage in range(config.stages)]
        self.graph, self.calls = GraphBuilder(), dict[Call, int]()
        self.flops = 0.0
        self.layer_ends: dict[int, int] = {}  # of each rank, the last node of the layer that ran last
        self.reductions: dict[int, list[int]] = {rank: [] for rank in range(layout.pp)}
        self.each_kernel = self.kernel_nodes() <= KERNEL_NODES
        if not self.each_kernel and (size := self.merged_nodes()) > MOST_NODES:
            raise InputError(
                f"expected a step whose graph has at most {MOST_NODES} nodes, got about {size:.0f} ({layout.pp} stages x"
                f" {layout.accumulation} micro-batches); `hybridperf steps` prices such steps in closed form"
            )

    # what there is --------------------------------------------------------------------------------------------------------------------

    def units(self, stage: int) -> list[_Unit]:
        """Parts of a stage in forward order."""
        c = self.c
        found = [_Unit(embedding_passes(c), embedding_weights(c))] if stage == 0 else []
        for kind, count in enumerate(c.layers_of(stage)):
            if count:
                found.append(_Unit(layer_passes(c, kind), layer_weights(c, kind), count))
        return found + ([_Unit(head_passes(c), head_weights(c))] if stage == c.stages - 1 else [])

    def kernel_nodes(self) -> float:
        """Nodes if each kernel is one."""
        steps = sum(u.count * (len(u.passes.forward) + len(u.passes.backward_with_recompute)) for units in self.stages for u in units)
        return steps * self.c.layout.accumulation

    def merged_nodes(self) -> float:
        """Nodes if equal calls of a task are one, collectives apart."""

        def size(steps: Steps, count: int) -> int:
            ops = {step.call for step in steps if step.is_op}
            return len(ops) + count * sum(not step.is_op for step in steps)

        steps = sum(
            size(u.passes.forward, u.count) + size(u.passes.backward_with_recompute, u.count) for units in self.stages for u in units
        )
        return steps * self.c.layout.accumulation

    # tasks ----------------------------------------------------------------------------------------------------------------------------

    def workload(self) -> Workload:
        last_of = self.last_tasks()
        done: dict[Task, int] = {}
        arrived: dict[Task, int] = {}
        for task in self.schedule.issue_order():
            rank = self.schedule.worker_of(task)
            waits = [arrived[task]] if task in arrived else []
            done[task] = self.task(rank, task, waits, reduces=task in last_of)
            self.send_on(rank, task, done[task], arrived)
        self.finish(done, last_of)
        c = self.c
        return Workload(
            name=f"{c.shape.name}, {c.layout.ranks} ranks, batch {c.layout.global_batch}",
            graph=self.graph.build(),
            calls=tuple(self.calls),
            flops=self.flops,
            notes=(*self.notes, *(() if self.host is not None else ("no host: issuing work costs nothing",))),
        )

    def last_tasks(self) -> dict[Task, int]:
        """The tasks that leave the last gradients of a stage behind, with their stage."""
        last: dict[tuple[int, int], Task] = {}
        kind = WEIGHT if self.schedule.splits_backward else BACKWARD
        for order in self.schedule.orders:
            for task in order:
                if task.kind == kind:
                    last[task.stage, task.pipe] = task
        return {task: task.stage for task in last.values()}

    def task(self, rank: int, task: Task, after: Sequence[int], reduces: bool) -> int:
        """A stage's work on a micro-batch; its last node."""
        units = self.stages[task.stage] if task.kind == FORWARD else self.stages[task.stage][::-1]
        split = self.schedule.splits_backward
        by_unit = [(unit.steps(task.kind, split), unit) for unit in units]
        beside = self.c.overlap_gradients and self.c.layout.data_ranks > 1
        if beside and self.c.layout.zero >= 2:
            return self.sharded(rank, [steps for steps, unit in by_unit for _ in range(unit.count)], after, task)
        if beside and reduces and self.schedule.pipes == 1:
            return self.in_buckets(rank, [(steps, unit.weights) for steps, unit in by_unit for _ in range(unit.count)], after, task)
        return self.chain(rank, [(steps, unit.count) for steps, unit in by_unit], after, task)

    def in_buckets(self, rank: int, layers: Iterable[tuple[Steps, Weights]], after: Sequence[int], task: Task) -> int:
        """The last backward of a stage, its gradients reduced as buckets fill."""
        bucket, node = Weights(), -1
        for steps, weights in layers:
            node = self.chain(rank, [(steps, 1)], after, task)
            after, bucket = (), bucket + weights
            if bucket.total * self.c.reduced_bytes >= self.c.bucket_bytes:
                self.reduce(rank, summed(self.c, bucket), COMM, [node])
                bucket = Weights()
        self.reduce(rank, summed(self.c, bucket), COMM, [node])
        return node

    def sharded(self, rank: int, layers: list[Steps], after: Sequence[int], task: Task) -> int:
        """Layers whose weights are gathered one layer ahead and whose gradients are scattered behind them."""
        gathers = [self.gather(rank, layers[0])]
        node = -1
        for at, steps in enumerate(layers):
            if at + 1 < len(layers):
                gathers.append(self.gather(rank, layers[at + 1]))
            compute = tuple(step for step in steps if step.part != "zero")
            node = self.chain(rank, [(compute, 1)], [*after, *gathers[at]], task)
            self.layer_ends[rank], after = node, ()
            self.reduce(rank, [step for step in steps if step.part == "zero" and not _is_gather(step)], COMM, [node])
        return node

    def gather(self, rank: int, steps: Steps) -> list[int]:
        """A layer's weights on their way, once the layer before the one that runs has gone."""
        after = [self.layer_ends[rank]] if rank in self.layer_ends else []
        return [self.node(rank, step, 1, False, COMM, after) for step in steps if step.part == "zero" and _is_gather(step)]

    def chain(self, rank: int, parts: list[tuple[Steps, int]], after: Sequence[int], task: Task) -> int:
        """Steps one after the other; the last node."""
        backward, node = task.kind != FORWARD, -1
        for steps, count in parts:
            self.flops += flops(steps) * count
        if self.each_kernel:
            for step in (step for steps, count in parts for _ in range(count) for step in steps):
                node, after = self.node(rank, step, 1, backward, COMPUTE, after), ()
        else:
            for step, times in _merged(parts):
                node, after = self.node(rank, step, times, backward, COMPUTE, after, launched=False), ()
            if self.host is not None:
                node = self.launched(rank, parts, backward)
        return node if node >= 0 else self.graph.op(0, label=str(task), rank=rank, after=list(after))

    # nodes ----------------------------------------------------------------------------------------------------------------------------

    def node(
        self, rank: int, step: Step, times: int, backward: bool, stream: str, after: Sequence[int], launched: bool = True
    ) -> int:  # fmt: skip
        """A step `times` over; a collective is as many nodes."""
        call, launch = step.call, 0
        if isinstance(call, OpCall):
            call, times = dataclasses.replace(call, times=call.times * times, issued_apart=self.host is not None), 1
        if self.host is not None and launched:
            launch = self.seconds(launch_s(self.host, step, backward))
        row = self.row(call)
        for _ in range(times):
            node = self.graph.op(row, label=step.name, rank=rank, stream=stream, after=list(after), launch_row=launch)
            after = ()
        return node

    def launched(self, rank: int, parts: list[tuple[Steps, int]], backward: bool) -> int:
        """Where a merged chain ends: not before all of its kernels were launched."""
        assert self.host is not None
        host_s = sum(launch_s(self.host, step, backward) * count for steps, count in parts for step in steps)
        return self.graph.op(0, label="launched", rank=rank, launch_row=self.seconds(host_s))

    def row(self, call: Call) -> int:
        return self.calls.setdefault(call, len(self.calls) + 1)

    def seconds(self, value: float) -> int:
        """Row of a host's seconds."""
        return self.row(Seconds(round(value, 12))) if value > 0 else 0

    def reduce(self, rank: int, steps: Iterable[Step], stream: str, after: Sequence[int]) -> None:
        self.reductions[rank] += [self.node(rank, step, 1, True, stream, after) for step in steps]

    def send_on(self, rank: int, task: Task, node: int, arrived: dict[Task, int]) -> None:
        """A task's result on its way to the stage that needs it."""
        stage = task.stage + 1 if task.kind == FORWARD else task.stage - 1
        if task.kind == WEIGHT or not 0 <= stage < self.schedule.stages:
            return
        to = task._replace(stage=stage)
        if self.schedule.worker_of(to) == rank or self.send is None:
            return
        stream = (DOWNSTREAM if task.kind == FORWARD else UPSTREAM) if self.c.overlap_sends else COMPUTE
        arrived[to] = self.graph.op(self.row(self.send), label=f"send {task}", rank=rank, stream=stream, after=[node])

    # end of the step ------------------------------------------------------------------------------------------------------------------

    def finish(self, done: dict[Task, int], last_of: dict[Task, int]) -> None:
        """Gradients summed that are not yet, then the optimizer, then weights exchanged."""
        c, layout = self.c, self.c.layout
        stages_of = {rank: self.schedule.stages_of(rank) for rank in range(layout.pp)}
        if self.schedule.pipes > 1:
            self.reduce_pairs(done, last_of)
        elif not c.overlap_gradients:
            for rank, stages in stages_of.items():
                held = sum((stage_weights(c, stage) for stage in stages), Weights())
                self.reduce(rank, summed(c, held), COMPUTE, ())
        if (tied := tied_reduction(c)) is not None:
            self.graph.collective(self.row(tied.call), label=tied.name, ranks=[0, layout.pp - 1], stream=COMPUTE)
        for rank, stages in stages_of.items():
            if self.reductions[rank]:
                self.graph.op(0, label="gradients", rank=rank, after=self.reductions[rank])
            for stage in stages:
                for step in (*optimizer_passes(c, stage), *gathered(c, stage)):
                    self.node(rank, step, 1, True, COMPUTE, ())

    def reduce_pairs(self, done: dict[Task, int], last_of: dict[Task, int]) -> None:
        """Two pipes: each stage's gradients are summed over the two ranks that hold it and their data peers, when both have them."""
        c, layout = self.c, self.c.layout
        data = c.group("data")
        group = Group(2 * data.ranks, max(data.nodes, 2 if c.group("pp").nodes > 1 else 1))
        ends: dict[int, list[int]] = {}
        for task, stage in last_of.items():
            ends.setdefault(stage, []).append(done[task])
        for stage, nodes in ends.items():
            call = CollectiveCall("all_reduce", stage_weights(c, stage).total * c.reduced_bytes, group.ranks, group.nodes)
            both = self.graph.collective(
                self.row(call), label="gradients summed", ranks=[stage, layout.pp - 1 - stage], stream=COMM, after=nodes
            )
            for rank, node in both.items():
                self.reductions[rank].append(node)


def _is_gather(step: Step) -> bool:
    return step.collective.collective == "all_gather"


def _merged(parts: list[tuple[Steps, int]]) -> list[tuple[Step, int]]:
    """Steps with how often each runs, equal ones together."""
    counts: dict[Call, tuple[Step, int]] = {}
    for steps, count in parts:
        for step in steps:
            first, times = counts.get(step.call, (step, 0))
            counts[step.call] = (first, times + count)
    return list(counts.values())
