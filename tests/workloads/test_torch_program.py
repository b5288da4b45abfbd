"""PyTorch programs become workloads: kernels by hand, memory by hand and as PyTorch counts it,
arithmetic as PyTorch counts it, and what a program does that cannot be followed.
"""

import math

import pytest

import hybridperf as hp
from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io import InputError
from hybridperf.ops import (
    Convolution,
    EncoderAttention,
    Gemm,
    OpCall,
    PrefillAttention,
    RmsNorm,
    ScatterAdd,
)
from hybridperf.ops.attention import Attention
from hybridperf.workloads.ratios import FUSED_ATTENTION
from hybridperf.workloads.torch.capture import capture
from hybridperf.workloads.torch.fusion import fused
from hybridperf.workloads.torch.ops import kernels
from hybridperf.workloads.torch.program import priced_ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
nn, functional = torch.nn, torch.nn.functional


def matrix_ops(captured, phase):
    """Products, convolutions and attention of a phase, in order."""
    calls = [call for one in captured.ops if one.phase == phase for call in kernels(one.call) or ()]
    return [call.op for call in calls if call.op.unit == "matrix"]


class Mlp(nn.Module):
    """Two layers and a loss."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.first = nn.Linear(256, 1024, dtype=dtype)
        self.second = nn.Linear(1024, 16, dtype=dtype)

    def forward(self, x, target):
        return functional.cross_entropy(self.second(torch.relu(self.first(x))).float(), target)


X, TARGET = torch.zeros(64, 256, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.long)


def test_products_of_a_step_by_hand() -> None:
    captured = capture(Mlp(), (X, TARGET), optimizer=torch.optim.AdamW)
    assert matrix_ops(captured, "forward") == [
        Gemm("bf16", 64, 1024, 256, bias=1.0), Gemm("bf16", 64, 16, 1024, bias=1.0)
    ]  # fmt: skip
    assert matrix_ops(captured, "backward") == [
        Gemm("bf16", 64, 1024, 16), Gemm("bf16", 16, 1024, 64), Gemm("bf16", 1024, 256, 64)
    ]  # fmt: skip
    assert captured.parameters == 256 * 1024 + 1024 + 1024 * 16 + 16
    assert {one.phase for one in captured.ops} == {"forward", "backward", "optimizer"}
    assert captured.ops[0].where.startswith(__file__)
    # nothing of the given tensors is touched, and nothing of the module's is trained
    assert type(X) is torch.Tensor


def test_a_step_on_a_gpu_is_predicted_and_takes_longer_with_more_to_do() -> None:
    def seconds(rows: int, **options: object) -> float:
        x = torch.zeros(rows, 256, dtype=torch.bfloat16)
        target = torch.zeros(rows, dtype=torch.long)
        return hp.predict("h100_sxm", hp.from_torch(Mlp(), x, target, **options)).time_s

    inference = seconds(2**16, train=False)
    step = seconds(2**16)
    assert inference < step / 2
    assert step < seconds(2**16, optimizer=torch.optim.AdamW) < 2 * step
    assert seconds(2**18) > 2 * step


def test_memory_by_hand() -> None:
    """Weights, their gradients and two moments of AdamW; the input; two numbers per activation."""
    n = 4096
    net = nn.Linear(n, n, bias=False)
    x = torch.zeros(512, n)
    captured = capture(lambda x: net(x).sum(), (x,), optimizer=torch.optim.AdamW(net.parameters()))
    held = 4 * (4 * n * n + 512 * n)
    assert held < captured.peak_bytes < 1.6 * held  # and what the update makes besides
    without = capture(lambda x: net(x).sum(), (x,), train=False)
    assert without.peak_bytes == pytest.approx(4 * (n * n + 2 * 512 * n), rel=1e-3)


def test_memory_as_pytorch_allocates_it() -> None:
    """Against the profiler of a real run on this CPU, without weights and inputs."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6)))
    x = torch.randn(256, 512)
    net(x).sum().backward()
    net.zero_grad(set_to_none=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        net(x).sum().backward()
    alive = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    net.zero_grad(set_to_none=True)
    captured = capture(lambda x: net(x).sum(), (x,))
    weights = sum(one.numel() * 4 for one in net.parameters()) + x.numel() * 4
    assert captured.peak_bytes - weights == pytest.approx(most, rel=0.08)


def small_models():
    """(name, module, arguments) of plain PyTorch."""
    images = torch.zeros(2, 3, 64, 64)
    tokens = torch.zeros(2, 32, 64)
    yield "cnn", nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10),
    ), (images,)  # fmt: skip
    yield "encoder", nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), (tokens,)
    yield "lstm", nn.LSTM(64, 128, num_layers=2, batch_first=True), (tokens,)
    yield "gru", nn.GRU(64, 128, batch_first=True), (tokens,)
    yield (
        "group norm",
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.GroupNorm(8, 32), nn.SiLU()),
        (images,),
    )
    yield (
        "up",
        nn.Sequential(nn.ConvTranspose2d(3, 8, 4, stride=2), nn.Upsample(scale_factor=2)),
        (images,),
    )
    yield "conv1d", nn.Sequential(nn.Conv1d(32, 64, 3), nn.GELU(), nn.Dropout(0.1)), (tokens,)
    yield "bags", nn.EmbeddingBag(1000, 32, mode="sum"), (torch.zeros(16, 8, dtype=torch.long),)
    yield "embedding", nn.Embedding(1000, 32), (torch.zeros(16, 8, dtype=torch.long),)


@pytest.mark.parametrize("at", range(9))
def test_arithmetic_as_pytorch_counts_it(at) -> None:
    """Every op priced; products, convolutions, attention as `torch.utils.flop_counter` has them."""
    from torch.utils.flop_counter import FlopCounterMode

    name, net, args = list(small_models())[at]

    def step(*args):
        result = net(*args)
        return (result[0] if isinstance(result, tuple) else result).sum()

    captured = capture(step, args, name=name)
    assert [one.call.kind for one in captured.ops if kernels(one.call) is None] == []
    counter = FlopCounterMode(display=False)
    with counter:
        step(*args).backward()
    calls = [call for one in captured.ops for call in kernels(one.call) or ()]
    ours = sum(call.op.work().flops * call.times for call in calls if call.op.unit == "matrix")
    if name == "lstm":  # which PyTorch does not count on a CPU
        weights = sum(one.numel() for one in net.parameters() if one.dim() == 2)
        assert ours == pytest.approx(3 * 2 * 64 * weights, rel=0.01)
    else:
        assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_attention_is_told_by_its_mask() -> None:
    q = torch.zeros(2, 8, 128, 64, dtype=torch.bfloat16, requires_grad=True)
    k = torch.zeros(2, 8, 256, 64, dtype=torch.bfloat16)

    def attend(keys, **options):
        captured = capture(
            lambda: functional.scaled_dot_product_attention(q, keys, keys, **options).sum(), ()
        )
        (forward,) = matrix_ops(captured, "forward")
        (back,) = [
            call for one in captured.ops if one.phase == "backward" for call in kernels(one.call)
            if isinstance(call.op, Attention)
        ]  # fmt: skip
        assert back.times == FUSED_ATTENTION
        return forward

    own = q.detach()
    assert attend(own, is_causal=True) == PrefillAttention("bf16", 2, 128, 8, 64, 8, kv_len=128)
    assert attend(own) == attend(own, dropout_p=0.1) == EncoderAttention("bf16", 2, 128, 8, 64, 8)
    assert attend(k) == PrefillAttention("bf16", 2, 128, 8, 64, 8, kv_len=256, causal=0.0)


def test_a_function_that_does_the_whole_step_is_followed() -> None:
    net = Mlp()
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)

    def step(x, target):
        loss = net(x, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    whole = capture(step, (X, TARGET))
    parts = capture(Mlp(), (X, TARGET), optimizer=lambda own: torch.optim.SGD(own, momentum=0.9))
    for phase in ("forward", "backward"):
        assert matrix_ops(whole, phase) == matrix_ops(parts, phase)
    updates = [
        [one.call.kind for one in each.ops if one.phase == "optimizer"] for each in (whole, parts)
    ]
    assert updates[0] == updates[1] != []
    assert all(type(one) is nn.Parameter and one.grad is None for one in net.parameters())


def test_words_of_cuda_are_understood_without_it() -> None:
    def step():
        net = Mlp(torch.float32).cuda()
        x = torch.zeros(64, 256, device="cuda:0")
        with torch.autocast("cuda", torch.bfloat16):
            return net(x, torch.zeros(64, dtype=torch.long, device=torch.device("cuda")).to("cuda"))

    products = matrix_ops(capture(step, ()), "forward")
    assert [op.dtype for op in products] == ["bf16", "bf16"]


def test_tied_weights_stay_one_when_they_are_converted() -> None:
    with hp.without_memory():
        net = nn.Module()
        net.embedding, net.head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
        net.head.weight = net.embedding.weight
        net.to("cuda", torch.bfloat16)
        assert net.head.weight is net.embedding.weight
        assert net.head.weight.dtype == torch.bfloat16
        assert len(list(net.parameters())) == 1


def test_a_model_larger_than_any_memory() -> None:
    with hp.without_memory():
        net = nn.Sequential(*(nn.Linear(2**17, 2**17, dtype=torch.bfloat16) for _ in range(4)))
    step = hp.from_torch(net, torch.zeros(8, 2**17, dtype=torch.bfloat16), train=False)
    assert step.peak_memory.bytes > 4 * 2**34 * DTYPE_BYTES["bf16"]
    assert "does not fit" in " ".join(hp.predict("h100_sxm", step).notes)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "a number is read from a tensor"),
        (lambda x: x[x > 0].sum(), "the size of a result depends on numbers"),
        (
            lambda x: torch.linalg.svd(x.float())[1].sum(),
            "cannot price 1 kind(s) of op: aten::_lin",
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

    with pytest.raises(InputError, match=r"test_torch_program\.py line .*on a GPU only"):
        hp.from_torch(step, X, train=False)


def test_what_a_module_and_an_optimizer_hold_besides_parameters_is_replaced() -> None:
    net = Mlp()
    net.scale = torch.ones(256, dtype=torch.bfloat16)  # neither parameter nor buffer
    optimizer = torch.optim.AdamW(net.parameters())
    net(X, TARGET).backward()
    optimizer.step()
    begun, new = (
        capture(net, (X, TARGET), optimizer=one) for one in (optimizer, torch.optim.AdamW)
    )
    assert [one.call.kind for one in begun.ops] == [one.call.kind for one in new.ops]


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


def test_a_loss_that_is_none_is_said() -> None:
    step = hp.from_torch(nn.Linear(256, 4, dtype=torch.bfloat16), X)
    assert "which is no loss" in " ".join(step.notes)


def test_products_of_odd_widths_are_known() -> None:
    """50257 is no multiple of 8, 50304 is; a number of tokens matters to nobody."""

    def seconds(vocabulary: int, tokens: int = 2**14) -> float:
        net = nn.Linear(1024, vocabulary, bias=False, dtype=torch.bfloat16)
        x = torch.zeros(tokens, 1024, dtype=torch.bfloat16, requires_grad=True)
        roles = [one.role for one in hp.from_torch(net, x).in_step.places]
        return roles.count("misaligned_gemm")

    assert seconds(50257) == 3
    assert seconds(50304) == seconds(50304, 16383) == 0


def test_convolutions_have_their_groups() -> None:
    net = nn.Conv2d(32, 32, 3, padding=1, groups=32)
    captured = capture(lambda x: net(x).sum(), (torch.zeros(4, 32, 56, 56),))
    (forward,) = matrix_ops(captured, "forward")
    assert forward == Convolution("fp32", 4, 32, 32, 56, 56, 3, kw=3, w_in=56, w_out=56, groups=32)
    assert math.isclose(forward.work().flops, 2 * 4 * 32 * 56 * 56 * 9)


def test_convolutions_of_videos_as_pytorch_counts_them() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    net, video = nn.Conv3d(4, 8, 3, stride=2), torch.zeros(2, 4, 9, 17, 17, requires_grad=True)
    captured = capture(lambda x: net(x).sum(), (video,))
    with FlopCounterMode(display=False) as counter:
        net(video).sum().backward()
    found = [op for phase in ("forward", "backward") for op in matrix_ops(captured, phase)]
    assert sum(op.work().flops for op in found) == counter.get_total_flops()
    assert found[0].work().bytes == 4 * (2 * 4 * 9 * 17**2 + 8 * 4 * 27 + 2 * 8 * 4 * 8 * 8)


def works_of(step, *args, **options):
    """Of all kernels of a step, those of a forward pass alone unless told otherwise."""
    captured = capture(step, args, **({"train": False} | options))
    return [(op.phase, call.op.work()) for op, calls in priced_ops(captured, frozenset())
            for call in calls]  # fmt: skip


def test_a_complex_number_is_two() -> None:
    x = torch.zeros(64, 128, dtype=torch.complex64)
    ((_, product),) = works_of(lambda x, y: x * y, x, x.clone())
    assert product.bytes == 3 * 8 * 64 * 128
    (*_, (_, line)) = works_of(torch.fft.fft, x)
    assert line.flops == pytest.approx(5 * 64 * 128 * 7, rel=0.2)
    assert line.bytes == 2 * 8 * 64 * 128


def test_sampling_and_losses_of_logits_are_some_loops() -> None:
    x, labels = torch.zeros(64, 1000), torch.zeros(64, 1000)
    size = 4 * 64 * 1000
    sampled = works_of(lambda x: torch.multinomial(x, 1), x)
    assert sum(work.bytes for _, work in sampled) == pytest.approx(5 * size, rel=0.01)
    lost = works_of(functional.binary_cross_entropy_with_logits, x, labels)
    # two of one tensor into another, two of two, a sum
    assert sum(work.bytes for _, work in lost) == pytest.approx(
        (2 * 2 + 2 * 3 + 1) * size, rel=0.01
    )


@pytest.mark.parametrize(
    ("kind", "scattered"),
    [
        ("scatter_reduce", ScatterAdd("fp32", 5000 * 16, 1, 100 * 16)),
        ("index_reduce", ScatterAdd("fp32", 5000, 16, 100)),
    ],
)
def test_messages_of_a_graph_are_scattered(kind, scattered) -> None:
    edges = torch.zeros(5000, dtype=torch.long)
    index = edges[:, None].expand(5000, 16) if kind == "scatter_reduce" else edges
    messages = torch.zeros(5000, 16)
    step = hp.from_torch(
        lambda m: getattr(m.new_zeros(100, 16), kind)(0, index, m, "amax"), messages, train=False
    )
    assert scattered in {call.op for call in step.calls if isinstance(call, OpCall)}


@pytest.mark.parametrize(
    ("made", "moved"),
    [
        (lambda own: torch.optim.SGD(own, fused=True), 3),
        (lambda own: torch.optim.SGD(own, momentum=0.9, fused=True), 5),
        (lambda own: torch.optim.Adagrad(own, fused=True), 5),
        (lambda own: torch.optim.Adam(own, fused=True), 7),
    ],
)
def test_fused_updates_move_what_they_hold(made, moved) -> None:
    net = nn.Linear(1024, 1024, bias=False)
    works = works_of(net, torch.zeros(8, 1024), optimizer=made, train=True)
    updates = sum(work.bytes for phase, work in works if phase == "optimizer")
    assert updates == pytest.approx(moved * 4 * 1024**2)


@pytest.mark.parametrize("kind", ["Adafactor", "ASGD"])
def test_numbers_that_an_optimizer_reads_do_not_matter(kind) -> None:
    updated = hp.from_torch(Mlp(), X, TARGET, optimizer=getattr(torch.optim, kind))
    assert any(one.role == "optimizer" for one in updated.in_step.places)


# --- compiled -------------------------------------------------------------------------------------


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


def test_the_optimizer_is_not_compiled() -> None:
    whole = hp.from_torch(Mlp(), X, TARGET, optimizer=torch.optim.AdamW, compiled=True)
    assert sum(one.role == "optimizer" for one in whole.in_step.places) > 3


def test_a_custom_op_is_priced_by_a_rule_of_its_own() -> None:
    @torch.library.custom_op("mine::normed", mutates_args=())
    def normed(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    normed.register_fake(torch.empty_like)
    with pytest.raises(InputError, match=r"cannot price .* mine::normed .*hp\.price_torch_op"):
        hp.from_torch(lambda x: normed(x), X, train=False)
    hp.price_torch_op(
        "mine::normed", lambda call: (RmsNorm(call.made.dtype, *map(float, call.made.shape)),)
    )
    step = hp.from_torch(lambda x: normed(x), X, train=False)
    assert [call.op for call in step.calls if isinstance(call, OpCall)] == [
        RmsNorm("bf16", 64, 256)
    ]
    for known in ("mine::normed", "aten::mm"):
        with pytest.raises(InputError, match="which has one"):
            hp.price_torch_op(known, lambda call: ())
