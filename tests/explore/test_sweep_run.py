"""Whole sweeps: targets against the predictions they are made of, files, stops and new starts."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.sweeps import spec_of, words_of

import hybridperf as hp
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.engine.batches import predict_batch
from hybridperf.explore.sweeps import run as sweep_run
from hybridperf.explore.sweeps.store import SweepStore
from hybridperf.hardware import canonical_dtype, load_device
from hybridperf.io import InputError, write_json
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.price import price
from hybridperf.ops import Gemm, OpCall
from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION, compile_program

GEMMS = {
    "question": "ops", "model": "a100_sxm4_40g", "chunk": 500,
    "fields": {
        "op": "gemm", "dtype": ["fp16", "fp32"], "m": [2**at for at in range(4, 13)],
        "n": np.rint(np.geomspace(16, 4096, 30)).astype(int).tolist(),
        "k": [8, 33, 96, 500, 1200, 4000, 8192],
    },
}  # fmt: skip


def loss(w, x):
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return (x**2).sum()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Folder with a program file and a CPU model."""
    folder = tmp_path_factory.mktemp("program")
    shape = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    write_json(
        folder / "step.json",
        "program",
        PROGRAM_SCHEMA_VERSION,
        compile_program(jax.grad(loss), shape, shape),
    )
    facts = load_device("here").model_dump() | {
        "id": "a_cpu",
        "clock_hz": 3e9,
        "multiprocessors": 2,
        "memory_bytes_per_s": 2e10,
    }
    model = PerfModel.datasheet(type(load_device("v100"))(**facts))
    dataclasses.replace(model, provenance={"made_by": "a test"}).save(folder / "model")
    return folder


def test_ops_are_priced_as_a_table(run, tmp_path):
    """Of a device known by its name alone, as `ops` and `price` do: not its bare roofline."""
    done = hp.sweep(**GEMMS, out=tmp_path / "out.parquet", top=10, quiet=True)
    rows = pd.read_parquet(done.out)
    assert rows["point"].tolist() == list(range(done.points))
    asked, out = tmp_path / "asked.csv", tmp_path / "ops.csv"
    rows[["op", "dtype", "m", "n", "k"]].to_csv(asked, index=False)
    run("ops", asked, "--model", "a100_sxm4_40g", "--out", out)
    expected = pd.read_csv(out)
    for name in ("predicted_s", "low_s", "high_s"):
        np.testing.assert_allclose(rows[name], expected[name], rtol=1e-6)
    assert (rows["predicted_s"] > rows["roofline_s"]).all()
    assert rows["note"].tolist() == expected["note"].tolist()
    calls = [
        OpCall(Gemm(canonical_dtype(dtype), float(m), float(n), float(k)))
        for dtype, m, n, k in rows[["dtype", "m", "n", "k"]].itertuples(index=False)
    ]
    priced = price(model_or_datasheet("a100_sxm4_40g"), calls)
    np.testing.assert_allclose(rows["predicted_s"], priced.seconds, rtol=1e-6)
    assert rows["in_range"].dtype == bool
    least = (
        rows.sort_values(["predicted_s", "point"])[["point", "predicted_s"]]
        .head(10)
        .reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(pd.read_csv(done.top)[["point", "predicted_s"]], least)


def test_collectives_are_priced_as_a_table(tmp_path):
    fields = {
        "collective": ["all_reduce", "alltoall"],
        "n_gpus": [2, 3, 16],
        "n_nodes": [1, 2],
        "bytes": {"min": 1e3, "max": 1e9, "count": 31},
    }
    done = hp.sweep(
        "collectives", tmp_path / "out.parquet", fields=fields, model="dgx_a100", chunk=64,
        quiet=True,
    )  # fmt: skip
    rows = pd.read_parquet(done.out)
    expected = collectives_by_name("dgx_a100").predict(
        rows[["collective", "bytes", "n_gpus", "n_nodes"]]
    )
    # networks are float32 and round by batch
    np.testing.assert_allclose(rows["predicted_s"], expected["predicted_s"], rtol=1e-6)
    np.testing.assert_allclose(rows["bus_bytes_per_s"], expected["bus_bytes_per_s"], rtol=1e-6)
    assert done.unpredicted == rows["predicted_s"].isna().sum() == 62  # 3 ranks on 2 nodes
    assert "do not divide" in rows.loc[rows["predicted_s"].isna(), "note"].iloc[0]


def test_the_file_says_what_it_is(tmp_path):
    done = hp.sweep(**GEMMS, out=tmp_path / "out.parquet", quiet=True)
    message = json.loads(pq.read_metadata(done.out).metadata[b"hybridperf/sweep"])
    fields = {name: one if isinstance(one, list) else [one]
              for name, one in GEMMS["fields"].items()}  # fmt: skip
    assert message["spec"]["fields"] == fields
    assert message["target"] == spec_of(**GEMMS).target.fingerprint()
    assert message["versions"]["jax"] == jax.__version__
    assert pq.read_metadata(done.out).num_row_groups == -(-done.points // 500)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet"]


def test_a_finished_sweep_is_not_done_again(tmp_path):
    out = tmp_path / "out.parquet"
    first = hp.sweep(**GEMMS, out=out, quiet=True)
    content = out.read_bytes()
    again = hp.sweep(**GEMMS, out=out, top=3, quiet=True)  # what is shown may change
    assert (again.computed, again.rows) == (0, first.rows)
    assert len(pd.read_csv(again.top)) == 3
    with pytest.raises(InputError, match="holds another sweep"):
        hp.sweep(**GEMMS | {"chunk": 400}, out=out, quiet=True)
    with pytest.raises(InputError, match="holds another sweep"):
        hp.sweep(**GEMMS | {"model": "a100_sxm4_80g"}, out=out, quiet=True)
    assert out.read_bytes() == content
    fresh_views = hp.sweep(**GEMMS | {"chunk": 400}, out=out, restart=True, quiet=True)
    assert fresh_views.computed == fresh_views.points
    assert pd.read_parquet(out)["point"].tolist() == list(range(fresh_views.points))


def test_a_file_that_is_no_sweep_is_left_alone(tmp_path):
    out = tmp_path / "out.parquet"
    pd.DataFrame({"mine": [1]}).to_parquet(out)
    with pytest.raises(InputError, match="is no sweep"):
        hp.sweep(**GEMMS, out=out, quiet=True)
    assert pd.read_parquet(out)["mine"].tolist() == [1]


def test_a_chunk_without_points_takes_its_place(tmp_path):
    given = GEMMS | {"chunk": 100}
    done = hp.sweep(
        **given, out=tmp_path / "out.parquet", where=["m > 1000", "predicted_s > 1e-4"], quiet=True
    )
    whole = pd.read_parquet(hp.sweep(**GEMMS, out=tmp_path / "all.parquet", quiet=True).out)
    expected = whole[(whole["m"] > 1000) & (whole["predicted_s"] > 1e-4)].reset_index(drop=True)
    assert len(expected) > 0
    pd.testing.assert_frame_equal(pd.read_parquet(done.out), expected)
    none = hp.sweep(
        **given, out=tmp_path / "none.parquet", where="predicted_s > 1e9", top=3, quiet=True
    )
    assert none.rows == len(pd.read_parquet(none.out)) == 0


@pytest.mark.parametrize("at", ["part", "whole"])
def test_a_full_disk_stops_it_and_what_was_written_is_used(tmp_path, monkeypatch, run, at):
    """The 4th part, or the file that all parts go into, finds no space."""
    out = tmp_path / "out.parquet"
    command = [*words_of(**GEMMS), "--out", out]
    fsync, calls = os.fsync, []

    def full(handle):
        name = os.readlink(f"/proc/self/fd/{handle}")
        calls.append(name)
        if (at in name) and (at == "whole" or sum("-part-" in call for call in calls) >= 4):
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = run(*command)
    message = err.splitlines()[-1]
    assert status == 2
    assert "Traceback" not in err
    assert "No space left on device" in message
    assert "the same command goes on from there" in message
    monkeypatch.undo()
    parts = sorted(tmp_path.glob("out.parquet.parts/part-*.parquet"))
    assert not out.exists()
    assert len(parts) == (3 if at == "part" else 8)
    readable = pd.concat([pd.read_parquet(part) for part in parts])
    assert readable["point"].tolist() == list(range(min(3780, 500 * len(parts))))
    asked = []
    evaluate = sweep_run.evaluate
    monkeypatch.setattr(
        sweep_run, "evaluate", lambda spec, chunk: asked.append(chunk) or evaluate(spec, chunk)
    )
    status, _, err = run(*command)
    assert status == 0, err
    assert asked == list(range(len(parts), 8))
    assert pd.read_parquet(out)["point"].tolist() == list(range(len(pd.read_parquet(out))))
    assert not (tmp_path / "out.parquet.parts").exists()


def test_a_damaged_part_is_done_again(tmp_path, monkeypatch):
    write, out = SweepStore.write, tmp_path / "out.parquet"

    def write_and_stop(self, chunk, part):
        write(self, chunk, part)
        if chunk == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(SweepStore, "write", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        hp.sweep(**GEMMS, out=out, quiet=True)
    monkeypatch.undo()
    with pytest.raises(InputError, match="parts of another sweep"):
        hp.sweep(**GEMMS | {"fields": GEMMS["fields"] | {"k": 8}}, out=out, quiet=True)
    damaged = next(tmp_path.glob("out.parquet.parts/part-00000002-*"))
    damaged.write_bytes(damaged.read_bytes()[:50])
    done = hp.sweep(**GEMMS, out=out, quiet=True)
    assert done.computed == done.points - 4 * 500
    assert pd.read_parquet(out)["point"].tolist() == list(range(done.points))


def kill_at_random_moments(tmp_path, kills, seed):
    """Run a sweep in a process of its own, ended by SIGKILL some times; the file that the last run
    leaves and an uninterrupted one's.
    """
    given = GEMMS | {"chunk": 20}  # 189 parts
    out, rng = tmp_path / "killed.parquet", np.random.default_rng(seed)
    words = [*words_of(**given), f"--out={out}", "--top=5"]
    command = [sys.executable, "-m", "hybridperf.cli", *words]
    parts_seen = []
    for _ in range(kills):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        before = len(list(tmp_path.glob("killed.parquet.parts/part-*")))
        # kill while the process starts, in the middle of parts, or near the end
        wanted = before + rng.integers(0, 60)
        deadline = time.monotonic() + 300
        while (
            process.poll() is None
            and len(list(tmp_path.glob("killed.parquet.parts/part-*"))) < wanted
            and time.monotonic() < deadline
        ):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.wait()
        parts_seen.append(len(list(tmp_path.glob("killed.parquet.parts/part-*"))))
    assert parts_seen == sorted(parts_seen) or out.exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hp.sweep(**given, out=tmp_path / "whole.parquet", top=5, quiet=True)
    return parts_seen, out, tmp_path / "whole.parquet"


def check_same(out, whole):
    assert out.read_bytes() == whole.read_bytes()
    assert (
        out.with_name("killed.top.csv").read_bytes()
        == whole.with_name("whole.top.csv").read_bytes()
    )
    left = {path.name for path in out.parent.iterdir()}
    assert left == {
        "killed.parquet",
        "killed.top.csv",
        "whole.parquet",
        "whole.top.csv",
    }


@pytest.mark.slow
def test_killed_ten_times(tmp_path):
    _, out, whole = kill_at_random_moments(tmp_path, 10, seed=1)
    check_same(out, whole)


def test_one_run_at_a_time(tmp_path):
    from hybridperf.explore.sweeps.store import sweep_identity

    store = SweepStore(tmp_path / "out.parquet", sweep_identity(spec_of(**GEMMS).identity()))
    with store.open(), pytest.raises(InputError, match="another run is writing"):
        hp.sweep(**GEMMS, out=tmp_path / "out.parquet", quiet=True)


def test_several_devices_share_a_batch(program):
    """Four devices of the host platform, in a process of their own."""
    code = f"""
import jax, numpy as np, hybridperf as hp
model = hp.load_model({str(program / "model")!r})
step = hp.load_program({str(program / "step.json")!r})
bytes_per_s, efficiency = np.geomspace(1e9, 1e12, 5001), np.linspace(0.1, 1, 5001)
knobs = dict(memory_bytes_per_s=bytes_per_s, compute_efficiency=efficiency)
print(len(jax.devices()), *hp.predict_batch(model, step, **knobs)[[0, 17, 2500, 5000]])
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags}
    message = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    ).stdout.split()
    knobs = {
        "memory_bytes_per_s": np.geomspace(1e9, 1e12, 5001),
        "compute_efficiency": np.linspace(0.1, 1, 5001),
    }
    alone = predict_batch(
        hp.load_model(program / "model"), hp.load_program(program / "step.json"), **knobs
    )
    assert message[0] == "4"
    np.testing.assert_allclose(np.array(message[1:], float), alone[[0, 17, 2500, 5000]], rtol=1e-6)


def test_on_the_command_line(run, refused, tmp_path):
    out, words = tmp_path / "out.parquet", words_of(**GEMMS)
    status, message, err = run(*words, "--out", out, "--top", "4")
    assert status == 0, err
    assert "3,780 rows of 3,780 points" in message
    assert "points/s" in err
    assert len(pd.read_csv(tmp_path / "out.top.csv")) == 4
    status, message, _ = run(*words, "--out", out)
    assert "all done before" in message
    for more, says in (
        (["--top", "3", "--by", "rooflin_s"], "did you mean 'roofline_s'"),
        (["--top", "3", "--by", "note"], "'note' holds words"),
        (["--by", "predicted_s"], "expected top, how many of the best"),
        (["--workers", "2", "--scheduler", "x"], "one of --workers and --scheduler"),
        (["--workers", "0"], "1 or more"), (["--top", "0"], "top must be a whole number from 1"),
        (["--out", tmp_path / "out.csv"], "ending in .parquet"),
        (["--chunk", "499"], "holds another sweep"),
    ):  # fmt: skip
        assert says in refused(*words, "--out", out, *more), says
    (tmp_path / "folder.parquet").mkdir()
    assert "is a folder" in refused(*words, "--out", tmp_path / "folder.parquet")
    assert "unknown question 'my.toml'" in refused("sweep", "my.toml", "--out", out)
    assert not (tmp_path / "out.csv").exists()
