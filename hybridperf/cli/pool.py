"""`hybridperf pool`, `choose edge`, `choose colocate`: machines for a service."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import wrong


def pool(
    types: Annotated[Path, Argument()],
    requests: Annotated[Path, Argument()],
    limit: Annotated[str, Option()],
    share: float = 0.99,
    most: int = 8,
    out: Path | None = None,
) -> None:
    """Find the pool of unlike machines that serves recorded requests within a limit at least cost.

    Requests go, first come first served, to the quickest machine that is free; each pool is
    simulated, the cheapest first. Columns of TYPES, and of REQUESTS:

    \b
    COLUMNS instances

    \b
    COLUMNS pool_requests
    """
    from hybridperf.io import read_table
    from hybridperf.serving.pools import (
        cheapest,
        homogeneous,
        pool_table,
        pool_words,
        read_requests,
        read_types,
    )

    if not 0 < share <= 1:
        raise wrong(f"expected --share above 0 and at most 1, got {share:g}")
    if not 1 <= most <= 50:
        raise wrong(f"expected --most from 1 to 50, got {most}")
    common.table_ready(out, [types, requests])
    limit_s = common.seconds_in(limit)
    some = read_types(read_table(types))
    arrival_s, size = read_requests(read_table(requests))
    found = cheapest(some, arrival_s, size, limit_s, share, most)
    alone = homogeneous(some, arrival_s, size, limit_s, share, most)
    pools = pool_table(some, found, alone)
    common.result(counts=dict(zip([one.name for one in some], found.counts, strict=True)),
                  usd_per_hour=found.usd_per_hour, within=found.within, pools=pools)  # fmt: skip
    print(f"{pool_words(some, found)}; {found.within:.2%} of {len(size):,} requests within {limit}")
    print("of one type alone, up to as many instances of it:")
    for one in some:
        pool = alone[one.name]
        words = "not within the limit" if pool is None else pool_words([one], pool)
        print(f"  {one.name}: {words}")
    best = min((pool.usd_per_hour for pool in alone.values() if pool), default=None)
    if best is not None and best > found.usd_per_hour:
        print(f"mixed, it costs {1 - found.usd_per_hour / best:.1%} less than the best of those")
    common.table_written(pools, out, "these pools, written to")


def edge(
    sites: Annotated[int, Option(min=1)],
    service: Annotated[str, Option()],
    farther: Annotated[str, Option()],
    cloud_service: str = "",
    share: float = 0.0,
    arrivals_cv2: float = 1.0,
    service_cv2: float = 1.0,
    out: Path | None = None,
) -> None:
    """From which load on one cloud is quicker than sites near the users, for all its distance."""
    from hybridperf.report import text
    from hybridperf.runs.edge import by_rate, inversion

    if not 0 <= share < 1:
        raise wrong(f"expected --share from 0 (the mean) to below 1, got {share:g}")
    for option, value in (("--arrivals-cv2", arrivals_cv2), ("--service-cv2", service_cv2)):
        if not 0 <= value <= 1e6:
            raise wrong(f"expected {option} of 0 or more, at most 1e6, got {value:g}; mend it")
    if sites > 100_000:
        raise wrong(f"expected --sites of at most 100,000, got {sites:,}; ask for fewer")
    common.table_ready(out, [])
    service_s, farther_s = common.seconds_in(service), common.seconds_in(farther)
    there_s = common.seconds_in(cloud_service) if cloud_service else service_s
    asked = (sites, service_s, farther_s, there_s, share)
    rate = inversion(*asked, arrivals_cv2=arrivals_cv2, service_cv2=service_cv2)
    rows = by_rate(*asked, arrivals_cv2=arrivals_cv2, service_cv2=service_cv2)
    common.result(rate_per_s=rate, utilisation=rate * service_s, rows=rows)
    print(text.frame_table(rows))
    what = f"{share:.0%} of the requests" if share else "the mean request"
    if rate == 0:
        print(f"the cloud is quicker at any load, for {what}")
    elif rate == float("inf"):
        print(f"the edge is quicker at any load, for {what}")
    else:
        busy = f"{rate * service_s:.1%} busy"
        print(f"from {rate:.4g} requests/s a site on ({busy}) the cloud is quicker, for {what}")
    common.table_written(rows, out, f"{len(rows)} rows written to")


def colocate(
    rows: Annotated[Path, Argument()],
    fit_on: Path | None = None,
    out: Path | None = None,
) -> None:
    """Bounds on how long tasks take that share a machine; with measured groups a prediction, too.

    Columns of ROWS, a row for each task; NAME_s for each resource (seconds that the task needs of
    it) are columns, too:

    \b
    COLUMNS tasks
    """
    import numpy as np

    from hybridperf.io import read_table
    from hybridperf.report.text import print_rows
    from hybridperf.runs.colocation import Interference, predicted, read_groups

    common.table_ready(out, [rows, fit_on])
    groups = read_groups(read_table(rows))
    learned = None
    if fit_on is not None:
        learned = Interference.fitted(read_groups(read_table(fit_on)))
    found = predicted(groups, learned)
    common.result(rows=found)
    print_rows(found)
    if learned is None:
        print("bounds alone: --fit-on ROWS with measured groups says where between them")
    else:
        width = f"a factor of {np.exp(learned.half_width):.3g} either way"
        print(f"learned from {learned.rows} groups; 90 % of them, each left out, within {width}")
    common.table_written(found, out, f"{len(found)} groups written to")
