"""What is to be measured: recommendation models, and on which process each of their tables lies.

A file of tasks is JSON, a list of

    {"name": "a", "batch": 512, "dense_features": 13, "bottom_mlp": [64, 32], "top_mlp": [128, 1],
     "tables": [{"name": "t0", "rows": 100000, "dim": 32, "pooling": 8, "skew": 0.9}, ...],
     "placements": [[0, 1, ...], ...]}

or CSV with a line for each table: `task, batch, dense_features, bottom_mlp, top_mlp, table, rows,
dim, pooling, skew, rank`, where widths are written like 64-32 and `rank` is the table's process.
`batch` is that of all processes together.

A batch looks a table's rows up with Zipf-Mandelbrot probabilities p_k ~ (k + shift)^-skew, k = 1 ..
rows (skew 0: all alike), the popular rows scattered over the table.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridperf.io import InputError, unknown

INTERACTIONS = ("dot", "cat")
_SHARED = ("batch", "dense_features", "bottom_mlp", "top_mlp")
_OF_A_TABLE = ("rows", "dim", "pooling", "skew")


@dataclass(frozen=True)
class ShardedTable:
    """An embedding table and how it is looked up."""

    name: str
    rows: int
    dim: int
    pooling: int  # rows that one sample looks up
    skew: float = 0.0
    shift: float = 0.0

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.dim


@dataclass(frozen=True)
class ShardedTask:
    """One model on one placement of its tables."""

    name: str
    batch: int  # of all processes together
    dense_features: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    tables: tuple[ShardedTable, ...]
    placement: tuple[int, ...]  # the process of each table
    # dot products of all pairs of vectors, or all vectors joined (cat), whose widths may differ
    interaction: str = "dot"
    seed: int = 0

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
        last, vectors = self.bottom_mlp[-1], len(self.tables) + 1
        return last + (
            vectors * (vectors - 1) // 2
            if self.interaction == "dot"
            else sum(table.dim for table in self.tables)
        )


def read_tasks(path: Path, processes: int) -> list[ShardedTask]:
    """The tasks of a file, checked.

    Raises: InputError: names the task and the table.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {error}; give a file of tasks, JSON or CSV"
        ) from error
    entries = _of_csv(text, path) if path.suffix == ".csv" else _of_json(text, path)
    tasks = [
        task
        for number, entry in enumerate(entries, start=1)
        for task in _tasks(entry, f"task {number} of {path}", processes)
    ]
    keys = [task.key for task in tasks]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise InputError(
            f"{path} has task {twice[0]} twice; give each model its own name and each placement"
            " once"
        )
    return tasks


def _of_json(text: str, path: Path) -> list[Mapping[str, Any]]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON: {error}; write a list of tasks, or give a file that ends in .csv"
        ) from error
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(entry, dict) for entry in entries)
    ):
        raise InputError(
            f"{path} must be a list of tasks, each with name, batch, tables and placements; see"
            " `--help`"
        )
    return entries


def _of_csv(text: str, path: Path) -> list[Mapping[str, Any]]:
    lines = list(csv.DictReader(text.splitlines()))
    needed = ("task", *_SHARED, "table", *_OF_A_TABLE, "rank")
    missing = [name for name in needed if not lines or name not in lines[0]]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r}; expected a line for each table with"
            f" {', '.join(needed)}"
        )
    entries = []
    for name, of_task in itertools.groupby(lines, key=lambda line: line["task"]):
        rows = list(of_task)
        for field in _SHARED:
            if len({row[field] for row in rows}) > 1:
                raise InputError(
                    f"{path}: the tables of task {name} disagree in {field}; it belongs to the"
                    " task, write it alike"
                )
        try:
            first = rows[0]
            entries.append(
                {
                    "name": name,
                    "batch": int(first["batch"]),
                    "dense_features": int(first["dense_features"]),
                    **{
                        mlp: [int(width) for width in first[mlp].split("-")]
                        for mlp in ("bottom_mlp", "top_mlp")
                    },
                    "tables": [
                        {
                            "name": row["table"],
                            **{size: int(row[size]) for size in ("rows", "dim", "pooling")},
                            "skew": float(row["skew"]),
                            "shift": float(row.get("shift") or 0.0),
                        }
                        for row in rows
                    ],
                    "placements": [[int(row["rank"]) for row in rows]],
                    **({"interaction": first["interaction"]} if first.get("interaction") else {}),
                }
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{path}: task {name} has something that is no number ({error}); mend it"
            ) from error
    return entries


def _tasks(entry: Mapping[str, Any], where: str, processes: int) -> list[ShardedTask]:
    """One task for each of an entry's placements."""
    fields = [field.name for field in dataclasses.fields(ShardedTask) if field.name != "placement"]
    for name in entry:
        if name not in (*fields, "placements"):
            raise unknown("field", name, fields, f"{where} has it")
    missing = [name for name in ("name", *_SHARED, "tables", "placements") if name not in entry]
    if missing:
        raise InputError(
            f"{where} has no {missing[0]!r}; a task has name, {', '.join(_SHARED)}, tables and"
            " placements"
        )
    where = f"{where} ({entry['name']})"
    tables = tuple(
        _table(table, number, where)
        for number, table in enumerate(_list(entry["tables"], "tables", where))
    )
    sizes = {name: _whole(entry[name], name, where) for name in ("batch", "dense_features")}
    widths = {
        name: tuple(_whole(w, name, where) for w in _list(entry[name], name, where))
        for name in ("bottom_mlp", "top_mlp")
    }
    interaction, seed = (
        entry.get("interaction", "dot"),
        _whole(entry.get("seed", 0), "seed", where, least=0),
    )
    if interaction not in INTERACTIONS:
        raise unknown("interaction", str(interaction), INTERACTIONS, where)
    if sizes["batch"] % processes:
        raise InputError(
            f"{where}: batch {sizes['batch']} does not divide over {processes} processes; give a"
            " multiple"
        )
    if widths["top_mlp"][-1] != 1:
        raise InputError(f"{where}: top_mlp must end in 1, the logit, got {widths['top_mlp'][-1]}")
    if interaction == "dot":
        for table in tables:
            if table.dim != widths["bottom_mlp"][-1]:
                raise InputError(
                    f"{where}: table {table.name} has dim {table.dim} and bottom_mlp ends in"
                    f" {widths['bottom_mlp'][-1]}: dot products need equal widths; mend one or"
                    " choose the interaction cat"
                )
    tasks = []
    for placement in _list(entry["placements"], "placements", where):
        ranks = tuple(
            _whole(rank, "placements", where, least=0)
            for rank in _list(placement, "a placement", where)
        )
        if len(ranks) != len(tables):
            raise InputError(
                f"{where}: a placement names {len(ranks)} ranks for {len(tables)} tables; give one"
                " for each"
            )
        if max(ranks) >= processes:
            raise InputError(
                f"{where}: a placement names rank {max(ranks)} and there are {processes} processes,"
                " from 0 on; mend it"
            )
        tasks.append(
            ShardedTask(
                str(entry["name"]),
                **sizes,
                **widths,
                tables=tables,
                placement=ranks,
                interaction=interaction,
                seed=seed,
            )
        )
    return tasks


def _table(entry: Any, number: int, where: str) -> ShardedTable:
    if not isinstance(entry, dict):
        raise InputError(
            f"{where}: table {number} must be an object with rows, dim, pooling and skew, got"
            f" {entry!r}"
        )
    name = str(entry.get("name", f"t{number}"))
    known = [field.name for field in dataclasses.fields(ShardedTable)]
    for field in entry:
        if field not in known:
            raise unknown("field", field, known, f"table {name} of {where}")
    sizes = {
        field: _whole(entry.get(field), f"{field} of table {name}", where)
        for field in ("rows", "dim", "pooling")
    }
    numbers = {field: entry.get(field, 0.0) for field in ("skew", "shift")}
    for field, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
            raise InputError(
                f"{where}: {field} of table {name} must be a number from 0 on, got {value!r}"
            )
    return ShardedTable(name, **sizes, **{field: float(value) for field, value in numbers.items()})


def _whole(value: Any, name: str, where: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{where}: {name} must be a whole number from {least} on, got {value!r}")
    return value


def _list(value: Any, name: str, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: {name} must be a list that is not empty, got {value!r}")
    return value
