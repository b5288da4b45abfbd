"""Inputs of learned corrections, made of an op's sizes: logs, ratios, and what tiles leave over."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hybridperf.io.namespace import Array, reals


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
