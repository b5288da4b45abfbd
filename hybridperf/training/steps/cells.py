"""Unique cells of many rows: their passes are built once, their calls priced once (`Prices`).

A cell is all that a layer's passes depend on: sizes, dtype, kernels, micro-batch, tensor
parallelism, recompute, on how many nodes its collectives run. Passes are built once for each kind
of layer and micro-batch, which takes milliseconds; what is recomputed, and the nodes of
collectives, are put in afterwards. Gathers of sharded weights are cells of their own: they know
nothing of micro-batches.

Axes: C cells, F fields of a block, P = 2 passes; S = 4 sums: of the forward pass, of the backward
pass without what it computes again, and of that, selective and full.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.model import PerfModel
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.step_table import alone_seconds, step_table
from hybridperf.model.unmeasured import Unmeasured
from hybridperf.training.steps.step_features import BlockPrices
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.in_step import call_in_step, inside_a_node, role_of
from hybridperf.workloads.transformer.parts import embedding_passes, head_passes, layer_passes
from hybridperf.workloads.transformer.passes import (
    Checkpoints,
    Passes,
    PassStep,
    Recompute,
    recompute,
)
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.weights import (
    Weights,
    copies_embedding,
    embedding_weights,
    head_weights,
    layer_weights,
)
from hybridperf.workloads.transformer.zero import shard_parameters

_FIELDS = {field.name: at for at, field in enumerate(dataclasses.fields(BlockPrices))}
_REPEATED: tuple[Recompute, ...] = ("selective", "full")
_SUMS = (3, 2 + len(_REPEATED), len(_FIELDS))  # layer, embedding, head; S; F
_KERNEL_FIELDS = operator.attrgetter(
    "dtype", "quant", "attention", "attention_kernel", "framework", "grouped_experts", "routing",
    "adapters", "dropout", "fused_loss", "vocab_multiple", "optimizer", "gradient_bytes",
    "checkpoints",
)  # fmt: skip
_PLACED = ("tp", "cp", "ep")  # groups on whose nodes collectives of a cell depend
_AS_BUILT = (0, 0, 0)  # nodes of those groups where the passes know them


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, each computed once and known by its number."""

    model: PerfModel
    calls: list[Call] = dataclasses.field(default_factory=list)  # by number
    # sums over the passes of a cell (`features.py`)
    cells: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # passes of cells, which take longer to build than to price
    kept: dict[Any, CellTerms] = dataclasses.field(default_factory=dict)
    # sums of what happens once a step
    once: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # what was not measured, by what it depends on
    by_machine: dict[Any, Unmeasured] = dataclasses.field(default_factory=dict)
    _numbers: dict[Call, int] = dataclasses.field(default_factory=dict)
    _in_step: dict[Call, int] = dataclasses.field(default_factory=dict)
    _seconds: list[float] = dataclasses.field(default_factory=list)  # NaN: not priced yet

    @property
    def links(self) -> CollectiveModel:
        """What prices collectives."""
        assert self.model.collectives is not None
        return self.model.collectives

    def number(self, call: Call) -> int:
        """The number of a call."""
        at = self._numbers.setdefault(call, len(self.calls))
        if at == len(self.calls):
            self.calls.append(call)
            self._seconds.append(np.nan)
        return at

    def in_step(self, call: Call) -> int:
        """The number of what prices a call in a step."""
        if call not in self._in_step:
            self._in_step[call] = self.number(call_in_step(call))
        return self._in_step[call]

    def on_nodes(self, numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Numbers of the same calls [n] on so many nodes, 0 for as many as they are on."""
        pairs = numbers * (int(nodes.max(initial=0)) + 1) + nodes
        _, first, of = np.unique(pairs, return_index=True, return_inverse=True)
        each = zip(numbers[first].tolist(), nodes[first].tolist(), strict=True)
        found = [
            self.number(_on_nodes(self.calls[at], count)) if count else at for at, count in each
        ]
        return np.array(found, int)[of.reshape(-1)]

    def seconds(self, numbers: Any) -> np.ndarray:
        """Seconds of calls by their numbers [n]; those that are new are priced together."""
        numbers = np.asarray(numbers, int)
        new = [at for at in np.unique(numbers).tolist() if np.isnan(self._seconds[at])]
        if new:
            table = step_table(self.model, [self.calls[at] for at in new])
            for at, seconds in zip(new, alone_seconds(self.model, table).tolist(), strict=True):
                self._seconds[at] = seconds
        return np.array(self._seconds)[numbers]

    def learn(self, calls: Iterable[Call]) -> None:
        """Price those that are new."""
        self.seconds([self.number(call) for call in calls])

    def __getitem__(self, call: Call) -> float:
        return self._seconds[self._numbers[call]]


def _on_nodes(call: Call, nodes: int) -> Call:
    assert isinstance(call, CollectiveCall)
    return call if call.nodes == nodes else dataclasses.replace(call, nodes=nodes)


@dataclasses.dataclass(frozen=True, eq=False)
class CellTerms:
    """What passes of a layer, the embedding and the LM head come to: n calls, each a term of one of
    the sums [3, S, F].
    """

    sums: np.ndarray  # int [n] place of the sum that a call's seconds belong to
    calls: np.ndarray  # int [n] numbers of `Prices`
    shares: np.ndarray  # [n] of the kind of layer among all layers
    groups: np.ndarray  # int [n] index into `_PLACED` of who exchanges; -1: nodes are as built
    counts: np.ndarray  # [3, S, F] kernels and collectives

    @staticmethod
    def of(
        parts: Iterable[tuple[int, float, Passes]],
        prices: Prices,
        checkpoints: Checkpoints = "blocks",
    ) -> CellTerms:
        """Of passes, each of a block (0: layer, 1: embedding, 2: head) and with its share."""
        terms: list[tuple[int, int, int, float]] = []
        counts = np.zeros(_SUMS)
        for block, share, passes in parts:
            added = {id(step): _added(step, prices) for step in passes.forward + passes.backward}
            again = [
                recompute(passes, mode, checkpoints).recomputed if block == 0 else ()
                for mode in _REPEATED
            ]
            for at, steps in enumerate((passes.forward, passes.backward, *again)):
                start = (_SUMS[1] * block + at) * _SUMS[2]
                for step in steps:
                    seconds, counted = added[id(step)]
                    terms += [(start + to, call, group, share) for to, call, group in seconds]
                    for to, count in counted:
                        counts[block, at, to] += share * count
        places, calls, groups, shares = np.array(terms, float).reshape(-1, 4).T
        return CellTerms(places.astype(int), calls.astype(int), shares, groups.astype(int), counts)


def _added(
    step: PassStep, prices: Prices
) -> tuple[list[tuple[int, int, int]], list[tuple[int, float]]]:
    """What a step adds to a block: (field, call, group) of its seconds, (field, count)."""
    if step.is_op:
        role = role_of(step)
        field = "misaligned_s" if role == "misaligned_gemm" else f"{role}_s"
        launched = [(_FIELDS["kernels"], float(step.kernels))]
        return [(_FIELDS[field], prices.in_step(step.call), -1)], launched
    group = _PLACED.index(step.part) if step.part in _PLACED else -1
    called = list(_collectives(step))
    names = ("gather_calls" if name == "scatter" else f"{name}_calls" for name, _ in called)
    return (
        [(_FIELDS[f"{name}_s"], prices.number(call), group) for name, call in called],
        [(_FIELDS[name], 1.0) for name in names if name in _FIELDS],
    )


def _collectives(step: PassStep) -> Iterator[tuple[str, CollectiveCall]]:
    """The field of a collective and its call; of gathered shards a node's own part, too."""
    call = step.collective
    field = "tp" if step.part == "tp" else role_of(step)
    sharded = field == "gather"
    if sharded and call.collective != "all_gather":
        field = "scatter"
    yield field, call
    inside = inside_a_node(call) if sharded else None
    if inside is not None:
        yield "gather_inside", inside


class Cells:
    """Cells to be priced: terms with what is recomputed, and nodes of tp, cp and ep groups [C]."""

    def __init__(
        self, terms: Iterable[CellTerms], modes: Sequence[str],
        nodes: Sequence[tuple[int, ...]], prices: Prices,
    ):  # fmt: skip
        known: dict[Any, tuple[int, CellTerms]] = {}
        pairs = zip(terms, nodes, strict=True)
        of = [known.setdefault((id(one), on), (len(known), one))[0] for one, on in pairs]
        self._of, self._modes = np.array(of, int), np.array(modes, str)
        self._unique = [one for _, one in known.values()]
        row = np.repeat(np.arange(len(known)), [len(one.calls) for one in self._unique])
        places, calls, groups = (
            np.concatenate([np.zeros(0, int), *(getattr(one, name) for one in self._unique)])
            for name in ("sums", "calls", "groups")
        )
        wanted = np.array([(*on, 0) for _, on in known], int).reshape(-1, len(_PLACED) + 1)
        self.calls = prices.on_nodes(calls, wanted[row, groups])
        self._places = row * int(np.prod(_SUMS)) + places

    def sums(self, prices: Prices) -> np.ndarray:
        """What the calls come to, by block, field and pass [3, F, P, C]."""
        shares = np.concatenate([np.zeros(0), *(one.shares for one in self._unique)])
        counts = np.array([one.counts for one in self._unique], float).reshape(-1, *_SUMS)
        seconds = np.bincount(self._places, shares * prices.seconds(self.calls), counts.size)
        found = counts + seconds.reshape(counts.shape)
        forward, backward, *again = np.moveaxis(found[self._of], 0, -1).swapaxes(0, 1)
        for mode, repeated in zip(_REPEATED, again, strict=True):
            backward += np.where(self._modes == mode, repeated, 0.0)
        return np.stack([forward, backward], 2)


def cell_terms(configs: Iterable[TransformerConfig], prices: Prices) -> list[CellTerms]:
    """Terms of the cell of each config, sharding apart; those that differ by what is recomputed, or
    by nodes, share them.
    """
    found = []
    for config in configs:
        key = _kept_key(config)
        if key not in prices.kept:
            prices.kept[key] = _kept(config, prices)
        found.append(prices.kept[key])
    return found


def placed_on(config: TransformerConfig) -> tuple[int, ...]:
    """Nodes of the groups that a cell's collectives depend on."""
    return tuple(config.group(dim).nodes for dim in _PLACED)


@functools.lru_cache(65536)
def cell_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that a cell depends on."""
    return (*_kept_key(config), config.layout.recompute, *placed_on(config))


def _kept_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that passes without recomputing depend on, nodes apart."""
    x, shape = config.layout, config.shape
    if not shape.experts and not shape.decoder_layers:
        shape = _one_layer(shape)
    repeats = x.accumulation > 1 and config.kernels.framework.gradients == "repeated"
    experts = (config.expert_messages, config.group("ep").nodes) if x.ep > 1 else ()
    ranks = (x.tp, x.cp, x.ep, x.expert_tp, x.sequence_parallel, x.micro_batch)
    return (shape, *ranks, repeats, *experts, *kernels_key(config))


def kernels_key(config: TransformerConfig) -> tuple[Any, ...]:
    """Fields of a config that decide which kernels run, on what."""
    return _KERNEL_FIELDS(config)


@functools.lru_cache(maxsize=4096)
def _one_layer(shape: TransformerShape) -> TransformerShape:
    return dataclasses.replace(shape, layers=1, name="")


def _kept(config: TransformerConfig, prices: Prices) -> CellTerms:
    plain = config.replace(layout=config.layout.replace(zero=0, shard_ranks=None, recompute="none"))
    layers = [(0, share, layer_passes(plain, kind)) for kind, share in kinds_of_layers(plain)]
    outer = [(1, 1.0, embedding_passes(plain)), (2, 1.0, head_passes(plain))]
    return CellTerms.of([*layers, *outer], prices, config.checkpoints)


def kinds_of_layers(config: TransformerConfig) -> list[tuple[int, float]]:
    """(kind of layer, its share of all layers)."""
    blocks = config.shape.layer_kinds
    depth = sum(block.count for block in blocks)
    return [(kind, block.count / depth) for kind, block in enumerate(blocks)]


@functools.lru_cache(65536)
def shards_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that gathers of a layer's weights and scatters of its gradients depend on."""
    x = config.layout
    if not x.shards_each_pass:
        return ()
    groups = (config.group(dim) for dim in ("shard", "replica", "expert_data"))
    sizes = (config.shape, x.zero, x.tp, x.ep, x.expert_tp, copies_embedding(config))
    return (*sizes, *kernels_key(config), *groups)


def shards_of(configs: Iterable[TransformerConfig], prices: Prices) -> Cells:
    """Only the gathers and scatters of sharded weights."""
    found = []
    for config in configs:

        def sharded(weights: Weights, config: TransformerConfig = config) -> Passes:
            return shard_parameters(Passes(), weights, config)

        layers = [
            (0, share, sharded(layer_weights(config, kind)))
            for kind, share in kinds_of_layers(config)
        ]
        outer = enumerate(map(sharded, (embedding_weights(config), head_weights(config))), 1)
        blocks = [*layers, *((block, 1.0, passes) for block, passes in outer)]
        found.append(CellTerms.of(blocks, prices))
    return Cells(found, ["none"] * len(found), [_AS_BUILT] * len(found), prices)
