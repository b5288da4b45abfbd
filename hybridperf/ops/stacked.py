"""Ops that differ in their sizes alone, as one op whose sizes are columns: what is asked of each is
then asked of all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hybridperf.ops.base import Op, columns


def alike(ops: Sequence[Op]) -> Iterator[tuple[np.ndarray, Op, str]]:
    """(places, the op whose `dimensions` are columns, its name in tables) of each stack of ops."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    words: dict[type[Op], list[str]] = {}
    for at, op in enumerate(ops):
        kind = type(op)
        if kind not in words:
            names = [field.name for field in dataclasses.fields(kind)]
            words[kind] = [name for name in names if name not in kind.dimensions()]
        same = (kind, columns(op)["op"], *(getattr(op, name) for name in words[kind]))
        groups.setdefault(same, []).append(at)
    for (kind, name, *_), places in groups.items():
        sizes: dict[str, Any] = {
            size: np.array([float(getattr(ops[at], size)) for at in places])
            for size in kind.dimensions()
        }
        yield np.array(places), dataclasses.replace(ops[places[0]], **sizes), name
