"""Timelines: checked against the rules of the Trace Event Format, and read back by the importer of
traces.
"""

import dataclasses
import json
from collections import Counter, defaultdict

import jax.numpy as jnp
import numpy as np
import pytest
from support.made_traces import REDUCE, two_ranks

from hybridperf.engine.prediction import predict
from hybridperf.hardware import load_device
from hybridperf.model import PerfModel
from hybridperf.report.trace_events import (
    CRITICAL,
    CRITICAL_COLOUR,
    DEPENDENCY,
    LAUNCH,
    TimelineFile,
)
from hybridperf.traces.events import Message
from hybridperf.traces.perfetto import write_replay, write_timeline, write_traces
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import replay, replay_step
from hybridperf.traces.steps import steps
from hybridperf.workloads.programs.jax.program import compile_program, from_program

_REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
}
_REQUIRED["f"] = _REQUIRED["s"]
_META = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}
_ROUNDING_US = 1e-6


def broken_rules(document):
    """What a document breaks of the Trace Event Format, as sentences."""
    broken = []
    threads, flows = defaultdict(list), defaultdict(dict)
    for event in document["traceEvents"]:
        phase = event.get("ph")
        if phase not in _REQUIRED:
            broken.append(f"phase {phase!r}")
            continue
        if missing := _REQUIRED[phase] - set(event):
            broken.append(f"{phase} lacks {sorted(missing)}")
            continue
        if (
            not isinstance(event["pid"], int)
            or not isinstance(event.get("tid", 0), int)
            or not isinstance(event["name"], str)
        ):
            broken.append(f"wrong types in {event}")
        if phase == "M":
            if event["name"] not in _META or _META[event["name"]] not in event["args"]:
                broken.append(f"metadata {event['name']}")
            continue
        if not (
            isinstance(event["ts"], int | float) and np.isfinite(event["ts"]) and event["ts"] >= 0
        ):
            broken.append(f"time {event['ts']}")
        if phase == "X":
            if not event["dur"] >= 0:
                broken.append(f"length {event['dur']}")
            threads[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
        else:
            key = event["cat"], event["name"], event["id"]
            if phase in flows[key]:
                broken.append(f"two {phase} of flow {key}")
            if phase == "f" and event.get("bp", "e") != "e":
                broken.append(f"bind point {event['bp']!r}")
            flows[key][phase] = event
    for where, slices in threads.items():
        open_ends = []
        for start, minus in sorted(slices):
            end = start - minus
            while open_ends and open_ends[-1] <= start + _ROUNDING_US:
                open_ends.pop()
            if open_ends and end > open_ends[-1] + _ROUNDING_US:
                broken.append(f"slices of {where} cross at {start}")
            open_ends.append(end)
    latest = {}  # per thread the starts of its slices, and the latest end of those up to each
    for where, slices in threads.items():
        ordered = np.array(sorted(slices))
        latest[where] = ordered[:, 0], np.maximum.accumulate(ordered[:, 0] - ordered[:, 1])
    for key, pair in flows.items():
        if set(pair) != {"s", "f"}:
            broken.append(f"flow {key} has only {sorted(pair)}")
            continue
        if (
            pair["s"]["ts"] > pair["f"]["ts"] + 3 and key[0] != LAUNCH
        ):  # a clock of whole microseconds may put the end after the start
            broken.append(f"flow {key} goes back in time")
        for phase, event in pair.items():
            starts, ends = latest.get((event["pid"], event["tid"]), (np.zeros(0), np.zeros(0)))
            before = int(np.searchsorted(starts, event["ts"] + _ROUNDING_US)) - 1
            if before < 0 or ends[before] < event["ts"] - _ROUNDING_US:
                broken.append(f"{phase} of flow {key} is in no slice")
    return broken


def read(path):
    document = json.loads(path.read_text())
    assert not broken_rules(document), broken_rules(document)[:5]
    return document


def of_phase(document, phase, category=None):
    return [
        event
        for event in document["traceEvents"]
        if event["ph"] == phase and category in (None, event.get("cat"))
    ]


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        ({"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 0, "ts": 0, "dur": -1}, "length"),
        ({"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 0, "ts": 5, "dur": 10}, "cross"),
        ({"ph": "X", "name": "a", "cat": "c", "pid": 0, "ts": 5, "dur": 1}, "lacks"),
        ({"ph": "s", "name": "a", "cat": "c", "id": 1, "pid": 0, "tid": 0, "ts": 5}, "only"),
        ({"ph": "Q", "name": "a"}, "phase"),
    ],
)
def test_the_checker_sees_what_is_wrong(event, rule):
    fine = {"ph": "X", "name": "b", "cat": "c", "pid": 0, "tid": 0, "ts": 0, "dur": 10}
    assert not broken_rules({"traceEvents": [fine]})
    assert any(rule in said for said in broken_rules({"traceEvents": [fine, event]}))


def test_slices_that_cross_stand_beside_each_other(tmp_path):
    file = TimelineFile()
    for start, end in ((0, 10), (2, 4), (5, 15), (12, 20), (20, 20)):
        file.slice(0, "stream 7", "k", "kernel", start * 1e-6, end * 1e-6)
    file.write(tmp_path / "t.json")
    document = read(tmp_path / "t.json")
    assert [event["tid"] for event in of_phase(document, "X")] == [0, 0, 1, 0, 0]
    assert {
        event["args"]["name"] for event in of_phase(document, "M") if event["name"] == "thread_name"
    } == {"stream 7"}
    with pytest.raises(ValueError, match="in order of start"):
        file.slice(0, "stream 7", "k", "kernel", 0.0, 1e-6)


def test_a_measured_step_reads_back_with_its_times_launches_and_names(tmp_path):
    traces = two_ranks()
    for trace in traces:
        write_traces([trace], tmp_path / "t.json")
        read(tmp_path / "t.json")
        (back,) = read_traces([tmp_path / "t.json"])
        assert (back.rank, back.world, back.device) == (trace.rank, trace.world, trace.device)
        assert_same(trace, back)
        assert steps(back)[0].name == "ProfilerStep#1"


def assert_same(trace, back):
    assert [back.host_name(at) for at in range(len(back.host))] == [
        trace.host_name(at) for at in range(len(trace.host))
    ]
    assert [back.device_name(at) for at in range(len(back.device_events))] == [
        trace.device_name(at) for at in range(len(trace.device_events))
    ]  # fmt: skip
    shift_s = (back.origin_us - trace.origin_us) * 1e-6
    for ours, theirs in ((trace.host, back.host), (trace.device_events, back.device_events)):
        assert theirs.start_s + shift_s == pytest.approx(ours.start_s, abs=1e-9)
        assert theirs.end_s + shift_s == pytest.approx(ours.end_s, abs=1e-9)
    assert np.array_equal(back.host.parent, trace.host.parent)
    assert np.array_equal(back.device_events.call, trace.device_events.call)
    assert np.array_equal(back.device_events.stream, trace.device_events.stream)
    assert np.array_equal(back.device_events.communicates, trace.device_events.communicates)


def test_a_replayed_step_reads_back_and_marks_its_critical_path(tmp_path):
    traces = two_ranks()
    found = replay_step(traces, [steps(trace)[0] for trace in traces])
    write_replay(found, tmp_path / "t.json")
    document = read(tmp_path / "t.json")
    kernels = of_phase(document, "X", "kernel")
    assert Counter(event["pid"] for event in kernels) == {0: 3, 1: 3}
    waits = {event["pid"]: event for event in kernels if event["name"] == REDUCE}
    assert waits[0]["dur"] == pytest.approx(300, abs=5)  # from its own coming to the end of both
    assert waits[1]["dur"] == pytest.approx(100, abs=5)
    marked = {event["name"] for event in kernels if event.get("cname") == CRITICAL_COLOUR}
    assert {REDUCE, "after"} <= marked
    assert of_phase(document, "X", CRITICAL)
    assert len(of_phase(document, "s", LAUNCH)) == len(kernels)
    assert of_phase(document, "s", DEPENDENCY)
    back = read_traces([tmp_path / "t.json"])
    assert [one.rank for one in back] == [0, 1]
    assert all((one.device_events.call >= 0).all() for one in back)
    ends_s = np.concatenate([one.device_events.end_s + one.origin_us * 1e-6 for one in back])
    assert np.sort(ends_s) == pytest.approx(np.sort(found.end_s[found.nodes.event >= 0]), abs=1e-9)


def test_a_predicted_step_reads_back(tmp_path):
    program = compile_program(
        lambda a, b: jnp.tanh(a @ b) @ b, jnp.ones((256, 256)), jnp.ones((256, 256))
    )
    workload = from_program(program)
    spec = load_device("h100_sxm").model_copy(update={"kind": workload.backend})
    result = predict(PerfModel.datasheet(spec), workload)
    write_timeline(result, tmp_path / "t.json")
    document = read(tmp_path / "t.json")
    assert document["otherData"]["seconds"] == pytest.approx(result.time_s)
    (back,) = read_traces([tmp_path / "t.json"])
    assert np.sort(back.device_events.start_s) == pytest.approx(
        np.sort(result.timeline.start_s) - result.timeline.start_s.min(), abs=1e-9
    )
    assert back.device_events.end_s.max() + back.origin_us * 1e-6 == pytest.approx(
        result.time_s, abs=1e-9
    )
    assert back.device == result.model.device.name
    assert (
        sum(event["args"].get("critical", False) for event in of_phase(document, "X", "kernel"))
        == result.on_critical_path.sum()
    )


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    (tmp_path / "t.json").write_text("old")
    file = TimelineFile()
    with pytest.raises(ValueError, match="expected finite times"):
        file.slice(0, "a", "b", "kernel", 0.0, float("nan"))
    file.slice(0, "a", "b", "kernel", 0.0, 1.0, roofline_us=float("nan"))
    with pytest.raises(ValueError, match="JSON compliant"):
        file.write(tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "t.json"]


REAL = ["hta_ns_resolution_V100_1gpu.json.gz", "hta_trace_diff_control_A100_rank3of8.json.gz"]
LARGE = ["hta_df_index_resolver_V100_rank1of2.json.gz", "param_resnet_rtx2080ti_kineto.json.gz"]


@pytest.mark.parametrize(
    "name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_real_traces_read_back(data_dir, tmp_path, name):
    (trace,) = read_traces([data_dir / "traces" / name])
    found = replay([trace])
    write_traces([trace], tmp_path / "rank.json", [found])
    assert of_phase(read(tmp_path / "rank.json"), "X", CRITICAL)
    (back,) = read_traces([tmp_path / "rank.json"])
    assert_same_times(trace, back)
    write_replay(found, tmp_path / "replay.json")
    read(tmp_path / "replay.json")


def assert_same_times(trace, back):
    shift_s = (back.origin_us - trace.origin_us) * 1e-6
    for ours, theirs in ((trace.host, back.host), (trace.device_events, back.device_events)):
        assert np.abs(theirs.start_s + shift_s - ours.start_s).max() < 1e-9
        assert np.abs(np.sort(theirs.end_s) + shift_s - np.sort(ours.end_s)).max() < 1e-9
    assert np.array_equal(back.device_events.stream, trace.device_events.stream)


def test_eight_real_ranks_read_back_from_one_file(data_dir, tmp_path):
    traces = read_traces([data_dir / "traces" / "param_dlrm_8xV100_kineto.tar.gz"])
    write_traces(traces, tmp_path / "all.json", [replay(traces)])
    document = read(tmp_path / "all.json")
    assert {
        event["args"]["name"]
        for event in of_phase(document, "M")
        if event["name"] == "process_name"
    } == {f"rank {at}" for at in range(8)}
    back = read_traces([tmp_path / "all.json"])
    assert [(one.rank, one.world) for one in back] == [(at, 8) for at in range(8)]
    for trace, one in zip(traces, back, strict=True):
        assert_same_times(trace, one)


def test_groups_of_collectives_read_back(tmp_path):
    said = [Message("allreduce", "tp", (0, 1), 2, 64.0), Message("_allgather_base", size=2)]
    traces = [
        dataclasses.replace(
            trace,
            messages=dict(
                zip(np.flatnonzero(trace.device_events.communicates).tolist(), said, strict=False)
            ),
        )
        for trace in two_ranks()
    ]
    write_traces(traces, tmp_path / "all.json")
    for trace, back in zip(traces, read_traces([tmp_path / "all.json"]), strict=True):
        assert {at: repr(one) for at, one in back.messages.items()} == {
            at: repr(one) for at, one in trace.messages.items()
        }
        assert trace.messages
