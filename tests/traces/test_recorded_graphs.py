"""Every execution trace and Chakra graph that is public here: read, and predicted with nothing left
out.
"""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from hybridperf.engine.prediction import predict
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.model import model_or_datasheet
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.ops import OpCall
from hybridperf.ops.embedding_bag import EmbeddingBag, EmbeddingBagBackward
from hybridperf.traces.readers.files import TraceFile, trace_files
from hybridperf.traces.readers.graphs import ENDINGS, recorded_graph, recorded_step
from hybridperf.traces.recorded.workload import recorded_work, workload_from
from hybridperf.workloads.programs.torch.calls import flat

SYSTEM = "dgx_1v"
LIN = ("lin/execution_graphs/dlrm_default_1024.json", "lin/execution_graphs/alex_net.json")
FREE = {
    f"aten::{name}"
    for name in (
        "as_strided", "empty", "empty_strided", "detach", "view", "_reshape_alias", "resize_", "to",
        "broadcast_tensors",
    )
}  # fmt: skip
SAMPLES = 1024
BOTTOM, TOP, DIM, TABLES = (512, 512, 64), (100, 1024, 1024, 1024, 1), 64, 8


def graph_files(data_dir: Path) -> list[TraceFile]:
    """Those of the data folder that are no Kineto traces."""
    folders = [data_dir / "traces", data_dir / "lin" / "execution_graphs"]
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    listed = [path for path in paths if path.name.endswith(ENDINGS)]
    files = [file for path in listed for file in trace_files(path, ENDINGS)]
    return [file for file in files if b'"traceEvents"' not in file.text]


def test_no_recorded_graph_is_refused(data_dir: Path) -> None:
    refused, read = {}, 0
    for file in graph_files(data_dir):
        try:
            workload = workload_from(recorded_graph(file), system=load_system(SYSTEM))
        except InputError as error:
            refused[file.source] = str(error)
            continue
        read += 1
        assert not any("ignored" in note for note in workload.notes)
        assert len(workload.graph) > 0
    assert refused == {}
    assert read >= 14


@pytest.mark.parametrize(("name", "on_host"), [(LIN[0], 39), (LIN[1], 10)])
def test_only_views_and_memory_cost_nothing(name: str, on_host: int, data_dir: Path) -> None:
    """Of the ops with nothing inside them, on tensors of the device."""
    graph = recorded_graph(next(trace_files(data_dir / name)))
    found = recorded_work(graph, system=load_system(SYSTEM))
    assert found.on_host == on_host
    leaves = [
        node for node in graph.nodes
        if node.is_op and not any(inner.is_op for inner in graph.inside.get(node.id, ()))
    ]  # fmt: skip
    on_device = [
        node for node in leaves
        if any(one.device != "cpu" for one in flat(node.outputs.arguments) if one.device)
    ]  # fmt: skip
    assert len(on_device) > 80
    assert {node.name for node in on_device if node.id not in found.ops} <= FREE


def test_lins_dlrm_has_its_arithmetic(data_dir: Path) -> None:
    """Products by the model's sizes: forward, and two gradients but for the first layer's input."""
    workload = recorded_step(data_dir / LIN[0], system=load_system(SYSTEM))
    ops = [workload.calls[row - 1] for row in workload.graph.row if row]
    products = sum(
        call.op.work().flops for call in ops if isinstance(call, OpCall) and "Gemm" in str(call.op)
    )
    layers = [*itertools.pairwise(BOTTOM), *itertools.pairwise(TOP)]
    dense = sum(2 * SAMPLES * before * after * 3 for before, after in layers)
    dense -= 2 * SAMPLES * BOTTOM[0] * BOTTOM[1]
    pairs = 3 * 2 * SAMPLES * (TABLES + 1) ** 2 * DIM
    assert products == pytest.approx(dense + pairs, rel=0.02)
    bags = [call.op for call in ops if isinstance(call, OpCall) and "Bag" in str(call.op)]
    assert [type(one) for one in bags] == [EmbeddingBag, EmbeddingBagBackward]
    assert {(one.batch, one.pooling, one.tables, one.dim) for one in bags} == {(1024, 800, 8, 64)}
    copies = [call for call in ops if isinstance(call, GivenSeconds)]
    assert len(copies) == 9  # sizes and indices of the batch, labels, the pairs' numbers, the loss


def test_a_mark_is_structure_and_its_absence_changes_nothing(data_dir: Path, tmp_path) -> None:
    document = json.loads((data_dir / LIN[0]).read_text())
    parent = {node["id"]: node["parent"] for node in document["nodes"]}
    marks = {node["id"] for node in document["nodes"] if node["name"].startswith("module::")}
    nodes = [
        node | {"parent": parent[node["parent"]] if node["parent"] in marks else node["parent"]}
        for node in document["nodes"] if node["id"] not in marks
    ]  # fmt: skip
    (tmp_path / "bare.json").write_text(json.dumps(document | {"nodes": nodes}))
    with_marks, without = (
        recorded_step(path, system=load_system(SYSTEM))
        for path in (data_dir / LIN[0], tmp_path / "bare.json")
    )
    assert len(marks) == 5
    assert with_marks.graph.labels == without.graph.labels
    assert with_marks.flops == without.flops


def test_collectives_and_copies_are_priced_by_a_systems_links(data_dir: Path) -> None:
    path = data_dir / "traces" / "param_dlrm_8rank_pytorch_et.tar.gz"
    with pytest.raises(InputError, match=r"collectives.*--system"):
        recorded_step(path)
    step = recorded_step(path, system=load_system(SYSTEM))
    sent = [call for call in step.calls if isinstance(call, CollectiveCall)]
    assert {call.ranks for call in sent} == {8}  # of the shares of each rank that an exchange says
    assert {call.collective for call in sent} == {"alltoall", "all_reduce"}
    # 768 numbers to each of eight, as recorded
    assert ("alltoall", 8 * 768 * 4.0) in {(call.collective, call.bytes) for call in sent}


def test_ops_without_shapes_keep_their_seconds(data_dir: Path) -> None:
    file = next(iter(trace_files(data_dir / "traces" / "chakra_json_et.tar.gz", ENDINGS)))
    recorded = json.loads(file.text)["workload_graph"]
    kernels_s = sum(one.get("runtime", 0) for one in recorded if not one["is_cpu_op"])
    step = workload_from(recorded_graph(file))
    assert any("157 of 1216 kernels" in note for note in step.notes)
    assert sum(call.value for call in step.calls) == pytest.approx(kernels_s * 1e-6)
    slow = [dataclasses.replace(call, value=2 * call.value) for call in step.calls]
    model = model_or_datasheet("v100_sxm2")
    once = predict(model, step).time_s
    assert predict(model, dataclasses.replace(step, calls=tuple(slow))).time_s == pytest.approx(
        2 * once
    )


@pytest.mark.parametrize("name", LIN)
def test_both_commands_answer_alike(name: str, run, refused, data_dir: Path) -> None:
    path = data_dir / name
    status, predicted, _ = run("predict", "--trace", path, "--model", "v100_sxm2_16g")
    assert status == 0
    status, replayed, _ = run("trace", "replay", path, "--model", "v100_sxm2_16g")
    assert status == 0
    assert replayed == predicted
    assert "has no times" in refused("trace", "replay", path)
    assert "no times of its own" in refused(
        "trace", "replay", path, "--model", "v100_sxm2_16g", "--device", "h100_sxm"
    )
