"""A whole training step as a graph: stages of a pipeline, micro-batches in their schedule's order,
collectives, optimizer.

Ranks of the graph are the pipeline's stages. Tensor, sequence, context, expert and data peers of a
stage do the same at the same time: one stands for all, and their collectives are priced by size.

    gradients   reduced in buckets alongside the last micro-batch's backward (`overlap_gradients`),
                or in one piece behind it
    ZeRO-2, 3   each layer's weights are gathered while the layer before it computes, no earlier:
                two layers' weights at a time, from one micro-batch to the next, too; its gradients
                are scattered while the next layer's backward runs
    sends       hold the sender up, or overlap its computations (`overlap_sends`); a stage's host
                launches what a message is for when it is there (of vTrain's runs, 71 % of them
                bound by their hosts, a micro-batch takes as long on any number of stages)
    host        runs ahead among equal layers and no further: embedding, layers, head and the
                update, before which it awaits all gradients, each begin with a launch when what is
                before them is done. With a host that runs ahead without limit, vTrain's one-node
                runs are missed by 7.9 % in place of 6.6 % (claim `steps`)

How a task of the schedule becomes nodes: `rank_stream.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from hybridperf.engine.workload import Workload
from hybridperf.hardware import Host
from hybridperf.io import InputError
from hybridperf.model.calls import InStep
from hybridperf.model.step_effects import slowest_of
from hybridperf.workloads.schedules import BACKWARD, FORWARD, WEIGHT, Task, schedule
from hybridperf.workloads.transformer import parts, update, waits
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.fields import check_number
from hybridperf.workloads.transformer.in_step import probes
from hybridperf.workloads.transformer.passes import SHARDED, Passes, PassStep, Steps
from hybridperf.workloads.transformer.rank_stream import (
    BELIEVED,
    COMM,
    EXCHANGE,
    REPLICAS,
    RankStreams,
    RepeatedSteps,
)
from hybridperf.workloads.transformer.weights import (
    Weights,
    embedding_weights,
    head_weights,
    layer_weights,
    stage_weights,
)

PAIR = "pair"  # messages of experts beside two passes
DOWNSTREAM, UPSTREAM = "send_activations", "send_gradients"
KERNEL_NODES = 20_000  # up to which each kernel is a node
MOST_TASKS = 100_000  # a stage's forward or backward of a micro-batch each


def transformer(config: TransformerConfig, host: Host | float | str | None = BELIEVED) -> Workload:
    """One training step of a Transformer as a workload.

    Args:
        config: the model, its layout, and how a framework runs it.
        host: what launching a kernel costs: "believed", as the model's step effects say; or seconds
            per launch; or the overheads of a traced host (`hp.load_model(folder).host`); or None:
            nothing, as in a CUDA graph.

    Raises:
        InputError: when the layout is not legal for the model, or not modelled.
    """
    if not isinstance(config, TransformerConfig):
        raise InputError(
            f"a step is of a TransformerConfig, got a {type(config).__name__};"
            " TransformerConfig(shape, layout) makes one"
        )
    if host != BELIEVED and not isinstance(host, Host | None):
        check_number("host", host, zero=True)
    return _Build(config, host).workload()


@dataclasses.dataclass(frozen=True)
class _Unit:
    """A layer, the embedding or the head, of which a stage runs `count` equal ones in a row."""

    passes: Passes
    weights: Weights
    count: int = 1
    block: str = "layer"
    reads: bool = False  # a batch

    def run(self, kind: str, splits_backward: bool, config: TransformerConfig) -> RepeatedSteps:
        """What a task of a kind runs of it."""
        if kind == FORWARD:
            return self._run(self.passes.forward, config, backward=False)
        steps = self.passes.backward if kind == WEIGHT else self.passes.backward_with_recompute
        if kind == WEIGHT or splits_backward:
            steps = tuple(step for step in steps if step.weight_gradient == (kind == WEIGHT))
        return self._run(steps, config, backward=True)

    def _run(self, steps: Steps, config: TransformerConfig, backward: bool) -> RepeatedSteps:
        waited: tuple[tuple[str, float], ...] = ()
        if self.block == "layer":
            waited = waits.layer_waits(config, sum(step.part == "tp" for step in steps))
        elif self.reads and not backward:
            waited = (("input", 1.0),)
        return RepeatedSteps(steps, self.count, backward, self.block, waited)


class _Build:
    """One step, task by task in an order that ranks may issue it in."""

    def __init__(self, config: TransformerConfig, host: Host | float | str | None):
        layout = config.layout
        checked = layout.check(config.shape, gpus_per_node=config.gpus_per_node)
        self.notes = (*checked, *config.remarks)
        self.c = config
        self.schedule = schedule(layout.schedule, layout.pp, layout.accumulation, layout.vp)
        refuse_unmodelled(config)
        self.send = parts.send_call(config)
        units = [self.units(stage) for stage in range(config.stages)]
        split = self.schedule.kind.splits_backward
        self.runs = {  # by kind of task and stage, in the order they run
            (kind, stage): tuple(
                (unit.run(kind, split, config), unit.weights)
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
        self.streams = RankStreams(host, kernels <= KERNEL_NODES, config.framework)
        # of each rank, the last nodes of its last two layers
        self.last_layers: dict[int, tuple[int, ...]] = {}
        # gradients of each rank's last layer: scattered once the next weights are under way
        self.unsent: dict[int, tuple[list[PassStep], int]] = {}
        self.pairs: dict[int, list[int]] = {}  # of each rank: its beginning, messages beside it
        self.reductions: dict[int, list[int]] = {rank: [] for rank in range(layout.pp)}
        self.beside: dict[int, Steps] = dict.fromkeys(range(layout.pp), ())  # what slows each rank
        self.ends = [order[-1].stage for order in self.schedule.orders]  # with which a rank ends
        # of each rank and stage: of each layer the nodes of updated weights that arrive
        self.arriving: dict[tuple[int, int], list[list[int]]] = {}

    def units(self, stage: int) -> list[_Unit]:
        """Parts of a stage in forward order."""
        c = self.c
        found = []
        if stage == 0:
            found = [_Unit(parts.embedding_passes(c), embedding_weights(c), 1, "outer", True)]
        for kind, count in enumerate(c.layers_of(stage)):
            if count:
                found.append(_Unit(parts.layer_passes(c, kind), layer_weights(c, kind), count))
        if stage == c.stages - 1:
            found.append(_Unit(parts.head_passes(c), head_weights(c), 1, "outer"))
        return found

    def workload(self) -> Workload:
        last_of = self.last_tasks()
        done: dict[Task, int] = {}
        arrived: dict[Task, int] = {}
        begun: set[tuple[str, int, int]] = set()
        if self.c.has_peers and self.c.overlap_weights:
            self.gather_updated()
        for task in self.schedule.issue_order():
            rank, block = self.schedule.worker_of(task), self.schedule.block(task)
            if task == block[0] and any(own in arrived for own in block):
                self.streams.hold(rank, [arrived.pop(own) for own in block if own in arrived])
            if self.c.layout.pp > 1 and task.kind == FORWARD:
                self.streams.spend(rank, "slot", 1.0, "messages posted")
                if stalls := waits.sure_stalls(self.c):
                    self.streams.spend(rank, "stall", stalls, "messages stalled")
            first = (task.kind, task.stage, task.pipe) not in begun
            begun.add((task.kind, task.stage, task.pipe))
            done[task] = self.task(rank, task, first, reduces=task in last_of)
            for sent, to in self.schedule.sent_with(task):
                self.send_on(rank, sent, to, done[task], arrived)
        self.finish(done, last_of)
        c, cell = self.c, tuple(map(math.log2, self.c.cell_sizes))
        return Workload(
            name=f"{c.shape.name}, {c.layout.ranks} ranks, batch {c.layout.global_batch}",
            graph=self.streams.graph.build(), calls=self.streams.calls,
            flops=self.streams.flops, notes=(*self.notes, _launch_note(self.streams.host)),
            in_step=InStep(
                self.streams.places, c.framework, cell, probes(c), slowest_of(c.layout.ranks),
                stall_chance=waits.stall_chance(c),
                stalls=waits.stalls(c), formats=(c.dtype, c.product_dtype),
                least_flops=c.least_flops,
            ),
        )  # fmt: skip

    # tasks
    # ----------------------------------------------------------------------------------------------

    def last_tasks(self) -> dict[Task, int]:
        """The tasks that leave the last gradients of a stage behind, with their stage."""
        last: dict[tuple[int, int], Task] = {}
        kind = WEIGHT if self.schedule.kind.splits_backward else BACKWARD
        for order in self.schedule.orders:
            for task in order:
                if task.kind == kind:
                    last[task.stage, task.pipe] = task
        return {task: task.stage for task in last.values()}

    def task(self, rank: int, task: Task, first: bool, reduces: bool) -> int:
        """A stage's work on a micro-batch; its last node."""
        runs = self.runs[task.kind, task.stage]
        several = self.c.has_peers and bool(runs)
        if several and self.c.overlap_shards and self.c.layout.shards_each_pass:
            return self.sharded(rank, [run for run, _ in runs for _ in range(run.count)], task)
        if several and self.c.overlap_weights and task.kind == FORWARD and first:
            opened = [run.once for run, _ in runs for _ in range(run.count)]
            return self.opening(rank, opened, task)
        beside = several and waits.reduces_beside(self.c)
        if beside and reduces and self.schedule.kind.pipes == 1:
            layers = [(run, weights) for run, weights in runs for _ in range(run.count)]
            return self.in_buckets(rank, layers, task)
        if self.c.hides_exchanges and any(
            one.kind != task.kind for one in self.schedule.block(task)
        ):
            return self.in_pair(rank, [run for run, _ in runs], task)
        return self.streams.run(rank, tuple(run for run, _ in runs), str(task))

    def in_pair(self, rank: int, runs: Iterable[RepeatedSteps], task: Task) -> int:
        """A task of a forward and a backward pass beside each other: what experts of one exchange
        travels while either computes, and the pair ends when both do.
        """
        block = self.schedule.block(task)
        if task == block[0]:
            self.pairs[rank] = [self.streams.spend(rank, "slot", 0.0, "a pair begins")]
        begun = self.pairs[rank][:1]
        self.pairs[rank] += [
            self.streams.overlapped(rank, step, PAIR, begun)
            for run in runs
            for step in run.steps * run.count
            if step.part == "ep"
        ]
        node = self.streams.run(rank, tuple(run.without_exchanges for run in runs), str(task))
        if task == block[-1]:
            self.streams.wait(rank, self.pairs.pop(rank))
            node = self.streams.spend(rank, "slot", 0.0, "a pair ends")
        return node

    def gather_updated(self) -> None:
        """Updated weights on their way to each rank, in the order of its first forward passes; all
        but those of its first layer travel beside its kernels.
        """
        for rank, order in enumerate(self.schedule.orders):
            beside = False
            for stage in dict.fromkeys(task.stage for task in order if task.kind == FORWARD):
                self.arriving[rank, stage] = []
                for run, weights in self.runs[FORWARD, stage]:
                    steps = update.gathered_again(weights, self.c)
                    for _ in range(run.count):
                        nodes = [self.streams.overlapped(rank, one, COMM, ()) for one in steps]
                        self.arriving[rank, stage].append(nodes)
                        self.beside[rank] += steps * beside
                        beside = beside or run.block == "layer"

    def opening(self, rank: int, layers: list[RepeatedSteps], task: Task) -> int:
        """The first forward pass of a stage, which awaits each layer's updated weights."""
        node = -1
        for run, nodes in zip(layers, self.arriving[rank, task.stage], strict=True):
            self.streams.wait(rank, nodes)
            node = self.streams.run(rank, (run,), str(task))
        self.slow_down(rank)
        return node

    def slow_down(self, rank: int, node: int = -1) -> int:
        """What a rank's kernels lose to messages beside them; its last node, else the given one.

        Once the task's result is on its way, so that no other rank waits for it, too: Megatron-Core
        has all ranks of a pipeline exchange at a time, since "asynchronous communication tends to
        slow down compute" (pipeline_parallel/schedules.py).
        """
        for step in self.beside[rank]:
            node = self.streams.slowed(rank, step, "overlap_shown")
        self.beside[rank] = ()
        return node

    def in_buckets(
        self, rank: int, layers: Sequence[tuple[RepeatedSteps, Weights]], task: Task
    ) -> int:
        """The last backward of a stage, its gradients reduced as buckets fill."""
        bucket, node, held = Weights(), -1, 0
        for at, (run, weights) in enumerate(layers, 1):
            node = self.streams.run(rank, (run.once,), str(task))
            bucket += weights
            held += run.block == "layer"
            full = bucket.total * self.c.exchanged_bytes >= waits.bucket_bytes(self.c)
            if not (full or at == len(layers)):
                continue
            steps, after = update.summed(self.c, bucket), node
            if at == len(layers) and task.stage == self.ends[rank]:
                after = self.slow_down(rank, node)
            self.reduce(rank, steps, [after])
            if singly := waits.layers_gathered(self.c, held):
                label = "gradients summed by layer"
                found = self.streams.spend_beside(rank, "layer_gather", singly, label, [after])
                self.reductions[rank].append(found)
            self.beside[rank] += steps
            bucket, held = Weights(), 0
        return node

    def sharded(self, rank: int, layers: list[RepeatedSteps], task: Task) -> int:
        """Layers whose weights are gathered one layer ahead, their gradients scattered behind."""
        gathers = [self.gather(rank, layers[0].steps)]
        node = -1
        for at, run in enumerate(layers):
            self.scatter(rank)
            if at + 1 < len(layers):
                gathers.append(self.gather(rank, layers[at + 1].steps, during=True))
            self.streams.wait(rank, gathers[at])
            node = self.streams.run(rank, (run.without_shards,), str(task))
            self.last_layers[rank] = (*self.last_layers.get(rank, ())[-1:], node)
            sent = [one for one in run.steps if one.part in SHARDED and not _is_gather(one)]
            self.unsent[rank] = (sent, node)
        return node

    def gather(self, rank: int, steps: Steps, during: bool = False) -> list[int]:
        """A layer's weights on their way; `during`: once the layer before this one has gone, else
        once the one before that has.
        """
        after = self.last_layers.get(rank, ())
        after = after[-1:] if during else after[:-1]
        return [
            self.streams.overlapped(rank, step, COMM, after)
            for step in steps
            if step.part == "zero" and _is_gather(step)
        ]

    def scatter(self, rank: int) -> None:
        """Gradients of a rank's last layer on their way."""
        steps, node = self.unsent.pop(rank, ([], -1))
        self.reduce(rank, steps, [node])

    def reduce(self, rank: int, steps: Iterable[PassStep], after: Sequence[int]) -> None:
        """Gradients on their way to their sum, while the rank goes on."""
        for step in steps:
            stream = REPLICAS if step.part == "replica" else COMM
            after = [self.streams.overlapped(rank, step, stream, after)]
            self.reductions[rank] += after

    def send_on(self, rank: int, task: Task, to: Task, node: int, arrived: dict[Task, int]) -> None:
        """A task's result on its way to the stage that needs it."""
        if self.send is None:
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
        if self.schedule.kind.pipes > 1:
            self.reduce_pairs(done, last_of)
        elif not waits.reduces_beside(c):
            for rank, stages in stages_of.items():
                weights = sum((stage_weights(c, stage) for stage in stages), Weights())
                run = RepeatedSteps(update.summed(c, weights), 1, backward=True)
                self.streams.run(rank, (run,), "gradients summed")
        if (tied := update.tied_reduction(c)) is not None:
            self.streams.together((0, layout.pp - 1), tied, EXCHANGE)
        for rank, stages in stages_of.items():
            self.scatter(rank)
            self.streams.hold(rank, self.reductions[rank])
            steps = [step for stage in stages for step in update.optimizer_passes(c, stage)]
            gathers = [step for stage in stages for step in update.gathered(c, stage)]
            gathers = [] if c.overlap_weights else gathers
            for some in filter(None, (steps, gathers)):
                run = RepeatedSteps(tuple(some), 1, backward=False)
                self.streams.run(rank, (run,), "update")
            layers = sum(sum(c.layers_of(stage)) for stage in stages)
            gathered = waits.layers_gathered(c, layers)
            if gathered and not waits.reduces_beside(c):
                self.streams.spend(rank, "layer_gather", gathered, "weights gathered by layer")
            self.streams.spend(rank, "fixed", 1.0, "end of step")

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


def _launch_note(host: Host | float | str | None) -> str:
    if host is None:
        return "no host: launches cost nothing, as in a replayed CUDA graph"
    if isinstance(host, str):
        return "launch overhead: default, not measured"
    if isinstance(host, Host):
        return "launches cost what a traced host's do"
    return f"launches cost {1e6 * host:.3g} µs each, see host="


def _is_gather(step: PassStep) -> bool:
    return step.collective.collective == "all_gather"


def refuse_unmodelled(config: TransformerConfig) -> None:
    """`InputError` for combinations nobody has measured."""
    layout, name = config.layout, config.layout.schedule
    two_pipes, cut = layout.kind.pipes > 1, f"stages cut by {config.stage_split}"
    refused = [
        (two_pipes and config.stage_split != "even", cut, "another schedule"),
        (two_pipes and layout.zero, f"ZeRO-{layout.zero}", "zero = 0"),
    ]
    for applies, what, instead in refused:
        if applies:
            raise InputError(f"schedule {name!r} with {what} is not modelled: take {instead}")
