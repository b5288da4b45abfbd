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
from hybridperf.ops.base import Op, register
from hybridperf.ops.columns import Columns
from hybridperf.ops.inputs import (
    Gpu,
    gpu_inputs,
    log2_ratio,
    log_sizes,
    log_sizes_base2,
    shape_inputs,
    tails,
)
from hybridperf.ops.quantise import WIDE_BYTES
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import aligned, blocks, serial_steps, wave_inputs, whole_tiles

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


def read_cached(field: str, word: str, dtype: str) -> str:
    """The number format of a cache; empty where it is the op's."""
    del field
    cached = canonical_dtype(word) if word else dtype
    return "" if cached == dtype else cached


class WithCache(Op):
    """What was seen before may be kept in a number format of its own, `kv_dtype`."""

    unit: ClassVar[Unit] = "matrix"


class Attention(WithCache):
    """Any of those that keep keys and values of their own."""


@register(
    "context_attention", "prefill_attention",
    columns=Columns(
        zero_allowed=frozenset({"causal"}), words=_TRUE_WORDS, read_text=read_cached
    ),
)  # fmt: skip
@dataclasses.dataclass(frozen=True)
class PrefillAttention(Attention):
    """A prompt's attention: `q_len` new tokens, the last of `kv_len`, also written to the cache."""

    group: ClassVar[str] = "prefill_attention"

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


@shape_inputs.register(PrefillAttention)
def _(op: PrefillAttention) -> dict[str, Array]:
    keys = {"queries": op.q_len, "keys": op._keys()}
    return log_sizes(op, "batch", **keys, heads=op.heads, head_size=op.head_dim)


@blocks.register(PrefillAttention)
def _(op: PrefillAttention) -> Array:
    return op.batch * op.heads * whole_tiles(op.q_len, QUERY_TILE)


@gpu_inputs.register(PrefillAttention)
def _(op: PrefillAttention, gpu: Gpu) -> dict[str, Array]:
    window, kv_len, kv_heads = floats(op._window()), floats(op._kv_len()), _kv_heads(op)
    groups = {"kv_heads": kv_heads, "group": op.heads / kv_heads}
    return {
        **_prompt_inputs(op, gpu),
        **log_sizes_base2(kv_len=kv_len, **groups, keys=op._keys()),
        "causal": (floats(op.causal) > 0) * 1.0,
        "windowed": (window < kv_len) * 1.0,
        "window_share": log2_ratio(window, kv_len),
        # another kernel, even where the window cuts nothing off
        "window_given": (floats(op.window) > 0) * 1.0,
        "has_past": (kv_len > floats(op.q_len)) * 1.0,
        "multi_query": (floats(kv_heads) == 1) * 1.0,
        "all_heads": (floats(kv_heads) == floats(op.heads)) * 1.0,
        "kv_bytes": _cache_bytes(op),
        "narrow": float(op.element_bytes < WIDE_BYTES),
    }


@register("encoder_attention", columns=Columns(read_text=read_cached))
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


@shape_inputs.register(EncoderAttention)
def _(op: EncoderAttention) -> dict[str, Array]:
    heads = {"heads": op.heads, "head_size": op.head_dim}
    return log_sizes(op, "batch", queries=op.q_len, **heads)


@blocks.register(EncoderAttention)
def _(op: EncoderAttention) -> Array:
    return op.batch * op.heads * whole_tiles(op.q_len, QUERY_TILE)


@gpu_inputs.register(EncoderAttention)
def _(op: EncoderAttention, gpu: Gpu) -> dict[str, Array]:
    return {
        **_prompt_inputs(op, gpu),
        **log_sizes_base2(kv_heads=_kv_heads(op)),
        "all_heads": (floats(_kv_heads(op)) == floats(op.heads)) * 1.0,
        "kv_bytes": _cache_bytes(op),
    }


def run_by(op: Op, framework: np.ndarray) -> Op:
    """The op whose work a framework's [N] kernels do for it; itself where they do just that."""
    if not isinstance(op, DecodeAttention):
        return op
    kv_heads = _kv_heads(op)
    most = np.array([_SHARING.get(str(word), np.inf) for word in framework])
    if not np.isfinite(most).any():
        return op
    apart = floats(op.heads) > most * floats(kv_heads)
    where = array_module(apart, kv_heads, op.heads).where
    return dataclasses.replace(op, kv_heads=where(apart, op.heads, kv_heads))


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


@register("generation_attention", "decode_attention", columns=Columns(read_text=read_cached))
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


blocks.register(DecodeAttention, lambda op: op.batch * op.heads)


@shape_inputs.register(DecodeAttention)
def _(op: DecodeAttention) -> dict[str, Array]:
    heads = {"heads": op.heads, "kv_heads": _kv_heads(op), "head_size": op.head_dim}
    return log_sizes(op, "batch", keys=op._keys(), **heads)


@serial_steps.register(DecodeAttention)
def _(op: DecodeAttention, gpu: Gpu) -> Array:
    return _BLOCK_STEPS * op.batch * _kv_heads(op) / gpu.sm_count


@gpu_inputs.register(DecodeAttention)
def _(op: DecodeAttention, gpu: Gpu) -> dict[str, Array]:
    keys, kv_heads = floats(op._keys()), _kv_heads(op)
    sequences, shared = op.batch * kv_heads, op.heads / kv_heads
    cached = op.batch * 2 * kv_heads * keys * op.head_dim * _cache_bytes(op)
    heads = {"heads": op.heads, "kv_heads": kv_heads, "head_size": op.head_dim}
    out = {
        **log_sizes_base2(op, "batch", "kv_len", keys=keys, **heads),
        **log_sizes_base2(group=shared, queries=op.q_len),
        "log2_bytes_per_l2": log2_ratio(op.work().bytes, gpu.l2_bytes),
        "log2_cache_per_l2": log2_ratio(cached, gpu.l2_bytes),
        # KiB that each multiprocessor streams if all take part
        "log2_cache_per_sm": log2_ratio(cached, gpu.sm_count * 2.0**10),
        **wave_inputs("heads", op.batch * op.heads, gpu),
        **wave_inputs("kv_heads", sequences, gpu),  # heads that share keys in one block
        **tails(64, keys=keys),
        **tails(8, group=shared),  # rows of the smallest tile of a matrix unit
        **_head_flags(op.head_dim),
        "align_keys": aligned(keys, 256),
        "windowed": (keys < floats(op.kv_len)) * 1.0,
        "window_share": log2_ratio(keys, op.kv_len),
        "window_given": (floats(op.window) > 0) * 1.0,
        "multi_query": (floats(kv_heads) == 1) * 1.0,
        "all_heads": (floats(kv_heads) == floats(op.heads)) * 1.0,
        "kv_bytes": _cache_bytes(op),
        "narrow": float(op.element_bytes < WIDE_BYTES),
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
