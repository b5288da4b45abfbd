"""What the composition knows of each row, from the passes of its parts: unique cells are built and
priced once (`cells.py`).

How many layers, stages, replicas and micro-batches there are does not change a layer, so a sweep of
thousands of layouts has some tens of cells. What happens once a step, and messages between stages,
are unique things of their own.

Axes: N rows, F fields of a block, P = 2 passes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.engine.step_features import SHARED, Alike, BlockPrices, StepFeatures
from hybridperf.model.calls import Call, GivenSeconds
from hybridperf.model.step_effects import slowest_of
from hybridperf.model.unmeasured import Unmeasured, unmeasured
from hybridperf.training.steps.cells import (
    Cells,
    Prices,
    cell_key,
    shards_key,
    shards_of,
)
from hybridperf.workloads.schedules.pace import pace
from hybridperf.workloads.transformer import waits
from hybridperf.workloads.transformer.columns import FORWARDS_FIRST, SCHEDULES
from hybridperf.workloads.transformer.config import TransformerConfig, fields_entering
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.in_step import GROUP_EFFECTS, call_in_step, probes
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.parts import optimizer_passes, send_call
from hybridperf.workloads.transformer.passes import PassStep
from hybridperf.workloads.transformer.shape import stage_layers
from hybridperf.workloads.transformer.update import (
    Bucket,
    buckets,
    gathered,
    gathered_by_part,
    summed_over_pipes,
    tied_reduction,
)

# fields of a config that what happens once a step depends on, and a message to the next stage
_OF_ONCE, _OF_MESSAGE = (
    operator.attrgetter(*fields_entering(part)) for part in ("once", "message")
)
_OF_UPDATE = (
    "reduction_s", "reduction_tail_s", "reduction_last_s", "hiding_layers", "tied_s", "updated_s",
    "updated_first_s", "updated_last_s", "optimizer_s", "optimizer_kernels",
)  # fmt: skip
# share of a step that waits for its host, from which on experts are said to be launched one by one
_WAITING = 0.1
_NOTHING = GivenSeconds(0.0)


def features(configs: Sequence[TransformerConfig], prices: Prices) -> StepFeatures:
    """Features [N] of rows on one device and its links; `InputError` for a call without price."""
    rows = _Unique(map(_but_micro_batches, configs), configs)
    found = _features(rows.unique, prices).picked(rows.of)
    micro_batches = np.array([config.layout.accumulation for config in configs], float)
    return dataclasses.replace(found, micro_batches=micro_batches)


_LAID_OUT = operator.attrgetter(
    *(one.name for one in dataclasses.fields(Layout) if one.name != "accumulation")
)


def _but_micro_batches(config: TransformerConfig) -> tuple[Any, ...]:
    """All that features depend on but the number of micro-batches, of which many rows differ alone:
    of it counts whether there are several. Equal templates that are two objects stay apart.
    """
    x = config.layout
    return id(config.template), config.gpus_per_node, _LAID_OUT(x), x.accumulation > 1


def _features(configs: Sequence[TransformerConfig], prices: Prices) -> StepFeatures:
    cells = _Unique(map(cell_key, configs), configs)
    new = cells.not_in(prices.cells)
    priced = Sums.of(Cells.of([*new.values()], prices), configs, configs, configs, prices)
    prices.cells.update(zip(new, np.moveaxis(priced.cells, -1, 0), strict=True))
    widths = np.stack([unmeasured_of(config, prices).widths for config in configs], -1)
    values = row_columns(configs) | priced.of_update
    alike = Alike.of_keys(cells.of, priced.shard_of, *(values[name] for name in SHARED))
    computed = np.stack([prices.cells[key] for key in cells.keys], -1)
    # [blocks, fields, P, C]
    blocks = computed.take(cells.of[alike.first], -1)
    blocks += priced.shards.take(priced.shard_of[alike.first], -1)
    layer, embedding, head = (BlockPrices(*fields) for fields in blocks)
    return StepFeatures(
        layer, embedding, head, unmeasured_widths=widths, sends_s=priced.sends_s, pace=pace,
        **values, alike=alike,
    )  # fmt: skip


class _Unique:
    """Of things with keys: the first of each key, and which of them stands for each thing."""

    def __init__(self, keys: Iterable[Any], things: Sequence[TransformerConfig]):
        place: dict[Any, int] = {}
        self.of = np.array([place.setdefault(key, len(place)) for key in keys], int)
        self.keys = list(place)
        first = np.unique(self.of, return_index=True)[1]
        self.unique = [things[at] for at in first]

    def not_in(self, known: Mapping[Any, Any]) -> dict[Any, TransformerConfig]:
        """Keys that are new, with the thing that stands for each."""
        pairs = zip(self.keys, self.unique, strict=True)
        return {key: thing for key, thing in pairs if key not in known}


class Sums(NamedTuple):
    """What unique things come to, their calls priced together."""

    cells: np.ndarray  # [3 blocks, F, P, C]
    shards: np.ndarray  # gathers of sharded weights, likewise, each once
    shard_of: np.ndarray  # int [n] which of them each config has
    once: np.ndarray  # [n, `_OF_UPDATE`] of what happens once a step
    sends_s: np.ndarray  # [n] of messages to the next stage

    @staticmethod
    def of(
        cells: Cells, shards: Sequence[TransformerConfig], once: Sequence[TransformerConfig],
        messages: Sequence[TransformerConfig], prices: Prices,
    ) -> Sums:  # fmt: skip
        """Of cells, and of configs that stand for all others [n each]."""
        sharded = _Unique([("shards", *shards_key(config)) for config in shards], shards)
        updated, sent = _Unique(map(_once, once), once), _Unique(map(_message, messages), messages)
        new_shards, new_once = sharded.not_in(prices.cells), updated.not_in(prices.once)
        new_sends = sent.not_in(prices.once)
        gathers = shards_of([*new_shards.values()], prices)
        updates = [_Update.of(_whole_stages(config)) for config in new_once.values()]
        calls = [send_call(config) for config in new_sends.values()]
        sends = np.array([prices.number(call or _NOTHING) for call in calls], int)
        numbers = [prices.number(call) for one in updates for call in one.calls]
        prices.seconds(np.concatenate([cells.calls, gathers.calls, sends, numbers]))
        gathered = np.moveaxis(gathers.sums(gathers.pieces(prices)), -1, 0)
        prices.cells.update(zip(new_shards, gathered, strict=True))
        prices.once.update(zip(new_once, (one.sums(prices) for one in updates), strict=True))
        prices.once.update(zip(new_sends, prices.seconds(sends), strict=True))
        of_update = np.array([prices.once[key] for key in updated.keys]).reshape(
            -1, len(_OF_UPDATE)
        )
        return Sums(
            cells.sums(cells.pieces(prices)),
            np.stack([prices.cells[key] for key in sharded.keys], -1),
            sharded.of,
            of_update[updated.of],
            np.array([prices.once[key] for key in sent.keys])[sent.of],
        )

    @property
    def of_update(self) -> dict[str, np.ndarray]:
        """What happens once a step, by its name [n]."""
        return dict(zip(_OF_UPDATE, self.once.T, strict=True))


def row_columns(configs: Iterable[TransformerConfig]) -> dict[str, np.ndarray]:
    """What rows say without a price [N] each."""
    each = [_columns(config) for config in configs]
    rows = np.array([[*one.values()] for one in each], float)
    return dict(zip(each[0], rows.T, strict=True))


@functools.lru_cache(65536)
def _columns(config: TransformerConfig) -> Mapping[str, float]:
    """What a row says without a price, by columns of `StepFeatures`."""
    x, stages, code = config.layout, _stages(config), SCHEDULES.index(config.layout.schedule)
    one_way = x.kind.pipes == 1
    return dict(
        layers_first=stages[0], layers_last=stages[1], layers_most=stages[2],
        layers=config.shape.depth, stages=x.pp, micro_batches=x.accumulation, chunks=x.vp,
        sends_hidden=config.overlap_sends, tp_nodes=config.group("tp").nodes,
        gathers_hidden=config.overlap_shards,
        reduction_hidden=waits.reduces_beside(config) and one_way, tp=x.tp, schedule=code,
        waiting=does(config.framework, "ring_waits"), crossing=waits.stall_messages(config) > 0,
        stalls=waits.sure_stalls(config), gathered_layers=waits.layers_gathered(config, stages[0]),
        forwards_first=code in FORWARDS_FIRST, updates_hidden=config.overlap_weights and one_way,
        stall_chance=waits.stall_chance(config), exchange_hidden=config.hides_exchanges,
        folded=x.kind.folded, slowest=slowest_of(x.ranks),
    )  # fmt: skip


def unmeasured_of(config: TransformerConfig, prices: Prices) -> Unmeasured:
    """What was not measured of a row's machine."""
    key = _measured_by(config)
    if key not in prices.by_machine:
        prices.by_machine[key] = unmeasured(prices.model, probes(config), prices.probed)
    return prices.by_machine[key]


def experts_note(config: TransformerConfig, host_share: float) -> str:
    """What is assumed of launching experts, where a step with them waits for its host, else ""."""
    experts = config.shape.experts // config.layout.ep
    if config.grouped_experts or experts < 2 or host_share < _WAITING:
        return ""
    return (
        f"{100 * host_share:.0f} % of the step waits for the host, which launches products of"
        f" {experts} experts of a rank one by one, as Transformer Engine's grouped layers do by"
        " default; one kernel for all, or a graph of launches, would wait less"
    )


@functools.lru_cache(65536)
def _measured_by(config: TransformerConfig) -> tuple[Any, ...]:
    """All that `unmeasured_of` depends on."""
    groups = (config.group(dim) for dim in GROUP_EFFECTS)
    return (config.dtype, config.quant, config.attention, config.layout.shards_each_pass, *groups)


@functools.lru_cache(65536)
def _once(config: TransformerConfig) -> tuple[Any, ...]:
    """All that what happens once a step depends on."""
    x = config.layout
    groups = (config.group(dim) for dim in ("data", "shard", "replica", "expert_data", "pp"))
    ranks = (x.zero, x.tp, x.pp, x.ep, x.expert_tp, x.kind.pipes, x.kind.folded)
    return (config.shape, *ranks, *_OF_ONCE(config), *groups)


@functools.lru_cache(65536)
def _message(config: TransformerConfig) -> tuple[Any, ...]:
    """All that a message to the next stage depends on."""
    x = config.layout
    sizes = (x.tp, x.cp, x.sequence_parallel, x.micro_batch, x.pp > 1, config.group("pp").nodes > 1)
    return ("message", config.shape, sizes, *_OF_MESSAGE(config))


def _whole_stages(config: TransformerConfig) -> TransformerConfig:
    """The config without interleaving: once a step a rank updates all of its chunks together."""
    if config.layout.vp == 1 or config.layout.kind.folded:
        return config
    return config.replace(layout=config.layout.replace(vp=1, schedule="1f1b"))


@dataclasses.dataclass(frozen=True)
class _Update:
    """What happens once a step on the first stage, which ends last."""

    buckets: tuple[Bucket, ...]  # of gradients, in the order of the backward pass
    tied: tuple[PassStep, ...]
    # of weights updated in shards: of the embedding, of layers, of the head; all at once: in one
    gathers: tuple[tuple[PassStep, ...], ...]
    optimizer: tuple[PassStep, ...]

    @staticmethod
    def of(config: TransformerConfig) -> _Update:
        tied = tied_reduction(config)
        also = () if tied is None else (tied,)
        kind = config.layout.kind
        both = kind.pipes > 1 or kind.folded  # that a rank holds
        stages = tuple(dict.fromkeys((0, config.stages - 1 if both else 0)))
        updates = tuple(step for stage in stages for step in optimizer_passes(config, stage))
        if kind.pipes > 1:
            sums = tuple(summed_over_pipes(config, stage) for stage in stages)
            return _Update((Bucket(sums, 0),), also, ((),), updates)
        by_part, found, after = config.overlap_weights, list[Bucket](), 0
        for stage in stages:  # the backward pass comes to the first one last
            own = [
                one._replace(layers_after=one.layers_after + after)
                for one in buckets(config, stage)
            ]
            found, after = own + found, after + sum(config.layers_of(stage))
        parts = zip(
            *(
                gathered_by_part(config, at) if by_part else (gathered(config, at),)
                for at in stages
            ),
            strict=True,
        )
        gathers = tuple(tuple(itertools.chain.from_iterable(part)) for part in parts)
        return _Update(tuple(found), also, gathers, updates)

    @property
    def calls(self) -> Iterator[Call]:
        """Calls of the update that have to be priced."""
        sums = (step for bucket in self.buckets for step in bucket.steps)
        gathers = itertools.chain.from_iterable(self.gathers)
        for step in (*sums, *self.tied, *gathers, *self.optimizer):
            yield call_in_step(step.call)

    def sums(self, prices: Prices) -> tuple[float, ...]:
        """Seconds of the update by role, in the order of `_OF_UPDATE`."""

        def seconds(steps: Iterable[PassStep]) -> float:
            return sum(prices[call_in_step(step.call)] for step in steps)

        reductions = [seconds(bucket.steps) for bucket in self.buckets] or [0.0]
        gathers = [seconds(steps) for steps in self.gathers]
        pairs = zip(self.buckets, reductions, strict=False)
        tail = sum(one_s for bucket, one_s in pairs if not bucket.layers_after)
        hiding = self.buckets[0].layers_after if len(self.buckets) > 1 else 0
        return (
            sum(reductions), tail, reductions[-1], float(hiding), seconds(self.tied),
            sum(gathers), gathers[0], gathers[-1], seconds(self.optimizer),
            float(sum(step.kernels for step in self.optimizer)),
        )  # fmt: skip


def _stages(config: TransformerConfig) -> tuple[float, float, float]:
    """Layers of the first stage, of the last, of the fullest of the others (else the first)."""
    x, shape = config.layout, config.shape
    fold = x.kind.folded
    return _stage_layers(shape.depth, x.pp, x.vp, config.stage_split, shape.head_layers, fold)


@functools.lru_cache(maxsize=4096)
def _stage_layers(
    depth: int, pp: int, vp: int, split: Any, head_layers: float, folded: bool
) -> tuple[float, float, float]:
    pieces = np.array(
        [int(stage_layers(depth, pp * vp, at, split, head_layers)) for at in range(pp * vp)]
    )
    # a stage holds every pp-th piece, or the second turn's in the other direction
    turns = pieces.reshape(vp, pp)
    held = turns[0] + turns[1, ::-1] if folded else turns.sum(0)
    return float(held[0]), float(held[-1]), float(held[1:-1].max() if pp > 2 else held[0])
