"""Collectives between real processes: what is timed is what the table says, and no run loses or
doubles a row, whatever ends it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from hybridperf.io import InputError
from hybridperf_calibration import measure_collectives
from hybridperf_calibration.microbench import job
from hybridperf_calibration.microbench.collective_cases import (
    COLLECTIVES,
    SIZES,
    collective_cases,
    count_collectives,
)
from hybridperf_calibration.microbench.collectives import STALLED, summarize, table

PROGRAM = "hybridperf_calibration.measure_collectives"
REQUIRED = ["collective", "bytes", "n_gpus", "n_nodes", "gpus_per_node", "time_s"]

# All ranks run every collective once on numbers that differ by rank and place, and compare with
# NumPy's; then the chained program's count.
CHECK = """
import sys
import numpy as np
from jax import lax
from hybridperf_calibration.microbench.collective_cases import COLLECTIVES, chain
from hybridperf_calibration.microbench.collective_cases import collective_cases, count_collectives
from hybridperf_calibration.microbench.collectives import Team

rank = int(sys.argv[2])
team = Team("127.0.0.1:" + sys.argv[1], 2, rank)
for case in collective_cases(2, "cpu", [64]):
    inputs = [np.arange(case.items_in, dtype=np.float32) + 100 * r for r in range(2)]
    half = case.items_in // 2
    expected = {
        "all_reduce": inputs[0] + inputs[1],
        "all_gather": np.concatenate(inputs),
        "reduce_scatter": (inputs[0] + inputs[1])[half * rank : half * (rank + 1)],
        "alltoall": np.concatenate([i[half * rank : half * (rank + 1)] for i in inputs]),
        "sendrecv": inputs[1 - rank],
    }[case.collective]
    x = team.place(inputs[rank])
    got = team.part(team.compile(lambda x: COLLECTIVES[case.collective].run(lax, x, 2), x)(x))
    assert got.shape == (case.items_out,), (case, got.shape)
    np.testing.assert_array_equal(got, expected, err_msg=case.collective)
for case in collective_cases(2, "gpu", [1024]):
    x, y = (team.place(np.ones(n, np.float32)) for n in (case.items_in, case.items_out))
    text = team.compile(chain(case), x, y, donate=(0, 1)).as_text()
    found = count_collectives(case, text)
    assert case.chained == found == 16, (case, found)
    assert team.nodes("host") == 1 and team.nodes(f"host{rank}") == 2
print("all right")
"""


def command(out: Path, *more: str, processes: int = 2) -> list[str]:
    return [sys.executable, "-m", PROGRAM, "--out", str(out), "--processes", str(processes), *more]


def start(arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        arguments,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def rows_of(out: Path) -> list[dict]:
    store = out / "collectives.jsonl"
    lines = store.read_text().split("\n")[1:-1] if store.exists() else []
    return [json.loads(line) for line in lines]


def children_of(process: subprocess.Popen) -> dict[int, int]:
    """Process number by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    words = {
        int(child): Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children
    }
    return {
        int(line[line.index(b"--rank") + 1]): child
        for child, line in words.items()
        if b"--rank" in line
    }


def wait_for(condition, limit_s: float = 300.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.02)


def lives(process_id: int) -> bool:
    stat = Path(f"/proc/{process_id}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("n", [2, 3, 8])
def test_bytes_count_what_nccl_tests_count(n):
    parts = {  # of `bytes`, on one rank: in, out
        "all_reduce": (1, 1),
        "all_gather": (1 / n, 1),
        "reduce_scatter": (1, 1 / n),
        "alltoall": (1, 1),
        "sendrecv": (1, 1),
    }
    cases = collective_cases(n, "cpu", [256, 100_000])
    assert {case.collective for case in cases} == set(COLLECTIVES) == set(parts)
    for case in cases:
        assert (4 * case.items_in, 4 * case.items_out) == pytest.approx(
            [case.bytes * part for part in parts[case.collective]]
        )
        # a whole number of floats for every rank
        assert min(abs(case.bytes - size) for size in (256, 100_000)) <= 4 * n


def test_a_collective_in_two_halves_counts_once():
    (case,) = collective_cases(2, "gpu", [1024], ["all_gather"])
    text = (
        "%a = (f32[2], f32[4]) all-gather-start(%x)\n %b = f32[4] all-gather-done(%a)\n %c = f32[4]"
        " all-gather(%y)\n"
    )
    assert count_collectives(case, text) == 2


def test_waiting_for_a_late_rank_is_not_counted():
    elapsed_s = np.array([[1.0, 9.0, 3.0], [5.0, 2.0, 3.2]]) + 0.5  # of two ranks, each late once
    row = summarize(elapsed_s, chained=2, dispatch_s=0.5)
    assert (row["time_s"], row["time_min_s"], row["time_mean_s"], row["repeats"]) == (
        1.0,
        0.5,
        1.0,
        3,
    )


def test_the_empty_call_never_takes_all_of_a_time():
    assert summarize(np.array([[1e-6]]), chained=1, dispatch_s=1e-5)["time_s"] > 0


def test_the_quietest_pass_is_the_row_and_the_others_its_noise():
    one = {
        "key": "all_reduce float 256",
        "collective": "all_reduce",
        "bytes": 256,
        "time_min_s": 1.0,
        "time_mean_s": 1.0,
        "time_std_s": 0.0,
    }
    failed = {
        "key": "sendrecv float 256",
        "pass_no": 1,
        "collective": "sendrecv",
        "bytes": 256,
        "error": "did not return within 15 s",
    }
    rows = [{**one, "pass_no": 1, "time_s": 3.0}, {**one, "pass_no": 2, "time_s": 2.0}, failed]
    (row,) = table(rows, {"n_gpus": 2, "n_nodes": 1, "gpus_per_node": 2}).to_dict("records")
    assert (row["time_s"], row["noise"], row["passes"]) == (2.0, 0.5, 2)


def test_sizes_reach_from_256_bytes_to_64_mebibytes():
    for setting in ("quick", "full", "long"):
        assert (min(SIZES[setting]), max(SIZES[setting])) == (256, 2**26)
    assert set(SIZES["quick"]) < set(SIZES["full"])  # a full run goes on where a quick one stopped


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes", "1"], "at least 2, got 1"),
        (
            ["--processes", "2", "--only", "all_reduced"],
            "unknown collective 'all_reduced' (did you mean 'all_reduce'?)",
        ),
        (["--processes", "2", "--sizes", "1k"], "--sizes in bytes like 256,65536, got '1k'"),
        (["--processes", "2", "--sizes", "2"], "at least 4 bytes, got 2"),
        (["--processes", "4", "--process-ids", "2-4"], "below --processes 4, got '2-4'"),
        (["--processes", "4", "--process-ids", "2-3"], "expected --coordinator HOST:PORT"),
    ],
)
def test_wrong_words_are_one_sentence(arguments, said, tmp_path, capfd):
    assert measure_collectives.main(["--out", str(tmp_path / "out"), *arguments]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, capfd):
    (tmp_path / "file").touch()
    assert (
        measure_collectives.main(["--out", str(tmp_path / "file" / "out"), "--processes", "2"]) == 2
    )
    assert "choose another --out" in capfd.readouterr().err


def test_each_process_gets_cores_of_its_own_only_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6, 7}, raising=False)
    assert job.cores_of_processes(2, 2) == (["4,5", "6,7"], "")
    assert job.cores_of_processes(4, 2)[0] == [""] * 4
    assert "5 processes share 4 cores" in job.cores_of_processes(5, 2)[1]


def test_a_size_below_one_number_is_refused():
    with pytest.raises(InputError, match="at least 4 bytes"):
        collective_cases(2, "cpu", [1])


def test_a_collective_that_does_not_return_ends_the_process_and_is_not_tried_again(tmp_path):
    hangs = """
import sys, time
from hybridperf_calibration.microbench.collective_cases import collective_cases
from hybridperf_calibration.microbench.collectives import Watch
from hybridperf_calibration.microbench.store import RowStore
case, other = collective_cases(2, "cpu", [256], ["all_reduce", "sendrecv"])
watch = Watch(RowStore(sys.argv[1], {}), limit_s=0.3)
with watch.over({"key": case.key, "pass_no": 1}):
    pass
time.sleep(0.5)
with watch.over({"key": other.key, "pass_no": 1}):
    time.sleep(30)
"""
    path = tmp_path / "collectives.jsonl"
    assert (
        subprocess.run([sys.executable, "-c", hangs, str(path)], timeout=300).returncode
        == STALLED
        == job.STALLED
    )
    (row,) = rows_of(tmp_path)
    assert (row["key"], row["pass_no"], row["error"]) == (
        "sendrecv float 256",
        1,
        "did not return within 0.3 s",
    )


def test_the_job_is_started_again_after_a_collective_that_did_not_return(
    tmp_path, monkeypatch, capfd
):
    statuses, budgets_s = [job.STALLED, 0], []

    def start(commands, ranks, logs, n):
        budgets_s.append(float(commands[0][commands[0].index("--budget-s") + 1]))
        return statuses.pop(0)

    monkeypatch.setattr(job, "start", start)
    asked = ["--out", str(tmp_path), "--processes", "2", "--budget-s", "50"]
    assert measure_collectives.main(asked) == 0
    assert 50 >= budgets_s[0] > budgets_s[1] > 0  # the time budget is that of all starts together
    assert "did not return" in capfd.readouterr().err


def test_two_processes_get_the_right_numbers():
    port = str(job.free_port())
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CHECK, port, str(r)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for r in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all("all right" in text for text in said), said


def test_a_run_that_is_killed_goes_on_where_it_stopped(tmp_path):
    if not Path("/proc/self/task").exists():
        pytest.skip("looks at processes through /proc")
    arguments = command(tmp_path, "--passes", "2", "--budget-s", "300", "--sizes", "256,65536")
    first = start(arguments)
    wait_for(lambda: len(rows_of(tmp_path)) >= 3)
    ranks = children_of(first)
    assert sorted(ranks) == [0, 1]
    first.kill()  # it has no time to end anything itself
    first.communicate()
    wait_for(lambda: not any(lives(child) for child in ranks.values()))
    before = rows_of(tmp_path)
    assert 3 <= len(before) < 20
    assert not (tmp_path / "collectives.csv").exists()

    second = start(arguments)
    said = second.communicate(timeout=300)[1]
    assert second.returncode == 0, said
    assert "20 of 20 collectives done (100%)" in said
    after = rows_of(tmp_path)
    assert after[: len(before)] == before
    assert len({(row["key"], row["pass_no"]) for row in after}) == len(after) == 20

    rows = pd.read_csv(tmp_path / "collectives.csv")
    assert list(rows.columns[: len(REQUIRED)]) == REQUIRED
    assert sorted(rows["collective"]) == sorted(list(COLLECTIVES) * 2)
    assert rows.drop(columns="noise").notna().all(axis=None)
    assert (rows["noise"] >= 0).all()  # every case was measured twice
    assert (rows["time_min_s"] > 0).all()
    assert (rows["time_min_s"] <= rows["time_s"]).all()
    same = {
        "n_gpus": 2,
        "n_nodes": 1,
        "gpus_per_node": 2,
        "in_place": 0,
        "dtype": "float",
        "variant": "jax",
        "system": "here",
        "passes": 2,
    }
    assert all(
        (rows[name] == value).all()
        for name, value in {**same, "link": "intra", "lib_version": jax.__version__}.items()
    )
    facts = json.loads((tmp_path / "collectives.machine.json").read_text())
    assert (facts["schema"], facts["processes"], facts["jax"]) == (
        "hybridperf/machine",
        2,
        jax.__version__,
    )

    # the same folder for something else
    third = start(command(tmp_path, "--sizes", "256", processes=3))
    said = third.communicate(timeout=300)[1]
    assert third.returncode == 2
    assert "holds measurements of something else" in said.splitlines()[-1]
    assert rows_of(tmp_path) == after


def test_a_process_that_dies_is_named_and_none_is_left(tmp_path):
    if not Path("/proc/self/task").exists():
        pytest.skip("looks at processes through /proc")
    run = start(command(tmp_path, "--passes", "3", "--budget-s", "300", "--sizes", "256,1048576"))
    wait_for(lambda: rows_of(tmp_path))
    ranks = children_of(run)
    os.kill(ranks[1], signal.SIGKILL)
    said = run.communicate(timeout=300)[1].splitlines()
    assert run.returncode == 2
    assert "process 1 of 2 was killed by signal 9, its last line was:" in said[-1]
    assert str(tmp_path / "collectives_logs" / "process-1.log") in said[-1]
    assert not any(lives(child) for child in ranks.values())
