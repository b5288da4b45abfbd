"""Models and clusters by name: DLRM-A on ZionEX as published, or known shapes on known systems."""

from __future__ import annotations

import dataclasses

from hybridperf.hardware import device_of, load_device, load_system
from hybridperf.io import InputError, unknown
from hybridperf.studies.strategies.cluster import Cluster, CostModel, StageAdditive
from hybridperf.studies.strategies.layer import Layer, transformer_layers
from hybridperf.studies.strategies.mad_max import DLRM_A, DLRM_A_LOCAL_BATCH, MadMax, zionex
from hybridperf.workloads.transformer.zoo import load_shape

PUBLISHED = "dlrm-a"
_COST_MODELS = {"stages": StageAdditive, "mad-max": MadMax}
_DTYPE = "bf16"


def named_layers(model: str) -> tuple[tuple[Layer, ...], int | None]:
    """(layers of `dlrm-a`, a shape or a file of sizes; samples a GPU where published)."""
    if model.lower().replace("_", "-") == PUBLISHED:
        return DLRM_A, DLRM_A_LOCAL_BATCH
    return transformer_layers(load_shape(model)), None


def named_cluster(
    system: str, gpus: int, device: str | None = None, *, compute: float = 0.6, memory: float = 0.8,
    links: float = 0.8
) -> Cluster:  # fmt: skip
    """A system at shares of its datasheet; no name: the published ZionEX at its own shares."""
    for name, share in (("compute", compute), ("memory", memory), ("links", links)):
        if not 0 < share <= 1:
            raise InputError(f"expected a share above 0 and up to 1 for {name}, got {share:g}")
    if not system:
        return _whole(zionex(1), "ZionEX", gpus)
    fabric = load_system(system)
    spec = load_device(device_of(fabric, device))
    one = Cluster.of_system(
        fabric, spec, 1, _DTYPE, compute=compute, memory=memory, inside=links, across=links
    )
    return _whole(one, system, gpus)


def named_cost_model(name: str, cluster: Cluster) -> CostModel:
    """`stages` or `mad-max`."""
    if name not in _COST_MODELS:
        raise unknown("law", name, _COST_MODELS, f"known are {', '.join(_COST_MODELS)}")
    found: CostModel = _COST_MODELS[name](cluster)
    return found


def _whole(node: Cluster, name: str, gpus: int) -> Cluster:
    """So many GPUs of a node's kind."""
    per_node = node.gpus_per_node
    if gpus <= per_node:
        return dataclasses.replace(node, gpus_per_node=gpus, nodes=1)
    if gpus % per_node:
        below = gpus // per_node * per_node
        raise InputError(
            f"expected whole nodes of {per_node} GPUs of {name}, got {gpus} GPUs; {below} or"
            f" {below + per_node} would do"
        )
    return dataclasses.replace(node, nodes=gpus // per_node)
