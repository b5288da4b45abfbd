"""The cache of prefixes of one engine: blocks of tokens that were computed before, by tier.

Streams of tokens that grow and branch (a system's prompt, the sessions that begin with it, agents
that begin with a session's context) are runs of blocks, each behind the blocks of what it branched
from. Least recently used blocks go first, of a request the last ones before its first (vLLM's
design of prefix caching), so what is left of a run is its beginning, and one number says it.

The GPU's blocks that running sequences hold stay; others are there until those need their place.
Tiers below (host, SSD) hold the blocks that were used last, whichever tier they were read from:
what an engine computes is written through (`write_through` of SGLang's HiCache).

A chain is (run, its first block, its end) from the root on; counts of blocks are from the root.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

Chain = tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(frozen=True)
class Tier:
    """What lies below a GPU's memory, for one engine."""

    name: str
    tokens: float  # that it holds
    tokens_per_s: float  # read from it, one request after the other


class Blocks:
    """Blocks by run, the least recently used run first; `pinned` ones [uses, blocks] do not go."""

    def __init__(self, room: float) -> None:
        self.room, self.used, self.pinned_blocks = room, 0, 0
        self.runs: dict[int, int] = {}
        self.pinned: dict[int, list[int]] = {}

    def found(self, chain: Chain, most: int) -> tuple[int, int]:
        """Blocks of a chain that are here, up to `most`, and those of them that are pinned."""
        pinned = 0
        for run, first, end in chain:
            held = self.runs.get(run, 0)
            uses = None if held else self.pinned.get(run)
            if uses:
                held = uses[1]
            wanted = end if end < most else most
            if uses:
                pinned += min(held, wanted - first)
            if first + held < wanted:
                return first + held, pinned
            if wanted == most:
                return most, pinned
        return most, pinned

    def keep(self, chain: Chain, count: int) -> None:
        """A chain's first blocks are the last used, and what no longer fits goes."""
        for run, first, end in reversed(chain):
            if (blocks := (end if end < count else count) - first) > 0:
                held = self.runs.pop(run, 0)
                self.runs[run] = max(blocks, held)
                self.used += self.runs[run] - held
        if self.used > self.room:
            self.shrink(self.room)

    def pin(self, chain: Chain) -> None:
        """A running sequence uses a chain."""
        for run, _, _ in chain:
            if uses := self.pinned.get(run):
                uses[0] += 1
                continue
            held = self.runs.pop(run, 0)
            self.pinned[run] = [1, held]
            self.used -= held
            self.pinned_blocks += held

    def release(self, chain: Chain, count: int) -> None:
        """It uses it no longer, and leaves its first `count` blocks here."""
        for run, first, end in reversed(chain):
            uses = self.pinned[run]
            uses[0] -= 1
            more = (end if end < count else count) - first - uses[1]
            if more > 0:
                uses[1] += more
                self.pinned_blocks += more
            if not uses[0]:
                del self.pinned[run]
                self.pinned_blocks -= uses[1]
                if uses[1]:
                    self.runs[run] = uses[1]
                    self.used += uses[1]

    def shrink(self, room: float) -> None:
        """Least recently used blocks go until so many are left that are not pinned."""
        while (over := self.used - room) > 0 and self.runs:
            run = next(iter(self.runs))
            held = self.runs[run]
            if held <= over:
                del self.runs[run]
                self.used -= held
            else:
                gone = -int(-over // 1)
                self.runs[run] -= gone
                self.used -= gone


class PrefixCache:
    """Of one engine: the GPU's blocks and the tiers below."""

    def __init__(self, block: int, tiers: Sequence[Tier]) -> None:
        self.gpu = Blocks(math.inf)  # its engine says what room there is
        self.below = [Blocks(one.tokens // block) for one in tiers]
        self.block_s = [block / one.tokens_per_s for one in tiers]  # of a block read
        self.nothing, self.read_until_s = [0] * len(tiers), 0.0

    def found(self, chain: Chain, most: int) -> tuple[list[int], int]:
        """Blocks that each tier adds to those above it, the GPU first, and those of that one that
        running sequences use.
        """
        so_far, pinned = self.gpu.found(chain, most)
        known = [so_far]
        if so_far == most:
            return known + self.nothing, pinned
        for tier in self.below:
            known.append(max(tier.found(chain, most)[0] - so_far, 0))
            so_far += known[-1]
        return known, pinned

    def read_s(self, found: Sequence[int], now_s: float) -> float:
        """When blocks from the tiers below will be there, read behind those of other requests."""
        seconds = sum(count * each for count, each in zip(found[1:], self.block_s, strict=True))
        self.read_until_s = max(self.read_until_s, now_s) + seconds
        return self.read_until_s

    def leave(self, chain: Chain, count: int) -> None:
        """A sequence ends: its first blocks stay, in all tiers."""
        self.gpu.release(chain, count)
        for tier in self.below if count else ():
            tier.keep(chain, count)
