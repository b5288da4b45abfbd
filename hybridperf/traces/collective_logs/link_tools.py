"""What tools print that time links themselves, as sends from one GPU or host to another.

perftest's `ib_write_bw` and `ib_write_lat` (linux-rdma/perftest):

    ib_write_bw   #bytes  #iterations  BW peak[..]  BW average[..]  MsgRate[Mpps]
    ib_write_lat  #bytes  #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec] ...

Bandwidths are MiB/s ("MB/sec") or, with --report_gbits, 1e9 bit/s. Writes are queued, so that one
hides what another waits for: messages under a MiB tell no time of one message and are skipped, as
are runs both ways at once. A latency is half of a round trip.

NVIDIA's `nvbandwidth`, as matrices between the GPUs of a node:

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

from hybridperf.traces.collective_logs import job_logs

_HEADER = re.compile(r"\s*#bytes\s+#iterations\s+(?:BW peak\[(MB|Gb)/sec\]|(t_min\[usec\]))")
_TITLE = re.compile(r"(RDMA_Write|RDMA_Read|Send) (Bidirectional )?(?:BW|Latency) Test")
_RESULT = re.compile(r"\s*(\d{1,15})\s+(\d{1,15})((?:\s+[\d.]+)+)\s*$")
_BYTES_PER_S = {"MB": 2.0**20, "Gb": 1e9 / 8}
_QUEUED_BYTES = 2**20  # smaller ones hide their latency behind each other
_TWO_HOSTS = job_logs.Machines(2, 2)
_TEST = re.compile(r"Running (\w{1,80})\.")
_MATRIX_ROW = re.compile(r"\s*\d{1,3}((?:\s+(?:N/A|\d+\.\d+))+)\s*$")
_COPIED_BYTES = 512 * 2**20
_PAIR = job_logs.Machines(2, 1)


def _is_perftest(text: str) -> bool:
    return bool(_HEADER.search(text) or _TITLE.search(text))


def _read_perftest(
    text: str, hints: job_logs.CallerHints
) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    skipped: dict[str, list[int]] = {}
    unit, latency, both_ways, tool = "", False, False, "RDMA_Write"
    for number, line in enumerate(job_logs.lines_of(text), 1):
        if title := _TITLE.search(line):
            tool, both_ways = title[1], bool(title[2])
        elif header := _HEADER.match(line):
            unit, latency = header[1] or "", bool(header[2])
        elif (unit or latency) and (result := _RESULT.match(line)):
            found = _row(result, unit, latency, both_ways, tool)
            if isinstance(found, str):
                skipped.setdefault(found, []).append(number)
            else:
                rows.append(found)
    return rows, [f"{job_logs.places(numbers)}: {why}, skipped" for why, numbers in skipped.items()]


def _row(
    result: re.Match[str], unit: str, latency: bool, both_ways: bool, tool: str
) -> dict[str, Any] | str:
    size = int(result[1])
    try:
        values = [float(value) for value in result[3].split()]
    except ValueError:
        return job_logs.DAMAGED
    place = 2 if latency else 1  # t_typical, BW average
    if len(values) <= place or values[place] <= 0 or size < 1:
        return job_logs.DAMAGED
    if both_ways:
        return "both ways at once"
    if not latency and size < _QUEUED_BYTES:
        return "queued messages hide what each of them takes"
    time_s = values[place] * 1e-6 if latency else size / (values[place] * _BYTES_PER_S[unit])
    return job_logs.measurement(
        "sendrecv", size, _TWO_HOSTS, time_s, lib="perftest", variant=tool.lower()
    )


PERFTEST = job_logs.LogReader(
    "ib_write_bw or ib_write_lat", "no line below #bytes", _is_perftest, _read_perftest
)


def _is_nvbandwidth(text: str) -> bool:
    return "nvbandwidth Version" in text or bool(
        re.search(r"^Running (?:host|device)_to_(?:host|device)_\w+\.", text, re.M)
    )


def _read_nvbandwidth(
    text: str, hints: job_logs.CallerHints
) -> tuple[list[dict[str, Any]], list[str]]:
    rates: dict[str, list[float]] = {}
    test, skipped = "", dict[str, list[int]]()
    for number, line in enumerate(job_logs.lines_of(text), 1):
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
        job_logs.measurement(
            "sendrecv", _COPIED_BYTES, _PAIR, _COPIED_BYTES / (1e9 * statistics.median(of)),
            lib="nvbandwidth", variant=name,
        )
        for name, of in rates.items() if of
    ]  # fmt: skip
    return rows, [f"{job_logs.places(numbers)}: {why}, skipped" for why, numbers in skipped.items()]


NVBANDWIDTH = job_logs.LogReader(
    "nvbandwidth", "no matrix of copies between GPUs", _is_nvbandwidth, _read_nvbandwidth
)
