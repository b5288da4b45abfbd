"""`hybridperf predict --torch`: a step of one's own PyTorch program, and what is wrong with one."""

import json
from pathlib import Path

import pytest

from hybridperf.cli.app import main

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
PROGRAM = """
import torch

def net():
    wide, narrow = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 8)
    return torch.nn.Sequential(wide, torch.nn.GELU(), narrow)

def good():
    module = net().cuda()
    return module, (torch.zeros(64, 512, device="cuda"),), torch.optim.AdamW(module.parameters())

def shared():
    from torch.nn.parallel import DistributedDataParallel
    return DistributedDataParallel(net()), (torch.zeros(64, 512),)

def reads():
    return lambda x: x if x.sum() > 0 else -x, (torch.zeros(4, 4, requires_grad=True),)

def fails():
    return lambda x: x @ x, (torch.zeros(4, 3),)

def nothing():
    return 3
"""


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps_of_mine.py").write_text(PROGRAM)

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["predict", "--torch", *map(str, words)])
        return ended.value.code, capsys.readouterr()

    return run


def test_a_step_is_predicted(predict) -> None:
    status, printed = predict("steps_of_mine:good", "--model", "h100_sxm")
    assert status == 0, printed.err
    assert printed.out.startswith("steps_of_mine:good on NVIDIA H100")
    status, printed = predict("steps_of_mine:good", "--model", "h100_sxm", "--compiled")
    assert status == 0, printed.err


def test_a_step_on_many_gpus_has_messages(predict) -> None:
    words = ("steps_of_mine:shared", "--model", "h100_sxm", "--system", "dgx_h100", "--gpus", 8)
    status, printed = predict(*words)
    assert status == 0, printed.err
    assert "all_reduce" in printed.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["steps_of_mine:reads"], "steps_of_mine.py line 17: a number is read from a tensor"),
        (["steps_of_mine:fails"], "steps_of_mine:fails raised RuntimeError"),
        (["steps_of_mine:nothing"], "must return (module or fn, args)"),
        (["steps_of_mine:absent"], "--torch takes module:function"),
        (["no_such_module:step"], "for --torch"),
        (["steps_of_mine:good", "--gpus", "0"], "expected one rank or more, got 0"),
        (["steps_of_mine:good", "--measure"], "expected a model of this machine with --measure"),
        (["steps_of_mine:good", "--trace", "x.json"], "got 2 of them"),
    ],
)
def test_what_is_wrong_is_one_sentence(predict, words, says) -> None:
    status, printed = predict(*words, "--model", "h100_sxm")
    assert status == 2
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_options_of_torch_need_it(capsys) -> None:
    for option in (["--compiled"], ["--gpus", "8"]):
        with pytest.raises(SystemExit):
            main(["predict", "--jax", "mine:step", *option])
        assert (
            f"expected --torch module:function or a SCRIPT.py with {option[0]}"
            in capsys.readouterr().err
        )


CONFIG = {
    "model_type": "qwen3", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Linear(64, 64)
    torch.export.save(torch.export.export(net, (torch.zeros(8, 64),)), "net.pt2")
    Path("config.json").write_text(json.dumps(CONFIG))

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        return ended.value.code, capsys.readouterr()

    return run


def test_saved_programs_and_published_models(command) -> None:
    status, printed = command("predict", "--export", "net.pt2", "--model", "h100_sxm")
    assert status == 0, printed.err
    assert printed.out.startswith("net on NVIDIA H100")
    seconds = []
    for more in ([], ["--compiled"], ["--batch", 2, "--seq", 512]):
        words = ["predict", "--hf", "config.json", "--model", "h100_sxm", *more, "--json"]
        status, printed = command(*words)
        assert status == 0, printed.err
        seconds.append(json.loads(printed.out)["time_s"])
    assert len(set(seconds)) == 3
    assert any("hidden" in note or "assumed" in note or "sequence" in note
               for note in json.loads(printed.out)["notes"])  # fmt: skip


def test_a_published_model_is_a_shape_of_plans_and_steps(command) -> None:
    words = ["plan", "--shape", "config.json", "--system", "dgx_h100", "--gpus", 8, "--out"]
    status, printed = command(*words, "plan.csv", "--seq", 1024)
    assert status == 0, printed.err
    Path("rows.csv").write_text(
        "model,system,gpu,n_gpus,dp,seq,global_batch\nconfig.json,dgx_h100,h100,8,8,1024,64"
    )
    status, printed = command("steps", "rows.csv", "--out", "steps.csv")
    assert status == 0, printed.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--export", "net.pt2", "--gpus", 8], "or a SCRIPT.py with --gpus"),
        (["--export", "net.pt2", "--seq", 8], "expected --hf CONFIG.json with --seq"),
        (["--export", "config.json"], "found no ZIP archive"),
        (["--export", "absent.pt2"], "found none; check the path"),
        (["--hf", "absent.json"], "absent.json"),
        (["--hf", "config.json", "--export", "net.pt2"], "got 2 of them"),
        (["--hf", "config.json", "--batch", 0], "0"),
        (["--export", "net.pt2", "--measure"], "got --export"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(command, words, says) -> None:
    status, printed = command("predict", *words, "--model", "h100_sxm")
    assert status == 2
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1
