"""A JAX step that was compiled, between two calls."""

from __future__ import annotations

from typing import Any

import jax

from hybridperf.workloads.programs.jax.program import program
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.training_steps import TrainingStep


class CompiledStep:
    """Its next arguments, and the loss of the last call."""

    peak_bytes = None

    def __init__(self, step: TrainingStep) -> None:
        self._step, self._args, self._calls = step, step.args, 0
        jitted = jax.jit(step.fn, donate_argnums=step.donate_argnums)
        self._compiled = jitted.lower(*step.args).compile()
        self.program = program(self._compiled, step.name)
        self.loss: Any = None
        self._clock = machine.clock(jax.default_backend() == "cpu")

    def call_s(self) -> float:
        """Seconds of the next call."""
        start_s = self._clock()
        outputs = jax.block_until_ready(self._compiled(*self._args))
        seconds = self._clock() - start_s
        self._calls += 1
        self._args = self._step.next_args(self._calls, outputs)
        self.loss = outputs[-1]
        return seconds
