"""A model's shape: its sizes (`sizes.py`) with what `counts.py` counts of them, and how its layers
are dealt out to the stages of a pipeline.

    even   l // p layers each, one more on the first l mod p (Megatron and DeepSpeed ask for a whole
           number each)
    cost   a stage takes layers until it passes its share of the cost of all layers and the head
           (nanotron); the first gets the most, the last the fewest

`head_layers` is the head's cost in layers. Arrays in, arrays out: `stages` of any shape, the
stage's index broadcast against it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io import InputError
from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.transformer import counts
from hybridperf.workloads.transformer.sizes import (
    Compressed,
    Diffusion,
    Heads,
    Latent,
    ModelSizes,
    Scan,
)

__all__ = ["Compressed", "Diffusion", "Heads", "Latent", "Scan", "TransformerShape"]

SPLITS = ("even", "cost")
_APART = {field.name for field in dataclasses.fields(ModelSizes)} - {
    "name", "published", "source", "note", "seq", "max_positions", "topk_groups",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TransformerShape(ModelSizes):
    """A Transformer's sizes, and its numbers of parameters and FLOPs (a multiply-add is two)."""

    @functools.cached_property
    def layer_kinds(self) -> tuple[counts.LayerKind, ...]:
        """Kinds of layer in their order, each with how many there are; most models have one."""
        return counts.layer_kinds(self)

    @functools.cached_property
    def layer_order(self) -> tuple[int, ...]:
        """The kind of each layer, by its place among `layer_kinds`."""
        return counts.layer_order(self)

    @functools.cached_property
    def layer_parameters(self) -> int:
        """Parameters of one layer of the last kind (the only kind of most models)."""
        return self.layer_kinds[-1].parameters.total

    @property
    def head_layers(self) -> float:
        """The LM head's matrix against a layer's: by how many layers nanotron weighs the head."""
        return self.vocab * self.hidden / self.layer_parameters

    @functools.cached_property
    def embedding_parameters(self) -> int:
        """Words or patches, positions, segments, and the embedding's own norm."""
        return counts.embedding(self).total

    @functools.cached_property
    def head_parameters(self) -> int:
        """Final norm, pooler, and the head without the matrix it shares with the embedding."""
        return counts.head(self).total

    @functools.cached_property
    def parameters(self) -> int:
        """Number of parameters with embedding and head."""
        layers = sum(kind.count * kind.parameters.total for kind in self.layer_kinds)
        return self.embedding_parameters + layers + self.head_parameters

    @functools.cached_property
    def active_parameters(self) -> int:
        """Parameters a token meets: `topk` of the experts, all else whole."""
        return self.parameters - sum(kind.count * kind.idle_parameters for kind in self.layer_kinds)

    def forward_flops(
        self, batch: float = 1.0, seq: int | None = None, causal: bool = False
    ) -> float:
        """FLOPs of a forward pass over `batch` samples of `seq` tokens: matrices and attention, no
        norms or activations.

        `causal` counts half of each sequence's attention to itself, as kernels that skip the upper
        triangle compute; the published formulas count all of it.
        """
        return counts.forward_flops(self, self.layer_kinds, batch, seq or self.seq, causal)

    def model_flops(self, tokens: float, seq: int | None = None, causal: bool = False) -> float:
        """FLOPs that training on some tokens needs, nothing computed twice: three forward passes.

        For a GPT 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) (Narayanan et al. 2021, eq. 3).
        """
        seq = seq or self.seq
        return 3.0 * self.forward_flops(tokens / seq, seq, causal)

    def hardware_flops(
        self, tokens: float, recompute: str = "none", seq: int | None = None, causal: bool = False
    ) -> float:
        """`model_flops` and what is computed twice.

        full: one more forward pass of the layers, for a GPT 96 B s l h^2 (1 + s/(6h) + V/(16 l h)).
        selective: attention's own products a second time, forward and backward, as the published 72
        B s l h^2 (1 + s/(3h) + V/(12 l h)) has it (Korthikanti et al. 2022).
        """
        seq = seq or self.seq
        kinds = self.layer_kinds
        again = counts.recomputed_flops(self, kinds, tokens / seq, seq, recompute, causal)
        return self.model_flops(tokens, seq, causal) + again

    def same_model(self, other: TransformerShape) -> bool:
        """Whether another shape is of the same model, whatever it is called and its sequences."""
        return self._told_apart_by == other._told_apart_by

    @functools.cached_property
    def _told_apart_by(self) -> dict[str, Any]:
        norm_bias = self.norm == "layernorm" if self.norm_bias is None else self.norm_bias
        return {
            **{name: one for name, one in vars(self).items() if name in _APART},
            "kv_heads": self.key_heads,
            "head_dim": None if self.latent else self.dim,
            "norm_bias": norm_bias,
            "qkv_biases": self.biases if self.qkv_biases is None else self.qkv_biases,
        }

    def __hash__(self) -> int:
        """Of what models differ by most: thousands a second are looked up."""
        return hash((self.name, self.hidden, self.layers, self.seq, self.heads, self.vocab))

    def replace(self, **changes: Any) -> TransformerShape:
        """The same model with other sizes, `replace(seq=8192)`."""
        return dataclasses.replace(self, **changes)


def layers_before(
    depth: int, stages: Array, stage: Array, split: str = "even", head_layers: float = 0.0
) -> Array:
    """Layers on the stages before `stage`, 0 to `depth`; with stage = stages all of them."""
    xp = array_module(stages, stage)
    if split == "even":
        return stage * (depth // stages) + xp.minimum(stage, depth % stages)
    if split != "cost":
        raise InputError(f"layers are split over stages by {' or '.join(SPLITS)}, got {split!r}")
    share = (depth + head_layers) / stages
    # up to the first layer that passes the share of the stages before this one
    through = xp.floor(stage * share + 1e-9) + 1
    return xp.where(stage <= 0, 0, xp.where(stage >= stages, depth, xp.minimum(through, depth)))


def busy_stages(depth: int, stages: int, split: str = "even", head_layers: float = 0.0) -> int:
    """How many stages get a layer or anything after the last layer.

    By cost, nanotron assigns layers, final norm, head, cast and loss in this order and moves on
    after the block whose cumulative cost passes the share of the stages so far, by one stage at
    most (`build_model` of huggingface/nanotron `models/base.py`): where a layer is more than a
    stage's share, the last stages stay empty.
    """
    if split == "even":
        return min(depth, stages)
    share, stage = (depth + head_layers) / stages, 0
    for through in (*range(1, depth + 1), depth, depth + head_layers, depth + head_layers):
        stage += through > share * (stage + 1) * (1 + 1e-9)
    return min(stage + 1, stages)


def layers_by_kind(
    order: Sequence[int], stages: Array, stage: Array, split: str = "even",
    head_layers: float = 0.0,
) -> list[Array]:  # fmt: skip
    """Layers of each kind on a stage; `order`: the kind of each layer, from 0."""
    xp = array_module(stages, stage)
    first, end = (
        xp.asarray(layers_before(len(order), stages, at, split, head_layers)).astype(int)
        for at in (stage, stage + 1)
    )
    # of each kind, how many come before each layer
    before = np.cumsum(np.eye(max(order) + 1, dtype=int)[[*order]], 0)
    before = xp.asarray(np.concatenate([np.zeros_like(before[:1]), before]))
    return [before[end, kind] - before[first, kind] for kind in range(max(order) + 1)]


def stage_layers(
    depth: int, stages: Array, stage: Array, split: str = "even", head_layers: float = 0.0
) -> Array:
    """Number of layers that a pipeline stage holds."""
    after = layers_before(depth, stages, stage + 1, split, head_layers)
    return after - layers_before(depth, stages, stage, split, head_layers)
