"""What one layer keeps of a micro-batch from its forward to its backward pass, in bytes on one
rank.

Counted tensor by tensor, b samples of s tokens, e bytes per element, t tensor-parallel ranks
(Korthikanti et al., 2205.05198, eq. 1-4):

    hidden   inputs of the two norms and their outputs, which the matrices read          4 e s b h
             / t with sequence parallelism
             dropout masks of the two outputs, one byte each                             2 s b h        as above
    heads    queries, keys, values, attention's result                                   4 e s b h /
             t  fewer keys and values with GQA
    ffn      inputs of the activation and of the last matrix                             2 e s b f /
             t  3 where gated
    scores   softmax's output, its dropout mask and the dropped output                   (2 e + 1) a
             s^2 b / t, e without dropout
             fused attention keeps a logarithm per row instead                           4 a s b / t

With e = 2, f = 4 h and dropout the sum is s b h (34 + 5 a s / h) for t = 1, s b h (10 + 24/t + 5 a
s / (h t)) for tensor parallelism. Selective recompute drops the scores; full recompute keeps the
layer's input only, e s b h. A context-parallel rank has s / c tokens.

A mixture of experts adds two hidden tensors per expert a token takes (to the experts, and back for
weighting) and the router's choice. A layer measured by itself (`alone`) also shows its output and
its norms' statistics: BERT in fp32, b (70 s h + 9 a s^2 + 16 s).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridperf.io.namespace import array_module
from hybridperf.workloads.memory.knobs import MemoryKnobs
from hybridperf.workloads.transformer.codes import FULL, SELECTIVE
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.layout import Layouts
from hybridperf.workloads.transformer.shape import TransformerShape

_FP32_BYTES = 4.0
_MASK_BYTES = 1.0


class LayerActivations(NamedTuple):
    """Bytes of one layer and one micro-batch on one rank, before anything is recomputed; arrays as
    the layouts are.
    """

    hidden: Any
    heads: Any
    ffn: Any
    scores: Any
    input: Any  # the layer's own input, which full recompute keeps
    recomputable: bool  # selective recompute drops the scores

    def kept(self, recompute: Any, knobs: MemoryKnobs) -> Any:
        """Bytes from forward to backward under a recompute code."""
        xp = array_module(*self, recompute, *vars(knobs).values())
        scores = knobs.scores * self.scores
        if self.recomputable:
            scores = xp.where(recompute == SELECTIVE, 0.0, scores)
        stored = knobs.hidden * (self.hidden + self.heads) + knobs.ffn * self.ffn + scores
        return xp.where(recompute == FULL, self.input, stored)

    def recomputed(self, recompute: Any, knobs: MemoryKnobs) -> Any:
        """Bytes that are back while one layer is computed again."""
        xp = array_module(*self, recompute, *vars(knobs).values())
        selective = (
            xp.where(recompute == SELECTIVE, knobs.scores * self.scores, 0.0)
            if self.recomputable
            else 0.0
        )
        everything = (
            knobs.hidden * (self.hidden + self.heads)
            + knobs.ffn * self.ffn
            + knobs.scores * self.scores
        )
        return xp.where(recompute == FULL, everything, selective)


def layer_activations(
    shape: TransformerShape,
    layouts: Layouts,
    block: LayerKind | None = None,
    *,
    element_bytes: float = 2.0,
    fused: bool = True,
    dropout: bool = False,
    alone: bool = False,
) -> LayerActivations:
    """Activations of one layer of a kind (`block`; None: the last kind, the only one of most
    models).
    """
    block = block or shape.layer_kinds[-1]
    e, h, x = element_bytes, shape.hidden, layouts
    xp = array_module(*x)
    between = xp.where(
        x.sequence_parallel > 0, x.tp, 1
    )  # ranks that share what lies between the matrices
    # tokens of a rank; of the encoder where there are two stacks
    source = x.micro_batch * shape.seq / x.cp
    tokens = x.micro_batch * (shape.decoder_seq or shape.seq) / x.cp if block.cross else source

    inputs = min(shape.norms_per_layer, 2) + block.cross  # matrices that read a norm's output
    per_token = e * h * (shape.norms_per_layer + block.cross + inputs)
    if dropout:
        per_token += _MASK_BYTES * h * (2 + block.cross)
    if alone:
        per_token += e * h + shape.norms_per_layer * _FP32_BYTES * (
            2 if shape.norm == "layernorm" else 1
        )
    hidden = tokens * per_token / between
    if shape.latent:
        hidden = (
            hidden
            + tokens
            * e
            * ((shape.latent.query_rank or 0) + shape.latent.kv_rank + shape.latent.rotary_dim)
            / between
        )

    # whole heads, at least one
    kv_share = xp.maximum(1 / x.tp, 1 / shape.key_heads) if shape.latent is None else 1 / x.tp
    query, kv = shape.query_width + shape.context_width, shape.key_width + shape.value_width
    heads = tokens * e * (query / x.tp + kv * kv_share)
    if shape.qk_norm:
        heads = heads + tokens * e * (shape.query_width / x.tp + shape.key_width * kv_share)
    if block.cross:
        heads = heads + tokens * e * query / x.tp + source * e * kv * kv_share

    wide = (3 if shape.gated else 2) * (block.ffn * (block.topk or 1) + block.shared_ffn)
    ffn = tokens * e * wide / x.tp
    if block.experts:
        dealt = xp.where(
            x.expert_tp == x.tp, 1, x.tp
        )  # whole experts get the tokens of one rank, cut ones those of all
        hidden = hidden + tokens * (
            2 * block.topk * e * h / dealt + _FP32_BYTES * block.experts / between
        )

    if fused:
        scores = _FP32_BYTES * shape.heads * tokens / x.tp * (2 if block.cross else 1)
    else:
        length = (shape.decoder_seq or shape.seq) if block.cross else shape.seq
        pairs = tokens * length + (tokens * shape.seq if block.cross else 0.0)
        scores = (e + (e + _MASK_BYTES if dropout else 0.0)) * shape.heads * pairs / x.tp
    return LayerActivations(hidden, heads, ffn, scores, e * tokens * h / between, not fused)
