"""Saved programs (.pt2): as the program itself, read without PyTorch, and what is refused."""

import io
import json
import os
import subprocess
import sys
import warnings
import zipfile

import pytest
from support.plain_models import PLAIN
from support.torch_steps import Mlp, functional, nn, torch

import hybridperf as hp
from hybridperf.workloads.programs.torch import pt2
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.exported import exported
from hybridperf.workloads.programs.torch.program import priced_ops, workload_of
from hybridperf.workloads.programs.torch.record import OPTIMIZER

# a copy of what is turned before a layer reads it is written by `lstm` itself; how `one_hot` and
# heads of attention are written depends on the machine
_NEARLY = {"recurrent_language_model": 0.06, "mixture_of_experts": 0.05, "diffusion_network": 0.08}


class Whole(nn.Module):
    """A step as a module with the parameters that it uses."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        for at, cell in enumerate(step.__closure__ or ()):
            if isinstance(cell.cell_contents, nn.Module):
                self.add_module(f"part{at}", cell.cell_contents)

    def forward(self, *args):
        return self.step(*args)


def saved(module, args, folder, **options):
    path = folder / "program.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, args, **options), path)
    return path


def kernels_of(captured):
    return sorted(
        (type(one.op).__name__, one.op.work().flops, one.times)
        for _, calls in priced_ops(captured, frozenset()) for one in calls
    )  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_saved_program_is_the_program(name, tmp_path) -> None:
    step, args = PLAIN[name]()
    read = exported(saved(Whole(step), args, tmp_path))
    with hp.without_memory():
        step, args = PLAIN[name]()
        run = capture(Whole(step), args, train=False)
    run_s, read_s = (hp.predict("h100_sxm", workload_of(one)).time_s for one in (run, read))
    assert workload_of(read).flops == pytest.approx(workload_of(run).flops, rel=1e-3)
    if name not in _NEARLY:
        assert kernels_of(read) == kernels_of(run)
    assert read_s == pytest.approx(run_s, rel=_NEARLY.get(name, 1e-6))
    assert read.kept_bytes == pytest.approx(run.kept_bytes, rel=0.01)
    assert read.peak_bytes <= run.peak_bytes + 512  # of a block


class Cells(nn.Module):
    """Cells, token by token, a Fourier transform, and products of three tensors."""

    def __init__(self):
        super().__init__()
        self.long, self.gated = nn.LSTMCell(32, 64), nn.GRUCell(64, 64)

    def forward(self, x):
        h = c = torch.zeros(8, 64)
        for token in x:
            h, c = self.long(token, (h, c))
            h = self.gated(h, h)
        waves = torch.fft.irfft(torch.fft.rfft(h))
        return torch.einsum("ab,cb,cd->ad", h, waves, c)


def test_cells_and_products_of_many_come_apart(tmp_path) -> None:
    net, x = Cells(), torch.zeros(4, 8, 32)
    whole = hp.from_exported(saved(net, (x,), tmp_path))
    apart = hp.from_torch(net, x, train=False)
    both = [hp.predict("h100_sxm", one).breakdown().set_index("group") for one in (whole, apart)]
    assert both[0]["seconds"].to_dict() == pytest.approx(both[1]["seconds"].to_dict(), rel=0.02)


def test_a_joint_graph_has_its_backward_pass(tmp_path) -> None:
    from torch.export.experimental import _export_forward_backward

    x, target = torch.zeros(64, 256), torch.zeros(64, dtype=torch.long)
    module = Mlp(torch.float32)
    path = tmp_path / "joint.pt2"
    torch.export.save(_export_forward_backward(torch.export.export(module, (x, target))), path)
    read, run = exported(path), capture(module, (x, target))
    assert {one.phase for one in read.ops} == {"forward", "backward"}

    def products(captured):
        return [kernel for kernel in kernels_of(captured) if kernel[0] == "Gemm"]

    assert [one[1] for one in products(read)] == [one[1] for one in products(run)]
    assert any("no optimizer" in note for note in read.notes)


def test_graphs_within_and_sizes_that_vary(tmp_path) -> None:
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            with torch.no_grad():
                x = self.linear(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.linear(x) @ x.T

    path = saved(Steps(), (torch.zeros(4, 8),), tmp_path)
    assert kernels_of(exported(path)) == kernels_of(
        capture(Steps(), (torch.zeros(4, 8),), train=False)
    )
    sizes = {"input": {0: torch.export.Dim("rows")}}
    path = saved(nn.Linear(8, 8), (torch.zeros(4, 8),), tmp_path, dynamic_shapes=sizes)
    read = exported(path)
    assert workload_of(read).flops == workload_of(capture(nn.Linear(8, 8), (torch.zeros(4, 8),),
                                                          train=False)).flops  # fmt: skip
    assert "sizes that may vary" in read.notes[0]


def test_attention_is_told_by_its_flag(tmp_path) -> None:
    class Attends(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.zeros(1, 2, 64, 16, dtype=torch.bfloat16)
    kernels = kernels_of(exported(saved(Attends(), (x,), tmp_path)))
    assert kernels == kernels_of(capture(Attends(), (x,), train=False))


def test_it_is_read_without_pytorch_and_without_pickle(tmp_path) -> None:
    path = saved(Mlp(torch.float32), (torch.zeros(64, 256), torch.zeros(64, dtype=torch.long)),
                 tmp_path)  # fmt: skip
    code = (
        "import sys, pickle; sys.modules['torch'] = None\n"
        "pickle.load = pickle.loads = pickle.Unpickler = None\n"
        "import hybridperf as hp\n"
        f"print(hp.predict('h100_sxm', hp.from_exported({str(path)!r})).time_s > 0)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.stdout.strip() == "True", made.stderr


MODEL = "program/models/model.json"


def changed(path, change):
    """The archive with its program changed."""
    with zipfile.ZipFile(path) as archive:
        program = json.loads(archive.read(MODEL))
    program = change(program) or program
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODEL, program if isinstance(program, bytes) else json.dumps(program))


def _version(program):
    program["schema_version"]["major"] = 9


def _negative(program):
    program["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"][0]["as_int"] = -4


def _huge(program):
    for size in program["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"]:
        size["as_int"] = 2**61


def _missing(program):
    del program["graph_module"]["graph"]["tensor_values"]["linear"]


def _unmade(program):
    program["graph_module"]["graph"]["inputs"].clear()


def _no_size(program):
    program["graph_module"]["graph"]["nodes"][0]["outputs"] = [{"as_tensor": {"name": 3}}]


def _format(program):
    program["graph_module"]["graph"]["tensor_values"]["linear"]["dtype"] = 99


def _operator(program):
    program["graph_module"]["graph"]["nodes"][0]["target"] = "os.system"


def _unknown(program):
    program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.mine.odd.default"


def _deep(program):
    return b"[" * 100_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_version, "got version 9"), (_negative, "expected a size, got -4"),
        (_huge, "sizes of linear cannot be"), (_missing, "does not say what linear is"),
        (_unmade, "is read before it is made"), (_no_size, "found a damaged one"),
        (_format, "number format 99"), (_operator, "os.system is no op of PyTorch"),
        (_deep, "found a damaged one"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_one_sentence(change, says, tmp_path) -> None:
    path = saved(nn.Linear(8, 8), (torch.zeros(4, 8),), tmp_path)
    changed(path, change)
    with pytest.raises(hp.InputError) as told:
        hp.from_exported(path)
    assert says in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_an_op_without_a_rule_is_bounded_and_named(tmp_path) -> None:
    path = saved(nn.Linear(8, 8), (torch.zeros(4, 8),), tmp_path)
    changed(path, _unknown)
    step = hp.from_exported(path)
    assert step.flops == 2 * 4 * 8 * 8
    assert any(note.startswith("mine::odd") and "bounded by" in note for note in step.notes)


def test_what_is_no_archive_is_one_sentence(tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.pt2"
    with pytest.raises(hp.InputError, match="found none; check the path"):
        hp.from_exported(path)
    buffer = io.BytesIO()
    torch.save({"weights": torch.zeros(3)}, buffer)
    for content, says in [
        (b"text", "found no ZIP archive"),
        (buffer.getvalue(), "expected one program of torch.export"),
        (buffer.getvalue()[:200], "found no ZIP archive"),
    ]:
        path.write_bytes(content)
        with pytest.raises(hp.InputError, match=says):
            hp.from_exported(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(hp.InputError, match=r"wrote before 2\.8"):
        hp.from_exported(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MODEL, b" " * (2**20 + 8))
    monkeypatch.setattr(pt2, "most_unpacked", lambda packed_bytes: 2**20)
    with pytest.raises(hp.InputError, match=r"it would take .* of memory or more"):
        hp.from_exported(path)


def test_what_depends_on_numbers_is_refused(tmp_path) -> None:
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    with pytest.raises(hp.InputError, match="what cond runs depends on numbers"):
        hp.from_exported(saved(Branches(), (torch.zeros(4),), tmp_path))


def test_attention_with_a_learned_mask_is_one_kernel_on_gpus() -> None:
    """A CPU takes it apart; either way the mask is updated."""

    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.mask = nn.Linear(16, 16), nn.Parameter(torch.zeros(1, 1, 8, 8))

        def forward(self, x):
            y = self.into(x).view(4, 8, 2, 8).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=self.mask).sum()

    def seen(backend):
        ops = capture(
            Learned(), (torch.zeros(4, 8, 16),), optimizer=torch.optim.SGD, backend=backend
        ).ops
        kinds = [op.call.kind.removeprefix("aten::") for op in ops]
        updated = {one.shape for op in ops if op.phase == OPTIMIZER for one in op.call.read}
        assert (1, 1, 8, 8) in updated
        return kinds

    attention = "_scaled_dot_product_flash_attention_for_cpu"
    on_gpu, on_cpu = seen("gpu"), seen("cpu")
    assert on_gpu.count(attention) == on_gpu.count(f"{attention}_backward") == 1
    assert attention not in on_cpu
    assert "bmm" in on_cpu


def test_drops_are_one_kernel_on_gpus() -> None:
    """Of modules and of attention inside them; a CPU draws, scales and multiplies."""
    dropped = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
    kinds = [one.call.kind for one in capture(dropped, (torch.zeros(4, 8),)).ops]
    assert kinds.count("aten::native_dropout") == kinds.count("aten::native_dropout_backward") == 1
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    kinds = [one.call.kind for one in capture(layer, (torch.zeros(2, 4, 16),)).ops]
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in kinds
    assert "aten::bernoulli_" not in kinds
    on_cpu = capture(dropped, (torch.zeros(4, 8),), backend="cpu")
    assert "aten::bernoulli_" in [one.call.kind for one in on_cpu.ops]
