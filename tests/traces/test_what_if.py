"""What-if on replays: by hand where the answer is plain, on real steps where
a property must hold.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_traces import made_trace

from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.ops import Gemm, OpCall
from hybridperf.traces.events import Message
from hybridperf.traces.other_device import KERNEL_S, PRICED_BY, other_device, seconds_ratio
from hybridperf.traces.perfetto import write_traces
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import UNRECORDED, has_backlog, in_a_row, replay, replay_step
from hybridperf.traces.replay_graph import DEVICE, WIRE
from hybridperf.traces.steps import steps
from hybridperf.traces.what_if import (
    LATENCY_S,
    best_savings,
    critical_by_op,
    faster,
    links_scaled,
    other_links,
    what_if,
)

REDUCE = "ncclKernel_AllReduce"
DLRM, A100 = "param_dlrm_8xV100_kineto.tar.gz", "hta_trace_diff_control_A100_rank3of8.json.gz"
V100_MATMUL = "[[1024, 1024], [1024, 1024]]", '["float", "float"]'


def bound_by_device(second="relu_kernel"):
    """100 µs of launches, then 900 µs of kernels in two ops; the first op's shapes are recorded."""
    host = [
        ("mark", "ProfilerStep#1", 0, 120),
        ("op", "aten::linear", 5, 40),
        ("op", "aten::mm", 10, 30),
        ("call", "a", 15, 20),
    ]
    host += [("op", "aten::relu", 50, 70), ("call", "b", 55, 60)]
    trace = made_trace(
        host,
        [("gemm_kernel", 7, 22, 522, "a"), (second, 7, 524, 924, "b")],
        shapes=(V100_MATMUL[0],),
    )
    shapes = np.where(trace.host.name == trace.names.index("aten::mm"), 0, -1).astype(np.int32)
    trace = dataclasses.replace(
        trace, host=dataclasses.replace(trace.host, shapes=shapes), types=(V100_MATMUL[1],)
    )
    return replay_step([trace], [steps(trace)[0]])


def with_collective():
    """A kernel of 400 µs under an all-reduce of 300 µs, then one that waits for both."""
    host = [
        ("mark", "ProfilerStep#1", 0, 50),
        *(("call", name, at, at + 2) for name, at in (("a", 5), ("r", 10), ("b", 15), ("c", 30))),
    ]
    host += [("call", "cudaStreamWaitEvent", 25, 26)]
    device = [
        ("first", 7, 9, 99, "a"),
        (REDUCE, 20, 101, 401, "r"),
        ("under", 7, 101, 501, "b"),
        ("last", 7, 503, 603, "c"),
    ]
    trace = made_trace(host, device, world=8)
    return replay_step([trace], [steps(trace)[0]])


def test_an_op_twice_as_fast_saves_half_its_time_on_the_critical_path():
    found = bound_by_device()
    for pattern in (
        "aten::mm",
        "aten::linear",
        "gemm_*",
        "aten::[ml]*",
    ):  # the op, one around it, its kernel, several
        after = what_if(found, [faster(found, pattern, 2)]).after
        assert after.replayed_s == pytest.approx(found.replayed_s - 250e-6, abs=1e-9)
    slower = what_if(found, [faster(found, "aten::relu", 0.5)]).after
    assert slower.replayed_s == pytest.approx(found.replayed_s + 400e-6, abs=1e-9)


def test_a_faster_host_helps_where_the_host_is_waited_for():
    trace = made_trace(
        [("mark", "ProfilerStep#1", 0, 1000), ("call", "a", 900, 905)], [("k", 7, 907, 957, "a")]
    )
    found = replay_step([trace], [steps(trace)[0]])
    assert what_if(found, [faster(found, "host", 2)]).after.replayed_s == pytest.approx(
        found.replayed_s / 2, rel=0.01
    )


def test_changes_combine():
    found = bound_by_device()
    after = what_if(found, [faster(found, "aten::mm", 2), faster(found, "*_kernel", 2)]).after
    assert after.replayed_s == pytest.approx(found.replayed_s - (375 + 200) * 1e-6, abs=1e-9)


def test_wrong_changes_are_said_in_a_sentence():
    found = bound_by_device()
    with pytest.raises(InputError, match=r"called 'aten::mn' \(did you mean 'aten::mm'\?\)"):
        faster(found, "aten::mn", 2)
    for times in (0, -1, float("nan")):
        with pytest.raises(InputError, match="above 0"):
            faster(found, "aten::mm", times)
        with pytest.raises(InputError, match="above 0"):
            links_scaled(found, times)
    with pytest.raises(InputError, match="1 or more"):
        what_if(found, [], 0.5)


def test_best_savings_are_those_of_one_op_at_a_time():
    found = with_collective()
    frame = best_savings(found).set_index("op")
    for op, row in frame.iterrows():
        mine = [found.op_of_row(at) == op for at in range(len(found.rows))]
        alone = found.with_seconds(found.seconds - np.where(mine, found.rows.busy_s, 0.0))
        assert row["saves_s"] == pytest.approx(
            found.timeline.end_s.max() - alone.timeline.end_s.max(), abs=1e-9
        ), op
    assert not frame.loc["nccl:all_reduce", "helps"]  # it ends before what runs beside it
    assert frame.loc["under", "saves_s"] == pytest.approx(
        100e-6, abs=3e-6
    )  # then the all-reduce is in the way
    assert frame.loc["host", "saves_s"] < 20e-6


def test_the_critical_path_by_op_adds_up():
    found = with_collective()
    frame = critical_by_op(found)
    assert frame["seconds"].sum() == pytest.approx(found.timeline.end_s.max())
    assert frame["share"].sum() == pytest.approx(1)
    assert "nccl:all_reduce" not in set(frame["op"])


def test_faster_links_shrink_what_depends_on_size():
    found = with_collective()
    change = links_scaled(found, 2)
    wire = found.rows.kind == WIRE
    assert (change.factor[wire] * found.rows.busy_s[wire]) == pytest.approx(
        [LATENCY_S + (300e-6 - LATENCY_S) / 2]
    )
    assert (change.factor[~wire] == 1).all()
    assert any("at most" in note for note in change.notes)  # one rank of eight: waiting is in it
    slower = what_if(found, [links_scaled(found, 0.25)]).after
    assert slower.replayed_s == pytest.approx(
        found.replayed_s + (20 + 280 * 4 - 400) * 1e-6, abs=5e-6
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), times=st.floats(1, 100))
def test_more_bandwidth_never_slows_anything(seed, times):
    """On random steps of two ranks: no rank's step, and no event, ends later."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    durations = rng.integers(5, 300, (2, 3 * n)).astype(float)
    traces = []
    leaves = np.zeros(n)
    comes = np.zeros((2, n))
    for at in range(n):  # a kernel, a collective of both that follows it, a kernel beside it
        for rank in range(2):
            comes[rank, at] = (
                max(leaves[at - 1] if at else 20, 30 * at + 20) + durations[rank, 3 * at]
            )
        leaves[at] = comes[:, at].max() + durations[0, 3 * at + 1]
    for rank in range(2):
        host = [("mark", "ProfilerStep#1", 0, 60 * n + 40)]
        device = []
        for at in range(n):
            host += [
                ("call", f"k{at}", 60 * at, 60 * at + 5),
                ("call", f"r{at}", 60 * at + 20, 60 * at + 25),
            ]
            start = comes[rank, at] - durations[rank, 3 * at]
            device += [
                (f"kernel {at}", 7, start, comes[rank, at] - 1, f"k{at}"),
                (REDUCE, 20, comes[rank, at], leaves[at], f"r{at}"),
            ]
        traces.append(made_trace(host, device, rank=rank, world=2))
    found = replay_step(traces, [steps(trace)[0] for trace in traces])
    after = what_if(found, [links_scaled(found, times)]).after
    assert (after.timeline.end_s <= found.timeline.end_s + 1e-12).all()
    assert (after.replayed_s <= found.replayed_s + 1e-12).all()


def test_a_slow_down_under_collectives_settles_where_it_must():
    """`under` runs 400 µs, 300 of them under the collective, which does not change: at 1.5 it
    progresses at 2/3, so 100 µs longer.
    """
    found = with_collective()
    told = what_if(found, [], 1.5)
    assert not told.notes
    row = next(at for at in range(len(found.rows)) if found.op_of_row(at) == "under")
    assert told.after.seconds[row] - found.seconds[row] == pytest.approx(100e-6, abs=1e-6)
    others = [at for at in range(len(found.rows)) if at != row]
    assert told.after.seconds[others] == pytest.approx(found.seconds[others], abs=1e-8)
    assert what_if(found, [], 1.0).after.seconds == pytest.approx(found.seconds, abs=0)


def test_the_same_device_changes_nothing_and_another_changes_known_ops():
    found = bound_by_device()
    old, new = (PerfModel.datasheet(load_device(name)) for name in ("v100_sxm2", "h100_sxm"))
    same = other_device(found, old, old)
    assert (same.factor == 1).all()
    change = other_device(found, old, new)
    gemm = next(at for at in range(len(found.rows)) if found.op_of_row(at) == "aten::mm")
    product = [OpCall(Gemm(dtype="fp32", m=1024, n=1024, k=1024))]
    on_old, on_new = (float(model.op_seconds(model.table(product))[0]) for model in (old, new))
    assert change.factor[gemm] == pytest.approx(on_new / on_old)
    assert change.factor[gemm] < 1
    # the shapes of the other were not recorded: its kernel's name tells that it waits for memory
    relu = next(at for at in range(len(found.rows)) if found.op_of_row(at) == "aten::relu")
    bandwidths = (model.device.memory_bytes_per_s for model in (old, new))
    expected_s = KERNEL_S + (400e-6 - KERNEL_S) * next(bandwidths) / next(bandwidths)
    assert change.factor[relu] * 400e-6 == pytest.approx(expected_s)
    assert change.unknown == {}
    assert "44.4% of the device's time goes by its kernels' names alone" in change.notes[0]


@pytest.mark.parametrize(
    ("kernel", "ratio"),
    [
        ("volta_sgemm_128x64_nn", 15.7 / 66.9),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_nn", 125 / 989),
        ("void cudnn::detail::implicit_convolve_sgemm<__half, 128>", 125 / 989),
        ("void at::native::vectorized_elementwise_kernel<4, float>", 900 / 3350),
        ("Memset (Device)", 900 / 3350),
        ("triton_poi_fused_convolution_relu_0", 900 / 3350),  # a loop behind a product
        ("Memcpy HtoD (Pageable -> Device)", None),
        ("sm90_xmma_gemm_e4m3", None),  # a V100 has no such format
        ("void scaled_masked_softmax_attention_forward<float>", 900 / 3350),
    ],
)
def test_a_kernel_s_name_tells_its_rate(kernel, ratio):
    old, new = load_device("v100_sxm2"), load_device("h100_sxm")
    assert seconds_ratio(kernel, old, new) == (ratio and pytest.approx(ratio, rel=0.02))
    if ratio:
        assert seconds_ratio(kernel, old, old) == 1


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", "bf16"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", "bf16"),
        ("cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4", "tf32"),
        ("ampere_fp16_s1688gemm_fp16_64x64", "fp16"),
        ("ampere_sgemm_32x128_nn", "fp32"),
    ],
)
def test_a_kernel_of_tensor_cores_is_never_plain_fp32(kernel, dtype):
    old, new = load_device("a100_sxm"), load_device("h100_sxm")
    peaks = old.peak(dtype, "matrix") / new.peak(dtype, "matrix")
    assert seconds_ratio(kernel, old, new) == pytest.approx(peaks)


def test_other_links_by_models_of_both_systems():
    found = with_collective()
    old, new = (CollectiveModel.datasheet(load_system(name)) for name in ("dgx_a100", "dgx_h100"))
    assert other_links(found, old, new).unknown == pytest.approx(
        {"nccl:all_reduce": 300e-6}
    )  # no size was recorded
    (trace,) = found.traces
    sized = dataclasses.replace(
        trace,
        device_events=dataclasses.replace(
            trace.device_events, bytes=np.where(trace.device_events.communicates, 1e8, np.nan)
        ),
    )
    known = replay_step([sized], found.steps)
    assert (other_links(known, old, old).factor == 1).all()
    row = pd.DataFrame(
        {"collective": ["all_reduce"], "bytes": [1e8], "n_gpus": [8], "n_nodes": [1]}
    )
    ratio = float(new.predict(row)["predicted_s"][0] / old.predict(row)["predicted_s"][0])
    assert other_links(known, old, new).factor[known.rows.kind == WIRE] == pytest.approx([ratio])


@pytest.mark.parametrize(
    ("kind", "said", "row"),
    [
        ("allreduce", {"ranks": tuple(range(8)), "size": 8}, ("all_reduce", 1e8, 8, 1)),
        # a rank on each node
        ("allreduce", {"ranks": (0, 8, 16, 24), "size": 4}, ("all_reduce", 1e8, 4, 4)),
        ("all_reduce_barrier", {"size": 16}, ("all_reduce", 1e8, 16, 2)),
        ("_allgather_base", {"size": 8}, ("all_gather", 8e8, 8, 1)),
        (
            "allgather_into_tensor_coalesced",
            {"size": 8, "out_bytes": 7e8},
            ("all_gather", 7e8, 8, 1),
        ),
        ("reduce_scatter_tensor_coalesced", {"size": 8}, ("reduce_scatter", 1e8, 8, 1)),
        # the run's ranks, where no group is recorded
        ("allreduce", {}, ("all_reduce", 1e8, 64, 8)),
    ],
)
def test_other_links_go_by_the_group(kind, said, row):
    """Its size and where its ranks are, not the run's 64 ranks; an all-gather counts what all have
    at the end.
    """
    (trace,) = with_collective().traces
    event = int(np.flatnonzero(trace.device_events.communicates)[0])
    size = np.where(trace.device_events.communicates, 1e8, np.nan)
    trace = dataclasses.replace(
        trace,
        world=64,
        messages={event: Message(kind, **said)},
        device_events=dataclasses.replace(trace.device_events, bytes=size),
    )
    found = replay_step([trace], [steps(trace)[0]])
    old, new = (CollectiveModel.datasheet(load_system(name)) for name in ("dgx_a100", "dgx_h100"))
    table = pd.DataFrame([row], columns=["collective", "bytes", "n_gpus", "n_nodes"])
    ratio = float(new.predict(table)["predicted_s"][0] / old.predict(table)["predicted_s"][0])
    change = other_links(found, old, new)
    assert not change.unknown
    assert change.factor[found.rows.kind == WIRE] == pytest.approx([ratio])
    assert ratio != 1


@pytest.fixture(scope="module", params=[DLRM, A100])
def real(request, data_dir):
    return replay(read_traces([data_dir / "traces" / request.param]))


def test_real_steps_keep_their_time_on_the_same_device_and_links(real):
    model = PerfModel.datasheet(load_device("v100_sxm2"))
    told = what_if(
        real, [other_device(real, model, model), links_scaled(real, 1), faster(real, "*", 1)], 1.0
    )
    assert np.array_equal(told.after.seconds, real.seconds)
    assert np.array_equal(told.after.replayed_s, real.replayed_s)


@pytest.mark.parametrize("times", [1.5, 2, 1000])
def test_real_steps_are_never_slower_over_faster_links(real, times):
    after = what_if(real, [links_scaled(real, times)]).after
    assert (after.timeline.end_s <= real.timeline.end_s + 1e-12).all()


def test_no_op_of_a_real_step_saves_more_than_its_seconds(real):
    frame = best_savings(real)
    host = frame["op"] == "host"
    assert (frame.loc[~host, "saves_s"] <= frame.loc[~host, "seconds"] + 5e-6).all()
    assert {"host", "aten::addmm"} <= set(frame["op"])
    assert critical_by_op(real)["seconds"].sum() == pytest.approx(real.timeline.end_s.max())


def test_most_time_of_real_ops_is_known_to_models(real):
    old, new = (PerfModel.datasheet(load_device(name)) for name in ("v100_sxm2", "h100_sxm"))
    change = other_device(real, old, new)
    share = sum(change.unknown.values()) / real.rows.busy_s[real.rows.kind == DEVICE].sum()
    assert share < 0.35
    known = (real.rows.kind == DEVICE) & (change.factor != 1)
    assert np.median(change.factor[known]) < 1
    after = what_if(real, [change]).after
    assert (after.timeline.end_s <= real.timeline.end_s + 1e-12).all() or change.factor.max() > 1


@pytest.fixture
def files(tmp_path):
    """Two ranks of a made-up step as files."""
    for rank in range(2):
        host = [
            ("mark", "ProfilerStep#1", 0, 50),
            ("op", "aten::mm", 3, 9),
            ("call", "a", 5, 7),
            ("call", "r", 10, 12),
        ]
        device = [("gemm_kernel", 7, 9, 209, "a"), (REDUCE, 20, 211 + 50 * rank, 401, "r")]
        trace = made_trace(host, device, rank=rank, world=2)
        write_traces(
            [dataclasses.replace(trace, device="Tesla V100-SXM2-32GB")],
            tmp_path / f"rank{rank}.json",
        )
    return [tmp_path / "rank0.json", tmp_path / "rank1.json"]


def test_the_command_replays_and_answers(run, files, tmp_path):
    status, out, err = run(
        "trace",
        "replay",
        *files,
        "--faster",
        "aten::mm=2",
        "--links",
        "2x",
        "--out",
        tmp_path / "t.json",
    )
    assert status == 0, err
    assert "aten::mm 2 times faster, links of 2 times the bandwidth" in out
    assert "waiting at collectives" in out
    assert "would help" in out
    assert "would not help" not in out  # both ops help: no table without rows
    after = read_traces([tmp_path / "t.json"])
    assert [one.rank for one in after] == [0, 1]
    assert max(one.device_events.end_s.max() for one in after) < 401e-6
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("ProfilerStep#1")]
    assert [row[1] for row in rows] == ["0", "1"]


def test_the_command_knows_the_recorded_device(run, files):
    status, out, err = run(
        "trace",
        "replay",
        files[0],
        "--device",
        "h100_sxm",
        "--overlap-slowdown",
        "1.2",
        "--step",
        "1",
    )
    assert status == 0, err
    assert "goes by its kernels' names alone" in err  # no shapes were recorded
    assert "x1.2 under collectives" in out
    assert "one rank of 2" in err


def test_the_command_exports_all_ranks(run, files, tmp_path):
    status, out, _ = run("trace", "export", *files, "--out", tmp_path / "all.json")
    assert status == 0
    assert "12 events of 2 ranks" in out
    back = read_traces([tmp_path / "all.json"])
    assert [len(one.device_events) for one in back] == [2, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--faster", "aten::mm"], "expected --faster OP=TIMES"),
        (["--faster", "aten::mm=fast"], "expected --faster OP=TIMES"),
        (["--faster", "aten::nn=2"], "did you mean 'aten::mm'"),
        (["--device", "h100_sxm", "--model", "x"], "got both"),
        (["--model", "h100_sxm"], "--from-model"),
        (["--from-model", "v100_sxm2"], "--model"),
        (["--links", "dgx_h100"], "--from-links"),
        (["--links", "2x", "--from-links", "dgx_h100"], "a factor needs no system"),
        (["--from-links", "dgx_h100"], "expected --links"),
        (["--links", "0"], "above 0"),
        (["--overlap-slowdown", "0.5"], "1 or more"),
        (["--step", "7"], "ProfilerStep#7"),
        (["--device", "nothing"], "unknown device 'nothing'"),
        (["--out", "t.csv"], "expected a file ending in .json or .json.gz"),
    ],
)
def test_wrong_options_are_said_in_a_sentence(refused, files, options, said):
    assert said in refused("trace", "replay", *files, *options)


def running_ahead(launch_every=10, kernel=50, kernels=20, before=20):
    """A step whose host launches far ahead: a kernel of 50 µs every 10 µs, and as many of the step
    before still to run.

    At its end the host waits for the last kernel of the step before.
    """
    host, device = [], []
    for nth in range(before):  # launched before the step, just in time to be ahead
        host.append(("call", f"old {nth}", nth - 400, nth - 399.5))
        device.append(("gemm", 7, nth * kernel, (nth + 1) * kernel - 1, f"old {nth}"))
    host.append(("mark", "ProfilerStep#1", 0, before * kernel + 2))
    for nth in range(kernels):
        begin = launch_every * nth
        host += [("op", "aten::mm", begin, begin + 8), ("call", f"new {nth}", begin + 2, begin + 6)]
        device.append(
            ("gemm", 7, (before + nth) * kernel, (before + nth + 1) * kernel - 1, f"new {nth}")
        )
    host.append(("call", "cudaEventSynchronize", launch_every * kernels, before * kernel + 1))
    trace = made_trace(host, device)
    return replay_step([trace], [steps(trace)[0]])


def test_a_step_is_told_apart_from_the_one_before_that_its_device_still_works_on():
    """20 kernels of 50 µs, launched in 200 µs: a step takes 1 ms although its last kernel ends 2 ms
    after its first call.
    """
    found = running_ahead()
    assert has_backlog(found)
    assert found.measured_s == pytest.approx([2e-3], rel=0.01)
    assert found.error == pytest.approx([0], abs=0.03)
    row = in_a_row(found)
    assert row.step_s == pytest.approx([1e-3], rel=0.01)
    # a hundred times faster, the host's 200 µs are left
    at_most = what_if(row, [faster(row, "aten::mm", 100)]).after
    assert at_most.step_s == pytest.approx([200e-6], rel=0.05)
    assert what_if(row, [faster(row, "gemm", 2)]).after.step_s == pytest.approx([510e-6], rel=0.01)
    assert what_if(row, [faster(row, "host", 100)]).after.step_s == pytest.approx([1e-3], rel=0.01)
    saved = best_savings(row).set_index("op")
    assert saved.loc["aten::mm", "seconds"] == pytest.approx(980e-6)
    assert saved.loc["aten::mm", "saves_s"] == pytest.approx(800e-6, rel=0.05)
    assert saved.loc["host", "saves_s"] == pytest.approx(0, abs=5e-6)
    assert critical_by_op(row)["seconds"].sum() == pytest.approx(row.step_s[0])


def test_without_work_of_the_step_before_a_row_takes_as_long_as_its_steps():
    """A step that ends with its device: nothing runs ahead."""
    host = [
        ("mark", "ProfilerStep#1", 0, 100),
        ("call", "a", 5, 9),
        ("call", "cudaDeviceSynchronize", 20, 98),
    ]
    trace = made_trace(host, [("k", 7, 11, 97, "a")])
    found = replay_step([trace], [steps(trace)[0]])
    assert not has_backlog(found)
    assert in_a_row(found).step_s == pytest.approx(found.replayed_s, rel=0.01)


def test_ranks_in_a_row_still_meet():
    """Two ranks, one with a longer kernel before the all-reduce: both take
    its time in every turn.
    """
    traces = []
    for rank, kernel in enumerate((100, 300)):
        host = [("mark", "ProfilerStep#1", 0, 20), ("call", "a", 3, 5), ("call", "r", 10, 12)]
        device = [("k", 7, 7, 7 + kernel, "a"), (REDUCE, 20, 9 + kernel, 409, "r")]
        traces.append(made_trace(host, device, rank=rank, world=2))
    row = in_a_row(replay_step(traces, [steps(trace)[0] for trace in traces]))
    assert row.step_s == pytest.approx(
        [300e-6, 300e-6], rel=0.02
    )  # the device of the slower goes on computing beside the all-reduce
    slower = what_if(row, [faster(row, "k", 0.5)]).after
    assert slower.step_s == pytest.approx([600e-6, 600e-6], rel=0.02)


def test_the_real_step_of_a_device_that_is_behind(data_dir):
    """Its last kernels end 95.6 ms apart, step after step; from first call to last kernel they take
    185 ms.
    """
    traces = read_traces([data_dir / "traces" / "hta_ns_resolution_V100_1gpu.json.gz"])
    found = replay(traces)
    ends_s = np.array(
        [traces[0].device_events.end_s[step.device].max() for step in steps(traces[0])]
    )
    assert found.measured_s[0] > 0.18
    assert in_a_row(found).step_s == pytest.approx([np.median(np.diff(ends_s))], rel=0.005)


def test_copies_of_memory_that_is_not_pinned_are_the_hosts():
    models = [PerfModel.datasheet(load_device(name)) for name in ("v100_sxm2", "h100_sxm")]
    found = bound_by_device("Memcpy HtoD (Pageable -> Device)")
    change = other_device(found, *models)
    assert change.why == {}
    seconds = {name: pytest.approx(500e-6 if name == "datasheets" else 0) for name in PRICED_BY}
    assert change.by == seconds | {"host": pytest.approx(400e-6)}


def test_why_ops_keep_their_time_is_said():
    found = bound_by_device("Memcpy HtoD (Pinned -> Device)")
    change = other_device(
        found, *(PerfModel.datasheet(load_device(name)) for name in ("v100_sxm2", "h100_sxm"))
    )
    assert change.why == {"aten::relu": "no shapes recorded"}
    assert not any("record_shapes" in note for note in change.notes)
    bare = with_collective()
    change = other_device(
        bare, *(PerfModel.datasheet(load_device(name)) for name in ("v100_sxm2", "h100_sxm"))
    )
    assert change.why == {}  # launched outside of ops, they go by their kernels' names
    assert any("record_shapes=True" in note for note in change.notes)


def test_a_slower_op_is_called_slower():
    assert faster(bound_by_device(), "aten::relu", 0.5).description == "aten::relu 2 times slower"


def test_without_launches_the_host_is_not_blamed():
    trace = made_trace(
        [("mark", "ProfilerStep#1", 0, 1000)], [("k", 7, 100, 200, None), ("k", 7, 700, 900, None)]
    )
    found = replay_step([trace], [steps(trace)[0]])
    assert not found.launched
    shares = critical_by_op(found).set_index("op")["share"]
    assert shares["launch not recorded"] > 0.5
    assert UNRECORDED not in set(best_savings(found)["op"])


def test_a_replay_that_is_off_says_so_before_any_what_if(run, data_dir):
    more = data_dir / "traces" / "more"
    status, _, err = run("trace", "replay", more / "hta_negq_A100_rank0of16.json.gz")
    assert status == 0
    assert "takes 240 ms where 377 ms were recorded (-36.4 %)" in err
    assert "in a row of its like takes 79.1 ms where 216 ms were recorded" in err
    _, _, err = run("trace", "replay", more / "hta_trace_diff_test_V100_rank1of2.json.gz")
    assert "were recorded" not in err


def test_the_command_says_what_is_of_the_step_before(run, tmp_path):
    write_traces(running_ahead().traces, tmp_path / "ahead.json.gz")
    status, out, err = run("trace", "replay", tmp_path / "ahead.json.gz", "--faster", "gemm=100")
    assert status == 0, err
    assert "works off the step before" in err
    assert "a step in a row" in out
    (line,) = [line for line in out.splitlines() if line.strip().startswith("ProfilerStep#1")]
    assert 4.5 < float(line.split("x")[-1]) < 5.1


def test_several_steps_have_one_timeline_each(refused, run, tmp_path):
    host = [
        ("mark", "ProfilerStep#1", 0, 100),
        ("call", "a", 5, 9),
        ("mark", "ProfilerStep#2", 100, 200),
        ("call", "b", 105, 109),
    ]
    trace = made_trace(host, [("k", 7, 11, 97, "a"), ("k", 7, 111, 197, "b")])
    write_traces([trace], tmp_path / "two.json")
    said = refused(
        "trace", "replay", tmp_path / "two.json", "--step", "1,2", "--out", tmp_path / "t.json"
    )
    assert "expected one step with --out, got 2" in said
    assert not (tmp_path / "t.json").exists()
    status, out, err = run("trace", "replay", tmp_path / "two.json", "--step", "1,2")
    assert status == 0, err
    assert "critical path in ProfilerStep#2" in out


def test_an_unknown_device_asked_for_is_said_before_that_of_the_trace(refused, tmp_path):
    trace = dataclasses.replace(bound_by_device().traces[0], device="NVIDIA L41")
    write_traces([trace], tmp_path / "t.json")
    assert "unknown device 'nope'" in refused(
        "trace", "replay", tmp_path / "t.json", "--device", "nope"
    )
    said = refused("trace", "replay", tmp_path / "t.json", "--device", "h100_sxm")
    assert "no datasheet of NVIDIA L41" in said
    assert "did you mean 'l4'" in said
