"""What FSDP2 spends around a step's ops on the host: hooks around each group of parameters, each
parameter, and each op on tensors that say how they are sharded (DTensor).

Small layers are sharded in a group of two processes of which one runs, and which sends nothing
(PyTorch's own, "fake"). What the same layers take that are not sharded is taken off.

    step of FSDP2 - step alone = messages x (gathered + parameters of a message x parameter)

from layers of few and of many parameters; updates of SGD, whose ops are in place, tell
`dispatched`, those of Adam `wrapped`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hybridperf.workloads.programs.torch.messages import COPIED
from hybridperf.workloads.programs.torch.record import DISPATCHED, WRAPPED, recorder
from hybridperf_calibration.microbench.eager import usual_s
from hybridperf_calibration.microbench.library import Torch
from hybridperf_calibration.microbench.timer import Case

_GROUPS = (2, 4, 8)  # layers
_FEW, _MANY = 1, 8  # parameters of each
_SIDE = 8
_OPTIMIZERS = torch.optim.SGD, torch.optim.Adam


class _Layer(nn.Module):
    """One after the other."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        sides = [torch.eye(_SIDE) for _ in range(parameters)]
        self.sides = nn.ParameterList(map(nn.Parameter, sides))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in self.sides:
            x = x @ one
        return x


def sharded_cases() -> list[Case]:
    """Makes the process group that they need, unless there is one."""
    if not dist.is_initialized():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    found = []
    for groups in _GROUPS:
        found += _hook_cases(groups)
        found += _update_cases(groups)
    return found


def _hook_cases(groups: int) -> list[Case]:
    few, many = (_step(groups, parameters, sharded=True) for parameters in (_FEW, _MANY))
    few_alone, many_alone = (_step(groups, one, sharded=False) for one in (_FEW, _MANY))
    messages, more = _counted(few, COPIED), _MANY - _FEW

    def more_s() -> float:
        """What one parameter more of all messages takes."""
        added_s = usual_s(many) - usual_s(many_alone) - usual_s(few) + usual_s(few_alone)
        return max(added_s, 0.0) / more

    def before_s() -> float:
        return usual_s(many_alone) + usual_s(few) - usual_s(few_alone)

    name = f"{groups} layers"
    return [
        _case("gathered", name, few, lambda: usual_s(few_alone) + _FEW * more_s(), messages),
        _case("parameter", name, many, before_s, messages * more),
    ]


def _update_cases(groups: int) -> list[Case]:
    """SGD's ops are in place; some of Adam's make tensors."""
    sgd, adam = (_update(groups, kind, sharded=True) for kind in _OPTIMIZERS)
    sgd_alone, adam_alone = (_update(groups, kind, sharded=False) for kind in _OPTIMIZERS)
    ops = _counted(sgd, (DISPATCHED,))
    others, made = _counted(adam, (DISPATCHED, WRAPPED)), _counted(adam, (WRAPPED,))

    def before_s() -> float:
        each_s = max(usual_s(sgd) - usual_s(sgd_alone), 0.0) / ops
        return usual_s(adam_alone) + others * each_s

    name = f"{groups} layers"
    return [
        _case("dispatched", name, sgd, lambda: usual_s(sgd_alone), ops),
        _case("wrapped", name, adam, before_s, made),
    ]


def _layers(groups: int, parameters: int, sharded: bool) -> nn.Module:
    layers = nn.Sequential(*(_Layer(parameters) for _ in range(groups)))
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for one in layers:
            fully_shard(one, mesh=mesh)
        fully_shard(layers, mesh=mesh)
    return layers


def _step(groups: int, parameters: int, sharded: bool) -> Callable[[], None]:
    layers, x = _layers(groups, parameters, sharded), torch.ones(2, _SIDE)

    def run() -> None:
        with torch.enable_grad():
            layers(x).sum().backward()
        layers.zero_grad()

    run()  # buffers are made
    return run


def _update(groups: int, kind: Any, sharded: bool) -> Callable[[], Any]:
    layers = _layers(groups, _MANY, sharded)
    with torch.enable_grad():
        layers(torch.ones(2, _SIDE)).sum().backward()
    made = kind(layers.parameters(), lr=1e-9)
    made.step()  # which makes its state
    return made.step


def _counted(run: Callable[[], Any], kinds: Sequence[str]) -> int:
    """Ops of some kinds in a run."""
    with recorder(torch, "cpu") as seen:
        run()
    counts = Counter(op.call.kind for op in seen.ops)
    return sum(counts[kind] for kind in kinds)


def _case(
    phase: str, name: str, run: Callable[[], Any], other_s: Callable[[], float], ops: int
) -> Case:
    columns = {"op": f"eager_{phase}", "dtype": "fp32"}
    return Case(
        f"eager {phase} {name}", columns, lambda rng: (run, [(), ()]), divisor=ops,
        subtract_s=other_s, library=Torch(),
    )  # fmt: skip
