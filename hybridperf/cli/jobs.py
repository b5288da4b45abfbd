"""`hybridperf jobs`: how many GPUs for which job of a cluster."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import Name, wrong


def jobs(
    table: Annotated[Path, Argument(metavar="JOBS")],
    system: Name,
    gpus: Annotated[int, Option("--gpus", min=1)],
    device: str = "",
    precision: str = "bf16",
    framework: str = "",
    restart_s: Annotated[float, Option("--restart-s")] = 30.0,
    limit: float = 1.0,
    out: Path | None = None,
) -> int:
    """Simulate a stream of training jobs on a cluster under schedulers, and how far to parallelise.

    Columns of JOBS: name, arrival_s, model (of `hybridperf models`), batch, steps; gpus (as asked;
    as many as make steps quickest if not given), max_batch and noise_scale (samples; a batch may
    grow). Time by batch and GPUs is that of the quickest layout that fits. FIFO, shortest remaining
    time first, Gittins' index, elastic; and, where what cannot start at once is refused, what share
    that is by how many GPUs each job gets.
    """
    import math

    from hybridperf.io import read_table
    from hybridperf.report import jobs as reports
    from hybridperf.runs.job_policies import study
    from hybridperf.runs.job_times import job_times, read_training_jobs

    if not (0 <= restart_s < 1e7 and math.isfinite(restart_s)):
        raise wrong(f"expected --restart-s from 0 to 1e7, got {restart_s:g}")
    if not 0 < limit <= 1:
        raise wrong(f"expected --limit above 0 and at most 1, got {limit:g}")
    if gpus > 100_000:
        raise wrong(f"expected --gpus of at most 100,000, got {gpus:,}")
    common.table_ready(out, [table])
    common.compilation_cache()
    listed = read_training_jobs(read_table(table))
    if asks := next((job for job in listed if (job.gpus or 0) > gpus), None):
        raise wrong(f"expected jobs of at most --gpus {gpus}, got {asks.gpus} for {asks.name}")
    times = job_times(listed, system, gpus, device, precision, framework)
    found = study(listed, times, gpus, restart_s, limit)
    common.result(policies=found.policies, degrees=found.degrees, jobs=found.rows)
    print(reports.jobs_report(found, gpus))
    common.table_written(found.rows, out, f"\nall {len(found.rows)} jobs in")
    unfit = found.rows.loc[found.rows["note"] != "", "note"]
    if unfit.empty:
        return 0
    common.warn(f"{len(unfit)} jobs left out, the note says why; the first: {unfit.iloc[0]}")
    return common.SOME_ROWS_UNPREDICTED
