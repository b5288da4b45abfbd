"""Rows of training steps predicted per second, on one core: `taskset -c 0 python
benchmarks/bench_steps.py`.

vTrain's published layouts of one node (the folder of measurements from HYBRIDPERF_DATA), no
measured step used; the first pass compiles and prices the cells, the best of the others counts.
Then a sweep: 20,000 of these rows, drawn, on other numbers of replicas and with other batches. New
tables ask what none before them did but in part; the same table asks again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.cli.common import compilation_cache
from hybridperf.training.steps.predict import predict_steps

PASSES = 5
SWEPT = 20_000


def main() -> None:
    """Print all rates."""
    rows = published()
    rates = [rate(rows) for _ in range(PASSES)]
    print(
        f"{len(rows)} rows: {rates[0]:,.0f} rows/s at first, {max(rates[1:]):,.0f} rows/s after"
        " that"
    )
    rng = np.random.default_rng(0)
    tables = [swept(rows, rng) for _ in range(PASSES)]
    new, again = [rate(one) for one in tables], [rate(tables[-1]) for _ in range(PASSES)]
    print(
        f"{SWEPT:,} rows of a sweep: {max(new[1:]):,.0f} rows/s of new tables,"
        f" {max(again):,.0f} rows/s of the same one"
    )


def published() -> pd.DataFrame:
    """vTrain's layouts of one node."""
    folder = Path(
        os.environ.get("HYBRIDPERF_DATA", Path(__file__).parent.parent.parent / "shared" / "data")
    )
    rows = pd.read_csv(folder / "training_steps" / "vtrain_steps_dev.csv.gz")
    return rows[rows["source"].eq("vtrain_single_node")].reset_index(drop=True)


def rate(rows: pd.DataFrame) -> float:
    """Rows predicted a second."""
    began = time.perf_counter()
    predict_steps(rows)
    return len(rows) / (time.perf_counter() - began)


def swept(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Rows drawn from a table, on 1, 2 or 4 times as many replicas with 1 to 8 times the batch."""
    drawn = rows.iloc[rng.integers(0, len(rows), SWEPT)].reset_index(drop=True)
    replicas, batches = rng.choice([1, 2, 4], SWEPT), rng.integers(1, 9, SWEPT)
    return drawn.assign(
        dp=drawn["dp"] * replicas, n_gpus=drawn["n_gpus"] * replicas,
        global_batch=drawn["global_batch"] * replicas * batches,
    )  # fmt: skip


if __name__ == "__main__":
    compilation_cache()
    main()
