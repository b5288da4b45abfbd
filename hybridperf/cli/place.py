"""`hybridperf place`: which GPUs of a topology a job should get; `jobs`: how schedulers
serve many of them.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import Name, wrong


def place(
    topology: Annotated[str, Argument()],
    gpus: Annotated[int | None, Option("--gpus", min=1)] = None,
    system: str = "",
    device: str = "",
    busy: str = "",
    bytes: Annotated[float, Option("--bytes")] = 256e6,
    compute_s: Annotated[float, Option("--compute-s")] = 0.0,
    shape: str = "",
    micro_batch: Annotated[int, Option(min=1)] = 1,
    broadcast_bytes: Annotated[float | None, Option("--broadcast-bytes")] = None,
    jobs: Path | None = None,
    out: Path | None = None,
) -> None:
    """Find the GPUs of a topology on which a job runs best, by policy, and what others cost it.

    TOPOLOGY is what `nvidia-smi topo -m` printed (.txt), a matrix of its words or of rates in
    bytes/s (.csv; .json with "links"), a cluster (.toml: system, nodes, nodes_per_leaf,
    oversubscription, rails, links), or the name of a system. A step is that of --shape,
    data-parallel, or --compute-s and then an all-reduce of --bytes. With --jobs, a stream of jobs
    goes first come first served under each policy; columns of JOBS:

    \b
    COLUMNS placed_jobs
    """
    import math

    from hybridperf.hardware.topology import load_topology
    from hybridperf.io import read_table
    from hybridperf.runs import placement_report as reports
    from hybridperf.runs.placement import (
        POLICIES,
        PlacedStep,
        Placer,
        broadcasts,
        place_stream,
        placements,
    )
    from hybridperf.runs.placement import read_placed_jobs as read_jobs
    from hybridperf.workloads.transformer import load_shape

    if (gpus is None) == (jobs is None):
        got = "neither" if gpus is None else "both"
        raise wrong(f"expected one of --gpus and --jobs, got {got}")
    amounts = {"--bytes": bytes, "--compute-s": compute_s, "--broadcast-bytes": broadcast_bytes}
    for option, value in amounts.items():
        if value is not None and not (0 <= value < 1e15 and math.isfinite(value)):
            raise wrong(f"expected a number from 0 to 1e15 in {option}, got {value:g}")
    if system and Path(topology).suffix in ("", ".toml"):  # else a matrix, which does not say
        raise wrong(f"expected no --system with {topology}, which says its nodes, got {system}")
    if bytes == 0:
        raise wrong("expected --bytes above 0, got 0: a job that sends nothing runs anywhere")
    if shape and compute_s:
        raise wrong("expected one of --shape and --compute-s, got both; a shape has its own time")
    common.table_ready(out, [Path(topology), jobs])
    common.compilation_cache()
    cluster = load_topology(topology, system)
    placer = Placer.of(cluster, device)
    common.warn(*reports.shortcomings(placer))
    if jobs is not None:
        listed = read_jobs(read_table(jobs), cluster)
        streams = [place_stream(placer, listed, policy) for policy in POLICIES]
        rows = reports.jobs_frame(listed, streams)
        common.result(policies=reports.policies_frame(streams), jobs=rows)
        print(reports.policies_report(streams))
        common.table_written(rows, out, f"\nall {len(rows)} jobs under each policy in")
        return
    assert gpus is not None
    taken = _gpus_in(busy, cluster.gpus)
    if gpus > cluster.gpus - len(taken):
        free = f"{cluster.gpus - len(taken)} of {cluster.gpus} are free"
        raise wrong(f"expected --gpus of what is free, got {gpus} where {free}; ask for fewer")
    if gpus == 1 and not (shape or compute_s):
        raise wrong(
            "expected --shape or --compute-s for one GPU, which reduces nothing, got neither;"
            " give one of them"
        )
    sizes = load_shape(shape) if shape else None
    step = PlacedStep(compute_s, bytes, sizes, micro_batch)
    found = placements(placer, gpus, step, taken)
    common.result(placements=found)
    print(reports.placements_report(found, gpus, step))
    if broadcast_bytes:
        if gpus < 2:
            raise wrong("expected --gpus of 2 or more with --broadcast-bytes, got 1")
        ways = broadcasts(placer, found, broadcast_bytes)
        common.result(broadcasts=ways)
        print("\n" + reports.broadcasts_report(ways, broadcast_bytes))
    common.table_written(found, out, "\nin")


def _gpus_in(text: str, most: int) -> list[int]:
    names = common.names_in(text)
    if any(not one.isdecimal() or int(one) >= most for one in names):
        raise wrong(
            f"expected GPUs from 0 to {most - 1} separated by commas in --busy, got {text!r}"
        )
    return sorted({int(one) for one in names})


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

    Time by batch and GPUs is that of the quickest layout that fits. FIFO, shortest remaining time
    first, Gittins' index, elastic; and, where what cannot start at once is refused, what share that
    is by how many GPUs each job gets. Columns of JOBS:

    \b
    COLUMNS jobs
    """
    import math

    from hybridperf.io import read_table
    from hybridperf.runs.job_policies import study
    from hybridperf.runs.job_times import job_times, read_training_jobs
    from hybridperf.runs.placement_report import jobs_report

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
    print(jobs_report(found, gpus))
    common.table_written(found.rows, out, f"\nall {len(found.rows)} jobs in")
    unfit = found.rows.loc[found.rows["note"] != "", "note"]
    if unfit.empty:
        return 0
    common.warn(f"{len(unfit)} jobs left out, the note says why; the first: {unfit.iloc[0]}")
    return common.SOME_ROWS_UNPREDICTED
