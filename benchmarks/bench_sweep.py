"""What a sweep costs besides its predictions, run by hand: python benchmarks/bench_sweep.py
[--quick]

(a) Points a second of a shipped sweep of collectives (chunks, derived columns, best so far, part
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

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SPEC = "collectives_h100"
QUICK_BYTES = 50_000  # values of `bytes` where the shipped spec has 500,000: a million points
CLUSTER_CHUNK, CLUSTER_BYTES = 16384, 200_000
RATE_BAR, WORKERS_BAR = 0.8, 1.9


def spec(count: int | None, chunk: int | None = None) -> dict:
    """The shipped spec with fewer sizes."""
    from hybridperf.explore.sweeps.spec import read_spec

    document = dict(read_spec(SPEC).document)
    if count is not None:
        document["parameters"] = document["parameters"] | {
            "bytes": document["parameters"]["bytes"] | {"count": count}
        }
    return document | ({} if chunk is None else {"chunk": chunk})


def in_memory(document: dict, share: int) -> float:
    """Points a second of every `share`-th chunk, evaluated and thrown away."""
    from hybridperf.explore.sweeps.chunk import bounds, chunks, points
    from hybridperf.explore.sweeps.spec import read_spec

    read = read_spec(document)
    read.target.evaluate(points(read, 0))  # compiles
    some = range(0, chunks(read), share)
    start_s = time.process_time()
    for chunk in some:
        read.target.evaluate(points(read, chunk))
    return sum(stop - start for start, stop in (bounds(read, chunk) for chunk in some)) / (
        time.process_time() - start_s
    )


def whole(document: dict, folder: Path) -> float:
    """Points a second of the sweep: processor time, writing and reading the parts included."""
    import hybridperf as hp

    start_s = time.process_time()
    done = hp.sweep(document, folder / "out.parquet")
    assert done.rows == done.points == done.computed
    return done.points / (time.process_time() - start_s)


def alone(quick: bool) -> dict[str, float]:
    """(a), to be run in a process of its own."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    document = spec(QUICK_BYTES if quick else None)
    memory = in_memory(document, 3 if quick else 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with tempfile.TemporaryDirectory() as folder:
        rate = whole(document, Path(folder))
    again = in_memory(document, 3 if quick else 10)  # before and after: others share the machine
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
    from hybridperf.explore.sweeps.spec import read_spec
    from hybridperf.explore.sweeps.store import SweepStore, sweep_identity

    read = read_spec(spec(CLUSTER_BYTES, CLUSTER_CHUNK))
    with tempfile.TemporaryDirectory() as folder:
        store = SweepStore(Path(folder) / "out.parquet", sweep_identity(read.identity()))
        with store.open():
            todo = range(chunks(read))
            finished_s = [time.monotonic() for _ in cluster.do(read, todo, store, count, None)]
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
