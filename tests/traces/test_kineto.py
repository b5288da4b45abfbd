"""Kineto's traces as columns: every version's words, correlations and flows, nesting, ranks, and
what is wrong with a file.
"""

import csv
import gzip
import json
import tarfile

import numpy as np
import pytest

from hybridperf.io import InputError
from hybridperf.traces.events import CALL, COPY, FILL, KERNEL, MARK, NONE, OP
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.steps import steps

HOST, BACKWARD = {"pid": 100, "tid": 100}, {"pid": 100, "tid": 200}


def x(cat, name, ts, dur, where, **args):
    return {"ph": "X", "cat": cat, "name": name, **where, "ts": ts, "dur": dur, "args": args}


def device(cat, name, ts, dur, correlation, stream=7, **args):
    return x(
        cat,
        name,
        ts,
        dur,
        {"pid": 0, "tid": stream},
        correlation=correlation,
        stream=stream,
        device=0,
        **args,
    )


EVENTS = [
    {"ph": "M", "name": "process_name", "ts": 0, "pid": 100, "tid": 0, "args": {"name": "python"}},
    x("user_annotation", "ProfilerStep#4", 1000, 100, HOST),
    x(
        "cpu_op",
        "aten::linear",
        1010,
        30,
        HOST,
        **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]},
    ),
    x(
        "cpu_op",
        "aten::addmm",
        1012,
        20,
        HOST,
        **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]},
    ),
    x("cuda_runtime", "cudaLaunchKernel", 1015, 5, HOST, correlation=11),
    x("cpu_op", "AddmmBackward0", 1050, 20, BACKWARD),
    x("cuda_runtime", "cudaLaunchKernel", 1055, 5, BACKWARD, correlation=12),
    x("cuda_runtime", "cudaMemcpyAsync", 1080, 5, HOST, correlation=13),
    x("cuda_driver", "cuLaunchKernel", 1090, 5, HOST, correlation=14),
    device("kernel", "sgemm", 1030, 10, 11),
    device(
        "kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)",
        1070,
        100,
        12,
        stream=20,
        **{"In msg nelems": 100, "dtype": "BFloat16"},
    ),
    device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1090, 2, 13, bytes=64),
    device("gpu_memset", "Memset (Device)", 1100, 1, 14, bytes=8),
    x("gpu_user_annotation", "ProfilerStep#4", 1030, 140, {"pid": 0, "tid": 7}),
    x("python_function", "train.py(3): step", 1001, 98, HOST),
    x("Trace", "PyTorch Profiler (0)", 900, 900, {"pid": "Spans", "tid": "PyTorch Profiler"}),
    {
        "ph": "i",
        "name": "Iteration Start: PyTorch Profiler",
        "ts": 900,
        "pid": "Traces",
        "tid": "Trace",
        "s": "g",
    },
]
DOCUMENT = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Tesla V100"}, {"id": 1, "name": "other"}],
    "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
    "displayTimeUnit": "ms",
    "traceEvents": EVENTS,
}


@pytest.fixture
def read(tmp_path):
    """Read one document (an object, or bytes as they are) from a file."""

    def read(content, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        (trace,) = read_traces([path])
        return trace

    return read


@pytest.fixture
def refused(read):
    """One sentence for a document that must be refused."""

    def refused(content):
        with pytest.raises(InputError) as error:
            read(content)
        sentence = str(error.value)
        assert "\n" not in sentence
        assert len(sentence) < 300
        return sentence

    return refused


def host_names(trace):
    return [trace.host_name(i) for i in range(len(trace.host))]


def calls(trace):
    """{device event: (launching call, its op)} by name."""
    device = trace.device_events
    return {
        trace.device_name(i): (
            trace.host_name(c),
            trace.host_name(trace.op_of_call(c)) if trace.op_of_call(c) != NONE else None,
        )
        for i, c in enumerate(device.call.tolist())
        if c != NONE
    }


def test_a_small_trace_by_hand(read):
    trace = read(DOCUMENT)
    assert (trace.rank, trace.world, trace.device, trace.origin_us) == (1, 2, "Tesla V100", 1000.0)
    assert trace.threads == ("100", "200")
    host, device = trace.host, trace.device_events
    assert host_names(trace) == [
        "ProfilerStep#4", "aten::linear", "aten::addmm", "cudaLaunchKernel", "AddmmBackward0",
        "cudaLaunchKernel", "cudaMemcpyAsync", "cuLaunchKernel",
    ]  # fmt: skip
    assert host.kind.tolist() == [MARK, OP, OP, CALL, OP, CALL, CALL, CALL]
    assert host.parent.tolist() == [NONE, 0, 1, 2, NONE, 4, 0, 0]
    np.testing.assert_allclose(host.start_s * 1e6, [0, 10, 12, 15, 50, 55, 80, 90], atol=1e-9)
    np.testing.assert_allclose(host.end_s * 1e6, [100, 40, 32, 20, 70, 60, 85, 95], atol=1e-9)
    assert [trace.shapes[i] for i in host.shapes[[1, 2]]] == ["[[2, 3], [3, 4]]"] * 2
    assert [trace.types[i] for i in host.shapes[[1, 2]]] == ['["float", "float"]'] * 2
    assert host.shapes[0] == NONE
    assert device.kind.tolist() == [KERNEL, KERNEL, COPY, FILL]
    assert device.stream.tolist() == [7, 20, 7, 7]
    assert device.communicates.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(device.bytes, [np.nan, 200.0, 64.0, 8.0])
    assert device.call.tolist() == [3, 5, 6, 7]
    assert calls(trace)["sgemm"] == ("cudaLaunchKernel", "aten::addmm")
    assert trace.notes == ("calls of Python functions (1) are not read",)


def in_words_of_1_8():
    words = {
        "cpu_op": "Operator",
        "cuda_runtime": "Runtime",
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
    }
    events = []
    for event in EVENTS:
        event = {**event, "cat": words.get(event.get("cat"), event.get("cat"))}
        if event["name"].startswith("ProfilerStep") and event["cat"] == "user_annotation":
            event["cat"] = "Operator"
        if "args" in event:
            event["args"] = {k.replace("Dims", "dims"): v for k, v in event["args"].items()}
        events.append(event)
    return events


@pytest.mark.parametrize(
    "events",
    [
        in_words_of_1_8(),
        [
            {**e, "ts": float(e["ts"]) + 0.25, **({"dur": float(e["dur"])} if "dur" in e else {})}
            for e in EVENTS
        ],
        [{**e, "ts": str(e["ts"])} for e in EVENTS],
        [
            {
                **e,
                "args": {
                    k: str(v) if isinstance(v, int) else v for k, v in e.get("args", {}).items()
                },
            }
            for e in EVENTS
        ],
        EVENTS[::-1],
    ],
    ids=["words of PyTorch 1.8", "float times", "quoted times", "quoted numbers", "any order"],
)
def test_other_versions_say_the_same(read, events):
    """Compared with the version above, but for the spelling."""
    expected, found = read(DOCUMENT), read(events)
    for one, other in ((expected.host, found.host), (expected.device_events, found.device_events)):
        for column in ("kind", "parent", "call", "stream", "bytes", "communicates"):
            if hasattr(one, column):
                np.testing.assert_array_equal(
                    getattr(one, column), getattr(other, column), err_msg=column
                )
        np.testing.assert_allclose(one.start_s, other.start_s, atol=1e-12)
        np.testing.assert_allclose(one.end_s, other.end_s, atol=1e-12)
    assert host_names(found) == host_names(expected)
    assert [found.shapes[i] for i in found.host.shapes if i != NONE] == [
        expected.shapes[i] for i in expected.host.shapes if i != NONE
    ]
    assert (found.rank, found.world) == (None, None) if isinstance(events, list) else (1, 2)


def test_amd_calls_launch_too(read):
    trace = read(
        [
            x("cuda_runtime", "hipLaunchKernel", 0, 5, HOST, correlation=3),
            device("kernel", "Cijk_Ailk", 8, 4, 3),
        ]
    )
    assert calls(trace) == {"Cijk_Ailk": ("hipLaunchKernel", None)}


def test_flows_stand_in_for_correlations(read):
    flow = {"cat": "async_cpu_to_gpu", "name": "ac2g", "id": 5}
    trace = read(
        [
            x("Runtime", "cudaLaunchKernel", 10, 5, HOST),
            x("Kernel", "sgemm", 20, 4, {"pid": 0, "tid": 7}),
            x("Kernel", "of another call", 30, 4, {"pid": 0, "tid": 7}),
            {**flow, "ph": "s", "ts": 10, **HOST},
            {**flow, "ph": "f", "ts": 20, "pid": 0, "tid": 7, "bp": "e"},
        ]
    )
    assert calls(trace) == {"sgemm": ("cudaLaunchKernel", None)}
    assert trace.device_events.stream.tolist() == [7, 7]  # the timeline's row
    assert trace.notes == (
        "1 of 2 device events (0.004 ms) have no recorded call that launched them",
    )


def test_calls_that_start_nothing_share_correlation_0(read):
    trace = read(
        [
            x("cuda_runtime", "cudaGetDevice", 0, 1, HOST, correlation=0),
            device("kernel", "k", 8, 4, 0),
        ]
    )
    assert trace.device_events.call.tolist() == [NONE]


def test_times_count_from_the_base_and_keep_their_nanoseconds(read):
    events = [x("cpu_op", "a", 0.001, 0.002, HOST), x("cpu_op", "b", 5.125, 1, HOST)]
    trace = read(
        {"traceEvents": events, "baseTimeNanoseconds": 1712195495519689000, "displayTimeUnit": "ms"}
    )
    np.testing.assert_allclose(trace.host.start_s, [0, 5.124e-6], rtol=1e-12)
    np.testing.assert_allclose(trace.host.end_s, [0.002e-6, 6.124e-6], rtol=1e-9)
    assert trace.origin_us == pytest.approx(1712195495519689.0, abs=0.3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("worker3_step_12.1694128201557.pt.trace.json", (3, None)),
        ("hta_V100_rank1of2.json", (1, 2)),
        ("rank-3.json", (3, None)),
        ("trace_8_rank_1.json", (1, None)),
        ("coworker7.json", (None, None)),
        ("franken.json", (None, None)),
    ],
)
def test_a_rank_that_the_profiler_did_not_write_is_in_the_name(read, name, expected):
    trace = read(EVENTS, name)
    assert (trace.rank, trace.world) == expected
    assert read(DOCUMENT, name).rank == 1  # what it wrote counts


def test_events_that_touch_or_have_no_length_nest_sanely(read):
    events = [
        x("cpu_op", "a", 0, 10, HOST),
        x("cpu_op", "at its start", 0, 0, HOST),
        x("cpu_op", "within", 2, 3, HOST),
        x("cpu_op", "touching", 5, 2, HOST),
        x("cpu_op", "sticks out by a tick", 7, 4, HOST),
        x("cpu_op", "at its end", 20, 0, HOST),
        x("cuda_runtime", "of it", 20, 0, HOST),
        x("cpu_op", "b", 11, 9, HOST),
        x("cpu_op", "crosses b", 15, 30, HOST),
        x("cpu_op", "elsewhere", 1, 1, BACKWARD),
    ]
    trace = read(events)
    names = host_names(trace)
    found = {
        name: names[p] if p != NONE else None
        for name, p in zip(names, trace.host.parent.tolist(), strict=True)
    }
    assert found == {
        "a": None, "at its start": "a", "within": "a", "touching": "a", "sticks out by a tick": "a",
        "b": None, "crosses b": None, "at its end": "crosses b", "of it": "at its end",
        "elsewhere": None,
    }  # fmt: skip


def test_what_kineto_writes_although_json_has_no_such_thing(read):
    """Rates of copies without length; names with backslashes, line ends and bytes that are no
    UTF-8.
    """
    text = json.dumps(DOCUMENT).replace(
        '"bytes": 64', '"bytes": 64, "memory bandwidth (GB/s)": inf, "occupancy": -nan'
    )
    text = text.replace(
        '"schemaVersion"', '"traceName": "C:\\\\tmp\\new\\\\", "mark": "a\\x", "schemaVersion"'
    ).replace("aten::linear", "two\nlines\\t")
    trace = read(b"\xef\xbb\xbf" + text.encode().replace(b"sgemm", b"sg\xffemm"))
    assert len(trace.device_events) == 4
    assert trace.device_name(0) == "sg\ufffdemm"
    assert trace.host_name(1) == "two lines\t"


def test_quotes_that_kineto_leaves_in_names(read):
    """Python frames of generated code are named after it."""
    text = json.dumps(DOCUMENT).replace("aten::linear", '{"device": "cpu", \\"a\\": 1}(12): run')
    trace = read(text.encode())
    assert trace.host_name(1) == '{"device": "cpu", "a": 1}(12): run'
    assert len(trace.host) == 8


def on(cat, name, ts, dur, number, pid, launched):
    return x(
        cat, name, ts, dur, {"pid": pid, "tid": 7}, correlation=launched, stream=7, device=number
    )


def test_several_devices_in_one_trace_are_ranks(tmp_path):
    """One host for both; no idle time of one device is work of the other. A device that ran no
    kernel is none.
    """
    calls = [x("cuda_runtime", "cudaLaunchKernel", at, 1, HOST, correlation=at) for at in (1, 2, 3)]
    events = [
        on("kernel", "a", 8, 4, 0, 0, 1),
        on("kernel", "b", 9, 4, 1, 1, 2),
        on("gpu_memcpy", "c", 10, 1, 2, 2, 3),
    ]
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"traceEvents": [*calls, *events]}))
    first, second = read_traces([path])
    assert [(one.rank, len(one.host), one.device_name(0)) for one in (first, second)] == [
        (0, 3, "a"),
        (1, 3, "b"),
    ]
    assert [len(one.device_events) for one in (first, second)] == [1, 1]
    assert first.notes == (
        "1 events of device 2 left out: no kernels ran there",
        "2 devices in one trace: each is a rank of its own here, launched by the same host",
    )
    path.write_text(
        json.dumps(
            {"traceEvents": [*calls, *events], "distributedInfo": {"rank": 3, "world_size": 4}}
        )
    )
    (alone,) = read_traces([path])  # a rank is one device
    assert (alone.rank, len(alone.device_events)) == (3, 1)
    assert "2 events of devices 1, 2 left out" in alone.notes[0]


def test_ranks_merged_into_one_timeline_are_taken_apart(tmp_path):
    """Each process has its device; their correlations may be the same numbers."""
    events = []
    for rank, pid in enumerate((11, 22)):
        host = {"pid": pid, "tid": pid}
        events += [
            x("cuda_runtime", "cudaLaunchKernel", 100 * rank + at, 1, host, correlation=at)
            for at in (1, 2)
        ]
        events += [
            on("kernel", f"k{rank}", 100 * rank + 5 * at, 4, rank, rank, at) for at in (1, 2)
        ]
    events += [
        x("cuda_runtime", "cudaLaunchKernel", 190, 1, {"pid": 22, "tid": 22}, correlation=3),
        on("kernel", "k1", 195, 4, 1, 1, 3),
    ]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(events[:-2]))  # but for the last, the kernels may be of either
    with pytest.raises(InputError, match="nothing that says who launched"):
        read_traces([path])
    path.write_text(json.dumps(events))
    first, second = read_traces([path])
    assert [(one.rank, len(one.host), len(one.device_events)) for one in (first, second)] == [
        (0, 2, 2),
        (1, 3, 3),
    ]
    assert (first.device_events.call != NONE).all()
    assert (second.device_events.call != NONE).all()


def test_what_collectives_say_of_their_group(read):
    """By the kernel, else by the op around its launch; long lists of ranks are cut off and said by
    first, stride and size.
    """
    nccl = "ncclDevKernel_AllGather_RING_LL(x)"
    said = {
        "Collective name": "_allgather_base",
        "In msg nelems": 8,
        "Out msg nelems": 16,
        "dtype": "bfloat16",
        "Group size": 2,
    }
    strided = {
        **said,
        "Process Group Ranks": "[0, 4, ...]",
        "Global rank start": 0,
        "Global rank stride": 4,
        "Group size": 3,
    }
    launch = x("cuda_runtime", "cudaLaunchKernel", 2, 1, HOST, correlation=1)
    around = x("cpu_op", "record_param_comms", 1, 5, HOST, **strided)
    document = {
        "distributedInfo": {
            "rank": 0,
            "world_size": 16,
            "pg_config": [{"pg_name": "dp", "ranks": [0, 8]}],
        },
        "traceEvents": [
            around,
            launch,
            device("kernel", nccl, 5, 2, 1, 20),
            device("kernel", nccl, 8, 2, 2, 20, **said, **{"Process Group Name": "dp"}),
            device(
                "kernel",
                nccl,
                11,
                2,
                3,
                20,
                **said,
                **{"Process Group Ranks": [0, 1], "Process Group Name": "tp"},
            ),
            device("kernel", nccl, 14, 2, 4, 20),
        ],
    }
    trace = read(document)
    assert {
        at: (one.group, one.ranks, one.size, one.kind, one.out_bytes)
        for at, one in trace.messages.items()
    } == {
        0: ("", (0, 4, 8), 3, "_allgather_base", 32.0),
        1: ("dp", (0, 8), 2, "_allgather_base", 32.0),
        2: ("tp", (0, 1), 2, "_allgather_base", 32.0),
    }
    np.testing.assert_array_equal(trace.device_events.bytes, [16, 16, 16, np.nan])


@pytest.mark.parametrize(
    ("dtype", "each"),
    [
        ("BFloat16", 2),
        ("bfloat16", 2),
        ("c10::Half", 2),
        ("Float", 4),
        ("float32", 4),
        ("Float8_e4m3fn", 1),
    ],
)
def test_types_as_versions_write_them(read, dtype, each):
    kernel = device(
        "kernel", "ncclKernel_AllReduce", 8, 4, 1, 20, **{"In msg nelems": 100, "dtype": dtype}
    )
    assert read([kernel]).device_events.bytes.tolist() == [100 * each]


def test_a_few_damaged_times_are_left_out_and_said_more_are_refused(read, refused):
    many = [x("cpu_op", "a", i, 1, HOST) for i in range(300)]
    trace = read([*many, x("cpu_op", "far", 1e17, 1, HOST), x("cpu_op", "backwards", 5, -3, HOST)])
    assert len(trace.host) == 301
    assert trace.notes[:2] == (
        "1 of 302 events left out: without times, or times far from all others",
        "1 events of negative length count as of none",
    )
    assert (trace.host.end_s >= trace.host.start_s).all()
    assert "expected times within a day" in refused([{**e, "ts": None} for e in many])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"  \n ", "is empty"),
        (b"hello", "found no JSON"),
        (b"{}", "without traceEvents"),
        (b"[1, 2]", "another type"),
        (b'"text"', "another type"),
        (b'{"traceEvents": 3}', "another type"),
        (b'{"traceEvents": []}', "found none"),
        (b'{"traceEvents": [{"ph": "X", "cat": "jax", "ts": 1, "dur": 1}]}', "found none"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1}]}', "found an execution trace"),
        (b'{"workload_graph": [{"id": 1}]}', "found an execution trace"),
        (json.dumps(DOCUMENT).encode()[:-40], "is cut off"),
        (json.dumps(DOCUMENT).encode()[:-1], "is cut off"),
        (json.dumps(DOCUMENT).encode().replace(b'"cat"', b"cat", 1), "is damaged"),
        (b"[" * 100_000, "is cut off"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(refused, content, said):
    assert said in refused(content)


OPS = [x("cpu_op", "aten::mm", 10, 20, HOST)]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([device("npu_kernel", "MatMulV2", 20, 5, 1)], "1 events of category 'npu_kernel'"),
        # Ascend writes no categories; its process is another than the host's
        ([x(None, "MatMulV2", 20, 5, {"pid": 7, "tid": 3})] * 2, "2 events of no category"),
    ],
)
def test_accelerators_that_nobody_knows_are_refused_by_name(read, refused, events, said):
    assert said in refused({"traceEvents": [*OPS, *events]})
    trace = read({"traceEvents": [*OPS, device("kernel", "sgemm", 20, 5, 1), *events]})
    assert trace.notes[0] == f"not read: {said}"  # beside kernels that are known


def test_a_host_alone_and_what_tools_note_are_no_unknown_accelerator(read):
    noted = [device("cuda_sync", "Stream Sync", 20, 5, 1), EVENTS[-2]]
    trace = read({"traceEvents": [*OPS, *noted, x("python_function", "f", 1, 2, {"pid": 8})]})
    assert trace.notes[-1] == "no device events: only the host was recorded"


def test_mtia_and_amd_tell_work_copies_and_waits_apart(read):
    mtia = [
        x("mtia_runtime", "runFunction", 15, 2, HOST, correlation=1),
        x("mtia_runtime", "enqueueCommand memcpyHtoDAsync", 18, 2, HOST, correlation=2),
        x("mtia_ccp_events", "event_wait", 20, 50, {"pid": 17, "tid": 3}, correlation=3, stream=4),
        x("mtia_ccp_events", "dma_request", 30, 5, {"pid": 17, "tid": 3}, correlation=2, stream=4),
        x("mtia_ccp_events", "pe_exe", 40, 9, {"pid": 17, "tid": 3}, correlation=1, stream=4),
    ]
    trace = read({"traceEvents": [*OPS, *mtia]})
    assert calls(trace).keys() == {"dma_request", "pe_exe"}
    assert trace.device_events.kind.tolist() == [COPY, KERNEL]
    amd = [
        x("hip_runtime", "hipMemcpyAsync", 12, 2, HOST, correlation=1),
        device("kernel", "__amd_rocclr_copyBuffer.kd", 20, 5, 1),
    ]
    assert read({"traceEvents": [*OPS, *amd]}).device_events.kind.tolist() == [COPY]


def test_ranks_come_in_order_and_other_json_beside_them_is_left_out(tmp_path):
    for rank in (2, 0, 1):
        (tmp_path / f"b{rank}.json").write_text(
            json.dumps({**DOCUMENT, "distributedInfo": {"rank": rank, "world_size": 3}})
        )
    (tmp_path / "a.json").write_text('{"schema": "1.0.1", "nodes": []}')
    traces = read_traces([tmp_path])
    assert [trace.rank for trace in traces] == [0, 1, 2]
    assert traces[0].notes[-1].startswith("left out 1 of the files: expected a Kineto trace")
    with pytest.raises(InputError, match="found an execution trace"):
        read_traces([tmp_path / "a.json", tmp_path / "b0.json"])  # named by itself, it is a mistake
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(InputError, match=r"c\.json is cut off"):
        read_traces([tmp_path])


def counted(trace, step):
    """The counts of `trace_step_summary.csv`.

    `n_comm` there also counts cub's `DeviceReduceByKeyKernel`, a local reduction that only its name
    ("DeviceReduce") takes for a collective; nothing else is counted that this importer does not
    call communication.
    """
    device = trace.device_events
    by_key = sum("DeviceReduceByKeyKernel" in trace.device_name(i) for i in step.device)
    kinds = trace.host.kind[step.host]
    return {
        "n_kernels": len(step.device),
        "n_comm": int(device.communicates[step.device].sum()) + by_key,
        "n_cpu_ops": int((kinds == OP).sum()),
        "n_runtime": int((kinds == CALL).sum()),
        "streams": len(set(device.stream[step.device].tolist())),
    }


def test_the_public_traces_give_the_counts_of_their_summary_exactly(data_dir):
    with (data_dir / "traces" / "trace_step_summary.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    files: dict[str, tuple] = {}
    for row in rows:
        name = row["trace"].split("/")[-1].split("!")[0]
        if name not in files:
            files[name] = read_traces([data_dir / "traces" / name])
        (trace,) = (t for t in files[name] if row["rank"] in ("", str(t.rank)))
        (step,) = (s for s in steps(trace) if s.name == row["step"])
        assert counted(trace, step) == {
            column: int(row[column]) for column in counted(trace, step)
        }, row["trace"]
        assert (trace.device, str(trace.world or "")) == (row["gpu"], row["world"])
        device = trace.device_events
        assert step.end_s - step.start_s == pytest.approx(float(row["step_cpu_s"]), rel=1e-4)
        span_s = device.end_s[step.device].max() - device.start_s[step.device].min()
        assert span_s == pytest.approx(float(row["gpu_span_s"]), rel=1e-5)
    assert len(rows) == sum(len(steps(trace)) for traces in files.values() for trace in traces)


def test_public_traces_are_consistent(data_dir):
    """A parent encloses its child on the same thread; nothing starts before the call that launched
    it; streams do not overlap.
    """
    for path in sorted((data_dir / "traces").glob("*.json.gz")):
        if "_et_" in path.name:
            with gzip.open(path) as handle:
                assert handle.read(1) == b"{"
            with pytest.raises(InputError, match="found an execution trace"):
                read_traces([path])
            continue
        (trace,) = read_traces([path])
        host, device = trace.host, trace.device_events
        child = np.flatnonzero(host.parent != NONE)
        parent = host.parent[child]
        assert (host.thread[child] == host.thread[parent]).all()
        assert (host.kind[parent] != CALL).all()
        assert (host.start_s[parent] <= host.start_s[child]).all()
        assert (host.end_s[parent] + 2e-6 >= host.end_s[child]).all()
        launched = device.call != NONE
        assert launched.mean() > 0.99
        assert (host.kind[device.call[launched]] == CALL).all()
        assert (device.start_s[launched] >= host.start_s[device.call[launched]] - 1e-6).all()
        for stream in set(device.stream.tolist()):
            of = device.stream == stream
            assert (device.start_s[of][1:] >= device.end_s[of][:-1] - 2e-6).all()


def test_strays_beside_traces_are_left_out_and_said(tmp_path):
    """A web page, a tar of something else: one trace among them is enough, none is not."""
    (tmp_path / "page.json").write_text("<!DOCTYPE html><html></html>")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "page.json", "README.md")
    with pytest.raises(InputError, match="found no"):
        read_traces([tmp_path])
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [kernel]}))
    (trace,) = read_traces([tmp_path])
    assert "left out 2 of the files" in trace.notes[-1]
    (tmp_path / "rank1.json").write_text(
        '{"traceEvents": [{"ph"'
    )  # a trace, but damaged: not passed over in silence
    with pytest.raises(InputError, match="cut off"):
        read_traces([tmp_path])
