"""Where a step's time went: made-up steps with known answers, then every row of the table of real
ones.
"""

import contextlib
import random
import re

import numpy as np
import pandas as pd
import pytest
from support.damaged_traces import documents, mutated_document, trimmed
from support.made_traces import made_trace

from hybridperf.io import InputError
from hybridperf.traces.events import COPY
from hybridperf.traces.idle import (
    REASONS,
    between,
    covered_s,
    device_waits,
    launch_latency_s,
    length_s,
    merged,
)
from hybridperf.traces.overheads import fit_host
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.steps import common_steps, steps
from hybridperf.traces.summary import summaries, table, top_kernels, top_ops, worst

# --- intervals ---


def test_a_union_counts_overlap_once():
    start, end = merged(np.array([5.0, 0.0, 1.0, 7.0, 3.0]), np.array([6.0, 2.0, 3.0, 7.0, 3.5]))
    assert start.tolist() == [0.0, 5.0]  # 0-2, 1-3, 3-3.5 touch; the empty one at 7 is nothing
    assert end.tolist() == [3.5, 6.0]
    assert length_s((start, end)) == 4.5
    assert [side.tolist() for side in between((start, end))] == [[3.5], [5.0]]


def test_nothing_covers_nothing():
    nothing = merged(np.zeros(0), np.zeros(0))
    assert length_s(nothing) == 0
    assert covered_s(nothing, np.array([0.0]), np.array([9.0])).tolist() == [0.0]


def test_covered_agrees_with_counting():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 100, 40)
    cells = np.zeros(140, bool)
    for one, length in zip(start, lengths := rng.integers(0, 5, 40), strict=True):
        cells[one : one + length] = True
    low = rng.integers(0, 120, 60)
    high = low + rng.integers(-3, 20, 60)
    expected = [cells[a:b].sum() if b > a else 0 for a, b in zip(low, high, strict=True)]
    np.testing.assert_allclose(
        covered_s(merged(start * 1.0, (start + lengths) * 1.0), low, high), expected, atol=1e-12
    )


# --- idle time ---

STEP = ("mark", "ProfilerStep#1", 0, 1000)


def one_row(host, device):
    trace = made_trace(host, device)
    (step,) = steps(trace)
    return summaries([trace], [[step]])[0]


def test_a_device_that_is_faster_than_its_host_waits_for_launches():
    host = [
        STEP,
        ("op", "aten::mm", 0, 60),
        ("call", "launch", 10, 15),
        ("op", "aten::add", 100, 180),
        ("call", "launch", 150, 155),
    ]
    said = one_row(host, [("gemm", 7, 20, 50, "launch"), ("add", 7, 160, 170, "launch")])
    (row,) = said.rows.itertuples()
    assert row.step_cpu_s == pytest.approx(1e-3)
    assert row.gpu_span_s == pytest.approx(150e-6)
    assert row.gpu_busy_s == row.compute_s == pytest.approx(40e-6)
    assert row.idle_s == row.launch_bound_s == pytest.approx(110e-6)
    assert (row.n_kernels, row.n_comm, row.n_cpu_ops, row.n_runtime, row.streams) == (2, 0, 2, 2, 1)
    (loss,) = said.losses.itertuples()
    assert (loss.reason, loss.detail, loss.times) == ("launch_bound", "aten::add", 1)


def test_a_kernel_called_in_time_waits_for_its_stream():
    # both called before 20; latency of a launch on an idle device is 10: the second could have
    # started at once when the first ended
    host = [STEP, ("op", "aten::mm", 0, 60), ("call", "launch", 10, 12), ("call", "launch", 14, 16)]
    (row,) = one_row(
        host, [("gemm", 7, 20, 50, "launch"), ("gemm", 7, 53, 80, "launch")]
    ).rows.itertuples()
    assert row.dependency_s == row.idle_s == pytest.approx(3e-6)
    assert row.launch_bound_s == 0


def test_a_launch_on_its_way_is_the_hosts_delay():
    host = [STEP, ("op", "aten::mm", 0, 60), ("call", "launch", 10, 12), ("call", "launch", 45, 47)]
    (row,) = one_row(
        host, [("gemm", 7, 20, 50, "launch"), ("gemm", 7, 58, 80, "launch")]
    ).rows.itertuples()
    assert row.launch_bound_s == pytest.approx(5e-6)  # called at 45, usual latency 10, dry at 50
    assert row.dependency_s == pytest.approx(3e-6)


def test_a_host_that_waits_for_the_device_is_told_apart_from_a_slow_one():
    host = [
        STEP, ("op", "aten::item", 0, 70), ("call", "launch", 10, 12),
        ("call", "cudaStreamSynchronize", 15, 58), ("op", "aten::mm", 80, 200),
        ("call", "launch", 90, 95),
    ]  # fmt: skip
    said = one_row(host, [("gemm", 7, 20, 50, "launch"), ("gemm", 7, 100, 120, "launch")])
    (row,) = said.rows.itertuples()
    assert row.synchronisation_s == pytest.approx(8e-6)  # dry at 50, the host is back at 58
    assert row.launch_bound_s == pytest.approx(42e-6)
    assert set(said.losses["detail"]) == {"aten::mm after cudaStreamSynchronize"}


def test_waiting_on_another_thread_is_not_the_launching_threads():
    host = [
        STEP, ("op", "aten::mm", 0, 60), ("call", "launch", 10, 15),
        ("call", "cudaDeviceSynchronize", 15, 158, 1), ("op", "aten::add", 100, 180),
        ("call", "launch", 150, 155),
    ]  # fmt: skip
    (row,) = one_row(
        host, [("gemm", 7, 20, 50, "launch"), ("add", 7, 160, 170, "launch")]
    ).rows.itertuples()
    assert row.synchronisation_s == 0
    assert row.launch_bound_s == pytest.approx(110e-6)


def test_a_copy_that_ends_within_its_call_holds_the_host():
    host = [
        STEP,
        ("op", "aten::copy_", 0, 70),
        ("call", "cudaMemcpyAsync", 5, 60),
        ("op", "aten::mm", 80, 99),
        ("call", "launch", 90, 95),
    ]
    trace = made_trace(
        host, [("Memcpy DtoH", 7, 15, 50, "cudaMemcpyAsync", COPY), ("gemm", 7, 100, 120, "launch")]
    )
    assert [trace.host_name(at) for at in np.flatnonzero(device_waits(trace))] == [
        "cudaMemcpyAsync"
    ]
    (row,) = summaries([trace], [steps(trace)])[0].rows.itertuples()
    assert row.host_copy_s == pytest.approx(10e-6)
    assert row.launch_bound_s == pytest.approx(40e-6)
    assert row.synchronisation_s == 0


def test_what_the_host_was_busy_with_in_a_long_gap():
    host = [
        STEP, ("call", "launch", 10, 15), ("mark", "enumerate(DataLoader)", 60, 800),
        ("op", "aten::to", 810, 900), ("call", "launch", 820, 825),
    ]  # fmt: skip
    said = one_row(host, [("k", 7, 20, 50, "launch"), ("k", 7, 830, 840, "launch")])
    assert said.losses["detail"][0] == "aten::to (host in enumerate(DataLoader))"


def test_work_of_another_step_and_lost_calls_have_their_own_columns():
    host = [
        ("mark", "ProfilerStep#1", 0, 100), ("op", "aten::mm", 0, 60), ("call", "launch", 10, 12),
        ("call", "launch", 14, 16), ("mark", "ProfilerStep#2", 100, 900),
        ("op", "aten::mm", 100, 160), ("call", "later", 110, 112), ("call", "later", 114, 116),
    ]  # fmt: skip
    device = [
        ("a", 7, 20, 200, "launch"), ("a", 7, 200, 300, "launch"), ("copy", 9, 130, 140, "later"),
        ("a", 7, 300, 400, "later"), ("lost", 7, 450, 500, None),
    ]  # fmt: skip
    trace = made_trace(host, device)
    first, second = steps(trace)
    (row,) = summaries([trace], [[second]])[0].rows.itertuples()
    assert row.n_kernels == 2  # the lost one is of no step
    assert row.gpu_span_s == pytest.approx(270e-6)
    assert row.period_s == pytest.approx(100e-6)  # the first ends at 300
    assert row.other_step_s == pytest.approx(160e-6)  # 140 to 300
    assert row.idle_s == row.unrecorded_s == 0
    row = summaries([trace], [[first]])[0].rows.iloc[0]
    assert row.idle_s == 0
    assert np.isnan(row.period_s)


def test_idle_is_where_a_device_does_nothing():
    """Two steps whose kernels alternate, with a pause of 10 µs in between."""
    host = [
        ("mark", "ProfilerStep#1", 0, 10), ("call", "a", 1, 2), ("call", "a", 3, 4),
        ("mark", "ProfilerStep#2", 10, 20), ("call", "b", 11, 12), ("call", "b", 13, 14),
    ]  # fmt: skip
    device = [("k", 7, 20, 40, "a"), ("k", 8, 40, 60, "b"), ("k", 7, 70, 90, "a")]
    trace = made_trace(host, [*device, ("k", 8, 90, 110, "b")])
    first, second = (summaries([trace], [[step]])[0].rows.iloc[0] for step in steps(trace))
    for row, period in ((first, np.nan), (second, 20e-6)):
        times = (row.gpu_span_s, row.gpu_busy_s, row.other_step_s, row.idle_s, row.period_s)
        assert times == pytest.approx((70e-6, 40e-6, 20e-6, 10e-6, period), nan_ok=True)


def test_copies_are_no_computation():
    host = [STEP, *[("call", "launch", at, at + 1) for at in (1, 3, 5)]]
    device = [("gemm", 7, 10, 60, "launch"), ("Memcpy HtoD", 8, 40, 100, "launch", COPY)]
    (row,) = one_row(
        host, [*device, ("ncclKernel_AllReduce", 20, 90, 130, "launch")]
    ).rows.itertuples()
    found = (row.computation_s, row.copy_s, row.exposed_copy_s, row.compute_s, row.exposed_comm_s)
    assert found == pytest.approx((50e-6, 60e-6, 40e-6, 90e-6, 30e-6))


def test_overlapped_communication_is_not_exposed():
    host = [STEP, *[("call", "launch", at, at + 1) for at in (1, 3, 5)]]
    device = [
        ("gemm", 7, 10, 60, "launch"),
        ("ncclKernel_AllReduce", 20, 40, 100, "launch"),
        ("gemm", 7, 90, 120, "launch"),
    ]
    (row,) = one_row(host, device).rows.itertuples()
    assert row.comm_s == pytest.approx(60e-6)
    assert row.compute_s == pytest.approx(80e-6)
    assert row.exposed_comm_s == pytest.approx(30e-6)
    assert row.gpu_busy_s == pytest.approx(110e-6)
    assert row.n_comm == 1


def test_a_step_without_device_events_is_a_row_of_zeros():
    host = [STEP, ("op", "aten::mm", 0, 60), ("mark", "ProfilerStep#2", 1000, 2000)]
    trace = made_trace([*host, ("call", "k", 1100, 1101)], [("gemm", 7, 1200, 1300, "k")])
    (row,) = summaries([trace], [[steps(trace)[0]]])[0].rows.itertuples()
    assert (row.gpu_span_s, row.gpu_busy_s, row.idle_s, row.n_kernels) == (0, 0, 0, 0)
    assert row.n_cpu_ops == 1


def test_a_device_that_nobody_recorded_has_no_times():
    (row,) = one_row([STEP, ("op", "aten::mm", 0, 60)], []).rows.itertuples()
    assert row.step_cpu_s == pytest.approx(1e-3)
    assert np.isnan([row.gpu_span_s, row.gpu_busy_s, row.idle_s, row.launch_bound_s]).all()
    assert (row.n_cpu_ops, row.n_kernels) == (1, 0)


def test_a_trace_of_a_device_alone_has_no_reasons():
    trace = made_trace([], [("k", 7, 0, 10, None), ("k", 7, 30, 40, None)])
    (row,) = summaries([trace], [steps(trace)])[0].rows.itertuples()
    assert row.unrecorded_s == row.idle_s == pytest.approx(20e-6)


def test_usual_latency_is_that_of_an_idle_device():
    trace = made_trace([("call", "launch", at, at + 1) for at in (0, 2, 100)], [
        ("k", 7, 6, 50, "launch"), ("k", 7, 50, 60, "launch"), ("k", 7, 108, 110, "launch"),
    ])  # fmt: skip
    assert launch_latency_s(trace) == pytest.approx(7e-6)  # 6 and 8; the second met a busy device


def test_top_ops_and_kernels():
    host = [
        STEP,
        ("op", "aten::linear", 0, 60),
        ("op", "aten::addmm", 5, 40),
        *[("call", "launch", at, at + 1) for at in (10, 20, 50)],
    ]
    trace = made_trace(
        host,
        [
            ("gemm", 7, 20, 50, "launch"),
            ("gemm", 7, 60, 75, "launch"),
            ("copy", 7, 80, 85, "launch"),
        ],
    )
    ops = top_ops([trace], steps(trace))
    assert ops["name"].tolist() == [
        "aten::addmm",
        "aten::linear",
    ]  # the innermost op around a launch
    assert ops["device_s"].tolist() == pytest.approx([45e-6, 5e-6])
    assert ops["share"].tolist() == pytest.approx([0.9, 0.1])
    kernels = top_kernels([trace], steps(trace), most=1)
    assert kernels.values.tolist() == [["gemm", pytest.approx(45e-6), pytest.approx(0.9), 2]]


# --- real traces ---

IDLE = [f"{reason}_s" for reason in REASONS]
COUNTS = ("n_kernels", "n_comm", "n_cpu_ops", "n_runtime", "streams")
TIMES = {
    "step_cpu_s": 0.01,
    "gpu_span_s": 0.01,
    "gpu_busy_s": 0.01,
    "compute_s": 0.01,
    "comm_s": 0.01,
    "exposed_comm_s": 0.03,
}


def summaries_of(traces):
    return summaries(traces, [step.steps for step in common_steps(traces)])


@pytest.fixture(scope="module")
def real(data_dir):
    """(our rows, the table's rows) of every trace the table has, in the same order."""
    expected = pd.read_csv(data_dir / "traces" / "trace_step_summary.csv")
    expected["file"] = expected["trace"].str.removeprefix("dev/").str.split("!").str[0]
    found = {file: read_traces([data_dir / "traces" / file]) for file in expected["file"].unique()}
    return expected, found


def in_order(expected, found, column_of=lambda traces: traces):
    ours = pd.concat(
        [table(summaries_of(column_of(traces))).assign(file=file) for file, traces in found.items()]
    )
    ours, theirs = (
        rows.assign(rank=rows["rank"].astype(float).fillna(-1)).sort_values(
            ["file", "rank", "step"]
        )
        for rows in (ours, expected)
    )
    assert ours["step"].tolist() == theirs["step"].tolist()
    return ours, theirs


def counted_as_the_table_does(traces):
    """The table counts two kernels a step of cub's `DispatchReduceByKey`, a sort of embedding
    gradients, as communication.
    """
    return [trace.with_communication(re.compile("DispatchReduceByKey")) for trace in traces]


@pytest.mark.parametrize("column", [*TIMES, *COUNTS])
def test_every_row_of_the_table_is_matched(real, column):
    ours, theirs = in_order(*real, counted_as_the_table_does)
    assert len(ours) == 25
    if column in COUNTS:
        assert ours[column].tolist() == theirs[column].tolist()
    else:
        np.testing.assert_allclose(
            ours[column].to_numpy(float), theirs[column].to_numpy(float), rtol=1e-4, atol=1e-9
        )


@pytest.mark.parametrize("column", [*TIMES, *COUNTS])
def test_our_own_count_differs_from_the_table_by_those_kernels_alone(real, column):
    ours, theirs = in_order(*real)
    a, b = ours[column].to_numpy(float), theirs[column].to_numpy(float)
    if column == "n_comm":
        assert set((b - a).tolist()) == {0, 2}
    elif column in COUNTS:
        assert a.tolist() == b.tolist()
    elif column in ("compute_s", "comm_s", "exposed_comm_s"):
        counted = theirs["n_comm"].to_numpy() > ours["n_comm"].to_numpy()
        np.testing.assert_allclose(a[~counted], b[~counted], rtol=TIMES[column], atol=1e-9)
        np.testing.assert_allclose(a[counted], b[counted], rtol=0.03)
    else:
        np.testing.assert_allclose(a, b, rtol=TIMES[column], atol=1e-9)


def test_idle_time_is_accounted_for(real):
    _, found = real
    rows = pd.concat([table(summaries_of(traces)) for traces in found.values()])
    np.testing.assert_allclose(rows[IDLE].sum(axis=1), rows["idle_s"], rtol=1e-6, atol=1e-8)
    parts = rows["gpu_busy_s"] + rows["other_step_s"] + rows["idle_s"]
    np.testing.assert_allclose(rows["gpu_span_s"], parts, atol=1e-9)
    assert (rows[IDLE] >= 0).all().all()


def test_why_real_devices_stood_idle(real):
    _, found = real
    rows = {file: table(summaries_of(traces)) for file, traces in found.items()}
    dlrm, one_gpu = (next(rows[file] for file in rows if name in file) for name in ("dlrm", "1gpu"))
    assert (dlrm["launch_bound_s"] > 0.9 * dlrm["idle_s"]).all()  # kernels of microseconds
    assert (
        one_gpu["idle_s"][1:] < 0.02 * one_gpu["gpu_span_s"][1:]
    ).all()  # a convolution network keeps its GPU busy
    lost = worst(summaries_of(next(found[file] for file in found if "dlrm" in file)))
    assert (lost["reason"][0], lost["detail"][0]) == ("waiting", "for rank 7 at all_to_all #0")


def test_steps_that_overlap_on_the_device(data_dir):
    """Steps of 216 ms that span 375 ms, and a device that is idle for 4 % of its time."""
    more = data_dir / "traces" / "more"
    rows = table(summaries_of(read_traces(more / "hta_negq_A100_rank0of16.json.gz")))
    np.testing.assert_allclose(rows["period_s"][1:], 0.216, rtol=0.02)
    np.testing.assert_allclose(rows["gpu_span_s"], 0.375, rtol=0.02)
    assert rows["gpu_busy_s"].between(0.070, 0.082).all()  # the first, too
    rows = table(summaries_of(read_traces(more / "hta_trace_diff_test_V100_rank1of2.json.gz")))
    assert (rows["idle_s"] / rows["gpu_span_s"]).between(0.02, 0.05).all()
    mtia = table(summaries_of(read_traces(more / "hta_mtia_inference_rank0.json.gz")))
    assert (mtia["idle_s"] / mtia["gpu_span_s"]).between(0.03, 0.06).all()


def test_damaged_traces_are_summarised_or_refused(data_dir, tmp_path):
    """What the importer lets through after mutations must add up here, too."""
    texts = [
        text
        for _, document in documents(data_dir / "traces")
        if "traceEvents" in (text := trimmed(document))
    ]
    file = tmp_path / "rank0.json"
    imported = 0
    for seed in range(60):
        rng = random.Random(seed)
        file.write_bytes(mutated_document(texts[seed % len(texts)], rng))
        try:
            traces = read_traces([file])
            found = summaries_of(traces)
        except InputError:
            continue
        imported += 1
        rows = table(found)
        assert (rows[IDLE] >= 0).all().all(), seed
        scale_s = rows["gpu_span_s"].max()
        np.testing.assert_allclose(
            rows[IDLE].sum(axis=1),
            rows["idle_s"],
            atol=2e-9 + 1e-9 * scale_s,
            err_msg=f"mutation {seed}",
        )
        with contextlib.suppress(InputError):  # too little left of it to launch anything
            fit_host(traces, [steps(trace) for trace in traces])
    assert imported > 30


# --- the command ---


def test_the_command_prints_and_writes(run, data_dir, tmp_path):
    status, out, err = run(
        "trace",
        "summary",
        data_dir / "traces" / "param_dlrm_8xV100_kineto.tar.gz",
        "--out",
        tmp_path / "s.csv",
        "--host",
        tmp_path,
    )
    assert status == 0, err
    for said in (
        "Tesla V100",
        "ProfilerStep#10",
        "why idle",
        "waiting for rank 7 at all_to_all #0",
        "aten::addmm",
        "host overheads",
    ):
        assert said in out
    rows = pd.read_csv(tmp_path / "s.csv")
    assert rows["rank"].tolist() == list(range(8))
    assert (tmp_path / "host.json").exists()


def test_steps_are_chosen_by_name_or_number(run, data_dir, tmp_path):
    file = data_dir / "traces" / "hta_ns_resolution_V100_1gpu.json.gz"
    status, _, _ = run(
        "trace", "summary", file, "--steps", "103,ProfilerStep#101", "--out", tmp_path / "s.csv"
    )
    assert status == 0
    assert pd.read_csv(tmp_path / "s.csv")["step"].tolist() == [
        "ProfilerStep#103",
        "ProfilerStep#101",
    ]


def test_wrong_inputs_are_one_sentence(refused, data_dir, tmp_path):
    file = data_dir / "traces" / "hta_ns_resolution_V100_1gpu.json.gz"
    assert "unknown step 'ProfilerStep#7'" in refused("trace", "summary", file, "--steps", "7")
    assert ".csv" in refused("trace", "summary", file, "--out", tmp_path / "s.txt")
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused("trace", "summary", file, "--host", tmp_path / "file")
    refused("trace", "summary", tmp_path / "none.json")
    refused("trace", "summary", file, file)
    refused("trace", "summry", file)
