"""A step of PyTorch run op by op: what `module:function` returns, as `predict --torch` has it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch.profiler import ProfilerActivity, profile

from hybridperf.workloads.own import made_by
from hybridperf.workloads.programs.torch.capture import run_step
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.training_steps import STRICT

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read by the profiler's first use: nothing of it
_FIRST_STEPS = 2  # the optimizer's state is made in the first


@pydantic_dataclass(frozen=True, config=STRICT)
class OwnTorchConfig:
    """Where the step is found."""

    function: str  # module:function that returns (fn, args) or (fn, args, optimizer)


@dataclass(frozen=True)
class TorchStep:
    """A step yet to be made; its memory is watched after it was timed."""

    name: str

    def started(self) -> RunningTorchStep:
        """Made here."""
        return RunningTorchStep(self.name)


class RunningTorchStep:
    """A step between two calls."""

    program = None
    loss = float("nan")  # which a step does not return

    def __init__(self, name: str) -> None:
        self._name, self._step, self._clock = name, _made(name), machine.clock()

    @property
    def peak_bytes(self) -> float:
        """Asked when all timing is done: it makes the step again."""
        return peak_bytes(self._name)

    def call_s(self) -> float:
        """Seconds of the next call."""
        start_s = self._clock()
        run_step(*self._step)
        return self._clock() - start_s


def _made(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    """(module or function, arguments, optimizer or None)."""
    torch.manual_seed(0)
    fn, args, *given = made_by(name)
    optimizer = (*given, None)[0]
    if isinstance(optimizer, type):
        optimizer = optimizer(fn.parameters())
    return fn, args, optimizer


def peak_bytes(name: str) -> float:
    """The most that PyTorch's own profiler sees allocated at once in a step, and before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step = _made(name)
        for _ in range(_FIRST_STEPS):
            run_step(*step)
        with torch.profiler.record_function("watched"):
            run_step(*step)
    waiting = list(seen.profiler.kineto_results.experimental_event_tree())
    events = []
    while waiting:
        one = waiting.pop()
        events.append(one)
        waiting += one.children
    events.sort(key=lambda event: event.start_time_ns)
    begun_ns = next(one.start_time_ns for one in events if one.name == "watched")
    memory = [one for one in events if one.name == "[memory]"]
    first = memory[0].extra_fields  # what other steps of this process hold is counted, too
    others = first.total_allocated - first.alloc_size
    held = [one.extra_fields.total_allocated for one in memory if one.start_time_ns >= begun_ns]
    return float(max(held) - others)


def build(config: OwnTorchConfig, seed: int = 0, batches: int = 1) -> TorchStep:
    """The step; its arguments are the user's own, each time."""
    del seed, batches
    torch.set_num_threads(machine.cores_available())
    return TorchStep(config.function)
