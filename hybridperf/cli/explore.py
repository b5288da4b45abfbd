"""`hybridperf sweep`, `search` and `shard`: many configurations asked at once."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import compilation_cache, keep_files, warn, wrong

_PICTURE = "shard.png"


def sweep(
    spec: Annotated[Path | None, Argument()] = None,
    out: Path | None = None,
    top: int | None = None,
    by: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    restart: bool = False,
    example: bool = False,
) -> int:
    """Evaluate a grid or sample of configurations into a Parquet file. Stopped at any moment, it
    goes on where it was.
    """
    from hybridperf.explore.sweeps import sweep as run_sweep
    from hybridperf.explore.sweeps.spec import SHIPPED
    from hybridperf.io import read_table
    from hybridperf.report.text import print_table

    if example:
        return _print_example(sorted(SHIPPED.glob("collectives_*"))[0])
    if spec is None or out is None:
        lacking = "SPEC" if spec is None else "--out FILE"
        raise wrong(f"expected {lacking} with `sweep`, got none; --example prints a spec")
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
    common.result(rows=done.rows, points=done.points, out=done.out)
    for path, what in ((done.top, "top points"), (done.front, "Pareto front")):
        if path:
            print_table(path, f"{what} in {path}")
            common.result(**{what.replace(" ", "_").lower(): read_table(path)})
    if done.empty_because:
        warn(f"{done.empty_because}; the file has its columns and no row")
    if done.unpredicted:
        warn(f"{done.unpredicted:,} rows not predicted, their note says why")
    return common.SOME_ROWS_UNPREDICTED if done.unpredicted else 0


def search(
    spec: Annotated[str, Argument()] = "",
    out: Annotated[Path | None, Option("--folder")] = None,
    starts: int | None = None,
    seed: int | None = None,
    example: bool = False,
) -> int:
    """Find the best point within bounds and constraints, such as the lowest cost, and what limits
    it.
    """
    from hybridperf.explore.searches.run import search as run_search
    from hybridperf.explore.searches.spec import SHIPPED
    from hybridperf.io import check_folder_writable
    from hybridperf.report import search as reports

    if example:
        return _print_example(SHIPPED / "cheapest_platform.toml")
    if not spec:
        raise wrong("expected SPEC with `search`, got none; --example prints one")
    if out:
        check_folder_writable(out)  # before minutes of work
    compilation_cache()
    result = run_search(spec, starts=starts, seed=seed, quiet=False)
    print(reports.search_report(result))
    common.result(**result.document())
    if out:
        written = result.save(out)
        reports.convergence_plot(result, out / "convergence.png")
        print(f"result in {written}, how it was found in {out / 'convergence.png'}")
    return 0


def _print_example(path: Path) -> int:
    text = path.read_text()
    common.result(spec=text)
    print(text, end="")
    return 0


def shard(
    tables: Annotated[Path, Argument()],
    ranks: Annotated[int, Option("--gpus")],
    batch: Annotated[float, Option()],
    model: str = "here",
    system: str = "",
    memory_bytes: float | None = None,
    nodes: int | None = None,
    method: str = "best",
    optimizer: str = "sgd",
    split: list[str] | None = None,
    dtype: str | None = None,
    seed: int = 0,
    out: Annotated[Path | None, Option("--folder")] = None,
) -> None:
    """Which rank should hold which embedding table: the fastest step within memory, and why.

    Columns of TABLES; others are named and not read, one that resembles one of these is refused:

    \b
    COLUMNS embedding_tables
    """
    from hybridperf.explore.sharding.result import FILES
    from hybridperf.explore.sharding.run import shard as run_shard
    from hybridperf.io import check_folder_writable
    from hybridperf.report import sharding as reports

    keep_files(common.inside(out, (*FILES, _PICTURE)), [tables])
    if out:
        check_folder_writable(out)  # before the work
    compilation_cache()
    splits = common.named_in(split or [], "--split NAME=row or NAME=column", "t1=row", str)
    result = run_shard(
        tables, ranks, model=model, batch=batch, memory_bytes=memory_bytes, nodes=nodes,
        method=method, seed=seed, system=system, optimizer=optimizer, splits=splits, dtype=dtype
    )  # fmt: skip
    print(reports.shard_report(result))
    common.result(
        **result.document(), candidates=result.candidates, per_rank=result.per_rank,
        per_table=result.per_table,
    )  # fmt: skip
    if out:
        written = result.save(out)
        reports.shard_plot(result, out / _PICTURE)
        tables_there = "tables and ranks in placement.csv and ranks.csv there"
        print(f"\nresult in {written}, {tables_there}, picture in {out / _PICTURE}")
