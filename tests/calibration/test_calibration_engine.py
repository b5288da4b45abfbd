"""The measuring machinery: times that mean something, and rows that survive whatever ends a run."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf_calibration.microbench import engine, machine, quiet, store
from hybridperf_calibration.microbench.quiet import Yardstick
from hybridperf_calibration.microbench.store import RowStore, StoreError
from hybridperf_calibration.microbench.timer import (
    Budget,
    Case,
    Rotation,
    compile_ahead,
    dispatch_case,
    is_settled,
    repeat_until_settled,
    time_case,
)

HERE = {"cpu_model": "A", "jax": "0.9.2", "setting quick": True}  # a fingerprint
QUICK = Budget(cap_s=0.05, min_s=0.0)


def read_rows(path):
    """The rows of a store, also of one that is being written or cut off in the middle of a line."""
    return store._parse(path, path.read_bytes())[1]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def matmul_case(n: int, **options) -> Case:
    def make(rng):
        return jnp.matmul, [tuple(rng.random((2, n, n), dtype=np.float32)) for _ in range(3)]

    return Case(
        key=f"gemm {n}", columns={"op": "gemm", "m": n, "n": n, "k": n}, make=make, **options
    )


def failing_case() -> Case:
    def make(rng):
        raise MemoryError("no 4 TiB\nsecond line")

    return Case(key="too large", columns={"op": "gemm", "m": 10**6}, make=make)


def row(number: int, **more) -> dict:
    return {"key": f"case {number}", "pass_no": 1, "op": "gemm", "time_s": 1e-3 * number, **more}


def python(script: str, *arguments: object, **options) -> subprocess.CompletedProcess:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, **options
    )


# Timer


def test_settled_by_hand() -> None:
    # the last third (1.5, 1.2) is no lower than 1.0
    assert is_settled([3.0, 2.0, 1.0, 1.0, 1.5, 1.2])
    assert is_settled([2.0, 2.0, 1.0, 1.0, 0.995, 1.0])  # lower by half a per cent
    assert not is_settled([3.0, 2.0, 1.0, 1.0, 0.9, 1.2])
    assert not is_settled([1.0, 1.0])  # too few to tell


def test_a_larger_op_takes_longer() -> None:
    small, large = (time_case(matmul_case(n), QUICK, np.random.default_rng(0)) for n in (32, 512))
    # 4096 times the work, of which a GPU shows little beside its launch
    assert large.time_s > (5 if jax.default_backend() == "cpu" else 1) * small.time_s
    assert small.least_s <= small.time_s
    assert small.repeats >= QUICK.min_repeats
    assert small.reuse_bytes == 3 * 2 * 32 * 32 * 4
    assert small.compile_s > 0


def test_time_is_per_op_after_subtraction() -> None:
    timing = time_case(
        matmul_case(64, divisor=10, subtract_s=1e-6), QUICK, np.random.default_rng(0)
    )
    assert timing.time_s == pytest.approx((timing.call_s - 1e-6) / 10)
    assert not timing.unreliable


def test_subtracting_almost_all_is_marked() -> None:
    timing = time_case(matmul_case(64, subtract_s=1.0), QUICK, np.random.default_rng(0))
    assert timing.unreliable
    assert 0 < timing.time_s < timing.call_s


def test_calls_rotate_through_the_inputs() -> None:
    seen = []
    rotation = Rotation(seen.append, [(1,), (2,), (3,)], carried=())
    every_s, calls_s = repeat_until_settled(rotation, Budget(min_s=0.0, max_repeats=12))
    assert seen[:7] == [1, 2, 3, 1, 2, 3, 1]
    assert every_s == calls_s
    assert len(calls_s) == len(seen)


def test_carried_arguments_are_updated_in_place() -> None:
    def make(rng):
        row = np.ones((1, 64), np.float32)
        return (lambda table, row: (table.at[3:4].add(row), row.sum())), [
            (np.zeros((9_999, 64)), row) for _ in range(2)
        ]

    case = Case(key="update", columns={"op": "update"}, make=make)
    copied, in_place = (
        time_case(dataclasses.replace(case, carried=carried), QUICK, np.random.default_rng(0))
        for carried in ((), (0,))
    )
    assert in_place.time_s < copied.time_s  # which copies the table


def test_slow_calls_end_at_the_cap() -> None:
    calls_s, _ = repeat_until_settled(
        Rotation(lambda: time.sleep(0.02), [()], carried=()), Budget(cap_s=0.01)
    )
    assert len(calls_s) == Budget.floor_repeats


class Counted:
    """The number of a call as its seconds."""

    def __init__(self) -> None:
        self.calls = 0

    def call_s(self) -> float:
        self.calls += 1
        return float(self.calls)


def test_calls_beside_another_thread_do_not_count() -> None:
    """Busy before the 3rd call and after the 6th: 2 (busy after it), 3, 6 and 7 are left out."""
    asked = iter([False, False, True, False, False, False, True, *[False] * 1000])
    budget = Budget(cap_s=5.0, min_s=0.0, min_repeats=8, max_repeats=8)
    every_s, calls_s = repeat_until_settled(Counted(), budget, lambda: next(asked))
    assert every_s == list(range(1, len(every_s) + 1))
    assert calls_s == [one for one in every_s if one not in (2, 3, 6, 7)]


def test_a_core_that_is_never_alone_counts_all_calls() -> None:
    class Slow(Counted):
        def call_s(self) -> float:
            time.sleep(0.002)
            return super().call_s()

    every_s, calls_s = repeat_until_settled(Slow(), Budget(cap_s=0.01, min_s=0.0), lambda: True)
    assert every_s == calls_s
    assert len(calls_s) >= 10  # four times the cap was waited for a quiet one


def test_a_sibling_is_seen_by_sums_that_take_longer(monkeypatch) -> None:
    took_s = 1e-6
    monkeypatch.setattr(quiet, "_sums_s", lambda: took_s)
    beside = quiet.Sibling()
    assert not beside.busy()
    took_s = 1.2e-6  # the clock's own ups and downs
    assert not beside.busy()
    took_s = 1.5e-6
    assert beside.busy()
    # for good: after a while that is how fast the core is
    assert not all(beside.busy() for _ in range(50_000))


@pytest.mark.parametrize("n_arguments", [1, 16])
def test_dispatch_is_microseconds(n_arguments: int) -> None:
    timing = time_case(dispatch_case(n_arguments, n_outputs=2), QUICK, np.random.default_rng(0))
    assert 1e-7 < timing.time_s < 5e-3


# Store


def test_rows_come_back(tmp_path) -> None:
    with RowStore(tmp_path / "rows.jsonl", HERE) as store:
        store.append(row(1, shape=(2, 3), m=np.int64(4), x=np.float32(0.5)))
        assert store.has("case 1", 1)
        assert not store.has("case 1", 2)
        with pytest.raises(ValueError, match="already"):
            store.append(row(1))
        with pytest.raises(ValueError, match="JSON"):
            store.append(row(2, x=float("nan")))
    assert read_rows(tmp_path / "rows.jsonl") == [row(1, shape=[2, 3], m=4, x=0.5)]
    header = (tmp_path / "rows.jsonl").read_text().splitlines()[0]
    assert json.loads(header)["fingerprint"] == HERE


@pytest.mark.parametrize(
    "garbage", [b"garbage\n", b"\0\0\0\0", b'{"key": "case 4", "pass_no"', b"[1]\n", b"\xff\xfe\n"]
)
def test_incomplete_last_line_is_dropped(tmp_path, garbage: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    with RowStore(path, HERE) as store:
        for number in (1, 2, 3):
            store.append(row(number))
    whole = path.read_bytes()
    path.write_bytes(whole + garbage)
    assert len(read_rows(path)) == 3
    with RowStore(path, HERE) as store:
        assert store.dropped
        assert store.rows == [row(1), row(2), row(3)]
        store.append(row(4))
    assert path.read_bytes().startswith(whole)
    assert read_rows(path) == [row(1), row(2), row(3), row(4)]


def test_a_file_cut_anywhere_resumes(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    with RowStore(path, HERE) as store:
        store.append(row(1))
        store.append(row(2))
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with RowStore(path, HERE) as store:
            for number in (1, 2):
                if not store.has(f"case {number}", 1):
                    store.append(row(number))
        assert path.read_bytes() == whole


def test_damage_in_the_middle_is_refused(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    with RowStore(path, HERE) as store:
        store.append(row(1))
        store.append(row(2))
    path.write_bytes(path.read_bytes().replace(b'"case 1"', b'"case 1'))
    with pytest.raises(StoreError, match=r"line 2 .* damaged"):
        read_rows(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"jax": "0.12.0"}, r"jax: '0\.9\.2' there, '0\.12\.0' here"),
        ({"cpu_model": "B"}, "cpu_model: 'A' there, 'B' here"),
        ({"setting quick": False}, "setting quick: True there, False here"),
        ({"new": 1}, "new: None there, 1 here"),
    ],
)
def test_foreign_fingerprint_is_refused(tmp_path, change: dict, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    with RowStore(path, HERE) as store:
        store.append(row(1))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=says) as caught:
        RowStore(path, {**HERE, **change})
    assert "use another --out or delete the file" in str(caught.value)
    assert path.read_bytes() == before
    RowStore(path, HERE).close()  # the refused open left no lock behind


@pytest.mark.parametrize(
    ("version", "advice"),
    [(1, "measure again into another --out"), (3, "update hybridperf or use another --out")],
)
def test_rows_of_another_schema_are_refused(tmp_path, version: int, advice: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        f'{{"hybridperf_rows": {version}, "fingerprint": {{}}}}\n{{"shape of other things": 1}}\n'
    )
    with pytest.raises(StoreError, match=f"schema version {version} .* reads version 2; {advice}"):
        read_rows(path)
    with pytest.raises(StoreError, match=f"schema version {version}"):
        RowStore(path, HERE)


@pytest.mark.parametrize("content", [b"m,n,time_s\n1,2,3\n", b"a note", b'{"cells": []}\n'])
def test_other_files_are_not_touched(tmp_path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a file of hybridperf measurements"):
        RowStore(path, HERE)
    assert path.read_bytes() == content


def test_two_processes_do_not_share_a_store(tmp_path) -> None:
    pytest.importorskip("fcntl")
    with (
        RowStore(tmp_path / "rows.jsonl", HERE),
        pytest.raises(StoreError, match="another process is measuring"),
    ):
        RowStore(tmp_path / "rows.jsonl", HERE)


def test_missing_folder_is_one_sentence(tmp_path) -> None:
    with pytest.raises(StoreError, match="cannot open"):
        RowStore(tmp_path / "none" / "rows.jsonl", HERE)


FILL = """
    import sys
    from hybridperf_calibration.microbench.store import RowStore, StoreError
    with RowStore(sys.argv[1], {}) as store:
        print(len(store.rows))
        try:
            for number in range(len(store.rows), int(sys.argv[2])):
                store.append({"key": f"case {number}", "pass_no": 1, "padding": "x" * 300})
        except StoreError as error:
            sys.exit(str(error))
"""


def check_full_disk(path: Path, until_full: str, afterwards: str, make_room) -> None:
    full = python(until_full, path, 10_000)
    assert full.returncode == 1
    assert re.search(r"cannot write to .*: the disk is full; its \d+ rows are kept", full.stderr), (
        full.stderr
    )
    assert full.stderr.count("\n") == 1
    kept = read_rows(path)
    assert len(kept) > 10
    assert path.read_bytes().endswith(b"\n")  # no part of a row is left
    make_room()
    resumed = python(afterwards, path, len(kept) + 5)
    assert resumed.returncode == 0, resumed.stderr
    assert int(resumed.stdout) == len(kept)
    assert [row["key"] for row in read_rows(path)] == [
        f"case {number}" for number in range(len(kept) + 5)
    ]


def test_file_size_limit(tmp_path) -> None:
    pytest.importorskip("resource")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    check_full_disk(
        tmp_path / "rows.jsonl", limit + textwrap.dedent(FILL), FILL, make_room=lambda: None
    )


def test_full_disk(tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True
        )
    except OSError:
        pytest.skip("no mount command here")
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        filler = disk / "filler"
        filler.write_bytes(b"x" * 32_000)
        check_full_disk(disk / "rows.jsonl", FILL, FILL, make_room=filler.unlink)
        filler.touch()
        while True:  # a disk that is full before the store begins
            with filler.open("ab", buffering=0) as file:
                try:
                    file.write(b"x" * 4096)
                except OSError:
                    break
        with pytest.raises(StoreError, match="the disk is full; its 0 rows are kept"):
            RowStore(disk / "new.jsonl", HERE)
        filler.unlink()
        RowStore(disk / "new.jsonl", HERE).close()
    finally:
        subprocess.run(["umount", disk], check=True)


# Engine


def test_two_passes_give_a_noise_floor(tmp_path, capsys) -> None:
    cases = [matmul_case(n) for n in (16, 24, 32)] + [dispatch_case(2)]
    with RowStore(tmp_path / "rows.jsonl", HERE) as store:
        report = engine.run(cases, store, budget_s=2.0)
    assert report.complete
    assert (report.measured, report.resumed, report.failed, report.total) == (8, 0, 0, 8)
    assert "8 of 8" in capsys.readouterr().err  # not a terminal: plain lines
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [r["pass_no"] for r in rows] == [1] * 4 + [2] * 4
    assert [r["key"] for r in rows[:4]] != [r["key"] for r in rows[4:]]  # another order
    assert {
        "time_s",
        "least_s",
        "call_s",
        "calls_ops",
        "repeats",
        "load",
        "preemptions",
        "reuse_bytes",
    } <= set(rows[0])
    merged = engine.merge_passes(rows)
    assert sorted(r["key"] for r in merged) == sorted(case.key for case in cases)
    for r in merged:
        one, other = (measured["time_s"] for measured in rows if measured["key"] == r["key"])
        assert min(one, other) * (1 - 1e-9) <= r["time_s"] <= max(one, other) * (1 + 1e-9)
        assert r["noise"] == pytest.approx(abs(np.log(one / other)))


def test_merge_by_hand() -> None:
    rows = [
        {"key": "a", "op": "gemm", "pass_no": 1, "time_s": 2.0, "unreliable": 0},
        {"key": "b", "op": "gemm", "pass_no": 1, "time_s": None, "error": "MemoryError: no"},
        {"key": "c", "op": "gemm", "pass_no": 1, "time_s": 5.0, "unreliable": 1},
        {"key": "b", "op": "gemm", "pass_no": 2, "time_s": 3.0, "unreliable": 0},
        {"key": "a", "op": "gemm", "pass_no": 2, "time_s": 1.0, "unreliable": 0},
        {"key": "c", "op": "gemm", "pass_no": 2, "time_s": 1.0, "unreliable": 1},
        {"key": "d", "op": "conv", "pass_no": 1, "time_s": None, "error": "MemoryError: no"},
    ]
    merged = {r["key"]: r for r in engine.merge_passes(rows)}
    assert merged["a"]["time_s"] == pytest.approx(
        1.0
    )  # twice as long is no second opinion but a disturbance
    assert merged["a"]["noise"] == pytest.approx(np.log(2))
    assert (merged["b"]["time_s"], merged["b"]["noise"], merged["b"]["passes"]) == (
        pytest.approx(3.0),
        None,
        1,
    )
    assert "error" not in merged["b"]
    assert (merged["d"]["passes"], merged["d"]["error"]) == (0, "MemoryError: no")
    third = {"key": "a", "op": "gemm", "pass_no": 3, "time_s": 1.21, "unreliable": 0}
    three = engine.merge_passes([*rows, third])[0]
    assert three["time_s"] == pytest.approx(1.1)  # two alike: their geometric mean
    assert three["noise"] == pytest.approx(np.log(1.21))


@pytest.fixture
def drifting() -> tuple[dict[str, float], list[dict]]:
    """(seconds of 500 cases alone, rows of two passes over them) on a machine that is 20 % slower
    in the last third of the first pass and 40 % in all of the second but its end; two cases in ten
    are disturbed by themselves, the last twenty were measured once.
    """
    rng = np.random.default_rng(0)
    alone_s = {str(case): float(rng.lognormal()) for case in range(500)}
    rows = []
    for pass_no, cases in ((1, rng.permutation(500)), (2, [*rng.permutation(480), *range(20)])):
        for at, case in enumerate(cases):
            slow = 1.2 if pass_no == 1 and at >= 300 else 1.4 if pass_no == 2 and at < 400 else 1.0
            disturbed = 3.0 if case % 10 == pass_no else 1.0
            time_s = alone_s[str(case)] * slow * disturbed * np.exp(rng.normal(0, 0.01))
            rows.append(
                {
                    "key": str(case),
                    "op": "gemm",
                    "pass_no": pass_no,
                    "time_s": float(time_s),
                    "unreliable": 0,
                }
            )
    rows[7] = {
        "key": rows[7]["key"],
        "op": "gemm",
        "pass_no": 1,
        "time_s": None,
        "error": "MemoryError: no",
    }
    return alone_s, rows


def test_what_all_cases_shared_for_a_while_is_taken_off(drifting) -> None:
    alone_s, rows = drifting
    slowness = engine.slowness_of(rows)
    expected = np.log(np.repeat([1.0, 1.2, 1.4, 1.0], [300, 200, 400, 100]))
    assert np.abs(slowness - expected).max() < 0.02
    merged = engine.merge_passes(rows)
    error = np.array([abs(r["time_s"] / alone_s[r["key"]] - 1) for r in merged])
    assert np.median(error) < 0.01
    assert np.quantile(error, 0.85) < 0.03
    once = [
        e
        for e, r in zip(error, merged, strict=True)
        if r["passes"] == 1 and int(r["key"]) % 10 not in (1, 2)
    ]
    assert len(once) > 10
    assert np.max(once) < 0.05  # freed of the drift that other cases told of
    plain = [
        min(r["time_s"] for r in rows if r["key"] == key and "error" not in r) / alone_s[key]
        for key in alone_s
    ]
    assert np.mean(np.abs(np.array(plain) - 1)) > 3 * error.mean()


def test_few_rows_tell_no_drift() -> None:
    rows = [
        {
            "key": str(at % 50),
            "op": "gemm",
            "pass_no": 1 + at // 50,
            "time_s": 1.0 + at,
            "unreliable": 0,
        }
        for at in range(100)
    ]
    assert (engine.slowness_of(rows) == 0).all()
    assert engine.drift(rows) == []
    assert engine.slowness_of([]).shape == (0,)


def test_drift_is_that_of_the_quietest_of_a_few_minutes(drifting) -> None:
    """Of stretches 0 0 0 .18 .18 .34 .34 .34 .34 0, runs of three have the least 0 0 0 .18 .18 .34
    .34 0.
    """
    quantiles = engine.drift(drifting[1])
    assert quantiles[0] == pytest.approx(0.0, abs=0.02)
    assert quantiles[6] == pytest.approx(np.log(1.2), abs=0.02)
    assert quantiles[-1] == pytest.approx(np.log(1.4), abs=0.02)


def test_a_failing_case_is_a_row(tmp_path) -> None:
    with RowStore(tmp_path / "rows.jsonl", HERE) as store:
        report = engine.run([failing_case(), matmul_case(16)], store, passes=1, budget_s=1.0)
        assert (report.measured, report.failed, report.complete) == (2, 1, True)
        failed = next(r for r in store.rows if r["key"] == "too large")
        again = engine.run([failing_case(), matmul_case(16)], store, passes=1)
        assert again.measured == 0
    assert failed["error"] == "MemoryError: no 4 TiB"
    assert failed["time_s"] is None
    assert failed["m"] == 10**6


def test_the_budget_stops_a_run_cleanly(tmp_path) -> None:
    cases = [matmul_case(n) for n in range(8, 48)]
    with RowStore(tmp_path / "rows.jsonl", HERE) as store:
        first = engine.run(cases, store, budget_s=0.3)
        assert 0 < first.measured < 40
        assert not first.complete
        assert "run the same command again" in first.sentence()
        assert f"{first.measured} of 80 measurements" in first.sentence()
        second = engine.run(cases, store, budget_s=0.3)
        assert second.resumed == first.measured
        assert len(store.rows) == first.measured + second.measured


def test_cases_are_compiled_ahead_in_their_order() -> None:
    kept = {}
    ahead = compile_ahead([matmul_case(8), failing_case(), matmul_case(9)], kept)
    assert next(ahead)
    assert list(kept) == ["gemm 8"]
    # the one that fails has its turn, too: the measurement that meets it again says why
    assert list(ahead) == [True, True]
    assert list(kept) == ["gemm 8", "gemm 9"]
    assert time_case(matmul_case(9), QUICK, np.random.default_rng(0), kept).time_s > 0


def test_only_idle_waiting_uses_up_the_allowance(monkeypatch) -> None:
    """On a machine that stays disturbed: first the work that is left, then sleep, then no more."""
    yardstick = Yardstick(allowance_s=0.3)
    monkeypatch.setattr(Yardstick, "slowness", lambda self: 1.0)
    work = [True] * 5

    def a_piece() -> bool:
        return bool(work) and work.pop()

    assert yardstick.wait(10.0, a_piece) == 1.0
    assert not work
    assert yardstick.waited_s == pytest.approx(0.3, abs=0.11)
    work = [True]
    yardstick.wait(10.0, a_piece)  # the allowance is used up
    assert work


def test_noisy_cases_get_a_third_pass(tmp_path) -> None:
    with RowStore(tmp_path / "rows.jsonl", HERE) as store:
        engine.run([matmul_case(8), matmul_case(9)], store, budget_s=0.5)
        report = engine.run([matmul_case(9)], store, passes=3)
        assert (report.measured, report.resumed) == (1, 2)
        assert [
            r["passes"] for r in sorted(engine.merge_passes(store.rows), key=lambda r: r["m"])
        ] == [2, 3]


def test_same_key_twice_is_refused(tmp_path) -> None:
    with (
        RowStore(tmp_path / "r", HERE) as store,
        pytest.raises(ValueError, match="two cases have the key 'gemm 8'"),
    ):
        engine.run([matmul_case(8), matmul_case(8)], store)


MEASURE = """
    import sys
    import jax.numpy as jnp, numpy as np
    from hybridperf_calibration.microbench import engine, machine
    from hybridperf_calibration.microbench.store import RowStore
    from hybridperf_calibration.microbench.timer import Case

    def case(n):
        def make(rng):
            with open(sys.argv[2], "a") as log:
                log.write(f"{n}\\n")
            return jnp.add, [tuple(rng.random((2, n), dtype=np.float32))]
        return Case(key=f"add {n}", columns={"op": "add", "rows": n}, make=make)

    with RowStore(sys.argv[1], machine.fingerprint({"quick": True})) as store:
        print(engine.run([case(n) for n in range(1, 51)], store, budget_s=60.0).sentence())
"""


def test_kill_and_resume(tmp_path) -> None:
    """Killed at six random moments: no row is lost, none is measured twice."""
    path, log = tmp_path / "rows.jsonl", tmp_path / "made"
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(path), str(log)]
    kept: list[dict] = []
    struck = 0  # kills before the last measurement
    moments = random.Random(0)
    for _ in range(6):
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and (
            not path.exists() or len(read_rows(path)) < len(kept) + 3
        ):
            time.sleep(0.003)
        # in the middle of a line, of a measurement, between two
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.wait()
        rows = read_rows(path)
        assert rows[: len(kept)] == kept
        struck += len(rows) > len(kept) and len(rows) < 100
        kept = rows
    assert struck
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "100 of 100 measurements done" in finished.stdout
    rows = read_rows(path)
    assert rows[: len(kept)] == kept
    assert Counter((r["key"], r["pass_no"]) for r in rows) == {
        (f"add {n}", pass_no): 1 for n in range(1, 51) for pass_no in (1, 2)
    }
    assert all("error" not in r for r in rows)
    # only what was under way at a kill was begun again
    assert len(log.read_text().split()) <= 100 + 6


# Pinning


PIN = """
    import sys
    from hybridperf_calibration.microbench import machine
    if sys.argv[2:]:
        import jax
    try:
        print(machine.pin(machine.parse_cores(sys.argv[1])), machine.cores_available())
    except (ValueError, RuntimeError) as error:
        sys.exit(str(error))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
def test_pinning() -> None:
    core = max(os.sched_getaffinity(0))
    assert python(PIN, core).stdout == f"({core},) 1\n"
    late = python(PIN, f"{core},4000", "late")
    assert late.returncode == 1
    assert "before jax is imported" in late.stderr
    again = f"import os; os.sched_setaffinity(0, [{core}])\n{textwrap.dedent(PIN)}"
    assert python(again, core, "late").stdout == f"({core},) 1\n"
    absent = python(PIN, f"{core},4000")
    assert absent.returncode == 1
    assert "cannot run on core 4000: this machine has" in absent.stderr
    assert absent.stderr.count("\n") == 1


STEADY = """
    import resource, sys
    from hybridperf_calibration.microbench import machine
    machine.steady_cpu()
    import jax, jax.numpy as jnp
    add = jax.jit(jnp.add)
    x = jnp.ones(2**24)
    add(x, x).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        add(x, x).block_until_ready()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_steady_cpu_keeps_freed_memory() -> None:
    """64 MiB are 16,384 pages; a call that reuses an earlier one's memory faults in none of them,
    and most do.
    """
    done = python(STEADY)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 * 16_384 / 2
    with pytest.raises(RuntimeError, match="before jax is imported"):
        machine.steady_cpu()


def test_core_lists() -> None:
    assert machine.parse_cores("0-2,5") == (0, 1, 2, 5)
    for wrong in ("", "a", "2-1", "1-", "-1"):
        with pytest.raises(ValueError, match="expected cores like"):
            machine.parse_cores(wrong)


def test_fingerprint_is_of_this_machine_and_its_settings() -> None:
    prints = [machine.fingerprint({"quick": quick}) for quick in (True, True, False)]
    assert prints[0] == prints[1] != prints[2]
    assert json.loads(json.dumps(prints[0])) == prints[0]
