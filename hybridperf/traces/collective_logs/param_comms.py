"""What PARAM's collective benchmark prints, read into collective measurements.

The benchmark is facebookresearch/param, train/comms/pt/comms.py. Its results are lines marked
COMMS-RES below a line of column names; they changed over the years:

    COMMS-RES  size (B)  num-elements  Latency(us):p50  p75  p95  [min  max]  algBW(GB/s)
               busBW(GB/s)  [op[0]]     names no collective
    COMMS-RES-<collective>  size (B)  nElementsPerRank  Latency(us):p50  p75  p95  Min  Max
                            AlgBW(GB/s)  BusBW(GB/s)
    COMMS-RES-<collective>-<dtype><tag>  ... the same ...  [TotalLatency(us):p50]

Each rank averages its iterations; p50, p75, p95, Min and Max are taken over ranks. `time_s` is p50.
Skipped, with a remark, is what times something else: quantised collectives (COMMS-RES-QUANT), two
collectives at once (total-size), point to point, compute overlapped with communication, uneven
splits (all_gather_v, reduce_scatter_v) and collectives that the schema lacks. size (B) is all of an
all-gather's output, all of a reduce-scatter's input and one rank's buffer elsewhere;
`reduce_scatter_base` of earlier versions printed one rank's output, which its element count shows.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from hybridperf.io import InputError
from hybridperf.traces.collective_logs import job_logs
from hybridperf.traces.collective_logs.nccl_runs import ELEMENT_BYTES

_NAMES = {  # longest first, so that a name is not taken for a shorter one; None: not in the schema
    "reduce_scatter_base": "reduce_scatter", "all_to_all_single": "alltoall",
    "reduce_scatter_v": None, "all_gather_base": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_gather_v": None, "all_to_allv": "alltoall", "all_reduce": "all_reduce",
    "all_to_all": "alltoall", "all_gather": "all_gather", "broadcast": "broadcast",
    "multicast": None, "barrier": None, "scatter": None, "reduce": "reduce", "incast": None,
    "gather": None, "pt2pt": None,
}  # fmt: skip
_IN_PLACE = ("all_reduce", "broadcast", "reduce")  # as PyTorch does them
_DTYPES = {  # PyTorch's name: NCCL's
    "float32": "float", "float": "float", "float16": "half", "half": "half",
    "bfloat16": "bfloat16", "float64": "double", "double": "double", "int32": "int32",
    "int": "int32", "int64": "int64", "long": "int64", "int8": "int8", "char": "int8",
    "uint8": "uint8", "byte": "uint8",
}  # fmt: skip
_RESULT = re.compile(r"\s*COMMS-(?:QUANT-)?RES(\S*)\s*(.*)")
_ENVIRONMENT = re.compile(r"MPI environment:.*'world_size': (-?\d+).*'local_size': (-?\d+)")
_OPTIONS = re.compile(r"\bbackend: (\S+) nw-stack: (\S+) mode: (\S+)")
_DTYPE = re.compile(r"args\.(?:dtype|data_type): (?:torch\.)?(\w+)")
_LABEL_DTYPE = re.compile(r"-(b?float\d*|half|double|u?int\d*|long|char|byte)")
_COLLECTIVE = re.compile(r"(?:--collectives?[ =]|\bcollective=)(\w+)")
_HELLO = re.compile(r"\[Rank\s*(\d+)\] host ([^\s,]+),.*?world_size: (\d+)")
_GROUPS = re.compile(r"num_pg (\d+), groupSize (\d+)")
_COLUMN_NAMES = [  # as printed, as called here; in this order, since names stand within names
    ("total-pair-size (B)", "total_size"), ("total-size (B)", "total_size"), ("size (B)", "size"),
    ("TotalLatency(us):p50", "total_p50"), ("CompLatency(us):p50", "compute_p50"),
    ("Latency(us):p50", "p50"), ("AlgBW(GB/s)", "algbw"), ("algBW(GB/s)", "algbw"),
    ("BusBW(GB/s)", "busbw"), ("busBW(GB/s)", "busbw"), ("nElementsPerRank", "elements"),
    ("num-elements-pair", "elements_pair"), ("nElementsPairPerRank", "elements_pair"),
    ("num-elements", "elements"), ("Min", "min"), ("Max", "max"),
]  # fmt: skip
_PLAIN = ["size", "elements", "p50", "p75", "p95", "algbw", "busbw"]
_DEFAULT_COLUMNS = {7: _PLAIN, 8: [*_PLAIN, "op[0]"], 9: [*_PLAIN[:5], "min", "max", *_PLAIN[5:]]}
_DEFAULT_COLUMNS[10] = [*_DEFAULT_COLUMNS[9], "total_p50"]
_ROUNDING_US = 0.051  # one decimal
_ROUNDING_GB_PER_S = 0.00051  # three


def _looks_like(text: str) -> bool:
    return bool(re.search(r"^.{0,80}COMMS-(?:QUANT-)?RES", text, re.M))


@dataclasses.dataclass
class _ParamRun:
    """What the lines so far tell about the results to come."""

    world: int = 0
    local: int = 0
    hosts: dict[int, str] = dataclasses.field(default_factory=dict)
    groups: int = 1
    backend: str = "nccl"
    mode: str = "comms"
    dtype: str = "float32"
    collectives: set[str] = dataclasses.field(default_factory=set)
    columns: list[str] | None = None

    def machines(self) -> job_logs.Machines | None:
        """Ranks and hosts, where the log tells both."""
        world = self.world or len(self.hosts)
        if self.local > 0 and world > 0 and world % self.local == 0:
            return job_logs.Machines(world, world // self.local)
        hosts = list(self.hosts.values())
        if world > 0 and len(hosts) == world and len({hosts.count(host) for host in hosts}) == 1:
            return job_logs.Machines(world, len(set(hosts)))
        return None


def _read(text: str, hints: job_logs.CallerHints) -> tuple[list[dict[str, Any]], list[str]]:
    """`time_s` is the median over ranks, further columns are `time_min_s`, `time_p95_s` and
    `time_max_s`.
    """
    rows: list[dict[str, Any]] = []
    skipped: dict[str, list[int]] = {}
    run = _ParamRun()
    for number, line in enumerate(job_logs.lines_of(text), 1):
        result = _RESULT.match(line)
        if result is None:
            run = _context(run, line)
        elif "(" in result[2]:
            run.columns = _columns(result[2]) if "QUANT" not in line else ["quantised"]
        else:
            row = _row(run, result[1], result[2].split(), f"{hints.path}, line {number}", hints)
            if isinstance(row, str):
                skipped.setdefault(row, []).append(number)
            else:
                rows.append(row)
    return rows, [f"{job_logs.places(numbers)}: {why}, skipped" for why, numbers in skipped.items()]


READER = job_logs.LogReader("PARAM's comms.py", "no result is marked COMMS-RES", _looks_like, _read)


def _context(run: _ParamRun, line: str) -> _ParamRun:
    """What is known after a line that is no result."""
    if match := _ENVIRONMENT.search(line):
        if run.columns is not None:  # the next run
            run = _ParamRun(collectives=run.collectives)
        run.world, run.local = int(match[1]), int(match[2])
    if match := _OPTIONS.search(line):
        run.backend, run.mode = match[1], match[3]
    if match := _DTYPE.search(line):
        run.dtype = match[1]
    if match := _COLLECTIVE.search(line):
        run.collectives = {match[1]} if run.columns is not None else run.collectives | {match[1]}
    if match := _GROUPS.search(line):
        run.groups, run.world = int(match[1]), int(match[2])
    for match in _HELLO.finditer(line):
        if run.columns is not None and int(match[1]) in run.hosts:  # no environment line
            run = dataclasses.replace(run, world=0, local=0, hosts={}, groups=1, columns=None)
        run.hosts[int(match[1])] = match[2]
        run.world = run.world if run.world > 0 else int(match[3])
    return run


def _columns(names: str) -> list[str]:
    for printed, name in _COLUMN_NAMES:
        names = names.replace(printed, f" {name} ")
    return names.split()


def _row(
    run: _ParamRun, label: str, tokens: list[str], where: str, hints: job_logs.CallerHints
) -> dict[str, Any] | str:
    """A result as a row of the schema; a string says why it cannot be used."""
    columns = run.columns
    if columns is None or len(columns) != len(tokens) or not set(_PLAIN) <= set(columns):
        columns = _DEFAULT_COLUMNS.get(len(tokens))  # of the version that prints as many
    if "QUANT" in label or run.columns == ["quantised"]:
        return "a quantised collective"
    if label.startswith("-pt2pt"):
        return "point to point (pt2pt) is not a collective we know"
    if "total_size" in (run.columns or []):
        return "two collectives at once (pair mode)"
    if run.mode != "comms":
        return f"compute overlapped with communication (mode {run.mode})"
    if run.groups > 1:
        return f"{run.groups} groups of ranks ran at once and shared links"
    if columns is None:
        return job_logs.DAMAGED
    name: str | None
    if label:
        name = next((name for name in _NAMES if label.startswith(f"-{name}")), None)
    else:
        name = _unnamed(run, where, hints.collective)
    known = name if name == hints.collective else _NAMES.get(name or "")
    if known is None:
        return f"{name or label.lstrip('-') or 'an unnamed one'} is not a collective we know"
    match = _LABEL_DTYPE.match(label[len(name or "") + 1 :])
    dtype = _DTYPES.get(match[1] if match else run.dtype, run.dtype)
    machines = run.machines() or hints.machines
    if machines is None:
        raise InputError(
            f"{where}: expected the ranks and hosts of this result in the lines above ('MPI"
            " environment', '[Rank 0] host ...'), found none or not all; give n_gpus and n_nodes"
        )
    if machines.n_gpus == 1:
        return job_logs.ALONE
    try:
        value = dict(zip(columns, map(float, tokens), strict=True))
    except ValueError:
        return job_logs.DAMAGED
    if not _consistent(value):
        return "size, latencies and bandwidth disagree"
    n_bytes = int(value["size"])
    of_one_rank = n_bytes == value["elements"] * ELEMENT_BYTES.get(dtype, 0)
    if name == "reduce_scatter_base" and of_one_rank:
        n_bytes *= machines.n_gpus
    optional = {f"time_{key}_s": value[key] * 1e-6 for key in ("min", "p95", "max") if key in value}
    return job_logs.measurement(
        known, n_bytes, machines, value["p50"] * 1e-6, dtype=dtype,
        in_place=int(known in _IN_PLACE), lib=f"{run.backend}(torch)", variant="param", **optional,
    )  # fmt: skip


def _unnamed(run: _ParamRun, where: str, collective: str | None) -> str:
    """The collective of a result that does not name it, from the log's command line or caller."""
    named = {name for name in run.collectives if name in _NAMES}
    if len(named) == 1:
        return named.pop()
    if collective is None:
        why = "nothing tells which collective this result is of; give its collective"
        raise InputError(f"{where}: {why}")
    return collective


def _consistent(value: dict[str, float]) -> bool:
    """Whether latencies are in order and the bandwidth is between the fastest and slowest rank's.

    Some versions print the bandwidth of the first rank, not of the median. Without Min and Max, a
    factor of two is allowed.
    """
    if not all(map(math.isfinite, value.values())):
        return False
    latencies = [value[key] for key in ("min", "p50", "p75", "p95", "max") if key in value]
    if value["size"] < 1 or not value["size"].is_integer():
        return False
    if latencies[0] <= 0 or latencies != sorted(latencies):
        return False
    slowest_us = value.get("max", 2 * value["p50"]) + _ROUNDING_US
    fastest_us = max(value.get("min", value["p50"] / 2) - _ROUNDING_US, 1e-3)
    low, high = value["size"] / slowest_us * 1e-3, value["size"] / fastest_us * 1e-3
    return low - _ROUNDING_GB_PER_S <= value["algbw"] <= high + _ROUNDING_GB_PER_S
