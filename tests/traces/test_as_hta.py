"""HolisticTraceAnalysis's breakdown: by hand, then equal to its own on every public trace."""

import json
import logging
import tarfile

import numpy as np
import pandas as pd
import pytest

from hybridperf.io import InputError
from hybridperf.traces.as_hta import temporal_breakdown

HOST = {"pid": 1, "tid": 1}
TIMES = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]


def event(cat, name, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, **HOST, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def breakdown(tmp_path):
    def write(events):
        path = tmp_path / "rank0.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return temporal_breakdown([path])[TIMES].iloc[0].tolist()

    return write


def launched(name, ts, dur, number, called):
    return [
        event("cuda_runtime", "cudaLaunchKernel", called, 1, correlation=number),
        event("kernel", name, ts, dur, correlation=number, stream=7),
    ]


def test_the_last_step_and_kernels_without_a_launch_are_left_out(breakdown):
    first = [
        *launched("gemm", 10, 20, 1, called=5),
        *launched("Memcpy DtoD", 40, 10, 2, called=6),
        *launched("ncclKernel_AllReduce", 45, 15, 3, called=7),
        event("kernel", "of before", 0, 5, correlation=99, stream=7),
    ]
    second = launched("gemm", 120, 30, 4, called=105)
    steps = [event("user_annotation", f"ProfilerStep#{at}", 100 * at, 100) for at in (0, 1)]
    assert breakdown([*steps, *first, *second]) == [10, 20, 20, 50]  # 10 to 60, idle from 30 to 40
    # of one step alone, everything counts
    assert breakdown([steps[0], *first, *second]) == [5 + 10 + 60, 55, 20, 150]


def test_fractions_shrink_to_whole_microseconds(breakdown):
    assert breakdown(launched("gemm", 10.2, 20.1, 1, called=5)) == [0, 19, 0, 19]


def test_a_host_alone_has_no_breakdown(breakdown):
    with pytest.raises(InputError, match="expected events that name a stream"):
        breakdown([event("cpu_op", "aten::mm", 0, 5)])


@pytest.mark.filterwarnings("ignore::Warning:hta.*")  # what later versions of pandas will drop
def test_it_equals_hta_on_every_public_trace(data_dir, tmp_path):
    reason = "HolisticTraceAnalysis is not installed (extra `validate`)"
    trace_analysis = pytest.importorskip("hta.trace_analysis", reason=reason)
    logging.getLogger("hta").setLevel(logging.ERROR)
    traces = data_dir / "traces"
    with tarfile.open(traces / "param_dlrm_8xV100_kineto.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    alone = [*traces.glob("*hta_*.json.gz"), *traces.glob("more/*.json.gz")]
    for files in ([one] for one in (*alone, traces / "param_resnet_rtx2080ti_kineto.json.gz")):
        theirs = trace_analysis.TraceAnalysis({0: str(files[0])}, "/")
        theirs = theirs.get_temporal_breakdown(visualize=False)
        ours = temporal_breakdown(files)
        same = [name for name in theirs.columns if name != "rank"]  # given to it as 0
        pd.testing.assert_frame_equal(
            ours[same], theirs[same], check_dtype=False, obj=files[0].name
        )
    ranks = {int(one.name[6]): str(one) for one in sorted(tmp_path.rglob("worker*.json"))}
    theirs = trace_analysis.TraceAnalysis(ranks, "/").get_temporal_breakdown(visualize=False)
    ours = temporal_breakdown(list(ranks.values()))
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert len(ours) == 8
    assert np.isfinite(ours.to_numpy(float)).all()


def test_the_command(run, refused, data_dir, tmp_path):
    file = data_dir / "traces" / "more" / "hta_trace_diff_test_V100_rank1of2.json.gz"
    status, out, err = run("trace", "summary", file, "--as", "hta", "--out", tmp_path / "s.csv")
    assert status == 0, err
    assert "46,910 µs (7.47 %)" in out
    assert pd.read_csv(tmp_path / "s.csv")["idle_time_pctg"].tolist() == [7.47]
    assert "expected hta at --as" in refused("trace", "summary", file, "--as", "nsys")
    assert "--steps with --as hta" in refused("trace", "summary", file, "--as", "hta", "--steps", 1)
