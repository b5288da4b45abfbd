"""A run of nccl-tests as its log tells it, and the measurements in it that can be trusted.

One line of a run's table times one operation twice, out of place and in place:

    size (B)  count (elements)  type  [redop]  [root]   time (us)  algbw (GB/s)  busbw  #wrong
              time  algbw  busbw  #wrong

In every version of the sources `size` is the larger of one rank's send and receive buffers: the
buffer of an all-reduce, broadcast, reduce or send-receive, the whole output of an all-gather, the
whole input of a reduce-scatter, what one rank sends in an all-to-all; just the schema's `bytes`.
`count` is the argument of the call: the elements of the buffer, or the n-th of them that belongs to
one of n ranks. Hence size = count x (bytes of an element) x (1 or n), algbw = size / time and busbw
= algbw x `bus_factor`: three checks on each line, which also tell a reduce-scatter from an
all-reduce. Versions before 2.11 count (n-1)/n of the size in all-gather's and reduce-scatter's
algbw; their busbw is the same.

Formats: NVIDIA/nccl-tests src/common.cu, src/util.cu and the tests' own files (several commits),
doc/PERFORMANCE.md; ROCm/rccl-tests src/common.cu.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

from hybridperf.collectives.logs.job_logs import Machines, given_machines, measurement, places
from hybridperf.collectives.traffic import COLLECTIVES, bus_factor
from hybridperf.io import InputError

ELEMENT_BYTES = {
    "char": 1, "int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
    "half": 2, "bfloat16": 2, "int": 4, "int32": 4, "uint32": 4, "float": 4, "int64": 8,
    "uint64": 8, "double": 8,
}  # fmt: skip
# beside the printed digits: float arithmetic in the tests, which print a rounded time
_ROUNDING = 1e-3
# of a bandwidth: two decimals of 0.04 GB/s cannot tell one formula from another
_SAYS_SOMETHING = 0.02


class _Form(NamedTuple):
    """How a test's lines look. `redop` and `root` are None where versions differ."""

    shard: bool  # count is one rank's part of the buffer
    redop: bool | None
    root: bool | None
    common: bool = True  # the others are thought of only where the log mentions them


TESTS = {
    "all_reduce": _Form(False, True, False),
    "all_gather": _Form(True, False, False),
    "reduce_scatter": _Form(True, True, False),
    "alltoall": _Form(True, False, False),
    "broadcast": _Form(False, False, True),
    "reduce": _Form(False, True, True),
    "sendrecv": _Form(False, None, False),
    "gather": _Form(True, False, True),
    "scatter": _Form(True, False, True),
    "hypercube": _Form(True, False, False),
    "alltoallv": _Form(True, False, False, common=False),
    "all_reduce_bias": _Form(False, True, False, common=False),
}


class Printed(NamedTuple):
    """A number and how far rounding to the printed digits may have moved it."""

    value: float
    off: float


def printed(token: str) -> Printed:
    """A number as a log prints it; `ValueError` for anything else (`N/A`, a number cut by other
    output).
    """
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:e([+-]?\d\d?))?", token)
    if match is None:
        raise ValueError(token)
    return Printed(float(token), 0.5 * 10.0 ** (int(match[3] or 0) - len(match[2] or "")))


@dataclasses.dataclass(frozen=True)
class Timing:
    """One operation's result as printed."""

    in_place: int
    time_us: Printed
    algbw: Printed  # GB/s
    busbw: Printed
    wrong: str
    optional: dict[str, float]  # further columns of the schema, where the test was asked for them


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a run's table."""

    line: int
    size: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    timings: tuple[Timing, ...]


@dataclasses.dataclass
class Rank:
    """One rank's line in the list of devices."""

    host: str
    group: int
    device: str


@dataclasses.dataclass
class Run:
    """One start of one test. Filled while its log is read, then judged by `usable`."""

    line: int
    what: str = "line"  # what line numbers count: a JSON file has results
    test: str | None = None  # as its header names it
    mentioned: set[str] = dataclasses.field(
        default_factory=set
    )  # tests that the log names before its table
    ranks: dict[int, Rank] = dataclasses.field(default_factory=dict)
    ranks_unclear: str = ""
    columns: list[str] | None = None
    in_places: tuple[int, ...] = (0, 1)
    rows: list[Row] = dataclasses.field(default_factory=list)
    damaged: list[int] = dataclasses.field(default_factory=list)
    skip: str = ""  # why none of it can be used
    lib: str = "nccl"
    lib_version: str | None = None
    seen: set[str] = dataclasses.field(default_factory=set)  # header lines read
    closed: bool = False

    def at(self, lines: list[int]) -> str:
        return places(lines, self.what)


class Asked(NamedTuple):
    """What the caller knows where the log does not say."""

    path: str
    collective: str | None
    machines: Machines | None
    mentioned: set[str]  # tests named anywhere in the log


def usable(run: Run, asked: Asked) -> tuple[list[dict[str, Any]], list[str]]:
    """(rows of the schema, remarks) of one run; `InputError` where its test or its machines cannot
    be known.
    """
    if not run.rows and not run.damaged:
        return [], [f"{run.at([run.line])}: a run without measurements"]
    damaged = (
        [f"{run.at(run.damaged)}: damaged (cut off, or mixed with other output), skipped"]
        if run.damaged
        else []
    )
    if not run.rows:
        return [], damaged
    where = f"{run.at([run.line])}: run"
    if run.skip:
        return [], [f"{where} skipped: {run.skip}", *damaged]
    if run.test is not None and run.test not in COLLECTIVES:
        return [], [
            f"{where} of {run.test}_perf skipped: {run.test} is not a collective we know",
            *damaged,
        ]
    machines = _machines(run, asked)
    if isinstance(machines, str):
        return [], [f"{where} skipped: {machines}", *damaged]
    test = _test(run, machines, asked)
    if test not in COLLECTIVES:
        return [], [f"{where} of {test}_perf skipped: {test} is not a collective we know", *damaged]
    rows, remarks = _trusted(run, test, machines)
    return rows, [*damaged, *remarks]


def _machines(run: Run, asked: Asked) -> Machines | str:
    """Ranks and hosts; a string says why the run cannot be used. What the log lists goes before
    what the caller gives.
    """
    unclear = run.ranks_unclear
    if run.ranks and not unclear and set(run.ranks) != set(range(len(run.ranks))):
        unclear = "ranks are missing from its list of devices"
    if unclear or not run.ranks:
        if asked.machines is None:
            raise InputError(
                f"{asked.path}, {run.at([run.line])}: expected a list of devices ('#  Rank  0 ..."
                f" on HOST device  0') to count ranks and hosts in, {unclear or 'found none'}; give"
                " n_gpus and n_nodes"
            )
        return asked.machines if asked.machines.n_gpus > 1 else "one rank communicates with nobody"
    groups = {rank.group for rank in run.ranks.values()}
    if len(groups) > 1:
        return f"{len(groups)} groups of ranks ran at once and shared links"
    hosts = [rank.host for rank in run.ranks.values()]
    if len({(rank.host, rank.device) for rank in run.ranks.values()}) < len(hosts):
        if asked.machines is not None and asked.machines.n_gpus == len(hosts):
            return asked.machines  # machines that share a name look like that too; the caller knows
        return (
            "two ranks share a device, or two machines a name; where it is names, give n_gpus and"
            " n_nodes"
        )
    if len(hosts) == 1:
        return "one rank communicates with nobody"
    each = {hosts.count(host) for host in hosts}
    if len(each) > 1:
        return (
            "ranks are spread unevenly over hosts"
            f" ({', '.join(str(hosts.count(host)) for host in dict.fromkeys(hosts))})"
        )
    return given_machines(len(hosts), len(set(hosts))) or ""


def _test(run: Run, machines: Machines, asked: Asked) -> str:
    """Which test this is: as its header says; else as the log mentions, the columns allow and the
    caller knows.
    """
    if run.test is not None:
        return run.test
    mentioned = run.mentioned or asked.mentioned
    fitting = [
        test
        for test, form in TESTS.items()
        if (test in mentioned or form.common) and _fits(run.rows, test, form, machines.n_gpus)
    ]
    candidates = [test for test in fitting if test in mentioned] if mentioned else fitting
    if len(candidates) == 1:
        return candidates[0]
    if asked.collective is not None and asked.collective in (candidates or fitting):
        return asked.collective
    where = f"{asked.path}, {run.at([run.line])}"
    if mentioned and not candidates:
        raise InputError(
            f"{where}: the log names {_or(sorted(mentioned))}, but this run's columns are those of"
            f" {_or(fitting) or 'no test we know'}; cut the run out, or give its collective"
        )
    raise InputError(
        f"{where}: nothing says which test this run is, it may be"
        f" {_or(candidates) or 'none we know'}; give its collective"
    )


def _fits(rows: list[Row], test: str, form: _Form, n_gpus: int) -> bool:
    """Whether a run's lines could be this test's; lines too small to tell say nothing."""
    for row in rows:
        word = ELEMENT_BYTES.get(row.dtype)
        if word and row.count and row.size != row.count * word * (n_gpus if form.shard else 1):
            return False
        if form.redop is not None and (row.redop is not None) != form.redop:
            return False
        if form.root is not None and (row.root is not None) != form.root:
            return False
    if test not in COLLECTIVES:
        return True
    factor = bus_factor(test, n_gpus)
    agree = [
        _close(timing.busbw, row.size * factor, timing.time_us)
        for row in rows
        for timing in row.timings
        if timing.busbw.off < _SAYS_SOMETHING * timing.busbw.value
    ]
    return 2 * sum(agree) >= len(agree)  # a damaged line must not outvote the others


def _trusted(run: Run, test: str, machines: Machines) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows whose own numbers agree with each other, remarks about the others."""
    n, form = machines.n_gpus, TESTS[test]
    rows: list[dict[str, Any]] = []
    empty, disagree, wrong = [], [], []
    for row in run.rows:
        word = ELEMENT_BYTES.get(row.dtype)
        if row.size == 0:
            empty.append(row.line)
            continue
        for timing in row.timings:
            whole = row.count * word * (n if form.shard else 1) if word else row.size
            if row.size != whole or not _consistent(row, timing, test, n):
                disagree.append(row.line)
            elif _is_wrong(timing.wrong):
                wrong.append(row.line)
            else:
                rows.append(
                    measurement(
                        test,
                        row.size,
                        machines,
                        timing.time_us.value * 1e-6,
                        dtype=row.dtype,
                        in_place=timing.in_place,
                        lib=run.lib,
                        lib_version=run.lib_version,
                        variant="nccl-tests",
                        **timing.optional,
                    )
                )
    remarks = []
    if empty:
        remarks.append(f"{run.at(empty)}: nothing is sent (size 0), skipped")
    if disagree:
        remarks.append(
            f"{run.at(disagree)}: size, time and bandwidths of {test} among {n} ranks disagree,"
            " skipped"
        )
    if wrong:
        remarks.append(f"{run.at(wrong)}: the test found wrong results, skipped")
    return rows, remarks


def _consistent(row: Row, timing: Timing, test: str, n_gpus: int) -> bool:
    if timing.time_us.value <= 0:
        return False
    shares = [1.0, (n_gpus - 1) / n_gpus] if test in ("all_gather", "reduce_scatter") else [1.0]
    return any(
        _close(timing.algbw, row.size * share, timing.time_us) for share in shares
    ) and _close(timing.busbw, row.size * bus_factor(test, n_gpus), timing.time_us)


def _close(bandwidth: Printed, n_bytes: float, time_us: Printed) -> bool:
    """Whether a printed bandwidth (GB/s) is that of so many bytes in a printed time, up to rounding
    of both.
    """
    if time_us.value <= 0:
        return False
    expected = n_bytes / time_us.value * 1e-3
    return abs(bandwidth.value - expected) <= bandwidth.off * (1 + 1e-6) + expected * (
        time_us.off / time_us.value + _ROUNDING
    )


def _is_wrong(mark: str) -> bool:
    """`#wrong` counts wrong elements (`N/A`: not checked); its forerunner `error` is a difference,
    with an asterisk where too large.
    """
    return mark.endswith("*") or (mark.isdigit() and int(mark) > 0)


def _or(names: list[str]) -> str:
    return " or ".join(names)
