"""Lookups on a GPU none of whose lookups was measured: the roofline with caches whose knobs are
known from other GPUs, each with a width, and the interval that these widths make.

    memory_share    of the datasheet's bandwidth that reads of memory reach
    l2_bytes_per_clock    that a multiprocessor reads from the L2 cache; where a device's clock is
                    not known, the cache's bandwidth over the memory's takes its place
    l2_share        of the L2 cache's bytes that rows stay in
    lookup_factor   seconds of lookups over what the first three make of them
    update_factor   and of rows that are read and written back where they lie: memory turns round
                    at random places

With f the share of lookups that finds its row in L2 (`ops.roofline.level_shares`), B bytes a second
of the datasheet's memory, M multiprocessors at C clocks a second,

    t = lookup_factor x bytes x ( (1 - f) / (memory_share B) + f / (l2_bytes_per_clock M C) )

forward and `update_factor` times that backward, and the log of t is as wide as its slopes by the
logs of the knobs times their widths, in squares. No least time of a kernel is added: tables that
share one would each pay it.

The first two are the mean and the scatter over five GPUs that Lin et al. measured by
microbenchmarks (owensgroup/ml_perf_model@5b2522a, `analysis/utils.py`) and of an H100 and an H200
(long loops of `calibration/measured`); their widths allow for so few by Student's t. What is usual
of `lookup_factor`, a belief of one beside so few devices, was fitted to lookups of two DLRMs:
kernels recorded on a V100, on two Pascals what their published active seconds leave beside other
kernels (claim `lin`, which leaves out each device in turn). `update_factor` is what
sums into random rows of a large table take over reading such rows, byte for byte, on the H100 and
the H200, and what the V100's backward kernels take over its forward ones. `l2_share` is a belief:
Lin et al. take 0.9.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import scipy

from hybridperf.hardware import LEVELS, MEMORY, Device, DeviceSpec, load_device
from hybridperf.io import shipped_toml
from hybridperf.io.namespace import Array
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model.platform import Platform
from hybridperf.ops import Op
from hybridperf.ops.roofline import RooflineKnobs, Work, op_seconds

KNOBS = ("memory_share", "l2_bytes_per_clock", "l2_share", "lookup_factor", "update_factor")
_READS, _UPDATES = "embedding_bag", "embedding_bag_backward"  # groups of lookups
_L2 = LEVELS.index("l2")
_STEP = 1e-3  # of a log, for slopes


@dataclasses.dataclass(frozen=True)
class Microbenchmarks:
    """What microbenchmarks of lookups showed of one GPU."""

    memory_bytes_per_s: float
    l2_bytes_per_s: float = math.nan  # as other numbers: not a number where nobody measured it
    clock_hz: float = math.nan  # that it was locked to
    # logs of seconds of its lookups over this form at its own numbers, and of updates over those
    log_lookup_factor: float = math.nan
    log_update_factor: float = math.nan


MEASURED = {
    name: Microbenchmarks(**one)
    for name, one in shipped_toml("hybridperf.model", "lookup_prior.toml")["measured"].items()
}
_L2_SHARE, _L2_SHARE_WIDTH = 0.9, 0.3
# a belief, of as much weight as so many devices: factors of lookups scatter so much in logs over
# devices
_FACTOR_WIDTH, _BELIEVED_DEVICES = 0.2, 3.0
# and over sizes and directions within one: as Lin et al.'s own form with hit rates errs in the mean
# over forward lookups of one GPU
_WITHIN_WIDTH = 0.175
_UPDATE_WIDTH = 0.12  # as three devices scatter


@dataclasses.dataclass(frozen=True)
class LookupPrior:
    """Means and widths [5] of the logs of `KNOBS`; and of the L2's bandwidth over the memory's."""

    mean: np.ndarray
    width: np.ndarray
    l2_over_memory: tuple[float, float]  # mean and width of its log

    @staticmethod
    def of(left_out: Collection[str] = ()) -> LookupPrior:
        """What the GPUs show that are not left out."""
        found = {name: one for name, one in MEASURED.items() if name not in left_out}
        specs = {name: load_device(name) for name in found}
        logs = np.array([
            (
                math.log(one.memory_bytes_per_s / specs[name].memory_bytes_per_s),
                math.log(one.l2_bytes_per_s / one.clock_hz / (specs[name].multiprocessors or 1)),
                math.log(one.l2_bytes_per_s / specs[name].memory_bytes_per_s),
                one.log_lookup_factor,
                one.log_update_factor,
            )
            for name, one in found.items()
        ]).T  # fmt: skip
        *rates, factors, updates = (column[~np.isnan(column)] for column in logs)
        (share, share_width), (clock, clock_width), ratio = map(_mean_and_width, rates)
        seen = _BELIEVED_DEVICES + len(factors)
        factor = float(factors.sum()) / seen
        squares = _BELIEVED_DEVICES * (_FACTOR_WIDTH**2 + factor**2)
        squares += float(((factors - factor) ** 2).sum())
        over_devices = squares / (seen - 1) * (1 + 1 / seen)
        factor_width = math.sqrt(over_devices + _WITHIN_WIDTH**2)
        mean = [share, clock, math.log(_L2_SHARE), factor, updates.mean() if len(updates) else 0.0]
        width = [share_width, clock_width, _L2_SHARE_WIDTH, factor_width, _UPDATE_WIDTH]
        return LookupPrior(np.array(mean), np.array(width), ratio)

    def log_seconds(
        self, device: DeviceSpec, op: Op, rates: Platform | None = None, work: Work | None = None,
        xp: Any = np,
    ) -> tuple[Array, Array]:  # fmt: skip
        """(logs of seconds of lookups, their deviations), as many as the op's columns.

        Args:
            device: that looks up.
            op: an embedding bag, forward or backward.
            rates: numbers of the machine; None: those of its datasheet.
            work: of the op, with distances as a program has them; None: its own.
            xp: NumPy, or JAX where anything is traced.
        """
        mean, width = self.mean.copy(), self.width.copy()
        if device.clock_hz is None or device.multiprocessors is None:
            mean[1], width[1] = self.l2_over_memory

        def at(theta: np.ndarray) -> Array:
            return _log_seconds(device, op, theta, rates, work, xp)

        at_mean = at(mean)
        slopes = [(at(mean + one) - at_mean) / _STEP for one in _STEP * np.eye(len(KNOBS))]
        squares = [(wide * slope) ** 2 for wide, slope in zip(width, slopes, strict=True)]
        return at_mean, xp.sqrt(sum(squares))

    def reading_s(self, device: DeviceSpec, op: Op, memory_bytes_per_s: float) -> float:
        """Seconds in which lookups read their rows where memory is known to reach this rate."""
        theta = np.zeros(len(KNOBS))
        theta[0] = math.log(memory_bytes_per_s / device.memory_bytes_per_s)
        theta[1:3] = self.mean[1:3]
        return float(np.exp(_log_seconds(device, op, theta)))


@functools.cache
def lookup_prior() -> LookupPrior:
    """Mean and spread of lookup knobs over all measured GPUs."""
    return LookupPrior.of()


def is_lookup(op: Op) -> bool:
    """Whether an op is an embedding bag, forward or backward."""
    return op.group in (_READS, _UPDATES)


def _log_seconds(
    device: DeviceSpec, op: Op, theta: np.ndarray, rates: Platform | None = None,
    work: Work | None = None, xp: Any = np,
) -> Array:  # fmt: skip
    """Logs of seconds of lookups at logs of knobs."""
    share, l2, held, factor, update = np.exp(theta)
    rates = rates or Platform.of(device, RooflineKnobs.neutral())
    rate = rates.memory_bytes_per_s
    clocks = (device.clock_hz or 0.0) * (device.multiprocessors or 0)
    faster = xp.maximum(l2 * (clocks or rate) / (share * rate), 1.0)
    places = np.arange(len(LEVELS))
    knobs = dataclasses.replace(
        RooflineKnobs.neutral(), memory_efficiency=share,
        level_speedup=xp.where(places < MEMORY, faster, 1.0),
        level_capacity=np.where(places == _L2, held, 1.0),
    )  # fmt: skip
    peak = device.peak(op.dtype, op.unit) * rates.peak_flops_scale
    on = Device(peak, rate, rates.level_bytes)
    once = factor * (update if op.group == _UPDATES else 1.0)
    return xp.log(once * op_seconds(op.work() if work is None else work, on, knobs, xp))


def _mean_and_width(logs: np.ndarray) -> tuple[float, float]:
    """Of one more device, as wide as a normal distribution whose 90 % interval is Student's."""
    count = len(logs)
    student = float(scipy.special.stdtrit(count - 1, 0.95)) / NINE_OF_TEN
    return float(logs.mean()), float(logs.std(ddof=1) * math.sqrt(1 + 1 / count)) * student
