"""A million training layouts and a million operating points, swept by one worker and by two on a
core each: `python benchmarks/bench_grid.py [--points 1048576] [--workers 1 2]`.

Rows a second of the whole sweep (starting Python, pricing, one Parquet file at the end), and by the
seconds of processor of all workers together, which others on the machine do not change; the largest
process' memory.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
POINTS, MINUTES, MEMORY_BAR, WORKERS_BAR = 2**20, 2.0, 2e9, 1.9
GRIDS: dict[str, dict[str, Any]] = {
    "steps": {
        "fields": {
            "model": "llama3-70b", "gpu": ["h100_sxm", "h200", "b200_sxm"], "n_gpus": "256..4096",
            "tp": "1..8", "pp": "1..16", "vp": [1, 2, 4, 5], "cp": [1, 2, 4],
            "micro_batch": "1..8", "global_batch": "512..8192",
            "recompute": ["none", "selective", "full"], "sharding": ["zero1", "zero2", "zero3"],
            "precision": ["bf16", "fp8"],
        },
        "where": "tp * pp * cp <= n_gpus and tp * pp * cp * global_batch >= n_gpus * micro_batch",
    },
    "serve": {
        "fields": {
            "model": ["llama3-70b", "llama3-8b"], "gpu": ["h100_sxm", "h200", "b200_sxm"],
            "backend": ["vllm", "sglang"], "precision": ["fp8", "bf16"], "tp": "1..8",
            "isl": {"min": 128, "max": 8192, "integer": True},
            "osl": {"min": 32, "max": 2048, "integer": True},
            "concurrency": {"min": 1, "max": 512, "integer": True},
        },
    },
}  # fmt: skip


def children_s() -> float:
    """Seconds of processor of processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    from hybridperf.explore.sweeps import sweep

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    for question, asked in GRIDS.items():
        rates = []
        for count in options.workers:
            before_s, start_s = children_s(), time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                done = sweep(question, Path(folder) / "out.parquet", **asked,
                             sample=options.points, workers=count, quiet=True)  # fmt: skip
            took_s, worked_s = time.monotonic() - start_s, children_s() - before_s
            rates.append(done.points / took_s)
            print(
                f"{question}, workers {count}: {done.points:,} points, {done.rows:,} rows in"
                f" {took_s:.0f} s, {rates[-1]:,.0f} points/s; {done.points / worked_s:,.0f} a"
                " second of processor",
                flush=True,
            )
        if len(rates) > 1:
            print(
                f"    {rates[-1] / rates[0]:.2f} times (at least {WORKERS_BAR}); a million in"
                f" {1e6 / rates[-1] / 60:.1f} minutes (at most {MINUTES:g})"
            )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"largest worker {peak / 1e6:,.0f} MB (at most {MEMORY_BAR / 1e6:,.0f})")


if __name__ == "__main__":
    main()
