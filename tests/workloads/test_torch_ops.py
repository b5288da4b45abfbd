"""Ops of PyTorch as kernels: by hand, arithmetic as PyTorch counts it, rules of a user's own."""

import math

import pytest
from support.torch_steps import X, as_counted, functional, matrix_ops, nn, torch, works_of

import hybridperf as hp
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
from hybridperf.workloads.programs.ratios import FUSED_ATTENTION
from hybridperf.workloads.programs.torch.calls import Tensor, TorchCall
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.ops import kernels

TWO_PRODUCTS_EACH = 2.0  # gradients of a product, by forward products


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
    # attention that drops is fused on a GPU, and multiplies once again in its backward pass
    again = sum(
        call.op.work().flops * (FUSED_ATTENTION - TWO_PRODUCTS_EACH) for call in calls
        if isinstance(call.op, Attention) and call.times == FUSED_ATTENTION
    )  # fmt: skip
    ours = sum(as_counted(call) for call in calls if call.op.unit == "matrix") - again
    if name in ("lstm", "gru"):  # cuDNN's calls, of which PyTorch counts none on a CPU
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


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (None, 1.0),
        (lambda b, h, i, j: i >= j, 0.5),
        (lambda b, h, i, j: (i >= j) & (i - j < 256), 7 / 32),  # a window of a quarter
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_flexible_attention_skips_what_its_mask_leaves_out(mask, share, compiled) -> None:
    from torch.nn.attention import flex_attention as flex

    attend = torch.compile(flex.flex_attention) if compiled else flex.flex_attention
    q = torch.zeros(2, 8, 1024, 64, dtype=torch.bfloat16, requires_grad=True)
    k = torch.zeros(2, 2, 1024, 64, dtype=torch.bfloat16)
    blocks = mask and flex.create_block_mask(mask, None, None, 1024, 1024, device="cpu")

    def step():
        grouped = {"block_mask": blocks, "enable_gqa": True}
        return attend(q, k, k, lambda score, b, h, i, j: score + i - j, **grouped).sum()

    captured = capture(step, ())
    found = [
        call for one in captured.ops for call in kernels(one.call) or ()
        if isinstance(call.op, Attention)
    ]  # fmt: skip
    assert [call.op for call in found] == 2 * [EncoderAttention("bf16", 2, 1024, 8, 64, 2)]
    times = [share, share * FUSED_ATTENTION]
    assert [call.times for call in found] == [pytest.approx(one, rel=0.01) for one in times]


def test_products_of_odd_widths_are_known() -> None:
    """50257 is no multiple of 8, 50304 is; a number of tokens matters to nobody, and Inductor
    pads.
    """

    def kernels_of(vocabulary: int, tokens: int = 2**14, compiled: bool = False) -> set[str]:
        net = nn.Linear(1024, vocabulary, bias=False, dtype=torch.bfloat16)
        x = torch.zeros(tokens, 1024, dtype=torch.bfloat16, requires_grad=True)
        calls = hp.from_torch(net, x, compiled=compiled).calls
        products = [one for one in calls if isinstance(getattr(one, "op", None), Gemm)]
        assert len(products) == 3
        return {one.kernel for one in products}

    assert kernels_of(50257) == {"rows of 2 bytes"}
    assert kernels_of(50258) == {"rows of 4 bytes"}
    assert kernels_of(50304) == kernels_of(50304, 16383) == kernels_of(50257, compiled=True) == {""}


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


def test_a_complex_number_is_two() -> None:
    x = torch.zeros(64, 128, dtype=torch.complex64)
    ((_, product),) = works_of(lambda x, y: x * y, x, x.clone())
    assert product.bytes == 3 * 8 * 64 * 128
    (*_, (_, line)) = works_of(torch.fft.fft, x)
    assert line.flops == pytest.approx(5 * 64 * 128 * 7, rel=0.2)
    assert line.bytes == 2 * 8 * 64 * 128


def test_a_recurrent_layer_is_one_call_wherever_its_gradients_come_from() -> None:
    """A GRU that writes from the last state of one that reads, an LSTM in fp16, an RNN."""
    reads, writes, halves, plain = (
        nn.GRU(32, 64, batch_first=True, bidirectional=True), nn.GRU(32, 64),
        nn.LSTM(32, 64, 2, dtype=torch.float16, dropout=0.1), nn.RNN(32, 64, nonlinearity="relu"),
    )  # fmt: skip

    def step(x):
        _, last = reads(x)
        (out, _), (half, _), (end, _) = writes(x, last[:1]), halves(x.half()), plain(x)
        return out.sum() + half.float().sum() + end.sum()

    x = torch.zeros(8, 8, 32)
    kinds = [(one.call.kind, one.phase) for one in capture(step, (x,)).ops]
    layer = "hybridperf::recurrent_layer"
    assert kinds.count((layer, "forward")) == kinds.count((f"{layer}_backward", "backward")) == 6
    assert len(kinds) < 200
    net = nn.GRU(32, 64)
    kept = capture(net, (x,), optimizer=torch.optim.SGD).updated
    assert kept == len([*net.parameters()])


def test_a_cell_is_two_products_and_a_loop() -> None:
    for made in (nn.GRUCell(32, 64), nn.LSTMCell(32, 64)):
        h = torch.zeros(8, 64, requires_grad=True)
        states = h if isinstance(made, nn.GRUCell) else (h, h)
        works = works_of(lambda x, made=made, states=states: made(x, states), torch.zeros(8, 32))
        assert len(works) == 3
        gates = len(made.weight_ih)
        assert sum(work.flops for _, work in works) == pytest.approx(
            2 * 8 * gates * (32 + 64) + 5 * 8 * gates, rel=0.01
        )


def less_common(x):
    """Ops that few programs have, with their gradients."""
    q, k, v = (one.view(64, 4, 64) for one in (x, x + 1, x * 2))
    seen = [
        functional.glu(x), functional.prelu(x, x[0, :1]), functional.softshrink(x),
        functional.celu(x), functional.pixel_shuffle(x.view(1, 16, 32, 32), 2),
        functional.unfold(x.view(1, 16, 32, 32), 3), torch.cdist(x, x), torch.trace(x),
        functional.adaptive_max_pool2d(x.view(1, 16, 32, 32), 4), torch.median(x, -1).values,
        torch.searchsorted(x.detach(), x.detach()), torch.cummax(x, 1).values,
        functional.soft_margin_loss(x, x.detach()), functional.gaussian_nll_loss(x, x, x.abs() + 1),
        torch.complex(x, x) @ torch.complex(x.t(), x.t()),
        *torch.func.jvp(torch.tanh, (x,), (x,)),
        torch.ops.torch_attn._varlen_attn(q, k, v, torch.arange(3), torch.arange(3), 32, 32)[0],
    ]  # fmt: skip
    return sum((one.abs() if one.is_complex() else one).sum() for one in seen)


def test_less_common_ops_have_a_price() -> None:
    import torch.nn.attention.varlen

    assert hp.from_torch(less_common, torch.zeros(64, 256, requires_grad=True)).flops > 0
    turned = torch.zeros(64, 256, dtype=torch.complex64)
    (op,) = matrix_ops(capture(lambda x: x @ x.t(), (turned,), train=False), "forward")
    assert op.work().flops == 4 * 2 * 64 * 64 * 256


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
        (lambda own: torch.optim.Adam(own, fused=True, amsgrad=True), 9),
    ],
)
def test_fused_updates_move_what_they_hold(made, moved) -> None:
    net = nn.Linear(1024, 1024, bias=False)
    works = works_of(net, torch.zeros(8, 1024), optimizer=made, train=True)
    updates = sum(work.bytes for phase, work in works if phase == "optimizer")
    assert updates == pytest.approx(moved * 4 * 1024**2)


def test_products_in_single_precision_are_as_pytorch_is_told() -> None:
    """TF32's where that is allowed and a device has it."""
    net, x = nn.Linear(4096, 4096), torch.zeros(8192, 4096)
    plain = hp.from_torch(net, x, train=False)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        allowed = hp.from_torch(net, x, train=False)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False

    def times(gpu):
        return [hp.predict(gpu, step).time_s for step in (plain, allowed)]

    exact_s, rounded_s = times("a100_sxm_80gb")
    assert rounded_s < exact_s / 3
    exact_s, same_s = times("v100_sxm2")
    assert same_s == exact_s


def test_a_custom_op_is_priced_by_a_rule_of_its_own() -> None:
    @torch.library.custom_op("mine::normed", mutates_args=())
    def normed(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    normed.register_fake(torch.empty_like)
    (note,) = hp.from_torch(lambda x: normed(x), X, train=False).notes
    assert note.startswith("mine::normed (test_torch_ops.py:")
    assert "has no rule (hp.price_torch_op gives one)" in note
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


def test_a_root_mean_square_norm_is_one_kernel_on_gpus() -> None:
    """A CPU takes it apart; the gradient is a kernel, and one that sums the scale's over rows."""
    norm = nn.RMSNorm(64, dtype=torch.bfloat16)
    x = torch.zeros(128, 64, dtype=torch.bfloat16, requires_grad=True)

    def step(x):
        y = norm(x)
        y.backward(torch.ones_like(y))
        return y.detach()

    found = [one for one in capture(step, (x,)).ops if "rms_norm" in one.call.kind]
    assert [one.phase for one in found] == ["forward", "backward"]
    (forward,), backward = kernels(found[0].call), kernels(found[1].call)
    assert forward.op == RmsNorm("bf16", 128.0, 64.0)
    moved = [one.op.work().bytes for one in backward]
    assert moved == [3 * x.nbytes, 2 * x.nbytes + 2 * 64 * 2]
    taken_apart = capture(step, (x,), backend="cpu").ops
    assert not any("rms_norm" in one.call.kind for one in taken_apart)
    assert any(one.call.kind == "aten::rsqrt" for one in taken_apart)


def test_the_last_ops_of_published_models_have_a_price() -> None:
    """HaloNet's and Hiera's gradients in training, and a check that costs nothing."""
    windows, image = Tensor((4, 64, 8, 8, 3), "fp16"), Tensor((4, 64, 10, 10), "fp16")
    small = Tensor((4, 64, 8, 8), "fp16")
    for kind, read in (("unfold_backward", windows), ("_upsample_bicubic2d_aa_backward", small)):
        found = kernels(TorchCall(f"aten::{kind}", (read,), (image,)))
        assert found is not None
        (call,) = found
        assert float(call.op.work().bytes) == read.bytes + image.bytes
    assert kernels(TorchCall("aten::_assert_async", (Tensor((), "bool"),))) == ()
