"""Replay: a made-up step comes out by hand, real steps come out as measured."""

import dataclasses

import numpy as np
import pytest
from support.made_traces import made_trace

from hybridperf.io import InputError
from hybridperf.traces.events import COPY, Message
from hybridperf.traces.host_thread import QUEUE, host_sequence
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import replay, replay_step
from hybridperf.traces.replay_graph import DEVICE, HOST, IDLE, WIRE
from hybridperf.traces.steps import common_steps, steps
from hybridperf.traces.stream_order import LaunchedEvents, StreamDelays, stream_waits

FILES = [
    "hta_df_index_resolver_V100_rank1of2.json.gz", "hta_ns_resolution_V100_1gpu.json.gz",
    "hta_trace_diff_control_A100_rank3of8.json.gz", "param_dlrm_8xV100_kineto.tar.gz",
    "param_resnet_rtx2080ti_kineto.json.gz",
]  # fmt: skip
DLRM = FILES[3]
REDUCE = "ncclKernel_AllReduce"


def launches(starts, *, thread=0, length=5, name="launch"):
    """Calls that start at these times, each with a name of its own."""
    return [("call", f"{name} {start}", start, start + length, thread) for start in starts]


def step_of(host, device, end=1000, **more):
    """A trace of one step from 0 to `end` µs and its replay."""
    trace = made_trace([("mark", "ProfilerStep#1", 0, end), *host], device, **more)
    return replay_step([trace], [steps(trace)[0]])


def seconds_of(found, kind):
    return found.rows.busy_s[found.rows.kind == kind]


def started_us(found):
    """Start of each device event in the replay, by its name."""
    return {
        found.traces[found.graph.rank[node]].device_name(event): 1e6
        * float(found.timeline.start_s[node])
        for node, event in enumerate(found.nodes.event.tolist())
        if event >= 0
    }


def test_a_step_that_waits_for_its_host_ends_when_the_host_does():
    """Launches at 100 and 300 µs reach the device 2 µs after their calls; the mark ends 400 µs
    after the last.
    """
    found = step_of(
        launches([100, 300, 500, 600]),
        [(f"k{at}", 7, at + 7, at + 57, f"launch {at}") for at in (100, 300, 500, 600)],
    )
    assert found.replayed_s == pytest.approx([1e-3])
    assert started_us(found) == pytest.approx({"k100": 107, "k300": 307, "k500": 507, "k600": 607})
    assert seconds_of(found, HOST).sum() == pytest.approx(1e-3)
    assert found.error == pytest.approx([0], abs=1e-12)


def test_a_step_that_waits_for_its_device_ends_when_the_last_kernel_does():
    starts = range(10, 110, 10)
    # 2 µs between two
    device = [(f"k{at}", 7, 100 * at / 10, 100 * at / 10 + 98, f"launch {at}") for at in starts]
    found = step_of(launches(starts), device, end=120)
    assert found.measured_s == pytest.approx([1098e-6])
    assert found.replayed_s == pytest.approx(
        [1098e-6], abs=90e-6
    )  # the first waits 85 µs in the trace, for nothing that is known
    halved = found.with_seconds(found.seconds - found.rows.busy_s * (found.rows.kind == DEVICE) / 2)
    assert halved.replayed_s == pytest.approx(found.replayed_s - 490e-6, abs=1e-9)


def test_two_threads_take_turns_on_one_line():
    """Calls that overlap count once: 10-30 and 20-40 are 30 µs of host, not 40."""
    host = [("call", "a", 10, 30, 0), ("call", "b", 20, 40, 1)]
    found = step_of(host, [("k", 7, 31, 50, "a"), ("l", 7, 51, 60, "b")], end=100)
    assert seconds_of(found, HOST).sum() == pytest.approx(100e-6)


def test_a_synchronising_call_holds_up_the_host_as_long_as_the_device_works():
    host = [*launches([10, 20, 700]), ("call", "cudaStreamSynchronize", 30, 610, 0)]
    device = [
        ("a", 7, 17, 300, "launch 10"),
        ("b", 7, 301, 600, "launch 20"),
        ("c", 7, 707, 800, "launch 700"),
    ]
    found = step_of(host, device)
    assert found.replayed_s == pytest.approx([1e-3], abs=2e-6)
    nothing = np.where(found.rows.kind == DEVICE, 0.0, found.seconds)
    # 30 µs until it waits, then what the host adds: 10 µs to return, 390 more
    assert found.with_seconds(nothing).replayed_s == pytest.approx([1e-3 - 570e-6], abs=5e-6)


def test_a_copy_that_ends_within_its_call_holds_up_the_host_and_others_do_not():
    host = [*launches([10]), ("call", "blocking", 20, 405, 0), ("call", "other", 420, 425, 0)]
    device = [
        ("k", 7, 17, 300, "launch 10"),
        ("Memcpy DtoH (Device -> Pageable)", 7, 302, 400, "blocking", COPY),
    ]
    device += [("Memcpy HtoD (Pinned -> Device)", 7, 427, 900, "other", COPY)]
    found = step_of(host, device)
    blocking = {found.graph.labels[node] for node in np.flatnonzero(found.graph.blocking)}
    assert blocking == {"Memcpy DtoH (Device -> Pageable)"}
    assert found.replayed_s == pytest.approx([1e-3], abs=4e-6)


def test_a_thread_goes_on_launching_while_another_waits():
    host = [
        ("call", "cudaDeviceSynchronize", 20, 210, 0),
        *launches([10]),
        *launches([50, 100], thread=1, name="other"),
    ]
    device = [
        ("a", 7, 17, 200, "launch 10"),
        ("b", 8, 57, 90, "other 50"),
        ("c", 8, 107, 150, "other 100"),
    ]
    found = step_of(host, device, end=300)
    assert started_us(found)["b"] == pytest.approx(57, abs=3)
    assert found.replayed_s == pytest.approx([300e-6], abs=4e-6)


def test_a_full_queue_holds_up_the_host():
    """The call that finds QUEUE events waiting returns when the first of them ends; with faster
    kernels it returns sooner.
    """
    n = QUEUE + 10
    calls = [("call", f"l{at}", at, at + 0.5) for at in range(QUEUE)]
    ends = [2000 + 20 * (at + 1) for at in range(n)]
    calls += [
        ("call", f"l{QUEUE + at}", ends[at - 1] + 1 if at else QUEUE, ends[at] + 0.5)
        for at in range(10)
    ]
    device = [(f"k{at}", 7, ends[at] - 19, ends[at], f"l{at}") for at in range(n)]
    found = step_of(calls, device, end=ends[9] + 1)
    assert found.graph.blocking.sum() == 10
    quick = found.with_seconds(
        np.where(found.rows.kind == DEVICE, found.seconds / 4, found.seconds)
    )
    assert quick.replayed_s[0] < 0.5 * found.replayed_s[0]


def test_work_of_the_step_before_comes_first():
    host = [("call", "before", 0, 5), ("mark", "ProfilerStep#1", 10, 100), ("call", "a", 20, 25)]
    trace = made_trace(host, [("old", 7, 7, 60, "before"), ("new", 7, 61, 90, "a")])
    found = replay_step([trace], [steps(trace)[0]])
    assert started_us(found) == pytest.approx(
        {"old": 0, "new": 51}, abs=1.1
    )  # old: what is left of it
    assert found.replayed_s == pytest.approx([90e-6], abs=2e-6)
    assert not (found.rows.kind == IDLE).any()


def test_a_stream_waits_for_another_where_the_trace_shows_it():
    host = [*launches([10]), ("call", "cudaStreamWaitEvent", 20, 21), *launches([30])]
    device = [("producer", 7, 17, 500, "launch 10"), ("consumer", 8, 503, 600, "launch 30")]
    found = step_of(host, device)
    assert started_us(found)["consumer"] == pytest.approx(500, abs=4)
    quick = found.with_seconds(
        np.where(found.rows.kind == DEVICE, found.seconds / 2, found.seconds)
    )
    assert started_us(quick)["consumer"] == pytest.approx(17 + 241.5, abs=5)


def test_no_event_waits_for_one_that_ended_after_it_started():
    host = [*launches([10]), ("call", "cudaStreamWaitEvent", 20, 21), *launches([30])]
    trace = made_trace(host, [("long", 7, 17, 500, "launch 10"), ("apart", 8, 37, 60, "launch 30")])
    launched = LaunchedEvents(trace, np.arange(2))
    delays = StreamDelays.of([launched])
    assert stream_waits(launched, delays.latency_s(launched), delays.gap_s(launched)) == [[], []]


def test_a_kernel_that_finds_no_room_waits_for_the_one_that_fills_the_device():
    """It starts as the last blocks of the other leave, 5 µs before that ends; with the other
    faster, it starts sooner.
    """
    found = step_of(
        launches([10, 30]),
        [("large", 7, 17, 500, "launch 10"), ("small", 8, 495, 600, "launch 30")],
    )
    assert started_us(found)["small"] == pytest.approx(500, abs=3)
    quick = found.with_seconds(
        np.where(found.rows.kind == DEVICE, found.seconds / 2, found.seconds)
    )
    assert started_us(quick)["small"] == pytest.approx(17 + 241.5, abs=3)


def test_an_event_without_a_recorded_launch_comes_where_it_came():
    device = [
        ("a", 7, 17, 100, "launch 10"),
        ("unknown", 7, 101, 200, None),
        ("b", 7, 201, 300, "launch 30"),
        ("late", 8, 700, 800, None),
    ]
    found = step_of(launches([10, 30]), device)
    assert started_us(found) == pytest.approx(
        {"a": 17, "unknown": 101, "b": 201, "late": 700}, abs=3
    )
    assert found.replayed_s == pytest.approx([1e-3])


def test_a_collective_waits_for_what_its_thread_launched_before():
    """PyTorch's rule, without any call that says so."""
    found = step_of(
        launches([10, 30]), [("k", 7, 17, 500, "launch 10"), (REDUCE, 20, 502, 600, "launch 30")]
    )
    assert started_us(found)[REDUCE] == pytest.approx(500, abs=4)
    assert seconds_of(found, WIRE) == pytest.approx([98e-6])


def rank_of(number, came, origin_us=0.0):
    """A rank that comes to a collective at `came` µs; all leave it at 500."""
    host = [("mark", "ProfilerStep#1", 0, 900), *launches([came - 7, 600])]
    return made_trace(
        host,
        [(REDUCE, 20, came, 500, f"launch {came - 7}"), ("k", 7, 607, 700, "launch 600")],
        rank=number,
        world=3,
        origin_us=origin_us,
    )


def test_ranks_leave_a_collective_together_and_wait_for_the_last():
    traces = [rank_of(0, 100), rank_of(1, 450), rank_of(2, 300)]
    found = replay_step(traces, [steps(trace)[0] for trace in traces])
    ((one, measured_s, replayed_s),) = found.waits_s()
    assert one.wire_s == pytest.approx(50e-6)
    assert replayed_s == pytest.approx(measured_s, abs=1e-6)
    assert measured_s == pytest.approx([350e-6, 0, 150e-6])
    assert seconds_of(found, WIRE) == pytest.approx([50e-6])
    assert found.replayed_s == pytest.approx([900e-6] * 3)


def test_ranks_that_start_apart_and_clocks_that_disagree():
    """A rank's clock is set by the end of the collective; its step starts later all the same."""
    late = made_trace(
        [("mark", "ProfilerStep#1", 200, 900), *launches([443])],
        [(REDUCE, 20, 450, 500, "launch 443")],
        rank=1,
        world=2,
        origin_us=7000.0,
    )
    early = rank_of(0, 100)
    found = replay_step([early, late], [steps(trace)[0] for trace in (early, late)])
    assert found.start_s == pytest.approx([0, 200e-6])
    assert found.replayed_s == pytest.approx([900e-6, 700e-6])
    assert any("clocks of ranks up to 7000 µs apart" in note for note in found.notes)


def test_clocks_are_set_by_way_of_ranks_in_between():
    """Ranks 0 and 2 meet in no group: rank 1 is in one with each. Ranks 3 and 4 meet none of them,
    and keep their own time.
    """
    late_us = (0.0, 300.0, -500.0, 9000.0, 9100.0)
    groups = [[(0, 1)], [(0, 1), (1, 2)], [(1, 2)], [(3, 4)], [(3, 4)]]
    ends = {(0, 1): 300, (1, 2): 600, (3, 4): 400}
    traces = []
    for rank, mine in enumerate(groups):
        came = [ends[group] - 50 - 10 * rank for group in mine]
        kernels = [
            (REDUCE, 20, at, ends[group], f"launch {at - 7}")
            for at, group in zip(came, mine, strict=True)
        ]
        host = [("mark", "ProfilerStep#1", 0, 900), *launches([at - 7 for at in came])]
        trace = made_trace(host, kernels, rank=rank, world=5, origin_us=late_us[rank])
        traces.append(
            dataclasses.replace(
                trace, messages={at: Message(ranks=group) for at, group in enumerate(mine)}
            )
        )
    found = replay_step(traces, [steps(trace)[0] for trace in traces])
    assert found.start_s == pytest.approx(
        [0] * 5, abs=1e-9
    )  # all began at once by the ends of what they ran together
    assert found.replayed_s == pytest.approx([900e-6] * 5)
    assert found.measured_s == pytest.approx([900e-6] * 5)
    for one, measured_s, replayed_s in found.waits_s():
        assert replayed_s == pytest.approx(measured_s, abs=1e-6), str(one)
    assert len(found.meetings) == 3


def test_a_message_sent_before_it_is_received_sets_no_clock():
    """Where a collective does; the sender leaves 200 µs before the receiver."""
    traces = []
    for rank, mark, end in ((0, "nccl:send 0->1", 200), (1, "nccl:recv 1<-0", 400)):
        host = [("mark", "ProfilerStep#1", 0, 900), *launches([150, 650]), ("mark", mark, 149, 156)]
        kernels = [
            ("ncclDevKernel_SendRecv", 20, 157, end, "launch 150"),
            (REDUCE, 20, 657 + 10 * rank, 700, "launch 650"),
        ]
        traces.append(made_trace(host, kernels, rank=rank, world=2, origin_us=300.0 * rank))
    found = replay_step(traces, [steps(trace)[0] for trace in traces])
    assert len(found.meetings) == 2
    assert found.start_s == pytest.approx([0, 0], abs=1e-9)


def test_collectives_in_different_orders_go_by_their_own_times():
    """Two groups that two ranks enter in opposite order: no order of the graph fits both."""
    device = [
        (REDUCE, 20, 107, 300, "launch 100"),
        ("ncclKernel_AllGather", 21, 207, 400, "launch 200"),
    ]
    swapped = [
        ("ncclKernel_AllGather", 21, 107, 400, "launch 100"),
        (REDUCE, 20, 207, 300, "launch 200"),
    ]
    host = [("mark", "ProfilerStep#1", 0, 900), *launches([100, 200])]
    traces = [made_trace(host, device, rank=0, world=2), made_trace(host, swapped, rank=1, world=2)]
    found = replay_step(traces, [steps(trace)[0] for trace in traces])
    assert found.replayed_s == pytest.approx([900e-6, 900e-6], rel=0.03)


def test_seconds_of_the_host_sequence_add_up_to_the_step():
    trace = made_trace(
        launches([10, 50, 90]),
        [(f"k{at}", 7, at + 7, at + 20, f"launch {at}") for at in (10, 50, 90)],
    )
    launched = LaunchedEvents(trace, np.arange(3))
    delays = StreamDelays.of([launched])
    line = host_sequence(
        launched, delays.latency_s(launched), delays.gap_s(launched), 0.0, 200e-6, np.zeros(3, bool)
    )
    assert sum(entry.host_s for entry in line.entries) + line.rest_s == pytest.approx(200e-6)


def test_what_cannot_be_replayed_is_said():
    trace = made_trace(
        [("mark", "ProfilerStep#1", 0, 100), *launches([10])], [("k", 7, 20, 30, "launch 10")]
    )
    with pytest.raises(InputError, match=r"ProfilerStep#1, got 'nope'"):
        replay([trace], "nope")
    idle = made_trace(
        [("mark", "ProfilerStep#1", 0, 100), ("mark", "ProfilerStep#2", 100, 200), *launches([10])],
        [("k", 7, 20, 30, "launch 10")],
    )
    with pytest.raises(InputError, match="there is nothing to replay"):
        replay([idle], "ProfilerStep#2")


@pytest.fixture(scope="module")
def real(data_dir):
    return {name: read_traces([data_dir / "traces" / name]) for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_every_real_step_replays_within_3_percent(real, name):
    traces = real[name]
    for one in common_steps(traces):
        found = replay_step(traces, one.steps)
        assert np.abs(found.error).max() < 0.03, (one.name, found.error)


def test_waits_at_each_collective_of_eight_real_ranks(real):
    """Within 5 %, or 12 µs where that is more: a few ticks of clocks of whole microseconds, by
    which ranks end apart, too.
    """
    found = replay(real[DLRM])
    waits = found.waits_s()
    assert len(waits) == 8
    for one, measured_s, replayed_s in waits:
        assert len(one.rank) == 8
        assert np.abs(replayed_s - measured_s) == pytest.approx(0, abs=12e-6)
        long = measured_s > 250e-6
        assert np.abs(replayed_s[long] / measured_s[long] - 1).max(initial=0.0) < 0.05, str(one)


def test_durations_alone_change_with_a_device_that_takes_no_time(real):
    """What is left is the host: the step cannot be shorter than the host's own seconds."""
    found = replay(real[DLRM])
    rows = found.rows
    bare = found.with_seconds(np.where(rows.kind == HOST, found.seconds, 0.0))
    own_s = np.array(
        [
            found.seconds[(rows.kind == HOST) & (rows.trace == at)].sum() - found.start_s[at]
            for at in range(len(found.traces))
        ]
    )
    assert (bare.replayed_s < found.replayed_s + 1e-9).all()
    assert (bare.replayed_s >= own_s - 1e-9).all()
