"""What the composition knows of each row, from the passes of its parts: unique cells are built and
priced once (`cells.py`).

How many layers, stages, replicas and micro-batches there are does not change a layer, so a sweep of
thousands of layouts has some tens of cells. What happens once a step, and messages between stages,
are unique things of their own.

Axes: N rows, P = 3 phases.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.engine.workload import CollectiveCall
from hybridperf.ops import BatchedGemm, Gemm, OpCall, PrefillAttention
from hybridperf.training.steps.cells import (
    Sums,
    Unique,
    cell_key,
    cells_of,
    kernels_key,
    shards_key,
    shards_of,
)
from hybridperf.training.steps.compose import Block, Features
from hybridperf.training.steps.prices import Doubts, Prices
from hybridperf.workloads.transformer.codes import SCHEDULES
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import gradient_reduction, optimizer_passes, send_call
from hybridperf.workloads.transformer.passes import PassStep
from hybridperf.workloads.transformer.stages import stage_layers
from hybridperf.workloads.transformer.update import summed_over_pipes, tied_reduction

# knobs of messages, by the group that exchanges them
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp", "tp_across"), "cp": ("exchange",), "ep": ("exchange",), "shard": ("gather",),
    "data": ("reduction",), "pp": ("p2p",),
}  # fmt: skip
_PROBED_BYTES = 64e6
# share of a step that waits for its host, from which on experts are said to be launched one by one
_WAITING = 0.1


def features(
    configs: Sequence[TransformerConfig], prices: Prices, with_doubts: bool = True
) -> Features:
    """Features [N] of rows that run on one device and its links; `InputError` where a call cannot
    be priced.
    """
    cells = Unique([cell_key(config) for config in configs], configs)
    shards = Unique([("shards", *shards_key(config)) for config in configs], configs)
    once = Unique([_once(config) for config in configs], configs)
    messages = Unique([_message(config) for config in configs], configs)
    new_cells, new_shards = cells.not_in(prices.cells), shards.not_in(prices.cells)
    new_once, new_messages = once.not_in(prices.once), messages.not_in(prices.once)
    passes = [*cells_of(new_cells.values(), prices.kept), *map(shards_of, new_shards.values())]
    summed = Sums(passes)
    ends = [_Ends.of(_whole_stages(config)) for config in new_once.values()]
    sends = [send_call(config) for config in new_messages.values()]
    prices.learn(summed.calls())
    prices.learn(step.call for end in ends for step in (*end.reduction, *end.optimizer))
    prices.learn(call for call in sends if call is not None)
    prices.cells.update(zip((*new_cells, *new_shards), summed.amounts(prices), strict=True))
    prices.once.update(zip(new_once, (end.sums(prices) for end in ends), strict=True))
    prices.once.update(
        zip(new_messages, ((0.0 if call is None else prices[call],) for call in sends), strict=True)
    )
    computed, gathered = (
        np.stack([prices.cells[key] for key in one.keys], -1)[..., one.of]
        for one in (cells, shards)
    )
    layer, embedding, head = (
        Block(*of_block) for of_block in computed + gathered
    )  # [blocks, fields, P, N]
    stages = np.array([_stages(config) for config in configs], float).T
    columns = np.array(
        [
            (
                config.shape.depth,
                config.layout.pp,
                config.layout.accumulation,
                _fill(config),
                config.layout.vp,
                float(config.overlap_sends),
                config.group("tp").nodes,
                float(config.overlap_gradients),
                config.layout.tp,
                SCHEDULES.index(config.layout.schedule),
            )
            for config in configs
        ],
        float,
    ).T
    depth, pp, m, fill, chunks, sends_hidden, tp_nodes, reduction_hidden, tp, schedule = columns
    reduction_s, reduction_calls, updated_s, optimizer_s, optimizer_kernels = np.array(
        [prices.once[key] for key in once.keys]
    )[once.of].T
    sends_s = np.array([prices.once[key][0] for key in messages.keys])[messages.of]
    splits = [at for at, config in enumerate(configs) if config.layout.schedule == "zero_bubble"]
    weight_share = np.zeros_like(tp)
    weight_share[splits] = [_weight_share(configs[at], prices) for at in splits]
    nothing = np.zeros_like(tp)  # what frameworks add is put in by `with_crossings`
    return Features(
        layer=layer,
        embedding=embedding,
        head=head,
        layers_first=stages[0],
        layers_last=stages[1],
        layers_most=stages[2],
        layers=depth,
        stages=pp,
        micro_batches=m,
        fill=fill,
        chunks=chunks,
        sends_s=sends_s,
        sends_hidden=sends_hidden,
        tp_nodes=tp_nodes,
        reduction_s=reduction_s,
        reduction_calls=reduction_calls,
        updated_s=updated_s,
        reduction_hidden=reduction_hidden,
        optimizer_s=optimizer_s,
        optimizer_kernels=optimizer_kernels,
        tp=tp,
        waiting=nothing,
        crossing=nothing,
        stalls=nothing,
        gathered_layers=nothing,
        schedule=schedule,
        weight_share=weight_share,
        doubt=(
            np.stack([doubts_of(config, prices).widths for config in configs], -1)
            if with_doubts
            else None
        ),
    )


def doubts_of(config: TransformerConfig, prices: Prices) -> Doubts:
    """How sure the prices of a row are, and what is to be said of them."""
    key = _doubted(config)
    if key not in prices.sure:
        prices.sure[key] = prices.doubts(_probes(config))
    return prices.sure[key]


def experts_said(config: TransformerConfig, host_share: float) -> str:
    """What is assumed of launching experts, where a step of experts waits for its host; ""
    elsewhere.
    """
    experts = config.shape.experts // config.layout.ep
    if config.grouped_experts or experts < 2 or host_share < _WAITING:
        return ""
    return (
        f"{100 * host_share:.0f} % of the step waits for the host, which launches products of"
        f" {experts} experts of a rank one by one, as Transformer Engine's grouped layers do by"
        " default; one kernel for all, or a graph of launches, would wait less"
    )


@functools.lru_cache(65536)
def _doubted(config: TransformerConfig) -> tuple[Any, ...]:
    """All that doubts depend on."""
    return (
        config.dtype,
        config.quant,
        config.attention,
        config.layout.zero >= 2,
        *(config.group(dim) for dim in _GROUPS),
    )


def _probes(config: TransformerConfig) -> list[tuple[str, OpCall | CollectiveCall]]:
    """A call for what each knob multiplies."""
    square, heads = (4096.0,) * 3, (128.0, 2048.0, 2048.0, 128.0)
    product = Gemm(config.dtype, *square, quant=config.quant)
    attention = (
        PrefillAttention(config.dtype, 1.0, 4096.0, 16.0, 128.0)
        if config.attention == "fused"
        else BatchedGemm(config.dtype, *heads)
    )
    found: list[tuple[str, OpCall | CollectiveCall]] = [
        ("gemm", OpCall(product)),
        ("attention", OpCall(attention)),
    ]
    for dim, knobs in _GROUPS.items():
        group = config.group(dim)
        if group.ranks > 1 and (dim != "shard" or config.layout.zero >= 2):
            call = CollectiveCall("all_reduce", _PROBED_BYTES, group.ranks, group.nodes)
            found += [(knob, call) for knob in knobs]
    return found


def joined(parts: Sequence[tuple[Features, np.ndarray]], rows: int) -> Features:
    """Features of `rows` rows from those of some of them, each with the places that they take."""

    def put(*leaves: np.ndarray) -> np.ndarray:
        out = np.ones((*leaves[0].shape[:-1], rows))
        for leaf, (_, at) in zip(leaves, parts, strict=True):
            out[..., at] = leaf
        return out

    return jax.tree.map(put, *(part for part, _ in parts))


def picked(f: Features, rows: Any) -> Features:
    """The features of some rows."""
    return jax.tree.map(lambda leaf: leaf[..., rows], f)


@functools.lru_cache(65536)
def _once(config: TransformerConfig) -> tuple[Any, ...]:
    """All that what happens once a step depends on."""
    x = config.layout
    groups = tuple(config.group(dim) for dim in ("data", "shard", "replica", "expert_data", "pp"))
    cut = (config.stage_split, x.schedule == "chimera")
    return (
        config.shape,
        x.zero,
        x.tp,
        x.pp,
        x.ep,
        x.expert_tp,
        *cut,
        *kernels_key(config),
        *groups,
    )


@functools.lru_cache(65536)
def _message(config: TransformerConfig) -> tuple[Any, ...]:
    """All that a message to the next stage depends on."""
    x = config.layout
    sizes = (x.tp, x.cp, x.sequence_parallel, x.micro_batch, x.pp > 1, config.group("pp").nodes > 1)
    return ("message", config.shape, sizes, config.dtype, config.scatter_gather)


def _whole_stages(config: TransformerConfig) -> TransformerConfig:
    """The config without interleaving: once a step a rank reduces and updates all of its chunks
    together.
    """
    if config.layout.vp == 1:
        return config
    return config.replace(layout=config.layout.replace(vp=1, schedule="1f1b"))


@dataclasses.dataclass(frozen=True)
class _Ends:
    """What happens once a step, on the rank that has most of it."""

    reduction: tuple[PassStep, ...]
    optimizer: tuple[PassStep, ...]

    @staticmethod
    def of(config: TransformerConfig) -> _Ends:
        ends = tuple(dict.fromkeys((0, config.stages - 1)))
        if config.layout.schedule == "chimera":  # a rank holds both
            tied = tied_reduction(config)
            sums = tuple(summed_over_pipes(config, stage) for stage in ends)
            updates = tuple(step for stage in ends for step in optimizer_passes(config, stage))
            return _Ends(sums if tied is None else (tied, *sums), updates)
        of_stages = [
            (optimizer_passes(config, stage), gradient_reduction(config, stage)) for stage in ends
        ]
        optimizer, reduction = max(
            of_stages, key=lambda both: sum(float(step.op.work().bytes) for step in both[0])
        )
        return _Ends(reduction, optimizer)

    def sums(self, prices: Prices) -> tuple[float, float, float, float, float]:
        """(seconds of reductions, how many, seconds of weights gathered behind the optimizer,
        seconds of the optimizer, its kernels).
        """
        gathers = [step for step in self.reduction if step.collective.collective == "all_gather"]
        updated_s = sum(prices[step.call] for step in gathers)
        return (
            sum(prices[step.call] for step in self.reduction) - updated_s,
            float(len(self.reduction)), updated_s,
            sum(prices[step.call] for step in self.optimizer),
            float(sum(step.kernels for step in self.optimizer)),
        )  # fmt: skip


def _stages(config: TransformerConfig) -> tuple[float, float, float]:
    """Layers of the first stage, of the last, of the fullest of the others (of the first where
    there are no others).
    """
    return _stage_layers(
        config.shape.depth,
        config.layout.pp,
        config.layout.vp,
        config.stage_split,
        config.shape.head_layers,
    )


@functools.lru_cache(maxsize=4096)
def _stage_layers(
    depth: int, pp: int, vp: int, split: Any, head_layers: float
) -> tuple[float, float, float]:
    pieces = np.array(
        [int(stage_layers(depth, pp * vp, at, split, head_layers)) for at in range(pp * vp)]
    )
    held = pieces.reshape(vp, pp).sum(0)  # a stage holds every pp-th piece
    return float(held[0]), float(held[-1]), float(held[1:-1].max() if pp > 2 else held[0])


def _weight_share(config: TransformerConfig, prices: Prices) -> float:
    """Share of a layer's backward that makes its weights' gradients, as the op model prices it."""
    key = ("weight share", *cell_key(config))
    if key not in prices.once:
        (cell,) = cells_of([config], prices.kept)
        steps = [
            (share, step) for share, passes in cell.layers for step in passes.backward if step.is_op
        ]
        whole, weights = (
            sum(share * prices[step.call] for share, step in steps if chosen(step))
            for chosen in (lambda _: True, lambda s: s.weight_gradient)
        )
        prices.once[key] = (weights / whole,)
    return float(prices.once[key][0])


def _fill(config: TransformerConfig) -> float:
    """How much of a pipeline's filling and draining shows, of 1F1B's."""
    layout = config.layout
    if layout.schedule == "interleaved" or layout.vp > 1:
        return 1.0 / layout.vp
    return 1.0
