"""One layer on one device: attention and MLP (or experts), each with its norm and residual, as
kernels forward and backward.

    x -> norm -> queries, keys, values -> attention -> output -> + x -> norm -> MLP -> +

and, in a decoder, attention to an encoder between the two.

A norm behind the residual (BERT) costs the same. Products of one input are one product: queries
with keys and values, gate with value.
"""

from __future__ import annotations

from hybridperf.io import InputError
from hybridperf.ops import Moe, OpCall, Softmax
from hybridperf.workloads.transformer import ratios
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.passes import PassStep, Piece

# of each expert; what stands between the products is one kernel for all: Transformer Engine
# multiplies expert by expert, on some streams
EXPERT_PRODUCTS, EXPERT_BACKWARD_PRODUCTS = 2, 4


def layer(config: TransformerConfig, kind: LayerKind) -> Piece:
    """A layer of a kind (`shape.layer_kinds`) before anything is shared out."""
    tokens = config.decoder_tokens if kind.cross else config.tokens
    family = config.shape.family
    causal = family not in ("bert", "vit") and (kind.cross or family != "t5")
    parts = self_attention(config, tokens, causal)
    if kind.cross:
        parts += cross_attention(config, tokens)
    return parts + mlp(config, kind, tokens)


def self_attention(config: TransformerConfig, tokens: float, causal: bool) -> Piece:
    """Attention of a sequence to itself."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    length = tokens / batch
    into = kernels.branch(tokens, s.hidden)
    into += kernels.norm("attention norm", s.norm, tokens, s.hidden)
    if s.latent is not None:
        return into + _latent(config, tokens, causal) + _out(config, tokens)
    bias = s.biases if s.qkv_biases is None else s.qkv_biases
    width = s.query_width + s.key_width + s.value_width
    into += kernels.linear("qkv", tokens, s.hidden, width, split="outputs", bias=bias)
    into += kernels.split("qkv", tokens, width)
    if s.qk_norm:
        into += kernels.head_norm("query norm", tokens, s.heads, s.dim)
        into += kernels.head_norm("key norm", tokens, s.key_heads, s.dim)
    if s.positions == "rotary":
        into += kernels.rope("queries", tokens, s.query_width)
        into += kernels.rope("keys", tokens, s.key_width)
    if config.attention == "fused":
        core = kernels.fused_attention(batch, length, s.heads, s.dim, s.key_heads, causal)
    else:
        core = Piece()
        if s.key_heads != s.heads:
            core += kernels.repeated("keys and values", tokens, s.heads, s.key_heads, 2 * s.dim)
        core += kernels.unfused_attention(batch, length, length, s.heads, s.dim)
        core += kernels.copy("context", tokens, s.context_width)
    return into + core + _out(config, tokens)


def cross_attention(config: TransformerConfig, tokens: float) -> Piece:
    """Attention of a decoder's sequence to the encoder's output."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    length = tokens / batch
    if config.attention == "fused":
        sizes = (batch, length, s.heads, s.dim, s.key_heads)
        core = kernels.fused_attention(*sizes, causal=False, keys=float(s.seq))
    else:
        core = kernels.unfused_attention(batch, length, s.seq, s.heads, s.dim)
        core += kernels.copy("context", tokens, s.context_width)

    def linear(name: str, tokens: float, width: int) -> Piece:
        return kernels.linear(name, tokens, s.hidden, width, split="outputs", bias=s.biases)

    into = kernels.branch(tokens, s.hidden)
    into += kernels.norm("cross norm", s.norm, tokens, s.hidden)
    into += linear("cross queries", tokens, s.query_width)
    into += linear("cross keys and values", config.tokens, s.key_width + s.value_width)
    return into + core + _out(config, tokens)


def _out(config: TransformerConfig, tokens: float) -> Piece:
    s, kernels = config.shape, config.layer_kernels
    name = "attention output"
    product = kernels.linear(name, tokens, s.context_width, s.hidden, split="inputs")
    return product + kernels.residual(name, tokens, s.hidden, s.biases)


def _latent(config: TransformerConfig, tokens: float, causal: bool) -> Piece:
    """Multi-head latent attention: down to small vectors on every rank, and up to the heads."""
    s, kernels, latent = config.shape, config.layer_kernels, config.shape.latent
    assert latent is not None
    if config.attention != "fused":
        raise InputError(
            f'unfused latent attention is not modelled ({s.name}): take attention="fused"'
        )
    rank = latent.query_rank
    if rank is None:
        into = kernels.linear("queries", tokens, s.hidden, s.query_width, split="outputs")
    else:
        into = kernels.linear("queries down", tokens, s.hidden, rank)
        into += kernels.norm("query norm", "rmsnorm", tokens, rank)
        into += kernels.linear("queries up", tokens, rank, s.query_width, split="outputs")
    down, up = latent.kv_rank + latent.rotary_dim, s.heads * (latent.plain_dim + latent.value_dim)
    into += kernels.linear("keys and values down", tokens, s.hidden, down)
    into += kernels.norm("key norm", "rmsnorm", tokens, latent.kv_rank)
    into += kernels.linear("keys and values up", tokens, latent.kv_rank, up, split="outputs")
    into += kernels.rope("queries", tokens, s.heads * latent.rotary_dim)
    into += kernels.rope("keys", tokens, s.heads * latent.rotary_dim)
    # scores of one width and values of another: the mean width has the work of both
    width = (latent.plain_dim + latent.rotary_dim + latent.value_dim) / 2
    batch = config.layout.micro_batch
    return into + kernels.fused_attention(batch, tokens / batch, s.heads, width, s.heads, causal)


def mlp(config: TransformerConfig, kind: LayerKind, tokens: float) -> Piece:
    """The MLP, or the experts and the MLP that all tokens take as well."""
    s, kernels = config.shape, config.layer_kernels
    into = kernels.branch(tokens, s.hidden) + kernels.norm("mlp norm", s.norm, tokens, s.hidden)
    for at in range(s.norms_per_layer - 2):
        into += kernels.norm(f"norm {at + 3}", s.norm, tokens, s.hidden)
    if not kind.experts:
        into += _dense(config, kind.ffn, tokens, s.biases)
        return into + kernels.residual("mlp", tokens, s.hidden, s.biases)
    into += experts(config, kind, tokens)
    if kind.shared_ffn:
        into += _dense(config, kind.shared_ffn, tokens, False)
        into += Piece((kernels.loop("shared result added", tokens, s.hidden),))
    return into + kernels.residual("mlp", tokens, s.hidden, False)


def _dense(config: TransformerConfig, ffn: int, tokens: float, bias: bool) -> Piece:
    s, kernels = config.shape, config.layer_kernels
    wide = ffn * (2 if s.gated else 1)
    into = kernels.linear("mlp in", tokens, s.hidden, wide, split="outputs")
    into += kernels.activation("mlp inner", tokens, ffn, gated=s.gated, bias=bias)
    return into + kernels.linear("mlp out", tokens, ffn, s.hidden, split="inputs")


def experts(config: TransformerConfig, kind: LayerKind, tokens: float) -> Piece:
    """Router, tokens sorted by expert, the experts, and each token's results added up."""
    s, kernels = config.shape, config.layer_kernels
    op = Moe(
        kernels.dtype, float(tokens), float(s.hidden), float(kind.ffn), float(kind.topk),
        float(kind.experts), gated=float(s.gated), quant=config.quant,
    )  # fmt: skip
    cut = config.layout.expert_tp is None or config.layout.expert_tp == config.layout.tp

    def product(name: str, times: float, products: int) -> PassStep:
        launches, tensor = 1 + products * kind.experts, ("moe_tp",) if cut else ()
        call = OpCall(op, times=times)
        return PassStep(call, "gemm", name, launches, tensor=tensor, tokens="tokens")

    forward = product("experts", 1.0, EXPERT_PRODUCTS)
    back = product("experts gradient", ratios.EXPERTS, EXPERT_BACKWARD_PRODUCTS)
    into = config.kernels.linear("router", tokens, s.hidden, kind.experts, bias=s.router_bias)
    into += _routed(kernels, tokens, kind)
    into += kernels.moved("tokens in order", tokens * kind.topk, s.hidden)
    into += Piece((forward,), (back,))
    return into + kernels.weighted("results added up", tokens, s.hidden, kind.topk)


def _routed(kernels: Kernels, tokens: float, kind: LayerKind) -> Piece:
    """Probabilities of the experts and the best of them."""
    op = Softmax(kernels.dtype, float(tokens), float(kind.experts))
    forward = PassStep(OpCall(op), "memory", "router softmax", tokens="rows")
    best = kernels.loop("experts chosen", tokens, kind.experts, like="cast")
    call = OpCall(op, times=ratios.SOFTMAX)
    back = PassStep(call, "memory", "router softmax gradient", tokens="rows")
    return Piece((forward, best), (back,))
