"""What perftest's `ib_write_bw` and `ib_write_lat` print (linux-rdma/perftest), as sends from one
host to another.

    ib_write_bw   #bytes  #iterations  BW peak[..]  BW average[..]  MsgRate[Mpps]
    ib_write_lat  #bytes  #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec] ...

Bandwidths are MiB/s ("MB/sec") or, with --report_gbits, 1e9 bit/s. Writes are queued, so that one
hides what another waits for: messages under a MiB tell no time of one message and are skipped, as
are runs both ways at once. A latency is half of a round trip.
"""

from __future__ import annotations

import re
from typing import Any

from hybridperf.traces.collective_logs.job_logs import (
    DAMAGED,
    CallerHints,
    LogReader,
    Machines,
    lines_of,
    measurement,
    places,
)

_HEADER = re.compile(r"\s*#bytes\s+#iterations\s+(?:BW peak\[(MB|Gb)/sec\]|(t_min\[usec\]))")
_TITLE = re.compile(r"(RDMA_Write|RDMA_Read|Send) (Bidirectional )?(?:BW|Latency) Test")
_RESULT = re.compile(r"\s*(\d{1,15})\s+(\d{1,15})((?:\s+[\d.]+)+)\s*$")
_BYTES_PER_S = {"MB": 2.0**20, "Gb": 1e9 / 8}
_QUEUED_BYTES = 2**20  # smaller ones hide their latency behind each other
_TWO_HOSTS = Machines(2, 2)


def _looks_like(text: str) -> bool:
    return bool(_HEADER.search(text) or _TITLE.search(text))


def _read(text: str, hints: CallerHints) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    skipped: dict[str, list[int]] = {}
    unit, latency, both_ways, tool = "", False, False, "RDMA_Write"
    for number, line in enumerate(lines_of(text), 1):
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
    return rows, [f"{places(numbers)}: {why}, skipped" for why, numbers in skipped.items()]


def _row(
    result: re.Match[str], unit: str, latency: bool, both_ways: bool, tool: str
) -> dict[str, Any] | str:
    size = int(result[1])
    try:
        values = [float(value) for value in result[3].split()]
    except ValueError:
        return DAMAGED
    place = 2 if latency else 1  # t_typical, BW average
    if len(values) <= place or values[place] <= 0 or size < 1:
        return DAMAGED
    if both_ways:
        return "both ways at once"
    if not latency and size < _QUEUED_BYTES:
        return "queued messages hide what each of them takes"
    time_s = values[place] * 1e-6 if latency else size / (values[place] * _BYTES_PER_S[unit])
    return measurement("sendrecv", size, _TWO_HOSTS, time_s, lib="perftest", variant=tool.lower())


READER = LogReader("ib_write_bw or ib_write_lat", "no line below #bytes", _looks_like, _read)
