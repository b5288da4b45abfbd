"""PyTorch programs of many ranks, captured as one of them runs them: who exchanges how much, and
what goes beside it.
"""

import math

import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import Gemm, OpCall
from hybridperf.workloads.programs.torch.capture import capture

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
nn = torch.nn
WIDTH, DEPTH, ROWS = 1024, 4, 2**14


@pytest.fixture(scope="module")
def h100():
    return hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))


def layers(dtype=torch.bfloat16):
    def layer():
        up, down = (
            nn.Linear(WIDTH, 4 * WIDTH, dtype=dtype),
            nn.Linear(4 * WIDTH, WIDTH, dtype=dtype),
        )
        return nn.Sequential(up, nn.GELU(), down)

    return nn.Sequential(*(layer() for _ in range(DEPTH)))


def sharded(ranks, tp=1, **options):
    """A step of FSDP2 over `ranks / tp` and tensor parallelism over `tp`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with hp.without_memory(ranks=ranks):
        net = layers()
        mesh = init_device_mesh("cuda", (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
        for one in net:
            if tp > 1:
                plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
                parallelize_module(one, mesh["tp"], plan)
            if tp < ranks:
                fully_shard(one, mesh=mesh["dp"])
        if tp < ranks:
            fully_shard(net, mesh=mesh["dp"])
        x = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
        return hp.from_torch(net, x, **options)


def exchanged(step):
    """(collective, ranks, nodes): how often, bytes of all."""
    found = {}
    for call, times in zip(step.calls, step.times_run(), strict=True):
        if isinstance(call, CollectiveCall):
            key = call.collective, call.ranks, call.nodes
            often, size = found.get(key, (0, 0.0))
            found[key] = often + int(times), size + float(times) * call.bytes
    return found


PARAMETERS = DEPTH * (8 * WIDTH**2 + 5 * WIDTH)


def test_sharded_layers_are_gathered_twice_and_scattered_once() -> None:
    found = exchanged(sharded(16))
    assert found["all_gather", 16, 2] == (2 * DEPTH, pytest.approx(4 * PARAMETERS, rel=0.01))
    assert found["reduce_scatter", 16, 2] == (DEPTH, pytest.approx(2 * PARAMETERS, rel=0.01))
    assert len(found) == 2


def test_tensor_parallel_layers_reduce_their_results() -> None:
    step = sharded(8, tp=8)
    found = exchanged(step)
    assert set(found) == {("all_reduce", 8, 1)}
    often, size = found["all_reduce", 8, 1]
    assert often == 2 * DEPTH - 1  # the input of the first layer needs no gradient
    assert size == often * ROWS * WIDTH * 2
    products = {call.op for call in step.calls if isinstance(call, OpCall)}
    assert Gemm("bf16", ROWS, 4 * WIDTH / 8, WIDTH, bias=1.0) in products


def test_both_at_once_have_their_own_groups() -> None:
    """Tensor parallelism inside a node, shards across: eight nodes of one rank each."""
    found = exchanged(sharded(64, tp=8))
    assert {key[1:] for key in found if key[0] == "all_reduce"} == {(8, 1)}
    assert {key[1:] for key in found if key[0] != "all_reduce"} == {(8, 8)}


def test_gathers_go_beside_the_layers_before(h100) -> None:
    """A step lasts less than all that it does, and no less than its kernels."""
    prediction = hp.predict(h100, sharded(8))
    table = prediction.breakdown().set_index("group")["seconds"]
    messages = table["all_gather"] + table["reduce_scatter"]
    kernels = table.sum() - messages
    assert kernels < prediction.time_s < kernels + 0.6 * messages


def test_a_rank_holds_its_shards_and_a_few_gathered_layers() -> None:
    """FSDP2 gives a layer's memory back behind it, and gathers it again for the backward pass."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with hp.without_memory(ranks=8):
        net = nn.Sequential(*layers(), *layers())
        mesh = init_device_mesh("cuda", (8,))
        for one in net:
            fully_shard(one, mesh=mesh)
        fully_shard(net, mesh=mesh)
        x = torch.zeros(4, WIDTH, dtype=torch.bfloat16)
        seen = capture(net, (x,), optimizer=torch.optim.SGD)
    layer = 2 * PARAMETERS / DEPTH
    shards = 2 * layer * DEPTH / 8
    assert seen.kept_bytes == pytest.approx(shards, rel=0.01)
    # with gradients of the shards; one layer with its own is there at least, all but two never
    assert 2 * shards + 2 * layer < seen.peak_bytes < 2 * shards + (2 * DEPTH - 2) * layer


def test_replicas_reduce_their_gradients_in_buckets(h100) -> None:
    from torch.nn.parallel import DistributedDataParallel

    x = torch.zeros(ROWS, WIDTH)
    with hp.without_memory(ranks=8):
        step = hp.from_torch(DistributedDataParallel(layers(torch.float32)), x)
    alone = hp.from_torch(layers(torch.float32), x)
    often, size = exchanged(step)["all_reduce", 8, 1]
    assert size == 4 * PARAMETERS
    assert DEPTH <= often <= math.ceil(size / (25 * 2**20)) + 1
    replicated_s, alone_s = hp.predict(h100, step).time_s, hp.predict(h100, alone).time_s
    assert alone_s < replicated_s < 1.3 * alone_s


def test_gradients_that_a_hook_compresses_are_half_as_many_bytes() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    with hp.without_memory(ranks=8):
        net = DistributedDataParallel(layers(torch.float32))
        net.register_comm_hook(None, bf16_compress_hook)
        step = hp.from_torch(net, torch.zeros(ROWS, WIDTH))
    assert exchanged(step)["all_reduce", 8, 1][1] == 2 * PARAMETERS


@pytest.mark.parametrize("kind", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_a_stage_of_a_pipeline_sends_and_is_sent_its_batches(kind) -> None:
    """Eight micro-batches go to the next rank, their gradients come back; a rank of two stages
    gets the second one's from the last rank, and returns theirs.
    """
    from torch.distributed import pipelining

    batch = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)
    with hp.without_memory(ranks=4):
        looped = kind == "ScheduleInterleaved1F1B"
        stages = [
            pipelining.PipelineStage(layers(), at, 8 if looped else 4, torch.device("cuda"))
            for at in ((0, 4) if looped else (0,))
        ]
        schedule = getattr(pipelining, kind)(
            stages if looped else stages[0], 8, loss_fn=lambda found, _: found.sum()
        )
        step = hp.from_torch(lambda: schedule.step(batch), gpus_per_node=2)
    found = exchanged(step)
    size = ROWS * WIDTH * 2
    with_next = 16 * len(stages), pytest.approx(2 * size * len(stages))
    assert found["sendrecv", 2, 1] == with_next
    if looped:  # the last rank is on another node
        assert found["sendrecv", 2, 2] == (16, pytest.approx(2 * size))
    products = sum(
        times for call, times in zip(step.calls, step.times_run(), strict=True)
        if isinstance(call, OpCall) and isinstance(call.op, Gemm)
    )  # fmt: skip
    # three for each of a stage's layers, of which the first one's input needs no gradient
    assert products == 8 * (3 * 2 * DEPTH * len(stages) - 1)
    assert "its bubble, is not counted" in " ".join(step.notes)


def test_who_takes_part_is_known_or_the_line_is_named() -> None:
    """A group of one sends nothing; one that is not there is not free."""
    x = torch.zeros(64)
    with hp.without_memory(ranks=2):
        alone = torch.distributed.new_group([0])

        def step(x):
            y = x * 2
            torch.distributed.all_reduce(y, group=alone)
            return y

        assert not exchanged(hp.from_torch(step, x, train=False))
        lost = torch.ops._c10d_functional.all_reduce
        with pytest.raises(InputError, match=rf"{__file__} line .*all_reduce is not known"):
            hp.from_torch(lambda x: lost(x, "sum", "nobody"), x, train=False)


@pytest.mark.parametrize(
    ("ask", "name", "times"),
    [
        (lambda all_, mine: torch.distributed.all_gather(all_, mine), "all_gather", 4),
        (lambda all_, mine: torch.distributed.reduce_scatter(mine, all_), "reduce_scatter", 4),
        (lambda all_, mine: torch.distributed.all_to_all(all_, [*all_]), "alltoall", 4),
        (lambda all_, mine: torch.distributed.reduce(mine, 0), "reduce", 1),
        (lambda all_, mine: torch.distributed.broadcast(mine, 0), "broadcast", 1),
        (lambda all_, mine: torch.distributed.all_reduce(mine), "all_reduce", 1),
        (lambda all_, mine: torch.distributed.recv(mine, 1), "sendrecv", 1),
    ],
)
def test_messages_of_lists_have_all_of_their_bytes(ask, name, times) -> None:
    with hp.without_memory(ranks=4):
        step = hp.from_torch(
            lambda x: ask([torch.empty_like(x) for _ in range(4)], x * 2), torch.zeros(1000)
        )
    ranks = 2 if name == "sendrecv" else 4
    assert exchanged(step) == {(name, ranks, 1): (1, times * 4000)}


def test_messages_need_links_and_a_group_is_made_once() -> None:
    with pytest.raises(InputError, match="expected a model with collectives"):
        hp.predict("h100_sxm", sharded(8))
    with (
        pytest.raises(InputError, match="expected no process group, got one"),
        hp.without_memory(ranks=2),
        hp.without_memory(ranks=2),
    ):
        pass
    assert not torch.distributed.is_initialized()


def test_a_mesh_larger_than_its_group_is_refused_with_its_line() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    says = r"test_torch_ranks\.py line \d+: the mesh does not divide this .*world size 6"
    with pytest.raises(InputError, match=says), hp.without_memory(ranks=6):
        init_device_mesh("cuda", (2, 4))
    assert not torch.distributed.is_initialized()
