"""Calls of an engine's step on one GPU, by what looks at the cache and what does not.

Symbols: n tokens of an attention rank, t tensor-parallel GPUs, D attention ranks, h hidden width.

    products(n)         norms, matrices, experts, all-reduces: of all tokens together
    decode(s, keys)     attention of s sequences' new tokens, what latent attention absorbs for
                        them, the output head
    prefill(n, keys)    attention of prompts' tokens, up-projections of their latents, one row of
                        the output head

Layers of a pipeline are counted whole: a token passes all stages, one after the other. Experts run
on the tokens of all D ranks; these are gathered before and scattered after, or, with experts on
many ranks, sent to those of their experts and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.model.calls import Call, CollectiveCall
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
from hybridperf.workloads.transformer.counts import LayerKind

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


class Kernel(NamedTuple):
    """A call, and how often it runs in a step."""

    call: Call
    times: int = 1


class ServedCalls:
    """A deployment's calls on nodes of so many GPUs, with a library's all-reduce."""

    def __init__(self, deployment: Deployment, per_node: int, all_reduce: str = ""):
        self.served, self.per_node, self.all_reduce = deployment, per_node, all_reduce
        self.shape, self.tp = deployment.shape, deployment.tp
        self.habits = serving_framework(deployment.framework)

    def products(self, tokens: float) -> Iterator[Kernel]:
        """Of `tokens` on each attention rank; of a pipeline, split over its stages."""
        tokens = tokens / self.served.pp if tokens > self.served.pp else 1.0
        for kind in self.shape.layer_kinds:
            for call in self._layer(kind, tokens):
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
            for call in self._decoded(kind, sequences, keys, each, beside_prompts):
                yield Kernel(call, kind.count)
        yield Kernel(self._head(sequences * each))
        if served.drafted:  # one more layer of the last kind and its head, for each token drafted
            for call in (*self._layer(self.shape.layer_kinds[-1], sequences),
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
            for call in self._prompts(kind, batch, queries, keys + queries / 2.0):
                yield Kernel(call, kind.count)
        yield Kernel(self._head(1.0))

    # -- parts of a layer

    def _layer(self, kind: LayerKind, tokens: float) -> Iterator[Call]:
        h, served = self.shape.hidden, self.served
        if kind.mixer != "mlp":
            yield self._norm(tokens, h)
            yield from self._projections(kind, tokens)
            yield from self._reduced(tokens * h * _WIDE)
        if not kind.ffn:
            return
        yield self._norm(tokens, h)
        if not kind.experts:
            yield from self._mlp(tokens, kind.ffn, served.quant)
            yield from self._reduced(tokens * h * _WIDE)
            return
        ranks, everyone = served.expert_ranks, tokens * served.attention_dp
        spread = served.attention_dp > 1
        # as TensorRT-LLM's DeepSeek does (should_enable_alltoall of its modeling_deepseekv3.py):
        # tokens go to their experts alone where these are on more ranks than a token has experts
        sent = spread and served.expert_ep > kind.topk
        if sent:
            copies = tokens * ranks * (1.0 - (1.0 - 1.0 / ranks) ** kind.topk)  # ranks of a token's
            narrow = DTYPE_BYTES[_dtype(served.of_experts())]  # dispatched as they are multiplied
            yield self._message("alltoall", copies * h * narrow, ranks)
        elif spread:
            # 4-bit values are made before they are sent, others after (TensorRT-LLM's
            # run_post_quant_allgather, vLLM's do_post_quant_allgather)
            sent_bytes = DTYPE_BYTES["fp4"] if served.of_experts() == "nvfp4" else _WIDE
            yield self._message("all_gather", everyone * h * sent_bytes, ranks)
        yield from self._gemm(everyone if not spread else tokens, kind.experts, h, "bfloat16")
        quant = served.of_experts()
        yield OpCall(
            Moe(
                _dtype(quant), everyone, float(h), float(kind.ffn), float(kind.topk),
                float(kind.experts), float(served.expert_tp), float(served.expert_ep),
                float(self.shape.gated), quant, served.distribution,
            ),
            framework=served.framework, variant=served.moe_backend or ("spread" if spread else ""),
        )  # fmt: skip
        if kind.shared_ffn:
            yield from self._mlp(tokens, kind.shared_ffn, served.of_attention())
            yield self._loop("add", tokens, h)  # to what the others made
        if sent:
            yield self._message("alltoall", copies * h * _WIDE, ranks)
        elif spread:
            yield self._message("reduce_scatter", everyone * h * _WIDE, ranks)
        else:
            yield from self._reduced(tokens * h * _WIDE)

    def _mlp(self, tokens: float, width: int, quant: str) -> Iterator[Call]:
        h, inner = self.shape.hidden, width / self.tp
        yield from self._gemm(tokens, (2 if self.shape.gated else 1) * inner, h, quant)
        yield self._loop("silu_mul", tokens, inner)
        yield from self._gemm(tokens, h, inner, quant)

    def _projections(self, kind: LayerKind, tokens: float) -> Iterator[Call]:
        """Matrices before and after attention or a scan."""
        shape, h, t = self.shape, self.shape.hidden, self.tp
        quant, scan, latent = self.served.of_attention(), shape.scan, shape.latent
        if kind.mixer == "scan" and scan is not None:
            yield from self._gemm(tokens, scan.width / t, h, quant)
            yield from self._gemm(tokens, h, scan.inner / t, quant)
        elif latent is not None:
            down = (latent.query_rank or 0) + latent.kv_rank + latent.rotary_dim
            yield from self._gemm(tokens, down, h, quant)  # on each GPU, whole
            yield from self._latents(tokens, down)
            source = latent.query_rank or h
            yield from self._gemm(tokens, shape.query_width / t, source, quant)
            if latent.selected:
                yield from self._indexed(tokens, float(latent.index_heads), latent.index_dim, quant)
            yield from self._gemm(tokens, h, shape.context_width / t, quant)
        else:
            heads = shape.heads / t * (2 if shape.gated_attention else 1)
            width = (heads + 2 * max(shape.key_heads / t, 1.0)) * shape.dim
            yield from self._gemm(tokens, width, h, quant)
            if not self.habits.rotates_inside:
                yield self._loop("rope", tokens, width)
                yield self._loop("cast", tokens, 2 * max(shape.key_heads / t, 1.0) * shape.dim)
            yield from self._gemm(tokens, h, shape.context_width / t, quant)
        if rank := self.served.lora_rank:  # one adapter of the layer's matrices before attention
            yield from self._gemm(tokens, rank, h, "bfloat16")
            yield from self._gemm(tokens, shape.query_width / t, rank, "bfloat16")

    def _latents(self, tokens: float, down: float) -> Iterator[Call]:
        """What becomes of down-projections and of the queries that are made of them.

        Where attention rotates inside, a norm of all, and a kernel that rotates queries and puts
        keys into the cache. Elsewhere the keys' norm, the rotary embedding, and copies: of both
        parts of the queries beside each other (and narrowed for a cache of 8 bits), of keys into
        the cache.
        """
        shape, latent = self.shape, self.shape.latent
        assert latent is not None
        yield self._by_rows(RmsNorm("bf16", tokens, down))
        queries = shape.heads / self.tp * (latent.kv_rank + latent.rotary_dim)
        if self.habits.rotates_inside:
            yield self._loop("rope", tokens, queries)
            return
        yield self._by_rows(RmsNorm("bf16", tokens, latent.kv_rank))
        yield self._loop("rope", tokens, shape.heads / self.tp * latent.rotary_dim)
        yield self._loop("cast", tokens, queries)
        if self._kept():
            yield OpCall(Quantise("bf16", tokens, queries, quant="fp8"))
        yield self._loop("cast", tokens, latent.kv_rank + latent.rotary_dim)

    def _indexed(self, tokens: float, heads: float, dim: float, quant: str) -> Iterator[Call]:
        """An indexer's matrices, on each GPU whole, and what becomes of its key and its queries:
        norm, rotary embedding and its way back, Hadamard transforms, quantisation, the key's way
        into the cache, the heads' weights; kernels of their own in SGLang (nsa_indexer.py).
        """
        latent, h = self.shape.latent, self.shape.hidden
        assert latent is not None
        yield from self._gemm(tokens, heads * dim, latent.query_rank or h, quant)
        yield from self._gemm(tokens, dim, h, quant)
        yield from self._gemm(tokens, heads, h, "bfloat16")
        yield self._loop("mul", tokens, heads)
        yield self._by_rows(RmsNorm("bf16", tokens, dim))
        yield self._loop("rope", tokens, (heads + 1.0) * dim)
        for rows in (tokens * heads, tokens):
            yield self._loop("cast", rows, dim)
            yield self._loop("mul", rows, dim)
            yield OpCall(Quantise("bf16", rows, dim, quant="fp8_block"))
        yield self._loop("cast", tokens, dim)

    def _decoded(
        self, kind: LayerKind, sequences: float, keys: float, each: float,
        beside_prompts: bool = False,
    ) -> Iterator[Call]:  # fmt: skip
        shape, served, latent = self.shape, self.served, self.shape.latent
        heads = shape.heads / self.tp
        if kind.mixer == "mlp":
            return
        if kind.mixer == "scan" and shape.scan is not None:
            state = shape.scan.heads / self.tp * shape.scan.head_dim * shape.scan.state
            yield self._fused(Copy(_STATE, sequences, state))  # read and written
            return
        if latent is None and beside_prompts:
            kv_heads, seen = max(shape.key_heads / self.tp, 1.0), keys + _QUERY_TILE / 2.0
            yield self._attended(
                sequences, _QUERY_TILE, seen, heads, float(shape.dim), kv_heads, self._window(kind)
            )
            return
        if latent is None:
            yield OpCall(
                DecodeAttention(
                    "bf16", sequences, keys, heads, float(shape.dim),
                    max(shape.key_heads / self.tp, 1.0), self._window(kind), each, self._kept(),
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
            dim, scored = float(latent.index_dim), min(keys, latent.selected)
            yield self._latent(sequences, keys, latent.index_heads * each, dim, 0.0)
            # the best are found by passes over the scores
            yield self._by_rows(Softmax("fp32", sequences * each, keys))
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
        if kind.mixer == "mlp":
            return
        if kind.mixer == "scan" and shape.scan is not None:
            flops = shape.scan.flops / self.tp
            inner = shape.scan.inner / self.tp
            yield from self._gemm(batch * queries, flops / inner, inner, "bfloat16")
            return
        dim, kv_heads = float(shape.dim), max(shape.key_heads / self.tp, 1.0)
        if latent is not None:
            up = heads * (latent.plain_dim + latent.value_dim)
            yield from self._gemm(batch * queries, up, latent.kv_rank, self.served.of_attention())
            # a head's scores and values are of unlike width: as many flops by one of their mean
            dim = (latent.plain_dim + latent.rotary_dim + latent.value_dim) / 2.0
            kv_heads = heads
            if latent.selected:
                index = PrefillAttention(
                    "bf16", batch, queries, float(latent.index_heads), latent.index_dim / 2.0, 1.0,
                    0.0, keys, 1.0,
                )  # fmt: skip
                yield OpCall(index, framework=self.served.framework)
        window = self._window(kind) or float(latent.selected if latent else 0)
        yield self._attended(batch, queries, keys, heads, dim, kv_heads, window)

    def _attended(
        self, batch: float, queries: float, keys: float, heads: float, dim: float, kv_heads: float,
        window: float,
    ) -> Call:  # fmt: skip
        """Attention by the prompts' kernel."""
        sizes = (batch, queries, heads, dim, kv_heads, window, max(keys, queries), 1.0)
        return OpCall(
            PrefillAttention("bf16", *sizes, self._kept()), framework=self.served.framework
        )

    def _window(self, kind: LayerKind) -> float:
        return float(self.shape.window) if kind.mixer == "window" else 0.0

    def _kept(self) -> str:
        kept = canonical_dtype(self.served.kv_dtype)
        return "" if DTYPE_BYTES[kept] == _WIDE else kept

    def _head(self, rows: float) -> Call:
        return self._product(rows, self.shape.vocab / self.tp, self.shape.hidden, "bfloat16")

    # -- calls

    def _gemm(self, m: float, n: float, k: float, quant: str) -> Iterator[Call]:
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

    def _loop(self, name: str, rows: float, cols: float) -> OpCall:
        """A kernel of its own in a graph."""
        return OpCall(_loop(name, rows, cols), issued_apart=True)

    def _norm(self, tokens: float, width: float) -> OpCall:
        """Of a layer, with the sum before it: one kernel with that of several GPUs, of some."""
        norm = RmsNorm("bf16", tokens, width)
        if self.tp > 1 and self.habits.norms_as_it_sums:
            return self._fused(norm)
        return self._by_rows(norm)

    def _by_rows(self, op: Op) -> OpCall:
        """A framework's own kernel of an op that goes row by row."""
        return OpCall(op, issued_apart=True, framework=self.served.framework)

    def _reduced(self, size: float) -> Iterator[Call]:
        if self.tp > 1:
            yield self._message("all_reduce", size, self.tp, self.all_reduce)

    def _message(self, collective: str, size: float, ranks: int, library: str = "") -> Call:
        nodes = -(-ranks // self.per_node)
        # their own kernels read each other's memory: between nodes NCCL's run
        words = (("lib", library),) if library and nodes == 1 else ()
        return CollectiveCall(collective, float(size), ranks, nodes, words=words)


def _loop(name: str, rows: float, cols: float) -> Op:
    kind, fixed = op_by_name(name)
    return kind(dtype="bf16", rows=rows, cols=cols, **fixed)  # type: ignore[call-arg]


def _dtype(quant: str) -> str:
    """The op's number format in tables: what multiplies."""
    return scheme_dtype("bf16", quant)
