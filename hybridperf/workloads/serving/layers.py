"""Calls of an engine's step on one GPU, by what looks at the cache and what does not.

Symbols: n tokens of an attention rank, t tensor-parallel GPUs, D attention ranks, h hidden width.

    products(n)         norms, matrices, experts, all-reduces: of all tokens together, as a layer of
                        a step that trains lists them (`workloads/transformer/layers.py`)
    decode(s, keys)     attention of s sequences' new tokens, what latent attention absorbs for
                        them, the output head
    prefill(n, keys)    attention of prompts' tokens, up-projections of their latents, one row of
                        the output head

Layers of a pipeline are counted whole: a token passes all stages, one after the other. Experts run
on the tokens of all D ranks; these are gathered before and scattered after, or, with experts on
many ranks, sent to those of their experts and back by the kernels of `collectives/experts.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.model.calls import CollectiveCall, expert_words, multiprocessors_of
from hybridperf.ops import (
    FUSED,
    BatchedGemm,
    Copy,
    DecodeAttention,
    Gemm,
    LatentAttention,
    Moe,
    Op,
    OpCall,
    PrefillAttention,
    RmsNorm,
    Softmax,
    op_by_name,
)
from hybridperf.ops.frameworks import serving_framework
from hybridperf.ops.quantise import Quantise, scheme_dtype
from hybridperf.workloads.serving.deployment import Deployment
from hybridperf.workloads.transformer import layers
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.kernels import Split
from hybridperf.workloads.transformer.passes import Passes, PassStep
from hybridperf.workloads.transformer.sizes import COMPRESSING, SCANS, WITHOUT_ATTENTION

_WIDE = DTYPE_BYTES["bf16"]
_STATE = "fp32"  # of a scan
# published FP8 weights come with the scales of activations, where tables of products look for the
# largest activation first: aiconfigurator takes those kernels off again ("Static-FP8 GEMM is
# modeled from the dynamic FP8 base measurement", its operations/gemm.py)
_STATIC = "fp8"
# engines choose the kernel of each FP4 product when they start (TensorRT-LLM's AutoTuner,
# FlashInfer's), where tables have one whose tiles walk along all of k, 1.7 us per 1,024 of it: few
# tiles share k out to the other SMs (split-K), in pieces of 1,024 at least. B200's SMs
_TUNED, _TILE, _SMS, _LEAST_K = "nvfp4", 128, 148, 1024

# queries of a block of FlashAttention 2 over a paged cache (kBlockM of its
# run_mha_fwd_splitkv_dispatch)
_QUERY_TILE = 64.0


def own_experts(
    tokens: float, topk: float, experts: float, ranks: float
) -> tuple[float, float, float, float]:
    """Tokens, experts of each, experts and ranks of a layer by itself that has as many rows as a
    rank of a balanced one: a rank's experts cost what it holds, however many ranks there are.
    """
    own = experts / ranks
    each = min(topk, own)
    return tokens * topk / ranks / each, each, own, 1.0


Call = OpCall | CollectiveCall


class Kernel(NamedTuple):
    """A call, and how often it runs in a step."""

    call: Call
    times: int = 1

    @property
    def sends(self) -> bool:
        """Whether it is a message."""
        return isinstance(self.call, CollectiveCall)

    @property
    def multiprocessors(self) -> float:
        """That a message to experts takes while it travels."""
        return multiprocessors_of(self.call) if isinstance(self.call, CollectiveCall) else 0.0


class ServedCalls:
    """A deployment's calls on nodes of so many GPUs, with a library's all-reduce."""

    def __init__(self, deployment: Deployment, per_node: int, all_reduce: str = ""):
        self.served, self.per_node, self.all_reduce = deployment, per_node, all_reduce
        self.shape, self.tp = deployment.shape, deployment.tp
        self.habits = serving_framework(deployment.framework)
        self._kv_heads = max(self.shape.key_heads / self.tp, 1.0)  # of a GPU
        self.key_copies = self._kv_heads * self.tp / self.shape.key_heads
        self.spread = deployment.attention_dp > 1  # experts take tokens of several attention ranks

    def products(self, tokens: float) -> Iterator[Kernel]:
        """Of `tokens` on each attention rank; of a pipeline, split over its stages."""
        tokens = tokens / self.served.pp if tokens > self.served.pp else 1.0
        for kind in self.shape.layer_kinds:
            for call in self._of(kind)._products(kind, tokens):
                yield Kernel(call, kind.count)
        if self.served.pp > 1:
            nodes = 2 if self.served.gpus > self.per_node else 1
            size = float(tokens * self.shape.hidden * _WIDE)
            yield Kernel(CollectiveCall("sendrecv", size, 2, nodes), self.served.pp - 1)

    def decode(
        self, sequences: float, keys: float, beside_prompts: bool = False
    ) -> Iterator[Kernel]:
        """Of each attention rank's sequences, `keys` of each in the cache; `beside_prompts`: as
        short prompts, by the kernel that computes those of the same step.
        """
        served = self.served
        each = 1.0 + served.drafted
        sequences = sequences / served.pp if sequences > served.pp else 1.0
        for kind in self.shape.layer_kinds:
            for call in self._of(kind)._decoded(kind, sequences, keys, each, beside_prompts):
                yield Kernel(call, kind.count)
        yield Kernel(self._head(sequences * each))
        if served.drafted:  # one more layer of the last kind and its head, for each token drafted
            for call in (*self._products(self.shape.layer_kinds[-1], sequences),
                         *self._decoded(self.shape.layer_kinds[-1], sequences, keys, 1.0),
                         self._head(sequences)):  # fmt: skip
                yield Kernel(call, served.drafted)

    def prefill(self, tokens: float, keys: float) -> Iterator[Kernel]:
        """Of `tokens` of prompts that look at `keys` each in the mean: one prompt and what of it
        is in the cache, or several where half their tokens are more than that.
        """
        tokens = tokens / self.served.pp if tokens > self.served.pp else 1.0
        batch = max(tokens / (2.0 * keys), 1.0)
        queries = tokens / batch
        for kind in self.shape.layer_kinds:
            for call in self._of(kind)._prompts(kind, batch, queries, keys + queries / 2.0):
                yield Kernel(call, kind.count)
        yield Kernel(self._head(1.0))

    def _of(self, kind: LayerKind) -> ServedCalls:
        """The calls of a model all of whose layers have the heads of a kind."""
        shape = self.shape.of(kind.mixer)
        if shape is self.shape:
            return self
        served = dataclasses.replace(self.served, shape=shape)
        return ServedCalls(served, self.per_node, self.all_reduce)

    @property
    def _takes_all_experts(self) -> bool:
        return self.shape.name.startswith(self.habits.takes_all_experts)

    def kernels_of_experts(self) -> float:
        """That a step's graph holds beside the calls of `products`: some of each expert on a GPU,
        whether a token takes it or not.
        """
        if self._takes_all_experts:
            return 0.0
        each = self.habits.kernels_an_expert / self.served.expert_ep
        return each * sum(kind.count * kind.experts for kind in self.shape.layer_kinds)

    def _products(self, kind: LayerKind, tokens: float) -> Iterator[Call]:
        return (step.call for step in layers.layer(self, kind, tokens).forward)

    # -- a `Mode` of that list: what all tokens take together

    packed_qkv = True

    @property
    def kernels(self) -> _Kernels:
        """Of attention's products, and of an MLP beside experts."""
        return _Kernels(self, self.served.of_attention())

    @property
    def mlp_kernels(self) -> _Kernels:
        """Kernels of an MLP, in its quantisation scheme."""
        return _Kernels(self, self.served.quant)

    def adapter(self, name: str, tokens: float, i: float, o: float, split: Split) -> Passes:
        """One of the layer's matrices before attention."""
        rank, narrow = self.served.lora_rank, _Kernels(self, "bfloat16")
        if not rank or split == "inputs":
            return Passes()
        down = narrow.linear(f"{name} adapter, down", tokens, i, rank)
        width = self.shape.query_width
        return down + narrow.linear(f"{name} adapter, up", tokens, rank, width, split=split)

    def rotated(self, tokens: float) -> Passes:
        """Queries and keys, and these put into the cache, where attention does neither."""
        if self.habits.rotates_inside:
            return Passes()
        shape = self.shape
        keys = 2 * self._kv_heads * shape.core_dim
        queries = shape.query_width / self.tp * (1 + shape.gated_attention)
        rotary = shape.positions == "rotary"
        turned = (self.loop("rope", tokens, queries + keys),) if rotary else ()
        return _passes("rotated", *turned, self.loop("cast", tokens, keys))

    def attended(self, kind: LayerKind, tokens: float) -> Passes:
        """By sequences: `decode` and `prefill` have it."""
        return Passes()

    def scanned(self, tokens: float) -> Passes:
        """Nothing: a scan's kernels count as attention's."""
        return Passes()

    def residual(
        self, name: str, tokens: float, bias: bool, kind: LayerKind | None = None
    ) -> Passes:
        """Results of GPUs summed, unless those of experts were scattered."""
        done = self.tp == 1 or (kind is not None and self.spread)
        size = tokens * self.shape.hidden * _WIDE
        message = self.message("all_reduce", size, self.tp, self.all_reduce)
        return Passes() if done else _passes(name, message)

    def latents(self, tokens: float) -> Passes:
        """All down-projections in one product, on each GPU whole; up to queries; an indexer."""
        shape, latent, kernels = self.shape, self.shape.latent, self.kernels
        assert latent is not None
        down = (latent.query_rank or 0) + latent.kv_rank + latent.rotary_dim
        source, width = latent.query_rank or shape.hidden, shape.query_width
        into = kernels.linear("latents", tokens, shape.hidden, down)
        into += _passes("latents", *self._latents(tokens, down))
        into += kernels.linear("queries up", tokens, source, width, split="outputs")
        into += self.adapter("queries", tokens, shape.hidden, width, "outputs")
        if latent.selected:
            into += _passes("indexer", *self._indexed(tokens, kernels.quant))
        return into

    def experts(self, kind: LayerKind, tokens: float) -> Passes:
        """Of the tokens of all attention ranks, gathered before and scattered behind, or sent to
        the ranks of their experts and back.
        """
        return _passes("experts", *self._experts(kind, tokens))

    def _experts(self, kind: LayerKind, tokens: float) -> Iterator[Call]:
        hidden, served = self.shape.hidden, self.served
        h = self.shape.expert_hidden or hidden
        ranks, everyone, spread = served.expert_ranks, tokens * served.attention_dp, self.spread
        # as TensorRT-LLM's DeepSeek does (should_enable_alltoall of its modeling_deepseekv3.py):
        # tokens go to their experts alone where these are on more ranks than a token has experts
        sent = spread and served.expert_ep > kind.topk
        if sent:
            # dispatched as they are multiplied, combined in 16 bits
            narrow = DTYPE_BYTES[_dtype(served.of_experts())]
            nodes = -(-ranks // self.per_node)
            kernel = self.habits.sends_to_experts(nodes, tokens)
            words = expert_words(kernel, kind.topk, kind.experts)
            for way, width in (("dispatch", narrow), ("combine", _WIDE)):
                yield CollectiveCall(way, float(tokens * h * width), ranks, nodes, words=words)
        elif spread:
            # 4-bit values are made before they are sent, others after (TensorRT-LLM's
            # run_post_quant_allgather, vLLM's do_post_quant_allgather)
            sent_bytes = DTYPE_BYTES["fp4"] if served.of_experts() == "nvfp4" else _WIDE
            yield self.message("all_gather", everyone * h * sent_bytes, ranks)
            yield self.message("reduce_scatter", everyone * h * _WIDE, ranks)
        routed = everyone if not spread else tokens
        yield from self.gemm(routed, kind.experts, hidden, "bfloat16")
        if h != hidden:
            yield from self.gemm(routed, h, hidden, self.served.quant)
        quant = served.of_experts()
        chosen = kind.experts if self._takes_all_experts else kind.topk
        routed_to = everyone, float(chosen), float(kind.experts), float(served.expert_ep)
        if spread and served.expert_ep >= self.habits.balances_from:
            routed_to = own_experts(*routed_to)
        taken, topk, experts, ep = routed_to
        yield OpCall(
            Moe(
                _dtype(quant), taken, float(h), float(kind.ffn), topk, experts,
                float(served.expert_tp), ep, float(self.shape.gated), quant, served.distribution,
            ),
            framework=served.framework, variant=served.moe_backend or ("spread" if spread else ""),
        )  # fmt: skip
        if h != hidden:
            yield from self.gemm(routed, hidden, h, self.served.quant)

    def _latents(self, tokens: float, down: float) -> Iterator[Call]:
        """What becomes of down-projections and of the queries that are made of them.

        Where attention rotates inside, a norm of all, and a kernel that rotates queries and puts
        keys into the cache. Elsewhere the keys' norm, the rotary embedding, and copies: of both
        parts of the queries beside each other (and narrowed for a cache of 8 bits), of keys into
        the cache.
        """
        shape, latent = self.shape, self.shape.latent
        assert latent is not None
        yield self.by_rows(RmsNorm("bf16", tokens, down))
        queries = shape.heads / self.tp * (latent.kv_rank + latent.rotary_dim)
        if self.habits.rotates_inside:
            yield self.loop("rope", tokens, queries)
            return
        yield self.by_rows(RmsNorm("bf16", tokens, latent.kv_rank))
        yield self.loop("rope", tokens, shape.heads / self.tp * latent.rotary_dim)
        yield self.loop("cast", tokens, queries)
        if self._kept():
            yield OpCall(Quantise("bf16", tokens, queries, quant="fp8"))
        yield self.loop("cast", tokens, latent.kv_rank + latent.rotary_dim)

    def _indexed(self, tokens: float, quant: str) -> Iterator[Call]:
        """An indexer's matrices, on each GPU whole, and what becomes of its key and its queries:
        norm, rotary embedding and its way back, Hadamard transforms, quantisation, the key's way
        into the cache, the heads' weights; kernels of their own in SGLang (nsa_indexer.py).
        """
        latent, h = self.shape.latent, self.shape.hidden
        assert latent is not None
        heads, dim = float(latent.index_heads), latent.index_dim
        yield from self.gemm(tokens, heads * dim, latent.query_rank or h, quant)
        yield from self.gemm(tokens, dim, h, quant)
        yield from self.gemm(tokens, heads, h, "bfloat16")
        yield self.loop("mul", tokens, heads)
        yield self.by_rows(RmsNorm("bf16", tokens, dim))
        yield self.loop("rope", tokens, (heads + 1.0) * dim)
        for rows in (tokens * heads, tokens):
            yield self.loop("cast", rows, dim)
            yield self.loop("mul", rows, dim)
            yield OpCall(Quantise("bf16", rows, dim, quant="fp8_block"))
        yield self.loop("cast", tokens, dim)

    def _decoded(
        self, kind: LayerKind, sequences: float, keys: float, each: float,
        beside_prompts: bool = False,
    ) -> Iterator[Call]:  # fmt: skip
        shape, served, latent = self.shape, self.served, self.shape.latent
        heads = shape.heads / self.tp
        if kind.mixer in SCANS and shape.scan is not None:
            state = shape.scan.heads / self.tp * shape.scan.head_dim * shape.scan.state
            yield self._fused(Copy(_STATE, sequences, state))  # read and written
        if kind.mixer == "conv":
            yield self._fused(Copy(_STATE, sequences, shape.conv * shape.hidden / self.tp))
        if kind.mixer in WITHOUT_ATTENTION:
            return
        dim = float(shape.core_dim)
        if latent is None and beside_prompts:
            kv_heads, seen = self._kv_heads, keys + _QUERY_TILE / 2.0
            yield self._attended(
                sequences, _QUERY_TILE, seen, heads, dim, kv_heads, self._window(kind, keys)
            )
            return
        if latent is None:
            if kind.mixer == "picked" and (told := shape.compressed):
                scored, index = keys / told.picked_rate, float(told.index_dim)
                yield self._latent(sequences, scored, told.index_heads * each, index, 0.0)
                yield self.by_rows(Softmax("fp32", sequences * each, scored))
            yield OpCall(
                DecodeAttention(
                    "bf16", sequences, keys, heads, dim,
                    self._kv_heads if served.shares_cache else heads, self._window(kind, keys),
                    each, self._kept(),
                ),
                framework=served.framework,
            )  # fmt: skip
            return
        tokens, rank = sequences * each, float(latent.kv_rank)
        for one in (
            BatchedGemm("bf16", heads, tokens, rank, latent.plain_dim, quant="bfloat16"),
            BatchedGemm("bf16", heads, tokens, latent.value_dim, rank, quant="bfloat16"),
        ):
            yield OpCall(one, framework=served.framework)
        if latent.selected:
            index_dim, scored = float(latent.index_dim), min(keys, latent.selected)
            yield self._latent(sequences, keys, latent.index_heads * each, index_dim, 0.0)
            # the best are found by passes over the scores
            yield self.by_rows(Softmax("fp32", sequences * each, keys))
            keys = scored
        cached = rank + latent.rotary_dim
        yield self._latent(sequences, keys, heads * each, cached, rank)

    def _latent(
        self, sequences: float, keys: float, heads: float, cached: float, valued: float
    ) -> Call:
        sizes = (sequences, keys, heads, cached, cached, valued)
        return OpCall(LatentAttention("bf16", *sizes, self._kept()))

    def _prompts(
        self, kind: LayerKind, batch: float, queries: float, keys: float
    ) -> Iterator[Call]:
        shape, latent, heads = self.shape, self.shape.latent, self.shape.heads / self.tp
        if kind.mixer in SCANS and shape.scan is not None:
            flops = shape.scan.flops / self.tp
            inner = shape.scan.inner / self.tp
            yield from self.gemm(batch * queries, flops / inner, inner, "bfloat16")
        if kind.mixer in WITHOUT_ATTENTION:
            return
        dim, kv_heads = float(shape.core_dim), self._kv_heads
        if latent is not None:
            up = heads * (latent.plain_dim + latent.value_dim)
            yield from self.gemm(batch * queries, up, latent.kv_rank, self.served.of_attention())
            kv_heads = heads
            if latent.selected:
                index = PrefillAttention(
                    "bf16", batch, queries, float(latent.index_heads), latent.index_dim / 2.0, 1.0,
                    0.0, keys, 1.0,
                )  # fmt: skip
                yield OpCall(index, framework=self.served.framework)
        if kind.mixer == "picked" and (told := shape.compressed):
            index = PrefillAttention(
                "bf16", batch, queries, float(told.index_heads), told.index_dim / 2.0, 1.0,
                0.0, keys / told.picked_rate, 1.0,
            )  # fmt: skip
            yield OpCall(index, framework=self.served.framework)
        window = self._window(kind, keys) or float(latent.selected if latent else 0)
        if self.habits.scores_in_memory:
            yield from self._scored(batch, queries, keys, heads, dim)
            return
        yield self._attended(batch, queries, keys, heads, dim, kv_heads, window)

    def _scored(
        self, batch: float, queries: float, keys: float, heads: float, dim: float
    ) -> Iterator[Call]:
        """Attention of modules: products, and between them scaling, a mask, a softmax in 32 bits
        and the way there and back.
        """
        rows, pairs = batch * heads * queries, batch * heads
        seen = max(keys, queries)
        yield OpCall(BatchedGemm("bf16", pairs, queries, seen, dim, quant="bfloat16"))
        yield from (self.loop(name, rows, seen) for name in ("mul", "add", "cast"))
        yield self.by_rows(Softmax("fp32", rows, seen))
        yield self.loop("cast", rows, seen)
        yield OpCall(BatchedGemm("bf16", pairs, queries, dim, seen, quant="bfloat16"))

    def _attended(
        self, batch: float, queries: float, keys: float, heads: float, dim: float, kv_heads: float,
        window: float,
    ) -> Call:  # fmt: skip
        """Attention by the prompts' kernel."""
        sizes = (batch, queries, heads, dim, kv_heads, window, max(keys, queries), 1.0)
        return OpCall(
            PrefillAttention("bf16", *sizes, self._kept()), framework=self.served.framework
        )

    def _window(self, kind: LayerKind, keys: float) -> float:
        """Keys that a token looks at; compressed ones count; 0: all."""
        if kind.mixer in COMPRESSING and (told := self.shape.compressed):
            return self.shape.window + told.beyond(kind.mixer, keys)
        return float(self.shape.window) if kind.mixer == "window" else 0.0

    def _kept(self) -> str:
        kept = canonical_dtype(self.served.kv_dtype)
        return "" if DTYPE_BYTES[kept] == _WIDE else kept

    def _head(self, rows: float) -> Call:
        return self._product(rows, self.shape.vocab / self.tp, self.shape.hidden, "bfloat16")

    # -- calls

    def gemm(self, m: float, n: float, k: float, quant: str) -> Iterator[Call]:
        """Of m rows, with what makes them narrow first; `quant`: scheme of `ops/quantise.py`."""
        if quant == _STATIC:
            if not self.habits.narrows_before:
                yield OpCall(Quantise("bf16", float(m), float(k), quant=quant))
            quant = ""
        if quant == _TUNED:
            pieces = max(min(_SMS // (-(-m // _TILE) * -(-n // _TILE)), k // _LEAST_K), 1.0)
            n, k = n * pieces, k / pieces
        yield self._product(m, n, k, quant, _dtype(quant) if quant else _STATIC)

    def _product(self, m: float, n: float, k: float, quant: str, dtype: str = "bf16") -> OpCall:
        op = Gemm(dtype, float(m), float(n), float(k), quant=quant)
        return OpCall(op, framework=self.served.framework)

    def _fused(self, op: Op) -> OpCall:
        return OpCall(op, kernel=FUSED)

    def loop(self, name: str, rows: float, cols: float) -> OpCall:
        """A kernel of its own in a graph."""
        return OpCall(_loop(name, rows, cols), issued_apart=True)

    def norm(self, tokens: float, width: float) -> OpCall:
        """Of a layer, with the sum before it: one kernel with that of several GPUs, of some."""
        norm = RmsNorm("bf16", tokens, width)
        if self.tp > 1 and self.habits.norms_as_it_sums:
            return self._fused(norm)
        return self.by_rows(norm)

    def by_rows(self, op: Op) -> OpCall:
        """A framework's own kernel of an op that goes row by row."""
        return OpCall(op, issued_apart=True, framework=self.served.framework)

    def message(self, collective: str, size: float, ranks: int, library: str = "") -> Call:
        nodes = -(-ranks // self.per_node)
        # their own kernels read each other's memory: between nodes NCCL's run
        words = (("lib", library),) if library and nodes == 1 else ()
        return CollectiveCall(collective, float(size), ranks, nodes, words=words)


class _Kernels:
    """Kernels of what all tokens of a step take together, as one framework runs them: those of
    `LayerKernels`, split over the GPUs of a rank.
    """

    narrow_attention = narrow_gelu = False

    def __init__(self, calls: ServedCalls, quant: str):
        self.calls, self.quant, self.tp = calls, quant, float(calls.tp)

    def branch(self, tokens: float, cols: float) -> Passes:
        """Sums are one kernel with the norm behind them."""
        return Passes()

    def norm(self, name: str, kind: str, tokens: float, cols: float) -> Passes:
        return _passes(name, self.calls.norm(tokens, cols))

    def linear(
        self, name: str, tokens: float, i: float, o: float, *, split: Split = "",
        bias: bool = False, comes: float | None = None, returns: float | None = None,
    ) -> Passes:  # fmt: skip
        """Biases are added by the product."""
        del bias, comes, returns
        o, i = o / (self.tp if split == "outputs" else 1), i / (self.tp if split == "inputs" else 1)
        return _passes(name, *self.calls.gemm(tokens, o, i, self.quant))

    def split(self, name: str, tokens: float, cols: float) -> Passes:
        """Nothing: attention reads slices of the joint product."""
        return Passes()

    def head_norm(self, name: str, tokens: float, heads: float, dim: float) -> Passes:
        rows = tokens * max(heads / self.tp, 1.0)
        return _passes(name, self.calls.by_rows(RmsNorm("bf16", rows, dim)))

    def whole_norm(self, name: str, tokens: float, queries: float, keys: float) -> Passes:
        """Sums of squares of both, by NCCL those of all ranks, two numbers of 32 bits a token, and
        scaling (vLLM's `MiniMaxText01RMSNormTP.forward_qk`).
        """
        calls, widths = self.calls, (queries / self.tp, keys / self.tp)
        sums = calls.by_rows(RmsNorm("bf16", tokens, sum(widths)))
        size = tokens * 2 * DTYPE_BYTES["fp32"]
        sent = [calls.message("all_reduce", size, calls.tp)] if self.tp > 1 else []
        return _passes(name, sums, *sent, *(calls.loop("mul", tokens, one) for one in widths))

    def activation(
        self, name: str, tokens: float, cols: float, *, gated: bool, bias: bool
    ) -> Passes:
        del bias
        like = "silu_mul" if gated else "gelu"
        return _passes(name, self.calls.loop(like, tokens, cols / self.tp))

    def loop(self, name: str, rows: float, cols: float) -> PassStep:
        return PassStep(self.calls.loop("add", rows, cols), "memory", name)


def _passes(name: str, *calls: Call) -> Passes:
    return Passes(tuple(PassStep(call, "memory", name) for call in calls))


def _loop(name: str, rows: float, cols: float) -> Op:
    kind, fixed = op_by_name(name)
    return kind(dtype="bf16", rows=rows, cols=cols, **fixed)  # type: ignore[call-arg]


def _dtype(quant: str) -> str:
    """The op's number format in tables: what multiplies."""
    return scheme_dtype("bf16", quant)
