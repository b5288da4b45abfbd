"""PyTorch programs become workloads: steps that a user writes, memory by hand and as PyTorch counts
it, and what a program does that cannot be followed.
"""

import contextlib
import functools
import inspect
from collections import deque

import pytest
from support.torch_steps import TARGET, Mlp, X, functional, matrix_ops, nn, torch

import hybridperf as hp
from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Gemm
from hybridperf.workloads.programs.torch.capture import Captured, capture
from hybridperf.workloads.programs.torch.ops import kernels
from hybridperf.workloads.programs.torch.results import Results


def test_products_of_a_step_by_hand() -> None:
    captured = capture(Mlp(), (X, TARGET), optimizer=torch.optim.AdamW)
    assert matrix_ops(captured, "forward") == [
        Gemm("bf16", 64, 1024, 256, bias=1.0), Gemm("bf16", 64, 16, 1024, bias=1.0)
    ]  # fmt: skip
    assert matrix_ops(captured, "backward") == [
        Gemm("bf16", 64, 1024, 16), Gemm("bf16", 16, 1024, 64), Gemm("bf16", 1024, 256, 64)
    ]  # fmt: skip
    assert {one.phase for one in captured.ops} == {"forward", "backward", "optimizer"}
    assert captured.ops[0].where.startswith(inspect.getfile(Mlp))
    # nothing of the given tensors is touched, and nothing of the module's is trained
    assert type(X) is torch.Tensor


def test_a_step_on_a_gpu_is_predicted_and_takes_longer_with_more_to_do() -> None:
    def seconds(rows: int, **options: object) -> float:
        x = torch.zeros(rows, 256, dtype=torch.bfloat16)
        target = torch.zeros(rows, dtype=torch.long)
        return hp.predict("h100_sxm", hp.from_torch(Mlp(), x, target, **options)).time_s

    inference = seconds(2**19, train=False)
    step = seconds(2**19)
    assert inference < step / 2
    assert step < seconds(2**19, optimizer=torch.optim.AdamW) < 2 * step
    assert seconds(2**21) > 2 * step


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


@pytest.mark.parametrize("scale", [None, 0.25])
def test_a_loss_that_is_returned_to_be_logged_has_its_gradients(scale) -> None:
    net = Mlp()

    def step(x, target, logged):
        loss = net(x, target)
        (loss if scale is None else loss * scale).backward()
        return loss if logged else loss.detach()

    for logged in (True, False):
        captured = capture(step, (X, TARGET, logged))
        assert len(matrix_ops(captured, "backward")) == 3
        assert captured.notes == ()


def test_words_of_cuda_are_understood_without_it() -> None:
    def step():
        net = Mlp(torch.float32).cuda()
        x = torch.zeros(64, 256, device="cuda:0")
        with torch.autocast("cuda", torch.bfloat16):
            return net(x, torch.zeros(64, dtype=torch.long, device=torch.device("cuda")).to("cuda"))

    products = matrix_ops(capture(step, ()), "forward")
    assert [op.dtype for op in products] == ["bf16", "bf16"]


def test_autocast_of_a_gpu_widens_what_the_host_would_not() -> None:
    """Norms, softmax, powers and resized images run in single precision there, sums write it."""

    def made(device, enabled=True):
        x = torch.zeros(2, 8, 4, 4, dtype=torch.bfloat16)

        def step(x):
            with torch.autocast(device, torch.bfloat16, enabled=enabled):
                return [
                    functional.group_norm(x, 2), torch.softmax(x, -1), x.pow(2), x**2, x.sum(),
                    functional.interpolate(x, scale_factor=2), functional.silu(x), x + x,
                ]  # fmt: skip

        ops = capture(step, (x,), train=False).ops
        return {
            op.call.kind.removeprefix("aten::"): op.call.written[0].dtype
            for op in ops
            if op.call.kind != "aten::_to_copy"
        }

    plain = dict.fromkeys(made("cuda", enabled=False), "bf16")
    wide = ("native_group_norm", "_softmax", "pow", "sum", "upsample_nearest2d")
    assert made("cuda", enabled=False) == plain
    assert made("cuda") == plain | dict.fromkeys(wide, "fp32")
    with hp.without_memory():
        assert made("cuda")["native_group_norm"] == "fp32"
    assert made("cpu")["native_group_norm"] == "bf16"


def test_autocast_leaves_a_format_that_is_asked_for() -> None:
    def step(x):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.softmax(x, -1, torch.bfloat16), x.sum(dtype=torch.bfloat16)

    x = torch.zeros(8, 4, dtype=torch.bfloat16)
    written = [op.call.written[0].dtype for op in capture(step, (x,), train=False).ops]
    assert written == ["bf16", "bf16"]


def test_tied_weights_stay_one_when_they_are_converted() -> None:
    with hp.without_memory():
        net = nn.Module()
        net.embedding, net.head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
        net.head.weight = net.embedding.weight
        net.to("cuda", torch.bfloat16)
        assert net.head.weight is net.embedding.weight
        assert net.head.weight.dtype == torch.bfloat16
        assert len(list(net.parameters())) == 1


def test_numbers_that_a_model_is_built_of_are_read_wherever_they_are_given() -> None:
    """A few made by `linspace` stay numbers, alone or in a list; not with what has no memory."""

    def step(x):
        rates = torch.linspace(0, 0.5, 4)
        first, *_, last = torch.stack([torch.mul(input=rates, other=2), rates]).flatten()
        kept = torch.mul(rates, other=x[:, :4]) if float(last) == 0.5 else x[:, :0]
        return kept * float(first)

    written = capture(step, (X,), train=False).ops[-1].call.written
    assert [one.shape for one in written] == [(64, 4)]


def test_a_model_larger_than_any_memory() -> None:
    with hp.without_memory():
        net = nn.Sequential(*(nn.Linear(2**17, 2**17, dtype=torch.bfloat16) for _ in range(4)))
    step = hp.from_torch(net, torch.zeros(8, 2**17, dtype=torch.bfloat16), train=False)
    assert step.peak_memory.bytes > 4 * 2**34 * DTYPE_BYTES["bf16"]
    assert "does not fit" in " ".join(hp.predict("h100_sxm", step).notes)


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


def test_a_loss_that_is_none_is_said() -> None:
    step = hp.from_torch(nn.Linear(256, 4, dtype=torch.bfloat16), X)
    assert "which is no loss" in " ".join(step.notes)


@pytest.mark.parametrize("kind", ["Adafactor", "ASGD"])
def test_numbers_that_an_optimizer_reads_do_not_matter(kind) -> None:
    updated = hp.from_torch(Mlp(), X, TARGET, optimizer=getattr(torch.optim, kind))
    assert any(one.role == "optimizer" for one in updated.in_step.places)


def test_the_optimizer_is_not_compiled() -> None:
    whole = hp.from_torch(Mlp(), X, TARGET, optimizer=torch.optim.AdamW, compiled=True)
    assert sum(one.role == "optimizer" for one in whole.in_step.places) > 3


def average_of_weights():
    """An average of a module's parameters, which counts its updates."""
    net = nn.Linear(256, 256, dtype=torch.bfloat16)
    average = torch.optim.swa_utils.AveragedModel(net)

    def step(x):
        net(x).sum().backward()
        average.update_parameters(net)

    return step, "aten::copy_"


def shuffled_batches():
    """Samples in random order: their numbers are the host's."""
    net = nn.Linear(256, 256, dtype=torch.bfloat16)
    data = torch.utils.data.TensorDataset(torch.zeros(256, 256, dtype=torch.bfloat16))
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    return lambda _: net(next(iter(batches))[0]).sum(), "aten::addmm"


def scaled_loss():
    """Gradients divided by the scale again, looked through, and the update made."""
    net = nn.Linear(256, 256, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
    scaler = torch.amp.GradScaler("cuda")

    def step(x):
        scaler.scale(net(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, "aten::_amp_foreach_non_finite_check_and_unscale_"


def masked_encoder():
    """In evaluation PyTorch asks whether the padding comes last."""
    layer = nn.TransformerEncoderLayer(256, 4, batch_first=True, dtype=torch.bfloat16)
    net = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.zeros(64, 16, dtype=torch.bool)
    return (
        lambda x: net(x[:, None].expand(64, 16, 256), src_key_padding_mask=padding),
        "aten::_nested_tensor_from_mask_left_aligned",
    )


@pytest.mark.parametrize(
    "made", [average_of_weights, shuffled_batches, scaled_loss, masked_encoder]
)
def test_numbers_that_pytorch_reads_itself_do_not_matter(made) -> None:
    """Built with memory (a scaler without, which PyTorch disables else), and captured whole."""
    with hp.without_memory() if made is scaled_loss else contextlib.nullcontext():
        step, kind = made()
    captured = capture(step, (X,), train=made is not masked_encoder)
    assert [one.call.kind for one in captured.ops if kernels(one.call) is None] == []
    assert kind in [one.call.kind for one in captured.ops]
    assert not captured.notes


def test_a_mask_that_nn_transformer_asks_about_counts_as_causal() -> None:
    net = nn.Transformer(64, 4, 1, 1, 128, batch_first=True)
    x, mask = torch.zeros(4, 16, 64), nn.Transformer.generate_square_subsequent_mask(16)
    notes = capture(lambda x: net(x, x, tgt_mask=mask).sum(), (x,)).notes
    assert [note for note in notes if "count as causal" in note]


def test_a_program_that_compiles_itself_is_taken_op_by_op_and_says_so() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    net.compile(mode="max-autotune", fullgraph=True)
    plain, fused = (hp.from_torch(net, torch.zeros(8, 64), compiled=one) for one in (False, True))
    said = ["compiled=True" in " ".join(one.notes) for one in (plain, fused)]
    assert said == [True, False]


def test_a_disabled_scaler_is_said() -> None:
    with pytest.warns(UserWarning, match="GradScaler is enabled, but CUDA is not available"):
        scaler = torch.amp.GradScaler("cuda")
    step = hp.from_torch(lambda x: scaler.scale(x.sum()), X, train=False)
    assert "a GradScaler is disabled" in " ".join(step.notes)


def test_arguments_go_by_name_too() -> None:
    step = hp.from_torch(Mlp(), X, kwargs={"target": TARGET})
    assert step.flops == hp.from_torch(Mlp(), X, TARGET).flops


def test_weights_made_without_memory_are_counted_once() -> None:
    """A product reads a turned view of its weights, which are no other memory."""
    with hp.without_memory():
        net, x = nn.Linear(1024, 4096, bias=False), torch.zeros(2, 1024)
    program = hp.from_torch(net, x, train=False)
    assert program.peak_memory.bytes == pytest.approx(4 * 1024 * 4096, rel=0.01)


def test_remembered_results_are_those_of_pytorchs_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, orders, storages and memory of a step, asked each time or made from the first."""
    with hp.without_memory():
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 4, 4), torch.nn.Flatten(2))
        layer = functools.partial(torch.nn.TransformerEncoderLayer, 32, 4, 64, batch_first=True)
        blocks = torch.nn.Sequential(*(layer() for _ in range(3)))
        images = torch.empty(2, 3, 16, 16).to(memory_format=torch.channels_last)
        update = torch.optim.AdamW([*net.parameters(), *blocks.parameters()])

        def step(images: torch.Tensor) -> None:
            words = net(images).transpose(1, 2)
            blocks(words + words[:, :1].expand_as(words)).float().square().mean().backward()
            update.step()
            update.zero_grad()

        step(images)
        remembered = capture(step, (images,))
        monkeypatch.setattr(Results, "of", lambda _, func, args, kwargs: func(*args, **kwargs))
        asked = capture(step, (images,))
    taken = [[op.call._replace(values=()) for op in one.ops] for one in (remembered, asked)]
    assert taken[0] == taken[1]
    assert remembered.kept_bytes == asked.kept_bytes
    assert remembered.peak_bytes == asked.peak_bytes


def test_a_remembered_result_lies_on_the_device_of_what_the_op_takes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    results, times = Results(torch), torch.ops.aten.mul.Tensor
    with FakeTensorMode(allow_non_fake_inputs=True):
        for device in ("cpu", "meta", "cpu"):
            given = torch.empty(4, device=device)
            assert results.of(times, (given, given), {}).device.type == device


def test_a_step_may_close_over_a_name_that_is_bound_later() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x if x.dim() else scale(x)

    with hp.without_memory():
        x = torch.empty(8, 8)
    assert not capture(step, (x,)).ops
    if x.dim() > 2:
        scale = torch.relu


def test_a_step_runs_once_unless_it_begins_with_the_gradients_it_leaves() -> None:
    """An optimizer's states count from the beginning; what is left is added to."""

    def captured(zeroed: str) -> tuple[Captured, int]:
        with hp.without_memory():
            net = torch.nn.Linear(64, 64, bias=False)
            update, x = torch.optim.AdamW(net.parameters()), torch.empty(8, 64)
        passed = deque[str]()  # a list would be replaced, too

        def step() -> None:
            if zeroed == "first":
                update.zero_grad()
            passed.append(zeroed)
            net(x).square().mean().backward()
            update.step()
            if zeroed == "last":
                update.zero_grad()

        return capture(step, ()), len(passed)

    found = [captured(zeroed) for zeroed in ("first", "last", "never")]
    kinds = [[op.call.kind for op in one.ops if op.phase != "optimizer"] for one, _ in found]
    times = [passed for _, passed in found]
    peaks = [one.peak_bytes for one, _ in found]
    assert times[1] == 1
    assert times[2] == 2
    assert kinds[0] == kinds[1]
    assert "aten::add_" in kinds[2]
    assert "aten::add_" not in kinds[1]
    weights_bytes = 4.0 * 64 * 64
    assert peaks[0] >= 4 * weights_bytes  # weights, gradients, two moments
