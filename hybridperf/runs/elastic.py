"""Workers that come and go (spot machines, faults): elastic or stopping, and how many pay.

Each of n workers lasts `lifetime_s` in the mean, and another takes its place after `away_s`. An
elastic job goes on with those that are there and pauses `change_s` at each change:

    workers there        n / (1 + away / lifetime)           two states of each, independent
    share of pauses      1 / (1 + 2 there change / lifetime)    one leaving and one coming each time

A job that stops for each is `goodput` with n / lifetime failures a second that waits for the
replacement. More workers are faster until what changes cost outgrows them: for the stopping job
near n = lifetime / what a failure costs. Faults of chips (G-SEPM's question) and revoked machines
differ in `lifetime_s` alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pandas as pd

from hybridperf.io import InputError
from hybridperf.io.namespace import Array
from hybridperf.runs.goodput import FailureCycle, best, goodput, young_interval_s

MOST_WORKERS = 10_000_000  # workers that are looked at


@dataclasses.dataclass(frozen=True)
class Workers:
    """What workers of a job are like.

    Attributes:
        lifetime_s: of one, from its start until it is taken or breaks.
        away_s: until another takes its place.
        change_s: for which an elastic job pauses when one comes or goes.
        checkpoint_s: for which a stopping job stands still at each checkpoint.
        restart_s: of a stopping job, once its workers are there.
        scaling: exponent of speed over workers, 1: each adds as much as the first.
        price: of a worker over one that is not taken away.
    """

    lifetime_s: float
    away_s: float = 600.0
    change_s: float = 30.0
    checkpoint_s: float = 10.0
    restart_s: float = 120.0
    scaling: float = 1.0
    price: float = 1.0

    def there(self, workers: Array) -> Array:
        """Of so many, who are there in the mean."""
        return workers / (1.0 + self.away_s / self.lifetime_s)


def elastic_speed(workers: Array, like: Workers) -> Array:
    """Speed of an elastic job in workers that never leave."""
    there = like.there(workers)
    return there**like.scaling / (1.0 + 2.0 * there * like.change_s / like.lifetime_s)


def rigid_speed(workers: Array, like: Workers) -> Array:
    """Speed of a job that stops for each worker that leaves, at Young's interval."""
    rate = workers / like.lifetime_s
    interval_s = young_interval_s(rate, like.checkpoint_s)
    cycle = FailureCycle(rate, interval_s, like.checkpoint_s, like.away_s, like.restart_s)
    return workers**like.scaling * goodput(cycle).useful


@dataclasses.dataclass(frozen=True)
class Elastic:
    """Numbers of workers compared; `table`: workers, elastic, rigid (shares of ideal), speedup,
    cost_share (money of the elastic job over that of one worker that stays).
    """

    table: pd.DataFrame
    fastest: int
    fastest_rigid: int
    lifetime_s: float
    away_s: float


def elastic(like: Workers, counts: list[int]) -> Elastic:
    """Compare numbers of workers, and find the fastest by gradient.

    Raises:
        InputError: a lifetime, a price or a number that cannot be.
    """
    for name, value in dataclasses.asdict(like).items():
        above = name in ("lifetime_s", "checkpoint_s", "scaling", "price")
        if not (value > 0 if above else value >= 0) or not math.isfinite(value):
            least = "above 0" if above else "of 0 or more"
            raise InputError(f"expected {name} {least}, got {value:g}; mend it")
    if like.scaling > 1:
        raise InputError(f"expected scaling of at most 1, got {like.scaling:g}")
    if not counts or min(counts) < 1:
        raise InputError("expected numbers of workers of 1 or more")
    rows = []
    for count in counts:
        speed, rigid = (float(of(float(count), like)) for of in (elastic_speed, rigid_speed))
        paid = like.there(count) * like.price  # who is away is not paid
        rows.append({"workers": count, "elastic": speed / count, "rigid": rigid / count,
                     "speedup": speed, "cost_share": paid / speed})  # fmt: skip
    return Elastic(
        pd.DataFrame(rows), fastest(elastic_speed, like), fastest(rigid_speed, like),
        like.lifetime_s, like.away_s,
    )  # fmt: skip


def fastest(speed: Callable[[Array, Workers], Array], like: Workers) -> int:
    """How many workers are fastest, by gradient from several starts; the most that is looked at
    where more are always faster, however flat it is there.
    """

    def of(_: None, free: dict[str, Array]) -> Array:
        return speed(free["n"], like)

    bounds = {"n": (1.0, float(MOST_WORKERS))}
    climbed = [best(of, None, {"n": start}, bounds)["n"] for start in (4.0, 1e3, 1e5)]
    found = max(*climbed, float(MOST_WORKERS), key=lambda n: float(speed(n, like)))
    low = min(int(found), MOST_WORKERS - 1)
    return max((low, low + 1), key=lambda n: float(speed(float(n), like)))
