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
import re
from typing import Any

from hybridperf.collectives.algorithms import ALIASES
from hybridperf.io import InputError
from hybridperf.traces.collective_logs import nccl_runs
from hybridperf.traces.collective_logs.job_logs import CallerHints, LogReader, Machines, places

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


def _looks_like(text: str) -> bool:
    return bool(_CSV.match(text) or _JSON.match(text))


def _read(text: str, hints: CallerHints) -> tuple[list[dict[str, Any]], list[str]]:
    """All that a caller could tell is in the file; `InputError` for one that is cut off."""
    runs: dict[tuple[str, Machines], nccl_runs.Run] = {}
    damaged: list[int] = []
    results = _csv_results(text) if _CSV.match(text) else _json_results(text, hints.path)
    for number, result in results:
        try:
            name, machines, row = _row(number, result)
        except (KeyError, ValueError, TypeError, ZeroDivisionError):
            damaged.append(number)
            continue
        run = nccl_runs.Run(
            number, what="result", test=name, machines=machines, lib="rccl", columns=[]
        )
        runs.setdefault((name, machines), run).rows.append(row)
    rows, remarks = nccl_runs.usable(runs.values(), hints)
    if damaged:
        why = "damaged (cut off, or of another version), skipped"
        remarks = [f"{places(damaged, 'result')}: {why}", *remarks]
    return rows, remarks


READER = LogReader("rccl-tests into the file of -x", "it has a header alone", _looks_like, _read)


def _csv_results(text: str) -> list[tuple[int, dict[str, Any]]]:
    """(number from 1, values by name; none where their number fits no version)."""
    lines = csv.reader(text.splitlines()[1:], skipinitialspace=True)
    values = [line for line in lines if line]
    return [
        (at, dict(zip(_COLUMNS.get(len(one), ()), map(str.strip, one), strict=False)))
        for at, one in enumerate(values, 1)
    ]


def _json_results(text: str, path: str) -> list[tuple[int, dict[str, Any]]]:
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


def _row(number: int, of: dict[str, Any]) -> tuple[str, Machines, nccl_runs.Row]:
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
    dtype, shard = str(of["type"]), name in nccl_runs.TESTS and nccl_runs.TESTS[name].shard
    received = int(of["size"])
    size = received * machines.n_gpus if name == "reduce_scatter" else received
    count = size // nccl_runs.ELEMENT_BYTES[dtype] // (machines.n_gpus if shard else 1)
    time, algbw, busbw = map(nccl_runs.PrintedNumber.of, (of["time"], of["algBw"], of["busBw"]))
    timing = nccl_runs.Timing(int(of["inPlace"]), time, algbw, busbw, str(of["wrong"]), {})
    redop = nccl_runs.known_redop(str(of["redop"]))
    return name, machines, nccl_runs.Row(number, size, count, dtype, redop, None, (timing,))
