"""A run of training as events (simpy): checkpoints, failures, restarts, spares and repairs.

What closed forms are compared with. Gaps between failures are even quantiles of their law in a
random order, so that some thousand failures tell the mean to a fraction of a per cent.
"""

import dataclasses
from collections.abc import Generator, Iterator

import numpy as np
import simpy

from hybridperf.runs.goodput import FailureCycle, Spares

Steps = Generator[simpy.Event, None, bool]


def shuffled(rng: np.random.Generator, block: int) -> Iterator[float]:
    """Even quantiles of (0, 1) in random order, block after block."""
    while True:
        yield from rng.permutation((np.arange(block) + 0.5) / block).tolist()


@dataclasses.dataclass
class Run:
    """One run; `useful_share()` after so many failures."""

    cycle: FailureCycle
    seed: int = 0
    failures: int = 1500
    spares: Spares | None = None

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.env = simpy.Environment()
        self.gaps, self.fates, self.nodes, self.delays, self.repairs, self.visits = (
            shuffled(rng, block) for block in (self.failures, 97, 101, 53, 103, 51)
        )
        self.left_s = self.gap()
        self.stall_left_s = self.next_stall()
        self.planned_left_s = self.next_planned()
        self.failed = 0
        self.done_s = self.near_s = self.far_s = 0.0  # useful: done, safe in memory, in storage
        self.written = 0
        self.waiting: list[tuple[float, float]] = []  # (when it counts, useful) of writes
        count = int(self.spares.count) if self.spares else 0
        self.pool = simpy.Container(self.env, init=count) if self.spares else None

    def gap(self) -> float:
        return -float(np.log1p(-next(self.gaps))) / self.cycle.failures_per_s

    def next_stall(self) -> float:
        rate = self.cycle.stalls_per_s
        return -float(np.log1p(-next(self.delays))) / rate if rate else np.inf

    def next_planned(self) -> float:
        rate = self.cycle.planned_per_s
        return -float(np.log1p(-next(self.visits))) / rate if rate else np.inf

    def useful_share(self) -> float:
        self.env.process(self.job())
        self.env.run()
        return self.far_s / self.env.now

    def exposed(self, seconds: float) -> Steps:
        """Do something for some seconds; False where a failure comes first."""
        passed_s = min(seconds, self.left_s)
        yield self.env.timeout(passed_s)
        self.left_s -= passed_s
        if passed_s < seconds:
            self.left_s = self.gap()
            return False
        return True

    def job(self) -> Generator[simpy.Event, None, None]:
        alive = True
        while self.failed < self.failures:
            alive = (yield from self.training()) if alive else (yield from self.recovery())

    def training(self) -> Steps:
        """A segment and its checkpoint; stalls and evaluations lie somewhere in it."""
        c = self.cycle
        seconds = c.interval_s * (1.0 + c.evaluation_share) + c.checkpoint_s
        useful_s = c.interval_s
        while self.stall_left_s < useful_s:
            useful_s -= self.stall_left_s
            seconds += c.stall_s
            self.stall_left_s = self.next_stall()
        self.stall_left_s -= useful_s
        storage = (self.written + 1) % round(c.checkpoints_per_write) == 0
        seconds += c.write_s if storage else 0.0
        began_s = self.env.now
        alive = yield from self.exposed(seconds)
        self.planned_left_s -= self.env.now - began_s
        if not alive:
            self.stall_left_s = self.next_stall()  # without memory
            return False
        self.written += 1
        self.done_s += c.interval_s
        self.near_s = self.done_s
        if storage:
            self.waiting.append((self.env.now + c.lag_s, self.done_s))
            self.waiting = self.waiting[-3:]
        while self.planned_left_s <= 0:  # due: before going on
            self.planned_left_s += self.next_planned()
            yield self.env.timeout(c.planned_s)
            self.waiting = [(self.env.now, useful_s) for _, useful_s in self.waiting]
        return True

    def recovery(self) -> Steps:
        """After a failure: find it out, get a node, restart from the nearest copy."""
        c = self.cycle
        memory = True
        for due_s, useful_s in self.waiting:
            if due_s <= self.env.now:
                self.far_s = useful_s
        self.waiting = []
        while True:
            self.failed += 1
            memory = memory and next(self.fates) < c.survived
            yield self.env.timeout(c.detection_s)
            if self.spares and self.pool and next(self.nodes) < self.spares.broken:
                self.env.process(self.repair())
                yield self.pool.get(1)
            if (yield from self.exposed(c.memory_restart_s if memory else c.restart_s)):
                break
        if not memory:
            self.near_s = self.far_s
            self.written = 0
        self.done_s = self.near_s if memory else self.far_s
        return True

    def repair(self) -> Generator[simpy.Event, None, None]:
        assert self.spares
        assert self.pool
        # uniform, not exponential: Erlang's loss does not ask
        yield self.env.timeout(2.0 * next(self.repairs) * self.spares.repair_s)
        yield self.pool.put(1)
