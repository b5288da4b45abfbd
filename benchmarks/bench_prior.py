"""Timings of adapted priors, run by hand: python benchmarks/bench_prior.py [DATA]

Adapting the installed prior of GEMMs to H200 rows of the data folder, and pricing rows with the
result, on one core.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np
from threadpoolctl import threadpool_limits

from hybridperf.learning.prior import adapt
from hybridperf.learning.prior.shipped import DEFAULT_PRIOR, load_prior
from hybridperf_calibration.published.ops import read_families

DEVICE, FAMILY = "b200_sxm", "matmul"


def main() -> None:
    """Print the figures of README's speed table."""
    threadpool_limits(1)
    data = Path(
        sys.argv[1] if len(sys.argv) > 1 else os.environ.get("HYBRIDPERF_DATA", "../shared/data")
    )
    prior = load_prior(DEFAULT_PRIOR).families[FAMILY].with_references([DEVICE])
    rows = read_families(data, [FAMILY]).families[FAMILY][DEVICE]
    many = rows.some(np.random.default_rng(0).integers(0, len(rows), 100_000))
    for count in (0, 200, 2_500, 100_000):
        start_s = time.perf_counter()
        adapted = adapt(prior, many.rows.rows(slice(0, count)), many.time_s[:count])
        adapt_s = time.perf_counter() - start_s
        adapted.predict(many.rows)  # compiles
        times_s = []
        for _ in range(3):
            start_s = time.perf_counter()
            adapted.predict(many.rows)
            times_s.append(time.perf_counter() - start_s)
        print(
            f"{count:7,} rows: adapted in {adapt_s:5.1f} s, then {len(many) / min(times_s):9,.0f}"
            " rows/s"
        )


if __name__ == "__main__":
    main()
