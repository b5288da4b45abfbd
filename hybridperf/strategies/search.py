"""All strategies of a model on a cluster, each priced: which is fastest, what it exposes, what fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd

from hybridperf.io import InputError
from hybridperf.strategies.cluster import Cluster, Law
from hybridperf.strategies.layer import Layer
from hybridperf.strategies.mapping import OF_KIND, Strategy, mapping
from hybridperf.strategies.timeline import iteration


def strategies_of(kind: str, cluster: Cluster) -> list[Strategy]:
    """Different strategies of a class; at a level of one rank all are the same, and called ddp."""
    inside, across = (OF_KIND[kind] if size > 1 else ("ddp",) for size in (cluster.gpus_per_node, cluster.nodes))
    return [Strategy(*pair) for pair in itertools.product(inside, across)]


def search_strategies(
    layers: Sequence[Layer],
    law: Law,
    global_batch: float,
    *,
    by: str = "kind",
    capacity_bytes: float | None = None,
    fitting: bool = True,
) -> pd.DataFrame:
    """Every choice of a strategy for each class of layers (`by="kind"`) or for each layer (`by="layer"`), fastest first.

    Columns: one per class or layer, "inside, across"; `iteration_s, compute_s, communication_s, exposed_s, exposed_share, memory_bytes,
    fits`. `capacity_bytes` None: the cluster's. `fitting`: only those that fit, and `InputError` where none does.
    """
    if by not in ("kind", "layer"):
        raise InputError(f"strategies are chosen by kind or by layer, got {by!r}")
    kind_of = {layer.kind if by == "kind" else layer.name: layer.kind for layer in layers}
    capacity = law.cluster.capacity_bytes if capacity_bytes is None else capacity_bytes
    rows = []
    for chosen in itertools.product(*(strategies_of(kind, law.cluster) for kind in kind_of.values())):
        picked = dict(zip(kind_of, chosen, strict=True))
        found = iteration(layers, mapping(layers, dict(picked)), law, global_batch)
        rows.append(
            {name: str(strategy) for name, strategy in picked.items()}
            | {
                "iteration_s": found.iteration_s, "compute_s": found.compute_s, "communication_s": found.communication_s,
                "exposed_s": found.exposed_s, "exposed_share": found.exposed_share, "memory_bytes": found.memory_bytes,
                "fits": found.memory_bytes <= capacity,
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows).sort_values(["iteration_s", "memory_bytes"], kind="stable", ignore_index=True)
    if not fitting:
        return frame
    if not frame["fits"].any():
        least = frame.loc[frame["memory_bytes"].idxmin()]
        said = "; ".join(f"{name} by {least[name]}" for name in kind_of)
        raise InputError(
            f"no strategy fits into {capacity / 1e9:.1f} GB per GPU: the smallest ({said}) needs {least['memory_bytes'] / 1e9:.1f} GB;"
            " take more GPUs or a smaller batch"
        )
    return frame[frame["fits"]].reset_index(drop=True)
