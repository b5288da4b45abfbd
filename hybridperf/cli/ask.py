"""Commands that ask one question of many predictions: `sweep`, `search`, `shard`. They import what
is heavy when they run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hybridperf.cli.common import SOME_ROWS_UNPREDICTED, Out, compilation_cache, inside, keep_files

app = typer.Typer()
_PICTURE = "shard.png"


@app.command()
def sweep(
    spec: Annotated[
        Path, typer.Argument(help="what to sweep: a .toml file, or the name of one that is shipped")
    ],
    out: Out,
    top: Annotated[
        int | None, typer.Option("--top", help="also write the K points with the least time")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="needs --top: the K points least in this column, a number; time_s if not given",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="share the work among this many local processes (Dask)"),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", help="share the work among the workers of a Dask scheduler"),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="throw away what an earlier run did, and another sweep in --out"
        ),
    ] = False,
) -> int:
    """Evaluate a grid or sample of configurations into a Parquet file. Stopped at any moment, it
    goes on where it was.
    """
    from hybridperf.explore.sweeps import sweep as run_sweep
    from hybridperf.report import best_rows

    keep_files({"--out": out}, [spec])
    compilation_cache()
    done = run_sweep(
        spec, out, top=top, by=by, workers=workers, scheduler=scheduler, restart=restart
    )
    rate = (
        f", {done.computed / done.seconds:,.0f} points/s" if done.computed else ", all done before"
    )
    if done.computed and done.seconds / 2 < done.compiling_s < done.seconds:
        at_work_s = done.seconds - done.compiling_s
        rate += (
            f" (of which compiling {done.compiling_s:.1f} s; without it"
            f" {done.computed / at_work_s:,.0f} points/s)"
        )
    print(f"{done.rows:,} rows of {done.points:,} points in {done.out}, {done.seconds:.1f} s{rate}")
    for path, what in ((done.top, "top points"), (done.front, "Pareto front")):
        if path:
            best_rows.print_table(path, f"{what} in {path}")
    if done.empty_because:
        print(
            f"hybridperf: {done.empty_because}; the file has its columns and no row",
            file=sys.stderr,
        )
    if done.unpredicted:
        print(
            f"hybridperf: {done.unpredicted:,} rows not predicted, their note says why",
            file=sys.stderr,
        )
        return SOME_ROWS_UNPREDICTED
    return 0


@app.command()
def search(
    spec: Annotated[
        str,
        typer.Argument(
            help=(
                "what to search: a .toml file, or a shipped example: cheapest_platform, best_batch,"
                " next_dollar"
            )
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for search.json and convergence.png")
    ] = None,
    starts: Annotated[int | None, typer.Option("--starts", help="points to descend from")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="of the starts")] = None,
) -> None:
    """Find the best point within bounds: least cost, most throughput, under constraints. Says what
    holds it back.
    """
    from hybridperf.explore.searches.run import search as run_search
    from hybridperf.io import check_folder_writable
    from hybridperf.report import search as reports

    if out:
        check_folder_writable(out)  # before minutes of work
    compilation_cache()
    result = run_search(spec, starts=starts, seed=seed, quiet=False)
    print(reports.search_report(result))
    if out:
        written = result.save(out)
        reports.convergence_plot(result, out / "convergence.png")
        print(f"result in {written}, how it was found in {out / 'convergence.png'}")


@app.command()
def shard(
    tables: Annotated[
        Path,
        typer.Argument(
            help=(
                "embedding tables: name, rows, dim, pooling; if known dtype, exponent and shift, or"
                " rf_0 to rf_16, mean_reuse, counted"
            )
        ),
    ],
    ranks: Annotated[int, typer.Option("--ranks", help="how many devices")],
    batch: Annotated[
        float, typer.Option("--batch", help="samples of a step, over all ranks together")
    ],
    model: Annotated[
        str, typer.Option("--model", help="model folder, shipped calibration, or device name")
    ] = "here",
    system: Annotated[
        str,
        typer.Option(
            "--system",
            help="whose collectives: system name or folder; the model's own if not given",
        ),
    ] = "",
    memory_bytes: Annotated[
        float | None,
        typer.Option("--memory-bytes", help="of each rank for tables; 80 % of the device's"),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", help="over which the ranks stand; as many as the system needs if not given"
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help=(
                "best tries all; only one: naive, naive_chunk, random, size, lookup, norm_lookup,"
                " size_lookup, chunks, relaxed, exact"
            ),
        ),
    ] = "best",
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="sgd, adagrad or rowwise_adagrad")
    ] = "sgd",
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split", help="cut a table: NAME=row, NAME=column or NAME=row:4; repeatable"
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="what bags travel in; each table's own format if not given"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of random and relaxed placements")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="folder for shard.json, placement, ranks and candidates .csv, shard.png"
        ),
    ] = None,
) -> None:
    """Which rank should hold which embedding table: least predicted step under a memory limit, and
    why.
    """
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
        method=method, seed=seed, system=system, optimizer=optimizer, splits=splits, dtype=dtype,
    )  # fmt: skip
    print(reports.shard_report(result))
    if out:
        written = result.save(out)
        reports.shard_plot(result, out / _PICTURE)
        print(
            f"\nresult in {written}, tables and ranks in placement.csv and ranks.csv there, picture"
            f" in {out / _PICTURE}"
        )
