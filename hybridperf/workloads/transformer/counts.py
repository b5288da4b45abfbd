"""How many parameters and floating-point operations a Transformer has, by how ranks share them.

A layer of a GPT: 12 h^2 + 13 h parameters, 24 h^2 + 4 s h FLOPs per token (each weight twice;
scores and weighted sum 2 s h each), so

    P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) + 2 h,      the last norm's 2 h being left out
                                                                of the published formula
    forward = 24 B s l h^2 (1 + s/(6 h) + V/(12 l h))

Parameters are kept by how ranks share them: a tensor-parallel rank has 1/t of `heads`, `kv` (whole
heads, at least one) and `ffn`, all of `whole`; an expert-parallel rank has 1/e of the experts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import NamedTuple

from hybridperf.io import InputError
from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.transformer.sizes import (
    COMPRESSING,
    SCANS,
    WITHOUT_ATTENTION,
    ModelSizes,
)

MULTIPLY_ADD = 2  # FLOPs of a multiply-add
# numbers that an optimizer keeps per weight
MOMENTS = {"adam": 2, "lamb": 2, "momentum": 1, "sgd": 0}
BACKWARD = 2  # a matrix product's backward pass is two products of its size
# vectors of the hidden width that a layer of a diffusion Transformer makes of a sample's, by its
# mixer: a shift, a scale and a gate around attention and around the MLP; of each stream where joint
MODULATION = {"attention": 6, "joint": 12, "parallel": 3}


class ParameterCounts(NamedTuple):
    """Numbers of parameters by how ranks share them."""

    heads: int = 0  # columns or rows that belong to heads: queries, output
    kv: int = 0  # keys and values
    ffn: int = 0  # columns or rows of an MLP
    vocab: int = 0  # rows of the embedding or of the head
    whole: int = 0  # norms, biases of outputs, router, positions: on every tensor-parallel rank
    experts: int = 0  # columns or rows of all experts together
    experts_whole: int = 0  # biases of the experts' outputs

    @property
    def total(self) -> int:
        return sum(self)


def rank_shares(
    part: ParameterCounts, key_heads: int, tp: Array, ep: Array, expert_tp: Array
) -> tuple[Array, Array]:
    """One rank's parameters of a part of the model: (all but the experts', the experts')."""
    kv = part.kv / array_module(tp, ep, expert_tp).minimum(tp, key_heads)
    dense = (part.heads + part.ffn + part.vocab) / tp + kv + part.whole
    return dense, (part.experts / expert_tp + part.experts_whole) / ep


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """One kind of layer: how many, and what differs between the kinds of a model."""

    count: int
    ffn: int  # width of the MLP or of one expert
    experts: int
    topk: int
    shared_ffn: int
    cross: bool  # attends to an encoder's output too
    parameters: ParameterCounts
    mixer: str = "attention"  # of `sizes.MIXERS`

    @property
    def idle_parameters(self) -> int:
        """ParameterCounts of the experts that a token does not take."""
        if not self.experts:
            return 0
        of_experts = self.parameters.experts + self.parameters.experts_whole
        return of_experts * (self.experts - self.topk) // self.experts


def layer_kinds(shape: ModelSizes) -> tuple[LayerKind, ...]:
    """Kinds of layers in the order of their first."""

    def kind(count: int, mixer: str, ffn: int, experts: int, cross: bool) -> LayerKind:
        shared = shape.shared_ffn if experts else 0
        parameters = _layer(shape, ffn, experts, shared, cross, mixer)
        topk = shape.topk if experts else 0
        return LayerKind(count, ffn, experts, topk, shared, cross, parameters, mixer)

    return tuple(kind(count, *one) for one, count in Counter(_each_layer(shape)).items())


def layer_order(shape: ModelSizes) -> tuple[int, ...]:
    """The kind of each layer: its place among `layer_kinds`."""
    each = _each_layer(shape)
    places = {one: at for at, one in enumerate(dict.fromkeys(each))}
    return tuple(places[one] for one in each)


def _each_layer(shape: ModelSizes) -> list[tuple[str, int, int, bool]]:
    """(mixer, width of the MLP or of an expert, experts, whether it attends to an encoder)."""
    dense, alone = shape.dense_layers, "mlp" in shape.mixers  # mixers and MLPs are layers apart
    mlps = [(shape.dense_ffn, 0)] * dense + [(shape.ffn, shape.experts)] * (shape.layers - dense)
    mixers = shape.mixers or ("attention",) * shape.layers
    found = [
        (mixer, *((0, 0) if alone and mixer != "mlp" else mlp), False)
        for mixer, mlp in zip(mixers, mlps, strict=True)
    ]
    return found + [("attention", shape.ffn, shape.experts, True)] * shape.decoder_layers


def _norm(shape: ModelSizes) -> int:
    if shape.diffusion:  # shifted and scaled by what a sample's vector says
        return 0
    bias = shape.norm == "layernorm" if shape.norm_bias is None else shape.norm_bias
    return shape.hidden * (2 if bias else 1)


def _layer(
    shape: ModelSizes, ffn: int, experts: int, shared_ffn: int, cross: bool, mixer: str
) -> ParameterCounts:
    h, inputs = shape.hidden, 2 if shape.gated else 1  # matrices from the hidden state into the MLP
    attention = _mixer(shape, mixer)
    times = 2 if cross else 1
    norms = (norms_of(shape, mixer, ffn) + (1 if cross else 0)) * _norm(shape)
    n = shape.streams  # weights of each half: into it, out of it, among streams
    norms += 2 * ((n * h + 1) * n * (n + 2) + 3) if n else 0
    if not ffn:
        return attention._replace(whole=attention.whole + norms)
    whole = attention.whole * times + norms
    in_bias, out_bias = (ffn * inputs, h) if shape.biases else (0, 0)
    one = (inputs + 1) * h * ffn + in_bias
    if not experts:
        found = attention._replace(
            heads=attention.heads * times, kv=attention.kv * times, ffn=one, whole=whole + out_bias
        )
        return _modulated(shape, found, mixer) if shape.diffusion else found
    whole += h * experts + (experts if shape.router_bias else 0)
    if latent := shape.expert_hidden:
        one, whole = one // h * latent, whole + 2 * h * latent
    shared = (inputs + 1) * h * shared_ffn
    return ParameterCounts(
        heads=attention.heads * times, kv=attention.kv * times, ffn=shared, whole=whole,
        experts=experts * one, experts_whole=experts * out_bias,
    )  # fmt: skip


def _modulated(shape: ModelSizes, layer: ParameterCounts, mixer: str) -> ParameterCounts:
    """A diffusion Transformer's layer, from one that has a norm, attention, a norm and an MLP."""
    h, streams = shape.hidden, 2 if mixer == "joint" else 1
    found = ParameterCounts(*(streams * count for count in layer))
    joined = h if mixer == "parallel" else 0  # both results have one bias
    return found._replace(whole=found.whole + MODULATION[mixer] * h * (h + 1) - joined)


def norms_of(shape: ModelSizes, mixer: str, ffn: int) -> int:
    """Norms of a layer, one where mixer or MLP is missing, or both stand behind it."""
    return 1 if mixer in ("mlp", "parallel") or not ffn else shape.norms_per_layer


def _mixer(shape: ModelSizes, mixer: str) -> ParameterCounts:
    """What a layer has before its MLP, norms of the hidden state left out."""
    if mixer == "mlp":
        return ParameterCounts()
    if mixer == "conv":
        return ParameterCounts(heads=(4 * shape.hidden + shape.conv) * shape.hidden)
    if shape.compressed:
        return _compressed(shape, mixer)
    if mixer not in SCANS:
        return _attention(shape.of(mixer))
    scan = shape.scan
    assert scan is not None
    taps = (scan.inner + scan.keys) * (scan.conv + 1) if scan.conv else 0
    # of the step size: its bias, the decay and what of x goes past the state; the gated norm
    own = taps + 3 * scan.rates * scan.heads + scan.inner + scan.raised
    found = ParameterCounts(heads=shape.hidden * (scan.width + scan.inner) + own)
    if mixer == "both":
        found = ParameterCounts(*map(sum, zip(found, _attention(shape), strict=True)))
    return found


def _compressed(shape: ModelSizes, mixer: str) -> ParameterCounts:
    """Queries down and up, keys, the result narrowed in groups and back; norms of both; of
    compressed keys their products, their places' shares and norms, and an indexer's queries.
    """
    h, dim, told = shape.hidden, shape.dim, shape.compressed
    assert told is not None
    narrow = told.query_rank * shape.query_width + shape.context_width * told.output_rank
    heads = narrow + told.output_width * h + (shape.heads if shape.sinks else 0)
    whole = (h + 1) * (told.query_rank + dim)
    if mixer in COMPRESSING:
        wide = told.pooled(mixer, dim)
        whole += h * wide + told.rate(mixer) * wide // 2 + dim
    if mixer == "picked":
        whole += (told.query_rank * told.index_dim + h) * told.index_heads + told.index_dim
    return ParameterCounts(heads=heads, whole=whole)


def _attention(shape: ModelSizes) -> ParameterCounts:
    h, latent = shape.hidden, shape.latent
    bias = shape.biases if shape.qkv_biases is None else shape.qkv_biases
    sinks = shape.heads if shape.sinks else 0
    norms = shape.query_width + shape.key_width if shape.qk_norm_whole else 2 * shape.dim
    whole = (norms if shape.qk_norm else 0) + (h if shape.biases else 0)
    output = shape.context_width * h
    if latent is None:
        query = (h + bias) * shape.query_width * (1 + shape.gated_attention)
        kv = (h + bias) * shape.made_width
        return ParameterCounts(heads=query + output + sinks, kv=kv, whole=whole)
    # down to the latents (on every rank) and up to the heads; each latent has a norm; keys' rotary
    # part is made straight from h
    down = h * (latent.kv_rank + latent.rotary_dim) + latent.kv_rank
    up = latent.kv_rank * shape.heads * (latent.plain_dim + latent.value_dim)
    if latent.query_rank is not None:
        down += h * latent.query_rank + latent.query_rank
    if latent.selected:  # queries of the indexer, its keys and their norm, weights of its heads
        down += (latent.query_rank or h) * latent.index_heads * latent.index_dim
        down += h * (latent.index_dim + latent.index_heads) + 2 * latent.index_dim
    query = (latent.query_rank or h) * shape.query_width
    query += h * shape.context_width if shape.gated_attention else 0
    return ParameterCounts(heads=query + up + output + sinks, whole=whole + down)


def embedding(shape: ModelSizes) -> ParameterCounts:
    """ParameterCounts before the first layer."""
    h = shape.hidden
    whole = shape.token_types * h + (_norm(shape) if shape.embedding_norm else 0)
    if shape.positions == "learned":
        whole += (shape.max_positions or shape.seq) * h
    if shape.positions == "relative":
        whole += shape.relative_buckets * shape.heads * (2 if shape.decoder_layers else 1)
    if shape.family == "vit":
        # the patches' matrix and bias, the class token
        return ParameterCounts(whole=whole + shape.channels * shape.patch**2 * h + h + h)
    if (told := shape.diffusion) is not None:
        whole += (shape.channels * shape.patch**2 + 1 + told.classes) * h
        whole += (told.text_width + 1) * h if told.text_tokens else 0
        whole += sum((width + 1 + h + 1) * h for width in told.vectors)
        return ParameterCounts(whole=whole)
    return ParameterCounts(vocab=shape.vocab * h, whole=whole)


def head(shape: ModelSizes) -> ParameterCounts:
    """Of final norms, the head's own matrix and bias, BERT's transform and pooler."""
    h = shape.hidden
    stacks = 2 if shape.decoder_layers else 1
    whole = 0 if shape.norms_last else stacks * _norm(shape)
    vocab = 0
    if shape.head == "lm":
        vocab += (0 if shape.tied else shape.vocab * h) + (shape.vocab if shape.head_bias else 0)
    elif shape.head == "mlm":
        vocab += (0 if shape.tied else shape.vocab * h) + shape.vocab
        whole += h * h + h + _norm(shape)
    elif shape.head == "classes":
        vocab += shape.vocab * (h + 1)
    elif shape.head == "patches":
        whole += shape.vocab * (h + 1)
    if n := shape.streams:
        whole += n * (n * h + 1) + 1
    if shape.diffusion:  # shift and scale of the last norm
        whole += 2 * h * (h + 1)
    if shape.pooler:
        whole += h * h + h + 2 * h + 2
    return ParameterCounts(vocab=vocab, whole=whole)


def forward_flops(
    shape: ModelSizes, kinds: tuple[LayerKind, ...], batch: float, seq: int, causal: bool
) -> float:
    """FLOPs of the layers, the head and a ViT's patches."""
    layers = sum(
        kind.count * (_matrices(shape, kind, batch, seq) + _core(shape, kind, batch, seq, causal))
        for kind in kinds
    )
    return layers + _embedding_and_head(shape, batch, seq)


def recomputed_flops(
    shape: ModelSizes, kinds: tuple[LayerKind, ...], batch: float, seq: int, recompute: str,
    causal: bool,
) -> float:  # fmt: skip
    """FLOPs beyond `model_flops`."""
    if recompute == "none":
        return 0.0
    if recompute == "full":
        whole = forward_flops(shape, kinds, batch, seq, causal)
        return whole - _embedding_and_head(shape, batch, seq)
    if recompute == "selective":
        cores = sum(kind.count * _core(shape, kind, batch, seq, causal) for kind in kinds)
        return (1 + BACKWARD) * cores
    raise InputError(f"recompute must be none, selective or full, got {recompute!r}")


def _tokens(shape: ModelSizes, kind: LayerKind, seq: int) -> float:
    return (shape.decoder_seq or seq) if kind.cross else seq


def _matrices(shape: ModelSizes, kind: LayerKind, batch: float, seq: int) -> float:
    """FLOPs of a layer's products with weights."""
    shape = shape.of(kind.mixer)
    h, latent, tokens = shape.hidden, shape.latent, _tokens(shape, kind, seq)
    inputs = 2 if shape.gated else 1
    narrow = shape.expert_hidden if kind.experts else 0
    mlp = (inputs + 1) * ((narrow or h) * kind.ffn * (kind.topk or 1) + h * kind.shared_ffn)
    mlp += h * (kind.experts + 2 * narrow)
    mixed = 0
    if kind.mixer in SCANS and shape.scan:
        mixed = h * (shape.scan.width + shape.scan.inner) + shape.scan.raised
    if kind.mixer == "conv":
        mixed = 4 * h * h
    if kind.mixer in WITHOUT_ATTENTION:
        return MULTIPLY_ADD * batch * (mixed + mlp) * tokens
    mlp += mixed
    if told := shape.compressed:
        query = h * told.query_rank + told.query_rank * shape.query_width
        kv = h * shape.dim
        if kind.mixer in COMPRESSING:
            kv += h * told.pooled(kind.mixer, shape.dim)
        if kind.mixer == "picked":
            query += (told.query_rank * told.index_dim + h) * told.index_heads
        narrow = shape.context_width * told.output_rank + told.output_width * h
        mixing = 2 * shape.streams**2 * (shape.streams + 2) * h
        return MULTIPLY_ADD * batch * (query + kv + narrow + mlp + mixing) * tokens
    if latent:
        rank = latent.query_rank
        query = rank * (h + shape.query_width) if rank else h * shape.query_width
        up = latent.kv_rank * shape.heads * (latent.plain_dim + latent.value_dim)
        query += h * shape.context_width if shape.gated_attention else 0
        kv = h * (latent.kv_rank + latent.rotary_dim) + up
    else:
        query = h * shape.query_width * (1 + shape.gated_attention)
        kv = h * shape.made_width
    per_token = query + kv + shape.context_width * h + mlp
    # keys and values of the encoder's output
    across = (query + shape.context_width * h) * tokens + kv * seq if kind.cross else 0.0
    across += MODULATION[kind.mixer] * h * h if shape.diffusion else 0.0  # once a sample
    return MULTIPLY_ADD * batch * (per_token * tokens + across)


def _core(shape: ModelSizes, kind: LayerKind, batch: float, seq: int, causal: bool) -> float:
    """FLOPs of a layer's scores and weighted sums."""
    tokens = _tokens(shape, kind, seq)
    each = shape.scan.flops if kind.mixer in SCANS and shape.scan else 0.0
    each += shape.conv * shape.hidden if kind.mixer == "conv" else 0.0
    if kind.mixer in WITHOUT_ATTENTION:
        return MULTIPLY_ADD * batch * tokens * each
    pairs = tokens * (shape.attended or tokens) / (2 if causal else 1)
    pairs += tokens * seq if kind.cross else 0.0
    if kind.mixer == "window" and shape.window < tokens:
        pairs = tokens * shape.window - (shape.window**2 / 2 if causal else 0.0)
    own = shape.of(kind.mixer)
    if kind.mixer in COMPRESSING and (told := shape.compressed):
        half = 2 if causal else 1
        seen = shape.window + told.beyond(kind.mixer, tokens / half)
        pairs = tokens * seen - (seen**2 / 2 if causal else 0.0)
        pairs = pairs if seen < tokens else tokens**2 / half
        if kind.mixer == "picked":
            each += told.index_heads * told.index_dim * tokens / half / told.picked_rate
    return MULTIPLY_ADD * batch * (tokens * each + pairs * (own.query_width + own.context_width))


def _embedding_and_head(shape: ModelSizes, batch: float, seq: int) -> float:
    """FLOPs before the first and after the last layer."""
    h, tokens = shape.hidden, (shape.decoder_seq or seq) if shape.decoder_layers else seq
    if shape.family == "vit":
        patches = MULTIPLY_ADD * batch * (seq - 1) * shape.channels * shape.patch**2 * h
        classes = MULTIPLY_ADD * batch * h * shape.vocab if shape.head == "classes" else 0.0
        return patches + classes
    if (told := shape.diffusion) is not None:
        once = sum((width + h) * h for width in told.vectors) + 2 * h * h
        text = told.text_tokens * told.text_width * h
        image = (seq - told.text_tokens) * h * (shape.channels * shape.patch**2 + shape.vocab)
        return MULTIPLY_ADD * batch * (once + text + image)
    pooler = MULTIPLY_ADD * batch * h * h if shape.pooler else 0.0
    if shape.head == "none":
        return pooler
    transform = h * h if shape.head == "mlm" else 0
    predicted = batch * tokens * shape.predicted_share
    return MULTIPLY_ADD * predicted * (h * shape.vocab + transform) + pooler
