"""Shapes to choose from: log-uniform in the ranges of training workloads, as kernels tell sizes
apart, of what a device's memory and a budget hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import qmc

from hybridperf.explore.measurements.belief import Belief
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.model import PerfModel
from hybridperf.ops import Op, convolution, gemm, loops, movement, op_by_name, op_names

SHAPES = 2500  # of all kinds together: what a plan chooses from
LEAST_SHAPES_PER_KIND = 24
LONGEST_OP_S = 1.0
LARGEST_SHARE_OF_BUDGET = 0.03  # of one case's measuring
_SEED = 20_250_101
# (smallest, largest) of each dimension in training workloads, both included
RANGES: Mapping[type[Op], Mapping[str, tuple[int, int]]] = {
    gemm.Gemm: {"m": (8, 65_536), "n": (8, 32_768), "k": (8, 32_768)},
    gemm.BatchedGemm: {"batch": (2, 4096), "m": (8, 4096), "n": (8, 4096), "k": (8, 4096)},
    convolution.Convolution: {
        "batch": (1, 256), "c_in": (3, 2048), "c_out": (16, 2048), "h_in": (7, 224),
    },
    loops.Elementwise: {"rows": (8, 65_536), "cols": (8, 65_536)},
    loops.Reduction: {"rows": (8, 65_536), "cols": (8, 65_536)},
    loops.Softmax: {"rows": (8, 131_072), "cols": (8, 131_072)},
    loops.Norm: {"rows": (8, 131_072), "cols": (16, 16_384)},
    loops.Sort: {"rows": (1, 4096), "cols": (16, 1_000_000)},
    loops.Cumulative: {"rows": (1, 65_536), "cols": (8, 65_536)},
    loops.Random: {"rows": (8, 65_536), "cols": (8, 65_536)},
    loops.OptimizerUpdate: {"parameters": (256, 1_000_000_000)},
    movement.Copy: {"rows": (8, 65_536), "cols": (8, 65_536)},
    movement.Transpose: {"rows": (8, 16_384), "cols": (8, 16_384), "batch": (1, 256)},
    movement.Gather: {"rows": (32, 4_000_000), "cols": (4, 4096), "vocab": (100, 100_000_000)},
    movement.ScatterAdd: {"rows": (32, 4_000_000), "cols": (4, 4096), "vocab": (100, 100_000_000)},
}  # fmt: skip
_POWER_OF_TWO, _MULTIPLE_OF_8 = 0.4, 0.3  # shares of sizes; the rest is odd
# (transposed_a, transposed_b) of a layer's product, its input gradient, its weight gradient
_FORMS = np.array([(0, 0), (0, 1), (1, 0)])
_KERNELS, _STRIDES = np.array([1, 3, 5, 7]), np.array([1, 2])


def candidates(
    model: PerfModel, ops: Sequence[str], dtypes: Sequence[str], budget_s: float
) -> pd.DataFrame:
    """Shapes that a model's device and a budget hold, as a table of ops with `expected_s` and
    `repeats`.
    """
    device = model.device
    plannable = [name for name in op_names() if op_by_name(name)[0] in RANGES]
    ops, dtypes = list(dict.fromkeys(ops)), list(dict.fromkeys(map(canonical_dtype, dtypes)))
    for name in ops:
        if name not in plannable:
            raise unknown("op", name, plannable, f"shapes can be planned of {', '.join(plannable)}")
    if not ops or not dtypes:
        raise InputError(f"expected at least one {'dtype' if ops else 'op'} to measure, got none")
    kinds = [(name, dtype) for name in ops for dtype in dtypes]
    for name, dtype in kinds:
        device.peak(dtype, op_by_name(name)[0].unit)  # raises where there is none
    wanted = max(LEAST_SHAPES_PER_KIND, SHAPES // len(kinds))
    drawn = [_shapes(name, 3 * wanted).assign(op=name, dtype=dtype) for name, dtype in kinds]
    belief = Belief.about(pd.concat(drawn, ignore_index=True), model)
    expected, repeats = belief.seconds, belief.repeats
    paid = (expected <= LONGEST_OP_S) & (repeats * expected <= LARGEST_SHARE_OF_BUDGET * budget_s)
    holds = belief.fits & paid
    for kind in np.unique(belief.kind):
        if not holds[belief.kind == kind].any():
            raise InputError(
                f"expected a budget that pays for {kind}, got {budget_s:.3g} s: measuring a case"
                f" may take {LARGEST_SHARE_OF_BUDGET:.0%} of it and a quarter of {device.id}'s"
                " memory; give more time or leave the op out"
            )
    pool = belief.rows.assign(expected_s=expected, repeats=repeats)[holds]
    return pool.groupby(["op", "dtype"], sort=False).head(wanted).reset_index(drop=True)


def _shapes(name: str, least: int) -> pd.DataFrame:
    """At least `least` shapes of an op, log-uniform in its ranges; the same at every call."""
    cls, _ = op_by_name(name)
    ranges = RANGES[cls]
    sobol = qmc.Sobol(len(ranges) + 1, scramble=True, seed=_SEED)
    points = sobol.random_base2(math.ceil(math.log2(least)))
    rng = np.random.default_rng(_SEED)
    frame = pd.DataFrame({
        size: _aligned(low * (high / low) ** u, rng).clip(low, high)
        for (size, (low, high)), u in zip(ranges.items(), points.T[:-1], strict=True)
    })  # fmt: skip
    last = points[:, -1]
    if cls in (gemm.Gemm, gemm.BatchedGemm):
        forms = _FORMS[(last * len(_FORMS)).astype(int)]
        frame["transposed_a"], frame["transposed_b"] = forms.T
    if cls is convolution.Convolution:
        which = (last * len(_KERNELS) * len(_STRIDES)).astype(int)
        frame["kh"] = _KERNELS[which % len(_KERNELS)]
        frame["stride"] = _STRIDES[which // len(_KERNELS)]
        frame["padding"] = frame["kh"] // 2
        frame["h_out"] = -(-frame["h_in"] // frame["stride"])
    return frame.drop_duplicates()


def _aligned(size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sizes near the given ones: powers of two, multiples of 8, or odd."""
    style = rng.random(len(size))
    eight = np.where(size >= 8, 8 * np.round(size / 8), np.round(size))
    odd = 2 * np.floor(size / 2) + 1
    return np.where(
        style < _POWER_OF_TWO,
        2 ** np.round(np.log2(size)),
        np.where(style < _POWER_OF_TWO + _MULTIPLE_OF_8, eight, odd),
    ).astype(int)
