"""Sharding problems made up for tests and benchmarks."""

import itertools

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.traced import AllToAll
from hybridperf.explore.sharding.cost import COLUMNS, MEMORY, SENT, PlacementCost
from hybridperf.hardware import load_system
from hybridperf.ops.embedding import Table, Zipf


def made_tables(count: int, seed: int = 0) -> list[Table]:
    """Tables as Lin et al. spread theirs: sizes over decades, pooling with a heavy tail, skews
    about 0.87.
    """
    rng = np.random.default_rng(seed)
    return [
        Table(
            f"t{at}",
            rows=float(np.round(10 ** rng.uniform(3, 7))),
            dim=float(rng.choice([32, 64, 128, 256])),
            pooling=float(np.round(1 + np.exp(rng.normal(2, 1)))),
            access=Zipf(float(np.clip(rng.normal(0.87, 0.2), 0.2, 1.3)), 20.0),
        )
        for at in range(count)
    ]


def made_cost(
    count: int, ranks: int, nodes: int = 1, seed: int = 0, room: float = 1.5, smoothing: float = 0.5
) -> PlacementCost:
    """Tables whose seconds and bytes are drawn at random; ranks hold `room` times what they must on
    average.
    """
    rng = np.random.default_rng(seed)
    tables = np.zeros((count, len(COLUMNS)))
    tables[:, :3] = rng.lognormal(0, 1, (count, 1)) * rng.uniform(0.2, 1, (count, 3)) * 1e-4
    tables[:, 3:6] = tables[:, :3] * rng.uniform(1, 2, (count, 1))
    tables[:, SENT] = rng.choice([32, 64, 128, 256], count) * 4096.0
    tables[:, MEMORY] = rng.lognormal(20, 1, count)
    limit = max(room * tables[:, MEMORY].sum() / ranks, 1.01 * tables[:, MEMORY].max())
    model = CollectiveModel.datasheet(load_system("aws_p4de_a100"))
    alltoall = AllToAll.of(model, ranks, ranks // nodes) if ranks > 1 else None
    return PlacementCost(
        tables, np.array([5e-6, 8e-6]), np.float64(limit), alltoall, ranks, nodes, (smoothing, 0.0)
    )


def all_placements(count: int, ranks: int) -> np.ndarray:
    """Every placement [N, T] of tables on ranks that are alike: each new rank in use is the first
    that was not.
    """
    out = [(0,)]
    for _ in range(count - 1):
        out = list(
            itertools.chain.from_iterable(
                [(*one, rank) for rank in range(min(max(one) + 2, ranks))] for one in out
            )
        )
    return np.array(out, np.int32)
