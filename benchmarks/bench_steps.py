"""Rows of training steps predicted per second, on one core: `taskset -c 0 python
benchmarks/bench_steps.py`.

vTrain's published layouts of one node (the folder of measurements from HYBRIDPERF_DATA), no
measured step used; the first pass compiles and prices the cells, the best of the others counts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pandas as pd

from hybridperf.cli.common import compilation_cache
from hybridperf.training.steps.predict import predict_steps

PASSES = 5


def main() -> None:
    """Print both rates."""
    folder = Path(
        os.environ.get("HYBRIDPERF_DATA", Path(__file__).parent.parent.parent / "shared" / "data")
    )
    rows = pd.read_csv(folder / "training_steps" / "vtrain_steps_dev.csv.gz")
    rows = rows[rows["source"].eq("vtrain_single_node")].reset_index(drop=True)
    rates = []
    for _ in range(PASSES):
        began = time.perf_counter()
        predict_steps(rows)
        rates.append(len(rows) / (time.perf_counter() - began))
    print(
        f"{len(rows)} rows: {rates[0]:,.0f} rows/s at first, {max(rates[1:]):,.0f} rows/s after"
        " that"
    )


if __name__ == "__main__":
    compilation_cache()
    main()
