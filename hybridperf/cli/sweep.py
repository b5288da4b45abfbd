"""`hybridperf sweep`: grids and samples of configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import SOME_ROWS_UNPREDICTED, Out, compilation_cache, keep_files, warn

_BY = "needs --top: the K points lowest in this column, a number; time_s if not given"
_RESTART = "throw away what an earlier run did, and another sweep in --out"


def sweep(
    spec: Annotated[
        Path, Argument(help="what to sweep: a .toml file, or the name of one that is shipped")
    ],
    out: Out,
    top: Annotated[int | None, Option(help="also write the K fastest points")] = None,
    by: Annotated[str | None, Option(help=_BY)] = None,
    workers: Annotated[
        int | None, Option(help="share the work among this many local processes (Dask)")
    ] = None,
    scheduler: Annotated[
        str | None, Option(help="share the work among the workers of a Dask scheduler")
    ] = None,
    restart: Annotated[bool, Option("--restart", help=_RESTART)] = False,
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
    rate = ", all done before"
    if done.computed:
        rate = f", {done.computed / done.seconds:,.0f} points/s"
    if done.computed and done.seconds / 2 < done.compiling_s < done.seconds:
        without = f"{done.computed / (done.seconds - done.compiling_s):,.0f} points/s"
        rate += f" (of which compiling {done.compiling_s:.1f} s; without it {without})"
    print(f"{done.rows:,} rows of {done.points:,} points in {done.out}, {done.seconds:.1f} s{rate}")
    for path, what in ((done.top, "top points"), (done.front, "Pareto front")):
        if path:
            best_rows.print_table(path, f"{what} in {path}")
    if done.empty_because:
        warn(f"{done.empty_because}; the file has its columns and no row")
    if done.unpredicted:
        warn(f"{done.unpredicted:,} rows not predicted, their note says why")
        return SOME_ROWS_UNPREDICTED
    return 0
