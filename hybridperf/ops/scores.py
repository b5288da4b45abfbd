"""Attention of whole sequences on a GPU, in cycles of its multiprocessors: what a score costs.

    t      = floor + pnorm( P / e_P, M / e_M, tau L, sigma B; q )
    P      = scores ((4 D / (F eta))^p + (x / E)^p)^(1/p) / (SMs clock)
    M      = bytes / BW                    q, k, v and results once
    L      = P of the block whose row of tiles is longest, alone on its multiprocessor
    B      = blocks / (SMs clock)          sigma cycles to start one and to write its rows

A block takes 128 queries of a head and goes through tiles of 128 keys: causal ones up to the
diagonal, with a window of W only the last W / 128 + 1. scores = 128^2 tiles, batch x heads. F: FLOP
that a multiprocessor's tensor cores do in a cycle; E: exponentials, 16, and 32 on Blackwell Ultra
(CUDA C++ Programming Guide, arithmetic instructions; NVIDIA's Blackwell Ultra paper).

Of a library that `attention_kernels.toml` tells (`ScoreLibrary`), x / E are cycles that softmax
takes of a score, beside its products (p = 2), at the clock that the card's power holds
(`hardware/power.py`), in whole tiles. Of others products and exponentials hardly overlap, so they
add up (p = 1), and sizes count as they are, fewer than 128 as a tile, so that seconds have slopes.

Constants (eta, x, and the knobs where `learning.prior.form` starts from) are medians over published
kernels of FlashAttention 2 to 4, FlashInfer, TensorRT-LLM and cuDNN on A100, H100, H200, B200,
GB300, L40S, L20. A library left out errs by 9 to 29 % in the median of its groups.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

from hybridperf.hardware import DeviceSpec
from hybridperf.hardware.power import held_share
from hybridperf.io import shipped_toml
from hybridperf.io.namespace import Array, reals
from hybridperf.ops.attention import FLOPS_PER_SCORE, QUERY_TILE, PrefillAttention, PromptAttention
from hybridperf.ops.base import Op
from hybridperf.ops.quantise import WIDE_BYTES
from hybridperf.ops.roofline import roof_s

_ETA, _NARROW_ETA, _EXPONENTIAL = 0.83, 0.74, 0.46  # eta, of 8 bits, x
_EXPONENTIALS, _EXPONENTIALS_ULTRA = 16.0, 32.0  # E
_ULTRA = "sm_103"
# the knobs of a kernel that nobody measured: seconds, shares, p - 1, share of a block, cycles
KERNEL_S, REACHED, MEMORY, SHARPNESS, LONGEST, BLOCK_CYCLES = 4e-6, 0.85, 0.59, 1.0, 1.0, 3300.0
# of the log of measured over predicted seconds, where device, laboratory and library are left out
BETWEEN_SD, WITHIN_SD = 0.33, 0.18
MOST = 16.0  # seconds over the roofline, without the floor, that 99 % of measured rows stay under


@dataclasses.dataclass(frozen=True)
class ScoreLibrary:
    """A library's kernels as `attention_kernels.toml` tells them."""

    softmax_cycles: float  # of a multiprocessor, for a score
    narrow: float  # share of the peak of 8 bits that its products reach; of wider ones all
    memory: float  # share of the bandwidth
    overlap: float = 2.0  # p
    seen: str = ""  # on which device
    says: str = ""  # where its constants are from


class ScoreMachine(Protocol):
    """What the form asks of a GPU; numbers, traced or not."""

    @property
    def peak_flops_per_s(self) -> Array:
        """Of its tensor cores in the op's numbers."""

    @property
    def cycles_per_s(self) -> Array:
        """Multiprocessors x clock."""

    @property
    def multiprocessors(self) -> Array:
        """How many multiprocessors there are."""

    @property
    def memory_bytes_per_s(self) -> Array:
        """Its memory's bandwidth."""

    @property
    def held(self) -> Array:
        """Share of the clock that power lets long kernels hold."""


class ScoreGpu(NamedTuple):
    """A GPU whose peak and bandwidth may be varied."""

    peak_flops_per_s: Array
    cycles_per_s: Array
    multiprocessors: Array
    memory_bytes_per_s: Array
    held: Array
    exponentials: float = _EXPONENTIALS  # E

    @staticmethod
    def of(
        device: DeviceSpec, peak_flops_per_s: Array, peak_scale: Array, memory_bytes_per_s: Array
    ) -> ScoreGpu:
        """Of a GPU whose multiprocessors and clock are known.

        Args:
            device: the GPU.
            peak_flops_per_s: of its tensor cores in the op's numbers [...].
            peak_scale: that over the datasheet's; the clock follows.
            memory_bytes_per_s: of its memory.
        """
        assert device.multiprocessors is not None
        assert device.clock_hz is not None
        cycles_per_s = device.multiprocessors * device.clock_hz * peak_scale
        each = _EXPONENTIALS_ULTRA if device.arch.endswith(_ULTRA) else _EXPONENTIALS
        return ScoreGpu(
            peak_flops_per_s, cycles_per_s, float(device.multiprocessors), memory_bytes_per_s,
            held_share(device), each,
        )  # fmt: skip


class ScoreAmounts(NamedTuple):
    """What an op does, for the form [...]."""

    products_s: Array
    memory_s: Array
    longest_s: Array
    block_s: Array  # per cycle of a block


def goes_by_scores(op: Op) -> bool:
    """Whether the form prices an op."""
    return isinstance(op, PromptAttention)


def score_amounts(op: Any, gpu: ScoreGpu) -> ScoreAmounts:
    """What an op, or columns of them, does by kernels of which no constants are told."""
    eta = _ETA if op.element_bytes >= WIDE_BYTES else _NARROW_ETA
    module, *sizes, moved = _sizes(op)
    flops_s = FLOPS_PER_SCORE * op.head_dim / (eta * gpu.peak_flops_per_s)
    score_s = flops_s + _EXPONENTIAL / (gpu.exponentials * gpu.cycles_per_s)
    return _amounts(module, sizes, moved, score_s, gpu)


def library_amounts(op: Any, gpu: ScoreMachine, library: ScoreLibrary) -> ScoreAmounts:
    """What an op does by a library's kernels, for the knobs of one that nobody measured."""
    module, queries, heads, keys, *seen, moved = _sizes(op)
    whole = [module.ceil(size / QUERY_TILE) * QUERY_TILE for size in (queries, keys)]
    reached = 1.0 if op.element_bytes >= WIDE_BYTES else library.narrow
    flops_s = FLOPS_PER_SCORE * op.head_dim / (reached * gpu.peak_flops_per_s)
    parts_s = flops_s, library.softmax_cycles / gpu.cycles_per_s
    score_s = REACHED / gpu.held * roof_s(0.0, parts_s, 1.0 / library.overlap, xp=module)
    moved = moved * (MEMORY / library.memory)
    return _amounts(module, [whole[0], heads, whole[1], *seen], moved, score_s, gpu)


def library_s(op: Any, gpu: ScoreMachine, library: ScoreLibrary) -> Array:
    """Seconds of an op by a library's kernels."""
    module, *amounts = reals(*library_amounts(op, gpu, library))
    shares = 1.0 / REACHED, 1.0 / MEMORY, LONGEST, BLOCK_CYCLES
    terms = [share * amount for share, amount in zip(shares, amounts, strict=True)]
    return KERNEL_S + roof_s(0.0, terms, 1.0 / (1.0 + SHARPNESS), xp=module)


@functools.cache
def library_of(word: str, arch: str) -> ScoreLibrary | None:
    """The library that a word of a table or a call means on an architecture; None: not told."""
    letters = "".join(filter(str.isalnum, word.lower()))
    for told in shipped_toml("hybridperf.ops", "attention_kernels.toml")["libraries"].values():
        if letters in told["words"] and arch in told.get("arch", [arch]):
            known = {one.name for one in dataclasses.fields(ScoreLibrary)}
            return ScoreLibrary(**{name: one for name, one in told.items() if name in known})
    return None


def _sizes(op: Any) -> tuple[Any, ...]:
    """(namespace, queries, batch x heads, keys, window, causal, bytes)."""
    keys, window, causal = op.q_len, op.q_len, 0.0
    if isinstance(op, PrefillAttention):
        keys, window, causal = op._kv_len(), op._window(), op.causal
    return reals(op.q_len, op.batch * op.heads, keys, window, causal, op.work().bytes)


def _amounts(
    module: Any, sizes: list[Array], moved: Array, score_s: Array, gpu: ScoreMachine
) -> ScoreAmounts:
    tile_s = QUERY_TILE**2 * score_s
    blocks, tiles, longest = _tiles(module, *sizes)
    return ScoreAmounts(
        tiles * tile_s, moved / gpu.memory_bytes_per_s, longest * tile_s * gpu.multiprocessors,
        blocks / gpu.cycles_per_s,
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
