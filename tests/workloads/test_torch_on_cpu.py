"""PyTorch programs on a CPU: ops back to back, each with what is spent around it; rules that differ
from those of GPUs; memory that is fresh in each step.
"""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.prediction import check_backend
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.learning.inputs import Box
from hybridperf.model import GroupReport, PerfModel
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import (
    Allocation,
    Convolution,
    EagerOp,
    Elementwise,
    Fused,
    Gemm,
    ScatterAdd,
    Sort,
    Transpose,
)
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.on_cpu import kernels_on_cpu

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
    layers = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    products = [one for one in ops_of(layers, torch.zeros(3, 8)) if isinstance(one, Gemm)]
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


# fresh memory


def fresh_bytes(fn, *args) -> float:
    """Bytes of a step that no earlier one has left to it."""
    calls = on_cpu(fn, *args).calls
    return sum(call.op.bytes for call in calls if isinstance(call.op, Allocation))


def test_blocks_that_malloc_gives_back_are_fresh_in_each_step() -> None:
    small, large = torch.zeros(2**20), torch.zeros(16 * 2**20)
    # one result at a time: the heap keeps it
    assert fresh_bytes(lambda x: [x + 1, None][1], small) == 0.0
    # 64 MiB come from the system
    assert fresh_bytes(lambda x: [x + 1, None][1], large) == 64 * MIB
    # five results of 4 MiB at once, of which the heap keeps two
    assert fresh_bytes(lambda x: [[x + 1 for _ in range(5)], None][1], small) == 12 * MIB


# processes


def kinds_in_order(workload):
    """Kinds of a step's calls in its order, overheads and views apart."""
    rows = workload.graph.row - 1
    calls = [workload.calls[at] for at in rows]
    names = [
        call.collective if isinstance(call, CollectiveCall) else type(call.op).__name__
        for call in calls
    ]
    return [name for name in names if name != "EagerOp"]


def test_a_message_stands_between_what_makes_and_what_reads_it() -> None:
    def step(x):
        y = torch.exp(x)
        torch.distributed.all_reduce(y)
        return y @ y

    with hp.without_memory(ranks=2):
        workload = on_cpu(step, torch.zeros(8, 8), train=False)
    assert kinds_in_order(workload) == ["Elementwise", "all_reduce", "Gemm"]
    assert set(workload.graph.stream) == {0}  # nothing goes beside it


@pytest.mark.parametrize("views", [False, True])
def test_replicas_divide_gradients_into_buckets_and_take_them_out(views) -> None:
    """The first bucket of 1 MiB is full with the last layer, the rest goes at the end."""
    from torch.nn.parallel import DistributedDataParallel

    with hp.without_memory(ranks=2):
        layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 600), nn.Linear(600, 600))
        module = DistributedDataParallel(layers, gradient_as_bucket_view=views)
        seen = capture(module, (torch.zeros(3, 64),), optimizer=torch.optim.SGD, backend="cpu")
    sent = [op.call.read[0].elements for op in seen.ops if op.call.kind == "c10d::allreduce_"]
    parameters = [600 * 600 + 600, 600 * 64 + 600 + 64 * 64 + 64]
    assert sent == parameters
    names = [op.call.kind for op in seen.ops]
    divided = [op for op in seen.ops if op.call.kind == "aten::mul"]
    assert len(divided) == 6
    assert names.index("c10d::allreduce_") > names.index("aten::mul")
    assert names.count("aten::copy_") == (0 if views else 6)


def test_the_first_rank_sends_its_buffers_to_replicas() -> None:
    from torch.nn.parallel import DistributedDataParallel

    def broadcasts(**options):
        with hp.without_memory(ranks=2):
            module = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(50)), **options)
            step = on_cpu(module, torch.zeros(8, 50))
        sent = [call for call in step.calls if isinstance(call, CollectiveCall)]
        return sorted(call.bytes for call in sent if call.collective == "broadcast")

    assert broadcasts() == [8.0, 400.0]  # batches seen; mean and variance
    assert broadcasts(broadcast_buffers=False) == []


def test_shards_are_gathered_on_the_processes_own_core() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with hp.without_memory(ranks=2):
        module = nn.Linear(64, 32)
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        step = on_cpu(module, torch.zeros(3, 64), optimizer=torch.optim.SGD)
    kinds = kinds_in_order(step)
    gathered, reduced = kinds.index("all_gather"), kinds.index("reduce_scatter")
    assert gathered < kinds.index("Gemm") < reduced
    sent = {call.collective: call.bytes for call in step.calls if isinstance(call, CollectiveCall)}
    assert sent == {"all_gather": 4 * 65 * 32, "reduce_scatter": 4 * 65 * 32}


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
