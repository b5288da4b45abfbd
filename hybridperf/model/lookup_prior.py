"""Lookups on a GPU none of whose lookups was measured: the roofline with caches whose knobs are
known from other GPUs, each with a width, and the interval that these widths make.

    memory_share    of the datasheet's bandwidth that reads of memory reach
    l2_bytes_per_clock    that a multiprocessor reads from the L2 cache; where a device's clock is
                    not known, the cache's bandwidth over the memory's takes its place
    l2_share        of the L2 cache's bytes that rows stay in
    lookup_factor   seconds of lookups over what the first three make of them

With f the share of lookups that finds its row in L2 (`ops.roofline.level_shares`), B bytes a second
of the datasheet's memory, M multiprocessors at C clocks a second,

    t = lookup_factor x bytes x ( (1 - f) / (memory_share B) + f / (l2_bytes_per_clock M C) )

and the log of t is as wide as its slopes by the logs of the knobs times their widths, in squares.
No least time of a kernel is added: tables that share one would each pay it.

The first two are the mean and the scatter over five GPUs that Lin et al. measured by
microbenchmarks (owensgroup/ml_perf_model@5b2522a, `analysis/utils.py`); their widths allow for so
few by Student's t. `lookup_factor` was fitted to lookups of two DLRMs: kernels recorded on a V100,
on two Pascals what their published active seconds leave beside other kernels (`hybridperf validate
lin`, which leaves out each device in turn). `l2_share` is a belief: Lin et al. take 0.9.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

import numpy as np
import scipy

from hybridperf.hardware import LEVELS, MEMORY, Device, DeviceSpec, load_device
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.ops import Op
from hybridperf.ops.embedding_bag import EmbeddingBag, EmbeddingBagBackward
from hybridperf.ops.roofline import RooflineKnobs, Work, op_seconds

KNOBS = ("memory_share", "l2_bytes_per_clock", "l2_share", "lookup_factor")
_L2 = LEVELS.index("l2")
_STEP = 1e-3  # of a log, for slopes


@dataclasses.dataclass(frozen=True)
class Microbenchmarks:
    """What Lin et al. measured of one GPU."""

    l2_bytes_per_s: float
    memory_bytes_per_s: float
    clock_hz: float  # that it was locked to
    # log of seconds of its lookups over this form at its own numbers; None: none is public
    log_lookup_factor: float | None = None


MEASURED = {
    "a100_sxm4_40g": Microbenchmarks(2270.9e9, 1391.1e9, 1.095e9),
    "v100_sxm2": Microbenchmarks(2847.5e9, 817.0e9, 1.297e9, 0.00),
    "quadro_gv100": Microbenchmarks(2466.7e9, 601.0e9, 1.297e9),
    "titanxp": Microbenchmarks(1406.5e9, 438.7e9, 1.404e9, 0.03),
    "p100_pcie_16g": Microbenchmarks(1591.3e9, 543.4e9, 1.189e9, 0.39),
}
_L2_SHARE, _L2_SHARE_WIDTH = 0.9, 0.3
# a belief, of as much weight as so many devices: factors of lookups scatter so much in logs over
# devices
_FACTOR_WIDTH, _BELIEVED_DEVICES = 0.25, 3.0
# and over sizes and directions within one: as Lin et al.'s own form with hit rates errs in the mean
# over forward lookups of one GPU
_WITHIN_WIDTH = 0.175


@dataclasses.dataclass(frozen=True)
class LookupPrior:
    """Means and widths [4] of the logs of `KNOBS`; and of the L2's bandwidth over the memory's."""

    mean: np.ndarray
    width: np.ndarray
    l2_over_memory: tuple[float, float]  # mean and width of its log

    @staticmethod
    def of(left_out: Collection[str] = ()) -> LookupPrior:
        """What the GPUs show that are not left out."""
        found = {name: one for name, one in MEASURED.items() if name not in left_out}
        specs = {name: load_device(name) for name in found}
        logs = [
            (
                math.log(one.memory_bytes_per_s / specs[name].memory_bytes_per_s),
                math.log(one.l2_bytes_per_s / one.clock_hz / (specs[name].multiprocessors or 1)),
                math.log(one.l2_bytes_per_s / specs[name].memory_bytes_per_s),
            )
            for name, one in found.items()
        ]
        (share, share_width), (clock, clock_width), ratio = (
            _mean_and_width(np.array(column)) for column in zip(*logs, strict=True)
        )
        factors = np.array([
            one.log_lookup_factor for one in found.values() if one.log_lookup_factor is not None
        ])  # fmt: skip
        squares = _BELIEVED_DEVICES * _FACTOR_WIDTH**2 + float(
            ((factors - factors.mean()) ** 2).sum()
        )
        over_devices = squares / (_BELIEVED_DEVICES + len(factors) - 1) * (1 + 1 / len(factors))
        factor_width = math.sqrt(over_devices + _WITHIN_WIDTH**2)
        mean = [share, clock, math.log(_L2_SHARE), float(factors.mean())]
        width = [share_width, clock_width, _L2_SHARE_WIDTH, factor_width]
        return LookupPrior(np.array(mean), np.array(width), ratio)

    def log_seconds(self, device: DeviceSpec, ops: Sequence[Op]) -> tuple[np.ndarray, np.ndarray]:
        """(logs of seconds of lookups [n], their deviations [n])."""
        found = [self.of_work(device, op.work(), device.peak(op.dtype, op.unit)) for op in ops]
        return np.array([float(log_s) for log_s, _ in found]), np.array(
            [float(w) for _, w in found]
        )

    def of_work(
        self, device: DeviceSpec, work: Work, peak_flops_per_s: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of works [...] of lookups."""
        mean, width = self.mean.copy(), self.width.copy()
        if device.clock_hz is None or device.multiprocessors is None:
            mean[1], width[1] = self.l2_over_memory
        at_mean = _log_seconds(device, work, peak_flops_per_s, mean)
        steps = _STEP * np.eye(len(KNOBS))
        moved = [_log_seconds(device, work, peak_flops_per_s, mean + one) for one in steps]
        slopes = (np.array(moved) - at_mean) / _STEP
        return at_mean, np.sqrt(np.tensordot(width**2, slopes**2, 1))


@functools.cache
def lookup_prior() -> LookupPrior:
    """What all GPUs show."""
    return LookupPrior.of()


def is_lookup(op: Op) -> bool:
    """Whether an op is an embedding bag, forward or backward."""
    return isinstance(op, EmbeddingBag | EmbeddingBagBackward)


def _log_seconds(
    device: DeviceSpec, work: Work, peak_flops_per_s: float, theta: np.ndarray
) -> np.ndarray:
    """Logs of seconds of lookups [...] at logs of knobs [4]."""
    share, l2, held, factor = np.exp(theta)
    rate = device.memory_bytes_per_s
    clocks = (device.clock_hz or 0.0) * (device.multiprocessors or 0)
    speedup, capacity = np.ones(len(LEVELS)), np.ones(len(LEVELS))
    speedup[:MEMORY] = max(l2 * (clocks or rate) / (share * rate), 1.0)
    capacity[_L2] = held
    knobs = dataclasses.replace(
        RooflineKnobs.neutral(), memory_efficiency=share, level_speedup=speedup,
        level_capacity=capacity,
    )  # fmt: skip
    on = Device(peak_flops_per_s, rate, device.level_bytes())
    return np.asarray(np.log(factor * op_seconds(work, on, knobs, np)))


def _mean_and_width(logs: np.ndarray) -> tuple[float, float]:
    """Of one more device, as wide as a normal distribution whose 90 % interval is Student's."""
    count = len(logs)
    student = float(scipy.stats.t.ppf(0.95, count - 1)) / NINE_OF_TEN
    return float(logs.mean()), float(logs.std(ddof=1) * math.sqrt(1 + 1 / count)) * student
