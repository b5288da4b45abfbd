"""Once a step: gradients summed over replicas, the optimizer, weights exchanged. (ZeRO-3, and
ZeRO-2 without a pipeline, exchange theirs around each layer: `weights.py`.)

Adam in mixed precision reads a gradient and fp32 weight and moments and writes the latter and the
weight in the op's dtype: 12 + g + 12 + e bytes a number, 28 with 16-bit gradients, and the gradient
once more for its norm. LAMB (You et al., arXiv 1904.00962) writes the update first and, once its
norm and the weight's are known, reads both again: 40.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.ops import OpCall, OptimizerUpdate, Quantise, Reduction, op_by_name
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.transformer import counts, waits
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.groups import Span
from hybridperf.workloads.transformer.passes import PassStep, Steps
from hybridperf.workloads.transformer.weights import (
    Weights,
    copies,
    copies_embedding,
    embedding_weights,
    head_weights,
    layer_weights,
    on_rank,
    shared_out,
    stage_weights,
    weights_gathered,
)

_WIDE = "fp32"
_NORM_COLUMNS = 65536.0  # numbers that one block adds up
TENSORS_PER_KERNEL = 36  # that one launch of a fused optimizer takes
TENSORS_PER_LAYER = 12  # scales, shifts, weights and biases of a GPT's layer
PRODUCTS_PER_LAYER = 4
TENSORS_BY_ONE = 6  # of a Llama's layer, one by one: weights of four products, scales of two norms


def updated_weights(config: TransformerConfig, stage: int) -> float:
    """Numbers that one rank updates: its shard of them from ZeRO-1 on."""
    weights = stage_weights(config, stage) * config.trained_share
    if not config.layout.zero:
        return weights.total
    return sum(count / group.ranks for count, group in shared_out(weights, config))


def optimizer_passes(config: TransformerConfig, stage: int = 0) -> Steps:
    """The optimizer of one rank of a stage."""
    n = updated_weights(config, stage)
    wide = DTYPE_BYTES[_WIDE]
    copy = config.element_bytes if config.element_bytes < wide else 0.0
    _, touched = op_by_name(config.optimizer)
    # against the op all in fp32: all but the gradient is, and the weight is copied
    tensors_moved = touched["reads"] + touched["writes"]
    moved = (wide * (tensors_moved - 1) + config.reduced_bytes + copy) / (wide * tensors_moved)
    update = OptimizerUpdate(_WIDE, n * moved, **touched)
    layers = sum(config.layers_of(stage))
    launches = max(1, math.ceil(TENSORS_PER_LAYER * layers / TENSORS_PER_KERNEL))
    normed, tensors = n, launches
    if by_tensor := does(config.framework, "updates_by_tensor"):
        normed, tensors = stage_weights(config, stage).total, TENSORS_BY_ONE * layers
    rows = max(1.0, normed * config.reduced_bytes / wide / _NORM_COLUMNS)
    norm = Reduction(_WIDE, rows, _NORM_COLUMNS)
    return (
        PassStep(OpCall(norm), "optimizer", "gradient norm", kernels=tensors),
        *(_scaled(normed, config, 2 * tensors) if by_tensor else ()),
        PassStep(OpCall(update), "optimizer", config.optimizer, kernels=launches),
        *_narrowed_weights(config, stage),
    )


def _scaled(count: float, config: TransformerConfig, kernels: int) -> Steps:
    """Gradients clipped and cleared, those of other ranks' shards too, and new weights copied,
    tensor by tensor, as nanotron does (optim/clip_grads.py; `step` and `zero_grad` of
    optim/gradient_accumulator.py): read once and written twice.
    """
    moved = count * config.reduced_bytes / DTYPE_BYTES[_WIDE]
    op = OptimizerUpdate(_WIDE, moved, reads=1.0, writes=2.0)
    return (PassStep(OpCall(op), "optimizer", "gradients scaled", kernels=kernels),)


def _narrowed_weights(config: TransformerConfig, stage: int) -> Steps:
    """A rank's weights of layers in the products' format and both orders, once they are updated:
    the first micro-batch makes and keeps them ("FP8 weight caching", Transformer Engine's user
    guide, advanced_optimizations); a framework that `narrows_apart` makes them in each pass.
    """
    if not config.quant or config.kernels.framework.narrows_apart:
        return ()
    layers = list(enumerate(config.layers_of(stage)))
    n = sum(layer_weights(config, kind).total * count for kind, count in layers)
    op = Quantise(config.kernels.dtype, n / _NORM_COLUMNS, _NORM_COLUMNS, quant=config.quant)
    call = OpCall(op, times=ratios.CAST_AND_TRANSPOSED)
    launches = PRODUCTS_PER_LAYER * sum(count for _, count in layers)
    return (PassStep(call, "optimizer", "weights narrowed", kernels=launches),)


class Bucket(NamedTuple):
    """Gradients of a stage that are reduced together."""

    steps: Steps
    layers_after: int  # of the stage, whose backward passes follow


def buckets(config: TransformerConfig, stage: int) -> tuple[Bucket, ...]:
    """A stage's gradients as they are reduced, in the order of its backward pass."""
    if not waits.reduces_beside(config):
        return (Bucket(summed(config, stage_weights(config, stage)), 0),)
    kinds = list(enumerate(config.layers_of(stage)))[::-1]
    layers = [one for kind, count in kinds for one in [layer_weights(config, kind)] * count]
    before = [head_weights(config)] if stage == config.stages - 1 else []
    behind = [embedding_weights(config)] if stage == 0 else []
    found, held, most = [], Weights(), waits.bucket_bytes(config)
    parts = [*before, *layers, *behind]
    for at, weights in enumerate(parts, 1):
        held += weights
        if held.total * config.exchanged_bytes >= most or at == len(parts):
            left = len(layers) - min(max(at - len(before), 0), len(layers))
            found.append(Bucket(summed(config, held), left))
            held = Weights()
    return tuple(found)


def summed(config: TransformerConfig, weights: Weights) -> Steps:
    """Sums of so many gradients, in one piece."""
    if config.layout.shards_each_pass:
        return ()
    whole = does(config.framework, "sums_whole_gradients", canonical_dtype(config.dtype))
    collective = "all_reduce" if whole or not config.layout.zero else "reduce_scatter"
    steps = []
    for (count, group), replicas in zip(shared_out(weights, config), copies(config), strict=False):
        if not count or group.ranks == 1:
            continue
        size = count * config.exchanged_bytes
        steps.append(group.step(collective, size, "dp", "gradients summed"))
        if config.layout.zero and replicas.ranks > 1:
            shard_bytes = size / group.ranks
            steps.append(_summed_shards(config, replicas, shard_bytes))
    return tuple(steps)


def _summed_shards(config: TransformerConfig, replicas: Span, size: float) -> PassStep:
    """Sum of a shard over its replicas: by ranks, or by switches, to which each rank sends its
    numbers while sums come back (SHARP: Graham et al., COM-HPC 2016), as long as one message takes.
    """
    name = "shards of gradients summed"
    if replicas.nodes > 1 and does(config.framework, "sums_in_switches"):
        return Span(2, 2).step("sendrecv", size, "dp", name)
    return replicas.step("all_reduce", size, "dp", name)


def summed_over_pipes(config: TransformerConfig, stage: int) -> PassStep:
    """Sum of a stage's gradients where two pipes hold it, on two ranks and their data peers."""
    data = config.group("data")
    group = Span(2 * data.ranks, max(data.nodes, 2 if config.group("pp").nodes > 1 else 1))
    size = stage_weights(config, stage).total * config.exchanged_bytes
    return group.step("all_reduce", size, "dp", "gradients summed")


def gathered(config: TransformerConfig, stage: int) -> Steps:
    """Weights that were updated in shards, all at once."""
    return gathered_again(stage_weights(config, stage), config)


def gathered_again(weights: Weights, config: TransformerConfig) -> Steps:
    """Weights that were updated in shards, on their way to all ranks."""
    layout = config.layout
    if not layout.zero or layout.shards_each_pass:
        return ()
    return weights_gathered(weights * config.trained_share, config, "dp")


def gathered_by_part(config: TransformerConfig, stage: int) -> tuple[Steps, Steps, Steps]:
    """The same, part by part as a forward pass needs them: embedding, layers, head."""
    layers = (
        gathered_again(layer_weights(config, kind), config) * count
        for kind, count in enumerate(config.layers_of(stage))
    )
    first = gathered_again(embedding_weights(config), config) if stage == 0 else ()
    last = gathered_again(head_weights(config), config) if stage == config.stages - 1 else ()
    return first, tuple(itertools.chain.from_iterable(layers)), last


def tied_reduction(config: TransformerConfig) -> PassStep | None:
    """The embedding's gradient, summed over the first and the last stage."""
    if not copies_embedding(config) or config.adapters:
        return None
    vocab = counts.ParameterCounts(vocab=config.padded_vocab * config.shape.hidden)
    size = on_rank(vocab, config).shared * config.reduced_bytes
    nodes = 2 if config.group("pp").nodes > 1 else 1
    return Span(2, nodes).step("all_reduce", size, "dp", "tied embedding's gradient summed")
