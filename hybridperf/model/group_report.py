"""How far to trust a model: ranges that were measured, intervals, and how they widen outside.

And what a reader asks of a surprising figure: why a time is below the datasheet's roofline, what
would narrow an interval that is several times wide.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, LEVELS, DeviceSpec
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning.inputs import Box, Inputs
from hybridperf.learning.prior import Adapted
from hybridperf.learning.prior.alone import log_correction
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
    residual: Adapted | None = None  # what corrects the closed form; None: nothing

    @staticmethod
    def of(
        rows: int, log_width: float | None, box: Box, dtypes: Iterable[str], errors: np.ndarray,
        residual: Adapted | None = None,
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

    def deviation(self, outside: np.ndarray) -> np.ndarray:
        """Of the logs of ops' seconds, so far outside of what was measured [N]; NaN: too few rows
        to tell.
        """
        inside = np.nan if self.half_width is None else np.log1p(self.half_width) / NINE_OF_TEN
        return inside * widening(outside)

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
    return 1.0 + outside.clip(None, _WIDEST_OCTAVES)


WIDE = 10.0  # from the low to the high end: an interval worth a sentence
_BELOW = 0.98  # of the roofline: closer is rounding


def below_roofline(
    device: DeviceSpec, predicted_s: np.ndarray, roofline_s: np.ndarray, reuse_bytes: np.ndarray
) -> np.ndarray:
    """Why times are below the datasheet's roofline, which reads all data from memory; "" for those
    that are not [N].

    `reuse_bytes`: what else is touched before an op's data is used again.
    """
    sizes = device.level_bytes()[:-1]
    largest = int(np.argmax(sizes))
    cache = f"its data stays in a cache ({LEVELS[largest]}, {sizes[largest] / 2**20:.4g} MiB)"
    below = predicted_s < _BELOW * roofline_s
    cached = below & (reuse_bytes <= sizes[largest])
    begin = "faster than the datasheet's roofline: "
    return np.select([cached, below], [begin + cache, begin + beyond_datasheet(device)], "")


def beyond_datasheet(device: DeviceSpec) -> str:
    """What makes measured kernels faster than a datasheet's peak or bandwidth."""
    found = "part of the data stays in a cache, or a kernel does less than is counted"
    # no operating system tells a CPU's bandwidth
    return f"{found}, or the memory is faster than assumed" if device.kind == "cpu" else found


def narrowed_by(times: float, sizes: Mapping[str, object], where: str = "") -> str:
    """On an interval of so many times: which op or collective, and what would narrow it.

    `sizes` has the name under `op`; `where` is what else to say of it.
    """
    words = {
        key: str(size) if type(size) is str else f"{size:g}" for key, size in sizes.items() if size
    }
    op = words.pop("op")
    near = " ".join(f"{key}={word}" for key, word in words.items())
    mend = "`hybridperf fit` on measured rows near this size narrows it (`calibrate` measures here)"
    return f"an interval of {times:,.0f} times is of {op} {near}{where}: {mend}"
