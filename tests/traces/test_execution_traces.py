"""PyTorch execution traces: both layouts by hand, the recorded ones of the data folder, and files
nobody can use.
"""

import copy
import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from support.recorded_graphs import read_recorded

from hybridperf.io import InputError
from hybridperf.ops import Elementwise, Gather, Gemm, Reduction, ScatterAdd, Sort
from hybridperf.traces.readers.files import TraceFile, trace_files
from hybridperf.traces.readers.graphs import recorded_graph
from hybridperf.traces.recorded.graph import RecordedGraph, read, written
from hybridperf.traces.recorded.workload import recorded_work, workload_from

F = "Tensor(float)"
TRIMMED_BYTES = 60_000


def old_node(identity: int, parent: int, name: str, **more: object) -> dict:
    """A node as schema 1.0.x writes it."""
    node = {
        "name": name,
        "id": identity,
        "rf_id": 0,
        "parent": parent,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": 0,
        "tid": 1,
        "fw_tid": 0,
        "op_schema": "",
        "inputs": [],
        "input_shapes": [],
        "input_types": [],
        "outputs": [],
        "output_shapes": [],
        "output_types": [],
    }
    return node | more


def new_node(old: dict) -> dict:
    """The same as schema 1.1.x writes it."""
    attributes = [
        {"name": key, "type": "uint64", "value": old[key]}
        for key in ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
    ]
    ends = {
        end: {
            "values": old[f"{end}s"],
            "shapes": old[f"{end}_shapes"],
            "types": old[f"{end}_types"],
            "strides": [],
        }
        for end in ("input", "output")
    }
    return {
        "id": old["id"],
        "name": old["name"],
        "ctrl_deps": old["parent"],
        "inputs": ends["input"],
        "outputs": ends["output"],
        "attrs": attributes,
    }


def tensor(identity: int, *shape: int, device: str = "cuda:0") -> list:
    elements = 1
    for size in shape:
        elements *= size
    return [identity, identity + 1000, 0, elements, 4, device]


def with_tensors(**ends: list) -> dict:
    """Fields of a node from `inputs` and `outputs`, lists of (value, shape)."""
    fields: dict = {}
    for end, listed in ends.items():
        fields |= {
            end: [value for value, _ in listed],
            f"{end[:-1]}_shapes": [list(shape) for _, shape in listed],
            f"{end[:-1]}_types": [F] * len(listed),
        }  # fmt: skip
    return fields


def linear_step() -> list[dict]:
    """y = relu(x W + b), and the sum of its gradient: children stand before their parents, as the
    observer writes them.
    """
    x, w, b = (tensor(100, 8, 4), (8, 4)), (tensor(101, 4, 16), (4, 16)), (tensor(102, 16), (16,))
    weight = (tensor(105, 16, 4), (16, 4))
    y, z = (tensor(103, 8, 16), (8, 16)), (tensor(104, 8, 16), (8, 16))
    return [
        old_node(2, 1, "[pytorch|profiler|execution_graph|thread]"),
        old_node(4, 3, "aten::t", **with_tensors(inputs=[weight], outputs=[w])),
        old_node(5, 3, "aten::addmm", **with_tensors(inputs=[b, x, w], outputs=[y])),
        old_node(3, 2, "aten::linear", **with_tensors(inputs=[x, weight, b], outputs=[y])),
        old_node(7, 6, "aten::clamp_min", **with_tensors(inputs=[y], outputs=[z])),
        old_node(6, 2, "aten::relu", **with_tensors(inputs=[y], outputs=[z])),
        old_node(
            10, 9, "aten::sum", **with_tensors(inputs=[z], outputs=[(tensor(106, 1, 16), (1, 16))])
        ),
        old_node(9, 8, "AddmmBackward0", seq_id=7, tid=2, **with_tensors(inputs=[z])),
        old_node(8, 2, "autograd::engine::evaluate_function: AddmmBackward0"),
        old_node(1, 1, "[pytorch|profiler|execution_graph|process]"),
    ]


def graph_of(nodes: list[dict], schema: str = "1.0.1") -> RecordedGraph:
    return recorded_graph(
        TraceFile(
            "made.json", json.dumps({"schema": schema, "pid": 1, "nodes": nodes}).encode(), False
        )
    )


@pytest.mark.parametrize(
    "schema",
    ["1.0.0", "1.0.1", "1.0.3-chakra.0.0.4", "1.1.0", "1.1.1-chakra.0.0.4", "1.1.0-chakra.0.0.4"],
)
def test_both_layouts_say_the_same(schema: str) -> None:
    nodes = (
        linear_step() if schema.startswith("1.0") else [new_node(node) for node in linear_step()]
    )
    graph = graph_of(nodes, schema)
    assert [node.id for node in graph.nodes] == list(range(1, 11))
    addmm = graph.by_id[5]
    assert graph.by_id[addmm.parent].name == "aten::linear"
    assert read(addmm) == {1100, 1101, 1102}
    assert written(addmm) == {1103}
    assert graph.by_id[9].sequence == 7
    assert graph.by_id[9].thread == 2
    workload = workload_from(graph)
    assert [call.op for call in workload.calls] == [
        Gemm("fp32", 8, 16, 4, bias=1), Elementwise("fp32", 8, 16, 1, 1, 0),
        Reduction("fp32", 16, 8),
    ]  # fmt: skip
    assert workload.graph.labels == ("aten::addmm", "aten::clamp_min", "aten::sum")
    assert workload.flops == 2 * 8 * 16 * 4 + 8 * 16 + 128 + 128
    assert workload.backend == "gpu"


def test_an_op_without_its_parts_is_priced_whole() -> None:
    nodes = [node for node in linear_step() if node["id"] not in (4, 5)]
    assert workload_from(graph_of(nodes)).calls[0].op == Gemm(
        "fp32", 8, 16, 4, bias=1, transposed_b=1
    )


def test_what_an_op_hands_on_is_counted_once() -> None:
    x, y = (tensor(1, 32), (32,)), (tensor(2, 32), (32,))
    inner = old_node(4, 3, "aten::mul", **with_tensors(inputs=[x, y], outputs=[y]))
    outer = old_node(3, 2, "aten::mul", **with_tensors(inputs=[x], outputs=[y]))
    assert len(workload_from(graph_of([inner, outer])).graph) == 1


def test_nothing_unknown_costs_zero() -> None:
    x = (tensor(100, 8, 4), (8, 4))
    strange = old_node(11, 2, "mylib::fused", **with_tensors(inputs=[x]))
    mark = old_node(12, 2, "FlashAttnFunc", **with_tensors(inputs=[x], outputs=[x]))
    gathered = old_node(13, 2, "record_param_comms", **with_tensors(inputs=[x])) | {
        "inputs": [x[0], 3, "allreduce"], "input_shapes": [[8, 4], [], []],
        "input_types": [F, "Int", "String"],
    }  # fmt: skip
    host = (tensor(107, 8, 4, device="cpu"), (8, 4))
    moved = old_node(14, 2, "aten::copy_", **with_tensors(inputs=[x, host], outputs=[x]))
    graph = graph_of([*linear_step(), strange, mark, gathered, moved])
    assert graph.by_id[13].comm_type == "allreduce"
    with pytest.raises(InputError, match="4 kind") as refused:
        workload_from(graph)
    for name in ("mylib::fused", "FlashAttnFunc", "collectives", "host copies"):
        assert name in str(refused.value)
    left_out = workload_from(
        graph, ignore=["mylib::fused", "FlashAttnFunc", "collectives", "host copies"]
    )
    assert len(left_out.graph) == 3
    assert sum("ignored" in note for note in left_out.notes) == 4


def test_ops_on_the_host_are_left_to_it() -> None:
    host = (tensor(107, 64, device="cpu"), (64,))
    workload = workload_from(
        graph_of(
            [
                *linear_step(),
                old_node(11, 2, "aten::add", **with_tensors(inputs=[host, host], outputs=[host])),
            ]
        )
    )
    assert len(workload.graph) == 3
    assert any("1 ops on the host" in note for note in workload.notes)


def test_a_host_alone_is_the_device() -> None:
    host = (tensor(107, 64, device="cpu"), (64,))
    workload = workload_from(
        graph_of([old_node(2, 1, "aten::add", **with_tensors(inputs=[host, host], outputs=[host]))])
    )
    assert workload.calls[0].op == Elementwise("fp32", 1, 64, 2, 1, 0)
    assert workload.backend is None


def test_one_of_repeated_steps_is_kept() -> None:
    x = (tensor(100, 64), (64,))
    nodes = [old_node(1, 1, "process")]
    for step, ops in enumerate((2, 3, 3)):
        nodes.append(old_node(10 * step + 10, 1, f"ProfilerStep#{step}"))
        nodes += [
            old_node(
                10 * step + 11 + i,
                10 * step + 10,
                "aten::neg",
                **with_tensors(inputs=[x], outputs=[x]),
            )
            for i in range(ops)
        ]
    workload = workload_from(graph_of(nodes))
    assert len(workload.graph) == 3
    assert any("kept ProfilerStep#1 of 3 steps, 2 of which" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"schema": "2.0.0", "nodes": [{}]}, "found schema '2.0.0'"),
        ({"schema": "1.0.1", "nodes": []}, "found an empty one"),
        ({"schema": "1.0.1", "nodes": {}}, "found none"),
        ({"schema": "1.0.1", "nodes": [3]}, "expected nodes with names"),
        ({"schema": "1.0.1", "nodes": [{"id": "x", "name": "y"}]}, "a node has id 'x'"),
        (
            {"schema": "1.0.1", "nodes": [old_node(2, 1, "a"), old_node(2, 1, "b")]},
            "two nodes have the id 2",
        ),
        ({"nodes": [old_node(2, 1, "a")]}, "found schema 'None'"),
        ({"traceEvents": []}, "is a Kineto trace"),
        ({"a": 1}, "found neither"),
        ([1, 2], "found a list"),
    ],
)
def test_other_files_are_refused_in_one_sentence(
    content: object, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as refused:
        read_recorded(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_truncated_files_are_said_to_be(tmp_path: Path) -> None:
    whole = json.dumps({"schema": "1.0.1", "nodes": linear_step()})
    (tmp_path / "cut.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cut off or damaged"):
        read_recorded(tmp_path / "cut.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(whole.encode())[:200])
    with pytest.raises(InputError, match="cut off or damaged"):
        read_recorded(tmp_path / "cut.json.gz")
    (tmp_path / "empty.json").write_text("")
    with pytest.raises(InputError, match="empty"):
        read_recorded(tmp_path / "empty.json")


def test_a_step_without_shapes_cannot_be_priced() -> None:
    with pytest.raises(InputError, match="records no shapes"):
        workload_from(graph_of([old_node(2, 1, "aten::mm")]))


def test_the_recorded_dlrm_becomes_a_step_of_one_rank(data_dir: Path) -> None:
    graphs = read_recorded(data_dir / "traces" / "param_dlrm_8rank_pytorch_et.tar.gz")
    assert len(graphs) == 8
    for graph in graphs:
        assert graph.schema == "1.0.1"
        assert not graph.notes
        work = recorded_work(graph)
        assert set(work.unknown) == {"collectives", "host copies"}
        assert work.unknown["collectives"] == 8
    workload = workload_from(graphs[0], ["collectives", "host copies"])
    products = [
        call.op
        for row in workload.graph.row
        for call in [workload.calls[row - 1]]
        if isinstance(call.op, Gemm)
    ]
    # of each of seven layers: forward, and two gradients but for the first
    assert len(products) == 7 + 13
    kinds = {type(call.op) for call in workload.calls}
    assert {
        Gather,
        Sort,
        ScatterAdd,
    } <= kinds  # tables looked up, and updated where the engine's own node does it


def test_the_recorded_resnet_keeps_one_step_with_its_arithmetic(data_dir: Path) -> None:
    (graph,) = read_recorded(data_dir / "traces" / "param_resnet_2gpu_et_chakra1.1.0.json.gz")
    assert graph.schema == "1.1.0-chakra.0.0.4"
    workload = workload_from(graph, ["collectives"])
    assert any("of 3 steps, 3 of which" in note for note in workload.notes)
    # ResNet-50: 4.09e9 multiply-adds an image, 32 images, forward and two gradients (but for the
    # first layer's input)
    assert workload.flops == pytest.approx(2 * 4.09e9 * 32 * 3, rel=0.02)
    assert recorded_work(graph).unknown == {"collectives": 21}


def test_predict_takes_a_trace(run, refused, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": linear_step()}))
    status, printed, _ = run("predict", "--trace", path, "--model", "v100_sxm2")
    assert status == 0
    assert "gemm" in printed
    x = (tensor(100, 8, 4), (8, 4))
    path.write_text(
        json.dumps(
            {
                "schema": "1.0.1",
                "nodes": [
                    *linear_step(),
                    old_node(11, 2, "mylib::fused", **with_tensors(inputs=[x])),
                ],
            }
        )
    )
    assert "mylib::fused (1x)" in refused("predict", "--trace", path, "--model", "v100_sxm2")
    assert (
        run("predict", "--trace", path, "--model", "v100_sxm2", "--ignore", "mylib::fused")[0] == 0
    )
    assert "expected one of" in refused("predict", "--trace", path, "--program", path)


def trimmed(document: dict) -> dict:
    """Nodes from the middle of a trace, in as many bytes as a test can afford."""
    nodes = document["nodes"]
    kept, size = [], 0
    for node in nodes[len(nodes) // 2 :]:
        size += len(json.dumps(node))
        if size > TRIMMED_BYTES:
            break
        kept.append(node)
    return document | {"nodes": kept}


ODD = (
    None,
    -1,
    10**30,
    1.5,
    float("nan"),
    "x",
    "",
    [],
    {},
    [[]],
    True,
    [1, [2, "x"]],
    "Tensor(",
    "GenericList[",
    "aten::mm",
)


def changed(document: dict, rng: random.Random) -> bytes:
    """One mutation of a trace: of its text, or of a field somewhere in it."""
    kind = rng.randrange(6)
    if kind < 3:
        text = bytearray(json.dumps(document).encode())
        if kind == 0:
            return bytes(text[: rng.randrange(len(text))])
        for _ in range(rng.choice((1, 3, 30))):
            text[rng.randrange(len(text))] = (
                rng.randrange(256) if kind == 1 else ord(rng.choice('{}[]",:0'))
            )
        return bytes(text)
    document = dict(document, nodes=list(document["nodes"]))
    for _ in range(rng.choice((1, 5, 50))):
        at = rng.randrange(len(document["nodes"]))
        node = document["nodes"][at] = copy.deepcopy(document["nodes"][at])
        if kind == 5 or not isinstance(node, dict):
            document["nodes"][at] = rng.choice([node, *ODD])
            document["nodes"].insert(rng.randrange(at + 1), node)
            continue
        inside = node
        while isinstance(inside, dict | list) and inside:
            key = (
                rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
            )
            if not isinstance(inside[key], dict | list) or not inside[key] or rng.random() < 0.4:
                if rng.random() < 0.2 and isinstance(inside, dict):
                    del inside[key]
                else:
                    inside[key] = rng.choice(ODD)
                break
            inside = inside[key]
    return json.dumps(document).encode()


def outcome_of(content: bytes) -> tuple[str, str]:
    """What becomes of any content, read and priced, and the sentence of a refusal; nothing but an
    `InputError` is caught.
    """
    try:
        graph = recorded_graph(TraceFile("fuzzed", content, False))
    except InputError as error:
        return "refused", str(error)
    try:
        workload_from(graph, set(recorded_work(graph).unknown))
    except InputError as error:
        return "read", str(error)
    return "priced", ""


def test_mutations_of_real_traces_import_or_are_refused(data_dir: Path) -> None:
    rng = random.Random(0)
    sources = []
    for name in ("param_dlrm_8rank_pytorch_et.tar.gz", "param_resnet_2gpu_et_chakra1.1.0.json.gz"):
        file = next(trace_files(data_dir / "traces" / name))
        sources.append(trimmed(json.loads(file.text)))
    found = [outcome_of(changed(rng.choice(sources), rng)) for _ in range(350)]
    assert not [said for _, said in found if "\n" in said or len(said) > 1000]
    outcomes = Counter(outcome for outcome, _ in found)
    assert outcomes["priced"] > 50
    assert outcomes["refused"] > 50
