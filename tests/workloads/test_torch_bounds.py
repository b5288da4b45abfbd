"""Ops of PyTorch without a rule: priced by a bound, with a wide interval and a note."""

import math

import pytest
from support.torch_steps import X, functional, nn, torch

import hybridperf as hp
from hybridperf.ops import BOUND, OpCall
from hybridperf.workloads.programs.torch.bounds import bound
from hybridperf.workloads.programs.torch.calls import Tensor, TorchCall
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.program import priced_ops

N, BATCH = 256, 8
MATRICES = torch.zeros(BATCH, N, N)


def bounds_of(step, *args, **options):
    """Kernels that stand for ops without a rule."""
    captured = capture(step, args, **({"train": False} | options))
    placed = priced_ops(captured, frozenset())
    return [call for _, calls in placed for call in calls if call.variant == BOUND]


@pytest.mark.parametrize(
    ("step", "flops"),
    [
        (torch.linalg.cholesky, N**3 / 3),
        (torch.linalg.inv, 2 * N**3),
        (lambda x: torch.linalg.solve(x, x), 2 * N**3 / 3 + 2 * N**3),
        (lambda x: torch.linalg.solve_triangular(x, x[..., :8], upper=True), 8 * N**2),
        (lambda x: torch.linalg.qr(x[..., :64]), 4 * N * 64**2 - 4 * 64**3 / 3),
        (lambda x: torch.linalg.eigh(x)[1], 9 * N**3),
        (lambda x: torch.linalg.svd(x)[0], 22 * N**3),
        (torch.linalg.det, 2 * N**3 / 3),
    ],
)
def test_linear_algebra_costs_its_textbook_flops(step, flops) -> None:
    (call,) = bounds_of(step, MATRICES)
    assert float(call.op.work().flops) == pytest.approx(BATCH * flops, rel=1e-3)


def test_nothing_unknown_is_free_or_quicker_than_its_arithmetic() -> None:
    """On vector units, and its operands once at the memory's bandwidth; the interval is wide."""
    device = hp.load_device("h100_sxm")
    step = hp.from_torch(lambda x: torch.linalg.svd(x)[1].sum(), MATRICES, train=False)
    result = hp.predict("h100_sxm", step)
    least_s = BATCH * 22 * N**3 / device.peak("fp32", "vector")
    assert result.low_s >= 0.99 * least_s
    assert result.high_s > 10 * result.low_s
    (said,) = [note for note in step.notes if "has no rule" in note]
    assert "aten::_linalg_svd (test_torch_bounds.py:" in said
    assert said.endswith("bounded by the flops of its textbook form")
    assert not result.in_range


def test_a_compiled_step_calls_what_is_unknown_as_it_is() -> None:
    def step(x):
        return (torch.linalg.inv(x * 2) + 1).sum()

    eager, fused = (hp.from_torch(step, MATRICES, train=False, compiled=one) for one in (0, 1))
    alike = [[call.op for call in one.calls if isinstance(call, OpCall) and call.variant == BOUND]
             for one in (eager, fused)]  # fmt: skip
    assert alike[0] == alike[1] != []


def call(name, operands, *results):
    given = tuple(Tensor(shape, dtype) for shape, dtype in operands)
    return TorchCall(name, given, tuple(Tensor(shape, "bf16") for shape in results))


@pytest.mark.parametrize(
    ("operands", "made", "flops"),
    [
        # a product with a matrix, stored either way, with one that is packed, with a batch of them
        ((((64, 256), "bf16"), ((256, 512), "int8")), (64, 512), 2 * 64 * 256 * 512),
        ((((64, 256), "bf16"), ((512, 256), "int8")), (64, 512), 2 * 64 * 256 * 512),
        ((((64, 256), "bf16"), ((64, 4, 32, 2), "int32")), (64, 512), 2 * 64 * 256 * 512),
        ((((4, 64, 32), "bf16"), ((4, 32, 8), "bf16")), (64, 8), 2 * 4 * 64 * 32 * 8),
        # windows of three
        ((((50, 4, 32), "bf16"), ((3, 32, 8), "bf16")), (48, 4, 8), 2 * 50 * 4 * 32 * 8 * 3),
        # a loop
        ((((64, 256), "bf16"), ((256,), "bf16")), (64, 256), 64 * 256),
    ],
)
def test_shapes_of_a_product_have_its_arithmetic(operands, made, flops) -> None:
    (one,) = bound(call("mine::odd", operands, made))
    work = one.op.work()
    assert float(work.flops) == flops
    moved = sum(Tensor(*of).bytes for of in operands) + 2 * math.prod(made)
    assert float(work.bytes) == moved


def test_what_has_no_tensors_has_no_bound() -> None:
    assert bound(TorchCall("mine::odd", (), ())) is None


def test_a_custom_op_is_bounded_by_its_shapes() -> None:
    @torch.library.custom_op("mine::packed_mm", mutates_args=())
    def packed_mm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.to(x.dtype)

    packed_mm.register_fake(lambda x, weight: x.new_empty(x.shape[0], weight.shape[1]))
    weight = torch.zeros(256, 512, dtype=torch.int8)
    step = hp.from_torch(lambda x: packed_mm(x, weight), X, train=False)
    assert step.flops == 2 * 64 * 256 * 512
    assert "mine::packed_mm" in " ".join(step.notes)
    assert hp.predict("h100_sxm", step).time_s > 0


def architectures():
    """(name, step, arguments) of a sample: dense, depthwise, recurrent, attention of kinds, losses
    of kinds, sorts, transforms, linear algebra apart.
    """
    image, words = torch.zeros(2, 8, 32, 32), torch.zeros(2, 16, 64)
    conv = nn.Conv2d
    yield "separable", nn.Sequential(conv(8, 8, 3, groups=8), nn.Hardswish(), conv(8, 4, 1)), image
    yield "transposed", nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.PReLU()), image
    yield "shuffled", nn.Sequential(nn.PixelShuffle(2), nn.Upsample(scale_factor=2)), image
    yield "volume", nn.Conv3d(8, 4, 3, padding=1), image[..., None]
    yield "grouped", nn.GroupNorm(4, 8), image
    yield "local", nn.Sequential(nn.InstanceNorm2d(8), nn.LocalResponseNorm(3)), image
    yield "folded", lambda x: functional.fold(functional.unfold(x, 2), (32, 32), 2), image
    yield (
        "warped",
        lambda x: functional.grid_sample(x, x[:, :2].movedim(1, 3), align_corners=False),
        image,
    )
    yield "encoder", nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), words
    yield "decoder", lambda x: nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)(x, x), words
    yield "lstm", lambda x: nn.LSTM(64, 32, 2, bidirectional=True)(x)[0], words
    yield "gru", lambda x: nn.GRU(64, 32)(x)[0], words
    yield "einsum", lambda x: torch.einsum("bik,bjk->bij", x, x).softmax(-1) @ x, words
    yield "spectral", lambda x: torch.fft.irfft(torch.fft.rfft(x).abs() + 0j), words
    yield "ranked", lambda x: x.sort(-1)[0].cumsum(-1).topk(4)[0], words
    yield "huber", lambda x: functional.huber_loss(x, x.flip(0)), words
    yield "entropy", lambda x: (x.softmax(-1) * x.log_softmax(-1)).sum(-1), words
    yield "contrast", lambda x: functional.cosine_similarity(x[:1], x[1:], -1).logsumexp(-1), words
    yield "glu", nn.Sequential(nn.GLU(), nn.LayerNorm(32), nn.Mish(), nn.Dropout(0.1)), words
    yield "distances", lambda x: torch.cdist(x, x).min(-1)[0], words


def test_a_sample_of_architectures_needs_no_bound() -> None:
    """What is not priced, by name: nothing."""
    unpriced = {}
    for name, step, x in architectures():
        captured = capture(step, (x.requires_grad_(),), name=name)
        for op, calls in priced_ops(captured, frozenset()):
            if any(one.variant == BOUND for one in calls):
                unpriced.setdefault(op.call.kind, []).append(name)
    assert unpriced == {}
