"""Attention as one fused kernel: scores, softmax and weighted values of batch x heads, never
written to memory.

Each query looks at P keys: 2 P d multiply-adds for its scores and as many for the values, 4 P d
flops, and P exponentials. Causal: query i of a prompt sees itself and what came before; a window of
W: at most the last W of those. `kv_heads` < heads: so many heads share one set of keys and values
(grouped queries).

Queries and results are 16-bit numbers between ops even where fp8 multiplies (they are narrowed
inside); keys and values in the cache are `kv_dtype`. `kv_heads` = 0 means as many as heads,
`window` = 0 none, `kv_len` = 0 just the prompt.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, Unit, canonical_dtype
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Gpu, Op, register
from hybridperf.ops.inputs import log2_ratio, log_sizes, log_sizes_base2, tails
from hybridperf.ops.quantise import WIDE_BYTES
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import aligned, wave_inputs, whole_tiles

# per query, key and element of a head: multiply and add, once for the score and once for the value
FLOPS_PER_SCORE = 4.0
QUERY_TILE = 128.0  # queries of one head that a thread block takes
# A block that serves the heads of one cache is started, reads its queries and merges its part: some
# 1 to 4 us on four GPUs, as long as so many steps of a product.
_BLOCK_STEPS = 64.0
# TensorRT-LLM's kernels that read a cache once for all heads that share it take so many heads
# (`supportConfigQGMMA`, cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention/decoderXQAImplJIT
# of github.com/NVIDIA/TensorRT-LLM); beyond, each head reads it
_SHARING = {"trtllm": 32.0}
_HEAD_SIZES = (64, 128, 256)  # kernels are written for these; others are padded or fall back
_TRUE_WORDS = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0}


class WithCache(Op):
    """What was seen before may be kept in a number format of its own, `kv_dtype`."""

    unit: ClassVar[Unit] = "matrix"

    @classmethod
    def read_text(cls, name: str, value: str, dtype: str) -> str:
        """A number format; empty where it is the op's."""
        del name
        cached = canonical_dtype(value) if value else dtype
        return "" if cached == dtype else cached


class Attention(WithCache):
    """Any of those that keep keys and values of their own."""


@register("context_attention", "prefill_attention")
@dataclasses.dataclass(frozen=True)
class PrefillAttention(Attention):
    """A prompt's attention: `q_len` new tokens, the last of `kv_len`, also written to the cache."""

    group: ClassVar[str] = "prefill_attention"
    zero_allowed: ClassVar = frozenset({"causal"})
    words: ClassVar = _TRUE_WORDS

    batch: Array
    q_len: Array
    heads: Array
    head_dim: Array
    kv_heads: Array = 0.0
    window: Array = 0.0
    kv_len: Array = 0.0
    causal: Array = 1.0
    kv_dtype: str = ""  # empty: as the op's dtype

    def work(self) -> Work:
        kv_heads, window, kv_len = _kv_heads(self), self._window(), self._kv_len()
        scores = self.batch * self.heads * self.q_len * self._keys()
        wide, cached = _wide_bytes(self), _cache_bytes(self)
        minimum = array_module(window, kv_len, self.q_len).minimum
        # of the prompt's past, what the first query still sees
        before = minimum(kv_len - self.q_len, window)
        queries = 2 * self.heads * self.q_len * wide  # read, and results written
        # new ones read and put into the cache, old ones read
        keys = 2 * kv_heads * (self.q_len * (wide + cached) + before * cached)
        return _attended(self, scores, self.batch * self.head_dim * (queries + keys))

    def _kv_len(self) -> Array:
        maximum = array_module(self.kv_len, self.q_len).maximum
        return maximum(self.kv_len, self.q_len)

    def _window(self) -> Array:
        """Keys that a query sees at most."""
        kv_len = self._kv_len()
        minimum = array_module(self.window, kv_len).minimum
        return minimum(self.window + (self.window == 0) * kv_len, kv_len)

    def _keys(self) -> Array:
        """Keys that a query sees, mean over a prompt's queries.

        Causal: query i = 1..q sees min(p + i, W) of p tokens before the prompt and i of it. The
        first a = clip(W - p, 0, q) queries are not cut: sum = a p + a (a + 1) / 2 + (q - a) W.
        """
        q, window, before = self.q_len, self._window(), self._kv_len() - self.q_len
        module = array_module(q, window, before)
        uncut = module.clip(window - before, 0.0, q)
        seen = uncut * before + uncut * (uncut + 1.0) / 2.0 + (q - uncut) * window
        is_causal = (self.causal > 0) * 1.0
        return is_causal * seen / q + (1.0 - is_causal) * window

    def shape(self) -> dict[str, Array]:
        keys = {"queries": self.q_len, "keys": self._keys()}
        return log_sizes(self, "batch", **keys, heads=self.heads, head_size=self.head_dim)

    def blocks(self) -> Array:
        return self.batch * self.heads * whole_tiles(self.q_len, QUERY_TILE)

    def gpu_inputs(self, gpu: Gpu) -> dict[str, Array]:
        window, kv_len, kv_heads = floats(self._window()), floats(self._kv_len()), _kv_heads(self)
        groups = {"kv_heads": kv_heads, "group": self.heads / kv_heads}
        return {
            **_prompt_inputs(self, gpu),
            **log_sizes_base2(kv_len=kv_len, **groups, keys=self._keys()),
            "causal": (floats(self.causal) > 0) * 1.0,
            "windowed": (window < kv_len) * 1.0,
            "window_share": log2_ratio(window, kv_len),
            # another kernel, even where the window cuts nothing off
            "window_given": (floats(self.window) > 0) * 1.0,
            "has_past": (kv_len > floats(self.q_len)) * 1.0,
            "multi_query": (floats(kv_heads) == 1) * 1.0,
            "all_heads": (floats(kv_heads) == floats(self.heads)) * 1.0,
            "kv_bytes": _cache_bytes(self),
            "narrow": float(self.element_bytes < WIDE_BYTES),
        }


@register("encoder_attention")
@dataclasses.dataclass(frozen=True)
class EncoderAttention(Attention):
    """Every token sees every token of its sequence; nothing is kept in a cache."""

    batch: Array
    q_len: Array
    heads: Array
    head_dim: Array
    kv_heads: Array = 0.0
    kv_dtype: str = ""

    def work(self) -> Work:
        scores = self.batch * self.heads * self.q_len * self.q_len
        tensors = 2 * self.heads * _wide_bytes(self) + 2 * _kv_heads(self) * _cache_bytes(self)
        return _attended(self, scores, self.batch * self.q_len * self.head_dim * tensors)

    def shape(self) -> dict[str, Array]:
        heads = {"heads": self.heads, "head_size": self.head_dim}
        return log_sizes(self, "batch", queries=self.q_len, **heads)

    def blocks(self) -> Array:
        return self.batch * self.heads * whole_tiles(self.q_len, QUERY_TILE)

    def gpu_inputs(self, gpu: Gpu) -> dict[str, Array]:
        return {
            **_prompt_inputs(self, gpu),
            **log_sizes_base2(kv_heads=_kv_heads(self)),
            "all_heads": (floats(_kv_heads(self)) == floats(self.heads)) * 1.0,
            "kv_bytes": _cache_bytes(self),
        }


def attention_of(
    dtype: str, batch: float, queries: float, keys: float, heads: float, head_dim: float,
    kv_heads: float, causal: bool, window: float = 0.0,
) -> Attention:  # fmt: skip
    """The op of `queries` that attend to `keys` others; `keys` 0: to their own, of which each sees
    `window` at most where that is given.

    Queries that see all of another sequence: the work is that of the longer of the two as keys.
    """
    sizes = (float(heads), float(head_dim), float(kv_heads))
    if window and not keys:
        return PrefillAttention(
            dtype, float(batch), float(queries), *sizes, window=window, causal=float(causal)
        )
    if not keys:
        kind = PrefillAttention if causal else EncoderAttention
        return kind(dtype, float(batch), float(queries), *sizes)
    few, many = (queries, keys) if causal else sorted((queries, keys))
    return PrefillAttention(
        dtype, float(batch), float(few), *sizes, kv_len=float(many), causal=float(causal)
    )


@register("generation_attention", "decode_attention")
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
        scores = self.batch * self.heads * self.q_len * self._keys()
        queries = 2 * self.heads * self.q_len * _wide_bytes(self)
        tensors = queries + 2 * _kv_heads(self) * self._keys() * _cache_bytes(self)
        return _attended(self, scores, self.batch * self.head_dim * tensors)

    def _keys(self) -> Array:
        minimum = array_module(self.window, self.kv_len).minimum
        return minimum(self.window + (self.window == 0) * self.kv_len, self.kv_len)

    def shape(self) -> dict[str, Array]:
        heads = {"heads": self.heads, "kv_heads": _kv_heads(self), "head_size": self.head_dim}
        return log_sizes(self, "batch", keys=self._keys(), **heads)

    def blocks(self) -> Array:
        return self.batch * self.heads

    def serial_steps(self, gpu: Gpu) -> Array:
        return _BLOCK_STEPS * self.batch * _kv_heads(self) / gpu.sm_count

    def run_by(self, framework: np.ndarray) -> DecodeAttention:
        kv_heads = _kv_heads(self)
        most = np.array([_SHARING.get(str(word), np.inf) for word in framework])
        if not np.isfinite(most).any():
            return self
        apart = floats(self.heads) > most * floats(kv_heads)
        where = array_module(apart, kv_heads, self.heads).where
        return dataclasses.replace(self, kv_heads=where(apart, self.heads, kv_heads))

    def gpu_inputs(self, gpu: Gpu) -> dict[str, Array]:
        keys, kv_heads = floats(self._keys()), _kv_heads(self)
        sequences, shared = self.batch * kv_heads, self.heads / kv_heads
        cached = self.batch * 2 * kv_heads * keys * self.head_dim * _cache_bytes(self)
        heads = {"heads": self.heads, "kv_heads": kv_heads, "head_size": self.head_dim}
        out = {
            **log_sizes_base2(self, "batch", "kv_len", keys=keys, **heads),
            **log_sizes_base2(group=shared, queries=self.q_len),
            "log2_bytes_per_l2": log2_ratio(self.work().bytes, gpu.l2_bytes),
            "log2_cache_per_l2": log2_ratio(cached, gpu.l2_bytes),
            # KiB that each multiprocessor streams if all take part
            "log2_cache_per_sm": log2_ratio(cached, gpu.sm_count * 2.0**10),
            **wave_inputs("heads", self.batch * self.heads, gpu),
            **wave_inputs("kv_heads", sequences, gpu),  # heads that share keys in one block
            **tails(64, keys=keys),
            **tails(8, group=shared),  # rows of the smallest tile of a matrix unit
            **_head_flags(self.head_dim),
            "align_keys": aligned(keys, 256),
            "windowed": (keys < floats(self.kv_len)) * 1.0,
            "window_share": log2_ratio(keys, self.kv_len),
            "window_given": (floats(self.window) > 0) * 1.0,
            "multi_query": (floats(kv_heads) == 1) * 1.0,
            "all_heads": (floats(kv_heads) == floats(self.heads)) * 1.0,
            "kv_bytes": _cache_bytes(self),
            "narrow": float(self.element_bytes < WIDE_BYTES),
        }
        # keys cut into parts for other multiprocessors, whose results are then merged
        for length in (256.0, 1024.0):
            parts = sequences * whole_tiles(keys, length)
            out |= wave_inputs(f"parts{length:.0f}", parts, gpu)
        return out


def _attended(op: Any, scores: Array, moved: Array) -> Work:
    """Work of some scores of queries with keys, and of as many weighted values."""
    return streamed(moved, flops=FLOPS_PER_SCORE * scores * op.head_dim, transcendentals=scores)


def _kv_heads(op: Any) -> Array:
    return op.kv_heads + (op.kv_heads == 0) * op.heads


def _cache_bytes(op: Any) -> float:
    return DTYPE_BYTES[op.kv_dtype or op.dtype]


def _wide_bytes(op: Op) -> float:
    return max(op.element_bytes, WIDE_BYTES)


def _head_flags(head_dim: Array) -> dict[str, Array]:
    size = floats(head_dim)
    return {
        **{f"head_{one}": (size == one) * 1.0 for one in _HEAD_SIZES},
        **tails(64, head=size),
        "head_above_128": (size > 128) * 1.0,
    }


def _prompt_inputs(op: Any, gpu: Gpu) -> dict[str, Array]:
    """Inputs of attention with many queries per sequence."""
    q = floats(op.q_len)
    pairs = op.batch * op.heads
    cached = op.batch * 2 * _kv_heads(op) * q * op.head_dim * _cache_bytes(op)
    heads = {"heads": op.heads, "head_size": op.head_dim, "sequences": pairs}
    out = {
        **log_sizes_base2(op, "batch", q_len=q, **heads, tokens=op.batch * q),
        "log2_bytes_per_l2": log2_ratio(op.work().bytes, gpu.l2_bytes),
        "log2_cache_per_l2": log2_ratio(cached, gpu.l2_bytes),
        **tails(64, 128, 256, q_len=q),
        "align_q_len": aligned(q, 256),
        "one_token": (q == 1) * 1.0,
        **wave_inputs("sequences", pairs, gpu),
    }
    for tile in (64, 128, 256):
        out |= wave_inputs(f"q{tile}", pairs * whole_tiles(q, tile), gpu)
    return out | _head_flags(op.head_dim)
