"""Memory that a step of PyTorch on a CPU finds without pages: what glibc gave back to the operating
system after an earlier one.

A page that is touched for the first time costs a fault. glibc's `malloc` keeps what is freed,
except (malloc(3), mallopt(3) and the comments of malloc.c):

    blocks of the mmap threshold and more   come from the system and go back to it, each time
    the top of the heap                     goes back when more than the trim threshold is free

Both thresholds move: when such a block is freed, the first becomes its size (at most 32 MiB) and
the second twice that. Blocks inside the heap are reused by the smallest that fits, neighbours
merged. `Heap` follows the allocations of a step in their order, and counts the bytes touched anew.
"""

from __future__ import annotations

import bisect

_MMAP_BYTES, _MOST_MMAP_BYTES = 2**17, 2**25  # glibc's default threshold, and the most it becomes
_TRIM_FACTOR = 2


class Heap:
    """A process's heap; addresses from 0."""

    def __init__(self) -> None:
        self.fresh_bytes = 0.0  # touched for the first time so far
        self._mmap_bytes, self._trim_bytes = float(_MMAP_BYTES), float(_MMAP_BYTES)
        self._top = self._resident = 0.0  # end of what is used, of what has pages
        self._free: list[tuple[float, float]] = []  # (begin, end) in order, none of them adjacent
        self._used: dict[int, tuple[float, float]] = {}  # by number; an end below 0: of its own

    def allocate(self, number: int, size: float) -> None:
        """A block, touched whole."""
        if size >= self._mmap_bytes:
            self.fresh_bytes += size
            self._used[number] = (size, -1.0)
            return
        fitting = [(end - begin, begin, end) for begin, end in self._free if end - begin >= size]
        if fitting:
            _, begin, end = min(fitting)
            self._free.remove((begin, end))
            if end - begin > size:
                bisect.insort(self._free, (begin + size, end))
        else:
            begin, self._top = self._top, self._top + size
            self.fresh_bytes += max(self._top - max(self._resident, begin), 0.0)
            self._resident = max(self._resident, self._top)
        self._used[number] = (begin, begin + size)

    def release(self, number: int) -> None:
        """Give a block back."""
        begin, end = self._used.pop(number)
        if end < 0:
            if _MMAP_BYTES <= begin <= _MOST_MMAP_BYTES:
                self._mmap_bytes = max(self._mmap_bytes, begin)
                self._trim_bytes = _TRIM_FACTOR * self._mmap_bytes
            return
        at = bisect.bisect(self._free, (begin, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == begin:
            begin = self._free.pop(at - 1)[0]
        if end < self._top:
            bisect.insort(self._free, (begin, end))
            return
        self._top = begin
        if self._resident - self._top > self._trim_bytes:
            self._resident = self._top
