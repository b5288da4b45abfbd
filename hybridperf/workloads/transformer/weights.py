"""Weights of one rank: of a layer, the embedding, the head, a stage."""

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


def on_rank(parameters: counts.ParameterCounts, config: TransformerConfig) -> Weights:
    """One rank's of a part of the model."""
    x = config.layout
    expert_tp = x.expert_tp or x.tp
    shares = counts.rank_shares(parameters, config.shape.key_heads, x.tp, x.ep, expert_tp)
    return Weights(*map(float, shares))


def layer_weights(config: TransformerConfig, kind: int = -1) -> Weights:
    """Of one layer of a kind."""
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
