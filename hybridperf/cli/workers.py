"""`hybridperf workers`: a step on workers that differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from typer import Argument, Option

from hybridperf.cli import common

if TYPE_CHECKING:
    from hybridperf.engine.unlike import UnlikeStep

_ENDS = (0.5, 0.9)


def workers(
    table: Annotated[Path, Argument()],
    shape: common.Shape,
    system: str,
    batch: Annotated[int, Option(min=1)],
    micro_batch: Annotated[int, Option(min=1)] = 1,
    dtype: str = "bf16",
    zero: Annotated[int, Option(min=0, max=3)] = 0,
    times: Path | None = None,
    production: bool = False,
    out: Path | None = None,
) -> None:
    """Predict a data-parallel step of workers that differ: how long they wait for the slowest, the
    share of the batch that each should have, and what noise among them adds.

    Columns of TABLE, and of --times; to TABLE are added micro_batch_s, share, wait_s, best_share,
    best_wait_s, note:

    \b
    COLUMNS workers

    \b
    COLUMNS worker_times
    """
    from hybridperf.io import read_table, write_table
    from hybridperf.runs.uneven import uneven
    from hybridperf.workloads.transformer.zoo import load_shape

    if times is not None and production:
        raise common.wrong("expected --times or --production, got both; drop one of them")
    common.table_ready(out, [table, times])
    common.compilation_cache()
    stage = cast(Literal[0, 1, 2, 3], zero)
    found = uneven(
        read_table(table), load_shape(shape), system, batch, micro_batch, dtype=dtype, zero=stage
    )
    even, best = found.even, found.best
    slowest = {}
    if times is not None or production:
        slowest = _slowest(times, best)
    interval = best.interval_s or (None, None)
    common.result(rows=found.rows, even_s=even.time_s, best_s=best.time_s, low_s=interval[0],
                  high_s=interval[1], asynchronous_updates_per_s=found.updates_per_s,
                  **slowest)  # fmt: skip
    if out:
        write_table(found.rows, out)
    from hybridperf.report.text import print_rows

    print_rows(found.rows)
    sure = f" ({interval[0]:.4g} to {interval[1]:.4g})" if best.interval_s else ""
    print(f"even shares: {even.time_s:.4g} s a step; best shares: {best.time_s:.4g} s{sure}")
    print(f"without waiting for each other: {found.updates_per_s:.4g} updates a second")
    for name, seconds in slowest.items():
        print(f"with noise among workers, {name.removesuffix('_s')} of steps: {seconds:.4g} s")


def _slowest(times: Path | None, step: "UnlikeStep") -> dict[str, float]:
    """Percentiles of the step's seconds with noise among its workers."""
    import numpy as np

    from hybridperf.fields.columns import read_small_table
    from hybridperf.io import read_table
    from hybridperf.runs.stragglers import WorkerNoise

    noise = WorkerNoise.production()
    if times is not None:
        frame = read_small_table(read_table(times), "worker_times")
        wide = frame.pivot_table(index="iteration", columns="worker", values="time_s")
        whole = wide.dropna().to_numpy(float)
        if whole.shape[1] < 2 or not len(whole):
            raise common.wrong(
                "expected an iteration with the times of all of two workers or more in"
                f" {times}, got {len(wide)} iterations of {wide.shape[1]} workers, none of them"
                " whole; leave out workers that were not always there"
            )
        if len(whole) < len(wide):
            common.warn(f"{len(wide) - len(whole)} of {len(wide)} iterations of {times} lack the"
                        " time of a worker and do not count")  # fmt: skip
        noise = WorkerNoise.of_times(whole)
    drawn = noise.step_s(step)
    return {f"p{100 * end:.0f}_s": float(np.quantile(drawn, end)) for end in _ENDS}
