"""What one layer keeps of a micro-batch from its forward to its backward pass, in bytes on one
rank.

Counted tensor by tensor, b samples of s tokens, e bytes per element, t tensor-parallel ranks
(Korthikanti et al., 2205.05198, eq. 1-4):

    hidden   inputs of the two norms and their outputs, which the matrices read,      4 e s b h
             / t with sequence parallelism
             dropout masks of the two outputs, one byte each, as above                2 s b h
    heads    queries, keys, values, attention's result; with GQA fewer keys           4 e s b h / t
             and values
    ffn      inputs of the activation and of the last matrix, 3 where gated           2 e s b f / t
    scores   softmax's output, its dropout mask and the dropped output        (2 e + 1) a s^2 b / t
             (e without dropout); fused attention a logarithm per row                 4 a s b / t

Where layers multiply in 8 bits, a product keeps its input for its weights' gradient as it read it,
in one byte: norms' outputs and the last matrix' input, and beside attention's result, which its own
backward pass reads in e bytes, a copy (Transformer Engine's `Linear` and `LayerNormLinear`).

With e = 2, f = 4 h and dropout the sum is s b h (34 + 5 a s / h) for t = 1, s b h (10 + 24/t + 5 a
s / (h t)) for tensor parallelism. Selective recompute drops the scores; full recompute keeps the
layer's input only, e s b h. A context-parallel rank has s / c tokens.

A mixture of experts adds two hidden tensors per expert a token takes (to the experts, and back for
weighting) and the router's choice. A layer measured by itself (`alone`) also shows its output and
its norms' statistics: BERT in fp32, b (70 s h + 9 a s^2 + 16 s).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax

from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.transformer.columns import FULL, SELECTIVE
from hybridperf.workloads.transformer.counts import LayerKind, norms_of
from hybridperf.workloads.transformer.layout import Layouts
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.sizes import SCANS, WITHOUT_ATTENTION


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MemoryKnobs:
    """Corrections of `hp.memory`: factors on counted bytes, and bytes that cannot be counted."""

    weights: float = 1.0  # factor on bytes of weights
    gradients: float = 1.0  # factor on bytes of gradients
    optimizer: float = 1.0  # factor on bytes of optimizer state
    hidden: float = 1.0  # factor on activations as wide as the hidden state or the heads
    ffn: float = 1.0  # factor on activations as wide as the MLP
    # factor on what attention keeps per pair of tokens, or per token where it is fused
    scores: float = 1.0
    workspace: float = 1.0  # factor on what lives only while one layer is computed
    loss_bytes: float = 4.0  # bytes per logit, next to the logit itself: the loss's copy in fp32
    # bytes per logit kept from the micro-batch before, where no pipeline stage runs in between
    stale_bytes: float = 0.0
    # tensors of the hidden width that the embedding keeps per micro-batch, whole on every rank
    embedding: float = 0.0
    head: float = 0.0  # tensors of the hidden width that the LM head keeps, likewise
    fixed_bytes: float = 1.0e9  # bytes of driver, libraries and communicators; assumed


# Knob: standard deviation before any measured peak is seen, of its logarithm, or of itself where
# the default is zero. Counts of states are near-certain; frameworks differ by a tensor or two per
# layer; the fixed part is known to a factor of two.
MEMORY_PRIORS = {
    "weights": 0.05, "gradients": 0.1, "optimizer": 0.05, "hidden": 0.3, "ffn": 0.3, "scores": 0.3,
    "workspace": 0.5, "loss_bytes": 0.4, "stale_bytes": 4.0, "embedding": 1.0, "head": 4.0,
    "fixed_bytes": 0.7,
}  # fmt: skip


_FP32_BYTES = 4.0
_MASK_BYTES = 1.0


class LayerActivations(NamedTuple):
    """Bytes of one layer and one micro-batch on one rank, before anything is recomputed."""

    hidden: Array
    heads: Array
    ffn: Array
    scores: Array
    input: Array  # the layer's own input, which full recompute keeps
    recomputable: bool  # selective recompute drops the scores

    def kept(self, recompute: Array, knobs: MemoryKnobs) -> Array:
        """Bytes from forward to backward under a recompute code."""
        xp = array_module(*self, recompute, *vars(knobs).values())
        others, scores = self._stored(knobs)
        if self.recomputable:
            scores = xp.where(recompute == SELECTIVE, 0.0, scores)
        return xp.where(recompute == FULL, self.input, others + scores)

    def recomputed(self, recompute: Array, knobs: MemoryKnobs) -> Array:
        """Bytes that are back while one layer is computed again."""
        xp = array_module(*self, recompute, *vars(knobs).values())
        others, scores = self._stored(knobs)
        selective = xp.where(recompute == SELECTIVE, scores, 0.0) if self.recomputable else 0.0
        return xp.where(recompute == FULL, others + scores, selective)

    def _stored(self, knobs: MemoryKnobs) -> tuple[Array, Array]:
        """(all but attention's scores, the scores)."""
        others = knobs.hidden * (self.hidden + self.heads) + knobs.ffn * self.ffn
        return others, knobs.scores * self.scores


def layer_activations(
    shape: TransformerShape, layouts: Layouts, kind: LayerKind | None = None, *,
    element_bytes: float = 2.0, input_bytes: float | None = None, fused: bool = True,
    dropout: bool = False, alone: bool = False,
) -> LayerActivations:  # fmt: skip
    """Activations of one layer.

    Args:
        shape: the model.
        layouts: columns.
        kind: of the layer; None: the last one, the only one of most models.
        element_bytes: of an activation.
        input_bytes: of a product's input as it is kept; None: `element_bytes`.
        fused: attention keeps no scores.
        dropout: masks are kept.
        alone: as measured by itself, with its output and its norms' statistics.
    """
    kind = kind or shape.layer_kinds[-1]
    shape = shape.of(kind.mixer)
    e, h, x = element_bytes, shape.hidden, layouts
    kept = e if input_bytes is None else input_bytes
    xp = array_module(*x)
    # ranks that share what lies between the matrices
    between = xp.where(x.sequence_parallel > 0, x.tp, 1)
    # tokens of a rank; of the encoder where there are two stacks
    source = x.micro_batch * shape.seq / x.cp
    tokens = x.micro_batch * (shape.decoder_seq or shape.seq) / x.cp if kind.cross else source

    norms = norms_of(shape, kind.mixer, kind.ffn)
    inputs = min(norms, 2) + kind.cross  # matrices that read a norm's output
    per_token = h * (e * (norms + kind.cross) + kept * inputs)
    # streams are read where a half of a layer begins, and where its result joins them
    per_token += 4 * e * h * shape.streams
    if shape.diffusion:  # each branch's result, which its gate's gradient multiplies
        per_token += e * h * norms
    if dropout:
        per_token += _MASK_BYTES * h * (2 + kind.cross)
    if alone:
        statistics = 2 if shape.norm == "layernorm" else 1
        per_token += e * h + norms * _FP32_BYTES * statistics
    hidden = tokens * per_token / between
    if (latent := shape.latent) and kind.mixer == "attention":
        widths = (latent.query_rank or 0) + latent.kv_rank + latent.rotary_dim
        hidden = hidden + tokens * e * widths / between

    # whole heads, at least one
    kv_share = xp.maximum(1 / x.tp, 1 / shape.key_heads) if shape.latent is None else 1 / x.tp
    query, kv = shape.query_width + shape.context_width, shape.key_width + shape.value_width
    heads = tokens * e * (query / x.tp + kv * kv_share)
    if kept < e:
        heads = heads + tokens * kept * shape.context_width / x.tp
    if shape.gated_attention:  # the gate, and what it multiplies
        heads = heads + 2 * tokens * e * shape.context_width / x.tp
    if shape.qk_norm:
        heads = heads + tokens * e * (shape.query_width / x.tp + shape.key_width * kv_share)
    if kind.cross:
        heads = heads + tokens * e * query / x.tp + source * e * kv * kv_share

    if kind.mixer in WITHOUT_ATTENTION:
        heads = 0.0 * heads
    if kind.mixer == "conv":  # what comes in, what both gates multiply, the result
        heads = heads + 6 * tokens * e * h / x.tp
    if kind.mixer in SCANS and shape.scan:  # as it enters, as convolved, as it leaves, normed
        scan = shape.scan
        widths = scan.width + (scan.inner + scan.keys if scan.conv else 0) + 2 * scan.inner
        heads = heads + tokens * e * widths / x.tp

    wide = kind.ffn * (kind.topk or 1) + kind.shared_ffn
    ffn = tokens * wide * (e * (2 if shape.gated else 1) + kept) / x.tp
    if kind.experts:
        # whole experts get the tokens of one rank, cut ones those of all
        dealt = xp.where(x.expert_tp == x.tp, 1, x.tp)
        copies = 2 * kind.topk * e * h / dealt
        hidden = hidden + tokens * (copies + _FP32_BYTES * kind.experts / between)

    if fused:
        scores = _FP32_BYTES * shape.heads * tokens / x.tp * (2 if kind.cross else 1)
    else:
        length = (shape.decoder_seq or shape.seq) if kind.cross else shape.seq
        pairs = tokens * length + (tokens * shape.seq if kind.cross else 0.0)
        scores = (e + (e + _MASK_BYTES if dropout else 0.0)) * shape.heads * pairs / x.tp
    if kind.mixer in WITHOUT_ATTENTION:
        scores = 0.0 * scores
    return LayerActivations(hidden, heads, ffn, scores, e * tokens * h / between, not fused)
