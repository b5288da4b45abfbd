"""`hybridperf predict --torch`: a step of one's own PyTorch program, and what is wrong with one."""

import pytest

from hybridperf.cli.app import main

pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
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
        assert f"expected --torch module:function with {option[0]}" in capsys.readouterr().err
