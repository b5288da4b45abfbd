"""Random recommendation models for two processes of this machine, and where their tables may lie.

What Lin et al. drew for four GPUs, scaled to cores: tables of very different sizes, pooled lookups,
half of the models heavy (every table looked up 8 times and more per sample), access as skewed as in
their production data (Zipf exponents around 0.87). Sizes are bounded so that a step takes
milliseconds and a model's tables fit into memory several times over.

A task is plain data, an object of the JSON that
`hybridperf_calibration.training_steps.sharded_dlrm` measures.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.claims.harness import facts
from hybridperf.ops.embedding import Table, Uniform, Zipf

Task = dict[str, Any]

_DIMS = (8, 16, 32, 64)
_SHIFTS = (0.0, 10.0, 100.0)
_WIDTHS = (32, 512)
_SKEW, _SKEW_SPREAD, _MOST_SKEW = 0.87, 0.25, 1.4
_UNIFORM_SHARE = 0.125  # of tables


@dataclasses.dataclass(frozen=True)
class Limits:
    """What models of one kind stay within."""

    tables: Sequence[int]
    rows: Sequence[float]
    lookups: float  # of a step
    table_bytes: float  # of all tables
    layers: int
    batches: Sequence[int]
    least_pooling: int  # of heavy models


DLRMS, TO_SHARD = (Limits(**limits) for limits in facts("sharded.toml").values())


def random_models(
    count: int, limits: Limits, seed: int, *, heavy: bool | None = None, prefix: str = "m"
) -> list[Task]:
    """Models without placements; every other one heavy unless `heavy` says which."""
    models = []
    for number in range(count):
        rng, is_heavy = np.random.default_rng([seed, number]), number % 2 == 0
        is_heavy = is_heavy if heavy is None else heavy
        models.append(_model(rng, limits, is_heavy, f"{prefix}{number}", number))
    return models


def random_placement(task: Task, ranks: int, seed: int) -> list[int]:
    """A rank for each table, anywhere."""
    random = np.random.default_rng([seed, task["seed"]])
    return random.integers(0, ranks, len(task["tables"])).tolist()


def tables_of(task: Mapping[str, Any]) -> list[Table]:
    """A task's tables as the library knows them."""
    found = []
    for table in task["tables"]:
        access = Zipf(table["skew"], table["shift"]) if table["skew"] else Uniform()
        name, rows, dim, pooling = (table[key] for key in ("name", "rows", "dim", "pooling"))
        found.append(Table(name, rows, dim, pooling, access=access))
    return found


def distinct_placements(
    named: Sequence[tuple[str, Sequence[int]]],
) -> dict[tuple[int, ...], list[str]]:
    """Placements that differ by more than the ranks' numbers, each with all its names."""
    found: dict[tuple[int, ...], list[str]] = {}
    for name, placement in named:
        order = {rank: number for number, rank in enumerate(dict.fromkeys(placement))}
        found.setdefault(tuple(order[rank] for rank in placement), []).append(name)
    return found


def _model(rng: np.random.Generator, limits: Limits, heavy: bool, name: str, seed: int) -> Task:
    interaction = "dot" if rng.random() < 0.5 else "cat"
    count = round(_between(rng, *limits.tables))
    width = int(rng.choice(_DIMS))
    tables: list[dict[str, Any]] = []
    for number in range(count):
        skew = 0.0
        if rng.random() >= _UNIFORM_SHARE:
            skew = float(np.clip(rng.normal(_SKEW, _SKEW_SPREAD), 0.05, _MOST_SKEW))
        tables.append({
            "name": f"t{number}", "rows": round(_between(rng, *limits.rows)),
            "dim": width if interaction == "dot" else int(rng.choice(_DIMS)),
            "pooling": round(_between(rng, limits.least_pooling if heavy else 1, 32)),
            "skew": round(skew, 3), "shift": float(rng.choice(_SHIFTS)),
        })  # fmt: skip
    while sum(4 * t["rows"] * t["dim"] for t in tables) > limits.table_bytes:
        for table in tables:
            table["rows"] = max(table["rows"] // 2, 100)
    batch = int(rng.choice(limits.batches))
    while batch * sum(t["pooling"] for t in tables) > limits.lookups and batch > 64:
        batch //= 2
    bottom = [round(_between(rng, *_WIDTHS)) for _ in range(rng.integers(0, limits.layers))]
    top = [round(_between(rng, *_WIDTHS)) for _ in range(rng.integers(1, limits.layers + 1))]
    return {
        "name": name, "batch": batch, "dense_features": round(_between(rng, 4, 64)),
        "bottom_mlp": [*bottom, width], "top_mlp": [*top, 1], "interaction": interaction,
        "seed": seed, "tables": tables,
    }  # fmt: skip


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
