"""Strategies: what each level of a cluster does with a layer, and which collectives follow from it.

    ddp    each has all weights; gradients are all-reduced after the backward pass
    fsdp   each has a part; weights are gathered before forward and backward, gradients
           reduce-scattered after
    tp     each has and computes a part for all samples of the group; outputs and inputs' gradients
           are exchanged, and waited for
    mp     each has some tables and looks them up for all samples of the group; pooled rows are
           exchanged (embedding layers; no tp there)

A `Strategy` is one of them inside nodes and one across. With b samples per GPU, a group of t ranks
that share layers by tp takes t b. Tables' gradients are sparse: ranks that have the same tables
gather the rows they touched, or reduce all, whichever is less. Where a layer with tp reads what is
dealt out over the samples, the group gathers it first; so does a layer without tp with its
gradients.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from hybridperf.io import InputError, unknown
from hybridperf.studies.strategies.cluster import BOTH, Collective, CostModel, Levels
from hybridperf.studies.strategies.layer import Layer

OF_KIND = {
    "embedding": ("ddp", "fsdp", "mp"),
    "dense": ("ddp", "fsdp", "tp"),
    "transformer": ("ddp", "fsdp", "tp"),
}
_PREFETCHED = 2  # units whose gathered weights are there at a time: the one computed and the next


class Strategy(NamedTuple):
    """How a layer is parallelised: one strategy inside nodes, one across them."""

    inside: str  # "ddp", "fsdp", "tp" or "mp" (embedding tables)
    across: str  # likewise

    def levels(self, name: str) -> Levels:
        """Levels that do this."""
        does = zip(BOTH, self, strict=True)
        return tuple(level for level, strategy in does if strategy == name)

    def __str__(self) -> str:
        return f"{self.inside}, {self.across}"


LayerStrategies = dict[str, Strategy]  # by a layer's name


def mapping(
    layers: Sequence[Layer], chosen: dict[str, Strategy | tuple[str, str]]
) -> LayerStrategies:
    """A strategy for each layer of a model.

    Args:
        layers: of the model.
        chosen: strategies by a layer's name or by its class ("embedding", "dense",
            "transformer"); the name comes first.

    Returns:
        Strategies by a layer's name.

    Raises:
        InputError: when a name is unknown, or a layer has no strategy or one that it cannot take.
    """
    known = {layer.name for layer in layers} | {layer.kind for layer in layers}
    for name in chosen:
        if name not in known:
            has = f"the model has {', '.join(sorted(known))}"
            raise unknown("layer or class", name, known, has)
    found = {}
    for layer in layers:
        pair = chosen.get(layer.name, chosen.get(layer.kind))
        if pair is None:
            give = f"give one for it or for its class {layer.kind!r}"
            raise InputError(f"no strategy for layer {layer.name!r}; {give}")
        strategy = Strategy(*pair)
        for one in strategy:
            if one not in OF_KIND[layer.kind]:
                take = f"{layer.kind} layers take {', '.join(OF_KIND[layer.kind])} at each level"
                raise InputError(f"{take}, got {one!r} for {layer.name!r}")
        found[layer.name] = strategy
    return found


@dataclasses.dataclass(frozen=True)
class LayerCosts:
    """Seconds of one unit of a layer under a strategy, and bytes of the whole layer on a GPU."""

    forward_s: float
    backward_s: float
    gather_s: float  # of weights, before either pass
    forward_exchange_s: float  # tp's, waited for
    backward_exchange_s: float
    gradients_s: float  # after the backward pass
    lookup_exchange_s: float  # mp's, of rows before they are read; of gradients, before backward
    memory_bytes: float


def layer_costs(
    layer: Layer, strategy: Strategy, cost_model: CostModel, samples: float
) -> LayerCosts:
    """Costs of a layer under a strategy; `samples` per GPU."""
    cluster = cost_model.cluster
    shared, sharded = strategy.levels("tp") + strategy.levels("mp"), strategy.levels("fsdp")
    same = strategy.levels("ddp")
    parts, shards = cluster.ranks(shared), cluster.ranks(sharded)
    group = cluster.ranks(strategy.levels("tp"))
    weights = layer.parameters * layer.weight_bytes / parts
    gradients = layer.parameters * layer.gradient_bytes / parts
    outputs = layer.output_bytes * samples * group
    forward: Collective = "all_reduce" if layer.summed else "all_gather"
    backward: Collective = "all_reduce" if layer.summed else "reduce_scatter"
    times, over = max(layer.summed, 1), strategy.levels("tp")
    return LayerCosts(
        cost_model.compute_s(layer, samples, False, parts),
        cost_model.compute_s(layer, samples, True, parts),
        cost_model.collective_s("all_gather", weights, sharded),
        times * cost_model.collective_s(forward, outputs, over),
        times * cost_model.collective_s(backward, outputs, over),
        cost_model.collective_s("reduce_scatter", gradients, sharded)
        + _replicas_s(layer, cost_model, gradients / shards, samples, same),
        cost_model.exchange_s(layer, samples, strategy.levels("mp")),
        layer.units
        * (layer.parameters * layer.state_bytes / (parts * shards) + layer.kept_bytes * samples)
        + (min(_PREFETCHED, layer.units) * weights if shards > 1 else 0.0),
    )


def regathered_s(
    producer: Layer, mine: Strategy, other: Strategy, cost_model: CostModel, samples: float
) -> float:
    """Seconds of gathering a producer's outputs or gradients where only `mine` shares by tp."""
    levels = tuple(level for level in mine.levels("tp") if level not in other.levels("tp"))
    size = producer.output_bytes * samples * cost_model.cluster.ranks(mine.levels("tp"))
    return cost_model.collective_s("all_gather", size, levels)


def _replicas_s(
    layer: Layer, cost_model: CostModel, gradients: float, samples: float, levels: Levels
) -> float:
    """Gradients made equal on ranks that have the same weights."""
    dense_s = cost_model.collective_s("all_reduce", gradients, levels)
    if layer.kind != "embedding":
        return dense_s
    rows_bytes = layer.read_bytes * samples * cost_model.cluster.ranks(levels)
    return min(dense_s, cost_model.collective_s("all_gather", rows_bytes, levels))
