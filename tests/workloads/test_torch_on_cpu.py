"""PyTorch programs on a CPU: ops back to back, each with what is spent around it; rules that differ
from those of GPUs; pages that a heap touches anew.
"""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.prediction import check_backend
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.learning.residual import Box
from hybridperf.model import GroupReport, PerfModel
from hybridperf.ops import (
    Convolution,
    EagerOp,
    Elementwise,
    Fused,
    Gemm,
    ScatterAdd,
    Sort,
    Transpose,
)
from hybridperf.workloads.torch.capture import capture
from hybridperf.workloads.torch.heap import Heap
from hybridperf.workloads.torch.on_cpu import kernels_on_cpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
nn = torch.nn
MIB = 2.0**20


def on_cpu(fn, *args, **options):
    return hp.from_torch(fn, *args, backend="cpu", **options)


def ops_of(fn, *args, **options):
    """Our ops of a captured step, overheads apart."""
    captured = capture(fn, args, backend="cpu", **options)
    return [call.op for one in captured.ops for call in kernels_on_cpu(one.call) or ()]


def test_every_op_and_view_has_its_overhead() -> None:
    workload = on_cpu(nn.Linear(8, 4), torch.zeros(3, 8), train=False)
    # `t` is a view: nothing but its overhead; `addmm` reads the weight as it is stored
    assert [call.op for call in workload.calls] == [
        EagerOp("fp32", "forward"), Gemm("fp32", 3.0, 4.0, 8.0, bias=1.0, transposed_b=1.0),
    ]  # fmt: skip
    assert [workload.graph.row[at] for at in range(len(workload.graph))] == [1, 1, 2]
    assert workload.backend == "cpu"
    assert workload.in_step is None


def test_phases_are_told_apart() -> None:
    step = on_cpu(nn.Linear(8, 1), torch.zeros(3, 8), optimizer=torch.optim.SGD)
    phases = {call.op.phase for call in step.calls if isinstance(call.op, EagerOp)}
    assert phases == {"forward", "backward", "update"}


def test_gradients_of_weights_read_turned_inputs() -> None:
    products = [one for one in ops_of(nn.Linear(8, 4), torch.zeros(3, 8)) if isinstance(one, Gemm)]
    assert products[-1] == Gemm("fp32", 4.0, 8.0, 3.0, transposed_a=1.0)


def test_an_optimizer_loops_over_parameters_as_on_a_cpu() -> None:
    def updates(backend):
        captured = capture(
            nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), (torch.zeros(3, 8),),
            optimizer=torch.optim.SGD, backend=backend,
        )  # fmt: skip
        return [one.call.kind for one in captured.ops if one.phase == "optimizer"]

    assert updates("gpu") == ["aten::_foreach_add_"]
    assert updates("cpu") == ["aten::add_"] * 4


def test_rules_of_a_cpu() -> None:
    x = torch.zeros(6, 10)
    assert ops_of(torch.sqrt, x) == [Elementwise("fp32", 6.0, 10.0, 1.0, 1.0, 0.0)]
    (rows,), (columns,) = ops_of(lambda x: x.sum(-1), x), ops_of(lambda x: x.sum(0), x)
    assert isinstance(rows, Fused)
    assert (rows.loop, rows.summed, rows.summed_inner) == ("reduction", 10.0, 1.0)
    assert (columns.summed, columns.summed_inner) == (6.0, 0.0)
    assert ops_of(lambda x: x.t().contiguous(), x) == [Transpose("fp32", 10.0, 6.0)]
    (across,) = ops_of(lambda x, y: x + y.t(), x, torch.zeros(10, 6))
    assert across.strided_reads == 60.0


def test_gradients_of_tables_are_not_sorted() -> None:
    table = nn.Embedding(50, 4)
    gradient = ops_of(lambda i: table(i).sum(), torch.zeros(7, dtype=torch.long))
    assert ScatterAdd("fp32", 7.0, 4.0, 50.0) in gradient
    assert not any(isinstance(one, Sort) for one in gradient)
    assert any(isinstance(one, Fused) and one.bytes_written == 50 * 4 * 4 for one in gradient)


def test_gradients_of_convolutions_have_their_biases_with_them() -> None:
    layer = nn.Conv2d(3, 4, 3)
    x = torch.zeros(2, 3, 8, 8, requires_grad=True)
    passes = [one for one in ops_of(layer, x) if isinstance(one, Convolution)]
    assert [one.direction for one in passes] == ["fwd", "bwd_inputs", "bwd_params"]


# the heap


def test_large_blocks_are_fresh_each_time() -> None:
    heap = Heap()
    for number in range(3):
        heap.allocate(number, 64 * MIB)
        heap.release(number)
    assert heap.fresh_bytes == 3 * 64 * MIB


def test_smaller_blocks_are_kept_once_the_threshold_has_moved() -> None:
    heap = Heap()
    heap.allocate(0, MIB)  # above the threshold: from the system
    heap.release(0)  # from here on blocks of less than 1 MiB are the heap's, 2 MiB may be free
    for number in range(1, 4):
        heap.allocate(number, 0.75 * MIB)
        heap.release(number)
    assert heap.fresh_bytes == 1.75 * MIB


def test_the_top_goes_back_where_much_of_it_is_free() -> None:
    heap = Heap()

    def step(first: int) -> float:
        before = heap.fresh_bytes
        for number in range(first, first + 40):
            heap.allocate(number, 0.1 * MIB)
        for number in range(first, first + 40):
            heap.release(number)
        return heap.fresh_bytes - before

    assert step(0) == pytest.approx(4 * MIB)
    assert step(40) == pytest.approx(4 * MIB)  # more than 128 KiB were free
    heap.allocate(100, 4 * MIB)
    heap.release(100)  # 8 MiB may be free now
    assert step(200) == pytest.approx(4 * MIB)
    assert step(300) == 0.0


def test_a_block_that_stays_holds_the_heap() -> None:
    heap = Heap()
    heap.allocate(0, 0.1 * MIB)
    for number in range(1, 41):
        heap.allocate(number, 0.1 * MIB)
    heap.allocate(50, 0.05 * MIB)
    for number in range(1, 41):
        heap.release(number)
    before = heap.fresh_bytes
    heap.allocate(60, 0.1 * MIB)
    assert heap.fresh_bytes == before


# refusals


def test_what_no_calibration_knows_is_refused() -> None:
    with pytest.raises(InputError, match="op by op"):
        on_cpu(nn.Linear(8, 4), torch.zeros(3, 8), compiled=True)
    with pytest.raises(InputError, match="unknown backend 'tpu'"):
        hp.from_torch(nn.Linear(8, 4), torch.zeros(3, 8), backend="tpu")


def test_a_model_measured_through_another_library_is_refused() -> None:
    workload = on_cpu(nn.Linear(8, 4), torch.zeros(3, 8))
    bare = PerfModel.datasheet(load_device("here"))
    check_backend(bare, workload)  # a datasheet knows no library
    nothing = Box((), np.zeros(0), np.zeros(0))
    groups = {"gemm": GroupReport.of(0, None, nothing, (), np.zeros(1))}
    for made_by, refused in (({}, True), ({"library": "torch"}, False)):
        model = dataclasses.replace(bare, groups=groups, provenance=made_by)
        if refused:
            with pytest.raises(InputError, match="calibrate --library torch"):
                check_backend(model, workload)
        else:
            check_backend(model, workload)
