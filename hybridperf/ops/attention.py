"""Attention as one fused kernel: scores, softmax and weighted values of batch x heads, never
written to memory.

Each query looks at P keys: 2 P d multiply-adds for its scores and as many for the values, 4 P d
flops, and P exponentials. Causal: query i of a prompt sees itself and what came before; a window of
W: at most the last W of those. `kv_heads` < heads: so many heads share one set of keys and values
(grouped queries).

Queries and results are 16-bit numbers between ops even where fp8 multiplies (they are narrowed
inside); keys and values in the cache are `kv_dtype`. `kv_heads` = 0 means as many as heads,
`window` = 0 none, `kv_len` = 0 just the prompt.

Latent attention as a server decodes it (DeepSeek-V2, arXiv 2405.04434, section 2.1.2, with the
up-projections absorbed into queries and results) has one new token and vectors that all heads
share; so has the indexer of sparse attention (DeepSeek-V3.2), with scores and no values. Of each
sequence `kv_len` cached vectors of `cached` numbers are read once for all heads; each head
multiplies its query with `scored` of them and its weight with `valued` of them:

    flops = 2 batch heads kv_len (scored + valued)         bytes = batch kv_len cached b + queries
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, Unit, canonical_dtype
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Columns, Op, register, undivided
from hybridperf.ops.frameworks import serving_framework
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log2_ratio, log_of, shape_inputs, tails
from hybridperf.ops.quantise import WIDE_BYTES
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import aligned, blocks, serial_steps, whole_tiles

# per query, key and element of a head: multiply and add, once for the score and once for the value
FLOPS_PER_SCORE = 4.0
QUERY_TILE = 128.0  # queries of one head that a thread block takes
# A block that serves the heads of one cache is started, reads its queries and merges its part: some
# 1 to 4 us on four GPUs, as long as so many steps of a product.
_BLOCK_STEPS = 64.0
_HEAD_SIZES = (64, 128, 256)  # kernels are written for these; others are padded or fall back
# of the roofline, of latent attention, which no table here has: FlashMLA's of the peak, published
# for an H800 (github.com/deepseek-ai/FlashMLA, README: up to 3,000 of 3,350 GB/s, up to 660 of 989
# TFLOP/s)
PUBLISHED_SHARE = 2 / 3


def _read_cached(word: str, dtype: str) -> str:
    """The number format of a cache; empty where it is the op's."""
    cached = canonical_dtype(word) if word else dtype
    return "" if cached == dtype else cached


def _contradictions(op: Any) -> Sequence[tuple[Array, str]]:
    shared = op.kv_heads + (op.kv_heads == 0) * op.heads
    return (
        (op.kv_heads > op.heads, "kv_heads must be at most heads"),
        (undivided(op.heads, shared), "kv_heads must divide heads"),
    )


def _of_prompts(op: Any) -> Sequence[tuple[Array, str]]:
    short = (op.kv_len > 0) & (op.kv_len < op.q_len)
    return (*_contradictions(op), (short, "kv_len has the new tokens in it: at least q_len"))


_COLUMNS = Columns(readers={"kv_dtype": _read_cached}, contradictions=_contradictions)
_CAUSAL = dataclasses.replace(
    _COLUMNS, zero_allowed=frozenset({"causal"}), contradictions=_of_prompts
)


class Attention(Op):
    """Any that keeps keys and values of its own."""

    unit: ClassVar[Unit] = "matrix"

    batch: Array
    heads: Array
    head_dim: Array
    kv_heads: Array
    kv_dtype: str  # of the cache; empty: the op's dtype

    def caches(self) -> Array:
        """Sets of keys and values of a sequence."""
        return self.kv_heads + (self.kv_heads == 0) * self.heads

    def cache_bytes(self) -> float:
        """Bytes of a number in the key-value cache."""
        return DTYPE_BYTES[self.kv_dtype or self.dtype]

    def wide_bytes(self) -> float:
        """Bytes of a number that passes between ops in higher precision."""
        return max(self.element_bytes, WIDE_BYTES)

    def attended(self, pairs: Array, numbers_bytes: Array) -> Work:
        """Work of a head's pairs of query and key, and bytes for each number of a head."""
        scores = self.batch * self.heads * pairs
        return streamed(
            self.batch * self.head_dim * numbers_bytes,
            flops=FLOPS_PER_SCORE * scores * self.head_dim,
            transcendentals=scores,
        )


@dataclasses.dataclass(frozen=True)
class PromptAttention(Attention):
    """Many queries of each sequence at once."""

    batch: Array
    q_len: Array
    heads: Array
    head_dim: Array
    kv_heads: Array = 0.0


@blocks.register(PromptAttention)
def _(op: PromptAttention) -> Array:
    return op.batch * op.heads * whole_tiles(op.q_len, QUERY_TILE)


@register("context_attention", "prefill_attention", columns=_CAUSAL)
@dataclasses.dataclass(frozen=True)
class PrefillAttention(PromptAttention):
    """A prompt's attention: `q_len` new tokens, the last of `kv_len`, also written to the cache."""

    group: ClassVar[str] = "prefill_attention"

    window: Array = 0.0
    kv_len: Array = 0.0
    causal: Array = 1.0
    kv_dtype: str = ""

    def work(self) -> Work:
        window, kv_len = self._window(), self._kv_len()
        wide, cached = self.wide_bytes(), self.cache_bytes()
        minimum = array_module(window, kv_len, self.q_len).minimum
        # of the prompt's past, what the first query still sees
        before = minimum(kv_len - self.q_len, window)
        queries = 2 * self.heads * self.q_len * wide  # read, and results written
        # new ones read and put into the cache, old ones read
        keys = 2 * self.caches() * (self.q_len * (wide + cached) + before * cached)
        return self.attended(self.q_len * self._keys(), queries + keys)

    def _kv_len(self) -> Array:
        return array_module(self.kv_len, self.q_len).maximum(self.kv_len, self.q_len)

    def _window(self) -> Array:
        return _within(self.window, self._kv_len())

    def _keys(self) -> Array:
        """Keys that a query sees, mean over a prompt's queries.

        Causal: query i = 1..q sees min(p + i, W) of p tokens before the prompt and i of it. The
        first a = clip(W - p, 0, q) queries are not cut: sum = a p + a (a + 1) / 2 + (q - a) W.
        """
        q, window, before = self.q_len, self._window(), self._kv_len() - self.q_len
        uncut = array_module(q, window, before).clip(window - before, 0.0, q)
        seen = uncut * before + uncut * (uncut + 1.0) / 2.0 + (q - uncut) * window
        is_causal = (self.causal > 0) * 1.0
        return is_causal * seen / q + (1.0 - is_causal) * window


@register("encoder_attention", columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class EncoderAttention(PromptAttention):
    """Every token sees every token of its sequence; nothing is kept in a cache."""

    kv_dtype: str = ""

    def work(self) -> Work:
        token = 2 * self.heads * self.wide_bytes() + 2 * self.caches() * self.cache_bytes()
        return self.attended(self.q_len * self.q_len, self.q_len * token)


@register(
    "generation_attention", "decode_attention",
    columns=dataclasses.replace(_COLUMNS, contradictions=_of_prompts),
)  # fmt: skip
@dataclasses.dataclass(frozen=True)
class DecodeAttention(Attention):
    """`q_len` (one) new token of each sequence against the last tokens of `kv_len` in the cache."""

    group: ClassVar[str] = "decode_attention"

    batch: Array
    kv_len: Array
    heads: Array
    head_dim: Array
    kv_heads: Array = 0.0
    window: Array = 0.0
    q_len: Array = 1.0
    kv_dtype: str = ""

    def work(self) -> Work:
        keys = _within(self.window, self.kv_len)
        queries = 2 * self.heads * self.q_len * self.wide_bytes()
        cached = 2 * self.caches() * keys * self.cache_bytes()
        return self.attended(self.q_len * keys, queries + cached)


def _within(window: Array, kv_len: Array) -> Array:
    """Keys that a query sees at most."""
    minimum = array_module(window, kv_len).minimum
    return minimum(window + (window == 0) * kv_len, kv_len)


@register(
    "latent_attention",
    columns=Columns(
        readers={"kv_dtype": _read_cached}, zero_allowed=frozenset({"valued"}),
        contradictions=lambda op: (
            (op.scored >= op.cached + 1.0, "scored must be at most cached"),
            (op.valued >= op.cached + 1.0, "valued must be at most cached"),
        ),
    ),
)  # fmt: skip
@dataclasses.dataclass(frozen=True)
class LatentAttention(Op):
    """`batch` tokens, each against the `kv_len` vectors of its own sequence (module docstring)."""

    unit: ClassVar[Unit] = "matrix"

    batch: Array
    kv_len: Array
    heads: Array
    cached: Array  # numbers of a vector in the cache
    scored: Array  # of them, that a query is multiplied with
    valued: Array  # of them, that make the result; 0: scores are all
    kv_dtype: str = ""  # of the cache; empty: the op's dtype

    def work(self) -> Work:
        scores = self.batch * self.heads * self.kv_len
        vectors = self.batch * self.kv_len * self.cached * DTYPE_BYTES[self.kv_dtype or self.dtype]
        queries = self.batch * self.heads * (self.scored + self.valued) * self.element_bytes
        return streamed(
            vectors + queries,
            flops=FLOPS_PER_MULTIPLY_ADD * scores * (self.scored + self.valued),
            transcendentals=scores * (self.valued > 0),
        )


def attention_of(
    dtype: str, batch: float, queries: float, keys: float, heads: float, head_dim: float,
    kv_heads: float, causal: bool, window: float = 0.0,
) -> PromptAttention:  # fmt: skip
    """The op of `queries` that attend to `keys` others; `keys` 0: to their own, of which each sees
    `window` at most where that is given.

    Queries that see all of another sequence: the work is that of the longer of the two as keys.
    """
    sizes = (float(heads), float(head_dim), float(kv_heads))
    if not (keys or window or causal):
        return EncoderAttention(dtype, float(batch), float(queries), *sizes)
    few, many = sorted((queries, keys)) if keys and not causal else (queries, keys)
    seen, past = 0.0 if keys else float(window), float(many)
    return PrefillAttention(dtype, float(batch), float(few), *sizes, seen, past, float(causal))


def run_by(op: Op, framework: np.ndarray) -> Op:
    """The op whose work a framework's [N] kernels do for it; itself where they do just that."""
    if not isinstance(op, DecodeAttention):
        return op
    most = np.array([serving_framework(str(word)).heads_of_cache for word in framework])
    if not np.isfinite(most).any():
        return op
    kv_heads = op.caches()
    apart = floats(op.heads) > most * floats(kv_heads)
    where = array_module(apart, kv_heads, op.heads).where
    return dataclasses.replace(op, kv_heads=where(apart, op.heads, kv_heads))


blocks.register(DecodeAttention, lambda op: op.batch * op.heads)
blocks.register(LatentAttention, lambda op: op.batch * op.heads)
serial_steps.register(
    DecodeAttention, lambda op, gpu: _BLOCK_STEPS * op.batch * op.caches() / gpu.sm_count
)
shape_inputs.register(LatentAttention, lambda op: log_of(op, "batch", "kv_len", "heads"))


@shape_inputs.register(Attention)
def _(op: Any) -> dict[str, Array]:
    sizes = log_of(op, "batch", "heads", head_size=op.head_dim)
    if isinstance(op, DecodeAttention):
        return sizes | log_of(keys=_within(op.window, op.kv_len), kv_heads=op.caches())
    keys = log_of(keys=op._keys()) if isinstance(op, PrefillAttention) else {}
    return {**sizes, **log_of(queries=op.q_len), **keys}


def _common_inputs(op: Attention, gpu: Gpu, kept: Array) -> dict[str, Array]:
    """Of all attention, whose cache keeps so many keys of a sequence."""
    caches, size = op.caches(), floats(op.head_dim)
    cached = op.batch * 2 * caches * kept * op.head_dim * op.cache_bytes()
    return {
        **log2_of(op, "batch", "heads", kv_heads=caches, head_size=op.head_dim),
        **gpu.per_l2(bytes=op.work().bytes, cache=cached),
        **{f"head_{one}": (size == one) * 1.0 for one in _HEAD_SIZES},
        **tails(64, head=size),
        "head_above_128": (size > 128) * 1.0,
        "all_heads": (floats(caches) == floats(op.heads)) * 1.0,
        "kv_bytes": op.cache_bytes(),
    }


def _cache_inputs(op: PrefillAttention | DecodeAttention, kv_len: Array) -> dict[str, Array]:
    """Of attention to a cache of `kv_len` keys."""
    seen, caches = _within(op.window, kv_len), op.caches()
    return {
        **log2_of(kv_len=kv_len, group=op.heads / caches),
        "windowed": (floats(seen) < floats(kv_len)) * 1.0,
        "window_share": log2_ratio(seen, kv_len),
        # another kernel, even where the window cuts nothing off
        "window_given": (floats(op.window) > 0) * 1.0,
        "multi_query": (floats(caches) == 1) * 1.0,
        "narrow": float(op.element_bytes < WIDE_BYTES),
    }


@gpu_inputs.register(PromptAttention)
def _prompt_inputs(op: PromptAttention, gpu: Gpu) -> dict[str, Array]:
    q, pairs = floats(op.q_len), op.batch * op.heads
    out = {
        **_common_inputs(op, gpu, q),
        **log2_of(q_len=q, sequences=pairs, tokens=op.batch * q),
        **tails(64, 128, 256, q_len=q),
        "align_q_len": aligned(q, 256),
        "one_token": (q == 1) * 1.0,
        **gpu.waves("sequences", pairs),
    }
    for tile in (64, 128, 256):
        out |= gpu.waves(f"q{tile}", pairs * whole_tiles(q, tile))
    return out


@gpu_inputs.register(PrefillAttention)
def _(op: PrefillAttention, gpu: Gpu) -> dict[str, Array]:
    kv_len = op._kv_len()
    return {
        **_prompt_inputs(op, gpu),
        **_cache_inputs(op, kv_len),
        **log2_of(keys=op._keys()),
        "causal": (floats(op.causal) > 0) * 1.0,
        "has_past": (floats(kv_len) > floats(op.q_len)) * 1.0,
    }


@gpu_inputs.register(DecodeAttention)
def _(op: DecodeAttention, gpu: Gpu) -> dict[str, Array]:
    keys, caches = floats(_within(op.window, op.kv_len)), op.caches()
    sequences, cached = op.batch * caches, 2 * keys * op.head_dim * op.cache_bytes()
    out = {
        **_common_inputs(op, gpu, keys),
        **_cache_inputs(op, op.kv_len),
        **log2_of(keys=keys, queries=op.q_len),
        # KiB that each multiprocessor streams if all take part
        "log2_cache_per_sm": log2_ratio(sequences * cached, gpu.sm_count * 2.0**10),
        **gpu.waves("heads", op.batch * op.heads),
        **gpu.waves("kv_heads", sequences),  # heads that share keys in one block
        **tails(64, keys=keys),
        **tails(8, group=op.heads / caches),  # rows of the smallest tile of a matrix unit
        "align_keys": aligned(keys, 256),
    }
    # keys cut into parts for other multiprocessors, whose results are then merged
    for length in (256.0, 1024.0):
        out |= gpu.waves(f"parts{length:.0f}", sequences * whole_tiles(keys, length))
    return out
