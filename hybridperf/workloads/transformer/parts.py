"""Passes of the parts of a model on one rank, all its parallelism applied: what pricing and graphs
are made of.

    layer_passes(config)         one layer, one micro-batch
    embedding_passes(config)     before the first layer
    head_passes(config)          behind the last: norm, logits, loss
    optimizer_passes(config)     once a step, of one stage
    send_call(config)            a micro-batch's activations to the next stage, as many bytes of
                                 gradients back

A step's number of launches is `launches(steps)`; equal calls compare equal, so tables of unique
rows are `dict.fromkeys(...)`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.workloads.transformer import embedding_head, layers, parallel
from hybridperf.workloads.transformer.config import TransformerConfig, fields_entering
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.experts import grouped
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.layout import ORDER, Layout
from hybridperf.workloads.transformer.passes import Passes, recompute
from hybridperf.workloads.transformer.trained import Trained
from hybridperf.workloads.transformer.update import optimizer_passes
from hybridperf.workloads.transformer.weights import (
    Weights,
    embedding_weights,
    head_weights,
    layer_weights,
    shard_parameters,
)

__all__ = [
    "embedding_passes", "head_passes", "layer_passes", "optimizer_passes", "send_call",
]  # fmt: skip


def layer_passes(config: TransformerConfig, kind: int = -1) -> Passes:
    """One layer of a kind on one rank.

    Args:
        config: the step.
        kind: index into `shape.layer_kinds`; -1, the last, is the only one of most models.
    """
    return _layer_passes(cell(config), kind)


def embedding_passes(config: TransformerConfig) -> Passes:
    """What the first stage does before its layers."""
    return _outer_passes(cell(config), embedding_head.embedding, embedding_weights)


def head_passes(config: TransformerConfig) -> Passes:
    """What the last stage does behind its layers."""
    return _outer_passes(cell(config), embedding_head.head, head_weights)


def cell(config: TransformerConfig) -> TransformerConfig:
    """What passes depend on, all else at its default: many layouts have one cell."""
    layout = config.layout
    inner = layout.tp * layout.cp  # the fastest ranks: slower ones do not move them to other nodes
    aligned = config.gpus_per_node % inner == 0 or inner % config.gpus_per_node == 0
    if layout.order == ORDER and aligned and not layout.shards_each_pass and layout.ep == 1:
        layout = Layout(
            layout.tp, layout.sequence_parallel, cp=layout.cp, expert_tp=layout.expert_tp,
            micro_batch=layout.micro_batch, accumulation=min(layout.accumulation, 2),
            recompute=layout.recompute,
        )  # fmt: skip
    fields = {name: getattr(config, name) for name in fields_entering()}
    return TransformerConfig(config.shape, layout, gpus_per_node=config.gpus_per_node, **fields)


@functools.lru_cache(maxsize=4096)
def _layer_passes(config: TransformerConfig, kind: int) -> Passes:
    passes = layer_part_passes(config, kind, layers.layer)
    passes = recompute(passes, config.layout.recompute, config.checkpoints)
    return shard_parameters(passes, layer_weights(config, kind), config)


def layer_part_passes(
    config: TransformerConfig, kind: int, part: Callable[[Trained, LayerKind, float], Passes]
) -> Passes:
    """Of a layer or a part of it (`layers.attention`, `layers.mlp`), nothing recomputed or sharded.

    Parts follow one another: sequence parallelism leaves a part's result dealt out by tokens, as
    the next takes it.
    """
    layer_kind = config.shape.layer_kinds[kind]
    tokens = config.decoder_tokens if layer_kind.cross else config.tokens
    passes = divided(part(Trained(config, layer_kind.mixer), layer_kind, tokens), config)
    if config.attention == "unfused" and config.kernels.framework.fused_softmax:
        passes = config.kernels.fallback(passes, tokens / config.layout.micro_batch)
    return passes


@functools.lru_cache(maxsize=8192)
def _outer_passes(
    config: TransformerConfig, piece: Callable[[TransformerConfig], Passes],
    weights: Callable[[TransformerConfig], Weights],
) -> Passes:  # fmt: skip
    return shard_parameters(divided(piece(config), config), weights(config), config)


def divided(passes: Passes, config: TransformerConfig) -> Passes:
    """Shared out over context, tensor and expert ranks, experts then as their products."""
    if config.adapters:  # frozen weights need no gradient
        passes = dataclasses.replace(
            passes, backward=tuple(step for step in passes.backward if not step.weight_gradient)
        )
    ring = config.context_messages == "ring"
    passes = parallel.context_parallel(passes, config.group("cp"), ring)
    passes = parallel.split_tensor(passes, config.group("tp"))
    if config.layout.sequence_parallel:
        copies = config.dtype if does(config.framework, "copies_messages") else ""
        passes = parallel.sequence_parallel(passes, config.group("tp"), copies)
    per_node, shape = config.expert_messages == "nodes", config.shape
    groups = (shape.expert_groups, shape.topk_groups)
    passes = parallel.beside_attention(passes, config.layout.cp)
    passes = parallel.expert_parallel(passes, config.group("ep"), per_node, groups)
    biased = config.shape.biases and does(config.framework, "expert_biases_apart")
    return grouped(passes, config.kernels, config.grouped_experts, biased)


def send_call(config: TransformerConfig) -> CollectiveCall | None:
    """One stage's result on its way to the next, per rank; None where there is one stage."""
    layout = config.layout
    if layout.pp == 1:
        return None
    if config.shape.decoder_layers:
        raise InputError(
            f"a pipeline over two stacks is not modelled ({config.shape.name}): take pp = 1"
        )
    size = config.tokens * config.shape.hidden * config.element_bytes / layout.cp
    if layout.sequence_parallel or config.scatter_gather:
        size /= layout.tp
    span = layout.group("pp", config.gpus_per_node)
    return CollectiveCall("sendrecv", float(size), 2, 1 if span.nodes == 1 else 2)
