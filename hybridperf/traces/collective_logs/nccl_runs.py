"""A run of nccl-tests as its log tells it, and the measurements in it that can be trusted.

One line of a run's table times one operation twice, out of place and in place:

    size (B)  count (elements)  type  [redop]  [root]   time (us)  algbw (GB/s)  busbw  #wrong
              time  algbw  busbw  #wrong

In every version of the sources `size` is the larger of one rank's send and receive buffers: the
buffer of an all-reduce, broadcast, reduce or send-receive, the whole output of an all-gather, the
whole input of a reduce-scatter, what one rank sends in an all-to-all; exactly the schema's `bytes`.
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
from collections.abc import Iterable
from typing import Any, NamedTuple

from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.traffic import bus_factor
from hybridperf.io import InputError
from hybridperf.traces.collective_logs import job_logs

ELEMENT_BYTES = {
    "char": 1, "int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
    "half": 2, "bfloat16": 2, "int": 4, "int32": 4, "uint32": 4, "float": 4, "int64": 8,
    "uint64": 8, "double": 8,
}  # fmt: skip
# besides the printed digits: float arithmetic in the tests, which print a rounded time
_ROUNDING = 1e-3
# of a bandwidth: two decimals of 0.04 GB/s cannot tell one formula from another
_TELLING_ROUNDING = 0.02


class _TestFormat(NamedTuple):
    """How a test's lines look. `redop` and `root` are None where versions differ."""

    shard: bool  # count is one rank's part of the buffer
    redop: bool | None
    root: bool | None
    common: bool = True  # the others are considered only where the log mentions them


TESTS = {
    "all_reduce": _TestFormat(False, True, False),
    "all_gather": _TestFormat(True, False, False),
    "reduce_scatter": _TestFormat(True, True, False),
    "alltoall": _TestFormat(True, False, False),
    "broadcast": _TestFormat(False, False, True),
    "reduce": _TestFormat(False, True, True),
    "sendrecv": _TestFormat(False, None, False),
    "gather": _TestFormat(True, False, True),
    "scatter": _TestFormat(True, False, True),
    "hypercube": _TestFormat(True, False, False),
    "alltoallv": _TestFormat(True, False, False, common=False),
    "all_reduce_bias": _TestFormat(False, True, False, common=False),
}


class PrintedNumber(NamedTuple):
    """A number and how far rounding to the printed digits may have moved it."""

    value: float
    off: float

    @staticmethod
    def parse(token: str) -> PrintedNumber:
        """A number as a log prints it; `ValueError` for another (`N/A`, cut by other output)."""
        match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:e([+-]?\d\d?))?", token)
        if match is None:
            raise ValueError(token)
        off = 0.5 * 10.0 ** (int(match[3] or 0) - len(match[2] or ""))
        return PrintedNumber(float(token), off)

    @staticmethod
    def of(value: Any) -> PrintedNumber:
        """A number of a file in JSON or CSV, of six decimals, as the tests print them with %lf."""
        return PrintedNumber.parse(f"{float(value):.6f}")


def known_redop(name: str | None) -> str | None:
    """An operation as the tests name it; None for none."""
    return None if name in ("", "none") else name


@dataclasses.dataclass(frozen=True)
class Timing:
    """One operation's result as printed."""

    in_place: int
    time_us: PrintedNumber
    algbw: PrintedNumber  # GB/s
    busbw: PrintedNumber
    wrong: str
    optional: dict[str, float]  # further columns of the schema, where the test printed them


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

    def whole(self, n_gpus: int, shard: bool) -> int:
        """The size that the count implies; the printed one where the type is not known."""
        word = ELEMENT_BYTES.get(self.dtype)
        return self.count * word * (n_gpus if shard else 1) if word else self.size


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
    # tests that the log names before its table
    mentioned: set[str] = dataclasses.field(default_factory=set)
    machines: job_logs.Machines | None = None  # None: as its ranks say
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
        return job_logs.places(lines, self.what)


def usable(
    runs: Iterable[Run], hints: job_logs.CallerHints
) -> tuple[list[dict[str, Any]], list[str]]:
    """(rows of the schema, remarks) of runs; `InputError` for an unknown test or machines."""
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for run in runs:
        start = run.at([run.line])
        if not run.rows and not run.damaged:
            remarks.append(f"{start}: a run without measurements")
        damaged = [f"{run.at(run.damaged)}: {job_logs.DAMAGED}, skipped"] if run.damaged else []
        found = _rows(run, hints) if run.rows else ([], [])
        if isinstance(found, str):
            remarks += [f"{start}: run {found}", *damaged]
        else:
            rows += found[0]
            remarks += [*damaged, *found[1]]
    return rows, remarks


def _rows(run: Run, hints: job_logs.CallerHints) -> tuple[list[dict[str, Any]], list[str]] | str:
    """As `usable`, of a run with rows; a string tells why it is skipped."""
    if run.skip:
        return f"skipped: {run.skip}"
    unknown = "of {0}_perf skipped: {0} is not a collective we know"
    if run.test is not None and run.test not in COLLECTIVES:
        return unknown.format(run.test)
    machines = run.machines or _machines(run, hints)
    if isinstance(machines, str):
        return f"skipped: {machines}"
    if machines.n_gpus == 1:
        return f"skipped: {job_logs.ALONE}"
    test = run.test or _test(run, machines, hints)
    if test not in COLLECTIVES:
        return unknown.format(test)
    return _trusted(run, test, machines)


def _machines(run: Run, hints: job_logs.CallerHints) -> job_logs.Machines | str:
    """Ranks and hosts by the log, else by the caller; a string tells why the run is unusable."""
    unclear = run.ranks_unclear
    if run.ranks and not unclear and set(run.ranks) != set(range(len(run.ranks))):
        unclear = "ranks are missing from its list of devices"
    if unclear or not run.ranks:
        if hints.machines is None:
            raise InputError(
                f"{hints.path}, {run.at([run.line])}: expected a list of devices ('#  Rank  0 ..."
                f" on HOST device  0') to count ranks and hosts in, {unclear or 'found none'}; give"
                " n_gpus and n_nodes"
            )
        return hints.machines
    groups = {rank.group for rank in run.ranks.values()}
    if len(groups) > 1:
        return f"{len(groups)} groups of ranks ran at once and shared links"
    hosts = [rank.host for rank in run.ranks.values()]
    if len({(rank.host, rank.device) for rank in run.ranks.values()}) < len(hosts):
        if hints.machines is not None and hints.machines.n_gpus == len(hosts):
            return hints.machines  # machines that share a name look like that too
        return (
            "two ranks share a device, or two machines a name; where it is names, give n_gpus and"
            " n_nodes"
        )
    per_host = [hosts.count(host) for host in dict.fromkeys(hosts)]
    if len(set(per_host)) > 1:
        return f"ranks are spread unevenly over hosts ({', '.join(map(str, per_host))})"
    return job_logs.Machines(len(hosts), len(per_host))


def _test(run: Run, machines: job_logs.Machines, hints: job_logs.CallerHints) -> str:
    """Which test this is, by what the log mentions, the columns and the caller."""
    mentioned = run.mentioned
    fitting = [
        test
        for test, form in TESTS.items()
        if (test in mentioned or form.common) and _fits(run.rows, test, form, machines.n_gpus)
    ]
    candidates = [test for test in fitting if test in mentioned] if mentioned else fitting
    if len(candidates) == 1:
        return candidates[0]
    if hints.collective is not None and hints.collective in (candidates or fitting):
        return hints.collective
    where = f"{hints.path}, {run.at([run.line])}"
    if mentioned and not candidates:
        raise InputError(
            f"{where}: the log names {' or '.join(sorted(mentioned))}, but this run's columns are"
            f" those of {' or '.join(fitting) or 'no test we know'}; cut the run out, or give its"
            " collective"
        )
    raise InputError(
        f"{where}: nothing tells which test this run is, it may be"
        f" {' or '.join(candidates) or 'none we know'}; give its collective"
    )


def _fits(rows: list[Row], test: str, form: _TestFormat, n_gpus: int) -> bool:
    """Whether a run's lines could be this test's; lines too small to tell are no evidence."""
    for row in rows:
        if row.count and row.size != row.whole(n_gpus, form.shard):
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
        if timing.busbw.off < _TELLING_ROUNDING * timing.busbw.value
    ]
    return 2 * sum(agree) >= len(agree)  # a damaged line must not outvote the others


def _trusted(
    run: Run, test: str, machines: job_logs.Machines
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows whose own numbers agree with each other, remarks about the others."""
    n, form = machines.n_gpus, TESTS[test]
    # of those that the log lists: `slow_hosts` compares them
    hosts = {"hosts": " ".join(dict.fromkeys(one.host for one in run.ranks.values()))}
    hosts = hosts if run.ranks and not run.ranks_unclear else {}
    rows: list[dict[str, Any]] = []
    empty, disagree, wrong = [], [], []
    for row in run.rows:
        if row.size == 0:
            empty.append(row.line)
            continue
        for timing in row.timings:
            if row.size != row.whole(n, form.shard) or not _consistent(row, timing, test, n):
                disagree.append(row.line)
            # `#wrong` counts wrong elements (`N/A`: not checked); its forerunner `error` is a
            # difference, with an asterisk where too large
            elif timing.wrong.endswith("*") or (timing.wrong.isdigit() and int(timing.wrong) > 0):
                wrong.append(row.line)
            else:
                rows.append(job_logs.measurement(
                    test, row.size, machines, timing.time_us.value * 1e-6, dtype=row.dtype,
                    in_place=timing.in_place, lib=run.lib, lib_version=run.lib_version,
                    variant="nccl-tests", **hosts, **timing.optional,
                ))  # fmt: skip
    reasons = (
        (empty, "nothing is sent (size 0), skipped"),
        (disagree, f"size, time and bandwidths of {test} among {n} ranks disagree, skipped"),
        (wrong, "the test found wrong results, skipped"),
    )
    return rows, [f"{run.at(lines)}: {why}" for lines, why in reasons if lines]


def _consistent(row: Row, timing: Timing, test: str, n_gpus: int) -> bool:
    time_us = timing.time_us
    if time_us.value <= 0:
        return False
    shares = [1.0, (n_gpus - 1) / n_gpus] if test in ("all_gather", "reduce_scatter") else [1.0]
    algbw = any(_close(timing.algbw, row.size * share, time_us) for share in shares)
    return algbw and _close(timing.busbw, row.size * bus_factor(test, n_gpus), time_us)


def _close(bandwidth: PrintedNumber, n_bytes: float, time_us: PrintedNumber) -> bool:
    """Whether a printed bandwidth (GB/s) fits bytes and a printed time, up to rounding of both."""
    if time_us.value <= 0:
        return False
    expected = n_bytes / time_us.value * 1e-3
    slack = expected * (time_us.off / time_us.value + _ROUNDING)
    return abs(bandwidth.value - expected) <= bandwidth.off * (1 + 1e-6) + slack
