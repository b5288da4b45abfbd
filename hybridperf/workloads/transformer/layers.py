"""The kernels of one layer, listed once for all that run it: attention or a scan and the MLP (or
experts), each with its norm and residual.

    x -> norm -> queries, keys, values -> attention -> output -> + x -> norm -> MLP -> +

and, in a decoder, attention to an encoder between the two.

A norm behind the residual (BERT) costs the same. Products of one input are one product: queries
with keys and values, gate with value.

What each kernel is depends on the mode: a step that trains runs all of them forward and backward
(`trained.py`); an engine those of its libraries, attention of prompts and of decoding apart from
what all tokens take together (`workloads/serving/layers.py`). What a model has that others have not
is listed here, for all of them.
"""

from __future__ import annotations

from typing import Protocol

from hybridperf.workloads.transformer import diffusion
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.experts import without_experts
from hybridperf.workloads.transformer.kernels import Split
from hybridperf.workloads.transformer.passes import Passes, PassStep
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.sizes import COMPRESSING, SCANS, WITHOUT_ATTENTION
from hybridperf.workloads.transformer.trained import Trained


# fmt: off
class LayerKernels(Protocol):
    """Kernels in one number format, as `Kernels` says; sizes are those of a whole layer."""

    def branch(self, tokens: float, cols: float) -> Passes: ...
    def norm(self, name: str, kind: str, tokens: float, cols: float) -> Passes: ...
    def linear(
        self, name: str, tokens: float, i: float, o: float, *, split: Split = "",
        bias: bool = False, comes: float | None = None, returns: float | None = None,
    ) -> Passes: ...
    def split(self, name: str, tokens: float, cols: float) -> Passes: ...
    def head_norm(self, name: str, tokens: float, heads: float, dim: float) -> Passes: ...
    def whole_norm(self, name: str, tokens: float, queries: float, keys: float) -> Passes: ...
    def activation(
        self, name: str, tokens: float, cols: float, *, gated: bool, bias: bool
    ) -> Passes: ...
    def loop(self, name: str, rows: float, cols: float) -> PassStep: ...
    @property
    def narrow_attention(self) -> bool: ...
    @property
    def narrow_gelu(self) -> bool: ...


class Mode(Protocol):
    """Who runs a layer, and what differs between those by more than a kernel."""

    shape: TransformerShape
    key_copies: float  # of a head's keys and values, on ranks that share it
    packed_qkv: bool  # no kernel splits their product or joins its gradients

    @property
    def kernels(self) -> LayerKernels: ...  # of attention, and of an MLP beside experts
    @property
    def mlp_kernels(self) -> LayerKernels: ...
    def adapter(self, name: str, tokens: float, i: float, o: float, split: Split) -> Passes: ...
    def latents(self, tokens: float) -> Passes: ...  # to queries, keys and values, their rotation
    def rotated(self, tokens: float) -> Passes: ...  # queries and keys
    def attended(self, kind: LayerKind, tokens: float) -> Passes: ...
    def scanned(self, tokens: float) -> Passes: ...
    def experts(self, kind: LayerKind, tokens: float) -> Passes: ...
    def residual(
        self, name: str, tokens: float, bias: bool, kind: LayerKind | None = None
    ) -> Passes: ...  # kind: of experts, whose results may be summed already
# fmt: on


def layer(mode: Mode, kind: LayerKind, tokens: float) -> Passes:
    """A layer of a kind (`shape.layer_kinds`) before anything is shared out."""
    return attention(mode, kind, tokens) + mlp(mode, kind, tokens)


def attention(mode: Mode, kind: LayerKind, tokens: float) -> Passes:
    """Passes of a layer of a kind up to its MLP."""
    s, kernels = mode.shape, mode.kernels
    if isinstance(mode, Trained) and s.diffusion:
        return diffusion.attention(mode.config, kind)
    if kind.mixer == "mlp":
        return Passes()
    mixer = kind.mixer if kind.mixer in WITHOUT_ATTENTION else "attention"
    into = _collapsed(mode, tokens) + kernels.branch(tokens, s.hidden)
    into += kernels.norm(f"{mixer} norm", s.norm, tokens, s.hidden)
    if kind.mixer in SCANS:
        into += _scan(mode, tokens)
    if kind.mixer == "conv":
        into += _convolution(mode, tokens)
    if kind.mixer in WITHOUT_ATTENTION:
        return into
    if s.compressed is not None:
        into += _narrow_heads(mode, kind, tokens)
    else:
        into += mode.latents(tokens) if s.latent is not None else _heads(mode, tokens)
    if s.latent is not None and s.gated_attention:
        into += kernels.linear("gate", tokens, s.hidden, s.context_width, split="outputs")
    into += mode.attended(kind, tokens)
    if s.gated_attention:
        into += kernels.activation(
            "attention gate", tokens, s.context_width, gated=True, bias=False
        )
    into += _out(mode, tokens)
    if kind.cross:
        assert isinstance(mode, Trained)
        into += _cross_attention(mode, tokens)
    return into


def _heads(mode: Mode, tokens: float) -> Passes:
    """Queries, keys and values of heads."""
    s, kernels = mode.shape, mode.kernels
    bias = s.biases if s.qkv_biases is None else s.qkv_biases
    keys = mode.key_copies * s.made_width
    width = s.query_width * (1 + s.gated_attention) + keys
    returns = 1.0 if kernels.narrow_attention else None
    into = kernels.linear(
        "qkv", tokens, s.hidden, width, split="outputs", bias=bias, returns=returns
    )
    into += mode.adapter("qkv", tokens, s.hidden, width, "outputs")
    if not mode.packed_qkv:
        into += kernels.split("qkv", tokens, width)
    if s.qk_norm_whole:
        width = mode.key_copies * s.key_width
        into += kernels.whole_norm("query and key norms", tokens, s.query_width, width)
    elif s.qk_norm:
        into += kernels.head_norm("query norm", tokens, s.heads, s.dim)
        into += kernels.head_norm("key norm", tokens, mode.key_copies * s.key_heads, s.dim)
    return into + mode.rotated(tokens)


def _narrow_heads(mode: Mode, kind: LayerKind, tokens: float) -> Passes:
    """Queries through a narrow width, the key that is a value, and what compressed keys are of."""
    s, kernels, told = mode.shape, mode.kernels, mode.shape.compressed
    assert told is not None
    into = kernels.linear("queries down", tokens, s.hidden, told.query_rank)
    into += kernels.norm("query norm", "rmsnorm", tokens, told.query_rank)
    into += kernels.linear("queries up", tokens, told.query_rank, s.query_width, split="outputs")
    into += kernels.linear("keys", tokens, s.hidden, s.dim)
    into += kernels.norm("key norm", "rmsnorm", tokens, s.dim)
    if kind.mixer in COMPRESSING:
        width = told.pooled(kind.mixer, s.dim)
        into += kernels.linear("compressed keys", tokens, s.hidden, width)
        pooled = kernels.loop("keys compressed", tokens, width)
        into += Passes((pooled,), (pooled,))
    if kind.mixer == "picked":
        wide = told.index_heads * told.index_dim
        into += kernels.linear("index queries", tokens, told.query_rank, wide)
        into += kernels.linear("index weights", tokens, s.hidden, told.index_heads)
    return into + mode.rotated(tokens)


def _collapsed(mode: Mode, tokens: float) -> Passes:
    """Streams of the hidden state mixed into what a half of a layer takes, and its result into
    them: shares made of all streams, sums of as many copies there and back.
    """
    s, kernels, n = mode.shape, mode.kernels, mode.shape.streams
    if not n:
        return Passes()
    into = kernels.linear("streams' shares", tokens, n * s.hidden, n * (n + 2))
    loops = tuple(
        kernels.loop(f"streams {what}", tokens, n * s.hidden) for what in ("collapsed", "mixed")
    )
    return into + Passes(loops, loops)


def _cross_attention(mode: Trained, tokens: float) -> Passes:
    """Attention of a decoder's sequence to the encoder's output."""
    s, kernels = mode.shape, mode.kernels

    def linear(name: str, tokens: float, width: int) -> Passes:
        return kernels.linear(name, tokens, s.hidden, width, split="outputs", bias=s.biases)

    into = kernels.branch(tokens, s.hidden)
    into += kernels.norm("cross norm", s.norm, tokens, s.hidden)
    into += linear("cross queries", tokens, s.query_width)
    into += linear("cross keys and values", mode.config.tokens, s.key_width + s.value_width)
    return into + mode.crossed(tokens) + _out(mode, tokens)


def _out(mode: Mode, tokens: float) -> Passes:
    s, kernels, name = mode.shape, mode.kernels, "attention output"
    comes = 1.0 if kernels.narrow_attention else None
    width, product = s.context_width, Passes()
    if told := s.compressed:  # each group of heads to its own narrow width
        narrow = width / told.output_groups
        width = told.output_width
        product += kernels.linear(f"{name} narrowed", tokens, narrow, width, split="outputs")
    product += kernels.linear(name, tokens, width, s.hidden, split="inputs", comes=comes)
    product += mode.adapter(name, tokens, s.context_width, s.hidden, "inputs")
    return product + mode.residual(name, tokens, s.biases)


def _scan(mode: Mode, tokens: float) -> Passes:
    """A scan with what stands around it: the kernels of Mamba-2's own implementation
    (github.com/state-spaces/mamba, `mamba_chunk_scan_combined`).
    """
    s, kernels, scan = mode.shape, mode.kernels, mode.shape.scan
    assert scan is not None
    into = kernels.linear("scan in", tokens, s.hidden, scan.width, split="outputs")
    into += kernels.split("scan in", tokens, scan.width)
    if scan.conv:
        into += kernels.activation(
            "convolution", tokens, scan.inner + scan.keys, gated=False, bias=False
        )
    for name, rank in (("decays", scan.rank), ("gate", scan.gate_rank)):
        if rank:
            into += kernels.linear(name, tokens, rank, scan.inner, split="outputs")
    into += mode.scanned(tokens)
    into += kernels.head_norm("gated norm", tokens, scan.heads, scan.head_dim)
    if scan.gated:
        into += kernels.activation("scan gate", tokens, scan.inner, gated=True, bias=False)
    into += kernels.linear("scan out", tokens, scan.inner, s.hidden, split="inputs")
    return into + mode.residual("scan", tokens, False)


def _convolution(mode: Mode, tokens: float) -> Passes:
    """A short convolution of each channel between two gates (LFM2, arXiv 2511.23404)."""
    s, kernels = mode.shape, mode.kernels
    into = kernels.linear("convolution in", tokens, s.hidden, 3 * s.hidden, split="outputs")
    into += kernels.split("convolution in", tokens, 3 * s.hidden)
    into += kernels.activation("first gate", tokens, s.hidden, gated=True, bias=False)
    into += kernels.activation("convolution", tokens, s.hidden, gated=False, bias=False)
    into += kernels.activation("second gate", tokens, s.hidden, gated=True, bias=False)
    into += kernels.linear("convolution out", tokens, s.hidden, s.hidden, split="inputs")
    return into + mode.residual("convolution", tokens, False)


def mlp(mode: Mode, kind: LayerKind, tokens: float) -> Passes:
    """The MLP, or the experts and the MLP that all tokens take as well."""
    s, kernels = mode.shape, mode.mlp_kernels
    if isinstance(mode, Trained) and s.diffusion:
        return diffusion.mlp(mode.config, kind)
    if not kind.ffn:
        return Passes()
    into = _collapsed(mode, tokens) + kernels.branch(tokens, s.hidden)
    into += kernels.norm("mlp norm", s.norm, tokens, s.hidden)
    for at in range(s.norms_per_layer - 2):
        into += kernels.norm(f"norm {at + 3}", s.norm, tokens, s.hidden)
    if not kind.experts:
        into += _dense(s, kernels, kind.ffn, tokens, s.biases)
        return into + mode.residual("mlp", tokens, s.biases)
    into += mode.experts(kind, tokens)
    if kind.shared_ffn:
        into += _dense(s, mode.kernels, kind.shared_ffn, tokens, False)
        into += Passes((kernels.loop("shared result added", tokens, s.hidden),))
    return into + mode.residual("mlp", tokens, False, kind)


def _dense(
    s: TransformerShape, kernels: LayerKernels, ffn: int, tokens: float, bias: bool
) -> Passes:
    wide = ffn * (2 if s.gated else 1)
    narrow = kernels.narrow_gelu and not s.gated
    returns, comes = (0.0, 1.0) if narrow else (None, None)
    into = kernels.linear("mlp in", tokens, s.hidden, wide, split="outputs", returns=returns)
    into += kernels.activation("mlp inner", tokens, ffn, gated=s.gated, bias=bias)
    return into + kernels.linear("mlp out", tokens, ffn, s.hidden, split="inputs", comes=comes)


def all_but_experts(mode: Mode, kind: LayerKind, tokens: float) -> Passes:
    """The MLP without `experts.expert_products`."""
    return without_experts(mlp(mode, kind, tokens))
