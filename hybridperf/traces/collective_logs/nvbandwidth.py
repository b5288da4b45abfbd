"""Matrices that NVIDIA's `nvbandwidth` prints, as sends from one GPU of a node to another.

    Running device_to_device_memcpy_write_ce.
    memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
               0         1
     0       N/A    276.07
     1    276.36       N/A

A row for each test of copies between two GPUs one way: the median over pairs, at the buffer that
the tool copies unless told otherwise (512 MiB; its log does not say). Copies both ways at once and
those to and from the host are skipped, with a remark.
"""

from __future__ import annotations

import re
import statistics
from typing import Any

from hybridperf.traces.collective_logs.job_logs import (
    CallerHints,
    LogReader,
    Machines,
    lines_of,
    measurement,
    places,
)

_TEST = re.compile(r"Running (\w{1,80})\.")
_MATRIX_ROW = re.compile(r"\s*\d{1,3}((?:\s+(?:N/A|\d+\.\d+))+)\s*$")
_COPIED_BYTES = 512 * 2**20
_PAIR = Machines(2, 1)


def _looks_like(text: str) -> bool:
    return "nvbandwidth Version" in text or bool(
        re.search(r"^Running (?:host|device)_to_(?:host|device)_\w+\.", text, re.M)
    )


def _read(text: str, hints: CallerHints) -> tuple[list[dict[str, Any]], list[str]]:
    rates: dict[str, list[float]] = {}
    test, skipped = "", dict[str, list[int]]()
    for number, line in enumerate(lines_of(text), 1):
        if match := _TEST.match(line):
            test = match[1]
        elif test and (match := _MATRIX_ROW.match(line)):
            if not test.startswith("device_to_device"):
                skipped.setdefault(f"{test} is no copy between GPUs", []).append(number)
            elif "bidirectional" in test:
                skipped.setdefault("both ways at once", []).append(number)
            else:
                found = [float(one) for one in match[1].split() if one != "N/A"]
                rates.setdefault(test, []).extend(one for one in found if one > 0)
    rows = [
        measurement(
            "sendrecv", _COPIED_BYTES, _PAIR, _COPIED_BYTES / (1e9 * statistics.median(of)),
            lib="nvbandwidth", variant=name,
        )
        for name, of in rates.items() if of
    ]  # fmt: skip
    return rows, [f"{places(numbers)}: {why}, skipped" for why, numbers in skipped.items()]


READER = LogReader("nvbandwidth", "no matrix of copies between GPUs", _looks_like, _read)
