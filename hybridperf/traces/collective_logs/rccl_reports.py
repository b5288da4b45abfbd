"""What AMD's rccl-tests write into the file of `-x`, as `-Z csv` or `-Z json` asks for.

A result is a line of values in a fixed order, whatever the header says: a version of 2024 writes
`nodes` and leaves it out of its header.

    [numCycle] name [nodes] [ranks ranksPerNode gpusPerRank | gpus] size type redop inPlace
    time (us) algBw (GB/s) busBw wrong

`numCycle` came later than the rest; a build without MPI writes `gpus` in place of ranks. `size` is
what a rank receives: of a reduce-scatter the n-th part of the schema's `bytes`. JSON has the same
by name, an object a line or a list of them. How results are checked: `nccl_runs`.

Format: ROCm/rccl-tests src/common.cu, class `Reporter` (two versions), and src/common.h.
"""

from __future__ import annotations

import csv
import json
import os
import re
from typing import Any

import pandas as pd

from hybridperf.collectives.algorithms import ALIASES
from hybridperf.io import InputError
from hybridperf.traces.collective_logs.job_logs import (
    Machines,
    as_table,
    given_machines,
    known_collective,
    places,
    read_text,
)
from hybridperf.traces.collective_logs.nccl_runs import (
    ELEMENT_BYTES,
    TESTS,
    CallerHints,
    NcclRow,
    NcclRun,
    NcclTiming,
    PrintedNumber,
    known_redop,
    usable,
)

_ALONE, _OF_RANKS = ("gpus",), ("ranks", "ranksPerNode", "gpusPerRank")
_RESULT = ("size", "type", "redop", "inPlace", "time", "algBw", "busBw", "wrong")
# by how many values a line has
_COLUMNS = {
    len(columns): columns
    for columns in (
        ("name", *_ALONE, *_RESULT),
        ("numCycle", "name", *_ALONE, *_RESULT),
        ("name", *_OF_RANKS, *_RESULT),
        ("name", "nodes", *_OF_RANKS, *_RESULT),
        ("numCycle", "name", "nodes", *_OF_RANKS, *_RESULT),
    )
}
_CSV = re.compile(
    r"\s*(?:numCycle,\s*)?collective,\s*(?:nodes,\s*)?(?:ranks,|gpus,).*\bbusbw\b", re.IGNORECASE
)
_JSON = re.compile(r'\s*\[?\s*\{(?:\s*"numCycle":\s*\d+,)?\s*"name":[^{}]*"busBw":')
_PROGRAM = "rccl-tests into the file of -x"


def is_rccl_report(text: str) -> bool:
    """Whether a text (a file, or its beginning) looks like what `read_rccl_report` reads."""
    return bool(_CSV.match(text) or _JSON.match(text))


def read_rccl_report(
    path: str | os.PathLike, collective: str | None = None, n_gpus: int | None = None,
    n_nodes: int | None = None,
) -> tuple[pd.DataFrame, list[str]]:  # fmt: skip
    """(rows in the schema of collective measurements, a sentence for everything skipped).

    `path`: the file of `-x`; the others as in `files.read_collectives`, all of which it tells.

    Raises:
        InputError: a file that is cut off or damaged, or has no usable result.
    """
    given_machines(n_gpus, n_nodes)
    known_collective(collective)
    text = read_text(path)
    runs: dict[tuple[str, Machines], NcclRun] = {}
    damaged: list[int] = []
    results = _csv_results(text) if _CSV.match(text) else _json_results(text, path)
    for number, result in results:
        try:
            name, machines, row = _row(number, result)
        except (KeyError, ValueError, TypeError, ZeroDivisionError):
            damaged.append(number)
            continue
        run = NcclRun(number, what="result", test=name, lib="rccl", columns=[])
        runs.setdefault((name, machines), run).rows.append(row)
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    if damaged:
        remarks.append(
            f"{places(damaged, 'result')}: damaged (cut off, or of another version), skipped"
        )
    for (_, machines), run in runs.items():
        more, skipped = usable(run, CallerHints(str(path), None, machines, set()))
        rows += more
        remarks += skipped
    return as_table(rows, remarks, path, _PROGRAM, "it has a header alone")


def _csv_results(text: str) -> list[tuple[int, dict[str, Any]]]:
    """(number from 1, values by name; none where their number fits no version)."""
    lines = csv.reader(text.splitlines()[1:], skipinitialspace=True)
    values = [line for line in lines if line]
    return [
        (at, dict(zip(_COLUMNS.get(len(one), ()), map(str.strip, one), strict=False)))
        for at, one in enumerate(values, 1)
    ]


def _json_results(text: str, path: str | os.PathLike) -> list[tuple[int, dict[str, Any]]]:
    try:
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected the JSON that rccl-tests write with -x and -Z json in {path}, found it cut"
            f" off or damaged ({type(error).__name__}: {error}); check the file"
        ) from error
    return [(at, one if isinstance(one, dict) else {}) for at, one in enumerate(found, 1)]


def _row(number: int, of: dict[str, Any]) -> tuple[str, Machines, NcclRow]:
    """(test, machines, the result as a printed line has it); `KeyError` or `ValueError` where
    something is missing or no number.
    """
    said = str(of["name"]).lower()
    name = ALIASES.get(said, said)
    if "gpus" in of:
        machines = Machines(int(of["gpus"]), 1)
    else:
        of_rank, of_node = int(of["gpusPerRank"]), int(of["ranksPerNode"])
        machines = Machines(int(of["ranks"]) * of_rank, int(of["ranks"]) // of_node)
    if machines.n_nodes < 1 or machines.n_gpus % machines.n_nodes:
        raise ValueError(machines)
    dtype, shard = str(of["type"]), name in TESTS and TESTS[name].shard
    received = int(of["size"])
    size = received * machines.n_gpus if name == "reduce_scatter" else received
    count = size // ELEMENT_BYTES[dtype] // (machines.n_gpus if shard else 1)
    time, algbw, busbw = map(PrintedNumber.of, (of["time"], of["algBw"], of["busBw"]))
    timing = NcclTiming(int(of["inPlace"]), time, algbw, busbw, str(of["wrong"]), {})
    redop = known_redop(str(of["redop"]))
    return name, machines, NcclRow(number, size, count, dtype, redop, None, (timing,))
