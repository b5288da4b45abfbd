"""A step of the user's own: what `module:function` returns, as `predict --jax` takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from pydantic.dataclasses import dataclass

from hybridperf.workloads.own import made_by
from hybridperf_calibration.training_steps import STRICT, TrainingStep
from hybridperf_calibration.training_steps.run import StepMeasurement, measure_steps


@dataclass(frozen=True, config=STRICT)
class OwnConfig:
    """Where the step is found."""

    function: str  # module:function that returns (fn, args) or (fn, args, donate_argnums)


class OwnStep(TrainingStep):
    """A step whose outputs say nothing of its next arguments: donated ones are copied again."""

    def next_args(self, calls: int, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return copies(self.batches[0], self.donate_argnums)


def copies(args: tuple[Any, ...], donated: tuple[int, ...]) -> tuple[Any, ...]:
    """Arguments of a call, copied where the call takes them over."""
    return tuple(
        jax.block_until_ready(jax.tree.map(jnp.copy, one)) if at in donated else one
        for at, one in enumerate(args)
    )


def build(config: OwnConfig, seed: int = 0, batches: int = 1) -> TrainingStep:
    """The step as `module:function` makes it."""
    del seed, batches  # the user's own arguments, each time
    fn, args, *donated = made_by(config.function)
    return _own(config.function, fn, args, tuple(donated[0]) if donated else ())


def measure_own(
    fn: Callable[..., Any], *args: Any, donate_argnums: tuple[int, ...] = (), rounds: int = 4
) -> StepMeasurement:
    """Time a function of JAX in this process, as a calibration times its steps.

        measured = measure_own(train_step, params, state, x, y, donate_argnums=(0, 1))
        measured.time_s, measured.noise                  # beside hp.predict(...).time_s

    Pin the process to the cores that the calibration is of before JAX starts
    (`hybridperf_calibration.microbench.machine.pin`).

    Args:
        fn: the function; it is compiled here, whether or not it is jitted already.
        args: its arguments. They are left as they are: those that are donated are copied.
        donate_argnums: arguments that the training loop donates, such as parameters and state.
        rounds: turns of 0.3 s or five calls; the time is the median call of the quickest.
    """
    name = getattr(fn, "__name__", "step")
    return measure_steps([_own(name, fn, args, donate_argnums)], rounds=rounds)[0]


def _own(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], donated: tuple[int, ...]
) -> OwnStep:
    """The step, with a loss of zero after its outputs, which is no work."""

    def with_loss(*given: Any) -> tuple[Any, ...]:
        return fn(*given), jnp.float32(0)

    arrays = tuple(jax.tree.map(jnp.asarray, one) for one in args)
    return OwnStep(name, with_loss, copies(arrays, donated), donated, (arrays,))
