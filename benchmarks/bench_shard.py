"""Seconds to score 10,000 placements of 100 tables on 16 ranks, and how good what sharding finds
is: `python benchmarks/bench_shard.py`.

Small problems are compared with all placements there are, large ones with the best greedy rule and
with what no placement can beat.
"""

import time

import numpy as np
from support.made_sharding import all_placements, made_cost

from hybridperf.explore.sharding import methods, run
from hybridperf.explore.sharding.cost import MEMORY, SENT, placement_seconds

PLACEMENTS, TABLES, RANKS = 10_000, 100, 16
SMALL = [(9, ranks, 1) for ranks in (8, 16, 32, 64, 128)]
LARGE = [(60, 8, 1), (100, 16, 2), (120, 32, 4), (200, 64, 8), (300, 128, 16)]


def scoring() -> None:
    """Print the seconds of the first call, which compiles, and of a later one."""
    cost, rng = made_cost(TABLES, RANKS, 2), np.random.default_rng(0)
    took = []
    for _ in range(3):
        placements = rng.integers(0, RANKS, (PLACEMENTS, TABLES))
        start_s = time.perf_counter()
        placement_seconds(cost, placements)
        took.append(time.perf_counter() - start_s)
    print(
        f"{PLACEMENTS:,} placements of {TABLES} tables on {RANKS} ranks: {min(took):.2f} s, the"
        f" first time {took[0]:.2f} s"
    )


def small(seeds: int = 3) -> None:
    """Print how far from the optimum of all placements."""
    for count, ranks, nodes in SMALL:
        apart = []
        for seed in range(seeds):
            cost = made_cost(count, ranks, nodes, seed, room=3)
            seconds, over = placement_seconds(cost, all_placements(count, ranks))
            found = run.relaxed_and_polished(cost, [np.arange(count) % ranks], seed)
            apart.append(found.step_s / seconds[over == 0].min() - 1)
        print(
            f"{count} tables on {ranks} ranks: {max(apart):+.3%} from the optimum at most, of"
            f" {seeds} problems",
            flush=True,
        )


def large(seeds: int = 2) -> None:
    """Print how far from the best greedy, and from what nothing can beat."""
    for count, ranks, nodes in LARGE:
        for seed in range(seeds):
            cost = made_cost(count, ranks, nodes, seed)
            dearness = (
                np.sum(cost.lookup_seconds(cost.tables), 0),
                cost.tables[:, SENT],
                cost.tables[:, MEMORY],
            )
            starts = [
                one for one in (methods.greedy(each, cost) for each in dearness) if one is not None
            ]
            start_s = time.perf_counter()
            found = run.relaxed_and_polished(cost, starts, seed)
            took_s = time.perf_counter() - start_s
            best = min(map(cost.step_s, starts))
            proven = methods.prove(cost, found.placement)[1]
            print(
                f"{count} tables on {ranks} ranks: best greedy {best / found.step_s - 1:+.1%},"
                f" bound {cost.bound_s() / found.step_s - 1:+.1%}{', proven' if proven else ''},"
                f" {took_s:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    scoring()
    small()
    large()
