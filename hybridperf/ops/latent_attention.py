"""Attention of one new token to vectors that all heads share: latent attention as a server decodes
it (DeepSeek-V2, arXiv 2405.04434, section 2.1.2, with the up-projections absorbed into queries and
results), and the indexer of sparse attention (DeepSeek-V3.2), which has scores and no values.

Of each sequence `kv_len` cached vectors of `cached` numbers are read once for all heads; each head
multiplies its query with `scored` of them and its weight with `valued` of them:

    flops = 2 batch heads kv_len (scored + valued)         bytes = batch kv_len cached b + queries

Nobody's table here has it. Its share of the roofline is that of FlashMLA, published for an H800
(github.com/deepseek-ai/FlashMLA, README: up to 3,000 of 3,350 GB/s, up to 660 of 989 TFLOP/s).
"""

from __future__ import annotations

import dataclasses

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io.namespace import Array
from hybridperf.ops.attention import WithCache, read_cached
from hybridperf.ops.base import register
from hybridperf.ops.columns import Columns
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import log_sizes, shape_inputs
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import blocks

PUBLISHED_SHARE = 2 / 3  # of the roofline: FlashMLA's of the peak


@register(
    "latent_attention",
    columns=Columns(zero_allowed=frozenset({"valued"}), read_text=read_cached),
)
@dataclasses.dataclass(frozen=True)
class LatentAttention(WithCache):
    """`batch` tokens, each against the `kv_len` vectors of its own sequence."""

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


shape_inputs.register(LatentAttention, lambda op: log_sizes(op, "batch", "kv_len", "heads"))
blocks.register(LatentAttention, lambda op: op.batch * op.heads)
