"""A recorded step on another number of ranks: by hand where the law is plain, on real steps where a
property must hold.
"""

import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from support.made_traces import REDUCE, made_trace

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.step_effects import slowest_of
from hybridperf.ops import Gemm, OpCall
from hybridperf.traces.events import Message
from hybridperf.traces.other_ranks import other_ranks
from hybridperf.traces.perfetto import write_traces
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import Replay, replay, replay_step
from hybridperf.traces.replay_graph import DEVICE, WIRE
from hybridperf.traces.steps import steps
from hybridperf.traces.what_if import what_if

DLRM, A100 = "param_dlrm_8xV100_kineto.tar.gz", "hta_trace_diff_control_A100_rank3of8.json.gz"
ALL = Message("allreduce")
BATCH, INNER, OUTER, BYTES = 4096, 2048, 1024, 64e6
LINKS = CollectiveModel.datasheet(load_system("dgx_v100"))
V100 = PerfModel.datasheet(load_device("v100_sxm2"))


def made(ranks: int = 2, message: Message = ALL, shapes: bool = True) -> Replay:
    """Ranks that multiply a batch by a weight for 400 µs, then reduce its gradient in 300 µs."""
    traces = []
    for rank in range(ranks):
        host = [
            ("mark", "ProfilerStep#1", 0, 60),
            ("op", "aten::mm", 5, 20), ("call", "a", 10, 15),
            ("op", "torch::autograd::AccumulateGrad", 22, 28),
            ("call", "r", 30, 35),
        ]  # fmt: skip
        device = [("gemm_kernel", 7, 20, 420, "a"), (REDUCE, 20, 424, 724, "r")]
        host.append(("call", "cudaStreamWaitEvent", 25, 26))
        dims = [[BATCH, INNER], [INNER, OUTER]], [[OUTER, INNER]]
        trace = made_trace(
            host, device, rank=rank, world=ranks, shapes=tuple(map(json.dumps, dims))
        )
        at = [trace.names.index(name) for name in ("aten::mm", "torch::autograd::AccumulateGrad")]
        which = {name: shape for shape, name in enumerate(at)} if shapes else {}
        found = np.array([which.get(int(one), -1) for one in trace.host.name], np.int32)
        device_events = dataclasses.replace(
            trace.device_events, bytes=np.where(trace.device_events.communicates, BYTES, np.nan)
        )
        traces.append(
            dataclasses.replace(
                trace, device="Tesla V100-SXM2-16GB", device_events=device_events,
                host=dataclasses.replace(trace.host, shapes=found),
                types=('["float", "float"]', '["float"]'), messages={1: message},
            )
        )  # fmt: skip
    return replay_step(traces, [steps(trace)[0] for trace in traces])


def reduced_s(ranks: int, size: float = BYTES) -> float:
    row = {"collective": ["all_reduce"], "bytes": [size], "n_gpus": [ranks], "n_nodes": [1]}
    return float(LINKS.predict(pd.DataFrame(row))["predicted_s"][0])


def scaled(found: Replay, ranks: int, scaling: str):
    return other_ranks(found, ranks, scaling, (LINKS, LINKS), V100)


def test_weak_scaling_changes_collectives_by_the_ratio_of_their_prices():
    found = made()
    change = scaled(found, 4, "weak")
    wire = found.rows.kind == WIRE
    assert change.factor[wire] == pytest.approx(reduced_s(4) / reduced_s(2))
    assert (change.factor[~wire] == 1).all()
    longer_s = 300e-6 * (reduced_s(4) / reduced_s(2) - 1)
    told = what_if(found, [change])
    assert told.after.step_s == pytest.approx(found.step_s + longer_s, abs=1e-9)
    low, high = told.ends
    assert (low.step_s < told.after.step_s).all()
    assert (told.after.step_s < high.step_s).all()


def test_strong_scaling_shares_the_batch_and_reduces_gradients_as_large():
    found = made()
    change = scaled(found, 4, "strong")
    products = [OpCall(Gemm("fp32", m=rows, n=OUTER, k=INNER)) for rows in (BATCH, BATCH / 2)]
    whole_s, half_s = V100.op_seconds(V100.table(products)).tolist()
    assert change.factor[found.rows.kind == DEVICE] == pytest.approx(half_s / whole_s)
    assert change.factor[found.rows.kind == WIRE] == pytest.approx(reduced_s(4) / reduced_s(2))
    assert half_s / whole_s == pytest.approx(0.5, rel=0.05)


def test_groups_of_neighbours_stay_and_carry_their_share_of_the_batch():
    """Four ranks in pairs of neighbours, or of ranks two apart: of eight, the latter are four."""
    pairs = made(4, Message("allreduce", ranks=(0, 1), size=2))
    wire = pairs.rows.kind == WIRE
    assert (scaled(pairs, 8, "weak").factor[wire] == 1).all()
    shared = scaled(pairs, 8, "strong").factor[wire]
    assert shared == pytest.approx(reduced_s(2, BYTES / 2) / reduced_s(2))
    apart = made(4, Message("allreduce", ranks=(0, 2), size=2))
    for scaling in ("weak", "strong"):
        grown = scaled(apart, 8, scaling).factor[wire]
        assert grown == pytest.approx(reduced_s(4) / reduced_s(2))


@pytest.mark.parametrize(
    ("found", "ranks", "scaling", "said"),
    [
        ({}, 4, "sideways", "weak or strong"),
        ({}, 1, "weak", "2 ranks or more"),
        ({"ranks": 1}, 4, "weak", "several ranks"),
        ({"shapes": False}, 4, "strong", "shapes of weights"),
        ({}, 2 * 3 * BATCH, "strong", "units of 4096 rows"),
        ({"ranks": 4, "message": Message("allreduce", size=2)}, 8, "weak", "without saying which"),
        ({"ranks": 4, "message": Message("allreduce", ranks=(0, 2), size=2)}, 9, "weak", "stride"),
    ],
)
def test_what_cannot_be_scaled_is_refused(found, ranks, scaling, said):
    with pytest.raises(InputError, match=said):
        scaled(made(**found), ranks, scaling)


def rounds(second_us: tuple[float, ...]) -> Replay:
    """Ranks that reduce twice; what they compute in between takes each so many microseconds."""
    traces, last_us = [], 500 + max(second_us)
    for rank, own_us in enumerate(second_us):
        host = [
            ("mark", "ProfilerStep#1", 0, 60), ("call", "a", 5, 8), ("call", "r", 10, 15),
            ("call", "cudaStreamWaitEvent", 16, 17), ("call", "b", 20, 25),
            ("call", "cudaStreamWaitEvent", 26, 27), ("call", "s", 30, 35),
        ]  # fmt: skip
        device = [
            ("gemm_kernel", 7, 20, 420, "a"), (REDUCE, 20, 424, 500, "r"),
            ("gemm_kernel", 7, 500, 500 + own_us, "b"),
            (REDUCE, 20, 500 + own_us, last_us + 300, "s"),
        ]  # fmt: skip
        trace = made_trace(host, device, rank=rank, world=len(second_us))
        sizes = np.where(trace.device_events.communicates, BYTES, np.nan)
        device_events = dataclasses.replace(trace.device_events, bytes=sizes)
        both = dict.fromkeys(np.flatnonzero(trace.device_events.communicates).tolist(), ALL)
        traces.append(dataclasses.replace(trace, device_events=device_events, messages=both))
    return replay_step(traces, [steps(trace)[0] for trace in traces])


def test_more_ranks_that_scatter_wait_longer_for_the_slowest():
    """Deviation of 400 and 200 us: 141 us."""
    drawn = np.random.default_rng(0).standard_normal((4, 400_000)).max(axis=0).mean()
    of = [slowest_of(n) for n in (1, 2, 4)]
    assert of[:2] == pytest.approx([0, np.pi**-0.5], abs=1e-4)
    assert of[2] == pytest.approx(drawn, abs=5e-3)
    found = rounds((400.0, 200.0))
    wire = np.flatnonzero(found.rows.kind == WIRE)
    change, alike = scaled(found, 4, "weak"), scaled(rounds((400.0, 400.0)), 4, "weak")
    grown = (change.factor - alike.factor)[wire] * found.rows.busy_s[wire]
    assert sorted(grown.round(9)) == pytest.approx([0, (of[2] - of[1]) * 141.42e-6], abs=1e-7)
    assert change.low[wire] == pytest.approx(alike.low[wire])
    assert (scaled(found, 2, "weak").factor == 1).all()


def test_the_slowest_of_eight_from_two_or_four_of_them(data_dir):
    """The eight ranks of a recorded DLRM step: what each took between collectives, the slowest each
    time, predicted from some of the ranks; beside it, that no rank is slower than those.
    """
    found = replay(read_traces([data_dir / "traces" / DLRM]))
    ended_s, own_s = None, []
    for meeting in found.meetings:
        if ended_s is not None:
            own_s.append(np.maximum(meeting.collective.start_s - ended_s, 0.0))
        ended_s = meeting.collective.end_s
    times_s = np.array(own_s)
    true_s = times_s.max(axis=1).sum()
    for count in (2, 4):
        ours, none = [], []
        for some in itertools.combinations(range(8), count):
            given_s = times_s[:, some]
            later = slowest_of(8) - slowest_of(count)
            said_s = given_s.max(axis=1).sum() + later * given_s.std(axis=1, ddof=1).sum()
            ours.append(abs(said_s / true_s - 1))
            none.append(abs(given_s.max(axis=1).sum() / true_s - 1))
        assert np.median(ours) < 0.85 * np.median(none)


@pytest.fixture(scope="module", params=[DLRM, A100])
def real(request, data_dir):
    return replay(read_traces([data_dir / "traces" / request.param]))


def test_a_real_step_on_its_own_number_of_ranks_is_itself(real):
    for scaling in ("weak", "strong"):
        told = what_if(real, [scaled(real, 8, scaling)])
        assert np.array_equal(told.after.seconds, real.seconds)
        assert np.array_equal(told.ends[1].seconds, real.seconds)


def test_more_ranks_never_make_a_real_step_shorter_weakly_nor_an_op_longer_strongly(real):
    weak = [scaled(real, ranks, "weak").factor for ranks in (2, 4, 8, 16, 64)]
    assert (np.diff(weak, axis=0) >= -1e-12).all()
    kernels = real.rows.kind == DEVICE
    strong = [scaled(real, ranks, "strong") for ranks in (4, 8, 16)]
    assert (np.diff([one.factor[kernels] for one in strong], axis=0) <= 1e-12).all()
    assert all((one.low <= one.factor + 1e-12).all() for one in strong)
    assert all((one.factor <= one.high + 1e-12).all() for one in strong)


def test_the_command_scales_and_says_how_far_it_may_be_off(run, refused, tmp_path):
    path = tmp_path / "two.json"
    write_traces(made().traces, path)
    given = ["trace", "replay", path, "--ranks", "4"]
    status, out, err = run(*given, "--scaling", "weak", "--from-links", "dgx_v100")
    assert status == 0, err
    assert "4 ranks for 2, weak scaling" in out
    assert "from" in out
    assert "late ones as late" in err
    row = hp.rescale_trace(path, 4, "weak", system="dgx_v100").iloc[0]
    assert row["low_s"] < row["after_s"] < row["high_s"]
    assert f"{1e6 * row['after_s']:.0f} µs" in out
    assert "--scaling weak" in refused(*given)
    assert "--from-links SYSTEM" in refused(*given, "--scaling", "weak")
    assert "--ranks N" in refused("trace", "replay", path, "--scaling", "weak")
