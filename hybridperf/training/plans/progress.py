"""What a long plan says while it works."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

EVERY_S = 3.0


@dataclasses.dataclass
class Progress:
    """What a long plan says while it works: nothing in its first seconds, then a line every few,
    counts of what is done, handed on to `say`; None: to nobody."""

    say: Callable[[str], None] | None = None
    began_s: float = dataclasses.field(default_factory=time.perf_counter)
    last_s: float = dataclasses.field(default_factory=time.perf_counter)

    def __getstate__(self) -> dict[str, float]:
        """Without whom it tells: a worker says nothing."""
        return {"began_s": self.began_s, "last_s": self.last_s}

    def __call__(self, what: str, done: int, of: int) -> None:
        """So many of so many are done."""
        now_s = time.perf_counter()
        if self.say is not None and now_s - self.last_s >= EVERY_S:
            self.last_s = now_s
            self.say(f"{now_s - self.began_s:.0f} s: {what}, {done:,} of {of:,}")
