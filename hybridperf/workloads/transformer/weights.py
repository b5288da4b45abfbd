"""Weights of one rank: of a layer, the embedding, the head, a stage; and, in shards (ZeRO,
Rajbhandari et al. 2020; FSDP, HSDP), the collectives around a part's passes.

    ZeRO-3   weights gathered before forward and before backward, gradients scattered behind it: 3
             (d - 1) / d of the weights' bytes on the wire, 1.5 times an all-reduce; recompute
             shares the gather of the backward
    ZeRO-2   as FSDP's SHARD_GRAD_OP: gathered before forward and kept, gradients scattered: as many
             bytes as an all-reduce
    ZeRO-1   nothing here: gradients and weights are exchanged once a step (`update.py`); so does
             ZeRO-2 in a pipeline, whose stages keep their gradients until the last micro-batch, as
             Llama 3 was trained (arXiv 2407.21783, section 3.3.2)

All else for every micro-batch. HSDP shards over some of the data ranks; the rest hold copies,
whose shards of gradients are all-reduced: in a stream of their own, beside what is gathered and
scattered (`all_reduce_stream` of torch/distributed/fsdp, its first and its second version), unless
shards cross the same network. Experts that lie apart are sharded over all ranks that
hold the same ones, so no copies of their shards are left.
"""

from __future__ import annotations

import dataclasses

from hybridperf.workloads.transformer import counts
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.groups import Span
from hybridperf.workloads.transformer.passes import Part, Passes, Steps


@dataclasses.dataclass(frozen=True)
class Weights:
    """Numbers of weights on one rank before ZeRO shards them."""

    shared: float = 0.0  # on every data rank
    experts: float = 0.0  # on every expert data rank

    @property
    def total(self) -> float:
        return self.shared + self.experts

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.shared + other.shared, self.experts + other.experts)

    def __mul__(self, times: float) -> Weights:
        return Weights(self.shared * times, self.experts * times)


def on_rank(parameters: counts.ParameterCounts, config: TransformerConfig) -> Weights:
    """One rank's of a part of the model."""
    x = config.layout
    expert_tp = x.expert_tp or x.tp
    shares = counts.rank_shares(parameters, config.shape.key_heads, x.tp, x.ep, expert_tp)
    return Weights(*map(float, shares))


def layer_weights(config: TransformerConfig, kind: int = -1) -> Weights:
    """Weights that a rank holds of a layer of a kind."""
    return on_rank(config.shape.layer_kinds[kind].parameters, config)


def embedding_weights(config: TransformerConfig) -> Weights:
    """Of what stands before the layers, padding of the vocabulary included."""
    found = counts.embedding(config.shape)
    if found.vocab:
        found = found._replace(vocab=config.padded_vocab * config.shape.hidden)
    return on_rank(found, config)


def head_weights(config: TransformerConfig) -> Weights:
    """Of what stands behind the layers, the copy of a tied embedding on another stage included."""
    s = config.shape
    found = counts.head(s)
    own = s.head in ("lm", "mlm") and found.vocab >= s.vocab * s.hidden
    if own or copies_embedding(config):
        found = found._replace(vocab=config.padded_vocab * s.hidden)
    return on_rank(found, config)


def copies_embedding(config: TransformerConfig) -> bool:
    """Whether the last stage holds the embedding's matrix a second time.

    A second pipe's first stage lies where the last one lies, and a folded one's own first.
    """
    layout, shape = config.layout, config.shape
    looked_up_again = shape.tied and shape.head in ("lm", "mlm")
    return looked_up_again and layout.pp > 1 and layout.kind.pipes == 1 and not layout.kind.folded


def stage_weights(config: TransformerConfig, stage: int) -> Weights:
    """Of a stage, or chunk of one."""
    found = Weights()
    for kind, count in enumerate(config.layers_of(stage)):
        found += layer_weights(config, kind) * count
    if stage == 0:
        found += embedding_weights(config)
    if stage == config.stages - 1:
        found += head_weights(config)
    return found


def shard_parameters(passes: Passes, weights: Weights, config: TransformerConfig) -> Passes:
    """Passes of a part whose weights lie in shards."""
    if not config.layout.shards_each_pass:
        return passes
    zero = config.layout.zero
    gathers = weights_gathered(weights, config, "zero")
    again = passes.recomputed
    before_backward: Steps = ()
    if zero == 3 and again:
        again = (*gathers, *again)
    elif zero == 3:
        before_backward = gathers
    steps = []
    for (count, group), replicas in zip(shared_out(weights, config), copies(config), strict=False):
        size = count * config.exchanged_bytes
        if count and group.ranks > 1:
            steps.append(group.step("reduce_scatter", size, "zero", "gradients scattered"))
        if count and replicas.ranks > 1:
            shard_bytes = size / group.ranks
            beside: Part = "replica" if group.nodes == 1 else "zero"
            label = "shards of gradients summed"
            steps.append(replicas.step("all_reduce", shard_bytes, beside, label))
    backward = (*before_backward, *passes.backward, *steps)
    return Passes((*gathers, *passes.forward), backward, again)


def weights_gathered(weights: Weights, config: TransformerConfig, part: Part) -> Steps:
    """Weights in shards on their way to all ranks that use them."""
    return tuple(
        group.step("all_gather", count * config.gathered_bytes, part, "weights gathered")
        for count, group in shared_out(weights, config)
        if count and group.ranks > 1
    )


def shared_out(weights: Weights, config: TransformerConfig) -> tuple[tuple[float, Span], ...]:
    """Weights of a rank and the ranks that share them or hold copies, the experts' apart."""
    group = config.group("shard" if config.layout.zero else "data")
    if not config.experts_apart:
        return ((weights.total, group),)
    return ((weights.shared, group), (weights.experts, config.group("expert_data")))


def copies(config: TransformerConfig) -> tuple[Span, Span]:
    """Ranks that hold copies of a shard: of what `shared_out` names first, and of experts apart."""
    return config.group("replica"), Span(1, 1)
