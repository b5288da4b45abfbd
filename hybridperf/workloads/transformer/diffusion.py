"""A layer of a diffusion Transformer on one device: norms that a sample's vector shifts and scales,
results that it gates, attention without a mask, and text beside the image.

    vector -> silu -> modulation: shift, scale, gate of each branch
    x -> norm, shifted, scaled -> queries, keys, values -> attention -> output, gated -> + x
      -> norm, shifted, scaled -> MLP, gated -> + x                                (adaLN-Zero, DiT)

    joint      image and text have weights of their own and attend to each other       (MMDiT, Flux)
    parallel   attention and MLP behind one norm; their two products into it and the two out of it
               are one each                                                                  (Flux)

A norm has no parameters: the sums over a sample's tokens that those of another one need (`norm`)
are its shift's and scale's.
"""

from __future__ import annotations

import dataclasses

from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.counts import MODULATION, LayerKind
from hybridperf.workloads.transformer.passes import Passes

Streams = tuple[tuple[str, float], ...]


def attention(config: TransformerConfig, kind: LayerKind) -> Passes:
    """A layer up to its MLP; of a parallel one all of it."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    parallel = kind.mixer == "parallel"
    into = modulation(config, MODULATION[kind.mixer])
    width = s.query_width + s.key_width + s.value_width
    beside = kind.ffn if parallel else 0
    for name, tokens in _streams(config, kind):
        into += kernels.branch(tokens, s.hidden)
        into += modulated_norm(config, f"{name}attention norm", tokens)
        into += kernels.linear(
            f"{name}qkv", tokens, s.hidden, width + beside, split="outputs", bias=True
        )
        into += kernels.split(f"{name}qkv", tokens, width + beside)
        if s.qk_norm:
            into += kernels.head_norm(f"{name}query norm", tokens, s.heads, s.dim)
            into += kernels.head_norm(f"{name}key norm", tokens, s.key_heads, s.dim)
        if s.positions == "rotary":
            into += kernels.rope(f"{name}queries", tokens, s.query_width)
            into += kernels.rope(f"{name}keys", tokens, s.key_width)
    length = config.tokens / batch
    if config.attention == "fused":
        sizes = (batch, length, s.heads, s.dim, s.key_heads)
        into += kernels.fused_attention(*sizes, causal=False)
    else:
        into += kernels.unfused_attention(batch, length, length, s.heads, s.dim)
    for name, tokens in _streams(config, kind):
        if parallel:
            into += kernels.activation("mlp inner", tokens, kind.ffn, gated=False, bias=False)
        name = f"{name}attention output"
        into += kernels.linear(name, tokens, s.context_width + beside, s.hidden, split="inputs")
        into += _gated(config, name, tokens)
    return into


def mlp(config: TransformerConfig, kind: LayerKind) -> Passes:
    """The MLP of each stream; a parallel layer has it in its attention."""
    s, kernels, into = config.shape, config.layer_kernels, Passes()
    if kind.mixer == "parallel":
        return into
    for name, tokens in _streams(config, kind):
        into += kernels.branch(tokens, s.hidden)
        into += modulated_norm(config, f"{name}mlp norm", tokens)
        into += kernels.linear(f"{name}mlp in", tokens, s.hidden, kind.ffn, split="outputs")
        into += kernels.activation(f"{name}mlp inner", tokens, kind.ffn, gated=False, bias=True)
        into += kernels.linear(f"{name}mlp out", tokens, kind.ffn, s.hidden, split="inputs")
        into += _gated(config, f"{name}mlp", tokens)
    return into


def modulation(config: TransformerConfig, vectors: int) -> Passes:
    """So many vectors made of each sample's: products of as many rows as there are samples, which
    all ranks of a group have.
    """
    h, samples = config.shape.hidden, float(config.layout.micro_batch)
    return once_a_sample(config.kernels.linear("modulation", samples, h, vectors * h, bias=True))


def once_a_sample(piece: Passes) -> Passes:
    """Steps that no rank of a group has less of, whatever it has of a sample's tokens."""
    there, back = (
        tuple(dataclasses.replace(step, tokens="") for step in steps)
        for steps in (piece.forward, piece.backward)
    )
    return Passes(there, back)


def modulated_norm(config: TransformerConfig, name: str, tokens: float) -> Passes:
    """A norm, and what shifts and scales it: a loop, also on the way back."""
    s, kernels = config.shape, config.layer_kernels
    loop = kernels.loop(f"{name} shifted and scaled", tokens, s.hidden, like="mulu")
    back = dataclasses.replace(loop, name=f"{loop.name}, gradient")
    return kernels.norm(name, s.norm, tokens, s.hidden) + Passes((loop,), (back,))


def _gated(config: TransformerConfig, name: str, tokens: float) -> Passes:
    """A branch's result times its gate, added to what came past it; back, the gate's gradient is a
    sum over the sample's tokens.
    """
    h, kernels = config.shape.hidden, config.layer_kernels
    back = kernels.loop(f"{name} gate gradient", tokens, h, like="mul")
    sums = kernels.column_sums(f"{name} gate gradient summed", tokens, h)
    return Passes((), (back, sums)) + kernels.residual(name, tokens, h, True)


def _streams(config: TransformerConfig, kind: LayerKind) -> Streams:
    """(prefix of names, tokens of a micro-batch) of what has weights of its own."""
    told, tokens = config.shape.diffusion, config.tokens
    assert told is not None
    if kind.mixer != "joint":
        return (("", tokens),)
    text = tokens * told.text_tokens / config.shape.seq
    return (("image ", tokens - text), ("text ", text))


def embedding(config: TransformerConfig) -> Passes:
    """Patches and text brought to the hidden width, and the sample's vectors added up."""
    s, kernels, told = config.shape, config.kernels, config.shape.diffusion
    assert told is not None
    samples, h = float(config.layout.micro_batch), s.hidden
    numbers = s.channels * s.patch**2
    found = kernels.linear("patches", samples * s.image_tokens, numbers, h, bias=True)
    if told.text_tokens:
        sizes = (samples * told.text_tokens, told.text_width, h)
        found += kernels.linear("text", *sizes, bias=True)
    for at, width in enumerate(told.vectors):
        for i in (width, h):
            vector = kernels.linear(f"vector {at + 1} of a sample", samples, i, h, bias=True)
            found += once_a_sample(vector)
    return found


def head(config: TransformerConfig) -> Passes:
    """The last norm, its shift and scale, the numbers of each patch, and their squared error."""
    s, kernels = config.shape, config.kernels
    tokens = float(config.layout.micro_batch * s.image_tokens)
    found = modulation(config, 2) + modulated_norm(config, "final norm", tokens)
    found += kernels.linear("patches out", tokens, s.hidden, s.vocab, bias=True)
    error = kernels.loop("squared error", tokens, s.vocab, like="mul")
    return found + Passes((error,), (dataclasses.replace(error, name="squared error gradient"),))
