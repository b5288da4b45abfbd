"""Steps of PyTorch that `validate here` judges: each is captured and priced, and one of a user's
own runs here, its memory as PyTorch's profiler sees it.
"""

import dataclasses

import pytest

import hybridperf as hp
from benchmarks.claims import ranks
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import EagerOp
from hybridperf.validate import here, torch_estimator
from hybridperf.validate.measured_steps import (
    MeasuredStep,
    StepComparison,
    captured,
    measure,
    summarise,
    table,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

BARE = PerfModel.datasheet(load_device("here"))
NAMES = [one["config"]["function"] for one in here.TORCH_STEPS]
MINE = """
import torch

def step():
    layers = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU())
    return layers, (torch.zeros(900, 300),), torch.optim.Adam
"""


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_priced_on_a_cpu(name) -> None:
    step = captured(name)
    predicted = hp.predict(BARE, step)
    assert predicted.time_s > 0
    assert step.flops > 1e6
    assert step.peak_memory is not None
    trains = any(call.op == EagerOp("fp32", "backward") for call in step.calls)
    assert trains == (name.partition(":")[2] not in ("vit", "attention"))


@pytest.mark.parametrize("name", ranks.STEPS)
def test_every_step_of_two_processes_is_priced(name) -> None:
    step = captured(name, ranks.PROCESSES)
    sent = {call.collective for call in step.calls if isinstance(call, CollectiveCall)}
    replicated = ":replicated" in name
    assert sent - {"broadcast"} == (
        {"all_reduce"} if replicated else {"all_gather", "reduce_scatter"}
    )
    assert ("broadcast" in sent) == name.endswith("resnet")
    around = {call.op.phase for call in step.calls if isinstance(getattr(call, "op", 0), EagerOp)}
    assert ({"gathered", "parameter", "dispatched"} <= around) == (not replicated)


def test_steps_of_two_processes_ask_for_a_model_that_knows_collectives(tmp_path) -> None:
    with pytest.raises(InputError, match="--collectives --cores-each 1"):
        ranks.run(dataclasses.replace(BARE, provenance={"library": "torch"}), tmp_path)


def test_the_steps_go_with_the_library_that_was_measured() -> None:
    assert len(here.TORCH_STEPS) == 12
    assert here.steps_of(BARE) is here.STEPS
    torch_model = dataclasses.replace(BARE, provenance={"library": "torch"})
    assert here.steps_of(torch_model) is here.TORCH_STEPS


def test_pytorch_says_itself_why_it_estimates_nothing_on_a_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch has a GPU here")
    found, notes = torch_estimator.estimates(NAMES[:2], "cpu")
    assert found == [{}, {}]
    for mode, note in zip(torch_estimator.MODES, notes, strict=True):
        assert mode in note
    assert "needs to access CUDA" in notes[0]
    assert "dummy base class Event" in notes[1]


def test_an_estimate_is_a_baseline_where_all_steps_have_one() -> None:
    predicted = hp.predict(BARE, captured(NAMES[0]))
    step = MeasuredStep("mlp", 2.0, 2.0, 2.0, 9, 0.01, 1.0, predicted.workload, {})
    known = StepComparison(step, predicted, {"PyTorch": 3.0})
    assert summarise([known, known])["baselines"]["PyTorch"] == pytest.approx(0.5)
    assert "PyTorch" not in summarise([known, StepComparison(step, predicted)])["baselines"]


def test_of_pytorch_the_kinds_are_some_of_the_steps() -> None:
    kinds = here.kinds_of(dataclasses.replace(BARE, provenance={"library": "torch"}))
    assert [spec in here.TORCH_STEPS for spec in kinds] == [True] * 5
    assert here.kinds_of(BARE) is here.KINDS


def test_a_step_runs_here_with_its_memory(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine_on_cpu.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    measured = measure("mine_on_cpu:step", rounds=2, library="torch")
    both = StepComparison(measured, hp.predict(BARE, measured.workload))
    assert measured.time_s > 0
    assert abs(both.memory_error) < 0.08
    found = summarise([both, both])
    assert found["median_memory_error"] == pytest.approx(abs(both.memory_error))
    assert "memory" in table([both])
