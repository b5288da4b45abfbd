"""Seconds to read and summarise a large trace, run by hand: python benchmarks/bench_traces.py
[--megabytes 100]

A real trace of `HYBRIDPERF_DATA` (default ../shared/data) is repeated with shifted times until it
is that large, and read by a process of its own on one core; its seconds, its processor's seconds
and its peak memory are printed next to the bars they must hold.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRACE = "traces/hta_trace_diff_control_A100_rank3of8.json.gz"
BAR_S, BAR_BYTES = 15.0, 1.5 * 2**30  # of 100 MB
CHILD = """
import resource, sys, time
start = time.monotonic()
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.steps import steps
from hybridperf.traces.summary import summaries
trace, = read_traces([sys.argv[1]])
read = time.monotonic()
found = summaries([trace], [(step,) for step in steps(trace)])
used = resource.getrusage(resource.RUSAGE_SELF)
cpu_s, bytes_used = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
print(read - start, time.monotonic() - read, cpu_s, bytes_used, len(found), len(trace.host))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    data = Path(
        os.environ.get("HYBRIDPERF_DATA", Path(__file__).parent.parent.parent / "shared/data")
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        size = write_large(data / TRACE, path, asked.megabytes * 1e6)
        bars = (
            f"bars {BAR_S * size / 1e8:.0f} s and {BAR_BYTES * max(1, size / 1e8) / 2**30:.1f} GiB"
        )
        for _ in range(asked.runs):
            command = [sys.executable, "-c", CHILD, str(path)]
            pin = (
                (lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}))
                if hasattr(os, "sched_setaffinity")
                else None
            )
            figures = subprocess.run(
                command, check=True, capture_output=True, text=True, preexec_fn=pin
            ).stdout.split()
            read_s, summary_s, cpu_s, peak = map(float, figures[:4])
            print(
                f"{size / 1e6:.0f} MB, {figures[4]} steps, {int(figures[5]):,} host events: read"
                f" {read_s:.1f} s, summarised {summary_s:.1f} s, processor {cpu_s:.1f} s, peak"
                f" {peak / 2**30:.2f} GiB ({bars})"
            )


def write_large(trace: Path, path: Path, size: float) -> int:
    """The trace's events again and again, each time later and with other correlations; bytes
    written.
    """
    with gzip.open(trace) as handle:
        document = json.load(handle)
    events = document.pop("traceEvents")
    timed = [event for event in events if "ts" in event]
    length = (
        1
        + max(event["ts"] + event.get("dur", 0) for event in timed)
        - min(event["ts"] for event in timed)
    )
    most = 1 + max(event.get("args", {}).get("correlation", 0) for event in events)
    head = json.dumps(document)[:-1]
    with path.open("w") as out:
        out.write(f'{head}, "traceEvents": [{json.dumps(events[0])}')
        for number in range(10**6):
            if out.tell() >= size:
                break
            for event in events:
                args = dict(event.get("args", {}))
                if "correlation" in args:
                    args["correlation"] += number * most
                again = {**event, "args": args} | (
                    {"id": event["id"] + number * most} if isinstance(event.get("id"), int) else {}
                )
                if "ts" in event:
                    again["ts"] = event["ts"] + number * length
                if str(event.get("name", "")).startswith("ProfilerStep#"):
                    again["name"] = (
                        f"ProfilerStep#{int(event['name'].split('#')[1]) + 1000 * number}"
                    )
                out.write(",\n" + json.dumps(again))
        out.write("]}")
    return path.stat().st_size


if __name__ == "__main__":
    main()
