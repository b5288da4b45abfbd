"""One layer on one device: attention and MLP (or experts), each with its norm and residual, as
kernels forward and backward.

    x -> norm -> queries, keys, values -> attention -> output -> + x -> norm -> MLP -> +        (and attention to an encoder between them)

A norm behind the residual (BERT) costs the same. Products of one input are one product: queries
with keys and values, gate with value.
"""

from __future__ import annotations

from hybridperf.io import InputError
from hybridperf.ops import Moe, OpCall, Softmax
from hybridperf.workloads.transformer import ratios
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.counts import Block
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.passes import Piece, Step

# of each expert; what stands between the products is one kernel for all: Transformer Engine
# multiplies expert by expert, on some streams
EXPERT_PRODUCTS, EXPERT_BACKWARD_PRODUCTS = 2, 4


def layer(config: TransformerConfig, block: Block) -> Piece:
    """A layer of a kind (`shape.blocks`) before anything is shared out."""
    tokens = config.decoder_tokens if block.cross else config.tokens
    parts = self_attention(
        config,
        tokens,
        causal=config.shape.family not in ("bert", "vit")
        and (block.cross or config.shape.family != "t5"),
    )
    if block.cross:
        parts += cross_attention(config, tokens)
    return parts + mlp(config, block, tokens)


def self_attention(config: TransformerConfig, tokens: float, causal: bool) -> Piece:
    """Attention of a sequence to itself."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    length = tokens / batch
    into = kernels.branch(tokens, s.hidden) + kernels.norm(
        "attention norm", s.norm, tokens, s.hidden
    )
    if s.latent is not None:
        return into + _latent(config, tokens, causal) + _out(config, tokens)
    bias = s.biases if s.qkv_biases is None else s.qkv_biases
    into += kernels.linear(
        "qkv",
        tokens,
        s.hidden,
        s.query_width + s.key_width + s.value_width,
        split="outputs",
        bias=bias,
    )
    into += kernels.split("qkv", tokens, s.query_width + s.key_width + s.value_width)
    if s.qk_norm:
        into += kernels.head_norm("query norm", tokens, s.heads, s.dim) + kernels.head_norm(
            "key norm", tokens, s.key_heads, s.dim
        )
    if s.positions == "rotary":
        into += kernels.rope("queries", tokens, s.query_width) + kernels.rope(
            "keys", tokens, s.key_width
        )
    if config.attention == "fused":
        core = kernels.fused_attention(batch, length, s.heads, s.dim, s.key_heads, causal)
    else:
        core = (
            kernels.repeated("keys and values", tokens, s.heads, s.key_heads, 2 * s.dim)
            if s.key_heads != s.heads
            else Piece()
        )
        core += kernels.unfused_attention(batch, length, length, s.heads, s.dim)
        core += kernels.copy("context", tokens, s.context_width)
    return into + core + _out(config, tokens)


def cross_attention(config: TransformerConfig, tokens: float) -> Piece:
    """Attention of a decoder's sequence to the encoder's output."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    if config.attention == "fused":
        core = kernels.fused_attention(
            batch, tokens / batch, s.heads, s.dim, s.key_heads, causal=False, keys=float(s.seq)
        )
    else:
        core = kernels.unfused_attention(
            batch, tokens / batch, s.seq, s.heads, s.dim
        ) + kernels.copy("context", tokens, s.context_width)
    return (
        kernels.branch(tokens, s.hidden)
        + kernels.norm("cross norm", s.norm, tokens, s.hidden)
        + kernels.linear(
            "cross queries", tokens, s.hidden, s.query_width, split="outputs", bias=s.biases
        )
        + kernels.linear(
            "cross keys and values",
            config.tokens,
            s.hidden,
            s.key_width + s.value_width,
            split="outputs",
            bias=s.biases,
        )
        + core
        + _out(config, tokens)
    )


def _out(config: TransformerConfig, tokens: float) -> Piece:
    s, kernels = config.shape, config.layer_kernels
    return kernels.linear(
        "attention output", tokens, s.context_width, s.hidden, split="inputs"
    ) + kernels.residual("attention output", tokens, s.hidden, s.biases)


def _latent(config: TransformerConfig, tokens: float, causal: bool) -> Piece:
    """Multi-head latent attention: down to small vectors, which every tensor-parallel rank makes,
    and up to the heads.
    """
    s, kernels, latent = config.shape, config.layer_kernels, config.shape.latent
    assert latent is not None
    if config.attention != "fused":
        raise InputError(
            f'unfused latent attention is not modelled ({s.name}): take attention="fused"'
        )
    rank = latent.query_rank
    if rank is None:
        queries = kernels.linear("queries", tokens, s.hidden, s.query_width, split="outputs")
    else:
        queries = kernels.linear("queries down", tokens, s.hidden, rank) + kernels.norm(
            "query norm", "rmsnorm", tokens, rank
        )
        queries += kernels.linear("queries up", tokens, rank, s.query_width, split="outputs")
    keys = kernels.linear(
        "keys and values down", tokens, s.hidden, latent.kv_rank + latent.rotary_dim
    )
    keys += kernels.norm("key norm", "rmsnorm", tokens, latent.kv_rank)
    keys += kernels.linear(
        "keys and values up",
        tokens,
        latent.kv_rank,
        s.heads * (latent.plain_dim + latent.value_dim),
        split="outputs",
    )
    turned = kernels.rope("queries", tokens, s.heads * latent.rotary_dim) + kernels.rope(
        "keys", tokens, s.heads * latent.rotary_dim
    )
    # scores of one width and values of another: the mean width has the work of both
    width = (latent.plain_dim + latent.rotary_dim + latent.value_dim) / 2
    batch = config.layout.micro_batch
    return (
        queries
        + keys
        + turned
        + kernels.fused_attention(batch, tokens / batch, s.heads, width, s.heads, causal)
    )


def mlp(config: TransformerConfig, block: Block, tokens: float) -> Piece:
    """The MLP, or the experts and what all tokens take beside them."""
    s, kernels = config.shape, config.layer_kernels
    into = kernels.branch(tokens, s.hidden) + kernels.norm("mlp norm", s.norm, tokens, s.hidden)
    for at in range(s.norms_per_layer - 2):
        into += kernels.norm(f"norm {at + 3}", s.norm, tokens, s.hidden)
    if not block.experts:
        return (
            into
            + _dense(config, block.ffn, tokens, s.biases)
            + kernels.residual("mlp", tokens, s.hidden, s.biases)
        )
    into += experts(config, block, tokens)
    if block.shared_ffn:
        into += _dense(config, block.shared_ffn, tokens, False) + Piece(
            (kernels.loop("shared result added", tokens, s.hidden),)
        )
    return into + kernels.residual("mlp", tokens, s.hidden, False)


def _dense(config: TransformerConfig, ffn: int, tokens: float, bias: bool) -> Piece:
    s, kernels = config.shape, config.layer_kernels
    return (
        kernels.linear("mlp in", tokens, s.hidden, ffn * (2 if s.gated else 1), split="outputs")
        + kernels.activation("mlp inner", tokens, ffn, gated=s.gated, bias=bias)
        + kernels.linear("mlp out", tokens, ffn, s.hidden, split="inputs")
    )


def experts(config: TransformerConfig, block: Block, tokens: float) -> Piece:
    """Router, tokens put in the order of their experts, the experts, and each token's results added
    up.
    """
    s, kernels = config.shape, config.layer_kernels
    op = Moe(
        kernels.dtype, float(tokens), float(s.hidden), float(block.ffn), float(block.topk),
        float(block.experts), gated=float(s.gated), quant=config.quant,
    )  # fmt: skip
    cut = config.layout.expert_tp is None or config.layout.expert_tp == config.layout.tp
    product = Step(
        OpCall(op),
        "gemm",
        "experts",
        kernels=1 + EXPERT_PRODUCTS * block.experts,
        tensor=("moe_tp",) if cut else (),
        tokens="tokens",
    )
    back = Step(
        OpCall(op, times=ratios.EXPERTS.value), "gemm", "experts gradient",
        kernels=1 + EXPERT_BACKWARD_PRODUCTS * block.experts, tensor=product.tensor,
        tokens="tokens",
    )  # fmt: skip
    return (
        config.kernels.linear("router", tokens, s.hidden, block.experts, bias=s.router_bias)
        + _routed(kernels, tokens, block)
        + kernels.moved("tokens in order", tokens * block.topk, s.hidden)
        + Piece((product,), (back,))
        + kernels.weighted("results added up", tokens, s.hidden, block.topk)
    )


def _routed(kernels: Kernels, tokens: float, block: Block) -> Piece:
    """Probabilities of the experts and the best of them."""
    probabilities = OpCall(Softmax(kernels.dtype, float(tokens), float(block.experts)))
    best = kernels.loop("experts chosen", tokens, block.experts, like="cast")
    forward = Step(probabilities, "memory", "router softmax", tokens="rows")
    back = Step(
        OpCall(probabilities.op, times=ratios.SOFTMAX.value),
        "memory",
        "router softmax gradient",
        tokens="rows",
    )
    return Piece((forward, best), (back,))
