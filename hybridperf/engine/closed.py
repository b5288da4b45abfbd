"""The time of a training step from the times of its parts: a closed form of the step's graph
(`transformer/step.py`), differentiable in every step effect.

    GPU of a block   products + attention + memory-bound ops + kernels x (exposed seconds)
                     + collectives that nothing hides; or gathers of sharded weights, if they take
                     longer: forward and backward apart; sums of shards over copies hide behind all
    host of a block  kernels x (launch cost, forward and backward apart)
                     + collectives x (cost of issuing one)
    equal blocks     the larger of GPU, behind a first launch, and host; the host runs ahead among
                     equal layers and no further (`transformer/step.py`)
    stage            its blocks forward and backward, and messages to its neighbours
    step             m max_stage + waits + exposed gradient reduction + optimizer + fixed

m micro-batches per step. For GPipe and 1F1B waits are sum_stages - max_stage, which measured steps
follow to under 1 %. What a pipeline's slowest worker waits for others, by schedule, is the rows'
own `pace` (`workloads/schedules/pace.py`), so that the engine knows no schedule.

The step is also the sum of four parts, as the slowest stage's GPU sees it:

    compute          products, attention and memory-bound ops, exposed seconds of kernels among
                     them; the optimizer's own
    communication    what nothing hides: collectives in blocks, what gathers outlast computation by,
                     messages, the exposed reduction, and updated weights on their way back
    bubble           waiting for other stages
    host             waiting for its own host: what blocks take longer than all of that, the
                     optimizer's launches, and `fixed_s`, the host's work around a step

Axes: N rows, P = 2 passes. Columns are NumPy's or JAX's (`io/namespace.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from hybridperf.engine.step_features import (
    BlockPrices,
    LayerSeconds,
    Pace,
    Passes,
    Stages,
    StepFeatures,
    StepParts,
)
from hybridperf.io.namespace import Array, array_module, fresh_views
from hybridperf.model.step_effects import ROLES, StepEffects

_ROUNDING = 1e-12  # of a step
_MIN_S = 1e-12


def step_seconds(
    f: StepFeatures, k: StepEffects, gpu_log: Array = 0.0, host_log: Array = 0.0,
    outer_log: Array = 0.0,
) -> StepParts:  # fmt: skip
    """Seconds of steps [N] and their parts; pure, differentiable in effects and corrections.

    Args:
        f: what is known of each row.
        k: step effects, one number each or a batch.
        gpu_log: correction of the log of a layer's GPU seconds [N].
        host_log: the same of its host's seconds [N].
        outer_log: the same of embedding and LM head [N].
    """
    step = _Step.of(f, k, (gpu_log, host_log, outer_log))
    compute_s, exposed_s, bubble_s, host_s = step.parts
    return StepParts(step.step_s, compute_s, exposed_s, bubble_s, host_s, step.layer_s)


def whole_seconds(
    f: StepFeatures, k: StepEffects, gpu_log: Array = 0.0, host_log: Array = 0.0,
    outer_log: Array = 0.0,
) -> Array:  # fmt: skip
    """`step_seconds` without the parts [N]."""
    return _Step.of(f, k, (gpu_log, host_log, outer_log)).step_s


def forward_seconds(
    f: StepFeatures, k: StepEffects, gpu_log: Array = 0.0, host_log: Array = 0.0,
    outer_log: Array = 0.0,
) -> Array:  # fmt: skip
    """Seconds of the forward passes alone of steps' micro-batches [N], as log-probabilities take:
    the slowest stage's of all but one, and one through all stages. Arguments of `step_seconds`.
    """
    step = _Step.of(f, k, (gpu_log, host_log, outer_log))
    xp, (first, other, last, *_) = step.xp, step.stages
    slowest_s = xp.maximum(xp.maximum(first.forward, other.forward), last.forward)
    through_s = first.forward + last.forward + xp.maximum(f.stages - 2, 0) * other.forward
    through_s = xp.where(f.stages == 1, first.forward, through_s)
    return (f.micro_batches - 1) * slowest_s + through_s + k.fixed_s


class _Step(NamedTuple):
    """A step's seconds [N], and what its parts come from."""

    xp: ModuleType
    f: StepFeatures
    blocks: _Blocks
    sends: _Sends
    stages: Stages
    slowest: Pace
    bubble_s: Array
    update_s: Array
    once_s: Array
    step_s: Array
    layer_s: Array

    @staticmethod
    def of(f: StepFeatures, k: StepEffects, logs: tuple[Array, Array, Array]) -> _Step:
        """Of features, effects and corrections, as `step_seconds` takes them."""
        xp = array_module(*vars(k).values(), *logs)
        if xp is not np:
            f, k, logs = fresh_views((f, k, logs))
        of_blocks = f.of_blocks
        once = StepEffects(**{name: f.by_block(one) for name, one in vars(k).items()})
        factors = (xp.exp(f.by_block(one)) for one in logs)
        unique = _blocks(xp, of_blocks, once.on_slowest(of_blocks.slowest), *factors)
        layer_s = f.by_row(unique.layer.forward.alone_s + unique.layer.backward.alone_s)
        blocks, ends_s = unique.by_row(f), f.by_row(_ends_s(xp, unique))
        sends = _sends(f, k)
        stages = _stages(xp, f, k, blocks, sends)
        assert f.pace is not None, "rows say how their schedule paces unlike stages"
        slowest = f.pace(xp, f, stages, _layer_seconds(xp, f, unique.layer))
        bubble_s = slowest.waits_s + _shown_s(xp, f, sends, stages, slowest)
        update_s = ROLES["optimizer"].seconds(k, f.optimizer_s, 0.0)
        updating_s = xp.maximum(update_s + k.launch_s, k.launch_s * f.optimizer_kernels)
        once_s = _exposed_s(xp, f, k, blocks) + ends_s
        once_s = once_s + _gathered_s(xp, f, k, blocks) - slowest.hidden_s
        if _some(of_blocks.layer.summed_s):
            once_s = once_s + _summed_s(xp, f, unique, stages, slowest)
        step_s = f.micro_batches * slowest.stage_s + bubble_s + once_s + updating_s + k.fixed_s
        return _Step(
            xp, f, blocks, sends, stages, slowest, bubble_s, update_s, once_s, step_s, layer_s
        )

    @property
    def parts(self) -> tuple[Array, Array, Array, Array]:
        """Seconds of computing, exposed communication, waiting for stages and for the host."""
        xp, m, step_s = self.xp, self.f.micro_batches, self.step_s
        work_s, comm_s = _of_slowest(xp, self.f, self.blocks, self.sends, self.stages, self.slowest)
        compute_s = m * work_s + self.update_s
        exposed_s = m * comm_s + self.once_s
        # only rounding puts it below zero, and so little above; what follows likewise
        exposed_s = xp.where(exposed_s > _ROUNDING * step_s, exposed_s, 0.0)
        host_s = xp.maximum(step_s - (compute_s + exposed_s + self.bubble_s), 0.0)
        return compute_s, exposed_s, self.bubble_s, host_s


class _Sends(NamedTuple):
    """Messages between neighbouring stages, of one micro-batch in one direction [N]."""

    shown_s: Array  # that hold a stage up
    hidden_s: Array  # that it computes beside
    posted_s: Array  # posting those of a forward pass, and their stalls


def _sends(f: StepFeatures, k: StepEffects) -> _Sends:
    p2p_s = ROLES["p2p"].seconds(k, f.sends_s, 1.0)
    posted_s = f.chunks * k.slot_s + k.stall_s * f.stalls
    return _Sends((1 - f.sends_hidden) * p2p_s, f.sends_hidden * p2p_s, posted_s)


def _stages(
    xp: ModuleType, f: StepFeatures, k: StepEffects, blocks: _Blocks, sends: _Sends
) -> Stages:
    """Stages of pipelines, and of rows without one the whole model, first and last at once."""
    v, launch_s, alone = f.chunks, k.launch_s * f.chunks, f.stages == 1
    embedding, layer, head, _ = blocks
    held = _Once(lambda work: _held(xp, launch_s, work))  # several ranks have the same work
    repeated = _Once(_Work.repeated)

    def rank(layers: Array, before: tuple[_Block, ...], behind: tuple[_Block, ...]) -> Passes:
        run = (*before, layer, *behind)
        if blocks.gathered:
            works = _in_order(xp, f, run, layers, at=len(before))
        else:
            works = _passes(run)
            for at in (len(before), -1 - len(before)):
                works[at] = repeated(works[at], layers)
        there, back = works[: len(run)], works[len(run) :]
        gpu_s = sum(work.gpu_s for work in works)
        return Passes(sum(map(held, there)), sum(map(held, back)), gpu_s)

    def sent(stage: Passes, forwards: Array, backwards: Array) -> Passes:
        forward_s = stage.forward + sends.posted_s + forwards * sends.shown_s
        return Passes(forward_s, stage.backward + backwards * sends.shown_s, stage.gpu_s)

    on_first, on_last, most = _equal(f.layers_first, f.layers_last, f.layers_most)
    first = sent(rank(on_first, (embedding,), ()), v, v - 1)
    last = sent(rank(on_last, (), (head,)), v - 1, v)
    other = sent(rank(most, (), ()), v, v)
    folded = f.folded > 0 if f.schedule is not None else np.zeros(1, bool)
    if _some(alone) or _some(folded):
        whole = rank(on_first, (embedding,), (head,))
        if _some(folded):  # the first stage holds the last chunk
            turned = rank(on_last, (), ())
            first = _either(xp, folded, sent(whole, v - 1, v - 1), first)
            last = _either(xp, folded, sent(turned, v - 1, v - 1), last)
        first, last = (_either(xp, alone, whole, one) for one in (first, last))
    others = xp.maximum(f.stages - 2, 0)
    fewer = others * f.layers_most - (f.layers - f.layers_first - f.layers_last)
    layer_s = layer.forward.alone_s + layer.backward.alone_s
    between_s = others * other.both_s - xp.where(others > 0, fewer * layer_s, 0.0)
    sum_s = xp.where(alone, first.both_s, first.both_s + last.both_s + between_s)
    other = Passes(*(xp.where(others > 0, one, 0.0) for one in other))
    ends_s = (held(block.forward) + held(block.backward) for block in (embedding, head))
    return Stages(first, other, last, sum_s, *ends_s)


class _Once:
    """A function that is asked once for the same objects."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._known: dict[tuple[int, ...], tuple[Any, Any]] = {}  # objects stay, and so their ids

    def __call__(self, *of: Any) -> Any:
        key = tuple(map(id, of))
        if key not in self._known:
            self._known[key] = of, self._function(*of)
        return self._known[key][1]


def _equal(first: Array, *others: Array) -> list[Array]:
    """The same columns; those that say what the first one says are that object."""
    known = array_module(first, *others) is np
    return [first, *(first if known and np.array_equal(one, first) else one for one in others)]


def _either(xp: ModuleType, chosen: Array, one: Passes, other: Passes) -> Passes:
    return Passes(*(xp.where(chosen, a, b) for a, b in zip(one, other, strict=True)))


def _of_slowest(
    xp: ModuleType, f: StepFeatures, blocks: _Blocks, sends: _Sends, stages: Stages, slowest: Pace
) -> tuple[Array, Array]:
    """Seconds of a micro-batch on the slowest worker: computing, and what nothing hides."""
    counts = slowest.embeddings, slowest.layers, slowest.heads
    work_s = sum(count * block.work_s for count, block in zip(counts, blocks[:3], strict=True))
    both_ends = (f.stages == 1) | (f.folded > 0)  # a first stage that holds the head, too
    as_last = xp.where(both_ends, 0.0, slowest.heads)
    others_s = xp.where(f.folded > 0, stages.last.gpu_s, stages.other.gpu_s)
    gpu_s = slowest.embeddings * stages.first.gpu_s + as_last * stages.last.gpu_s
    gpu_s = gpu_s + (1 - slowest.embeddings - as_last) * others_s
    messages = 2 * f.chunks - slowest.embeddings - slowest.heads
    messages_s = xp.where(f.stages == 1, 0.0, sends.posted_s + messages * sends.shown_s)
    return work_s, gpu_s - work_s + messages_s


def _layer_seconds(xp: ModuleType, f: StepFeatures, layer: _Block) -> LayerSeconds:
    """Of rows, from a layer of their blocks."""
    there, back = layer.forward.alone_s, layer.backward.alone_s
    worked = layer.backward.work_s / xp.maximum(layer.backward.gpu_s, _MIN_S)
    exchange_s = layer.forward.exchange_s + layer.backward.exchange_s
    return LayerSeconds(*map(f.by_row, (there, back, worked * back, exchange_s)))


class LeastSeconds(NamedTuple):
    """Seconds of one micro-batch on a rank, whatever is sharded and however stages take turns [N]:
    a stage of l layers takes l `layer_s` or more, one that is alone `outer_s` besides.
    """

    layer_s: Array
    outer_s: Array  # embedding and LM head
    work_s: Array  # of `layer_s`, the GPU's own work


def least_seconds(
    f: StepFeatures, k: StepEffects, gpu_log: Array = 0.0, host_log: Array = 0.0,
    outer_log: Array = 0.0,
) -> LeastSeconds:  # fmt: skip
    """A lower bound of what blocks take; of `f` count blocks, tp groups and `slowest` alone."""
    k = k.on_slowest(f.slowest)
    on_gpu, on_host, on_outer = (np.exp(log) for log in (gpu_log, host_log, outer_log))
    blocks = _blocks(np, f, k, on_gpu, on_host, on_outer, waits=False)
    embedding_s, layer_s, head_s = (
        block.forward.alone_s + block.backward.alone_s for block in blocks[:3]
    )
    return LeastSeconds(layer_s, embedding_s + head_s, blocks.layer.work_s)


class _Work(NamedTuple):
    """One pass of a block [N]."""

    gpu_s: Array  # with what nothing hides, and gathers if they take longer
    host_s: Array
    alone_s: Array  # of one among many alike: the larger of both
    busy_s: Array  # without gathers
    gather_s: Array  # of sharded weights, alongside
    scatter_s: Array  # of their gradients
    summed_s: Array  # of shards of these over their copies
    work_s: Array  # of the GPU alone, without communication
    exchange_s: Array  # messages that hold the rank up

    def repeated(self, times: Array) -> _Work:
        """As many, one after the other."""
        return self._replace(gpu_s=times * self.gpu_s, host_s=times * self.host_s)


class _Block(NamedTuple):
    """Both passes of a block [N]."""

    forward: _Work
    backward: _Work
    work_s: Array  # without communication


class _Blocks(NamedTuple):
    embedding: _Block
    layer: _Block
    head: _Block
    gathered: bool  # whether weights of some are gathered beside others

    def by_row(self, f: StepFeatures) -> _Blocks:
        """What stages are made of, of the rows that have these blocks."""
        beside = ("busy_s", "gather_s", "scatter_s") if self.gathered else ()
        names = ("gpu_s", "host_s", "alone_s", *beside)

        def rows(block: _Block) -> _Block:
            there, back = (
                one._replace(**{name: f.by_row(getattr(one, name)) for name in names})
                for one in block[:2]
            )
            return _Block(there, back, f.by_row(block.work_s))

        if f.alike is None:
            return self
        embedding, layer, head = map(rows, self[:3])
        return _Blocks(embedding, layer, head, self.gathered)


def _blocks(
    xp: ModuleType, f: StepFeatures, k: StepEffects, on_gpu: Array, on_host: Array, on_outer: Array,
    waits: bool = True,
) -> _Blocks:  # fmt: skip
    blocks = f.embedding, f.layer, f.head
    beside = (leaf for block in blocks for leaf in (block.gather_s, block.scatter_s))
    gathered = any(map(_some, beside)) and _some(f.gathers_hidden)
    return _Blocks(
        _block(xp, f, f.embedding, k, on_outer, on_outer, input_s=k.input_s),
        _block(xp, f, f.layer, k, on_gpu, on_host, waits=waits),
        _block(xp, f, f.head, k, on_outer, on_outer),
        gathered,
    )


def _some(column: Array) -> bool:
    """Whether a column may have numbers other than zero."""
    return array_module(column) is not np or bool(np.any(column))


def _held(xp: ModuleType, launch_s: Array, work: _Work) -> Array:
    """Seconds of equal blocks, one after the other, until the later of GPU and host is done.

    Smoothly, as a p-norm of 24 (3 % above the larger where both are equal, 0.05 % where one is 1.2
    times the other): fits to measured steps follow its slopes, which a maximum breaks.
    """
    host_s, gpu_s = work.host_s, work.gpu_s + launch_s
    most = xp.maximum(host_s, gpu_s) + _MIN_S
    share = xp.minimum(host_s, gpu_s) / most
    to_8 = ((share * share) ** 2) ** 2
    return most * (1 + to_8 * to_8 * to_8) ** (1 / 24)


def _in_order(
    xp: ModuleType, f: StepFeatures, blocks: Sequence[_Block], layers: Array, at: int
) -> list[_Work]:
    """What a rank runs in turns, forward and backward through its blocks, equal layers together:
    block `at` is as many, and weights of some blocks are gathered beside others.

    While a block runs, gradients of the one before it are scattered and weights of the next one
    gathered. Passes take turns, but for schedules with all forward passes first; so do an
    interleaved pipeline's chunks, each a run of layers.
    """
    works = _passes(blocks)
    half, turns = len(blocks), f.forwards_first == 0

    found = []
    for place, work in enumerate(works):
        first, last = place // half * half, place // half * half + half - 1
        scatter_s = works[place - 1].scatter_s
        if place == first:  # or that of the same pass of another micro-batch
            scatter_s = xp.where(turns, scatter_s, works[last].scatter_s)
        gather_s = works[(place + 1) % len(works)].gather_s
        if place == last:
            gather_s = xp.where(turns, gather_s, works[first].gather_s)
        other = works[len(works) - 1 - place]
        if place not in (at, len(works) - 1 - at):
            gpu_s = xp.maximum(work.busy_s, scatter_s + gather_s)
            found.append(work._replace(gpu_s=gpu_s))
            continue
        runs_s = _run_s(xp, work, scatter_s, gather_s)
        chunk_s = _run_s(
            xp, work, xp.where(turns, other.scatter_s, work.scatter_s),
            xp.where(turns, other.gather_s, work.gather_s),
        )  # fmt: skip
        between_s = xp.maximum(work.busy_s, work.scatter_s + work.gather_s)
        gpu_s = runs_s + (f.chunks - 1) * chunk_s + (layers - 2 * f.chunks) * between_s
        found.append(work.repeated(layers)._replace(gpu_s=gpu_s))
    return found


def _passes(blocks: Sequence[_Block]) -> list[_Work]:
    """Forward passes of blocks in their order, then backward ones in the other."""
    return [*(one.forward for one in blocks), *(one.backward for one in reversed(blocks))]


def _run_s(xp: ModuleType, work: _Work, scatter_s: Array, gather_s: Array) -> Array:
    """First and last of a run of equal blocks, by what is scattered before and gathered behind."""
    first_s = xp.maximum(work.busy_s, scatter_s + work.gather_s)
    return first_s + xp.maximum(work.busy_s, work.scatter_s + gather_s)


def _ends_s(xp: ModuleType, blocks: _Blocks) -> Array:
    """Once a step: the first stage's first weights are gathered beside nothing, its last gradients
    scattered beside nothing, and neither beside what `_in_order` counts.
    """
    first, there = blocks.embedding.forward, blocks.layer.forward
    end, back = blocks.embedding.backward, blocks.layer.backward
    before_s = xp.maximum(first.busy_s, end.scatter_s + there.gather_s)
    behind_s = xp.maximum(end.busy_s, back.scatter_s + first.gather_s)
    at_first_s = first.gather_s + xp.maximum(first.busy_s, there.gather_s)
    at_last_s = xp.maximum(end.busy_s, back.scatter_s) + end.scatter_s
    return at_first_s + at_last_s - before_s - behind_s


def _summed_s(
    xp: ModuleType, f: StepFeatures, blocks: _Blocks, stages: Stages, slowest: Pace
) -> Array:  # fmt: skip
    """Seconds from the last scatter to the last sum of shards over their copies [N].

    Sums queue in a stream of their own, each behind the scatter of its shard, and the update alone
    awaits them: those of the last block; of it and one layer; of the last run of layers, with the
    head of a stage that is alone; of all backward passes.
    """
    end, layer, head = (one.backward for one in blocks[:3])
    ends_s = xp.maximum(end.busy_s, layer.scatter_s) + end.scatter_s  # of what follows all layers
    of_end_s, of_layer_s, of_head_s, ends_s, scatter_s, head_scatter_s, layer_s = (
        f.by_row(one)
        for one in (
            end.summed_s, layer.summed_s, head.summed_s, ends_s, layer.scatter_s, head.scatter_s,
            layer.alone_s,
        )
    )  # fmt: skip
    alone, held = f.stages == 1, _in_turn(xp, f)[1]
    since_s = ends_s + held * layer_s - xp.where(alone, head_scatter_s, layer_s + scatter_s)
    of_run_s = of_end_s + held * of_layer_s + alone * of_head_s
    of_pass_s = of_run_s + (f.layers_first - held) * of_layer_s
    pass_s = xp.where(f.forwards_first > 0, stages.first.backward, slowest.stage_s)
    ends = (
        of_end_s + of_layer_s - (ends_s - scatter_s),
        of_run_s - since_s,
        f.micro_batches * of_pass_s - (f.micro_batches - 1) * pass_s - since_s,
    )
    return functools.reduce(xp.maximum, ends, of_end_s)


def _block(
    xp: ModuleType, f: StepFeatures, block: BlockPrices, k: StepEffects, on_gpu: Array,
    on_host: Array, input_s: Array = 0.0, waits: bool = False,
) -> _Block:  # fmt: skip
    works, work_s = [], 0.0
    for at, backward in ((0, False), (1, True)):
        part = BlockPrices(
            **{name: leaf[at] if _some(leaf[at]) else 0.0 for name, leaf in vars(block).items()}
        )
        busy_s = _gpu_s(part, k) * on_gpu
        comm_s = _comm_s(xp, f, part, k) * on_gpu
        gathers_s = ROLES["gather"].seconds(k, part.gather_s, 1.0)
        scatters_s = ROLES["gather"].seconds(k, part.scatter_s, 1.0)
        sums_s = ROLES["gather"].seconds(k, part.summed_s, 1.0)
        sharded_s = gathers_s + scatters_s
        rank_s = busy_s + comm_s + (1 - f.gathers_hidden) * (sharded_s + sums_s)
        held_s = xp.maximum(rank_s, f.gathers_hidden * sharded_s)
        kernels = part.kernels * (k.backward_launch if backward else 1.0)
        calls = part.tp_calls + part.exchange_calls + part.gather_calls
        host_s = k.launch_s * kernels + k.collective_launch_s * calls
        if waits:
            host_s = host_s + _waits_s(xp, f, part, k)
        host_s = (host_s + (0.0 if backward else input_s)) * on_host
        exchange_s = ROLES["exchange"].seconds(k, part.exchange_s, 1.0) * on_gpu
        alone_s = xp.maximum(held_s, host_s)
        gathers_s, scatters_s, sums_s = (
            f.gathers_hidden * one for one in (gathers_s, scatters_s, sums_s)
        )
        works.append(
            _Work(
                held_s, host_s, alone_s, rank_s, gathers_s, scatters_s, sums_s, busy_s, exchange_s
            )
        )
        work_s = work_s + busy_s
    return _Block(works[0], works[1], work_s)


def _gpu_s(part: BlockPrices, k: StepEffects) -> Array:
    """GPU seconds of one pass without communication."""
    products_s = ROLES["gemm"].seconds(k, part.gemm_s, part.kernels)
    others = {
        "experts": part.experts_s, "attention": part.attention_s, "memory": part.memory_s,
    }  # fmt: skip
    return products_s + sum(ROLES[name].scale(k) * alone_s for name, alone_s in others.items())


def _comm_s(xp: ModuleType, f: StepFeatures, part: BlockPrices, k: StepEffects) -> Array:
    """Communication of one pass that holds the rank up."""
    inside_s = ROLES["tp"].seconds(k, part.tp_s, part.tp_calls)
    nodes = f.tp_nodes * part.tp_calls
    exchange_s = ROLES["exchange"].seconds(k, part.exchange_s, 1.0)
    ring_s = ROLES["exchange"].seconds(k, part.ring_s, 1.0)
    exchange_s = exchange_s + xp.maximum(ring_s - ROLES["attention"].scale(k) * part.hiding_s, 0.0)
    # waiting for a network takes nothing from computing: only the part inside a node shows
    shown_s = f.gathers_hidden * ROLES["gather_shown"].seconds(k, part.gather_inside_s, 1.0)
    if not _some(f.tp_nodes > 1):
        return inside_s + exchange_s + shown_s
    across_s = ROLES["tp_across"].seconds(k, part.tp_s, nodes)
    if _some(f.waiting):
        waiting_s = ROLES["tp_waiting"].seconds(k, part.tp_s, nodes)
        across_s = xp.where(f.waiting > 0, waiting_s, across_s)
    return xp.where(f.tp_nodes > 1, across_s, inside_s) + exchange_s + shown_s


def _waits_s(xp: ModuleType, f: StepFeatures, part: BlockPrices, k: StepEffects) -> Array:
    """What a layer's host waits for in one pass (`transformer/waits.py`)."""
    ring_s = ROLES["ring"].seconds(k, 0.0, f.tp_nodes * part.tp_calls)
    waits_s = k.crossing_tp_s * f.tp / 2 + xp.where(f.tp_nodes > 1, ring_s, 0.0)
    return f.crossing * xp.where(f.tp > 1, waits_s, 0.0)


def _shown_s(
    xp: ModuleType, f: StepFeatures, sends: _Sends, stages: Stages, slowest: Pace
) -> Array:
    """What messages that computation hides still show [N].

    While a pipeline fills and drains each is on the longest path, and where a round trip through
    all stages takes longer than the slowest one needs for as many micro-batches as there are
    stages, each round trip waits for it.
    """
    send_s = sends.hidden_s
    filling_s = 2 * (f.chunks * f.stages - 1 - f.folded) * send_s  # one turn needs no message
    trips = xp.floor((f.micro_batches - 1) / f.stages)
    trip_s = stages.sum_s + 2 * (f.stages - 1) * send_s - f.stages * slowest.stage_s
    trips_s = xp.where(f.chunks > 1, 0.0, trips * xp.maximum(trip_s, 0.0))
    return xp.where(f.stages == 1, 0.0, filling_s + trips_s)


def _exposed_s(xp: ModuleType, f: StepFeatures, k: StepEffects, blocks: _Blocks) -> Array:
    """What of gradients' reduction nothing hides: the last bucket at least.

    An interleaved pipeline's chunks are done one after the other, with a backward pass of each
    stage between them: the others' gradients are reduced meanwhile.
    """
    role = ROLES["reduction"]
    sums = (f.reduction_s, f.reduction_tail_s, f.reduction_last_s, f.tied_s)
    whole_s, tail_s, last_s, tied_s = (role.seconds(k, one, 1.0) for one in sums)
    end_s, layer_s = (block.backward.alone_s for block in blocks[:2])
    chunks, held = _in_turn(xp, f)
    others = f.layers_first - held
    slower_s = k.overlap_shown * (whole_s - last_s)
    singly_s = k.layer_gather_s * f.gathered_layers * f.reduction_hidden
    whole_s, tail_s = whole_s + singly_s, tail_s + singly_s / xp.maximum(f.layers_first, 1.0)
    hiding_s = xp.maximum(f.hiding_layers - others, 0.0) * layer_s + end_s
    beside_s = whole_s - f.stages * others * layer_s - hiding_s
    beside_s = xp.maximum(beside_s, whole_s / chunks - hiding_s)
    beside_s = xp.maximum(beside_s, xp.maximum(tail_s - end_s, last_s) + slower_s)
    beside_s = xp.maximum(beside_s, tied_s)
    return xp.where(f.reduction_hidden > 0, beside_s, whole_s + tied_s)


def _in_turn(xp: ModuleType, f: StepFeatures) -> tuple[Array, Array]:
    """Chunks of the first stage that follow each other in an interleaved pipeline, and layers of
    one of them [N].
    """
    chunks = xp.where(f.folded > 0, 1.0, f.chunks)
    return chunks, f.layers_first / chunks


def _gathered_s(xp: ModuleType, f: StepFeatures, k: StepEffects, blocks: _Blocks) -> Array:
    """What nothing hides of gathering weights that were updated in shards.

    Beside the first forward pass each part awaits its own, one gather after the other: embedding,
    layers, and the head of a stage that is alone. Those of an interleaved pipeline's later chunks
    have a forward pass of each stage for each chunk before them.
    """
    sums = (f.updated_s, f.updated_first_s, f.updated_last_s)
    whole_s, first_s, last_s = (ROLES["reduction"].seconds(k, one, 1.0) for one in sums)
    layers_s = whole_s - first_s - last_s
    begun_s, there_s = (block.forward.alone_s for block in blocks[:2])
    chunks, held = _in_turn(xp, f)
    of_layer_s = layers_s / xp.maximum(f.layers_first, 1.0)
    before_s = begun_s + (held - 1) * there_s
    after_layers_s = first_s + layers_s - before_s - f.stages * (chunks - 1) * held * there_s
    after_layers_s = xp.maximum(after_layers_s, first_s + layers_s / chunks - before_s)
    late_s = xp.maximum(first_s, first_s + of_layer_s - begun_s)
    late_s = late_s + k.overlap_shown * (whole_s - first_s - of_layer_s)
    late_s = xp.maximum(late_s, xp.maximum(after_layers_s, after_layers_s + last_s - there_s))
    singly_s = k.layer_gather_s * f.gathered_layers * (1 - f.reduction_hidden)
    return xp.where(f.updates_hidden > 0, late_s, whole_s) + singly_s
