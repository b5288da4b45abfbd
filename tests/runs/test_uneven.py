"""A table of workers that differ: their shares, their step, the command."""

import json

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.runs.uneven import uneven

SHAPE = hp.load_shape("gpt2")


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_like_workers_keep_even_shares_and_a_slow_one_gets_less() -> None:
    like = uneven(table(device=["a100_sxm4_80g"] * 2), SHAPE, "dgx_a100", 16)
    assert like.rows.best_share.tolist() == [8, 8]
    assert like.best.time_s == like.even.time_s
    found = uneven(table(device=["a100_sxm4_80g"] * 2, slower=[1, 3]), SHAPE, "dgx_a100", 16)
    assert found.rows.best_share.tolist() == [12, 4]
    assert found.even.time_s == pytest.approx(3 * like.even.time_s, rel=0.05)
    assert found.best.time_s < 0.6 * found.even.time_s
    assert found.rows.wait_s[0] > found.rows.best_wait_s[0]
    # alike workers wait for nobody, the slow one neither, the others for what it takes longer
    assert like.rows.wait_s.tolist() == [0, 0]
    assert found.rows.wait_s[1] < 0.01 * found.even.time_s
    longer_s = found.even.time_s - like.even.time_s
    assert found.rows.wait_s[0] == pytest.approx(longer_s, rel=0.02)


def test_a_hopeless_worker_is_left_out_with_a_note() -> None:
    found = uneven(table(device=["a100_sxm4_80g"] * 2, slower=[1, 50]), SHAPE, "dgx_a100", 16)
    assert found.rows.best_share.tolist() == [16, 0]
    assert "without it" in found.rows.note[1]


def test_what_does_not_fit_is_noted_and_old_devices_go_by_fp16() -> None:
    large = uneven(table(device=["a100_sxm4_80g"] * 2), hp.load_shape("llama3-8b"), "dgx_a100", 2)
    assert "does not fit: needs" in large.rows.note[0]
    old = uneven(table(device=["t4", "v100_sxm2"]), SHAPE, "dgx_a100", 8, dtype="fp16", zero=1)
    assert old.rows.note.tolist() == ["", ""]
    assert old.rows.best_share[0] < old.rows.best_share[1]


@pytest.mark.parametrize(
    ("frame", "batch", "said"),
    [
        (table(kind=["a100_sxm4_80g"]), 8, "expected columns device"),
        (table(device=["a100_sxm4_80g"], slower=[-1]), 8, "above 0 in slower of worker 1"),
        (table(device=["a100_sxm4_80g"], slower=["fast"]), 8, "above 0 in slower of worker 1"),
        (table(device=["a100_sxm4_80g"] * 3), 8, "3 workers"),
        (table(device=["a100_sxm4_80g", None]), 8, "an empty one"),
    ],
)
def test_wrong_tables_are_a_sentence(frame, batch, said) -> None:
    with pytest.raises(InputError, match=said):
        uneven(frame, SHAPE, "dgx_a100", batch)


def test_the_command(tmp_path, run) -> None:
    path = tmp_path / "workers.csv"
    table(device=["a100_sxm4_80g"] * 2, slower=[1, 3]).to_csv(path, index=False)
    words = ("workers", path, "--shape", "gpt2", "--system", "dgx_a100", "--batch", "16")
    status, said, _ = run(*words, "--production", "--json", "--out", tmp_path / "out.csv")
    found = json.loads(said)
    assert status == 0
    assert found["best_s"] < found["even_s"]
    assert found["best_s"] <= found["p50_s"] <= found["p90_s"]
    assert pd.read_csv(tmp_path / "out.csv").best_share.tolist() == [12, 4]
    status, _, error = run(*words, "--production", "--times", path)
    assert status == 2
    assert error.count("\n") == 1
    assert "both" in error
    words_of_times = "iteration,worker,time_s\n0,0,soon\n0,1,1\n1,0,1\n1,1,2\n"
    (tmp_path / "times.csv").write_text(words_of_times)
    status, _, error = run(*words, "--times", tmp_path / "times.csv")
    assert status == 2
    assert "in time_s of time 1, got 'soon'" in error
    (tmp_path / "times.csv").write_text("iteration,worker,time_s\n0,0,1\n1,1,2\n")
    status, _, error = run(*words, "--times", tmp_path / "times.csv")
    assert status == 2
    assert "2 iterations of 2 workers, none of them whole" in error
