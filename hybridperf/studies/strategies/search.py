"""All strategies of a model on a cluster, priced: which is fastest, what it exposes, what fits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import pandas as pd

from hybridperf.io import InputError
from hybridperf.studies.strategies.cluster import Cluster, CostModel
from hybridperf.studies.strategies.layer import Layer
from hybridperf.studies.strategies.mapping import OF_KIND, Strategy, layer_costs, mapping
from hybridperf.studies.strategies.timeline import iteration

_FIELDS = (
    "iteration_s", "compute_s", "communication_s", "exposed_s", "exposed_share", "memory_bytes",
)  # fmt: skip


def strategies_of(kind: str, cluster: Cluster) -> list[Strategy]:
    """Different strategies for a class of layers; a level of one rank always has "ddp".

    Args:
        kind: class of layers: "embedding", "dense" or "transformer".
        cluster: its levels.
    """
    inside, across = (
        OF_KIND[kind] if size > 1 else ("ddp",) for size in (cluster.gpus_per_node, cluster.nodes)
    )
    return [Strategy(*pair) for pair in itertools.product(inside, across)]


def smallest_bytes(
    layers: Sequence[Layer], cost_model: CostModel, global_batch: float
) -> dict[str, float]:
    """Bytes of each class of layers on a GPU, at least; their sum is the minimum of any choice."""
    samples = global_batch / cost_model.cluster.gpus
    found: dict[str, float] = {}
    for kind in dict.fromkeys(layer.kind for layer in layers):
        mine = [layer for layer in layers if layer.kind == kind]
        totals = [
            sum(layer_costs(layer, strategy, cost_model, samples).memory_bytes for layer in mine)
            for strategy in strategies_of(kind, cost_model.cluster)
        ]
        found[kind] = min(totals)
    return found


def least_nodes(
    layers: Sequence[Layer], cost_model: CostModel, batch_of: Callable[[int], float],
    most: int = 4096,
) -> int | None:  # fmt: skip
    """Nodes, doubled from those there are, from which on something fits; None up to `most`."""
    nodes, capacity = cost_model.cluster.nodes, cost_model.cluster.capacity_bytes
    while nodes <= most:
        cluster = dataclasses.replace(cost_model.cluster, nodes=nodes)
        larger = dataclasses.replace(cost_model, cluster=cluster)  # type: ignore[type-var]
        if sum(smallest_bytes(layers, larger, batch_of(cluster.gpus)).values()) <= capacity:
            return nodes
        nodes *= 2
    return None


def search_strategies(
    layers: Sequence[Layer], cost_model: CostModel, global_batch: float, *, by: str = "kind",
    capacity_bytes: float | None = None, fitting: bool = True,
) -> pd.DataFrame:  # fmt: skip
    """A table of every combination of strategies with its iteration time, the fastest first.

    Args:
        layers: of the model, in their order.
        cost_model: seconds on the cluster, `StageAdditive` or `MadMax`.
        global_batch: samples of an iteration over all GPUs.
        by: "kind": one strategy per class of layers; "layer": one for each layer.
        capacity_bytes: memory of a GPU, bytes; None: the cluster's.
        fitting: True: only combinations that fit into memory.

    Returns:
        A row per combination: a column per class or layer ("inside, across"), then `iteration_s,
            compute_s, communication_s, exposed_s, exposed_share, memory_bytes, fits`.

    Raises:
        InputError: when `fitting` and nothing fits.
    """
    if by not in ("kind", "layer"):
        raise InputError(f"strategies are chosen by kind or by layer, got {by!r}")
    kind_of = {layer.kind if by == "kind" else layer.name: layer.kind for layer in layers}
    capacity = cost_model.cluster.capacity_bytes if capacity_bytes is None else capacity_bytes
    rows = []
    every = [strategies_of(kind, cost_model.cluster) for kind in kind_of.values()]
    for chosen in itertools.product(*every):
        picked = dict(zip(kind_of, chosen, strict=True))
        found = iteration(layers, mapping(layers, dict(picked)), cost_model, global_batch)
        times = {name: getattr(found, name) for name in _FIELDS}
        words = {name: str(strategy) for name, strategy in picked.items()}
        rows.append({**words, **times, "fits": found.memory_bytes <= capacity})
    order = ["iteration_s", "memory_bytes"]
    frame = pd.DataFrame(rows).sort_values(order, kind="stable", ignore_index=True)
    if not fitting:
        return frame
    if not frame["fits"].any():
        least = frame.loc[frame["memory_bytes"].idxmin()]
        smallest = "; ".join(f"{name} by {least[name]}" for name in kind_of)
        raise InputError(
            f"no strategy fits into {capacity / 1e9:.1f} GB per GPU: the smallest ({smallest})"
            f" needs {least['memory_bytes'] / 1e9:.1f} GB; take more GPUs or a smaller batch"
        )
    return frame[frame["fits"]].reset_index(drop=True)
