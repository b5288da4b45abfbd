"""A step of the user's own: what `module:function` returns, as `predict --jax` takes it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from pydantic.dataclasses import dataclass

from hybridperf.workloads.own import made_by
from hybridperf_calibration.training_steps import STRICT, TrainingStep


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
    """The step, with a loss of zero after its outputs, which is no work."""
    del seed, batches  # the user's own arguments, each time
    fn, args, *donated = made_by(config.function)

    def with_loss(*given: Any) -> tuple[Any, ...]:
        return fn(*given), jnp.float32(0)

    taken = tuple(donated[0]) if donated else ()
    arrays = tuple(jax.tree.map(jnp.asarray, one) for one in args)
    return OwnStep(config.function, with_loss, copies(arrays, taken), taken, (arrays,))
