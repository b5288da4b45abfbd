"""What is to be measured: recommendation models, and on which process each of their tables lies.

A file of tasks is JSON, a list of

    {"name": "a", "batch": 512, "dense_features": 13, "bottom_mlp": [64, 32], "top_mlp": [128, 1],
     "tables": [{"name": "t0", "rows": 100000, "dim": 32, "pooling": 8, "skew": 0.9}, ...],
     "placements": [[0, 1, ...], ...]}

where `batch` is that of all processes together.

A batch looks a table's rows up with Zipf-Mandelbrot probabilities p_k ~ (k + shift)^-skew, k = 1 ..
rows (skew 0: all alike), the popular rows scattered over the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from hybridperf.io import InputError
from hybridperf_calibration.training_steps import STRICT, Widths, checked, read_objects

_OfZipf = Annotated[float, Field(ge=0, lt=1e9)]


@dataclass(frozen=True, config=STRICT)
class ShardedTable:
    """An embedding table and how it is looked up."""

    name: str
    rows: PositiveInt
    dim: PositiveInt
    pooling: PositiveInt  # rows that one sample looks up
    skew: _OfZipf = 0.0
    shift: _OfZipf = 0.0

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.dim


@dataclass(frozen=True, config=STRICT)
class ShardedTask:
    """One model on one placement of its tables."""

    name: str
    batch: PositiveInt  # of all processes together
    dense_features: PositiveInt
    bottom_mlp: Widths
    top_mlp: Widths
    tables: Annotated[tuple[ShardedTable, ...], Field(min_length=1)]
    placement: tuple[NonNegativeInt, ...]  # the process of each table
    # dot products of all pairs of vectors, or all vectors joined (cat), whose widths may differ
    interaction: Literal["dot", "cat"] = "dot"
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.top_mlp[-1] != 1:
            raise ValueError(f"top_mlp must end in 1, the logit, got {self.top_mlp[-1]}")
        width = self.bottom_mlp[-1]
        for table in self.tables if self.interaction == "dot" else ():
            if table.dim != width:
                unequal = f"table {table.name} has dim {table.dim} and bottom_mlp ends in {width}"
                needed = "dot products need equal widths; mend one or choose the interaction cat"
                raise ValueError(f"{unequal}: {needed}")
        if len(self.placement) != len(self.tables):
            names = f"a placement names {len(self.placement)} ranks for {len(self.tables)} tables"
            raise ValueError(f"{names}; give one for each")

    @property
    def key(self) -> str:
        """The case's name in a store."""
        return f"{self.name} {','.join(map(str, self.placement))}"

    def of(self, rank: int) -> list[int]:
        """Numbers of the tables that lie on `rank`."""
        return [number for number, at in enumerate(self.placement) if at == rank]

    def width(self, rank: int) -> int:
        """Of all bags of `rank` next to each other."""
        return sum(self.tables[number].dim for number in self.of(rank))

    @property
    def interaction_width(self) -> int:
        """Of the top MLP's input."""
        vectors, dims = len(self.tables) + 1, sum(table.dim for table in self.tables)
        added = vectors * (vectors - 1) // 2 if self.interaction == "dot" else dims
        return self.bottom_mlp[-1] + added


def read_tasks(path: Path, processes: int) -> list[ShardedTask]:
    """The tasks of a file, checked.

    Raises: InputError: names the task and what is wrong with it.
    """
    example = "tasks, each with name, batch, tables and placements; see `--help`"
    tasks = [
        task
        for number, entry in enumerate(read_objects(path, example), start=1)
        for task in _tasks(entry, f"task {number} of {path} ({entry.get('name')})", processes)
    ]
    keys = [task.key for task in tasks]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        advice = "give each model its own name and each placement once"
        raise InputError(f"{path} has task {twice[0]} twice; {advice}")
    return tasks


def _tasks(entry: Mapping[str, Any], where: str, processes: int) -> list[ShardedTask]:
    """One task for each of an entry's placements."""
    given, tables = dict(entry), entry.get("tables")
    placements = given.pop("placements", None)
    if not isinstance(placements, list) or not placements:
        wanted = "placements must be a list that is not empty"
        raise InputError(f"{where}: {wanted}, got {placements!r}")
    if isinstance(tables, list) and all(isinstance(table, dict) for table in tables):
        given["tables"] = [{"name": f"t{at}", **table} for at, table in enumerate(tables)]
    tasks = [checked(ShardedTask, {**given, "placement": one}, where) for one in placements]
    for task in tasks:
        if task.batch % processes:
            wrong = f"batch {task.batch} does not divide over {processes} processes"
            raise InputError(f"{where}: {wrong}; give a multiple")
        if max(task.placement) >= processes:
            wrong = f"a placement names rank {max(task.placement)} and there are {processes}"
            raise InputError(f"{where}: {wrong} processes, from 0 on; mend it")
    return tasks
