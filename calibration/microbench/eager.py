"""What PyTorch spends around the ops of a step: modules, records of gradients, views, loops over
parameters.

Small programs whose arithmetic is next to nothing are run as a step is, by phase; what their ops
take when each is called alone is taken off, and the rest is divided by their number. Views are
counted among the ops and nothing is taken off for them: they are priced by this alone.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hybridperf.workloads.programs.torch.on_cpu import kernels_on_cpu
from hybridperf.workloads.programs.torch.record import recorder
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.microbench.library import Torch
from hybridperf_calibration.microbench.timer import Case

_CALLS = 200  # of one op, for its median


class _Attention(nn.Module):
    """A layer of a Transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.wide = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.narrow, self.last = nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.into(self.norm(x)).split(width, -1)
        q, k, v = (one.view(batch, tokens, 2, -1).transpose(1, 2) for one in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.last(x))))


@dataclasses.dataclass(frozen=True)
class Program:
    """A small step: a module, its input, and the optimizer of its parameters."""

    name: str
    module: nn.Module
    x: torch.Tensor
    optimizer: Callable[..., torch.optim.Optimizer]


def programs() -> list[Program]:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(8, 8), nn.ReLU()]
    image = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    block = nn.Sequential(_Attention(8), _Attention(8))
    plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return [
        Program("mlp", nn.Sequential(*layers), torch.rand(4, 8), torch.optim.SGD),
        Program("block", block, torch.rand(1, 4, 8), torch.optim.AdamW),
        Program("image", image, torch.rand(1, 3, 4, 4), torch.optim.Adam),
        Program("plain", plain, torch.rand(2, 8), torch.optim.SGD),
    ]


def eager_cases() -> list[Case]:
    """Each program's phases; the forward pass also without gradients."""
    found = []
    for phase in ("inference", "forward", "backward", "update"):
        found += [_Step(program).case(phase) for program in programs()]
    return found


class _Step:
    """A program's step, by phase."""

    def __init__(self, program: Program) -> None:
        self.name, self.module, self.x = program.name, program.module, program.x
        self.optimizer = program.optimizer(self.module.parameters(), lr=1e-6)

    def loss(self) -> torch.Tensor:
        return self.module(self.x).square().mean()

    def gradients(self) -> None:
        self.loss().backward()
        self.module.zero_grad()

    def case(self, phase: str) -> Case:
        """What an op of a phase costs besides itself."""
        with torch.enable_grad():
            self.loss().backward()
            self.optimizer.step()  # which makes its state
        grad = phase != "inference"
        others: dict[str, Callable[[], Any]] = {
            "backward": self.gradients, "update": self.optimizer.step
        }  # fmt: skip
        runs = others.get(phase, self.loss)
        ops = self._ops(runs, grad)
        if phase == "backward":
            ops = ops[len(self._ops(self.loss, True)) :]

        def fn() -> Any:
            with torch.set_grad_enabled(grad):
                return runs()

        def other_s() -> float:
            before_s = 0.0
            if phase == "backward":
                with torch.enable_grad():
                    before_s = usual_s(self.loss)
            return before_s + sum(alone_s(again) for again, call in ops if kernels_on_cpu(call))

        row = f"eager_{'forward' if phase == 'inference' else phase}"
        columns = {"op": row, "dtype": "fp32"}
        return Case(
            f"eager {phase} {self.name}", columns, lambda rng: (fn, [(), ()]), divisor=len(ops),
            subtract_s=other_s, library=Torch(),
        )  # fmt: skip

    def _ops(self, run: Callable[[], Any], grad: bool) -> list[tuple[Callable[[], Any], Any]]:
        """(the op called again, its call) of all ops that a phase calls."""
        with recorder(torch, "cpu", again=True) as seen, torch.set_grad_enabled(grad):
            run()
        return list(zip(seen.again, [op.call for op in seen.ops], strict=True))


def alone_s(call: Callable[[], Any]) -> float:
    """Seconds of an op called by itself from Python, as those are that rows are made of."""
    with torch.no_grad():
        return max(usual_s(call) - _door_s(), 0.0)


def usual_s(call: Callable[[], Any]) -> float:
    """A usual call of some."""
    times, clock = [], machine.clock()
    for _ in range(_CALLS):
        start_s = clock()
        call()
        times.append(clock() - start_s)
    return statistics.median(times)


_DOOR: list[float] = []


def _door_s() -> float:
    """What an op called by its overload takes longer than by its function."""
    if not _DOOR:
        x = torch.rand(4, 4)
        slow = usual_s(lambda: torch.ops.aten.mm.default(x, x))
        _DOOR.append(max(slow - usual_s(lambda: torch.mm(x, x)), 0.0))
    return _DOOR[0]
