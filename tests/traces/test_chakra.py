"""Chakra traces: JSON in its spellings, protobuf by hand and from the data folder, and files nobody
can use.
"""

import itertools
import json
import random
import struct
from pathlib import Path

import pytest
from support.recorded_graphs import read_recorded

from hybridperf.io import InputError
from hybridperf.ops import Convolution, Elementwise
from hybridperf.traces.readers.chakra import chakra_protobuf
from hybridperf.traces.readers.files import TraceFile, trace_files
from hybridperf.traces.readers.graphs import recorded_graph
from hybridperf.traces.recorded.graph import COMM, CPU, GPU, RecordedGraph
from hybridperf.traces.recorded.workload import recorded_work, workload_from

MESSAGES = 60  # of a real trace that mutations start from


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str | float) -> bytes:
    """One field as protocol buffers write it: a varint, a double, or bytes behind their length."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def attribute(name: str, number: int, value: int | bytes | str | float) -> bytes:
    return field(1, name) + field(number, value)


def info(values: object, shapes: object, types: object) -> bytes:
    """Inputs or outputs: lists as Python writes them."""
    return field(1, str(values)) + field(2, str(shapes)) + field(3, str(types))


def node(
    identity: int,
    name: str,
    kind: int,
    *more: bytes,
    on_host: bool,
    data: tuple[int, ...] = (),
    micros: int = 0,
) -> bytes:
    packed = b"".join(map(varint, data))
    parts = [
        field(1, identity),
        field(2, name),
        field(3, kind),
        field(4, varint(3)),
        field(7, micros),
    ]
    if data:
        parts.append(field(5, packed))
    return b"".join([*parts, *more, field(10, attribute("is_cpu_op", 27, int(on_host)))])


def framed(*messages: bytes) -> bytes:
    return b"".join(varint(len(one)) + one for one in messages)


def made() -> tuple[bytes, ...]:
    """An addition cut by the kernel it launches, and an all-reduce of it on another stream."""
    tensors = info([[1, 2, 0, 64, 4, "cuda:0"]] * 2, [[64], [64]], ["Tensor(float)"] * 2)
    inputs, outputs = (
        field(8, tensors),
        field(9, info([[3, 4, 0, 64, 4, "cuda:0"]], [[64]], ["Tensor(float)"])),
    )
    op = field(10, attribute("rf_id", 9, 5))
    return (
        node(7, "aten::add(0)", 4, inputs, outputs, op, on_host=True, micros=20),
        node(
            8,
            "void at::native::kernel<float>(int)",
            4,
            field(10, attribute("tid", 9, 7)),
            on_host=False,
            data=(7,),
            micros=4,
        ),
        node(9, "aten::add(1)", 4, inputs, outputs, op, on_host=True, data=(7,), micros=3),
        node(10, "c10d::allreduce_", 7, on_host=True, micros=3),
        node(
            11,
            "ncclKernel_AllReduce",
            7,
            field(10, attribute("comm_type", 9, 0)),
            field(10, attribute("comm_size", 9, 256)),
            field(10, attribute("tid", 9, 14)),
            field(10, attribute("involved_dim", 28, field(1, b"\1"))),
            field(99, b"new"),
            on_host=False,
            data=(10, 8, 12345),
        ),
    )


@pytest.mark.parametrize(
    "metadata",
    [
        field(2, attribute("schema", 29, "1.0.1")) + field(2, attribute("pid", 13, 77)),
        field(1, attribute("schema", 29, "1.0.1")),
        field(1, "0.0.4") + field(2, attribute("schema", 29, "1.0.1")),
    ],
    ids=["attributes in field 2", "attributes in field 1", "behind a version"],
)
def test_a_protobuf_file_by_hand(metadata: bytes) -> None:
    graph = chakra_protobuf(framed(metadata, *made()), "made.et")
    assert graph.schema == "chakra protobuf 1.0.1"
    assert [node.kind for node in graph.nodes] == [CPU, GPU, CPU, CPU, COMM]
    assert [node.name for node in graph.nodes][:3] == [
        "aten::add",
        "void at::native::kernel<float>(int)",
        "aten::add",
    ]
    assert graph.by_id[8].thread == 7
    assert graph.by_id[11].comm_type == "all_reduce"
    assert graph.by_id[11].data == (10, 8)
    assert any("1 dependencies on nodes that the trace lacks" in note for note in graph.notes)
    with pytest.raises(InputError, match="collectives"):
        workload_from(graph)
    workload = workload_from(graph, "collectives")
    assert workload.calls[0].op == Elementwise("fp32", 1, 64, 2, 1, 0)
    assert len(workload.graph) == 1  # one addition, in however many parts
    assert workload.graph.stream_names == ("stream 7",)


def test_a_file_without_metadata_is_read() -> None:
    assert len(chakra_protobuf(framed(*made()), "made.et").nodes) == 5


def test_values_of_attributes_of_every_kind_are_read() -> None:
    attributes = [
        attribute("a", 3, 2.5),
        attribute("b", 7, 3),
        attribute("c", 29, "text"),
        attribute("d", 10, field(1, varint(4))),
    ]
    graph = chakra_protobuf(
        framed(node(1, "aten::neg", 4, *(field(10, one) for one in attributes), on_host=True)),
        "made.et",
    )
    assert graph.nodes[0].name == "aten::neg"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (framed(*made())[:-3], "cut off"),
        (framed(field(2, attribute("schema", 29, "1.0.1"))), "found none"),
        (framed(made()[0], made()[0]), "two nodes have the id 7"),
        (framed(made()[0], b"\x0b\x0b"), "message 1 is no Chakra node"),
        (
            framed(field(1, 3) + field(2, "x") + field(3, 6) + field(8, 1) + field(9, 4)),
            "schema before 0.0.4",
        ),
        (b"hello, this is no trace\n", "neither JSON nor a Chakra trace"),
        (b"\xff" * 20, "neither JSON nor a Chakra trace"),
    ],
)
def test_other_bytes_are_refused_in_one_sentence(content: bytes, said: str) -> None:
    with pytest.raises(InputError) as refused:
        recorded_graph(TraceFile("made.et", content, False))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def json_graph(nodes: list[dict]) -> RecordedGraph:
    return recorded_graph(
        TraceFile("made.json", json.dumps({"workload_graph": nodes}).encode(), False)
    )


def test_json_in_both_spellings() -> None:
    one = {
        "Id": 216,
        "Name": "aten::mul(0)",
        "NodeType": 4,
        "ctrlDeps": [3],
        "data_deps": [],
        "runtime": 318,
        "is_cpu_op": True,
    }
    other = {
        "id": 217,
        "name": "ncclKernel",
        "type": "COMM_COLL_NODE",
        "ctrl_deps": [216],
        "data_deps": [216, 1],
        "comm_type": "ALL_GATHER",
        "duration_micros": 28,
        "is_cpu_op": False,
        "comm_size": 64,
    }
    graph = json_graph([other, one])
    assert [node.name for node in graph.nodes] == ["aten::mul", "ncclKernel"]
    assert [node.kind for node in graph.nodes] == [CPU, COMM]
    assert graph.by_id[217].data == graph.by_id[217].control == (216,)
    assert graph.by_id[217].comm_type == "all_gather"
    with pytest.raises(InputError, match="no shapes"):
        workload_from(graph)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "found none"),
        ([3], "expected nodes with names"),
        ([{"Id": 1}], "a node has id"),
        ([{"Id": 1, "Name": "a"}] * 2, "two nodes have"),
    ],
)
def test_other_json_is_refused(nodes: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        json_graph(nodes)


def test_the_recorded_protobuf_is_one_step_of_a_resnet(data_dir: Path) -> None:
    (graph,) = read_recorded(data_dir / "traces" / "chakra_feeder_et_protobuf.tar.gz")
    assert graph.schema == "chakra protobuf 1.0.1"
    assert len(graph.nodes) == 3664
    assert not graph.notes
    assert sum(node.kind == COMM for node in graph.nodes) == 7
    assert recorded_work(graph).unknown == {"collectives": 7}
    workload = workload_from(graph, ["collectives"])
    convolutions = [
        workload.calls[row - 1].op
        for row in workload.graph.row
        if isinstance(workload.calls[row - 1].op, Convolution)
    ]
    assert [op.direction for op in convolutions].count("fwd") == 53
    assert [op.direction for op in convolutions].count("bwd_params") == 53
    assert [op.direction for op in convolutions].count(
        "bwd_inputs"
    ) == 52  # nobody wants the images' gradient
    assert workload.flops == pytest.approx(2 * 4.09e9 * 32 * 3, rel=0.02)


def test_the_recorded_json_carries_times_and_dependencies(data_dir: Path) -> None:
    graphs = {
        graph.source.rsplit("/", 1)[-1]: graph
        for graph in read_recorded(data_dir / "traces" / "chakra_json_et.tar.gz")
    }
    assert len(graphs["chakra.0.json"].nodes) == 3664
    small = graphs["small_chakra.0.json"]
    assert len(small.nodes) == 7
    assert small.by_id[435].kind == COMM
    assert small.by_id[435].data == (432, 216, 217)


def test_mutations_of_a_real_trace_import_or_are_refused(data_dir: Path) -> None:
    rng = random.Random(1)
    whole = next(
        trace_files(data_dir / "traces" / "chakra_feeder_et_protobuf.tar.gz", (".tar.gz", ".et"))
    ).text
    starts, at = [0], 0
    while at < len(whole) and len(starts) <= MESSAGES:
        length, shift = 0, 0
        while True:
            byte = whole[at]
            at, length, shift = at + 1, length | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        at += length
        starts.append(at)
    messages = [whole[begin:end] for begin, end in itertools.pairwise(starts)]
    outcomes, said = [], []
    for _ in range(150):
        kind = rng.randrange(4)
        if kind == 0:  # messages lost, doubled, in another order
            content = b"".join(
                rng.sample(messages, rng.randrange(1, len(messages)))
                + rng.choices(messages, k=rng.randrange(2))
            )
        else:
            text = bytearray(b"".join(messages))
            if kind == 1:
                del text[rng.randrange(len(text)) :]
            for _ in range(rng.choice((1, 5, 50))):
                if text:
                    text[rng.randrange(len(text))] = rng.randrange(256)
            content = bytes(text)
        try:
            graph = recorded_graph(TraceFile("fuzzed.et", content, False))
            workload_from(graph, set(recorded_work(graph).unknown))
            outcomes.append("read")
        except InputError as error:
            outcomes.append("refused")
            said.append(str(error))
    assert not [one for one in said if "\n" in one or len(one) > 1000]
    assert outcomes.count("read") > 10
    assert outcomes.count("refused") > 10
