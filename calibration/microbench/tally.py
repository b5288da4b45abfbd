"""Measurements done and left, and the seconds that the next one may take of a time budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hybridperf.io.progress import Progress
from hybridperf_calibration.microbench.store import Row


@dataclass
class Tally:
    """What a run has done of its cases x passes.

    What is left of the budget is shared evenly among the measurements left. Making inputs and
    compiling are not repeats: what they took on average is set aside for the cases to come.
    """

    what: str  # is counted, such as "measurements"
    resumed: int  # found in the store
    todo: int  # by this run; less than the rest where other processes measure later passes
    total: int
    shortest_cap_s: float
    longest_cap_s: float
    budget_s: float | None = None
    dropped: str = ""  # an incomplete line that an earlier run left behind, see RowStore
    measured: int = 0  # by this run, failed ones included
    failed: int = 0  # of those measured now; the row's "error" says why
    repeating_s: float = 0.0
    start_s: float = field(default_factory=time.perf_counter)

    @property
    def complete(self) -> bool:
        """Whether all was measured that this run was to measure; else the time was up."""
        return self.measured == self.todo

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.start_s

    def cap_s(self) -> float:
        """Seconds of the next case's repeats; 0: the time is up."""
        if self.budget_s is None:
            return self.longest_cap_s
        elapsed_s = self.elapsed_s
        if elapsed_s >= self.budget_s:
            return 0.0
        overhead_s = (elapsed_s - self.repeating_s) / max(self.measured, 1)
        share_s = (self.budget_s - elapsed_s) / (self.todo - self.measured) - overhead_s
        return min(max(share_s, self.shortest_cap_s), self.longest_cap_s)

    def add(self, row: Row, repeating_s: float) -> None:
        """Count one case more, whose repeats took so long."""
        self.measured += 1
        self.failed += "error" in row
        self.repeating_s += repeating_s

    def progress(self, doing: str = "") -> Progress:
        """How far it is: an earlier run's measurements count, but tell nothing of the time left."""
        left_s = self.left_s() if self.measured else None
        return Progress(self.resumed + self.measured, self.total, doing, left_s)

    def left_s(self) -> float:
        """Seconds that the rest takes if it goes on like this, at most those of the budget."""
        left_s = self.elapsed_s / self.measured * (self.todo - self.measured)
        return (
            left_s if self.budget_s is None else min(left_s, max(self.budget_s - self.elapsed_s, 0))
        )

    def sentence(self) -> str:
        """The report for a reader."""
        done = self.measured + self.resumed
        share = f"{done} of {self.total} {self.what} done ({done / max(self.total, 1):.0%})"
        parts = [f"{share}, {self.measured} of them now"]
        if self.failed:
            parts.append(f"{self.failed} failed (their rows say why)")
        if self.dropped:
            parts.append("an incomplete last line of an earlier run was dropped and measured again")
        if not self.complete:
            parts.append("the time budget ran out: run the same command again to measure the rest")
        return "; ".join(parts) + "."
