"""What PyTorch's host needs to issue work to its device, beside the work: while the device waits,
Python issues and is timed; on a CPU, which does at once what it is asked, tensors so small that
their arithmetic is next to nothing.

    launch        a step of a small model, over its launches (`programs/torch/launches.py`): what
                  modules, records of gradients, optimizers and Python's own time make of each
    issue         one op by its name, with a record for its gradient
    view          an op that launches nothing
    launch_call   the launch alone: a kernel with next to nothing of PyTorch around it
    synchronise   waiting for a device that has done everything
    fetch         one number from the device, when it is there
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from hybridperf.workloads.programs.torch.capture import run_step
from hybridperf.workloads.programs.torch.launches import launches_of
from hybridperf.workloads.programs.torch.program import from_torch
from hybridperf_calibration.microbench.eager import Program, programs
from hybridperf_calibration.microbench.timer import Budget, Case, Timing, timing_of

_CALLS = 50  # of an op in a row: far fewer than a device's queue holds
_WAIT_CYCLES = 100_000_000  # a twentieth of a second or so, in which the host is ahead
_LEAST, _MOST = 5, 200  # repeats
_N = 16


def launch_cases(device: str) -> list[Case]:
    """All of the module docstring, on `cuda` (also AMD's) or `cpu`."""
    made = [*_steps(device)]
    with torch.device(device):
        made += [*_ops(), *_calls(device)]
    return [
        Case(" ".join((one["op"], *one.get("name", "").split())), one, divisor=times,
             timed=_timed(device, call, times, waits))
        for one, call, times, waits in made
    ]  # fmt: skip


# the row's own columns, what is called, how often that is what the row is of, whether the device is
# held meanwhile
_Made = tuple[Mapping[str, Any], Callable[[], Any], float, bool]


def _steps(device: str) -> Iterator[_Made]:
    for train in (True, False):
        for program in programs():
            yield _step(program, train, device)


def _step(program: Program, train: bool, device: str) -> _Made:
    optimizer = program.optimizer(program.module.parameters(), lr=1e-6) if train else None

    def loss(x: torch.Tensor) -> torch.Tensor:
        return program.module(x).square().mean()

    with torch.enable_grad():
        seen = from_torch(loss, program.x, optimizer=optimizer, train=train, name=program.name)
    launches = launches_of(seen)
    program.module.to(device)  # only now: it is captured as any user's, on the host
    x = program.x.to(device)

    def step() -> None:
        with torch.set_grad_enabled(train):
            run_step(loss, (x,), optimizer, train)

    name = f"{program.name} {'training' if train else 'inference'}"
    return {"op": "launch", "name": name, "launches": launches}, step, launches, True


def _ops() -> Iterator[_Made]:
    """Ops by the names that traces have of them."""
    x, y = (torch.rand(_N, _N).requires_grad_() for _ in range(2))
    bias, image = torch.rand(_N), torch.rand(1, 4, 8, 8).requires_grad_()
    kernel, batch = torch.rand(4, 4, 3, 3).requires_grad_(), torch.rand(2, _N, _N)
    at, plain = torch.arange(_N), torch.rand(_N, _N)
    calls: Mapping[str, Callable[[], Any]] = {
        "aten::add": lambda: x + y, "aten::mul": lambda: x * y, "aten::relu": x.relu,
        "aten::mm": lambda: x @ y, "aten::addmm": lambda: torch.addmm(bias, x, y),
        "aten::linear": lambda: functional.linear(x, y, bias), "aten::sum": lambda: x.sum(0),
        "aten::bmm": lambda: torch.bmm(batch, batch), "aten::cat": lambda: torch.cat([x, y]),
        "aten::softmax": lambda: x.softmax(-1), "aten::index": lambda: x[at],
        "aten::layer_norm": lambda: functional.layer_norm(x, (_N,)),
        "aten::conv2d": lambda: functional.conv2d(image, kernel),
        "aten::embedding": lambda: functional.embedding(at, x),
        "aten::copy_": lambda: plain.copy_(batch[0]),
    }  # fmt: skip
    for name, call in calls.items():
        yield {"op": "issue", "name": name}, _many(call), _CALLS, True
    yield {"op": "view", "name": "aten::view"}, _many(lambda: plain.view(-1)), _CALLS, True


def _calls(device: str) -> Iterator[_Made]:
    one = torch.ones(1)
    on_gpu = device != "cpu"
    least: Callable[[], Any] = (lambda: torch.cuda._sleep(0)) if on_gpu else one.zero_
    yield {"op": "launch_call"}, _many(least), _CALLS, True
    if on_gpu:
        yield {"op": "synchronise"}, torch.cuda.synchronize, 1.0, False
    yield {"op": "fetch"}, one.item, 1.0, False


def _many(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        for _ in range(_CALLS):
            call()

    return run


def _timed(
    device: str, call: Callable[[], Any], times: float, waits: bool
) -> Callable[..., Timing]:
    on_gpu = device != "cpu"

    def settle() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def timed(case: Case, budget: Budget, rng: Any) -> Timing:
        del rng
        with torch.enable_grad():
            for _ in range(3):
                call()
            calls_s: list[float] = []
            begun_s = time.perf_counter()
            while len(calls_s) < _LEAST or (
                len(calls_s) < _MOST and time.perf_counter() - begun_s < budget.cap_s
            ):
                settle()
                if on_gpu and waits:
                    torch.cuda._sleep(_WAIT_CYCLES)
                start_s = time.perf_counter()
                call()
                calls_s.append(time.perf_counter() - start_s)
            settle()
        return timing_of(calls_s, statistics.median(calls_s), times, case.columns)

    return timed
