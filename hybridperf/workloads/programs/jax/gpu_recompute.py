"""What kernels of a compiled program compute again rather than write and read.

XLA fuses a producer into all that read it if that is less to do (`PriorityFusion`), however often
it is computed then: what a forward pass makes for the backward pass is mostly computed again there.
Here: something is not written if all kernels that read it are loops of the same place, and

    bytes that they must read instead + flops of computing it, as bytes at the device's balance
        <= bytes of writing it once and reading it by each
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hybridperf.ops import Gather, OpCall
from hybridperf.workloads.programs.fusion import Kernel, Piece, as_one, readers_of
from hybridperf.workloads.programs.jax.dataflow import Node


@dataclasses.dataclass(frozen=True)
class Settled:
    """A kernel, message or step of a loop of a compiled program."""

    node: Node
    calls: tuple[OpCall, ...]
    read: Mapping[int, float]  # bytes by storage
    written: Mapping[int, float]


class _Recipe(NamedTuple):
    """From what something is computed where it is not written."""

    reads: dict[int, float]  # bytes by storage
    work: dict[Piece, None]  # all that is to be done
    wanted: dict[int, tuple[Kernel, float]]  # of its reads, what nobody else asked to be written


def settled(
    kernels: Sequence[Kernel], kept: set[int], again: Callable[[Piece], bool], balance: float
) -> list[Settled]:
    """Kernels with what they read and write, when it is decided what is computed again.

    Args:
        kernels: each behind those that it reads from.
        kept: storages that somebody else reads.
        again: whether a piece is one that may be computed again.
        balance: flops that the device does while it moves a byte.
    """
    readers = readers_of(kernels)
    takes = {kernel: dict(kernel.read) for kernel in kernels}
    stored: dict[Kernel, dict[int, float]] = {kernel: {} for kernel in kernels}
    sizes: dict[int, float] = {}
    made: dict[int, _Recipe] = {}  # of each storage, from what it can be computed
    for kernel in kernels:
        for piece in kernel.pieces:
            recipe = _recipe(piece, made) if piece.elements and again(piece) else None
            for one, size in piece.written.items():
                others, sizes[one] = readers.get(one, set()) - {kernel}, size
                whole = _Recipe({one: size}, {}, {})
                if one in kept or not kernel.elements:
                    stored[kernel][one], made[one] = size, whole
                elif not others:
                    # nobody needs it so far; who computes something again may
                    made[one] = recipe or _Recipe({one: size}, {}, {one: (kernel, size)})
                elif recipe is None or not _better(
                    one, size, recipe, others, kernel, takes, balance
                ):
                    stored[kernel][one], made[one] = size, whole
                else:
                    made[one] = recipe
                    for source, (owner, bytes_) in recipe.wanted.items():
                        stored[owner][source] = bytes_
                    for other in others:
                        share = takes[other].pop(one, size) / size
                        for source, bytes_ in recipe.reads.items():
                            known = takes[other].get(source, 0.0)
                            takes[other][source] = max(known, bytes_ * share)
                            readers.setdefault(source, set()).add(other)
    return [
        _one(kernel, stored[kernel], made, sizes)
        for kernel in kernels if stored[kernel] or not kernel.elements
    ]  # fmt: skip


def _recipe(piece: Piece, made: Mapping[int, _Recipe]) -> _Recipe:
    """Of what a piece makes."""
    found = _Recipe({}, {piece: None}, {})
    for one, size in piece.read.items():
        for source, bytes_ in made[one].reads.items() if one in made else ((one, size),):
            # a part of what is written is read as that part
            bytes_ = min(bytes_, size) if source == one else bytes_
            found.reads[source] = max(found.reads.get(source, 0.0), bytes_)
        if one in made:
            found.work.update(made[one].work)
            found.wanted.update(made[one].wanted)
    return found


def _better(
    storage: int, size: float, recipe: _Recipe, others: set[Kernel], kernel: Kernel,
    takes: Mapping[Kernel, Mapping[int, float]], balance: float,
) -> bool:  # fmt: skip
    """Whether all other kernels rather compute it: bytes, and flops as bytes of the device."""
    if any(one.place != kernel.place or not one.elements for one in others):
        return False
    works = [call.op.work() for piece in recipe.work for call in piece.calls]
    flops = sum(work.flops + work.transcendentals for work in works)
    parts = {one: takes[one].get(storage, size) for one in others}
    more = sum(
        part / size * bytes_ for one, part in parts.items()
        for source, bytes_ in recipe.reads.items() if source not in takes[one]
    )  # fmt: skip
    more += sum(bytes_ for _, bytes_ in recipe.wanted.values())
    read = sum(parts.values())
    return more + read / size * flops / balance <= size + read


def _one(
    kernel: Kernel, stored: Mapping[int, float], made: Mapping[int, _Recipe],
    sizes: Mapping[int, float],
) -> Settled:  # fmt: skip
    """A kernel as it runs: what leads to what it writes, and what it computes again for that."""
    inside, pieces, wanted = kernel.written, list[Piece](), set(stored)
    for piece in reversed(kernel.pieces):
        if not wanted.isdisjoint(piece.written) or not kernel.elements:
            pieces.insert(0, piece)
            wanted |= set(piece.read)
    reads: dict[int, float] = {}
    again: dict[Piece, float] = {}
    for piece in pieces:
        for one, size in piece.read.items():
            if one in inside:
                continue
            recipe = made.get(one) or _Recipe({one: size}, {}, {})
            share = min(size / sizes.get(one, size), 1.0) if size else 0.0
            for source, bytes_ in recipe.reads.items():
                reads[source] = max(reads.get(source, 0.0), bytes_ * share)
            again |= {part: max(again.get(part, 0.0), share) for part in recipe.work}
    node, calls = kernel.last.what, kernel.last.calls
    alone = len(kernel.pieces) == 1 and (not again or isinstance(calls[0].op, Gather))
    if kernel.elements and not alone:
        less = dataclasses.replace(kernel, pieces=pieces)
        calls = (as_one(less, sum(reads.values()), sum(stored.values()), [*again.items()]),)
        node = pieces[-1].what
    return Settled(node, calls, reads, stored)
