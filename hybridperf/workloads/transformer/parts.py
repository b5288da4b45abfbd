"""Passes of the parts of a model on one rank, all its parallelism applied: what pricing and graphs are made of.

    layer_passes(config)         one layer, one micro-batch
    embedding_passes(config)     before the first layer
    head_passes(config)          behind the last: norm, logits, loss
    optimizer_passes(config)     once a step, of one stage
    gradient_reduction(config)   once a step, of one stage
    send_call(config)            a micro-batch's activations to the next stage, as many bytes of gradients back

A step's number of launches is `launches(steps)`; equal calls compare equal, so tables of unique rows are `dict.fromkeys(...)`.
"""

from __future__ import annotations

from hybridperf.io import InputError
from hybridperf.workload import CollectiveCall
from hybridperf.workloads.transformer import ends, layers
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parallel import context_parallel, expert_parallel, sequence_parallel, split_tensor
from hybridperf.workloads.transformer.passes import Passes
from hybridperf.workloads.transformer.recompute import recompute
from hybridperf.workloads.transformer.sharding import shard_parameters
from hybridperf.workloads.transformer.update import gradient_reduction, optimizer_passes
from hybridperf.workloads.transformer.weights import Weights, embedding_weights, head_weights, layer_weights

__all__ = ["embedding_passes", "gradient_reduction", "head_passes", "layer_passes", "optimizer_passes", "send_call"]


def layer_passes(config: TransformerConfig, kind: int = -1) -> Passes:
    """One layer of a kind (index into `shape.blocks`; -1, the last, is the only one of most models) on one rank."""
    block = config.shape.blocks[kind]
    passes = divided(layers.layer(config, block).passes(), config)
    if config.attention == "unfused" and config.kernels.framework.fused_softmax:
        passes = config.kernels.fallback(passes, (config.decoder_tokens if block.cross else config.tokens) / config.layout.micro_batch)
    return sharded(recompute(passes, config.layout.recompute), layer_weights(config, kind), config)


def embedding_passes(config: TransformerConfig) -> Passes:
    """What the first stage does before its layers."""
    return sharded(divided(ends.embedding(config).passes(), config), embedding_weights(config), config)


def head_passes(config: TransformerConfig) -> Passes:
    """What the last stage does behind its layers."""
    return sharded(divided(ends.head(config).passes(), config), head_weights(config), config)


def divided(passes: Passes, config: TransformerConfig) -> Passes:
    """Shared out over context, tensor and expert ranks."""
    passes = split_tensor(context_parallel(passes, config.group("cp")), config.group("tp"))
    if config.layout.sequence_parallel:
        passes = sequence_parallel(passes, config.group("tp"))
    return expert_parallel(passes, config.group("ep"))


def sharded(passes: Passes, weights: Weights, config: TransformerConfig) -> Passes:
    """With weights in shards."""
    return shard_parameters(passes, weights, config)


def send_call(config: TransformerConfig) -> CollectiveCall | None:
    """One stage's result on its way to the next, per rank; None where there is one stage."""
    layout = config.layout
    if layout.pp == 1:
        return None
    if config.shape.decoder_layers:
        raise InputError(f"a pipeline over two stacks is not modelled ({config.shape.name}): take pp = 1")
    size = config.tokens * config.shape.hidden * config.element_bytes / layout.cp
    if layout.sequence_parallel or config.scatter_gather:
        size /= layout.tp
    span = layout.group("pp", config.gpus_per_node)
    return CollectiveCall("sendrecv", float(size), 2, 1 if span.nodes == 1 else 2)
