"""A whole training step as a graph: stages of a pipeline, micro-batches in their schedule's order,
collectives, optimizer.

Ranks of the graph are the pipeline's stages. Tensor, sequence, context, expert and data peers of a
stage do the same at the same time: one stands for all, and their collectives are priced by size.

    gradients   reduced in buckets alongside the last micro-batch's backward (`overlap_gradients`),
                or in one piece behind it
    ZeRO-2, 3   each layer's weights are gathered while the layer before it computes, no earlier:
                two layers' weights at a time; its gradients are scattered while the next layer's
                backward runs
    sends       hold the sender up, or overlap its computations (`overlap_sends`)

How a task of the schedule becomes nodes: `rank_stream.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hybridperf.engine.workload import Workload
from hybridperf.hardware import Host
from hybridperf.io import InputError
from hybridperf.workloads.schedules import BACKWARD, FORWARD, WEIGHT, Task, schedule
from hybridperf.workloads.transformer import parts, update
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.fields import check_number
from hybridperf.workloads.transformer.launching import LAUNCH_S, LAUNCH_WIDTH
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps
from hybridperf.workloads.transformer.rank_stream import COMM, EXCHANGE, RankStreams, RepeatedSteps
from hybridperf.workloads.transformer.weights import (
    Weights,
    embedding_weights,
    head_weights,
    layer_weights,
    stage_weights,
)

DOWNSTREAM, UPSTREAM = "send_activations", "send_gradients"
KERNEL_NODES = 20_000  # up to which each kernel is a node
MOST_TASKS = 100_000  # a stage's forward or backward of a micro-batch each
# of the log of a step like none that was measured, next to errors of ops and links: `hybridperf
# steps` believes 0.16 of all together, where launches hide (22 layouts of 10 models, 0.15 to 0.20)
DEVIATION = 0.15


def transformer(config: TransformerConfig, host: Host | float | None = LAUNCH_S) -> Workload:
    """One training step of a Transformer as a workload.

    Args:
        config: the model, its layout, and how a framework runs it.
        host: what launching a kernel costs: seconds per launch; or the overheads of a traced host
            (`hp.load_model(folder).host`); or None: nothing, as in a CUDA graph.

    Raises:
        InputError: when the layout is not legal for the model, or not modelled.
    """
    if not isinstance(config, TransformerConfig):
        raise InputError(
            f"a step is of a TransformerConfig, got a {type(config).__name__};"
            " TransformerConfig(shape, layout) makes one"
        )
    if host is not None and not isinstance(host, Host):
        check_number("host", host, zero=True)
    return _Build(config, host).workload()


@dataclasses.dataclass(frozen=True)
class _Unit:
    """A layer, the embedding or the head, of which a stage runs `count` equal ones in a row."""

    passes: Passes
    weights: Weights
    count: int = 1

    def run(self, kind: str, splits_backward: bool) -> RepeatedSteps:
        """What a task of a kind runs of it."""
        if kind == FORWARD:
            return RepeatedSteps(self.passes.forward, self.count, backward=False)
        steps = self.passes.backward if kind == WEIGHT else self.passes.backward_with_recompute
        if kind == WEIGHT or splits_backward:
            steps = tuple(step for step in steps if step.weight_gradient == (kind == WEIGHT))
        return RepeatedSteps(steps, self.count, backward=True)


class _Build:
    """One step, task by task in an order that ranks may issue it in."""

    def __init__(self, config: TransformerConfig, host: Host | float | None):
        layout = config.layout
        self.notes = tuple(layout.check(config.shape, gpus_per_node=config.gpus_per_node))
        self.c = config
        self.schedule = schedule(layout.schedule, layout.pp, layout.accumulation, layout.vp)
        refuse_unmodelled(config)
        self.send = parts.send_call(config)
        units = [self.units(stage) for stage in range(config.stages)]
        split = self.schedule.splits_backward
        self.runs = {  # by kind of task and stage, in the order they run
            (kind, stage): tuple(
                (unit.run(kind, split), unit.weights)
                for unit in (found if kind == FORWARD else found[::-1])
            )
            for kind in self.schedule.kinds
            for stage, found in enumerate(units)
        }
        kernels = layout.accumulation * sum(
            len(run.steps) * run.count for runs in self.runs.values() for run, _ in runs
        )
        tasks = layout.accumulation * len(self.runs)
        if tasks > MOST_TASKS:
            raise InputError(
                f"expected a step of at most {MOST_TASKS} tasks, got {tasks} ({config.stages}"
                f" stages x {layout.accumulation} micro-batches); `hybridperf steps` prices such"
                " steps in closed form"
            )
        self.streams = RankStreams(host, each_kernel=kernels <= KERNEL_NODES)
        self.last_layer: dict[int, int] = {}  # of each rank, the last node of its last layer
        self.reductions: dict[int, list[int]] = {rank: [] for rank in range(layout.pp)}

    def units(self, stage: int) -> list[_Unit]:
        """Parts of a stage in forward order."""
        c = self.c
        found = [_Unit(parts.embedding_passes(c), embedding_weights(c))] if stage == 0 else []
        for kind, count in enumerate(c.layers_of(stage)):
            if count:
                found.append(_Unit(parts.layer_passes(c, kind), layer_weights(c, kind), count))
        if stage == c.stages - 1:
            found.append(_Unit(parts.head_passes(c), head_weights(c)))
        return found

    def workload(self) -> Workload:
        last_of = self.last_tasks()
        done: dict[Task, int] = {}
        arrived: dict[Task, int] = {}
        for task in self.schedule.issue_order():
            rank = self.schedule.worker_of(task)
            self.streams.wait(rank, [arrived.pop(task)] if task in arrived else [])
            done[task] = self.task(rank, task, reduces=task in last_of)
            self.send_on(rank, task, done[task], arrived)
        self.finish(done, last_of)
        c = self.c
        return Workload(
            name=f"{c.shape.name}, {c.layout.ranks} ranks, batch {c.layout.global_batch}",
            graph=self.streams.graph.build(), calls=tuple(self.streams.calls),
            flops=self.streams.flops, notes=(*self.notes, _launch_note(self.streams.host)),
            deviation=DEVIATION,
            given_deviation=0.0 if isinstance(self.streams.host, Host) else LAUNCH_WIDTH,
        )  # fmt: skip

    # tasks
    # ----------------------------------------------------------------------------------------------

    def last_tasks(self) -> dict[Task, int]:
        """The tasks that leave the last gradients of a stage behind, with their stage."""
        last: dict[tuple[int, int], Task] = {}
        kind = WEIGHT if self.schedule.splits_backward else BACKWARD
        for order in self.schedule.orders:
            for task in order:
                if task.kind == kind:
                    last[task.stage, task.pipe] = task
        return {task: task.stage for task in last.values()}

    def task(self, rank: int, task: Task, reduces: bool) -> int:
        """A stage's work on a micro-batch; its last node."""
        runs = self.runs[task.kind, task.stage]
        overlap = self.c.overlap_gradients and self.c.layout.data_ranks > 1
        if overlap and self.c.layout.zero >= 2:
            return self.sharded(rank, [run for run, _ in runs for _ in range(run.count)], task)
        if overlap and reduces and self.schedule.pipes == 1:
            layers = [(run, weights) for run, weights in runs for _ in range(run.count)]
            return self.in_buckets(rank, layers, task)
        return self.streams.run(rank, tuple(run for run, _ in runs), str(task))

    def in_buckets(
        self, rank: int, layers: Iterable[tuple[RepeatedSteps, Weights]], task: Task
    ) -> int:
        """The last backward of a stage, its gradients reduced as buckets fill."""
        bucket, node = Weights(), -1
        for run, weights in layers:
            node = self.streams.run(rank, (run.once,), str(task))
            bucket += weights
            if bucket.total * self.c.reduced_bytes >= self.c.bucket_bytes:
                self.reduce(rank, update.summed(self.c, bucket), [node])
                bucket = Weights()
        self.reduce(rank, update.summed(self.c, bucket), [node])
        return node

    def sharded(self, rank: int, layers: list[RepeatedSteps], task: Task) -> int:
        """Layers whose weights are gathered one layer ahead, their gradients scattered behind."""
        gathers = [self.gather(rank, layers[0].steps)]
        node = -1
        for at, run in enumerate(layers):
            if at + 1 < len(layers):
                gathers.append(self.gather(rank, layers[at + 1].steps))
            self.streams.wait(rank, gathers[at])
            node = self.last_layer[rank] = self.streams.run(rank, (run.without_shards,), str(task))
            zero = [step for step in run.steps if step.part == "zero"]
            self.reduce(rank, [step for step in zero if not _is_gather(step)], [node])
        return node

    def gather(self, rank: int, steps: Steps) -> list[int]:
        """A layer's weights on their way, once the layer before the one that runs has gone."""
        after = [self.last_layer[rank]] if rank in self.last_layer else []
        return [
            self.streams.overlapped(rank, step, COMM, after)
            for step in steps
            if step.part == "zero" and _is_gather(step)
        ]

    def reduce(self, rank: int, steps: Iterable[PassStep], after: Sequence[int]) -> None:
        """Gradients on their way to their sum, while the rank goes on."""
        nodes = (self.streams.overlapped(rank, step, COMM, after) for step in steps)
        self.reductions[rank] += nodes

    def send_on(self, rank: int, task: Task, node: int, arrived: dict[Task, int]) -> None:
        """A task's result on its way to the stage that needs it."""
        stage = task.stage + 1 if task.kind == FORWARD else task.stage - 1
        if task.kind == WEIGHT or not 0 <= stage < self.schedule.stages:
            return
        to = task._replace(stage=stage)
        if self.schedule.worker_of(to) == rank or self.send is None:
            return
        sent = PassStep(self.send, "pp", f"send {task}")
        stream = DOWNSTREAM if task.kind == FORWARD else UPSTREAM
        arrived[to] = self.streams.overlapped(rank, sent, stream, [node])
        if not self.c.overlap_sends:
            self.streams.wait(rank, [arrived[to]])

    # end of the step
    # ----------------------------------------------------------------------------------------------

    def finish(self, done: dict[Task, int], last_of: dict[Task, int]) -> None:
        """Gradients summed that are not yet, then the optimizer, then weights exchanged."""
        c, layout = self.c, self.c.layout
        stages_of = {rank: self.schedule.stages_of(rank) for rank in range(layout.pp)}
        if self.schedule.pipes > 1:
            self.reduce_pairs(done, last_of)
        elif not c.overlap_gradients:
            for rank, stages in stages_of.items():
                weights = sum((stage_weights(c, stage) for stage in stages), Weights())
                run = RepeatedSteps(update.summed(c, weights), 1, backward=True)
                self.streams.run(rank, (run,), "gradients summed")
        if (tied := update.tied_reduction(c)) is not None:
            self.streams.together((0, layout.pp - 1), tied, EXCHANGE)
        for rank, stages in stages_of.items():
            self.streams.wait(rank, self.reductions[rank])
            for stage in stages:
                steps = (*update.optimizer_passes(c, stage), *update.gathered(c, stage))
                self.streams.run(rank, (RepeatedSteps(steps, 1, backward=True),), "update")

    def reduce_pairs(self, done: dict[Task, int], last_of: dict[Task, int]) -> None:
        """Two pipes: a stage's gradients are summed once the two ranks that hold it have them."""
        c, pp = self.c, self.c.layout.pp
        lasts: dict[int, list[int]] = {}
        for task, stage in last_of.items():
            lasts.setdefault(stage, []).append(done[task])
        for stage, nodes in lasts.items():
            step = update.summed_over_pipes(c, stage)
            summed_at = self.streams.together((stage, pp - 1 - stage), step, COMM, nodes)
            for rank, node in summed_at.items():
                self.reductions[rank].append(node)


def _launch_note(host: Host | float | None) -> str:
    if host is None:
        return "no host: launches cost nothing, as in a replayed CUDA graph"
    if isinstance(host, Host):
        return "launches cost what a traced host's do"
    return f"launches cost {1e6 * host:.3g} us each, see host="


def _is_gather(step: PassStep) -> bool:
    return step.collective.collective == "all_gather"


def refuse_unmodelled(config: TransformerConfig) -> None:
    """`InputError` for combinations nobody has measured."""
    layout, name = config.layout, config.layout.schedule
    two_pipes, splits_backward = name == "chimera", name == "zero_bubble"
    cut = f"stages cut by {config.stage_split}"
    refused = [
        (two_pipes and config.stage_split != "even", cut, "another schedule"),
        (two_pipes and layout.zero, f"ZeRO-{layout.zero}", "zero = 0"),
        (splits_backward and layout.zero >= 2, f"ZeRO-{layout.zero}", "zero 0 or 1"),
        (splits_backward and layout.recompute != "none", "recompute", "recompute none"),
    ]
    for applies, what, instead in refused:
        if applies:
            raise InputError(f"schedule {name!r} with {what} is not modelled: take {instead}")
