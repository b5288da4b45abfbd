"""What PyTorch's flight recorder dumped of one rank, as JSON (`_dump_nccl_trace_json`), with the
durations that TORCH_NCCL_ENABLE_TIMING=1 records.

    {"version": ..., "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": [
      {"profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"],
       "input_sizes": [[1048576]], "input_dtypes": ["Float"], "output_sizes": ...,
       "state": "completed", "duration_ms": 0.21}, ...]}

A kernel lasts until the slowest rank has come, so the least duration counts of all that are alike
(collective, bytes, group). Pickles are not read.
"""

from __future__ import annotations

import math
import re
from typing import Any

from hybridperf.io import InputError
from hybridperf.io.budget import TooLarge
from hybridperf.io.documents import parse_json
from hybridperf.traces.collective_logs.job_logs import CallerHints, LogReader, Machines, measurement

_NAMES = {
    "all_reduce": "all_reduce", "_all_gather_base": "all_gather", "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather", "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "alltoall", "all_to_all_single": "alltoall", "broadcast": "broadcast",
    "reduce": "reduce", "send": "sendrecv",
}  # fmt: skip
_OF_OUTPUT = ("all_gather",)  # bytes of its whole output
_DTYPES = {  # as the recorder names them: (bytes, NCCL's name)
    "Float": (4, "float"), "Half": (2, "half"), "BFloat16": (2, "bfloat16"),
    "Double": (8, "double"), "Int": (4, "int32"), "Long": (8, "int64"), "Char": (1, "int8"),
    "Byte": (1, "uint8"),
}  # fmt: skip
_MOST_ENTRIES = 10**6


def _looks_like(text: str) -> bool:
    return bool(re.match(r"\s*\{", text)) and '"entries"' in text and '"profiling_name"' in text


def _read(text: str, hints: CallerHints) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        dump = parse_json(text)
        entries, groups = dump["entries"], dump.get("pg_config", {})
        assert isinstance(entries, list)
    except TooLarge as error:
        raise InputError(f"{hints.path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise InputError(
            f"expected a flight recorder's dump as JSON with entries in {hints.path}, got"
            f" {type(error).__name__}; write it again by _dump_nccl_trace_json"
        ) from error
    least: dict[tuple[Any, ...], float] = {}
    skipped: dict[str, int] = {}
    for entry in entries[:_MOST_ENTRIES]:
        found = _kind(entry, groups, hints)
        if isinstance(found, str):
            skipped[found] = skipped.get(found, 0) + 1
        else:
            kind, time_s = found
            least[kind] = min(time_s, least.get(kind, math.inf))
    rows = [
        measurement(name, size, Machines(n, nodes), time_s, dtype=dtype, lib="nccl")
        for (name, size, dtype, n, nodes), time_s in least.items()
    ]
    return rows, [f"{count} entries: {why}, skipped" for why, count in skipped.items()]


READER = LogReader(
    "PyTorch's flight recorder", "no entry has a duration_ms: set TORCH_NCCL_ENABLE_TIMING=1",
    _looks_like, _read,
)  # fmt: skip


def _kind(entry: Any, groups: Any, hints: CallerHints) -> tuple[tuple[Any, ...], float] | str:
    """((collective, bytes, dtype, ranks, nodes), seconds) of an entry; a string says why not."""
    try:
        word = str(entry["profiling_name"]).removeprefix("nccl:").split(" ")[0]
        name = _NAMES.get(word)
        if name is None:
            return f"{word[:40]} is no collective we know"
        if entry.get("state") != "completed" or "duration_ms" not in entry:
            return "not completed, or without a duration (TORCH_NCCL_ENABLE_TIMING=1 records it)"
        which = "output" if name in _OF_OUTPUT else "input"
        each, dtype = _DTYPES[entry[f"{which}_dtypes"][0]]
        size = each * sum(math.prod(map(int, of)) for of in entry[f"{which}_sizes"])
        group = str(entry["process_group"][0])
        ranks = [int(one) for one in re.findall(r"\d{1,9}", str(groups[group]["ranks"]))]
        time_s = 1e-3 * float(entry["duration_ms"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return "damaged: a group, size, number format or duration is missing or unknown"
    n = 2 if name == "sendrecv" else len(set(ranks))
    if n < 2 or size < 1 or not (math.isfinite(time_s) and time_s > 0):
        return "one rank, no bytes or no time"
    if hints.machines is None:
        nodes = 1
        if max(ranks) >= 8:
            return "ranks may lie on several hosts: give n_gpus and n_nodes of the job"
    else:
        per_node = hints.machines.n_gpus // hints.machines.n_nodes
        nodes = 1 if name == "sendrecv" else len({rank // per_node for rank in ranks})
        if n % nodes:
            return "a group that lies unevenly on its hosts"
    return (name, size, dtype, n, nodes), time_s
