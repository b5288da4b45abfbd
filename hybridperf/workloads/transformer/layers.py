"""One layer on one device: attention and MLP (or experts), each with its norm and residual, as
kernels forward and backward.

    x -> norm -> queries, keys, values -> attention -> output -> + x -> norm -> MLP -> +

and, in a decoder, attention to an encoder between the two.

A norm behind the residual (BERT) costs the same. Products of one input are one product: queries
with keys and values, gate with value.

Experts as training multiplies them, product by product (grouped layers of Transformer Engine and
Megatron-Core): of n experts with work on a rank n (rows/n x hidden x inputs of the MLP) and n
(rows/n x inter x hidden), of the rank that has most to do. What tables of expert layers measure,
and `Moe` prices, is the one kernel of a server. A grouped layer launches them one by one, on some
streams (TransformerEngine pull request 853, issue 1386); by its developers' table of 8 products of
a few us each (pull request 3134: 0.27 ms) that takes its host some 33 us apiece, about as long as
any launch (`launching.py`). PyTorch's grouped_mm, which torchtitan calls (its pull request 3308),
is one launch for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hybridperf.io import InputError
from hybridperf.ops import Gemm, Moe, OpCall, Softmax
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.transformer import diffusion
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.parallel import rewritten
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps

# of each expert; what stands between the products is one kernel for all: Transformer Engine
# multiplies expert by expert, on some streams
EXPERT_PRODUCTS, EXPERT_BACKWARD_PRODUCTS = 2, 4


def layer(config: TransformerConfig, kind: LayerKind) -> Passes:
    """A layer of a kind (`shape.layer_kinds`) before anything is shared out."""
    return attention(config, kind) + mlp(config, kind)


def attention(config: TransformerConfig, kind: LayerKind) -> Passes:
    """Passes of a layer of a kind up to its MLP."""
    if config.shape.diffusion:
        return diffusion.attention(config, kind)
    tokens = _tokens(config, kind)
    causal = kind.cross or not config.shape.both_ways
    if kind.mixer == "mlp":
        return Passes()
    if kind.mixer == "scan":
        return state_space(config, tokens)
    parts = self_attention(config, tokens, causal, kind.mixer == "window")
    return parts + cross_attention(config, tokens) if kind.cross else parts


def _tokens(config: TransformerConfig, kind: LayerKind) -> float:
    return config.decoder_tokens if kind.cross else config.tokens


def self_attention(
    config: TransformerConfig, tokens: float, causal: bool, windowed: bool = False
) -> Passes:
    """Attention of a sequence to itself, or to a window of it."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    length = tokens / batch
    into = kernels.branch(tokens, s.hidden)
    into += kernels.norm("attention norm", s.norm, tokens, s.hidden)
    if s.latent is not None:
        return into + _latent(config, tokens, causal) + _out(config, tokens)
    bias = s.biases if s.qkv_biases is None else s.qkv_biases
    width = s.query_width * (1 + s.gated_attention) + s.key_width + s.value_width
    returns = 1.0 if kernels.narrow_attention else None
    into += kernels.linear(
        "qkv", tokens, s.hidden, width, split="outputs", bias=bias, returns=returns
    )
    if config.adapters:
        into += kernels.adapter("qkv", tokens, s.hidden, width, config.adapters, "outputs")
    if not does(config.framework, "packed_qkv"):
        into += kernels.split("qkv", tokens, width)
    if s.qk_norm:
        into += kernels.head_norm("query norm", tokens, s.heads, s.dim)
        into += kernels.head_norm("key norm", tokens, s.key_heads, s.dim)
    if s.positions == "rotary":
        into += kernels.rope("queries", tokens, s.query_width)
        into += kernels.rope("keys", tokens, s.key_width)
    # as many samples of one length as attend to as much
    samples, attended = (tokens / s.attended, s.attended) if s.attended else (batch, length)
    if config.attention == "fused":
        window = float(s.window) if windowed and s.window < length else 0.0
        sizes = (samples, attended, s.heads, s.dim, s.key_heads)
        core = kernels.fused_attention(*sizes, causal, window=window)
        if does(config.framework, "packs_attention"):
            for what in ("in another order", "joined"):
                into += kernels.copy(f"queries, keys and values {what}", tokens, width)
            core += kernels.copy("context", tokens, s.context_width)
    else:
        core = Passes()
        if s.key_heads != s.heads:
            core += kernels.repeated("keys and values", tokens, s.heads, s.key_heads, 2 * s.dim)
        core += kernels.unfused_attention(samples, attended, attended, s.heads, s.dim)
        core += kernels.copy("context", tokens, s.context_width)
    if s.gated_attention:
        core += kernels.activation(
            "attention gate", tokens, s.context_width, gated=True, bias=False
        )
    return into + core + _out(config, tokens)


def cross_attention(config: TransformerConfig, tokens: float) -> Passes:
    """Attention of a decoder's sequence to the encoder's output."""
    s, kernels, batch = config.shape, config.layer_kernels, config.layout.micro_batch
    length = tokens / batch
    if config.attention == "fused":
        sizes = (batch, length, s.heads, s.dim, s.key_heads)
        core = kernels.fused_attention(*sizes, causal=False, keys=float(s.seq))
    else:
        core = kernels.unfused_attention(batch, length, s.seq, s.heads, s.dim)
        core += kernels.copy("context", tokens, s.context_width)

    def linear(name: str, tokens: float, width: int) -> Passes:
        return kernels.linear(name, tokens, s.hidden, width, split="outputs", bias=s.biases)

    into = kernels.branch(tokens, s.hidden)
    into += kernels.norm("cross norm", s.norm, tokens, s.hidden)
    into += linear("cross queries", tokens, s.query_width)
    into += linear("cross keys and values", config.tokens, s.key_width + s.value_width)
    return into + core + _out(config, tokens)


def _out(config: TransformerConfig, tokens: float) -> Passes:
    s, kernels = config.shape, config.layer_kernels
    name = "attention output"
    comes = 1.0 if kernels.narrow_attention else None
    product = kernels.linear(name, tokens, s.context_width, s.hidden, split="inputs", comes=comes)
    if config.adapters:
        sizes = (s.context_width, s.hidden, config.adapters)
        product += kernels.adapter(name, tokens, *sizes, "inputs")
    return product + kernels.residual(name, tokens, s.hidden, s.biases)


def state_space(config: TransformerConfig, tokens: float) -> Passes:
    """A scan with what stands around it: the kernels of Mamba-2's own implementation
    (github.com/state-spaces/mamba, `mamba_chunk_scan_combined`).

    Of chunks of Q tokens, heads of P values and states of N: states of chunks (P x Q times Q x N),
    handed on from chunk to chunk in 4 bytes, scores of the keys (Q x N times N x Q, once a group),
    results (Q x (Q + N) times (Q + N) x P). The backward pass makes scores and states again.
    """
    s, kernels, scan = config.shape, config.layer_kernels, config.shape.scan
    assert scan is not None
    chunk = min(float(scan.chunk), tokens / config.layout.micro_batch)
    chunks, dim, state = tokens / chunk, float(scan.head_dim), float(scan.state)
    into = kernels.branch(tokens, s.hidden)
    into += kernels.norm("scan norm", s.norm, tokens, s.hidden)
    into += kernels.linear("scan in", tokens, s.hidden, scan.width, split="outputs")
    into += kernels.split("scan in", tokens, scan.width)
    if scan.conv:
        into += kernels.activation(
            "convolution", tokens, scan.inner + scan.keys, gated=False, bias=False
        )

    def product(name: str, batch: float, m: float, n: float, k: float) -> Passes:
        return kernels.state_product(name, chunks * batch, m, n, k)

    states = product("states of chunks", scan.heads, dim, state, chunk)
    states += kernels.handed_on("states handed on", chunks * scan.heads, dim * state)
    scores = product("scores of keys", scan.groups, chunk, chunk, state)
    results = product("results of chunks", scan.heads, chunk, dim, chunk + state)
    again = Passes((), (*states.forward, *scores.forward))
    into += states + scores + results + again
    into += kernels.head_norm("gated norm", tokens, scan.heads, scan.head_dim)
    if scan.gated:
        into += kernels.activation("scan gate", tokens, scan.inner, gated=True, bias=False)
    product_out = kernels.linear("scan out", tokens, scan.inner, s.hidden, split="inputs")
    return into + product_out + kernels.residual("scan", tokens, s.hidden, False)


def _latent(config: TransformerConfig, tokens: float, causal: bool) -> Passes:
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


def mlp(config: TransformerConfig, kind: LayerKind) -> Passes:
    """The MLP, or the experts and the MLP that all tokens take as well."""
    s, kernels, tokens = config.shape, config.layer_kernels, _tokens(config, kind)
    if s.diffusion:
        return diffusion.mlp(config, kind)
    if not kind.ffn:
        return Passes()
    into = kernels.branch(tokens, s.hidden) + kernels.norm("mlp norm", s.norm, tokens, s.hidden)
    for at in range(s.norms_per_layer - 2):
        into += kernels.norm(f"norm {at + 3}", s.norm, tokens, s.hidden)
    if not kind.experts:
        into += _dense(config, kind.ffn, tokens, s.biases)
        return into + kernels.residual("mlp", tokens, s.hidden, s.biases)
    into += experts(config, kind, tokens)
    if kind.shared_ffn:
        into += _dense(config, kind.shared_ffn, tokens, False)
        into += Passes((kernels.loop("shared result added", tokens, s.hidden),))
    return into + kernels.residual("mlp", tokens, s.hidden, False)


def _dense(config: TransformerConfig, ffn: int, tokens: float, bias: bool) -> Passes:
    s, kernels = config.shape, config.layer_kernels
    wide = ffn * (2 if s.gated else 1)
    narrow = kernels.narrow_gelu and not s.gated
    returns, comes = (0.0, 1.0) if narrow else (None, None)
    into = kernels.linear("mlp in", tokens, s.hidden, wide, split="outputs", returns=returns)
    into += kernels.activation("mlp inner", tokens, ffn, gated=s.gated, bias=bias)
    return into + kernels.linear("mlp out", tokens, ffn, s.hidden, split="inputs", comes=comes)


def experts(config: TransformerConfig, kind: LayerKind, tokens: float) -> Passes:
    """Router, tokens sorted by expert, the experts, and each token's results added up."""
    s, kernels = config.shape, config.layer_kernels
    into = config.kernels.linear("router", tokens, s.hidden, kind.experts, bias=s.router_bias)
    into += _routed(kernels, tokens, kind)
    into += kernels.moved("tokens in order", tokens * kind.topk, s.hidden)
    into += expert_products(config, kind)
    return into + kernels.weighted("results added up", tokens, s.hidden, kind.topk)


def expert_products(config: TransformerConfig, kind: LayerKind) -> Passes:
    """All that a layer does of whose experts are spread over ranks."""
    s, kernels = config.shape, config.layer_kernels
    op = Moe(
        kernels.dtype, float(_tokens(config, kind)), float(s.hidden), float(kind.ffn),
        float(kind.topk), float(kind.experts), gated=float(s.gated), quant=config.quant,
        distribution=config.routing,
    )  # fmt: skip
    cut = config.layout.expert_tp is None or config.layout.expert_tp == config.layout.tp

    def product(name: str, times: float, products: int) -> PassStep:
        launches, tensor = 1 + products * kind.experts, ("moe_tp",) if cut else ()
        call = OpCall(op, times=times)
        return PassStep(call, "experts", name, launches, tensor=tensor, tokens="tokens")

    forward = product("experts", 1.0, EXPERT_PRODUCTS)
    back = product("experts gradient", ratios.EXPERTS, EXPERT_BACKWARD_PRODUCTS)
    return Passes((forward,), (back,))


def all_but_experts(config: TransformerConfig, kind: LayerKind) -> Passes:
    """The MLP without `expert_products`."""
    whole = mlp(config, kind)
    steps = (
        tuple(step for step in one if not isinstance(step.op, Moe))
        for one in (whole.forward, whole.backward)
    )
    return Passes(*steps)


def _routed(kernels: Kernels, tokens: float, kind: LayerKind) -> Passes:
    """Probabilities of the experts and the best of them."""
    op = Softmax(kernels.dtype, float(tokens), float(kind.experts))
    forward = PassStep(OpCall(op), "memory", "router softmax", tokens="rows")
    best = kernels.loop("experts chosen", tokens, kind.experts, like="cast")
    call = OpCall(op, times=ratios.SOFTMAX)
    back = PassStep(call, "memory", "router softmax gradient", tokens="rows")
    return Passes((forward, best), (back,))


def grouped(
    passes: Passes, kernels: Kernels, together: bool = False, biased: bool = False
) -> Passes:
    """Experts as products, launched one by one or `together`, and an activation between them; after
    everything that divides experts or their tokens. `biased`: as `_expert_biases`.
    """

    def split(steps: Steps) -> Iterator[PassStep]:
        for step in steps:
            if step.is_op and isinstance(step.op, Moe):
                each = int(step.op.experts // step.op.moe_ep) if together else 1
                launches = 1 + (step.kernels - 1) // each
                yield from _products(dataclasses.replace(step, kernels=launches), kernels, biased)
            else:
                yield step

    return rewritten(passes, split)


def _products(step: PassStep, kernels: Kernels, biased: bool) -> Steps:
    """Into the experts, the activation of all of them, and out of them."""
    assert isinstance(step.call, OpCall)
    op: Moe = step.op
    routing = op.routing()
    inter, active = float(op.inter / op.moe_tp), float(routing.active)
    rows = float(routing.rows) / active
    wide = inter * (2.0 if op.gated else 1.0)
    into = Gemm(op.dtype, rows, wide, float(op.hidden), quant=op.quant)
    out = Gemm(op.dtype, rows, float(op.hidden), inter, quant=op.quant)
    times = step.call.times * active

    def product(what: str, of: Gemm) -> PassStep:
        library = kernels.framework.products
        call = OpCall(of, times=times, framework=library, variant="experts")
        name = f"{step.name}, {what}"
        launches = (step.kernels - 1) // 2
        return dataclasses.replace(
            step, call=call, name=name, kernels=launches, tensor=(), tokens="m"
        )

    name, gated = f"{step.name}, inner", bool(op.gated)
    piece, behind = (
        kernels.activation(name, float(routing.rows), inter, gated=gated, bias=False), Passes()
    )  # fmt: skip
    if biased:
        clamped, behind = _expert_biases(
            kernels, step.name, float(routing.rows), wide, float(op.hidden),
            int(op.experts // op.moe_ep),
        )  # fmt: skip
        piece += clamped
    if "gradient" in step.name:
        return *behind.backward, product("in", into), *piece.backward, product("out", out)
    return product("in", into), *piece.forward, product("out", out), *behind.forward


def _expert_biases(
    kernels: Kernels, name: str, rows: float, wide: float, hidden: float, experts: int
) -> tuple[Passes, Passes]:
    """What biases of experts and a limit on what they gate add in Megatron-Core (GPT-OSS, the one
    published mixture that has them): between the experts' products, and behind them.

    Both halves are clamped and joined again by kernels of their own
    (`fusions/fused_bias_geglu.py`). Biases of the first product are its epilogue, their gradients
    sums. `_apply_bias` (`transformer/moe/experts.py`) adds those of the second one, times each
    token's fp32 weight, expert by expert, joins all and narrows them: 28 bytes for each 2-byte
    number forward, and 40 back, where the sums for biases and weights are made as well.

    Args:
        kernels: of layers.
        name: of the pass.
        rows: tokens of all experts of a rank.
        wide, hidden: numbers of a token behind the first and the second product.
        experts: of a rank.
    """

    def loop(what: str, cols: float, moved: float, launches: int) -> PassStep:
        step = kernels.loop(f"{name}, {what}", rows, cols, moved=moved)
        return dataclasses.replace(step, kernels=launches)

    sums = kernels.column_sums(f"{name}, bias gradient", rows, wide)
    clamped = Passes(
        (loop("clamped", wide, 4.0, 3),), (loop("clamped gradient", wide, 5.0, 3), sums)
    )
    added = loop("biases", hidden, 14.0, 2 * experts + 2)
    back = loop("biases gradient", hidden, 20.0, 5 * experts + 2)
    return clamped, Passes((added,), (back,))
