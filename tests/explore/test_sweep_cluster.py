"""Sweeps on Dask: the same bytes as in one process, whatever dies on the way."""

import json
import os
import signal
import sys
import threading
import time

import pandas as pd
import pytest
from support.sweeps import spec_of, words_of

import hybridperf as hp
from hybridperf.explore.sweeps import cluster
from hybridperf.io import InputError
from hybridperf.io import workers as workers_of_dask

GEMMS = {
    "question": "ops", "model": "a100_sxm4_40g", "chunk": 50, "where": "m > 100",
    "fields": {"op": "gemm", "dtype": ["fp16", "fp32"], "m": list(range(16, 4016, 16)), "n": 512,
               "k": [64, 96, 128]},
}  # fmt: skip


def test_without_dask_it_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "hybridperf[distributed]" in refused(
        *words_of(**GEMMS), "--out", tmp_path / "out.parquet", "--workers", "2"
    )


def test_a_scheduler_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `distributed`)")
    monkeypatch.setattr(workers_of_dask, "_PATIENCE_S", 0.5)
    with pytest.raises(InputError, match="no Dask scheduler answers at tcp://127"):
        hp.sweep(**GEMMS, out=tmp_path / "out.parquet", scheduler="tcp://127.0.0.1:9", quiet=True)


def test_two_workers_give_the_same_bytes_though_one_is_killed(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `distributed`)")
    alone = hp.sweep(**GEMMS, out=tmp_path / "alone.parquet", top=5, quiet=True)
    killed = []
    started = workers_of_dask._client

    class Watched:
        """The cluster's client, one of whose workers is killed while it works."""

        def __init__(self, *asked):
            self._inner = started(*asked)

        def __enter__(self):
            client, cores = self._inner.__enter__()
            pids = list(client.run(os.getpid).values())
            assert len(set(pids)) == 2

            def kill():
                while not list(tmp_path.glob("shared.parquet.parts/part-*")):
                    time.sleep(0.01)
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

            threading.Thread(target=kill, daemon=True).start()
            return client, cores

        def __exit__(self, *error):
            return self._inner.__exit__(*error)

    monkeypatch.setattr(workers_of_dask, "_client", Watched)
    shared = hp.sweep(**GEMMS, out=tmp_path / "shared.parquet", top=5, workers=2, quiet=True)
    assert killed
    assert shared.computed == shared.points == 1500
    assert shared.out.read_bytes() == alone.out.read_bytes()
    assert shared.top.read_bytes() == alone.top.read_bytes()
    assert pd.read_parquet(shared.out)["point"].is_unique


def test_workers_of_a_scheduler_send_their_parts(tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    alone = hp.sweep(**GEMMS, out=tmp_path / "alone.parquet", quiet=True)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None,
        local_directory=tmp_path,
    ) as theirs:  # fmt: skip
        out, address = tmp_path / "theirs.parquet", theirs.scheduler_address
        shared = hp.sweep(**GEMMS, out=out, scheduler=address, quiet=True)
    assert shared.computed == 1500
    assert shared.out.read_bytes() == alone.out.read_bytes()


def test_a_task_grows_to_half_a_second_and_shrinks_towards_the_end(monkeypatch):
    """Two workers that take 10 ms a chunk, after 5 s of compiling."""
    now_s = 5.0
    monkeypatch.setattr(cluster.time, "monotonic", lambda: now_s)
    tasks = cluster._Tasks(list(range(1000)), workers=2)
    sent, sizes, done = [next(tasks)[0] for _ in range(6)], [], []
    while sent:
        done += tasks.finished(sent.pop(0))
        now_s = 5.0 + len(done) * 0.005  # two at a time
        task = next(tasks, None)
        if task is not None:
            sent.append(task[0])
            sizes.append(len(task[1]))
    assert sorted(done) == list(range(1000))
    assert sizes[0] == 1
    assert 40 < max(sizes) < 60
    assert sizes[-1] == 1


def test_a_worker_with_another_model_refuses():
    spec = spec_of(**GEMMS | {"model": "a100_sxm4_80g"})
    with pytest.raises(InputError, match="another model"):
        cluster._parts(json.dumps(spec.document), ".", "0123", None, 0, [0], None)
    assert spec.chunk == 50
