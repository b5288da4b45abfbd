"""Exports of Nsight Systems, written here by the published schema: the same events as a trace of
Kineto give the same summary; what is none is one sentence.
"""

import json
import random
import sqlite3
from pathlib import Path

import pytest

from hybridperf.io import InputError
from hybridperf.traces.readers.kineto import read_traces

THREAD = (0x1234 << 24) + 0x56  # process 0x1234, thread 0x56
# start, end (ns), stream, correlation, name
KERNELS = [(2000, 5000, 7, 1, "ampere_sgemm_128x64"), (6000, 9000, 7, 2, "ncclDevKernel_AllReduce")]
CALLS = [(1000, 1500, 1, "cudaLaunchKernel"), (1600, 2100, 2, "cudaLaunchKernel")]
RANGES = [(900, 9500, "ProfilerStep#4")]


def export(path: Path, *, without: str = "") -> Path:
    names = [*dict.fromkeys(one[-1] for one in (*KERNELS, *CALLS))]
    number = {name: at for at, name in enumerate(names, 10)}
    with sqlite3.connect(path) as to:
        to.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        to.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(n, one) for one, n in number.items()]
        )
        if without != "kernels":
            to.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
                " contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,"
                " demangledName INTEGER, shortName INTEGER)"
            )
            rows = [(s, e, 0, 1, stream, call, THREAD, number[n], number[n])
                    for s, e, stream, call, n in KERNELS]  # fmt: skip
            to.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({'?, ' * 8}?)", rows)
        if without != "calls":
            to.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,"
                " eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
            )
            to.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?)",
                [(s, e, THREAD, call, number[n]) for s, e, call, n in CALLS],
            )
        to.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,"
            " globalTid INTEGER, textId INTEGER)"
        )
        to.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL)",
            [(s, e, name, THREAD) for s, e, name in RANGES],
        )
        to.execute("INSERT INTO NVTX_EVENTS VALUES (1, NULL, 34, 'a mark', 0, NULL)")
    return path


def kineto(path: Path) -> Path:
    """The same recording as PyTorch's profiler writes it."""

    def event(category: str, name: str, start: int, end: int, **args: int) -> dict:
        place = {"pid": 0x1234, "tid": 0x56} if "call" not in args else {"pid": 0, "tid": 7}
        shown = {"correlation": args["call"], "device": 0, "stream": 7} if "call" in args else args
        return {"ph": "X", "cat": category, "name": name, "ts": start / 1e3,
                "dur": (end - start) / 1e3, "args": shown, **place}  # fmt: skip

    events = [event("kernel", n, s, e, call=call) for s, e, _, call, n in KERNELS]
    events += [event("cuda_runtime", n, s, e, correlation=call) for s, e, call, n in CALLS]
    events += [event("user_annotation", n, s, e) for s, e, n in RANGES]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def summary(run, path: Path) -> dict:
    status, out, err = run("trace", "summary", path, "--json")
    assert status == 0, err
    found = json.loads(out)
    for step in found["steps"]:
        del step["trace"]  # the file's name
    return {name: found[name] for name in ("steps", "ops", "kernels")}


def test_a_summary_is_that_of_the_same_recording_by_kineto(run, tmp_path: Path) -> None:
    found = summary(run, export(tmp_path / "a.sqlite"))
    assert found == summary(run, kineto(tmp_path / "a.json"))
    assert [one["name"] for one in found["kernels"]] == [name for *_, name in KERNELS]


def test_a_folder_of_exports_is_read(tmp_path: Path) -> None:
    for rank in range(2):
        export(tmp_path / f"rank{rank}.sqlite")
    assert [trace.rank for trace in read_traces(tmp_path)] == [0, 1]


def test_without_calls_kernels_are_still_there(tmp_path: Path) -> None:
    (trace,) = read_traces(export(tmp_path / "a.sqlite", without="calls"))
    assert len(trace.device_events.start_s) == 2


def test_another_database_is_said(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "b.sqlite") as to:
        to.execute("CREATE TABLE people (name TEXT)")
        to.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start, 2 AS end")
    with pytest.raises(InputError, match="another SQLite file; trace with `nsys"):
        read_traces(tmp_path / "b.sqlite")


def test_no_change_of_bytes_is_worse_than_a_sentence(tmp_path: Path) -> None:
    whole = export(tmp_path / "a.sqlite").read_bytes()
    chance, path = random.Random(1), tmp_path / "b.sqlite"
    for _ in range(200):
        cut = bytearray(whole)
        for _ in range(chance.randrange(1, 40)):
            cut[chance.randrange(16, len(cut))] = chance.randrange(256)
        path.write_bytes(bytes(cut[: chance.choice([len(cut), chance.randrange(20, len(cut))])]))
        try:
            read_traces(path)
        except InputError:
            continue
