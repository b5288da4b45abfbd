"""Steps of training scripts, which run as their authors wrote them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError

torch = pytest.importorskip("torch")

from hybridperf.workloads.programs.torch.capture import Captured, capture  # noqa: E402
from hybridperf.workloads.programs.torch.script import captured_script  # noqa: E402

LOADED = """
import argparse, torch
from torch.utils.data import DataLoader, TensorDataset

given = argparse.ArgumentParser()
given.add_argument("--batch-size", type=int, default=64)
size = given.parse_args().batch_size
assert torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
net = net.to(device)
updates = torch.optim.AdamW(net.parameters())
data = TensorDataset(torch.randn(100_000, 256), torch.randint(0, 10, (100_000,)))
total = 0.0
for x, y in DataLoader(data, batch_size=size, shuffle=True, num_workers=4, pin_memory=True):
    x, y = x.cuda(non_blocking=True), y.to(device)
    updates.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    updates.step()
    total += loss.item()
    if torch.isnan(loss):
        raise SystemExit("no number")
    print(f"loss {loss:.3f}", total)
"""
PLAYERS = """
import torch
makes = torch.nn.Linear(64, 784).cuda()
tells = torch.nn.Linear(784, 1).cuda()
of_makes, of_tells = torch.optim.Adam(makes.parameters()), torch.optim.SGD(tells.parameters(), 0.1)
while True:
    made = makes(torch.randn(128, 64, device="cuda"))
    of_tells.zero_grad()
    (tells(torch.randn(128, 784, device="cuda")) - tells(made.detach())).mean().backward()
    of_tells.step()
    of_makes.zero_grad()
    tells(made).mean().backward()
    of_makes.step()
"""
RANKS = """
import os, torch
torch.distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(rank), [rank])
updates = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(10):
    for _ in range(4):
        net(torch.randn(8, 512, device=rank)).square().mean().backward()
    updates.step()
    updates.zero_grad()
"""


def captured(path: Path, *words: str, ranks: int = 1) -> Captured:
    return captured_script(path, words, ranks, device=load_device("h100_sxm"))


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def test_a_script_takes_the_step_that_it_has(tmp_path: Path) -> None:
    found = captured(script(tmp_path, LOADED), "--batch-size", "32")
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))

    def step(x, y):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.isnan()
        return loss

    given = torch.randn(32, 256), torch.randint(0, 10, (32,))
    same = capture(step, given, optimizer=torch.optim.AdamW(net.parameters()))

    def counted(captured) -> Counter:
        return Counter(
            (op.call.kind, op.phase) for op in captured.ops if "detach" not in op.call.kind
        )

    assert counted(found) == counted(same)
    assert found.updated == same.updated == 4
    assert found.peak_bytes == pytest.approx(same.peak_bytes, rel=0.01)  # its data lie elsewhere
    assert "taken as 1" in found.notes[0]


def test_all_optimizers_of_a_round_are_in_its_step(tmp_path: Path) -> None:
    found = captured(script(tmp_path, PLAYERS))
    assert found.updated == 4
    products = Counter(op.call.kind for op in found.ops)
    assert products["aten::addmm"] == 4


def test_a_script_of_several_ranks_sends_after_each_backward_pass(tmp_path: Path) -> None:
    found = captured(script(tmp_path, RANKS), ranks=8)
    sent = [op for op in found.ops if "allreduce" in op.call.kind]
    assert len(sent) % 4 == 0
    assert sent
    assert all(len(op.ranks) == 8 for op in sent)


def test_one_update_is_a_step(tmp_path: Path) -> None:
    once = PLAYERS.replace("while True:", "for _ in range(1):")
    found = captured(script(tmp_path, once))
    assert found.updated == 2
    assert "after one update" in found.notes[-1]


@pytest.mark.parametrize(
    "data", ["torch.utils.data.Subset(data, range(50_000))", "[*zip(*data.tensors)]"]
)
def test_what_loaders_read_is_not_on_the_gpu(tmp_path: Path, data: str) -> None:
    few = LOADED.replace("100_000", "3_000")
    plain = captured(script(tmp_path, few), "--batch-size", "32")
    within = few.replace("DataLoader(data", f"DataLoader({data.replace('50_000', '2_000')}")
    found = captured(script(tmp_path, within), "--batch-size", "32")
    assert found.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.01)


def test_a_script_finds_the_gpu_that_is_asked_for_and_says_why_it_ended(tmp_path: Path) -> None:
    asks = "assert torch.cuda.get_device_properties(0).total_memory > 8e10\n"
    asks += "assert torch.cuda.mem_get_info()[1] > 8e10\n"
    text = LOADED.replace("size = given", f"{asks}size = given")
    found = captured(
        script(tmp_path, text.replace("total += ", "assert loss.isfinite()\n    total += "))
    )
    assert found.notes[-1].startswith("the script ended by AssertionError")


def test_what_is_no_step_is_said(tmp_path: Path, refused) -> None:
    with pytest.raises(InputError, match="found no file"):
        captured(tmp_path / "none.py")
    with pytest.raises(InputError, match="made no update"):
        captured(script(tmp_path, "import torch\ntorch.ones(3).sum()"))
    path = script(tmp_path, "import torch\nnet = torch.nn.Linear(2, 2)\nnet(torch.ones(3, 5))\n")
    assert "line 3" in refused("predict", path, "--model", "h100_sxm")
    assert "of a GPU" in refused("predict", path, "--model", "knl7250")
    assert "expected one of" in refused("predict", path, "--model", "h100_sxm", "--hf", "x.json")


def test_the_command_has_modules_and_keeps_what_the_script_prints_apart(tmp_path, run) -> None:
    path = script(tmp_path, LOADED)
    status, out, _ = run("predict", path, "--model", "h100_sxm", "--json", "--", "--batch-size", 8)
    assert status == 0
    answer = json.loads(out)
    assert [row["module"] for row in answer["modules"][:2]] == ["Sequential", "Sequential.0"]
    shares = sum(row["share"] for row in answer["modules"] if not row["level"])
    assert shares == pytest.approx(1, rel=1e-9)
    assert 0 < answer["low_s"] < answer["time_s"] < answer["high_s"]
