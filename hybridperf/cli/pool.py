"""`hybridperf pool`: which machines to rent for a service."""

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
) -> None:
    """Find the pool of unlike machines that serves recorded requests within a limit at least cost.

    Requests go, first come first served, to the quickest machine that is free; each pool is
    simulated, the cheapest first. Columns of TYPES: name, usd_per_hour, fixed_s (of each request),
    each_s (of each unit of its size). Columns of REQUESTS: arrival_s, size.
    """
    from hybridperf.io import read_table
    from hybridperf.runs.pools import cheapest, homogeneous, pool_words, read_requests, read_types

    if not 0 < share <= 1:
        raise wrong(f"expected --share above 0 and at most 1, got {share:g}")
    if not 1 <= most <= 50:
        raise wrong(f"expected --most from 1 to 50, got {most}")
    limit_s = 1e-3 * common.seconds_in(limit[:-2]) if limit.endswith("ms") else None
    limit_s = common.seconds_in(limit) if limit_s is None else limit_s
    some = read_types(read_table(types))
    arrival_s, size = read_requests(read_table(requests))
    found = cheapest(some, arrival_s, size, limit_s, share, most)
    common.result(counts=dict(zip([one.name for one in some], found.counts, strict=True)),
                  usd_per_hour=found.usd_per_hour, within=found.within)  # fmt: skip
    print(f"{pool_words(some, found)}; {found.within:.2%} of {len(size):,} requests within {limit}")
    print("of one type alone, up to as many instances of it:")
    for one, alone in zip(some, homogeneous(some, arrival_s, size, limit_s, share, most).values(),
                          strict=True):  # fmt: skip
        words = "not within the limit" if alone is None else pool_words([one], alone)
        print(f"  {one.name}: {words}")
