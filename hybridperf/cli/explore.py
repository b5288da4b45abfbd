"""`hybridperf sweep` and `shard`: many configurations asked at once."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import compilation_cache, keep_files, warn, wrong
from hybridperf.cli.manner import printed

_PICTURE = "shard.png"


def sweep(
    question: Annotated[list[str], Argument(metavar="QUESTION --FIELD VALUES...")],
    out: Annotated[Path, Option()],
    rows: Path | None = None,
    where: list[str] | None = None,
    sample: int | None = None,
    seed: int = 0,
    derived: list[str] | None = None,
    minimise: str = "",
    maximise: str = "",
    top: int | None = None,
    by: str | None = None,
    chunk: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    restart: bool = False,
    html: Path | None = None,
) -> int:
    """Evaluate a grid or sample of configurations into a Parquet file. Stopped at any moment, it
    goes on where it was.

    \b
    QUESTION is steps, serve, plans, runs, rl, ops or collectives: what each row asks. Its fields
    are options, by any name that the command of that name reads (`hybridperf steps --help`), and
    every combination of their values is a row:
      --tp 8             one value
      --tp 1,2,4,8       each of a list
      --gpus 256..4096   powers of two between
      --pp 1..9:2        1, 3, 5, 7, 9
    ops and collectives also take --model, whose prices are asked; steps --knobs, serve --fit, as
    hp.sweep does.
    """
    from hybridperf.explore.sweeps import sweep as run_sweep
    from hybridperf.io import read_table
    from hybridperf.report.text import print_table

    what, *words = question
    keep_files({"--out": out, "--html": html}, [rows])
    if html is not None:
        common.ready(html, "--html")
    compilation_cache()
    fields, settings = _fields(what, words)
    if rows is not None and fields:
        raise wrong(f"expected --rows or fields, got both: --{next(iter(fields))}; drop one")
    done = run_sweep(
        what, out, fields=rows or fields or None, where=where or (), sample=sample, seed=seed,
        derived=common.named_in(
            derived or [], "--derived NAME=FORMULA", "gib=memory_bytes/2**30", str
        ),
        minimise=common.names_in(minimise), maximise=common.names_in(maximise), chunk=chunk,
        top=top, by=by, workers=workers, scheduler=scheduler, restart=restart, **settings,
    )  # fmt: skip
    rate = ", all done before"
    if done.computed:
        rate = f", {done.computed / done.seconds:,.0f} points/s"
    print(f"{done.rows:,} rows of {done.points:,} points in {done.out}, {done.seconds:.1f} s{rate}")
    common.result(rows=done.rows, points=done.points, out=done.out)
    if (html is not None or not printed()) and done.rows:
        from hybridperf.explore.sweeps.plot import drawn_rows

        common.result(grid=drawn_rows(done))
    for path, what in ((done.top, "top points"), (done.front, "Pareto front")):
        if path:
            print_table(path, f"{what} in {path}")
            common.result(**{what.replace(" ", "_").lower(): read_table(path)})
    if done.empty_because:
        warn(f"{done.empty_because}; the file has its columns and no row")
    if done.unpredicted:
        first = f"; the first: {done.refused}" if done.refused else ""
        what = "row not predicted, its note says"
        if done.unpredicted > 1:
            what = "rows not predicted, their notes say"
        warn(f"{done.unpredicted:,} {what} why{first}")
    return common.SOME_ROWS_UNPREDICTED if done.unpredicted else 0


def _fields(question: str, words: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """(values by field, what else the question is asked by) of options that name fields."""
    from hybridperf.fields.frames import ANSWERED_BY, question_of

    fields: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if not name.startswith("--") or not (equals or left):
            raise wrong(f"expected --FIELD VALUES such as --tp 1,2,4 with a sweep, got {word}")
        name = name[2:].replace("-", "_")
        if name in fields:
            raise wrong(f"expected --{name} once, got it twice; separate values by commas")
        fields[name] = value if equals else left.pop(0)
    known = question_of(question).settings if question in ANSWERED_BY else ()
    settings: dict[str, Any] = {name: fields.pop(name) for name in known if name in fields}
    return fields, settings


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
    from hybridperf.explore.sharding import result as reports
    from hybridperf.explore.sharding.result import FILES
    from hybridperf.explore.sharding.run import shard as run_shard
    from hybridperf.io import check_folder_writable

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
