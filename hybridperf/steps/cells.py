"""Unique cells of many rows and their passes: built once, priced once.

A cell is all that a layer's passes depend on: sizes, dtype, kernels, micro-batch, tensor parallelism, recompute, on how many nodes its
collectives run. Passes are built once for each kind of layer and micro-batch, which takes milliseconds; what is recomputed, and the nodes
of collectives, are put in afterwards. Gathers of sharded weights are cells of their own: they know nothing of micro-batches.

Axes: N rows, U unique cells, P = 3 phases, F fields of a block.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Gemm
from hybridperf.steps.compose import PHASES, Block
from hybridperf.steps.prices import Prices
from hybridperf.workload import CollectiveCall
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import embedding_passes, head_passes, layer_passes
from hybridperf.workloads.transformer.passes import Passes, Step, Steps
from hybridperf.workloads.transformer.recompute import recompute
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.sharding import shard_parameters
from hybridperf.workloads.transformer.weights import Weights, embedding_weights, head_weights, layer_weights

_ALIGNED = 8  # numbers of 16 bits: what tensor cores load at once
_FIELDS = tuple(field.name for field in dataclasses.fields(Block))
_COLLECTIVE = {"tp": "tp", "cp": "exchange", "ep": "exchange", "zero": "gather"}
Parts = tuple[tuple[float, Passes], ...]  # passes of kinds of layers, with the share of each


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
        return {key: thing for key, thing in zip(self.keys, self.unique, strict=True) if key not in known}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Passes of a layer, the embedding and the head, and the nodes on which collectives run, by part; None: as they say."""

    layers: Parts
    embedding: Parts
    head: Parts
    nodes: Mapping[str, int] | None = None
    attention: tuple[str, str] = ("", "")  # generation of fused attention and its dtype

    def steps(self) -> list[Step]:
        """All of them."""
        every = (*self.layers, *self.embedding, *self.head)
        return [step for _, passes in every for phase in PHASES for step in getattr(passes, phase)]

    def calls(self) -> list[Any]:
        """What they cost is to be known of."""
        return [_placed(step, self.nodes) for step in self.steps()]


def cells_of(configs: Iterable[TransformerConfig]) -> list[Cell]:
    """A cell of each config, what is sharded apart."""
    built: dict[tuple[Any, ...], Cell] = {}
    found = []
    for config in configs:
        key = _kept_key(config)
        if key not in built:
            built[key] = _kept(config)
        cell, mode = built[key], config.layout.recompute
        layers = tuple((share, recompute(passes, mode)) for share, passes in cell.layers)
        nodes = {dim: config.group(dim).nodes for dim in ("tp", "cp", "ep")}
        found.append(dataclasses.replace(cell, layers=layers, nodes=nodes))
    return found


@functools.lru_cache(65536)
def cell_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that a cell of `cells_of` depends on."""
    return (*_kept_key(config), config.layout.recompute, *(config.group(dim).nodes for dim in ("tp", "cp", "ep")))


def _kept_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that passes without recomputing depend on, nodes apart."""
    x, shape = config.layout, config.shape
    if not shape.experts and not shape.decoder_layers:
        shape = _one_layer(shape)
    repeats = x.accumulation > 1 and config.kernels.framework.gradients == "repeated"
    experts = (config.expert_messages, config.group("ep").nodes) if x.ep > 1 else ()
    return (shape, x.tp, x.cp, x.ep, x.expert_tp, x.sequence_parallel, x.micro_batch, repeats, *experts, *kernels_key(config))


def kernels_key(config: TransformerConfig) -> tuple[Any, ...]:
    """Fields of a config that decide which kernels run, on what."""
    c = config
    return (
        c.dtype,
        c.quant,
        c.attention,
        c.attention_kernel,
        c.framework,
        c.dropout,
        c.fused_loss,
        c.vocab_multiple,
        c.optimizer,
        c.gradient_bytes,
    )


@functools.lru_cache(maxsize=4096)
def _one_layer(shape: TransformerShape) -> TransformerShape:
    return dataclasses.replace(shape, layers=1, name="")


def _kept(config: TransformerConfig) -> Cell:
    """Passes of a config without sharding and without recomputing."""
    plain = config.replace(layout=config.layout.replace(zero=0, shard_ranks=None, recompute="none"))
    layers = tuple((share, layer_passes(plain, kind)) for kind, share in _kinds(plain))
    attention = (config.attention_kernel if config.attention == "fused" else "", config.dtype)
    return Cell(layers, ((1.0, embedding_passes(plain)),), ((1.0, head_passes(plain)),), attention=attention)


def _kinds(config: TransformerConfig) -> list[tuple[int, float]]:
    """(kind of layer, its share of all layers)."""
    blocks = config.shape.blocks
    depth = sum(block.count for block in blocks)
    return [(kind, block.count / depth) for kind, block in enumerate(blocks)]


@functools.lru_cache(65536)
def shards_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that gathers of a layer's weights and scatters of its gradients depend on."""
    x = config.layout
    if x.zero < 2:
        return ()
    groups = tuple(config.group(dim) for dim in ("shard", "replica", "expert_data"))
    return (config.shape, x.zero, x.tp, x.ep, x.expert_tp, *kernels_key(config), *groups)


def shards_of(config: TransformerConfig) -> Cell:
    """Only the gathers and scatters of sharded weights."""

    def around(weights: Weights) -> Passes:
        return shard_parameters(Passes(), weights, config)

    layers = tuple((share, around(layer_weights(config, kind))) for kind, share in _kinds(config))
    return Cell(layers, ((1.0, around(embedding_weights(config))),), ((1.0, around(head_weights(config))),))


def sums(cells: Sequence[Cell], prices: Prices) -> list[np.ndarray]:
    """Amounts of the fields of a layer, the embedding and the head, of each cell [3, F, P]."""
    found = []
    known: dict[int, tuple[Steps, list[float]]] = {}  # by identity: cells share passes
    for cell in cells:
        amounts = np.zeros((3, len(_FIELDS), len(PHASES)))
        for block, parts in enumerate((cell.layers, cell.embedding, cell.head)):
            for share, passes in parts:
                for phase, called in enumerate(PHASES):
                    steps: Steps = getattr(passes, called)
                    if not steps:
                        continue
                    if id(steps) not in known:
                        known[id(steps)] = steps, _computed(steps, prices)
                    amounts[block, :, phase] += share * np.array(known[id(steps)][1])
                    for step in steps:
                        if not step.is_op:
                            field = _COLLECTIVE[step.part]
                            amounts[block, _FIELDS.index(f"{field}_s"), phase] += share * prices[_placed(step, cell.nodes)]
                            amounts[block, _FIELDS.index(f"{field}_calls"), phase] += share
        amounts[:, _FIELDS.index("attention_s")] *= prices.attention_factor(*cell.attention)
        found.append(amounts)
    return found


def _computed(steps: Steps, prices: Prices) -> list[float]:
    """What the ops among some steps add to the fields of a block [F]."""
    found = dict.fromkeys(_FIELDS, 0.0)
    for step in steps:
        if step.is_op:
            products = "misaligned_s" if misaligned(step) else "gemm_s"
            field = {"gemm": products, "attention": "attention_s"}.get(step.part, "memory_s")
            found[field] += prices[step.call]
            found["kernels"] += step.kernels
    return list(found.values())


def _placed(step: Step, nodes: Mapping[str, int] | None) -> Any:
    """A step's call, a collective on as many nodes as its group lies on."""
    call = step.call
    if nodes is None or not isinstance(call, CollectiveCall) or nodes.get(step.part, call.nodes) == call.nodes:
        return call
    return dataclasses.replace(call, nodes=nodes[step.part])


def misaligned(step: Step) -> bool:
    """Whether a 16-bit product has rows that tensor cores cannot load whole: a width, not a count of tokens, is no multiple of 8."""
    op = step.op
    if not isinstance(op, Gemm) or DTYPE_BYTES[op.dtype] != DTYPE_BYTES["fp16"]:
        return False
    return any(getattr(op, name) % _ALIGNED for name in ("m", "n", "k") if name != step.tokens)
