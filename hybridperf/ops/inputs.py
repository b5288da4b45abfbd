"""Inputs of learned corrections, made of an op's sizes: logs, ratios, and what tiles leave over.

An op's own inputs stand in its file, registered for its class; what is registered for none has the
default that each function here names.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

from hybridperf.io.namespace import Array, reals
from hybridperf.ops.base import Op


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What an op's inputs may know of a GPU; no ratios of rates: few devices would be memorised."""

    sm_count: float  # multiprocessors: blocks that run at once, one each
    l2_bytes: float


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Rows of a dense matrix that an op gathers by an index, for a form that knows a cache."""

    again_bytes: Any  # of rows that were gathered before: a cache may hold them
    first_bytes: Any  # of the different rows
    beside_bytes: Any  # dense, in order
    index_bytes: Any
    columns: Any  # numbers of a row
    skew: Any  # standard deviation of the log of how often rows are gathered
    longest: Any  # gathers that come one after the other
    row_bytes: Any


@functools.singledispatch
def shape_inputs(op: Op) -> dict[str, Any]:
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
    return {
        **log_sizes_base2(op, *op.dimensions(), **counts),
        "log2_bytes_per_l2": log2_ratio(work.bytes, gpu.l2_bytes),
    }


@functools.singledispatch
def gathered(op: Op) -> Gathered | None:
    """What it gathers, where `GatherRoofline` prices its GPU kernels; None for other ops."""
    del op
    return None


def log2_above_zero(size: Array) -> Array:
    """`log2(1 + size)`: zero for nothing."""
    module, size = reals(size)
    return module.log2(1.0 + size)


def log_sizes(op: Any = None, /, *fields: str, **sizes: Array) -> dict[str, Array]:
    """`log2(1 + size)` of some fields of an op and of further sizes, by name."""
    return _logs("log_", {name: getattr(op, name) for name in fields} | sizes)


def log_sizes_base2(op: Any = None, /, *fields: str, **sizes: Array) -> dict[str, Array]:
    """As `log_sizes`, for inputs that count as a size: distance from what was seen matters."""
    return _logs("log2_", {name: getattr(op, name) for name in fields} | sizes)


def _logs(prefix: str, sizes: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}{name}": log2_above_zero(size) for name, size in sizes.items()}


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
