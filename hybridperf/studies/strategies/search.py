"""All strategies of a model on a cluster, priced: which is fastest, what it exposes, what fits.

Models and clusters go by name, too: DLRM-A on ZionEX as published, or known shapes on systems.

Of a Transformer strategies are the layouts of a plan (`hp.plan`) that treat whole levels of a
cluster alike, in the words of `mapping.py`, with what is computed again and how many micro-batches
a step has; seconds and memory are the plan's:

    ddp    data parallelism without sharding         fsdp    ZeRO-3 over the level
    tp     tensor parallelism over the level
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import device_of, load_device, load_system
from hybridperf.io import InputError, unknown
from hybridperf.studies.strategies import mad_max
from hybridperf.studies.strategies.cluster import Cluster, CostModel, Priced
from hybridperf.studies.strategies.layer import Layer, transformer_layers
from hybridperf.studies.strategies.mapping import OF_KIND, Strategy, layer_costs, mapping
from hybridperf.studies.strategies.timeline import iteration
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.table import at_ranks
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.zoo import load_shape

PRICED, MAD_MAX = "priced", "mad-max"
LAWS = (PRICED, MAD_MAX)
CHOSEN = ("transformer", "recompute", "micro_batch", "accumulation")
_DTYPE = "bf16"
_FIELDS = (
    "iteration_s", "compute_s", "communication_s", "exposed_s", "exposed_share", "memory_bytes",
)  # fmt: skip


def strategies_of(kind: str, cluster: Cluster) -> list[Strategy]:
    """Different strategies for a class of layers; a level of one rank always has "ddp".

    Args:
        kind: class of layers: "embedding", "dense" or "transformer".
        cluster: its levels.
    """
    sizes = (cluster.gpus_per_node, cluster.nodes)
    choices = (OF_KIND[kind] if size > 1 else ("ddp",) for size in sizes)
    return [Strategy(*pair) for pair in itertools.product(*choices)]


def smallest_bytes(
    layers: Sequence[Layer], cost_model: CostModel, global_batch: float
) -> dict[str, float]:
    """Bytes of each class of layers on a GPU, at least; their sum is the minimum of any choice."""
    samples = global_batch / cost_model.cluster.gpus
    found: dict[str, float] = {}
    for kind in dict.fromkeys(layer.kind for layer in layers):
        mine = [layer for layer in layers if layer.kind == kind]
        found[kind] = min(
            sum(layer_costs(layer, strategy, cost_model, samples).memory_bytes for layer in mine)
            for strategy in strategies_of(kind, cost_model.cluster)
        )
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
        cost_model: seconds on the cluster, `Priced` or `MadMax`.
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
        needs = f"the smallest ({smallest}) needs {least['memory_bytes'] / 1e9:.1f} GB"
        none = f"no strategy fits into {capacity / 1e9:.1f} GB per GPU: {needs}"
        raise InputError(f"{none}; take more GPUs or a smaller batch")
    return frame[frame["fits"]].reset_index(drop=True)


def named_layers(model: str) -> tuple[tuple[Layer, ...], int | None]:
    """(layers of `dlrm-a`, a shape or a file of sizes; samples a GPU where published)."""
    if model.lower().replace("_", "-") == "dlrm-a":
        return mad_max.DLRM_A, mad_max.DLRM_A_LOCAL_BATCH
    return transformer_layers(load_shape(model)), None


def named_cost_model(
    law: str, system: str, gpus: int, device: str | None = None, *, compute: float = 0.6,
    memory: float = 0.8, links: float = 0.8,
) -> CostModel:  # fmt: skip
    """A law on a system, ZionEX where none is named; MAD-Max's at shares of the datasheet."""
    if law not in LAWS:
        raise unknown("law", law, LAWS, f"known are {', '.join(LAWS)}")
    for name, share in (("compute", compute), ("memory", memory), ("links", links)):
        if not 0 < share <= 1:
            raise InputError(f"expected a share above 0 and up to 1 for {name}, got {share:g}")
    if law == MAD_MAX and not system:
        return mad_max.MadMax(_whole(mad_max.zionex(1), "ZionEX", gpus))
    fabric = load_system(system or mad_max.ZIONEX)
    spec = load_device(device_of(fabric, device))
    if law == PRICED:
        priced = Priced.of_system(fabric, spec, 1, _DTYPE)
        return dataclasses.replace(priced, cluster=_whole(priced.cluster, fabric.id, gpus))
    one = Cluster.of_system(
        fabric, spec, 1, _DTYPE, compute=compute, memory=memory, inside=links, across=links
    )
    return mad_max.MadMax(_whole(one, system, gpus))


def _whole(node: Cluster, name: str, gpus: int) -> Cluster:
    """So many GPUs of a node's kind."""
    per_node = node.gpus_per_node
    if gpus <= per_node:
        return dataclasses.replace(node, gpus_per_node=gpus, nodes=1)
    if gpus % per_node:
        below = gpus // per_node * per_node
        whole = f"expected whole nodes of {per_node} GPUs of {name}, got {gpus} GPUs"
        raise InputError(f"{whole}; {below} or {below + per_node} would do")
    return dataclasses.replace(node, nodes=gpus // per_node)


def transformer_strategies(
    model: str | TransformerShape, system: str, gpus: int, batch: int, *,
    device: str | None = None, memory_bytes: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A table of every strategy of a Transformer that fits, the fastest first.

    Args:
        model: name of a published model, a file of its sizes, or a shape (`hp.load_shape`).
        system: name of a system, or a .toml file.
        gpus: number of devices.
        batch: samples of a step over all devices.
        device: name of the accelerator; None: the system's own.
        memory_bytes: memory of each device, bytes; None: the datasheet's.

    Returns:
        A row for each strategy, recomputation and micro-batch: `transformer` ("inside, across"),
            `recompute, micro_batch, accumulation, iteration_s, compute_s, exposed_s, memory_bytes,
            fits`.

    Raises:
        InputError: when none fits; the message names what would do.
    """
    per_node = load_system(system).accelerators_per_node
    levels = min(per_node, gpus), max(gpus // per_node, 1)
    only: dict[str, Sequence[Any]] = {
        "pp": [1], "cp": [1], "ep": [1], "zero": [0, 3], "tp": sorted({1, *levels, gpus}),
    }  # fmt: skip
    found = plan(
        model, system, gpus, batch=batch, device=device, memory_bytes=memory_bytes, only=only
    )
    layouts = (found.layout(found.choice(rank)) for rank in range(len(found)))
    strategies = [_strategy(layout, found.setup.gpus_per_node, levels) for layout in layouts]
    whole = np.array([at for at, one in enumerate(strategies) if one is not None], int)
    if not len(whole):
        raise InputError(
            f"expected a strategy of whole nodes of {found.setup.shape.name} that fits, got none;"
            " `hybridperf plan` shares parts of a node, too"
        )
    frame = at_ranks(found, whole).assign(transformer=[str(strategies[at]) for at in whole])
    frame = frame.rename(columns={"time_s": "iteration_s", "exposed_comm_s": "exposed_s"})
    times = ["iteration_s", "compute_s", "exposed_s", "memory_bytes", "fits"]
    return frame[[*CHOSEN, *times]].drop_duplicates([*CHOSEN[:3]], ignore_index=True)


def _strategy(layout: Layout, per_node: int, levels: tuple[int, int]) -> Strategy | None:
    """What each level does; None where a level is shared in parts."""
    tensor, shard = (layout.group(name, per_node) for name in ("tp", "shard"))
    words = []
    for size, of_tensor, of_shard in zip(
        levels, (tensor.ranks_per_node, tensor.nodes), (shard.ranks_per_node, shard.nodes),
        strict=True,
    ):  # fmt: skip
        sharded = of_shard if layout.zero else 1
        if {of_tensor, sharded} - {1, size}:
            return None
        tensor_word = "tp" if size > 1 and of_tensor == size else ""
        words.append(tensor_word or ("fsdp" if size > 1 and sharded == size else "ddp"))
    return Strategy(*words)
