"""Logs of nccl-tests: each format found in its sources, with made-up numbers; what is damaged is
named, what is unknown is asked for.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.io import InputError
from hybridperf.traces.collective_logs import param_comms
from hybridperf.traces.collective_logs.files import read_log
from hybridperf.traces.collective_logs.nccl_runs import ELEMENT_BYTES
from hybridperf.traces.collective_logs.nccl_tests import READER

N = 8
BUS = {
    "all_reduce": 2 * (N - 1) / N,
    "all_gather": (N - 1) / N,
    "reduce_scatter": (N - 1) / N,
    "alltoall": (N - 1) / N,
}
SHARDED = ("all_gather", "reduce_scatter", "alltoall", "gather")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather")


def us(time_us: float) -> str:
    """As common.cu prints a time."""
    return (
        f"{time_us:7.0f}"
        if time_us >= 10000
        else f"{time_us:7.1f}"
        if time_us >= 100
        else f"{time_us:7.2f}"
    )


def result(size: int, time_us: float, factor: float, wrong: str = "0") -> str:
    algbw = size / time_us * 1e-3
    return f"  {us(time_us)}  {algbw:6.2f}  {algbw * factor:6.2f}  {wrong:>5}"


def line(
    test: str,
    size: int,
    times_us: Sequence[float],
    n: int = N,
    dtype: str = "float",
    none: str = "none",
) -> str:
    """A row as today's version prints it; `none` stands for redop where there is none."""
    count = size // ELEMENT_BYTES[dtype] // (n if test in SHARDED else 1)
    factor = {"all_reduce": 2 * (n - 1) / n}.get(test, (n - 1) / n if test in SHARDED else 1.0)
    redop = "sum" if test in (*REDUCING, "sendrecv") else none
    head = f"{size:12d}  {count:12d}  {dtype:>8}  {redop:>6}  {0 if test in ROOTED else -1:6d}"
    return head + "".join(result(size, time_us, factor) for time_us in times_us)


def devices(
    n: int = N,
    hosts: Sequence[str] = ("node1",),
    group: str = " Group  0",
    name: str = "NVIDIA H100",
) -> str:
    each = n // len(hosts)
    return "".join(
        f"#  Rank {rank:2d}{group} Pid {4000 + rank:6d} on {hosts[rank // each]:>10} device"
        f" {rank % each:2d} [0x{rank % each:02x}] {name}\n"
        for rank in range(n)
    )


PLACES = (
    "#                                                              out-of-place                   "
    "    in-place          \n"
)
COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time "
    "  algbw   busbw #wrong\n"
)
UNITS = (
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us) "
    " (GB/s)  (GB/s)       \n"
)
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3 \n#\n"


def options(agg: int = 1) -> str:
    return (
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters:"
        f" 20 agg iters: {agg} validation: 1 graph: 0\n#\n"
    )


def table(rows: Sequence[str]) -> str:
    return PLACES + COLUMNS + UNITS + "".join(row + "\n" for row in rows) + FOOT


def run(test: str, rows: Sequence[str], where: str | None = None, version: str = "new") -> str:
    """A run as the current version prints it, or one of the years before, which named no test."""
    head = (
        "# nccl-tests version 2.17.6 nccl-headers=22808 nccl-library=22808\n# Collective test"
        f" starting: {test}_perf\n"
    )
    tail = f"# Collective test concluded: {test}_perf\n"
    body = (
        options()
        + "# Using devices\n"
        + (devices() if where is None else where)
        + "#\n"
        + table(rows)
    )
    return head + body + tail if version == "new" else body


def read(tmp_path: Path, text: str, **arguments: object) -> tuple[pd.DataFrame, list[str]]:
    path = tmp_path / "job.log"
    path.write_text(text)
    return read_log(path, reader=READER, **arguments)  # type: ignore[arg-type]


SIZES = (1024, 1048576, 134217728)
TIMES = ((11.5, 11.25), (38.5, 37.75), (1250.5, 12345.0))


def rows_of(test: str, **arguments: object) -> list[str]:
    return [line(test, size, times, **arguments) for size, times in zip(SIZES, TIMES, strict=True)]  # type: ignore[arg-type]


def test_a_run_becomes_rows_of_both_kinds(tmp_path: Path) -> None:
    frame, remarks = read(tmp_path, run("all_reduce", rows_of("all_reduce")))
    assert remarks == []
    assert len(frame) == 2 * len(SIZES)
    assert frame["in_place"].tolist() == [0, 1] * 3
    assert frame["bytes"].tolist() == [size for size in SIZES for _ in range(2)]
    assert frame["time_s"].tolist() == pytest.approx(
        [time * 1e-6 for times in TIMES for time in times]
    )
    one = frame.iloc[0].to_dict()
    wanted = {
        "collective": "all_reduce", "n_gpus": 8, "n_nodes": 1, "gpus_per_node": 8, "link": "intra",
    }  # fmt: skip
    assert {key: one[key] for key in wanted} == wanted
    assert (one["dtype"], one["lib"], one["lib_version"], one["variant"]) == (
        "float",
        "nccl",
        "2.28.8",
        "nccl-tests",
    )


@pytest.mark.parametrize(
    "test",
    ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv"],
)
@pytest.mark.parametrize("dtype", ["float", "half", "int8"])
def test_every_tests_size_is_the_schemas_bytes(tmp_path: Path, test: str, dtype: str) -> None:
    frame, remarks = read(tmp_path, run(test, rows_of(test, dtype=dtype)))
    assert (set(frame["collective"]), remarks) == ({test}, [])
    assert frame["bytes"].tolist()[::2] == list(SIZES)
    assert set(frame["dtype"]) == {dtype}


def test_two_hosts_of_eight(tmp_path: Path) -> None:
    rows = [line("all_reduce", 1048576, (90.5, 91.5), n=16)]
    frame, _ = read(tmp_path, run("all_reduce", rows, devices(16, ("alpha", "beta"))))
    assert set(
        zip(frame["n_gpus"], frame["n_nodes"], frame["gpus_per_node"], frame["link"], strict=True)
    ) == {(16, 2, 8, "inter")}


OLD = {  # versions up to 2.10: each test its own columns, `error` instead of `#wrong`, no groups
    "all_reduce": ("type   redop", ("float", "sum")),
    "all_gather": ("type", ("float",)),
    "reduce_scatter": ("type   redop", ("float", "sum")),
    "alltoall": ("type   redop", ("float",)),
    "broadcast": ("type    root", ("float", "0")),
    "reduce": ("type   redop    root", ("float", "sum", "0")),
}


@pytest.mark.parametrize("test", OLD)
def test_old_versions(tmp_path: Path, test: str) -> None:
    names, head = OLD[test]
    share = (
        (N - 1) / N if test in ("all_gather", "reduce_scatter") else 1.0
    )  # what old versions counted in algbw
    rows = []
    for size, (out, into) in zip(
        SIZES, ((11.5, 11.25), (38.5, 37.75), (10250.0, 10345.0)), strict=True
    ):
        count = size // 4 // (N if test in SHARDED else 1)
        timings = [
            f"  {us(time)}  {size / time * 1e-3 * share:6.2f} "
            f" {size / time * 1e-3 * BUS.get(test, 1.0):6.2f}  1e-07"
            for time in (out, into)
        ]
        rows.append(
            f"{size:12d}  {count:12d}  "
            + "  ".join(f"{word:>6}" for word in head)
            + "".join(timings)
        )
    text = (
        f"+ mpirun -np 8 ./build/{test}_perf -b 1K -e 128M\n# nThread: 1 nGpus: 8 minBytes: 8"
        " maxBytes: 134217728 step: 2(factor) warmupIters: 5 iters: 20 validation: 1 \n#\n# Using"
        " devices\n"
        + devices(group="")
        + "#\n#       out-of-place                       in-place          \n#       size        "
        f" count  {names}     time   algbw   busbw  error     time   algbw   busbw  error\n"
    ) + "\n".join(rows)
    frame, remarks = read(tmp_path, text + "\n" + FOOT)
    assert (set(frame["collective"]), len(frame), remarks) == ({test}, 6, [])
    assert frame["time_s"].iloc[-1] == pytest.approx(10345e-6)


def test_rccl_in_place_only(tmp_path: Path) -> None:
    text = (
        options()
        + "rccl-tests: Version develop:0123456\n# Using devices\n"
        + devices(group="", name="AMD Instinct MI300X")
        + "# Collective test starting: all_reduce_perf\n#\n#        in-place\n"
        + "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        + "RCCL version : 2.22.3-HEAD:0123456\n"
        + line("all_reduce", 1048576, (30.25,))
        + "\n"
        + FOOT
    )
    frame, remarks = read(tmp_path, text)
    assert remarks == []
    assert frame[["in_place", "lib", "lib_version"]].to_numpy().tolist() == [[1, "rccl", "2.22.3"]]


def test_time_stamps_and_iterations(tmp_path: Path) -> None:
    columns = (
        COLUMNS.replace("#wrong", "#wrong   i_min   i_max   i_p99   i_cv%").rstrip()
        + "           timestamp\n"
    )
    more = "    29.50    33.00    32.50     2.10"
    row = (
        f"{1048576:12d}  {262144:12d}     float     sum      -1"
        + result(1048576, 31.0, 1.75)
        + more
        + result(1048576, 30.5, 1.75)
        + more
    )
    frame, _ = read(
        tmp_path, run("all_reduce", []).replace(COLUMNS, columns + row + "  2025-01-02 03:04:05\n")
    )
    assert frame["time_min_s"].tolist() == pytest.approx([29.5e-6, 29.5e-6])
    assert frame["time_s"].tolist() == pytest.approx([31e-6, 30.5e-6])


def json_run(test: str = "all_reduce", times: tuple[float, float] = (31.0, 30.5)) -> dict:
    timed = [
        {
            "time": time,
            "alg_bw": 1048576 / time * 1e-3,
            "bus_bw": 1048576 / time * 1e-3 * 1.875,
            "nwrong": wrong,
        }
        for time, wrong in zip(times, (0.0, None), strict=True)
    ]
    return {
        "version": 2,
        "args": [f"/opt/{test}_perf", "-b", "1M"],
        "env": [],
        "nccl_version": 2708,
        "config": {
            "nthreads": 1,
            "ngpus": 8,
            "aggregated_iterations": 1,
            # without MPI and with several GPUs a process, only its first rank is listed
            "devices": [
                {
                    "rank": rank,
                    "group": 0,
                    "pid": 7,
                    "hostname": host,
                    "device": 0,
                    "device_hex": "0000:0a:00",
                    "device_info": "X",
                }
                for rank, host in ((0, "a"), (8, "b"))
            ],
        },
        "results": [
            {
                "size": 1048576,
                "count": 262144,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": timed[0],
                "out_of_place_per_iter": {"min_us": 29.0, "stdev_us": 0.5},
                "in_place": timed[1],
            }
        ],
    }


def test_json_files(tmp_path: Path) -> None:
    text = json.dumps(json_run())
    assert READER.looks_like(text)
    frame, remarks = read(tmp_path, text + "\n" + json.dumps(json_run("gather")))
    assert remarks == ["result 1: run of gather_perf skipped: gather is not a collective we know"]
    assert frame["time_s"].tolist() == pytest.approx([31e-6, 30.5e-6])
    assert (set(frame["n_gpus"]), set(frame["n_nodes"]), set(frame["lib_version"])) == (
        {16},
        {2},
        {"2.7.8"},
    )
    assert frame["time_min_s"].iloc[0] == pytest.approx(29e-6)
    with pytest.raises(InputError, match="damaged or another one"):
        read(tmp_path, text[:-40])


def test_several_runs_in_one_log(tmp_path: Path) -> None:
    first = run("all_reduce", rows_of("all_reduce"), version="old")
    second = run(
        "all_gather", rows_of("all_gather", none=""), devices(8, ("a", "b")), version="old"
    )
    third = run("gather", rows_of("gather"))
    text = (
        "Loading modules\n+ srun ./all_reduce_perf -b 8\n"
        + first
        + "\nslurmstepd: 12 warnings\n+ srun /x/all_gather_perf -b 8\n"
        + second
        + third
    )
    frame, remarks = read(tmp_path, text)
    assert frame.groupby("collective", sort=False)["n_nodes"].agg(["size", "max"]).to_dict(
        "index"
    ) == {"all_reduce": {"size": 6, "max": 1}, "all_gather": {"size": 6, "max": 2}}
    assert len(remarks) == 1
    assert "run of gather_perf skipped" in remarks[0]
    assert f"line {1 + text[: text.index(third)].count(chr(10))}:" in remarks[0]


PREFIXES = [
    "[1,0]<stdout>:",
    "[1,0]<stdout>: ",
    " 0: ",
    "[0] ",
    "[default0]:",
    "2025-01-02T03:04:05.678Z ",
    "2025-01-02 03:04:05,6 node-1: ",
]


@pytest.mark.parametrize("prefix", [*PREFIXES, "\x1b[32m"])
def test_launchers_prefixes(tmp_path: Path, prefix: str) -> None:
    text = run("all_reduce", rows_of("all_reduce"))
    plain, _ = read(tmp_path, text)
    wrapped, remarks = read(tmp_path, "".join(f"{prefix}{one}\r\n" for one in text.split("\n")))
    assert remarks == []
    pd.testing.assert_frame_equal(plain, wrapped)


def test_other_lines_in_a_table_are_no_rows(tmp_path: Path) -> None:
    rows = rows_of("all_reduce")
    chatter = (
        "node1:4001:4100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\nnode1:4001 [0] NCCL"
        " INFO NCCL version 2.18.3+cuda12.2\n"
    )
    frame, remarks = read(tmp_path, run("all_reduce", [rows[0], chatter.rstrip(), *rows[1:]]))
    assert (len(frame), remarks) == (6, [])


DAMAGED = {
    "cut off": lambda row: row[: len(row) // 2],
    "cut in its numbers": lambda row: row[:-20],
    "other output within": lambda row: row[:60] + "node1:1:1 [0] NCCL INFO x" + row[60:],
    "other output before": lambda row: "node1:1:1 [0] NCCL INFO x" + row,
    "only a size": lambda row: row[:12],
    "a number garbled": lambda row: row.replace(".", "?", 1),
    "zero time": lambda row: row.replace("38.50", " 0.00"),
    "negative time": lambda row: row.replace("38.50", "-8.50"),
    "a digit lost": lambda row: row.replace("1048576", " 148576"),
    "another time": lambda row: row.replace("38.50", "68.50"),
    "another count": lambda row: row.replace("262144", "262145"),
    "wrong results": lambda row: row.replace("    0  ", "   17  ", 1),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_lines_are_skipped_and_named(tmp_path: Path, how: str) -> None:
    rows = rows_of("all_reduce")
    worse = DAMAGED[how](rows[1])
    assert worse != rows[1]
    text = run("all_reduce", [rows[0], worse, rows[2]])
    frame, remarks = read(tmp_path, text)
    assert len(remarks) == 1
    assert remarks[0].startswith(f"line {text.split(chr(10)).index(worse) + 1}: ")
    kept = frame[frame["bytes"] == 1048576]
    assert len(frame) - len(kept) == 4
    assert set(kept["time_s"].round(9)) <= {37.75e-6}  # the line's other half may be whole


@pytest.mark.parametrize(
    "names", [COLUMNS[:70] + "\n", COLUMNS.replace("algbw", "al\x00bw", 1), ""]
)
def test_a_damaged_line_of_names_does_not_lose_the_table(tmp_path: Path, names: str) -> None:
    frame, remarks = read(
        tmp_path, run("all_reduce", rows_of("all_reduce")).replace(COLUMNS, names)
    )
    assert (len(frame), remarks) == (6, [])


def test_many_damaged_lines_are_counted(tmp_path: Path) -> None:
    row = line("all_reduce", 1048576, (38.5, 37.75))
    _, remarks = read(tmp_path, run("all_reduce", [row, *[row[:50]] * 40]))
    assert remarks[0].endswith(
        "... (40 in all): damaged (cut off, or mixed with other output), skipped"
    )


def test_nothing_sent_and_nothing_measured_are_named(tmp_path: Path) -> None:
    nothing = f"{0:12d}  {0:12d}     float     sum      -1" + "     9.50    0.00    0.00      0" * 2
    text = run("all_reduce", [nothing, *rows_of("all_reduce")]) + run("reduce", [])
    _, remarks = read(tmp_path, text)
    assert ["size 0" in remarks[0], "without measurements" in remarks[1]] == [True, True]


# Which test it is: header, command, columns, caller


def unnamed(test: str, rows: Sequence[str], n: int = N) -> str:
    return run(test, rows, devices(n), version="old")


@pytest.mark.parametrize(
    "test", ["all_reduce", "reduce_scatter", "broadcast", "reduce", "sendrecv"]
)
def test_columns_tell_where_they_can(tmp_path: Path, test: str) -> None:
    frame, _ = read(tmp_path, unnamed(test, rows_of(test)))
    assert set(frame["collective"]) == {test}


@pytest.mark.parametrize("test", ["all_gather", "alltoall"])
def test_columns_that_cannot_tell_are_a_question(tmp_path: Path, test: str) -> None:
    text = "one line before\n" + unnamed(test, rows_of(test))
    with pytest.raises(
        InputError,
        match=r"line 2: .*it may be all_gather or alltoall or hypercube; give its collective",
    ):
        read(tmp_path, text)
    frame, _ = read(tmp_path, text, collective=test)
    assert set(frame["collective"]) == {test}
    with pytest.raises(InputError, match="give its collective"):
        read(tmp_path, text, collective="all_reduce")  # not with these columns
    with pytest.raises(InputError, match="got 'allreduce'"):
        read(tmp_path, text, collective="allreduce")


def test_two_ranks_leave_all_reduce_and_sendrecv_open(tmp_path: Path) -> None:
    text = unnamed("all_reduce", rows_of("all_reduce", n=2), n=2)
    with pytest.raises(InputError, match="all_reduce or sendrecv"):
        read(tmp_path, text)
    assert len(read(tmp_path, "./all_reduce_perf -g 2\n" + text)[0]) == 6


def test_commands_listed_ahead_are_told_apart_by_columns(tmp_path: Path) -> None:
    listed = "./all_reduce_perf\n./reduce_scatter_perf\n"
    text = (
        listed
        + unnamed("all_reduce", rows_of("all_reduce"))
        + unnamed("reduce_scatter", rows_of("reduce_scatter"))
    )
    assert list(dict.fromkeys(read(tmp_path, text)[0]["collective"])) == [
        "all_reduce",
        "reduce_scatter",
    ]


def test_a_log_that_contradicts_itself_is_a_question(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="the log names broadcast, but this run's columns are those of all_reduce"
    ):
        read(tmp_path, "./broadcast_perf\n" + unnamed("all_reduce", rows_of("all_reduce")))


# Where it ran: the list of devices, else the caller


def test_without_devices_the_caller_says(tmp_path: Path) -> None:
    text = run("all_reduce", rows_of("all_reduce"), where="")
    with pytest.raises(
        InputError, match=r"line 1: expected a list of devices .*give n_gpus and n_nodes"
    ):
        read(tmp_path, text)
    frame, _ = read(tmp_path, text, n_gpus=8, n_nodes=2)
    assert set(frame["gpus_per_node"]) == {4}
    with pytest.raises(InputError, match="both n_gpus and n_nodes"):
        read(tmp_path, text, n_gpus=8)
    with pytest.raises(InputError, match="whole multiple"):
        read(tmp_path, text, n_gpus=8, n_nodes=3)
    with pytest.raises(InputError, match="among 4 ranks disagree"):
        read(tmp_path, text, n_gpus=4, n_nodes=1)  # their bus bandwidth is that of eight


def test_rows_alone(tmp_path: Path) -> None:
    frame, _ = read(tmp_path, "\n".join(rows_of("reduce_scatter")), n_gpus=8, n_nodes=1)
    assert set(frame["collective"]) == {"reduce_scatter"}


def test_devices_that_do_not_add_up(tmp_path: Path) -> None:
    rows = rows_of("all_reduce")
    cut = devices().replace("#  Rank  3 Group", "#  Rank  3 Gr")
    with pytest.raises(InputError, match="list of devices is damaged"):
        read(tmp_path, run("all_reduce", rows, cut))
    missing = "".join(one + "\n" for one in devices().splitlines() if "Rank  3" not in one)
    with pytest.raises(InputError, match="ranks are missing"):
        read(tmp_path, run("all_reduce", rows, missing))
    good = run("all_reduce", rows)
    for where, why in (
        (devices().replace("node1", "node2", 3), "unevenly over hosts"),
        (devices().replace("[0x03]", "[0x02]"), "share a device"),
        (devices().replace("Group  0", "Group  1", 4), "2 groups of ranks"),
        (devices(1), "communicates with nobody"),
    ):
        frame, remarks = read(tmp_path, run("all_reduce", rows, where) + good)
        assert len(frame) == 6
        assert why in remarks[0]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (options(), options(agg=4), "4 operations were started as one"),
        ("root     time", "root  cputime", "times are the CPU's"),
    ],
)
def test_times_of_something_else_are_skipped(tmp_path: Path, old: str, new: str, why: str) -> None:
    good = run("all_reduce", rows_of("all_reduce"))
    frame, remarks = read(tmp_path, good.replace(old, new) + good)
    assert (len(frame), len(remarks)) == (6, 1)
    assert why in remarks[0]


@pytest.mark.parametrize(
    "text", ["", "hello\nworld\n", run("gather", rows_of("gather")), run("all_reduce", []), "{}"]
)
def test_nothing_usable_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        InputError, match=r"^expected .*found .*job\.log|^expected .*job\.log.*found"
    ) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)
    assert "check the file" in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_log(tmp_path / "none.log", reader=READER)
    with pytest.raises(InputError, match="cannot read"):
        read_log(tmp_path, reader=READER)
    (tmp_path / "noise.log").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(InputError, match="none that can be used"):
        read_log(tmp_path / "noise.log", reader=READER)


def test_which_reader_a_file_is_for() -> None:
    text = run("all_reduce", rows_of("all_reduce"))
    assert READER.looks_like(text)
    assert READER.looks_like("[1,0]<stdout>:" + COLUMNS)
    assert not param_comms.READER.looks_like(text)
    assert not READER.looks_like("collective,bytes,time_s\nall_reduce,8,1e-5\n")
    assert not READER.looks_like('{"schema": "hybridperf/model"}')


tests = st.sampled_from(
    ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv"]
)
times = st.floats(1.0, 5e6, allow_nan=False)


@given(
    tests,
    st.sampled_from([2, 4, 16]),
    st.sampled_from(["float", "half", "int8", "double", "bfloat16"]),
    st.lists(
        st.tuples(st.integers(3, 33), times, times),
        min_size=1,
        max_size=6,
        unique_by=lambda one: one[0],
    ),
)
@settings(max_examples=60, deadline=None)
def test_what_is_printed_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, test: str, n: int, dtype: str, measured: list
) -> None:
    path = tmp_path_factory.mktemp("log") / "job.log"
    rows = [
        line(test, 2**exponent * 16, (out, into), n=n, dtype=dtype)
        for exponent, out, into in measured
    ]
    hosts = ("a", "b") if n > 2 else ("a",)
    path.write_text(run(test, rows, devices(n, hosts)))
    frame, remarks = read_log(path, reader=READER)
    assert remarks == []
    assert set(
        zip(frame["collective"], frame["n_gpus"], frame["n_nodes"], frame["dtype"], strict=True)
    ) == {(test, n, len(hosts), dtype)}
    assert frame["bytes"].tolist() == [
        2**exponent * 16 for exponent, *_ in measured for _ in range(2)
    ]
    assert frame["time_s"].tolist() == pytest.approx(
        [float(us(t)) * 1e-6 for _, out, into in measured for t in (out, into)]
    )


@given(st.binary(max_size=400), st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_no_damage_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    text = run("all_reduce", rows_of("all_reduce")).encode()
    path = tmp_path_factory.mktemp("log") / "job.log"
    path.write_bytes(text[:at] + noise + text[at + len(noise) // 2 :])
    try:
        frame, _ = read_log(path, reader=READER)
    except InputError:
        return
    for size, time_s in zip(
        frame["bytes"], frame["time_s"], strict=True
    ):  # a lost digit shows, unless the bandwidth's two hide it
        assert any(
            time_s == pytest.approx(time * 1e-6, rel=0.08) for time in TIMES[SIZES.index(size)]
        )
