"""What a learned correction sees of ops, and how far ops lie from those it learned from.

Inputs are the logs of an op's work counts and its `shape()`. `outside` is the distance of an op
from the box of the rows that were learned from, in octaves (factors of two): sizes count, flags and
how vectors are filled do not. What was learned fades with that distance as exp(-(outside / 2)^2).

Axes: N rows, f inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import array_module, reals, root
from hybridperf.ops import Op
from hybridperf.ops.inputs import log2_above_zero, shape_inputs
from hybridperf.ops.roofline import Work

FADE_OCTAVES = 2.0
RANGE_SLACK_OCTAVES = 0.585  # a factor of 1.5 beyond what was measured still counts as inside

# no op that is measured has instructions apart
_WORK_INPUTS = tuple(
    field.name for field in dataclasses.fields(Work) if field.name != "instructions"
)
# how vectors are filled, and where data lies: inputs, but no size to go beyond
_NOT_A_DISTANCE = ("tail", "reuse_")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Raw inputs of some ops of one group: names [f], values [N, f], float64 or traced by JAX."""

    names: tuple[str, ...]
    values: Any

    def rows(self, keep: np.ndarray) -> Inputs:
        """Some of the ops: a mask or positions."""
        return Inputs(self.names, self.values[keep])

    def select(self, names: Sequence[str]) -> Any:
        """Values [N, len(names)] in another order; inputs these ops do not have are zero."""
        module, values = self.values.__array_namespace__(), self.values
        at = {name: i for i, name in enumerate(self.names)}
        nothing = len(self.names)
        places = np.array([at.get(name, nothing) for name in names], int)
        if (places == nothing).any():
            values = module.concatenate([values, np.zeros((len(values), 1))], 1)
        # all of them at once: JAX compiles one gather
        return module.take(values, places, axis=1, mode="clip")


@dataclasses.dataclass(frozen=True)
class Box:
    """The inputs that a group's rows covered."""

    names: tuple[str, ...]
    low: np.ndarray  # [f]
    high: np.ndarray  # [f]

    @staticmethod
    def between(lowest: Mapping[str, float], highest: Mapping[str, float]) -> Box:
        """From the ends of each input by name."""
        low, high = list(lowest.values()), [highest[name] for name in lowest]
        return Box(tuple(lowest), np.array(low), np.array(high))

    @staticmethod
    def of(inputs: Inputs, names: Sequence[str] | None = None) -> Box:
        """The least box around some ops, of all their inputs or of some."""
        names = inputs.names if names is None else names
        values = inputs.select(names)
        return Box(tuple(names), values.min(0), values.max(0))

    def joined(self, other: Box) -> Box:
        """The least box around two of the same inputs."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Box(self.names, low, high)

    def outside(self, inputs: Inputs) -> Any:
        """Distance [N] of ops from the box in octaves, beyond the slack."""
        counted = [i for i, name in enumerate(self.names) if not name.startswith(_NOT_A_DISTANCE)]
        x = inputs.select(self.names)[:, counted]
        maximum = x.__array_namespace__().maximum
        beyond = maximum(self.low[counted] - x, x - self.high[counted])
        return root((maximum(beyond - RANGE_SLACK_OCTAVES, 0.0) ** 2).sum(1))

    def fade(self, inputs: Inputs) -> Any:
        """How much of what was learned in the box counts for ops [N]."""
        return faded(self.outside(inputs))


def faded(outside: Any, over: float = FADE_OCTAVES) -> Any:
    """How much of what was learned counts so many octaves `outside` of what was measured."""
    return outside.__array_namespace__().exp(-((outside / over) ** 2))


def inputs_of(op: Op, work: Work, rows: int, keep: np.ndarray | slice = slice(None)) -> Inputs:
    """Inputs of `rows` ops given as one op with columns, and of their work; of those of a mask."""
    counts = {name: log2_above_zero(getattr(work, name)) for name in _WORK_INPUTS}
    named = {**counts, **shape_inputs(op)}
    module, *columns = reals(*named.values())
    columns = [module.broadcast_to(column, (rows,)) for column in columns]
    return Inputs(tuple(named), module.stack(columns, 1)[keep])


def concatenate(parts: Iterable[Inputs]) -> Inputs:
    """Ops of several kinds below each other; what a kind has no such input of is zero."""
    parts = list(parts)
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    values = [part.select(names) for part in parts]
    return Inputs(names, array_module(*values).concatenate(values))
