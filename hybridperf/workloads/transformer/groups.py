"""Which ranks talk to each other in a collective, and how many nodes they lie on.

Ranks are counted in mixed radix: the dimensions of `order`, fastest first, are its digits. A group
is all values of some digits with the others fixed. Nodes hold `gpus_per_node` neighbouring ranks.
So a dimension of stride st (the product of the faster sizes) and size n has clip(gpus_per_node /
st, 1, n) of its ranks on one node where sizes divide each other. Where they do not, groups differ:
the one on the most nodes is meant, found by counting.

Expert parallelism has no digit of its own: its ranks are the fastest of those that share the
tokens' layers (cp and dp; tp too where experts are not cut), and the rest of these hold the same
experts (`expert_data`). In the same way `shard` are the fastest of the data ranks and `replica` the
rest.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.model.calls import CollectiveCall
from hybridperf.workloads.transformer.passes import Part, PassStep

DIMENSIONS = ("tp", "cp", "pp", "dp", "ep", "data", "expert_data", "shard", "replica")


class Span(NamedTuple):
    """Ranks of a collective and where they lie."""

    ranks: int
    nodes: int
    ranks_per_node: int = 0  # most that lie on one; 0: not asked

    def step(
        self, collective: str, size: float, part: Part, name: str,
        words: tuple[tuple[str, str], ...] = (),
    ) -> PassStep:  # fmt: skip
        """A collective among them; `size` in bytes, and `words`, as in tables of collectives."""
        call = CollectiveCall(collective, float(size), self.ranks, self.nodes, words=words)
        return PassStep(call, part, name)


def span(layout: Any, dim: str, gpus_per_node: int, order: tuple[str, ...]) -> Span:
    """The span of one dimension's groups of a `Layout`, or of `Layouts` that hold one."""
    if dim not in DIMENSIONS:
        raise unknown("dimension", dim, DIMENSIONS, f"known are {', '.join(DIMENSIONS)}")
    if gpus_per_node < 1:
        raise InputError(f"gpus_per_node must be 1 or more, got {gpus_per_node}")
    sizes = int(layout.tp), int(layout.cp), int(layout.dp), int(layout.pp)
    # of the groups that share a digit with others; whether experts are cut unlike other layers
    ranks, apart = 0, False
    if dim in ("shard", "replica"):
        ranks = int(layout.shard_ranks or layout.data_ranks)
    elif dim in ("ep", "expert_data"):
        ranks, apart = int(layout.ep), layout.expert_tp not in (None, layout.tp)
    return _span(dim, order, sizes, ranks, apart, gpus_per_node)


@functools.lru_cache(maxsize=65536)
def _span(
    dim: str, order: tuple[str, ...], sizes: tuple[int, ...], ranks: int, apart: bool,
    gpus_per_node: int,
) -> Span:  # fmt: skip
    size = dict(zip(("tp", "cp", "dp", "pp"), sizes, strict=True))
    digits = tuple((name, size[name]) for name in order if name != "ep")
    return _counted(_runs(_members(dim, digits, ranks, apart)), gpus_per_node)


def _members(
    dim: str, digits: tuple[tuple[str, int], ...], ranks: int, apart: bool
) -> tuple[tuple[int, bool], ...]:
    """Digits (size, whether the group has it), fastest first; a shared digit is cut in two."""
    if dim in ("tp", "cp", "pp", "dp"):
        return tuple((size, name == dim) for name, size in digits)
    data = ("cp", "dp")
    if dim == "data":
        return tuple((size, name in data) for name, size in digits)
    if dim in ("shard", "replica"):
        return _cut(digits, data, ranks, dim == "shard")
    return _cut(digits, ("tp", *data) if apart else data, ranks, dim == "ep")


def _cut(
    digits: tuple[tuple[str, int], ...], of: tuple[str, ...], ranks: int, fast: bool
) -> tuple[tuple[int, bool], ...]:
    """Digits of the fastest `ranks` of some dimensions (`fast`), or of the rest of them."""
    left, cut = ranks, []
    for name, size in digits:
        inner = math.gcd(left, size) if name in of else 1
        left //= inner
        cut += [(inner, fast), (size // inner, name in of and not fast)]
    if left != 1:
        raise InputError(
            f"a group of {ranks} ranks must divide the {' x '.join(of)} ranks, got"
            f" {', '.join(f'{n} {s}' for n, s in digits)}"
        )
    return tuple(cut)


def _runs(digits: tuple[tuple[int, bool], ...]) -> tuple[tuple[int, bool], ...]:
    """The same with neighbouring digits of one kind as one: thousands of divisions have few."""
    found: list[tuple[int, bool]] = []
    for size, member in digits:
        if found and found[-1][1] == member:
            found[-1] = (found[-1][0] * size, member)
        elif size > 1:
            found.append((size, member))
    return tuple(found)


@functools.lru_cache(maxsize=65536)
def _counted(digits: tuple[tuple[int, bool], ...], gpus_per_node: int) -> Span:
    ranks, per_node, stride, aligned = 1, 1, 1, True
    for size, member in digits:
        if member:
            ranks *= size
            per_node *= min(max(gpus_per_node // stride, 1), size)
        stride *= size
        aligned &= stride % gpus_per_node == 0 or gpus_per_node % stride == 0
    if aligned:
        return Span(ranks, ranks // per_node, per_node)
    return _enumerated(digits, ranks, gpus_per_node)


def _enumerated(digits: tuple[tuple[int, bool], ...], ranks: int, gpus_per_node: int) -> Span:
    """Every group is the first one, shifted: only what a shift leaves of a node differs."""
    members, shifts, stride = np.zeros(1, np.int64), np.zeros(1, np.int64), 1
    for size, member in digits:
        if member:
            members = (stride * np.arange(size)[:, None] + members).reshape(-1)
        else:  # multiples of a stride repeat after a node's length
            shifts = np.unique(
                (stride * np.arange(min(size, gpus_per_node)) + shifts[:, None]) % gpus_per_node
            )
        stride *= size
    groups = (members + shifts[:, None]) // gpus_per_node  # nodes [groups, ranks]
    starts = np.ones(groups.shape, bool)
    starts[:, 1:] = groups[:, 1:] != groups[:, :-1]
    runs = np.diff(np.append(np.flatnonzero(starts), starts.size))
    return Span(ranks, int(starts.sum(1).max()), int(runs.max()))
