"""How fast collectives are predicted and systems fitted: `python benchmarks/bench_collectives.py`,
pinned to one core.
"""

import os
import time

import numpy as np
import pandas as pd

import hybridperf as hp
from hybridperf.collectives.model import load_collectives

SYSTEM = "aic_h100_sxm"  # its calibration is shipped
ROWS = 100_000


def asked(number: int, seed: int) -> pd.DataFrame:
    """Collectives of usual kinds and sizes."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "collective": random.choice(
                ["all_reduce", "all_gather", "alltoall", "reduce_scatter"], number
            ),
            "bytes": np.round(2 ** random.uniform(8, 30, number)),
            "n_gpus": random.choice([2, 4, 8], number),
            "n_nodes": 1,
            "lib": "nccl",
            "dtype": "half",
        }
    )


def best_s(call, repeats: int) -> float:
    call()  # compiles
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - start_s)
    return min(times)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model, rows = load_collectives(SYSTEM), asked(ROWS, 0)
    print(
        f"rows of a table predicted: {ROWS / best_s(lambda: model.predict(rows), 5):,.0f} a second"
    )
    for number in (80, 400):
        few = asked(number, 1)
        few["time_s"] = model.predict(few)["predicted_s"] * np.exp(
            0.03 * np.random.default_rng(2).normal(size=number)
        )
        print(
            f"fit of {number} rows:"
            f" {best_s(lambda few=few: hp.fit_collectives(few, 'aic_h200_sxm'), 2):.1f} s"
        )


if __name__ == "__main__":
    main()
