"""Pools of unlike machines for one service at least cost.

Pool (Li et al., RIBBON, SC 2021): requests of unlike size come, first come first served, to the
first free instance of the quickest type; the pool counts as good enough if a share of the requests
ends within the limit. `cheapest` is exact for the arrivals it is given: pools by rising cost,
each simulated request by request, until one is good enough. A pool whose instances cannot take so
many requests in that time, the smallest first, is passed over unsimulated, and a simulation ends
when too many are late.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.fields.columns import read_small_table
from hybridperf.io import InputError
from hybridperf.serving.table import predict_serving


@dataclasses.dataclass(frozen=True)
class InstanceType:
    """A machine that can be rented."""

    name: str
    usd_per_hour: float
    fixed_s: float  # of every request: TTFT without its first token
    each_s: float  # and of each of its tokens: TPOT

    def seconds(self, size: np.ndarray) -> np.ndarray:
        return self.fixed_s + self.each_s * size


@dataclasses.dataclass(frozen=True)
class Pool:
    """So many instances of each type, and what it reaches."""

    counts: tuple[int, ...]
    usd_per_hour: float
    within: float  # share of the requests within the limit


def latencies(
    types: Sequence[InstanceType], counts: Sequence[int], arrival_s: np.ndarray, size: np.ndarray,
    limit_s: float = np.inf, late: float = np.inf,
) -> np.ndarray:  # fmt: skip
    """Seconds from each request's arrival to its end [N]; arrivals rise.

    Args:
        types: of instances.
        counts: of each type.
        arrival_s: [N]
        size: [N]
        limit_s: above which a request is late.
        late: requests that may be; from the next one on all are infinite.
    """
    takes = np.array([one.seconds(size) for one in types]).T.tolist()
    typical = [float(np.mean(one.seconds(size))) for one in types]
    kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
    idle = sorted((typical[kind], at) for at, kind in enumerate(kinds))  # the quickest first
    working: list[tuple[float, int]] = []
    found = np.full(len(size), np.inf)
    for request, now in enumerate(arrival_s.tolist()):
        while working and (working[0][0] <= now or not idle):
            free_s, at = heapq.heappop(working)
            now = max(now, free_s)
            heapq.heappush(idle, (typical[kinds[at]], at))
        _, at = heapq.heappop(idle)
        end_s = now + takes[request][kinds[at]]
        heapq.heappush(working, (end_s, at))
        found[request] = end_s - arrival_s[request]
        if found[request] > limit_s:
            late -= 1
            if late < 0:
                break
    return found


def cheapest(
    types: Sequence[InstanceType], arrival_s: np.ndarray, size: np.ndarray, limit_s: float,
    share: float = 0.99, most: int = 8,
) -> Pool:  # fmt: skip
    """The pool of least cost in which a share of the requests ends within a limit.

    Args:
        types: of instances.
        arrival_s: of requests, rising [N].
        size: of requests [N].
        limit_s: from arrival to end.
        share: of the requests that must be within it.
        most: instances of a type.

    Raises:
        InputError: no pool of so many is good enough.
    """
    span_s = max(float(arrival_s[-1] - arrival_s[0]), 1e-9) + limit_s
    each_s = [np.cumsum(np.sort(one.seconds(size))) for one in types]
    # requests that so many instances of a type end at most, were nothing ever idle
    taken = [
        np.searchsorted(so_far_s, span_s * np.arange(most + 1) + 1e-9, side="right")
        + np.arange(most + 1)
        for so_far_s in each_s
    ]
    alone_s = np.min([one.seconds(size) for one in types], axis=0)
    best, needed = float((alone_s <= limit_s).mean()), share * len(size)  # were nothing to wait for
    pools: Iterable[tuple[float, tuple[int, ...]]] = ()
    if best >= share:
        pools = _by_cost([one.usd_per_hour for one in types], most)
    late = len(size) - needed + 1e-9
    for cost, counts in pools:
        if sum(some[count] for some, count in zip(taken, counts, strict=True)) < needed:
            continue
        found = latencies(types, counts, arrival_s, size, limit_s, late)
        within = float((found <= limit_s).mean())
        if within >= share:
            return Pool(counts, cost, within)
    if best >= share:  # simulations ended early: how near the largest pool comes
        whole = latencies(types, [most] * len(types), arrival_s, size)
        best = float((whole <= limit_s).mean())
    raise InputError(
        f"expected a pool of at most {most} of each type with {share:.0%} of the requests within"
        f" {limit_s:g} s, got {best:.1%} at best; allow more instances or a longer limit"
    )


def _by_cost(usd: Sequence[float], most: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Costs and counts of all pools of up to `most` of each type, the cheapest first."""
    waiting = [
        (cost, at, tuple(np.eye(len(usd), dtype=int)[at].tolist())) for at, cost in enumerate(usd)
    ]
    heapq.heapify(waiting)
    while waiting:
        cost, last, counts = heapq.heappop(waiting)
        yield cost, counts
        for at in range(last, len(usd)):  # each pool comes from one other: that without its last
            if counts[at] < most:
                more = (*counts[:at], counts[at] + 1, *counts[at + 1 :])
                heapq.heappush(waiting, (cost + usd[at], at, more))


def read_types(frame: pd.DataFrame) -> list[InstanceType]:
    """Of a table with a name and a price a row; its other columns say what each serves, as rows of
    `serve`. A request of n tokens takes one free instance TTFT + (n - 1) TPOT, priced for one
    request at a time.

    Raises:
        InputError: a name twice, a column that nobody knows, an engine that cannot be priced.
    """
    named = read_small_table(frame, "instances")
    names = named["name"].astype(str)
    if names.duplicated().any():
        twice = names[names.duplicated()].iloc[0]
        raise InputError(
            f"expected each name once in a table of instances, got {twice} twice; rename one"
        )
    engines = named.drop(columns=["name", "usd_per_hour"]).assign(concurrency=1)
    found = predict_serving(engines).frame
    if (unknown := found["predicted_tpot_s"].isna()).any():
        why = found.loc[unknown, "note"].iloc[0]
        raise InputError(
            f"expected instances that can be priced, got {names[unknown].iloc[0]}: {why}"
        )
    ttft_s, tpot_s = (found[f"predicted_{name}_s"].to_numpy(float) for name in ("ttft", "tpot"))
    columns = (named["usd_per_hour"], np.maximum(ttft_s - tpot_s, 0.0), tpot_s)
    return [InstanceType(*one) for one in zip(names, *columns, strict=True)]


def read_requests(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Rising arrivals and sizes of a table with columns arrival_s and size."""
    both = read_small_table(frame, "pool_requests").sort_values("arrival_s")
    return both["arrival_s"].to_numpy(), both["size"].to_numpy()


def homogeneous(
    types: Sequence[InstanceType], arrival_s: np.ndarray, size: np.ndarray, limit_s: float,
    share: float = 0.99, most: int = 8,
) -> dict[str, Pool | None]:  # fmt: skip
    """The cheapest pool of each type alone; None where none is good enough."""
    found: dict[str, Pool | None] = {}
    for one in types:
        try:
            found[one.name] = cheapest([one], arrival_s, size, limit_s, share, most)
        except InputError:
            found[one.name] = None
    return found


def pool_words(types: Sequence[InstanceType], pool: Pool) -> str:
    """A pool in a line: `2 x a, 1 x b: 5 USD/h`."""
    named = zip(types, pool.counts, strict=True)
    counts = ", ".join(f"{count} x {one.name}" for one, count in named if count)
    return f"{counts}: {pool.usd_per_hour:.4g} USD/h"


def pool_table(
    types: Sequence[InstanceType], mixed: Pool, alone: Mapping[str, Pool | None]
) -> pd.DataFrame:
    """The cheapest pool and those of one type, a row each: counts by type, cost, share in time."""
    rows = [("mixed", mixed, mixed.counts)]
    for at, one in enumerate(types):
        pool = alone[one.name]
        counts = [0] * len(types)
        counts[at] = pool.counts[0] if pool else 0
        rows.append((one.name, pool or Pool((), np.nan, np.nan), tuple(counts)))
    return pd.DataFrame(
        [
            {"pool": name, **dict(zip([one.name for one in types], counts, strict=True)),
             "usd_per_hour": pool.usd_per_hour, "within": pool.within}
            for name, pool, counts in rows
        ]
    )  # fmt: skip
