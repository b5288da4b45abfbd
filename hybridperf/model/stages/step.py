"""What a stage says, what the stages said so far, and the machine that they ask.

Axes: R ops of a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array
from hybridperf.model.platform import Platform
from hybridperf.model.sources import DATASHEET

NOTHING_S = 1e-30  # stands for no time where a log is taken


class Machine(NamedTuple):
    """A calibration at some numbers of its machine: today's, or such as are varied or traced."""

    model: Any  # `PerfModel`
    numbers: Platform
    told: Mapping[int, Any] = MappingProxyType({})  # by family, of batches asked at once, by `id`

    @staticmethod
    def of(model: Any) -> Machine:
        return Machine(model, model.numbers)

    @property
    def device(self) -> DeviceSpec:
        return self.model.device

    @property
    def alone(self) -> Machine:
        """The machine by its own rows and datasheet."""
        return self._replace(model=self.model.alone)


@dataclasses.dataclass(frozen=True)
class Step:
    """What one stage adds to the log of seconds, and by what it knows."""

    name: str  # as a waterfall prints it
    log_factor: Array  # [R]
    source: Any = DATASHEET  # Source, or object [R] of such
    # of the log of one op's seconds, [R] or one number; not a number where nothing is known
    log_variance: Array = 0.0
    # the part of it that all ops have in common which go by this source
    shared_log_variance: Array = 0.0
    outside: Array = 0.0  # octaves beyond what was measured [R], of who says what the op takes

    def sources(self) -> np.ndarray:
        """Source of each row's factor, objects [R]."""
        return np.broadcast_to(np.asarray(self.source, object), np.shape(self.log_factor))


Stage = Callable[[Any, Machine, Array, Any], Sequence[Step]]  # (batch, machine, log_s so far, xp)


class Priced(NamedTuple):
    """What the stages say together of a batch."""

    roofline_log_s: Array  # [R]
    log_s: Array  # [R] of one execution; `NOTHING_S` is none
    steps: tuple[Step, ...] = ()

    def after(self, steps: Sequence[Step]) -> Priced:
        log_s = self.log_s
        for step in steps:
            log_s = log_s + step.log_factor
        return Priced(self.roofline_log_s, log_s, (*self.steps, *steps))

    def seconds(self, xp: Any = np) -> Array:
        """Seconds of one execution of each row [R]."""
        found, takes_time = xp.exp(self.log_s), self.log_s > np.log(2 * NOTHING_S)
        nothing = 0.0 if xp is np else found - jax.lax.stop_gradient(found)
        return xp.where(takes_time, found, nothing)

    @property
    def log_variance(self) -> Array:
        return sum(step.log_variance for step in self.steps)

    @property
    def shared_log_variance(self) -> Array:
        return sum(step.shared_log_variance for step in self.steps)

    @property
    def owner(self) -> Step:
        """Who says what the op takes by itself."""
        return self.steps[0]
