"""Weights and gradients in shards (ZeRO, Rajbhandari et al. 2020; FSDP, HSDP): collectives around a
part's passes.

    ZeRO-3   weights gathered before forward and before backward, gradients scattered behind it: 3
             (d - 1) / d of the weights' bytes on the wire, 1.5 times an all-reduce; recompute
             shares the gather of the backward
    ZeRO-2   as FSDP's SHARD_GRAD_OP: gathered before forward and kept, gradients scattered: as many
             bytes as an all-reduce
    ZeRO-1   nothing here: gradients and weights are exchanged once a step (`update.py`); so does
             ZeRO-2 in a pipeline, whose stages keep their gradients until the last micro-batch, as
             Llama 3 was trained (arXiv 2407.21783, section 3.3.2)

All else for every micro-batch. HSDP shards over some of the data ranks; the rest hold copies,
whose shards of gradients are all-reduced. Experts are sharded over the ranks that hold the same
ones.
"""

from __future__ import annotations

from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parallel import RankGroup
from hybridperf.workloads.transformer.passes import Part, Passes, Steps
from hybridperf.workloads.transformer.weights import Weights


def shard_parameters(passes: Passes, weights: Weights, config: TransformerConfig) -> Passes:
    """Passes of a part whose weights lie in shards."""
    if not config.layout.shards_each_pass:
        return passes
    zero = config.layout.zero
    gathers = gathered(weights, config, "zero")
    again = passes.recomputed
    before_backward: Steps = ()
    if zero == 3 and again:
        again = (*gathers, *again)
    elif zero == 3:
        before_backward = gathers
    backward = (*before_backward, *passes.backward, *_scattered(weights, config))
    return Passes((*gathers, *passes.forward), backward, again)


def gathered(weights: Weights, config: TransformerConfig, part: Part) -> Steps:
    """Weights in shards on their way to all ranks that use them."""
    return tuple(
        group.step("all_gather", count * config.gathered_bytes, part, "weights gathered")
        for count, group in shared_out(weights, config)
        if count and group.ranks > 1
    )


def shared_out(weights: Weights, config: TransformerConfig) -> tuple[tuple[float, RankGroup], ...]:
    """Weights of a rank and the ranks that share them or hold copies, the experts' apart."""
    group = config.group("shard" if config.layout.zero else "data")
    if not config.experts_apart:
        return ((weights.total, group),)
    return ((weights.shared, group), (weights.experts, config.group("expert_data")))


def _scattered(weights: Weights, config: TransformerConfig) -> Steps:
    steps = []
    replicas = config.group("replica")
    for count, group in shared_out(weights, config):
        size = count * config.exchanged_bytes
        if count and group.ranks > 1:
            steps.append(group.step("reduce_scatter", size, "zero", "gradients scattered"))
        if count and replicas.ranks > 1:
            shard_bytes = size / group.ranks
            summed = replicas.step("all_reduce", shard_bytes, "zero", "shards of gradients summed")
            steps.append(summed)
    return tuple(steps)
