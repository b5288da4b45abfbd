"""Unique cells of many rows and their passes: built once, priced once (`Prices`).

A cell is all that a layer's passes depend on: sizes, dtype, kernels, micro-batch, tensor
parallelism, recompute, on how many nodes its collectives run. Passes are built once for each kind
of layer and micro-batch, which takes milliseconds; what is recomputed, and the nodes of
collectives, are put in afterwards. Gathers of sharded weights are cells of their own: they know
nothing of micro-batches.

Axes: N rows, U unique cells, P = 3 phases, F fields of a block.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.model import PerfModel
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.step_table import alone_seconds, step_table
from hybridperf.model.unmeasured import Unmeasured
from hybridperf.training.steps.step_features import PHASES, BlockPrices
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.in_step import call_in_step, inside_a_node, role_of
from hybridperf.workloads.transformer.parts import embedding_passes, head_passes, layer_passes
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps, recompute
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.weights import (
    Weights,
    copies_embedding,
    embedding_weights,
    head_weights,
    layer_weights,
)
from hybridperf.workloads.transformer.zero import shard_parameters

_FIELDS = tuple(field.name for field in dataclasses.fields(BlockPrices))
_KERNEL_FIELDS = operator.attrgetter(
    "dtype", "quant", "attention", "attention_kernel", "framework", "grouped_experts", "dropout",
    "fused_loss", "vocab_multiple", "optimizer", "gradient_bytes", "checkpoints",
)  # fmt: skip
_PLACED = ("tp", "cp", "ep")  # groups on whose nodes collectives of a cell depend
LayerPasses = tuple[tuple[float, Passes], ...]  # passes of kinds of layers, with the share of each


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, kept."""

    model: PerfModel
    known: dict[Call, float] = dataclasses.field(default_factory=dict)
    # sums over the passes of a cell (`features.py`)
    cells: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # passes of cells, which take longer to build than to price
    kept: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # sums of what happens once a step
    once: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # what was not measured, by what it depends on
    by_machine: dict[Any, Unmeasured] = dataclasses.field(default_factory=dict)

    @property
    def links(self) -> CollectiveModel:
        """What prices collectives."""
        assert self.model.collectives is not None
        return self.model.collectives

    def learn(self, calls: Iterable[Call]) -> None:
        """Price those that are new."""
        new = [call for call in dict.fromkeys(calls) if call not in self.known]
        if new:
            seconds = alone_seconds(self.model, step_table(self.model, new))
            self.known.update(zip(new, seconds.tolist(), strict=True))

    def __getitem__(self, call: Call) -> float:
        return self.known[call]


class Unique:
    """Of things with keys: the first of each key, and which of them stands for each thing."""

    def __init__(self, keys: Sequence[Any], things: Sequence[TransformerConfig]):
        place: dict[Any, int] = {}
        self.of = np.array([place.setdefault(key, len(place)) for key in keys], int)
        self.keys = list(place)
        first = np.unique(self.of, return_index=True)[1]
        self.unique = [things[at] for at in first]

    def not_in(self, known: Mapping[Any, Any]) -> dict[Any, TransformerConfig]:
        """Keys that are new, with the thing that stands for each."""
        pairs = zip(self.keys, self.unique, strict=True)
        return {key: thing for key, thing in pairs if key not in known}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Passes of a layer, the embedding and the LM head; nodes of collectives, if not as built."""

    layers: LayerPasses
    embedding: LayerPasses
    head: LayerPasses
    nodes: Mapping[str, int] | None = None


def cells_of(configs: Iterable[TransformerConfig], built: dict[Any, Any]) -> list[Cell]:
    """A cell of each config, sharding apart; cells that differ by nodes share steps (`built`)."""
    found = []
    for config in configs:
        key = _kept_key(config)
        if key not in built:
            built[key] = _kept(config)
        cell, mode = built[key], (config.layout.recompute, config.checkpoints)
        if (key, mode) not in built:
            layers = tuple((share, recompute(passes, *mode)) for share, passes in cell.layers)
            built[key, mode] = dataclasses.replace(cell, layers=layers)
        nodes = {dim: config.group(dim).nodes for dim in _PLACED}
        found.append(dataclasses.replace(built[key, mode], nodes=nodes))
    return found


@functools.lru_cache(65536)
def cell_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that a cell of `cells_of` depends on."""
    nodes = (config.group(dim).nodes for dim in _PLACED)
    return (*_kept_key(config), config.layout.recompute, *nodes)


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


def _kept(config: TransformerConfig) -> Cell:
    """Passes of a config without sharding and without recomputing."""
    plain = config.replace(layout=config.layout.replace(zero=0, shard_ranks=None, recompute="none"))
    layers = tuple((share, layer_passes(plain, kind)) for kind, share in _kinds(plain))
    embedding, head = embedding_passes(plain), head_passes(plain)
    return Cell(layers, ((1.0, embedding),), ((1.0, head),))


def _kinds(config: TransformerConfig) -> list[tuple[int, float]]:
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


def shards_of(config: TransformerConfig) -> Cell:
    """Only the gathers and scatters of sharded weights."""

    def sharded(weights: Weights) -> Passes:
        return shard_parameters(Passes(), weights, config)

    layers = tuple((share, sharded(layer_weights(config, kind))) for kind, share in _kinds(config))
    embedding, head = sharded(embedding_weights(config)), sharded(head_weights(config))
    return Cell(layers, ((1.0, embedding),), ((1.0, head),))


class Sums:
    """Amounts of the fields of a layer, the embedding and the LM head, of some cells."""

    def __init__(self, cells: Sequence[Cell]):
        self.cells = cells  # kept: steps are told apart by identity
        # place, ops, collectives and their parts, by identity
        self._ops: dict[int, tuple[int, list[PassStep], list[PassStep], set[str]]] = {}
        # place, field and call, by identity and nodes
        self._sent: dict[tuple[Any, ...], tuple[int, list[tuple[str, Any]]]] = {}
        self._terms = [
            (at, block, phase, share, *self._places(getattr(passes, called), cell.nodes))
            for at, cell in enumerate(cells)
            for block, parts in enumerate((cell.layers, cell.embedding, cell.head))
            for share, passes in parts
            for phase, called in enumerate(PHASES)
        ]

    def calls(self) -> Iterator[Any]:
        """What their seconds are to be known of."""
        ops = (step for _, steps, _, _ in self._ops.values() for step in steps)
        yield from (call_in_step(step.call) for step in ops)
        yield from (call for _, sent in self._sent.values() for _, call in sent)

    def blocks(self, prices: Prices) -> list[BlockPrices]:
        """The layer, the embedding and the head of all cells, [P, C] each field."""
        return [BlockPrices(*fields) for fields in np.moveaxis(self.amounts(prices), 0, -1)]

    def amounts(self, prices: Prices) -> np.ndarray:
        """Amounts of each cell [C, 3, F, P]."""
        count = len(self.cells) * 3 * len(PHASES)
        if not count:
            return np.zeros((0, 3, len(_FIELDS), len(PHASES)))
        computed = np.array([_computed(steps, prices) for _, steps, _, _ in self._ops.values()])
        sent = np.array([_amounts(calls, prices) for _, calls in self._sent.values()])
        columns = zip(*self._terms, strict=True)
        at, block, phase, share, ops, sends = (np.array(column) for column in columns)
        terms = share[:, None] * (computed[ops] + sent[sends])
        places = (at * 3 + block) * len(PHASES) + phase
        found = np.stack([np.bincount(places, term, count) for term in terms.T])
        found = found.reshape(len(_FIELDS), -1, 3, len(PHASES))
        return found.transpose(1, 2, 0, 3)

    def _places(self, steps: Steps, nodes: Mapping[str, int] | None) -> tuple[int, int]:
        known = self._ops.get(id(steps))
        if known is None:
            ops, sends = ([one for one in steps if one.is_op == is_op] for is_op in (True, False))
            known = self._ops[id(steps)] = (len(self._ops), ops, sends, {one.part for one in sends})
        at, _, sends, parts = known
        key: tuple[Any, ...] = (id(steps),)
        if nodes:
            key += tuple(nodes[name] for name in _PLACED if name in parts)
        sent = self._sent.get(key)
        if sent is None:
            calls = [one for step in sends for one in _collectives(step, nodes)]
            sent = self._sent[key] = (len(self._sent), calls)
        return at, sent[0]


def _computed(steps: Iterable[PassStep], prices: Prices) -> list[float]:
    """What some ops add to the fields of a block [F]."""
    found = dict.fromkeys(_FIELDS, 0.0)
    for step in steps:
        role = role_of(step)
        found["misaligned_s" if role == "misaligned_gemm" else f"{role}_s"] += prices[
            call_in_step(step.call)
        ]
        found["kernels"] += step.kernels
    return list(found.values())


def _collectives(step: PassStep, nodes: Mapping[str, int] | None) -> Iterator[tuple[str, Any]]:
    """The field of a collective and its call; of gathered shards a node's own part, too."""
    call = _placed(step, nodes)
    field = "tp" if step.part == "tp" else role_of(step)
    sharded = field == "gather"
    if sharded and call.collective != "all_gather":
        field = "scatter"
    yield field, call
    inside = inside_a_node(call) if sharded else None
    if inside is not None:
        yield "gather_inside", inside


def _amounts(calls: Iterable[tuple[str, Any]], prices: Prices) -> list[float]:
    """What some collectives add to the fields of a block [F]."""
    found = dict.fromkeys(_FIELDS, 0.0)
    for field, call in calls:
        found[f"{field}_s"] += prices[call]
        counted = "gather_calls" if field == "scatter" else f"{field}_calls"
        if counted in found:
            found[counted] += 1.0
    return list(found.values())


def _placed(step: PassStep, nodes: Mapping[str, int] | None) -> Any:
    """A step's call, a collective on as many nodes as its group lies on."""
    call = step.call
    if nodes is None or not isinstance(call, CollectiveCall):
        return call
    count = nodes.get(step.part, call.nodes)
    return call if count == call.nodes else dataclasses.replace(call, nodes=count)
