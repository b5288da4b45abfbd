"""How work fills a GPU: output tiles, and the waves in which multiprocessors take them.

A product of m x n outputs is cut into tiles of T_m x T_n, one thread block each. Two things are
computed in vain: what sticks out of the last tile, ceil(m / T_m) T_m / m, and multiprocessors
without a tile in the last wave, ceil(w) / w for w = tiles / multiprocessors. Splitting k among s
blocks fills waves of small products. Which tile a library takes is not known here: inputs list
several, and what is learned finds which of them tell.

A block walks along k step by step, so a product of few blocks waits for the longest walk however
much of the machine is idle: `product_steps`.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from hybridperf.io.namespace import Array, array_module, floats, reals
from hybridperf.ops.base import Op
from hybridperf.ops.inputs import Gpu, log2_of, log2_ratio, tails

_BLOCK = 128.0  # outputs each way of the usual block of a matrix product: what `blocks` counts
STEP_DEPTH = 64.0  # of k, that a block covers in one step
STEP_FLOPS = 2.0 * _BLOCK**2 * STEP_DEPTH
# most parts that k is cut into, the least steps of a part, and what adding up twice as many costs;
# chosen on GEMMs in 16 bits of three generations, where 8 to 32 steps are as good
_MOST_PARTS, _LEAST_STEPS, _MERGE_STEPS = 16, 4.0, 16.0
_WAVE_TILES = ((64, 64), (128, 128), (128, 256))
_FILL_TILES = (  # (T_m, T_n, blocks that share one tile's k)
    (64, 64, 1), (128, 64, 1), (64, 128, 1), (128, 128, 1), (256, 128, 1), (128, 256, 1),
    (64, 64, 4), (128, 128, 2), (128, 128, 4), (64, 256, 2),
)  # fmt: skip


@functools.singledispatch
def blocks(op: Op) -> Array:
    """Thread blocks that a usual GPU kernel of this op starts, not rounded; 0 says nothing."""
    del op
    return 0.0


@functools.singledispatch
def serial_steps(op: Op, gpu: Gpu) -> Array:
    """Steps that the busiest multiprocessor takes one after the other; 0 says nothing."""
    del op, gpu
    return 0.0


def tile_count(m: Array, n: Array, tile_m: Array = _BLOCK, tile_n: Array = _BLOCK) -> Array:
    """Tiles that cover m x n outputs, a whole number."""
    return whole_tiles(m, tile_m) * whole_tiles(n, tile_n)


def whole_tiles(size: Array, tile: Array) -> Array:
    """Tiles that cover a size, a whole number."""
    module, size = reals(size)
    return module.ceil(size / tile)


def product_steps(
    m: Array, n: Array, k: Array, gpu: Gpu, batch: Array = 1.0, cut: bool = True
) -> Array:
    """Steps that the busiest multiprocessor takes one after the other in `batch` products.

        min over s = 1, 2, ..., 16 of  ceil(tiles s / multiprocessors) ceil(k / (64 s)) + 16 log2 s

    `cut`: whether k may be cut into s parts, of at least 4 steps each, for other multiprocessors.
    """
    tiles = batch * tile_count(m, n)
    module = array_module(tiles, k)
    least = whole_tiles(tiles, gpu.sm_count) * whole_tiles(k, STEP_DEPTH)
    parts = 2
    while cut and parts <= _MOST_PARTS:
        each = whole_tiles(k, STEP_DEPTH * parts)
        taken = whole_tiles(tiles * parts, gpu.sm_count) * each + _MERGE_STEPS * math.log2(parts)
        least = module.where(each >= _LEAST_STEPS, module.minimum(least, taken), least)
        parts *= 2
    return least


def product_inputs(m: Array, n: Array, k: Array, gpu: Gpu, batch: Array = 1.0) -> dict[str, Array]:
    """Inputs of `batch` products [m, k] x [k, n]: sizes, tails of tiles, alignment, waves."""
    out = {
        **log2_of(m=m, n=n, k=k, outputs=floats(batch) * m * n),
        **tails(16, m=m),
        **tails(64, m=m, n=n, k=k),
        **tails(128, m=m, n=n),
        **tails(256, n=n),
        "align_m": aligned(m, 16),
        "align_n": aligned(n, 256),
        "align_k": aligned(k, 256),
    }
    for tile_m, tile_n in _WAVE_TILES:
        out |= gpu.waves(f"{tile_m}x{tile_n}", batch * tile_count(m, n, tile_m, tile_n))
    # multiprocessor time over useful time, as if every block kept one multiprocessor busy for its
    # share of k; of all tiles at once, so that a trace holds them as one
    axes = max(map(np.ndim, (m, n, batch)))
    tile_m, tile_n, parts = np.reshape(np.transpose(_FILL_TILES), (3, -1, *[1] * axes))
    waves = whole_tiles(batch * tile_count(m, n, tile_m, tile_n) * parts, gpu.sm_count)
    filled = log2_ratio(waves * gpu.sm_count * tile_m * tile_n / parts, batch * m * n)
    names = [f"fill_{tile_m}x{tile_n}_by{parts}" for tile_m, tile_n, parts in _FILL_TILES]
    return out | dict(zip(names, filled, strict=True))


def aligned(size: Array, most: int) -> Array:
    """log2 of the largest power of two, up to the power of two `most`, that divides a size."""
    module, size = reals(size)
    whole = module.rint(size)
    # small: without x64, JAX's whole numbers end at two billions
    rest = (whole - most * module.floor(whole / most)).astype(int)
    return module.log2(module.where(rest == 0, most, rest & -rest).astype(float))
