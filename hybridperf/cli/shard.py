"""`hybridperf shard`: which rank holds which embedding table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import ModelName, compilation_cache, inside, keep_files

_SYSTEM = "whose collectives: system name or folder; the model's own if not given"
_OUT = "folder for shard.json, placement, ranks and candidates .csv, shard.png"
_PICTURE = "shard.png"
_TABLES = (
    "embedding tables: name, rows, dim, pooling; if known dtype, exponent and shift, or rf_0 to"
    " rf_16, mean_reuse, counted"
)
_METHODS = (
    "best tries all; only one: naive, naive_chunk, random, size, lookup, norm_lookup, size_lookup,"
    " chunks, relaxed, exact"
)


def shard(
    tables: Annotated[Path, Argument(help=_TABLES)],
    ranks: Annotated[int, Option(help="how many devices")],
    batch: Annotated[float, Option(help="samples of a step, over all ranks together")],
    model: ModelName = "here",
    system: Annotated[str, Option(help=_SYSTEM)] = "",
    memory_bytes: Annotated[
        float | None, Option(help="of each rank for tables; 80 % of the device's")
    ] = None,
    nodes: Annotated[
        int | None, Option(help="of all ranks; as many as the system needs if not given")
    ] = None,
    method: Annotated[str, Option(help=_METHODS)] = "best",
    optimizer: Annotated[str, Option(help="sgd, adagrad or rowwise_adagrad")] = "sgd",
    split: Annotated[
        list[str] | None, Option(help="cut a table: NAME=row, NAME=column, NAME=row:4; repeatable")
    ] = None,
    dtype: Annotated[
        str | None, Option(help="what bags travel in; each table's own format if not given")
    ] = None,
    seed: Annotated[int, Option(help="of random and relaxed placements")] = 0,
    out: Annotated[Path | None, Option(help=_OUT)] = None,
) -> None:
    """Which rank should hold which embedding table: the fastest step within memory, and why."""
    from hybridperf.explore.sharding.result import FILES
    from hybridperf.explore.sharding.run import shard as run_shard
    from hybridperf.io import InputError, check_folder_writable
    from hybridperf.report import sharding as reports

    keep_files(inside(out, (*FILES, _PICTURE)), [tables])
    if out:
        check_folder_writable(out)  # before the work
    compilation_cache()
    splits: dict[str, str] = {}
    for one in split or []:
        name, equals, kind = one.rpartition("=")
        if not equals:
            raise InputError(f"expected --split NAME=row or NAME=column, got {one!r}")
        if name in splits:
            raise InputError(
                f"table {name} is split twice, by {splits[name]} and by {kind}; expected one"
                " --split of each table"
            )
        splits[name] = kind
    result = run_shard(
        tables, ranks, model=model, batch=batch, memory_bytes=memory_bytes, nodes=nodes,
        method=method, seed=seed, system=system, optimizer=optimizer, splits=splits, dtype=dtype
    )  # fmt: skip
    print(reports.shard_report(result))
    if out:
        written = result.save(out)
        reports.shard_plot(result, out / _PICTURE)
        tables_there = "tables and ranks in placement.csv and ranks.csv there"
        print(f"\nresult in {written}, {tables_there}, picture in {out / _PICTURE}")
