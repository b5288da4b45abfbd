"""What a PyTorch program does that cannot be followed is refused in a sentence with its line."""

import pytest
from support.torch_steps import X, functional, nn, torch

import hybridperf as hp
from hybridperf.io import InputError


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "a number is read from a tensor"),
        (lambda x: x[x > 0].sum(), "the size of a result depends on numbers"),
        (
            lambda x: torch.linalg.lstsq(x.float(), x.float())[0].sum(),
            "the size of a result depends on numbers",
        ),
    ],
)
def test_what_cannot_be_followed_names_the_line(step, says) -> None:
    with pytest.raises(InputError) as error:
        hp.from_torch(step, X, train=False)
    assert says in str(error.value)
    assert f"{__file__} line " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_program_that_needs_a_gpu_is_refused_in_a_sentence() -> None:
    def step(x):
        torch.cuda.synchronize()  # nothing to wait for
        with torch.cuda.stream(torch.cuda.Stream()):
            return x.sum()

    with pytest.raises(InputError, match=r"test_torch_refusals\.py line .*on a GPU only"):
        hp.from_torch(step, X, train=False)


@pytest.mark.parametrize(
    ("fn", "optimizer", "says"),
    [
        (lambda x: x.sum(), torch.optim.SGD, "a function has no parameters"),
        (
            nn.Linear(256, 4, dtype=torch.bfloat16),
            lambda own: 3,
            "expected a torch.optim.Optimizer",
        ),
    ],
)
def test_optimizers_that_are_none_are_refused(fn, optimizer, says) -> None:
    with pytest.raises(InputError, match=says):
        hp.from_torch(fn, X, optimizer=optimizer)


def refused(step, *args, ranks=1, **options):
    """The sentence."""
    with pytest.raises(InputError) as error, hp.without_memory(ranks=ranks):
        hp.from_torch(step(), *args, **options)
    said = str(error.value)
    assert said.startswith(f"{__file__} line ")
    assert "\n" not in said
    return said


def fully_sharded():
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(nn.Linear(64, 64))


def test_other_ways_of_pytorch_are_named() -> None:
    image, tokens = torch.zeros(2, 3, 16, 16), torch.zeros(16, 8, dtype=torch.long)
    assert "fully_shard (FSDP2)" in refused(fully_sharded, X, ranks=4)
    assert "nn.BatchNorm2d" in refused(lambda: nn.SyncBatchNorm(3), image, ranks=4)
    bags = refused(lambda: nn.EmbeddingBag(1000, 32, mode="sum", sparse=True), tokens)
    assert "a tensor is sparse" in bags
    net = nn.Linear(256, 4, dtype=torch.bfloat16)
    said = refused(lambda: net, X, optimizer=torch.optim.LBFGS)
    assert "LBFGS evaluates the loss as often" in said


def test_lengths_that_only_numbers_tell_are_named() -> None:
    x, lengths = torch.zeros(50, 4, 20), torch.full((4,), 10)
    given = torch.ones(4, 10, dtype=torch.long)
    aligned = lambda: lambda x: functional.ctc_loss(x, given, lengths * 5, lengths)  # noqa: E731
    assert "the size of a result depends on numbers" in refused(aligned, x)
    packed = lambda: lambda x: nn.utils.rnn.pack_padded_sequence(x, lengths)  # noqa: E731
    assert "the size of a result depends on numbers" in refused(packed, x)


def test_numbers_that_are_asked_for_as_they_are_are_named() -> None:
    refusal = "a tensor's numbers are asked for"
    assert refusal in refused(lambda: lambda x: torch.tensor(x.float().numpy()), X)
    assert refusal in refused(lambda: lambda x: f"{x[0, 0]:.3f}", X)
    either = lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # noqa: E731
    assert "cond chooses by numbers what comes next" in refused(lambda: either, X, train=False)


def test_loops_and_lengths_of_pytorchs_own_are_named() -> None:
    from torch._higher_order_ops import associative_scan, scan

    rows = torch.zeros(8, 4, 4)
    total = lambda x: scan(lambda c, one: (c + one, c * one), x[0], x)[1]  # noqa: E731
    assert "scan is a loop that is not followed" in refused(lambda: total, rows)
    running = lambda x: associative_scan(torch.mul, x, 0)  # noqa: E731
    assert "on a GPU only" in refused(lambda: running, rows)
    nested = torch.nested.nested_tensor_from_jagged
    cut = lambda x: nested(x, torch.tensor([0, 3, 8])).values().sum()  # noqa: E731
    assert "lengths are numbers of a tensor" in refused(lambda: cut, rows)


def test_weights_that_lie_on_the_host_are_named() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    offloaded = lambda: fully_shard(nn.Linear(8, 8), offload_policy=CPUOffloadPolicy())  # noqa: E731
    assert "copies between host and GPU" in refused(offloaded, X, ranks=2)


def test_ranks_that_are_gone_and_meshes_that_do_not_divide_are_said_with_their_line() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module as divided

    line, ways = r"test_torch_refusals\.py line \d+: ", (ColwiseParallel(), RowwiseParallel())
    with hp.without_memory(ranks=8):
        net = torch.nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda())
    with pytest.raises(InputError, match=line + "the program sends to other ranks"):
        hp.from_torch(net, torch.zeros(4, 8))
    with hp.without_memory(ranks=8):
        pair = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
        divided(pair, init_device_mesh("cuda", (8,)), dict(zip("01", ways, strict=True)))
        with pytest.raises(InputError, match=line + "the mesh does not divide this"):
            hp.from_torch(pair, torch.zeros(4, 10))


@pytest.mark.parametrize(
    ("fn", "args", "options", "says"),
    [
        (nn.Linear(8, 8), (), {}, r"expected the arguments of Linear\(input"),
        (nn.Linear(8, 8), (X, X), {}, r"expected the arguments of Linear\(input"),
        (nn.Linear(8, 8), (X,), {"kwargs": {"mask": X}}, "unexpected keyword argument 'mask'"),
        ("net", (X,), {}, "expected a function or a module, got 'net'"),
        (nn.Linear(8, 8), (X,), {"optimizer": "adamw"}, "its class, got 'adamw'"),
    ],
)
def test_what_cannot_be_called_is_said_in_a_sentence(fn, args, options, says) -> None:
    with pytest.raises(InputError, match=says):
        hp.from_torch(fn, *args, **options)
