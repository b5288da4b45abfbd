"""How far to trust a model: ranges that were measured, intervals, and how they widen outside."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.learning.residual import Box, Inputs, Residual, log_correction
from hybridperf.ops import Op

_WIDEST_OCTAVES = 3.0
_ERROR_QUANTILES = 41


@dataclasses.dataclass(frozen=True)
class GroupReport:
    """How far to trust a model for one group of ops."""

    rows: int
    # 90 % interval: predicted / (1 + w) to predicted * (1 + w); None: too few rows
    half_width: float | None
    # limits of what was measured, by input of the residual: log2 of work counts and sizes, flags
    lowest: Mapping[str, float]
    highest: Mapping[str, float]
    dtypes: tuple[str, ...] = ()  # number formats that were measured; empty: not recorded
    # evenly spaced quantiles of held-out log(predicted / measured), ascending
    errors: tuple[float, ...] = ()
    residual: Residual | None = None  # None: the closed form as it is

    @staticmethod
    def of(
        rows: int, log_width: float | None, box: Box, dtypes: Iterable[str], errors: np.ndarray,
        residual: Residual | None = None,
    ) -> GroupReport:  # fmt: skip
        """A report on so many rows in a box of inputs; `log_width`: of intervals, half of it."""
        half_width = None if log_width is None else float(np.expm1(log_width))
        low, high = (
            dict(zip(box.names, map(float, end), strict=True)) for end in (box.low, box.high)
        )
        quantiles = np.quantile(errors, np.linspace(0, 1, _ERROR_QUANTILES))
        spread = tuple(map(float, quantiles))
        return GroupReport(rows, half_width, low, high, tuple(dtypes), spread, residual)

    @functools.cached_property
    def box(self) -> Box:
        """The inputs that were measured."""
        return Box.between(self.lowest, self.highest)

    def outside(self, inputs: Inputs) -> np.ndarray:
        """How far ops lie outside what was measured, in octaves [N]; 0 inside."""
        return self.box.outside(inputs)

    def measured_dtype(self, op: Op) -> bool:
        """Whether ops in this number format were measured; for loops and copies, in its size."""
        sizes = {DTYPE_BYTES[dtype] for dtype in self.dtypes}
        same_size = op.unit == "vector" and op.element_bytes in sizes
        return not self.dtypes or op.dtype in self.dtypes or same_size

    def correction(self, inputs: Inputs) -> np.ndarray:
        """What was learned of ops, to add to the log of the closed form's seconds [N]."""
        if self.residual is None:
            return np.zeros(len(inputs.values))
        return log_correction(self.residual, inputs)


def widening(outside: np.ndarray) -> np.ndarray:
    """How much wider an interval is at a distance from what was measured [N].

    Each octave adds the log width once more, up to three; farther out only the closed form counts,
    whose error does not go on growing with distance.
    """
    return 1.0 + np.minimum(outside, _WIDEST_OCTAVES)


def widened(half_width: float, outside: np.ndarray) -> np.ndarray:
    """Half-width of intervals [N] at a distance from what was measured."""
    return np.expm1(np.log1p(half_width) * widening(outside))
