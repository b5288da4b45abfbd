"""`hybridperf pool`: machines for a service."""

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
    simulated, the cheapest first. What a request takes is priced: the other columns of TYPES say
    what a machine serves, as rows of `serve` (model, gpu, backend, tp, isl, osl, ...), one request
    at a time. Columns of TYPES, and of REQUESTS:

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
    common.compilation_cache()
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
