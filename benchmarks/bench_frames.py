"""Rows a second of the functions that take a frame and give it back with predictions:
`python benchmarks/bench_frames.py`.

By seconds of processor, the least of several passes over one table, notes and intervals included;
the first pass, which compiles and prices, does not count. Rows of `steps` are drawn from published
layouts (HYBRIDPERF_DATA), those of the others are random.
"""

import os
import time
from collections.abc import Callable, Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_collectives
import bench_serving
import bench_steps
import numpy as np
import pandas as pd

import hybridperf as hp
from hybridperf.cli.common import compilation_cache

PASSES = 4
GOALS = {"steps": 23_700, "serving": 10_000, "ops": 410_000, "collectives": 160_000}


def ops(number: int, rng: np.random.Generator) -> pd.DataFrame:
    """Products and loops of usual sizes."""
    product = rng.random(number) < 0.5
    sizes = {name: np.round(2 ** rng.uniform(4, 13, number)) for name in ("m", "n", "k")}
    return pd.DataFrame(
        {"op": np.where(product, "gemm", "gelu"), "dtype": "bf16"}
        | {name: np.where(product, values, np.nan) for name, values in sizes.items()}
        | {"rows": np.where(product, np.nan, sizes["m"]),
           "cols": np.where(product, np.nan, sizes["n"])}
    )  # fmt: skip


def main() -> None:
    """Print all rates."""
    rng = np.random.default_rng(0)
    asked: Mapping[str, tuple[pd.DataFrame, Callable[[pd.DataFrame], pd.DataFrame]]] = {
        "steps": (bench_steps.swept(bench_steps.published(), rng), hp.predict_steps),
        "serving": (bench_serving.asked(5_000, rng), hp.predict_serving),
        "ops": (ops(100_000, rng), lambda rows: hp.predict_ops(rows, "h100_sxm")),
        "collectives": (
            bench_collectives.asked(100_000, 0),
            lambda rows: hp.predict_collectives(rows, bench_collectives.SYSTEM),
        ),
    }
    for name, (rows, predict) in asked.items():
        taken_s = []
        for _ in range(PASSES):
            start_s = time.process_time()
            found = predict(rows)
            taken_s.append(time.process_time() - start_s)
        empty = int(found["predicted_s"].isna().sum()) if "predicted_s" in found else 0
        print(
            f"predict_{name}: {len(rows):,} rows, {len(rows) / min(taken_s[1:]):,.0f} a second of"
            f" processor (goal {GOALS[name]:,}), the first pass {taken_s[0]:.1f} s; {empty} empty",
            flush=True,
        )


if __name__ == "__main__":
    compilation_cache()
    main()
