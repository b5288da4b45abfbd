"""Loops that follow one another as one kernel: what a compiler for GPUs makes of a program's ops.

A compiler makes every elementwise op, cast, copy, norm, softmax, lookup of rows and sum a loop, and
fuses a loop into one that it reads from where both run over equally many elements, or one sums what
the other makes. Products, convolutions, attention and whatever has an order of its own (sorts,
scatters) stay kernels of their libraries. Here:

    a piece joins the kernel that made one of its inputs, if it runs in the same place over as many
    elements, or over as many as sums of that kernel are, and nothing outside of it lies between
    bytes read     = what others made, each once
    bytes written  = what others read

What differs between compilers is in the pieces that they make: `torch/inductor.py` for Inductor,
`jax/gpu_fusion.py` for XLA.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridperf.ops import Fused, OpCall


@dataclass(frozen=True, eq=False)
class Piece:
    """One op, as fusion sees it; storages are numbers, 0 of what is not known."""

    what: Any  # of the program; a kernel stands for its last one's
    calls: tuple[OpCall, ...]
    read: Mapping[int, float]  # bytes by storage
    written: Mapping[int, float]
    dtype: str
    elements: int = 0  # over which it loops; 0: no loop that is compiled
    place: Hashable = ""  # those of different places (passes, loops of a program) stay apart
    sums: frozenset[int] = frozenset()  # sizes of what it sums, over which its kernel may go on
    # of a sum, how it cuts what it runs over: a kernel cuts one way; None: any
    cut: Hashable = None
    ends: bool = False  # what it makes is complete only when its kernel has ended
    alone: bool = False  # a loop that is no part of another's kernel


@dataclass(eq=False)
class Kernel:
    """A kernel as the pieces of the program that were fused into it."""

    place: Hashable
    elements: int
    pieces: list[Piece] = field(default_factory=list)
    readers: dict[Kernel, None] = field(default_factory=dict)  # of what it makes
    sources: dict[Kernel, None] = field(default_factory=dict)  # of what it reads
    sums: set[int] = field(default_factory=set)
    cuts: set[Hashable] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)  # storages
    alone: bool = False

    @property
    def last(self) -> Piece:
        return self.pieces[-1]

    @property
    def written(self) -> dict[int, float]:
        """Bytes of all that it makes, by storage."""
        return {one: size for piece in self.pieces for one, size in piece.written.items()}

    @property
    def read(self) -> dict[int, float]:
        """Bytes of what it takes of others, each once, by storage."""
        made, found = self.written, dict[int, float]()
        for piece in self.pieces:
            for one, size in piece.read.items():
                if one not in made:
                    found[one] = max(found.get(one, 0.0), size)
        return found

    def add(self, piece: Piece) -> None:
        """One more piece at the end."""
        self.pieces.append(piece)
        self.sums |= piece.sums
        self.cuts |= {piece.cut} - {None}
        self.ended |= set(piece.written) if piece.ends else set()


def joined(pieces: Sequence[Piece], *, wide: bool = False) -> list[Kernel]:
    """The kernels of a program, in an order in which each comes after those that it reads from.

    Args:
        pieces: in the order of the program.
        wide: whether loops become one kernel, too, that read the same, all of it, or that meet in
            a piece.
    """
    writer: dict[int, Kernel] = {}  # of each storage
    reader: dict[int, Kernel] = {}  # the last loop that read it
    kernels: dict[Kernel, None] = {}
    for piece in pieces:
        made_by = [writer[one] for one in piece.read if one in writer]
        homes = [*reversed(made_by)]
        if wide:
            whole = (one for one, size in piece.read.items() if size >= piece.elements)
            homes += [reader[one] for one in whole if one in reader]
        homes = [] if piece.alone else homes
        home = next((one for one in homes if _takes(one, piece, made_by)), None)
        if home is None:
            home = Kernel(piece.place, piece.elements, alone=piece.alone)
            kernels[home] = None
        home.add(piece)
        for one in made_by:
            if one is not home:
                one.readers[home] = home.sources[one] = None
        writer |= {one: home for one in piece.written if one}
        if piece.elements:
            reader |= {one: home for one in piece.read if one}
        for other in dict.fromkeys(made_by) if wide else ():
            if piece.elements == home.elements and _meets(home, other):
                _merge(home, other, writer, reader)
                del kernels[other]
    place = {piece: at for at, piece in enumerate(pieces)}
    for kernel in kernels:
        kernel.pieces.sort(key=place.__getitem__)
    return _in_order([*kernels], place)


def _takes(kernel: Kernel, piece: Piece, made_by: Collection[Kernel]) -> bool:
    """Whether a piece can join a kernel."""
    alike = piece.elements == kernel.elements or piece.elements in kernel.sums
    if not (piece.elements and alike) or kernel.place != piece.place or kernel.alone:
        return False
    if len(kernel.cuts | ({piece.cut} - {None})) > 1 or not kernel.ended.isdisjoint(piece.read):
        return False
    return not _leads(kernel.readers, {one for one in made_by if one is not kernel}, kernel)


def _meets(home: Kernel, other: Kernel) -> bool:
    """Whether two kernels that meet in a piece can be one."""
    if other is home or other.elements != home.elements or other.place != home.place:
        return False
    if home.alone or other.alone or not home.elements or len(home.cuts | other.cuts) > 1:
        return False
    if not (home.ended.isdisjoint(other.read) and other.ended.isdisjoint(home.read)):
        return False
    between = [one for one in other.readers if one is not home]
    return not _leads(between, {home}, other) and not _leads(home.readers, {other}, home)


def _leads(begin: Iterable[Kernel], others: set[Kernel], kernel: Kernel) -> bool:
    """Whether any of some kernels waits for one that reads from `kernel`, through any between: the
    newest are followed first, since who asks is new, too.
    """
    seen, ahead = {kernel, *begin}, [*begin] if others else []
    while ahead:
        at = ahead.pop()
        if at in others:
            return True
        new = [one for one in at.readers if one not in seen]
        seen.update(new)
        ahead += new
    return False


def _merge(
    home: Kernel, other: Kernel, writer: dict[int, Kernel], reader: dict[int, Kernel]
) -> None:
    """Two kernels become the first of them."""
    writer |= {one: home for one in other.written if writer.get(one) is other}
    for piece in other.pieces:
        reader |= {one: home for one in piece.read if reader.get(one) is other}
    for one in other.readers:
        del one.sources[other]
        if one is not home:
            one.sources[home] = home.readers[one] = None
    for one in other.sources:
        del one.readers[other]
        if one is not home:
            one.readers[home] = home.sources[one] = None
    for piece in other.pieces:
        home.add(piece)


def _in_order(kernels: Sequence[Kernel], place: Mapping[Piece, int]) -> list[Kernel]:
    """Each where its last piece stood, or later: behind what it reads from."""
    missing = {kernel: len(kernel.sources) for kernel in kernels}
    by_place = {place[kernel.last]: kernel for kernel in kernels}
    ready = [at for at, kernel in by_place.items() if not missing[kernel]]
    heapq.heapify(ready)
    found: list[Kernel] = []
    while ready:
        found.append(by_place[heapq.heappop(ready)])
        for one in found[-1].readers:
            missing[one] -= 1
            if not missing[one]:
                heapq.heappush(ready, place[one.last])
    assert len(found) == len(kernels), "kernels wait for each other"
    return found


def readers_of(kernels: Sequence[Kernel]) -> dict[int, set[Kernel]]:
    """By storage, which kernels read it."""
    found: dict[int, set[Kernel]] = {}
    for kernel in kernels:
        for piece in kernel.pieces:
            for one in piece.read:
                found.setdefault(one, set()).add(kernel)
    return found


def as_one(
    kernel: Kernel, read_bytes: float, written_bytes: float,
    more: Sequence[tuple[Piece, float]] = (),
) -> OpCall:  # fmt: skip
    """One loop that does what all pieces of a kernel do, and shares of what `more` do."""
    shares = [*((piece, 1.0) for piece in kernel.pieces), *more]
    works = [(call.op.work(), share) for piece, share in shares for call in piece.calls]
    loop = Fused(
        kernel.last.dtype, elements=float(kernel.elements),
        flops=float(sum(work.flops * share for work, share in works)),
        transcendentals=float(sum(work.transcendentals * share for work, share in works)),
        bytes_read=read_bytes, bytes_written=written_bytes,
    )  # fmt: skip
    return OpCall(loop, times=kernel.last.calls[0].times)
