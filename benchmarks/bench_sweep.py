"""What a sweep costs besides its predictions, run by hand: python benchmarks/bench_sweep.py
[--quick]

(a) Points a second of a sweep of collectives (chunks, derived columns, best so far, part
files, one Parquet file at the end) over
    those of the same chunks predicted in memory and thrown away, in a process of its own on one
    core, with its peak memory.
(b) Two Dask workers, each pinned to its core, over one, writing their parts: from the tenth of the
finished chunks to the last, as starting Python is not the matter.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
MODEL = "aic_h100_sxm"
SIZES, QUICK_SIZES = 500_000, 50_000  # values of `bytes`: ten million points, or one
CLUSTER_CHUNK, CLUSTER_SIZES = 16384, 200_000
RATE_BAR, WORKERS_BAR = 0.8, 1.9


def asked(count: int, chunk: int = 65536) -> dict[str, Any]:
    """Which collective, over how many ranks of an 8-GPU node, with how many bytes."""
    fields = {
        "collective": ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast"],
        "n_gpus": "2..16", "n_nodes": 1, "bytes": {"min": 1e3, "max": 1e10, "count": count},
    }  # fmt: skip
    derived = {"seconds_per_byte": "predicted_s / bytes"}
    return {"question": "collectives", "fields": fields, "derived": derived, "chunk": chunk}


def read(given: dict[str, Any]) -> Any:
    from hybridperf.explore.sweeps.spec import document, read_spec

    return read_spec(document(**given, settings={"model": MODEL}, folder=Path(".")))


def in_memory(given: dict[str, Any], share: int) -> float:
    """Points a second of every `share`-th chunk, evaluated and thrown away."""
    from hybridperf.explore.sweeps.chunk import bounds, chunks, points

    spec = read(given)
    spec.target.evaluate(points(spec, 0))  # compiles
    some = range(0, chunks(spec), share)
    start_s = time.process_time()
    for chunk in some:
        spec.target.evaluate(points(spec, chunk))
    return sum(stop - start for start, stop in (bounds(spec, chunk) for chunk in some)) / (
        time.process_time() - start_s
    )


def whole(given: dict[str, Any], folder: Path) -> float:
    """Points a second of the sweep: processor time, writing and reading the parts included."""
    import hybridperf as hp

    start_s = time.process_time()
    best = {"top": 10, "by": "seconds_per_byte"}
    done = hp.sweep(**given, **best, model=MODEL, out=folder / "out.parquet")
    assert done.rows == done.points == done.computed
    return done.points / (time.process_time() - start_s)


def alone(quick: bool) -> dict[str, float]:
    """(a), to be run in a process of its own."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    given = asked(QUICK_SIZES if quick else SIZES)
    memory = in_memory(given, 3 if quick else 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with tempfile.TemporaryDirectory() as folder:
        rate = whole(given, Path(folder))
    again = in_memory(given, 3 if quick else 10)  # before and after: others share the machine
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "rate": rate,
        "memory_rate": (memory + again) / 2,
        "before_bytes": before,
        "peak_bytes": peak,
    }


def workers(count: int) -> float:
    """Points a second with so many Dask workers, from the tenth of their chunks to the last."""
    from hybridperf.explore.sweeps import cluster
    from hybridperf.explore.sweeps.chunk import chunks
    from hybridperf.explore.sweeps.store import SweepStore, sweep_identity

    spec = read(asked(CLUSTER_SIZES, CLUSTER_CHUNK))
    with tempfile.TemporaryDirectory() as folder:
        store = SweepStore(Path(folder) / "out.parquet", sweep_identity(spec.identity()))
        with store.open():
            todo = range(chunks(spec))
            finished_s = [time.monotonic() for _ in cluster.do(spec, todo, store, count, None)]
    warm = len(finished_s) // 10  # each has compiled and read the model by then
    return (len(finished_s) - warm) * CLUSTER_CHUNK / (finished_s[-1] - finished_s[warm - 1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a million points instead of ten")
    parser.add_argument("--only", choices=["a", "b"], help="one of the two")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(alone(options.quick)))
        return
    if options.only != "b":
        command = [sys.executable, __file__, "--alone", *(["--quick"] if options.quick else [])]
        found = json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        )
        ratio = found["rate"] / found["memory_rate"]
        print(
            f"(a) {found['rate']:,.0f} points/s, {ratio:.2f} of {found['memory_rate']:,.0f} in"
            f" memory (at least {RATE_BAR})"
        )
        print(
            f"    peak memory {found['peak_bytes'] / 1e6:,.0f} MB,"
            f" {found['before_bytes'] / 1e6:,.0f} MB before the sweep"
        )
    if options.only != "a":
        cores = len(os.sched_getaffinity(0))
        if cores < 2:
            print("(b) needs two cores, this process may use one")
            return
        one, two = workers(1), workers(2)
        print(
            f"(b) two workers on a core each: {two:,.0f} points/s, {two / one:.2f} times one,"
            f" {one:,.0f} (at least {WORKERS_BAR})"
        )


if __name__ == "__main__":
    main()
