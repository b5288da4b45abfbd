"""Weights of one rank: a layer's, the ends', a stage's."""

from __future__ import annotations

import dataclasses

from hybridperf.workloads.transformer import counts
from hybridperf.workloads.transformer.config import TransformerConfig


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


def on_rank(parameters: counts.Parameters, config: TransformerConfig) -> Weights:
    """One rank's of a part of the model."""
    layout = config.layout
    shares = counts.rank_shares(
        parameters, config.shape.key_heads, layout.tp, layout.ep, layout.expert_tp or layout.tp
    )
    return Weights(*map(float, shares))


def layer_weights(config: TransformerConfig, kind: int = -1) -> Weights:
    """Of one layer of a kind."""
    return on_rank(config.shape.blocks[kind].parameters, config)


def embedding_weights(config: TransformerConfig) -> Weights:
    """Of what stands before the layers, padding of the vocabulary included."""
    found = counts.embedding(config.shape)
    return on_rank(
        found._replace(vocab=config.padded_vocab * config.shape.hidden if found.vocab else 0),
        config,
    )


def head_weights(config: TransformerConfig) -> Weights:
    """Of what stands behind the layers; of a tied head on another stage than the embedding its
    copy, too.
    """
    s = config.shape
    found = counts.head(s)
    if (s.head in ("lm", "mlm") and found.vocab >= s.vocab * s.hidden) or copies_embedding(config):
        found = found._replace(vocab=config.padded_vocab * s.hidden)
    return on_rank(found, config)


def copies_embedding(config: TransformerConfig) -> bool:
    """Whether the last stage holds the embedding's matrix a second time. Chimera's lies where the
    first of the other direction lies.
    """
    layout = config.layout
    return (
        config.shape.tied
        and config.shape.head in ("lm", "mlm")
        and layout.pp > 1
        and layout.schedule != "chimera"
    )


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
