"""Attention of whole sequences on a GPU, in cycles of its multiprocessors: what a score costs.

    t      = floor + pnorm( P / e_P, M / e_M, tau L, sigma B; q )
    P      = scores (4 D / (F eta) + x / E) / (SMs clock)      scores = 128^2 tiles, batch x heads
    M      = bytes / BW                    q, k, v and results once
    L      = P of the block whose row of tiles is longest, alone on its multiprocessor
    B      = blocks / (SMs clock)          sigma cycles to start one and to write its rows

A block takes 128 queries of a head and goes through tiles of 128 keys: causal ones up to the
diagonal, with a window of W only the last W / 128 + 1. F: FLOP that a multiprocessor's tensor cores
do in a cycle; E: exponentials, 16, and 32 on Blackwell Ultra (CUDA C++ Programming Guide,
arithmetic instructions; NVIDIA's Blackwell Ultra paper). Products and exponentials hardly overlap,
so they add up: heads of 64 reach less of the peak than heads of 256. Sizes count as they are, not
in whole tiles, so that seconds have slopes; fewer than 128 fill a tile.

Constants (eta, x, and the knobs where `learning.prior.form` starts from) are medians over published
kernels of FlashAttention 2 to 4, FlashInfer, TensorRT-LLM and cuDNN on A100, H100, H200, B200,
GB300, L40S, L20. A library left out errs by 9 to 29 % in the median of its groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array, reals
from hybridperf.ops.attention import FLOPS_PER_SCORE, QUERY_TILE, PrefillAttention, PromptAttention
from hybridperf.ops.base import Op
from hybridperf.ops.quantise import WIDE_BYTES

_ETA, _NARROW_ETA, _EXPONENTIAL = 0.83, 0.74, 0.46  # eta, of 8 bits, x
_EXPONENTIALS, _EXPONENTIALS_ULTRA = 16.0, 32.0  # E
_ULTRA = "sm_103"
# the knobs of a kernel that nobody measured: seconds, shares, p - 1, share of a block, cycles
KERNEL_S, REACHED, MEMORY, SHARPNESS, LONGEST, BLOCK_CYCLES = 4e-6, 0.85, 0.59, 1.0, 1.0, 3300.0
# of the log of measured over predicted seconds, where device, laboratory and library are left out
BETWEEN_SD, WITHIN_SD = 0.33, 0.18
MOST = 16.0  # seconds over the roofline, without the floor, that 99 % of measured rows stay under


class ScoreAmounts(NamedTuple):
    """What an op does, for the form [...]."""

    products_s: Array
    memory_s: Array
    longest_s: Array
    block_s: Array  # per cycle of a block


def goes_by_scores(op: Op) -> bool:
    """Whether the form prices an op."""
    return isinstance(op, PromptAttention)


def score_amounts(
    op: Any, device: DeviceSpec, peak_flops_per_s: Array, peak_scale: Array,
    memory_bytes_per_s: Array,
) -> ScoreAmounts:  # fmt: skip
    """An op, or columns of them, on a GPU whose peak and bandwidth may be varied.

    Args:
        op: attention of whole sequences.
        device: a GPU whose multiprocessors and clock are known.
        peak_flops_per_s: of its tensor cores in the op's numbers [...].
        peak_scale: that over the datasheet's; the clock follows.
        memory_bytes_per_s: of its memory.
    """
    assert device.multiprocessors is not None
    assert device.clock_hz is not None
    cycles_per_s = device.multiprocessors * device.clock_hz * peak_scale
    each = _EXPONENTIALS_ULTRA if device.arch.endswith(_ULTRA) else _EXPONENTIALS
    eta = _ETA if op.element_bytes >= WIDE_BYTES else _NARROW_ETA
    keys, window, causal = op.q_len, op.q_len, 0.0
    if isinstance(op, PrefillAttention):
        keys, window, causal = op._kv_len(), op._window(), op.causal
    module, *sizes, head_dim, moved = reals(
        op.q_len, op.batch * op.heads, keys, window, causal, op.head_dim, op.work().bytes
    )
    flops_s = FLOPS_PER_SCORE * head_dim / (eta * peak_flops_per_s)
    tile_s = QUERY_TILE**2 * (flops_s + _EXPONENTIAL / (each * cycles_per_s))
    blocks, tiles, longest = _tiles(module, *sizes)
    return ScoreAmounts(
        tiles * tile_s, moved / memory_bytes_per_s, longest * tile_s * device.multiprocessors,
        blocks / cycles_per_s,
    )  # fmt: skip


def _tiles(
    module: Any, queries: Array, heads: Array, keys: Array, window: Array, causal: Array
) -> tuple[Array, Array, Array]:
    """(blocks, tiles of all of them, tiles of the longest)."""
    rows = module.maximum(queries, QUERY_TILE) / QUERY_TILE
    past, every = (keys - queries) / QUERY_TILE, module.maximum(keys, QUERY_TILE) / QUERY_TILE
    most = module.minimum(window / QUERY_TILE + 1.0, every)
    # causal: row i of tiles sees past + i of them, `most` at the most; the first `uncut` fewer
    uncut = module.clip(most - past, 0.0, rows)
    seen = uncut * past + uncut * (uncut + 1.0) / 2.0 + (rows - uncut) * most
    tiles = module.where(causal > 0, seen, rows * most)
    return heads * rows, heads * tiles, most
