"""What a stage says, what the stages said so far, and the machine that they ask.

Axes: R ops of a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array
from hybridperf.learning.prior import Adapted
from hybridperf.model.group_report import GroupReport
from hybridperf.model.platform import Platform
from hybridperf.model.sources import DATASHEET
from hybridperf.ops.roofline import RooflineKnobs

NOTHING_S = 1e-30  # stands for no time where a log is taken


class Calibration(Protocol):
    """What is asked of a `PerfModel`."""

    @property
    def device(self) -> DeviceSpec: ...
    @property
    def knobs(self) -> RooflineKnobs: ...
    @property
    def groups(self) -> Mapping[str, GroupReport]: ...
    @property
    def families(self) -> Mapping[str, Adapted]: ...
    @property
    def stand_in(self) -> Any: ...
    @property
    def references(self) -> Callable[[], Sequence[Any]] | None: ...
    @property
    def numbers(self) -> Platform: ...


class Machine(NamedTuple):
    """A calibration at some numbers of its machine: today's, or such as are varied or traced."""

    model: Any  # Calibration
    numbers: Platform
    told: Mapping[int, Any] = MappingProxyType({})  # by family, of batches asked at once, by `id`

    @staticmethod
    def of(model: Calibration) -> Machine:
        return Machine(model, model.numbers)

    @property
    def device(self) -> DeviceSpec:
        return self.model.device

    @property
    def refers(self) -> bool:
        """Whether other devices' calibrations say anything of it: the shipped ones are GPUs'."""
        return self.model.references is not None and self.device.kind == "gpu"

    @property
    def tells(self) -> bool:
        """Whether anything but its own rows and datasheet says something of it."""
        return self.refers or self.model.stand_in is not None

    @property
    def alone(self) -> Machine:
        """The machine by its own rows and datasheet."""
        if self.model.references is None and self.model.stand_in is None:
            return self
        return self._replace(model=dataclasses.replace(self.model, references=None, stand_in=None))


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
    # octaves beyond what was measured [R]; None: this stage does not say who measured the op
    outside: Array | None = None


Stage = Callable[[Any, Machine, Array, Any], Sequence[Step]]  # (batch, machine, log_s so far, xp)


class Priced(NamedTuple):
    """What the stages say together of a batch."""

    log_s: Array  # [R] of one execution; `NOTHING_S` is none
    steps: tuple[Step, ...] = ()

    def after(self, steps: Sequence[Step]) -> Priced:
        log_s = self.log_s
        for step in steps:
            log_s = log_s + step.log_factor
        return Priced(log_s, (*self.steps, *steps))

    def seconds(self, xp: Any = np) -> Array:
        """[R] of one execution."""
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
        """Who says what the op takes by itself: the last stage that knows who measured it."""
        return next(step for step in reversed(self.steps) if step.outside is not None)


def sources_of(step: Step, rows: int) -> np.ndarray:
    """Object [R] of Source."""
    return np.broadcast_to(np.asarray(step.source, object), (rows,))
