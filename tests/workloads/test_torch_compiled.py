"""PyTorch programs compiled as Inductor does: which loops become one kernel, and what it moves."""

import tracemalloc

import pytest
from support.torch_steps import functional, nn, torch

import hybridperf as hp
from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import OpCall
from hybridperf.workloads.programs.torch import inductor
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.program import priced_ops


def fused(placed):
    """Kernels of ops as Inductor makes them."""
    return inductor.compiled(placed, 0.0)[0]


class Gated(nn.Module):
    """A norm written out, a gated MLP and a residual."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(256))
        self.gate, self.up = (nn.Linear(256, 512, bias=False) for _ in range(2))
        self.down = nn.Linear(512, 256, bias=False)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def compiled_loops(net, x, train=False):
    """Bytes that each fused loop reads and writes, as shares of the input's."""
    placed = priced_ops(capture(net, (x,), train=train), frozenset())
    works = [call.op.work() for _, calls in fused(placed) for call in calls]
    kept = [call.op.unit != "matrix" for _, calls in fused(placed) for call in calls]
    size = x.numel() * DTYPE_BYTES["fp32"]
    return [work.bytes / size for work, loop in zip(works, kept, strict=True) if loop]


def test_loops_that_follow_one_another_are_one_kernel() -> None:
    """The norm reads and writes once; gate and value of twice the width are read, one written."""
    x = torch.zeros(64, 128, 256)
    norm, gate, residual = compiled_loops(Gated(), x)
    assert norm == pytest.approx(2, rel=0.01)
    assert gate == pytest.approx(6, rel=0.01)
    assert residual == pytest.approx(3, rel=0.01)
    (chain,) = compiled_loops(nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.GELU()), x)
    assert chain == pytest.approx(2)


def test_a_product_between_two_loops_keeps_them_apart() -> None:
    """x + f(g(x)) cannot begin before the product that it waits for has ended."""

    def step(x):
        one = torch.relu(x)
        return one * torch.tanh(one @ one)

    captured = capture(step, (torch.zeros(64, 64),), train=False)
    names = [op.call.kind for op, _ in fused(priced_ops(captured, frozenset()))]
    assert names == ["aten::relu", "aten::mm", "aten::mul"]


def test_a_compiled_step_is_quicker_and_has_the_same_products() -> None:
    x = torch.zeros(64, 128, 256)
    eager, compiled = (hp.from_torch(Gated(), x, compiled=way) for way in (False, True))
    times = [hp.predict("h100_sxm", step).time_s for step in (eager, compiled)]
    assert times[1] < 0.9 * times[0]
    products = [
        {call.op for call in step.calls if isinstance(call, OpCall) and call.op.unit == "matrix"}
        for step in (eager, compiled)
    ]
    assert products[0] == products[1]
    # what the backward pass reads is written all the same
    assert len(compiled_loops(Gated(), x, train=True)) > len(compiled_loops(Gated(), x))


@pytest.mark.parametrize(
    ("norm", "train", "parts"),
    [(nn.BatchNorm2d(8), True, 2), (nn.BatchNorm2d(8), False, 0), (nn.GroupNorm(2, 8), True, 2)],
)
def test_norms_over_images_are_summed_before_they_scale(norm, train, parts) -> None:
    """Two kernels more in each pass: what is summed is read again, and so are parts of sums."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU()).train(train)
    placed = priced_ops(capture(net, (torch.zeros(64, 3, 34, 34),), train=train), frozenset())
    kernels = [(op.phase, call) for op, calls in fused(placed) for call in calls]
    assert [call for _, call in kernels].count(inductor._OF_PARTS) == parts
    image_bytes = 64 * 8 * 32 * 32 * 4
    loops = [call.op for phase, call in kernels if phase == "forward" and _of_images(call)]
    sizes = [float(op.work().bytes) / image_bytes for op in loops]
    sizes = [size for size in sizes if size > 0.1]  # not the count of batches
    assert sizes == pytest.approx([1, 2] if parts else [2], rel=0.01)


def _of_images(call):
    return call.op.unit != "matrix" and call != inductor._OF_PARTS


def test_a_bilinear_image_is_a_loop_that_reads_four_neighbours() -> None:
    """PyTorch's own kernel goes from channel to channel, Inductor's over all numbers; of gradients
    each of four sums is read and written.
    """

    def moved(compiled, train=False):
        x = torch.zeros(2, 64, 16, 16, requires_grad=train)
        grown = lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear")  # noqa: E731
        placed = priced_ops(capture(grown, (x,), train=train), frozenset())
        placed = fused(placed) if compiled else placed
        found = {op.call.kind: calls for op, calls in placed if "upsample" in op.call.kind}
        return {
            kind: float(calls[0].op.work().bytes) / (4 * x.numel()) for kind, calls in found.items()
        }

    assert moved(compiled=True) == {"aten::upsample_bilinear2d": 4 * 4 + 4}
    assert moved(compiled=False)["aten::upsample_bilinear2d"] > 100
    assert moved(compiled=True, train=True)["aten::upsample_bilinear2d_backward"] == 4 + 2 * 4 * 4


def test_what_stays_inside_a_compiled_kernel_takes_no_memory() -> None:
    """Two of a chain's results are alive at once op by op; compiled only its last, and in training
    what the backward pass reads.
    """
    chain, x = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.GELU()), torch.zeros(64, 128, 256)
    size = x.numel() * DTYPE_BYTES["fp32"]

    def peaks(train):
        steps = [hp.from_torch(chain, x, train=train, compiled=way) for way in (False, True)]
        return [step.peak_memory.bytes / size for step in steps]

    assert peaks(train=False) == [3, 2]
    x.requires_grad_()
    eager, compiled = peaks(train=True)
    assert 3 < compiled < eager


def test_memory_and_kernels_grow_as_the_program_does() -> None:
    """Twice the layers are twice the kernels, in about twice the memory."""

    def fusing(layers: int) -> tuple[int, int]:
        step = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(layers)))
        placed = priced_ops(capture(step, (torch.zeros(4, 8),), train=False), frozenset())
        tracemalloc.start()
        found = len(fused(placed))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, peak_bytes

    (few, few_bytes), (many, many_bytes) = fusing(200), fusing(800)
    assert (few, many) == (400, 1600)
    assert many_bytes < 6 * few_bytes


def test_a_kernel_that_has_grown_keeps_those_apart_that_wait_for_it() -> None:
    """The sum joins the loop of `a`, so that `s` waits for `c`, and their product cannot join `c`:
    it would wait for itself.
    """

    def step(x, y):
        a = torch.relu(x)
        s = torch.sigmoid(a @ a)
        c = torch.tanh(y @ y)
        return c + a, s * c

    x = torch.zeros(64, 64)
    captured = capture(step, (x, x.clone()), train=False)
    names = sorted(op.call.kind for op, _ in fused(priced_ops(captured, frozenset())))
    assert names == ["aten::add", "aten::mm", "aten::mm", "aten::mul", "aten::tanh"]
