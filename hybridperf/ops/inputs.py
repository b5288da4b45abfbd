"""Inputs of learned corrections, made of an op's sizes: logs, ratios, and what tiles leave over.

An op's own inputs stand in its file, registered for its class; what is registered for none has the
default that each function here names.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

from hybridperf.io.namespace import Array, reals
from hybridperf.ops.base import Op


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What an op's inputs may know of a GPU; no ratios of rates: few devices would be memorised."""

    sm_count: float  # multiprocessors: blocks that run at once, one each
    l2_bytes: float

    def per_l2(self, **amounts: Array) -> dict[str, Array]:
        """log2 of bytes over those of the L2 cache."""
        return {
            f"log2_{name}_per_l2": log2_ratio(amount, self.l2_bytes)
            for name, amount in amounts.items()
        }

    def waves(self, name: str, blocks: Array) -> dict[str, Array]:
        """log2 of the waves that thread blocks need, and of what rounding them up adds."""
        module, blocks = reals(blocks)
        waves = module.maximum(blocks, 1e-6) / self.sm_count
        last = module.log2(module.ceil(waves) / waves)
        return {f"waves_{name}": module.log2(waves), f"last_wave_{name}": last}


@functools.singledispatch
def shape_inputs(op: Op) -> dict[str, Array]:
    """Inputs of a correction besides the work: logs of sizes, how they fill tiles, flags. None."""
    del op
    return {}


@functools.singledispatch
def gpu_inputs(op: Op, gpu: Gpu) -> dict[str, Array]:
    """What a correction learned across GPUs sees besides the place on the roofline, float64; all
    sizes and counts.

    Names are the same for every row of a class. Those that start with `log2_` are sizes, for
    which distance from what was seen counts; the others are flags or fillings of tiles.
    """
    work = op.work()
    counts = {"flops": work.flops, "bytes": work.bytes, "transcendentals": work.transcendentals}
    return {**log2_of(op, *op.dimensions(), **counts), **gpu.per_l2(bytes=work.bytes)}


def log2_above_zero(size: Array) -> Array:
    """`log2(1 + size)`: zero for nothing."""
    module, size = reals(size)
    return module.log2(1.0 + size)


def log_of(op: Any = None, /, *fields: str, **sizes: Array) -> dict[str, Array]:
    """`log2(1 + size)` of some fields of an op and of further sizes, by name."""
    named = {name: getattr(op, name) for name in fields} | sizes
    return {f"log_{name}": log2_above_zero(size) for name, size in named.items()}


def log2_of(op: Any = None, /, *fields: str, **sizes: Array) -> dict[str, Array]:
    """As `log_of`, for inputs that count as a size: distance from what was seen matters."""
    return {f"log2_{name[4:]}": log for name, log in log_of(op, *fields, **sizes).items()}


def tails(*multiples: int, **sizes: Array) -> dict[str, Array]:
    """`log2(size rounded up to a multiple / size)`: what vectors or tiles compute in vain."""
    out = {}
    for multiple, (name, size) in itertools.product(multiples, sizes.items()):
        module, size = reals(size)
        counted = module.maximum(size, 1.0)
        rounded = module.ceil(counted / multiple) * multiple
        out[f"tail{multiple}_{name}"] = module.log2(rounded / counted)
    return out


def log2_ratio(amount: Array, of: Array) -> Array:
    """log2(amount / of), both kept from zero."""
    module, amount, _ = reals(amount, of)
    return module.log2(module.maximum(amount, 1e-9) / module.maximum(of, 1e-9))
