"""Which shapes to measure on a machine: those that tell most about all others per second.

Before anything is measured, the log times of R shapes are a Gaussian with the covariance

    K = J S J^T + r^2 exp(-|x_i - x_j|^2 / (2 l^2))        (second term: shapes of one kind only)

J [R, T] is the slope of log t(theta) of `knobs.py` at the centre of the knobs' prior and S the
squares of its widths: what one shape tells about another through the knobs they share. The second
term is a smooth error of r = 20 % that no knob explains, alike over l = 0.5; x are logs of
dimensions in standard deviations. A kind is one op in one dtype. Measuring shape i with noise s
removes from the variances of all shapes

    gain_i = sum_j w_j K_ij^2 / (K_ii + s^2)         w_j = 1 / (shapes of j's kind): kinds count
                                                     equally

The plan takes the largest gain per second (greedy I-optimal design), updates K by rank one, and
goes on until the budget is spent. Its rows stand in the order they were taken: any first part is a
plan, too.

A model narrows the belief: its knobs are the centre, S shrinks by its rows, and r is the error it
had on rows it had not seen. Where it has an interval of a shape, sd, whether by rows, by the prior
over devices or by another one's share of the roofline, K_ii is sd^2: the first term keeps what it
says of one shape by another (its correlations) and has the share p = 1 / (2 + n / 5) of sd^2 at n
measured rows of the shape's kind (half of it without any: a belief), the second has the rest.
Without a model a GPU is believed to be what the prior over devices says.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import qmc

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec, canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.learning.inputs import inputs_of
from hybridperf.model import GROUP_KNOBS, OpTable, PerfModel, canonical
from hybridperf.model.families import by_family
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.knobs import KnobVector, padded_rows
from hybridperf.model.fit.rows import parse_measured
from hybridperf.model.platform import op_table
from hybridperf.ops import GROUPS, Op, convolution, gemm, loops, movement, op_by_name, op_names

DEFAULT_OPS = (
    "gemm", "bmm", "conv", "add", "gelu", "softmax", "layernorm", "reduction", "transpose", "copy",
    "gather", "scatter_add", "adam", "random", "sort", "cumsum",
)  # fmt: skip
SHAPES = 2500  # of all kinds together: what a plan chooses from
LEAST_SHAPES_PER_KIND = 24
CASE_OVERHEAD_S = 1.0  # compiling, allocating and filling the tensors of one case
LONGEST_OP_S = 1.0
LARGEST_SHARE_OF_MEMORY = 0.25  # other programs, workspaces and a second copy need room, too
LARGEST_SHARE_OF_BUDGET = 0.03  # of one case's measuring
REPEATS_S = 0.2  # repeat an op for about that long, within the limits below, and keep the minimum
REPEATS = (5, 50)
RESIDUAL_SD = 0.2  # log error of the calibrated form that no knob explains
NOISE_SD = 0.05  # log error of one measurement
# distance, in standard deviations of log dimensions, over which that error changes
_RESIDUAL_LENGTH = 0.5
# columns of a plan that are no dimensions
_NOT_SIZES = ("op", "dtype", "device", "expected_s", "repeats", "gain", "time_s")
_ROWS_THAT_HALVE = 5.0  # twice as many halve what shapes of a kind have in common
_TINY = 1e-12
_BLOCK = 64  # picks between two exact covariances
_SEED = 20_250_101


@dataclasses.dataclass(frozen=True)
class ShapeChoice:
    """Rows of a table in the order to measure them. P picks, R rows of the table."""

    picks: np.ndarray  # int [P] positions in the table
    gain: np.ndarray  # [P] share of all variance that each pick removes
    kind: np.ndarray  # object [R] `op dtype`
    variance_before: np.ndarray  # [R] of log time
    variance_after: np.ndarray  # [R]


@dataclasses.dataclass(frozen=True)
class MeasurementPlan:
    """A table to fill in, and what it promises."""

    # op, dtype, dimensions, device, expected_s, repeats, gain, time_s (empty); most informative
    # rows first
    table: pd.DataFrame
    # op, dtype, cases, measuring_s, removed (share of the variance of the kind's log times)
    summary: pd.DataFrame
    seconds: float  # expected cost of it all


def plan(
    device: DeviceSpec, budget_s: float, *, ops: Sequence[str] = DEFAULT_OPS,
    dtypes: Sequence[str] = ("fp32",), model: PerfModel | None = None,
) -> MeasurementPlan:  # fmt: skip
    """The most informative shapes to measure on a device within a budget.

    Args:
        device: where to measure.
        budget_s: seconds to spend, compilation included.
        ops: names of ops in tables.
        dtypes: number formats, each for all ops.
        model: what is known of the device already; None: the prior over devices, and of a CPU that
            of the knobs.

    Raises:
        InputError: an op without known shapes, a dtype the device has no peak for, a model of
            another device, or a budget that does not pay for one measurement.
    """
    model = known_of(device, model)
    pool = candidates(device, ops, dtypes, budget_s, model=model)
    cost = CASE_OVERHEAD_S + pool["repeats"].to_numpy() * pool["expected_s"].to_numpy()
    choice = choose(pool, cost, budget_s, device, model=model)
    table = pool.iloc[choice.picks].reset_index(drop=True).assign(gain=choice.gain, time_s=np.nan)
    known = [column for column in table.columns if table[column].notna().any()]
    sizes = [column for column in known if column not in _NOT_SIZES]
    table = table[["op", "dtype", *sizes, *_NOT_SIZES[2:]]].astype(dict.fromkeys(sizes, "Int64"))
    return MeasurementPlan(table, _summary(pool, cost, choice), float(cost[choice.picks].sum()))


def known_of(device: DeviceSpec, model: PerfModel | None) -> PerfModel | None:
    """What is known of a device: its model, or without one the prior over devices, if it tells of
    such; `InputError` for a model of another device.
    """
    if model is not None and model.device.id != device.id:
        raise InputError(
            f"expected a model of {device.id}, got one of {model.device.id}; give the --device the"
            " model was fitted for"
        )
    if model is not None or device.kind != "gpu":
        return model
    prior = fit(None, device)[0]
    return prior if prior.families else None


def check_budget(cost_s: np.ndarray, budget_s: float) -> None:
    """`InputError` for a budget that pays for none of some measurements [R]."""
    if not np.min(cost_s) <= budget_s:
        raise InputError(
            f"expected a budget that pays for a measurement, got {budget_s:.3g} s; the cheapest"
            f" takes {np.min(cost_s):.3g} s"
        )


def repeats_of(expected_s: np.ndarray) -> np.ndarray:
    """How often ops of some expected seconds [R] are run."""
    return np.clip(np.ceil(REPEATS_S / expected_s), *REPEATS)


def choose(
    rows: pd.DataFrame, cost_s: np.ndarray, budget_s: float, device: DeviceSpec, *,
    model: PerfModel | None = None,
) -> ShapeChoice:  # fmt: skip
    """Which rows of a table of ops to measure, each at its `cost_s` [R], within `budget_s`.

    Each kind gets one row before any gets its second. `InputError` for rows that cannot be read, or
    if no row is within the budget.
    """
    check_budget(cost_s, budget_s)
    belief = Belief.about(rows, device, model)
    covariance = belief.covariance()
    before, noise = np.diag(covariance).copy(), belief.noise()
    kinds, kind = np.unique(belief.kind, return_inverse=True)
    weight = 1.0 / np.bincount(kind)[kind]

    variance, informed = before.copy(), covariance**2 @ weight  # sum_j w_j K_ij^2
    # K is covariance - pending^T pending; subtracting now and then is cheaper than each time
    pending = np.zeros((_BLOCK, len(rows)))
    n = 0
    open_, seen, left = np.ones(len(rows), bool), np.zeros(len(kinds), bool), budget_s
    picks: list[int] = []
    gains: list[float] = []
    while (affordable := open_ & (cost_s <= left)).any():
        unseen = affordable & ~seen[kind]
        wanted = unseen if unseen.any() else affordable
        gain = informed / (variance + noise)
        pick = int(np.argmax(np.where(wanted, gain / cost_s, -np.inf)))
        picks.append(pick)
        gains.append(float(gain[pick]))
        left -= cost_s[pick]
        open_[pick] = False
        seen[kind[pick]] = True

        noisy_sd = math.sqrt(variance[pick] + noise[pick])
        u = (covariance[pick] - pending[:n, pick] @ pending[:n]) / noisy_sd
        # K' = K - u u^T gives  sum_j w_j K'_ij^2 = sum_j w_j K_ij^2 - 2 u_i (K (w u))_i + u_i^2 (w
        # . u^2)
        wu = weight * u
        slope = covariance @ wu - (pending[:n] @ wu) @ pending[:n]
        informed = np.maximum(informed - 2 * u * slope + u**2 * (wu @ u), 0.0)
        variance = np.maximum(variance - u**2, 0.0)
        pending[n] = u
        n += 1
        if n == _BLOCK:
            covariance -= pending.T @ pending
            # afresh: rounding adds up
            variance, informed, n = np.maximum(np.diag(covariance), 0.0), covariance**2 @ weight, 0
    gain = np.array(gains) / float(weight @ before)
    return ShapeChoice(np.array(picks), gain, belief.kind, before, variance)


def _summary(pool: pd.DataFrame, cost: np.ndarray, choice: ShapeChoice) -> pd.DataFrame:
    taken = np.zeros(len(pool), bool)
    taken[choice.picks] = True
    frame = pool[["op", "dtype"]].assign(
        cases=taken, measuring_s=np.where(taken, cost, 0.0), before=choice.variance_before,
        after=choice.variance_after,
    )  # fmt: skip
    out = frame.groupby(["op", "dtype"], sort=False).sum().reset_index()
    return out.assign(removed=1 - out["after"] / out["before"]).drop(columns=["before", "after"])


# --- what is believed before measuring ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Belief:
    """Log times of R shapes as a Gaussian: centre and widths of T knobs, remaining error."""

    device: DeviceSpec
    table: OpTable  # [R]
    kind: np.ndarray  # object [R] `op dtype`
    sizes: np.ndarray  # [R, dimensions of all kinds]; NaN where a kind has no such dimension
    vector: KnobVector
    centre: np.ndarray  # theta [T]
    widths: np.ndarray  # [T]
    # [R] rows of the model that speak of the shape's group, per shape of the group inside of their
    # range
    known: np.ndarray
    residual_sd: np.ndarray  # [R]
    # by the model: logs of seconds and their deviations [R], NaN where it has no interval; the
    # share of the variance that shapes have in common
    log_s: np.ndarray
    log_sd: np.ndarray
    shared: np.ndarray

    @staticmethod
    def about(rows: pd.DataFrame, device: DeviceSpec, model: PerfModel | None) -> Belief:
        """By the prior of the knobs and `model`, of a table of ops."""
        parsed = parse_measured(rows.reset_index(drop=True), device)
        place = np.argsort(np.concatenate([part.rows for part in parsed.parts]))
        tables = [op_table(part) for part in parsed.parts]
        table = jax.tree.map(lambda *leaves: np.concatenate(leaves)[place], *tables)
        names = sorted({name for part in parsed.parts for name in part.op.dimensions()})
        sizes = np.full((len(rows), len(names)), np.nan)
        known, residual_sd = np.zeros(len(rows)), np.full(len(rows), RESIDUAL_SD)
        for part in parsed.parts:
            for name in part.op.dimensions():
                sizes[part.rows, names.index(name)] = getattr(part.op, name)
            for group, report in (model.groups if model else {}).items():
                here = part.group == GROUPS.index(group)
                inputs = inputs_of(part.op, part.work, len(part.rows))
                inside = here & (report.box.outside(inputs) == 0) & report.measured_dtype(part.op)
                known[part.rows[inside]] = report.rows
                if report.half_width is not None:
                    error = math.log1p(report.half_width) / NINE_OF_TEN
                    residual_sd[part.rows[inside]] = error
                    residual_sd[part.rows[here & ~inside]] = max(error, RESIDUAL_SD)
        for group in np.unique(table.group):
            known[table.group == group] /= max(1, int((known[table.group == group] > 0).sum()))
        vector = KnobVector.of(table, device)
        centre, widths = vector.prior()
        centre = _centre(vector, centre, device, model)
        kind = (rows["op"].astype(str) + " " + rows["dtype"].astype(str)).to_numpy(object)
        told = np.full((3, len(rows)), np.nan)
        measured = np.zeros(len(rows))
        if model is not None:
            columns = ["predicted_s", "low_s", "high_s"]
            told = np.log(model.predict_ops(rows.reset_index(drop=True))[columns].to_numpy().T)
            for part in parsed.parts:
                for group, report in model.groups.items():
                    measured[part.rows[part.group == GROUPS.index(group)]] = report.rows
                for family, here in by_family(part):  # its group's report has the same rows
                    if (adapted := model.families.get(family)) is not None:
                        measured[part.rows[here]] = adapted.rows
        log_sd = (told[2] - told[1]) / 2 / NINE_OF_TEN
        return Belief(
            device, table, kind, sizes, vector, centre, widths, known, residual_sd, told[0],
            log_sd, 1 / (2 + measured / _ROWS_THAT_HALVE),
        )  # fmt: skip

    def seconds(self) -> np.ndarray:
        """Expected seconds [R]."""
        by_knobs = self._slopes_and_log_seconds[1]
        return np.exp(np.where(np.isfinite(self.log_sd), self.log_s, by_knobs))

    def covariance(self) -> np.ndarray:
        """Of log times [R, R]."""
        slope = self._slopes_and_log_seconds[0]
        of_rows = (slope.T * (self.known / self.residual_sd**2)) @ slope
        precision = np.diag(self.widths**-2.0) + of_rows
        # S = precision^-1 = L^-T L^-1
        half = np.linalg.solve(np.linalg.cholesky(precision), slope.T)
        covariance = half.T @ half
        known = np.isfinite(self.log_sd)
        wanted = np.where(known, np.sqrt(self.shared) * self.log_sd, np.sqrt(np.diag(covariance)))
        scale = wanted / np.sqrt(np.maximum(np.diag(covariance), _TINY))
        covariance *= scale[:, None] * scale
        alone = np.where(known, np.sqrt(1 - self.shared) * self.log_sd, self.residual_sd)
        for kind in np.unique(self.kind):
            at = np.flatnonzero(self.kind == kind)
            x = _standardised(self.sizes[at])
            apart = np.maximum((x**2).sum(1)[:, None] + (x**2).sum(1) - 2 * x @ x.T, 0.0)
            sd = alone[at]
            smooth = sd[:, None] * sd * np.exp(-0.5 * apart / _RESIDUAL_LENGTH**2)
            covariance[np.ix_(at, at)] += smooth
        return covariance

    def noise(self) -> np.ndarray:
        """Variance of one measurement's log time [R], as a fit weighs it.

        A few rows narrow a model's interval less than they tell: it keeps to the width of the
        devices before. With noise as large as the error so far, promises are what fits then say
        (`tests/model/test_workload_plan.py`).
        """
        return NOISE_SD**2 + np.nan_to_num(self.log_sd) ** 2

    @functools.cached_property
    def _slopes_and_log_seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows by theta [R, T], and the rows' own [R]."""
        count = len(self.known)
        rows = np.arange(padded_rows(count)) % count
        with jax.enable_x64(True):
            found = _slopes_and_log_seconds(
                self.vector, jnp.asarray(self.centre),
                canonical(jax.tree.map(lambda x: x[rows], self.table)),
                jnp.asarray(self.device.memory_bytes_per_s), jnp.asarray(self.device.level_bytes()),
            )  # fmt: skip
        slopes, log_s = (np.asarray(one)[:count] for one in found)
        return slopes, log_s


@functools.partial(jax.jit, static_argnums=0)
def _slopes_and_log_seconds(
    vector: KnobVector, theta: jax.Array, table: OpTable, bytes_per_s: Any, level_bytes: Any
) -> tuple[Any, Any]:
    def log_seconds(theta: jax.Array) -> tuple[Any, Any]:
        found = vector.log_seconds(theta, table, bytes_per_s, level_bytes)
        return found, found

    slopes, log_s = jax.jacfwd(log_seconds, has_aux=True)(theta)
    return slopes, log_s


def _centre(
    vector: KnobVector, prior: np.ndarray, device: DeviceSpec, model: PerfModel | None
) -> np.ndarray:
    """theta [T] around which times are linearised: the model's knobs, or else the prior's."""
    known = model.groups if model else {}
    theta = prior.copy()
    for at, (name, of) in enumerate(vector.places()):
        fitted = GROUPS[of] in known if name in GROUP_KNOBS else bool(known)
        if model is not None and fitted:
            knob = getattr(model.knobs, name)[of]
            if name == "level_speedup":  # over the level behind it
                knob = knob / model.knobs.level_speedup[vector.behind(of)] - 1
            # in the fit's coordinate; zero (no step cost, no gain of a cache) becomes tiny
            if name == "smoothing":
                share = min(max(float(knob), 1e-3), 1 - 1e-3)
                theta[at] = math.log(share / (1 - share))
            else:
                theta[at] = math.log(max(float(knob), 1e-30))
        elif name in ("step_s", "line_s"):  # the prior's steps and strided reads are one core's
            theta[at] -= math.log(device.multiprocessors or 1)
    return theta


def _standardised(sizes: np.ndarray) -> np.ndarray:
    """[n, d] -> logs of the sizes that vary, standardised; flags (0 or 1) are not logged."""
    columns = []
    for size in sizes.T:
        x = np.log(size) if (size > 0).all() else size
        if np.isfinite(x).all() and np.ptp(x) > 0:
            columns.append((x - x.mean()) / x.std())
    return np.stack(columns, axis=1) if columns else np.zeros((len(sizes), 1))


# --- shapes to choose from ------------------------------------------------------------------------

# (smallest, largest) of each dimension in training workloads, both included
_CONVOLUTION = {"batch": (1, 256), "c_in": (3, 2048), "c_out": (16, 2048), "h_in": (7, 224)}
RANGES: Mapping[type[Op], Mapping[str, tuple[int, int]]] = {
    gemm.Gemm: {"m": (8, 65_536), "n": (8, 32_768), "k": (8, 32_768)},
    gemm.BatchedGemm: {"batch": (2, 4096), "m": (8, 4096), "n": (8, 4096), "k": (8, 4096)},
    convolution.Convolution: _CONVOLUTION,
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
}
_POWER_OF_TWO, _MULTIPLE_OF_8 = 0.4, 0.3  # shares of sizes; the rest is odd
# (transposed_a, transposed_b) of a layer's product, its input gradient, its weight gradient
_FORMS = ((0, 0), (0, 1), (1, 0))
_KERNELS, _STRIDES = (1, 3, 5, 7), (1, 2)


def candidates(
    device: DeviceSpec, ops: Sequence[str], dtypes: Sequence[str], budget_s: float, *,
    model: PerfModel | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Shapes that device and budget hold, as a table of ops with `expected_s` and `repeats`."""
    plannable = [name for name in op_names() if op_by_name(name)[0] in RANGES]
    ops, dtypes = list(dict.fromkeys(ops)), list(dict.fromkeys(map(canonical_dtype, dtypes)))
    for name in ops:
        if name not in plannable:
            raise unknown("op", name, plannable, f"shapes can be planned of {', '.join(plannable)}")
    if not ops or not dtypes:
        raise InputError(f"expected at least one {'dtype' if ops else 'op'} to measure, got none")
    for name in ops:
        for dtype in dtypes:
            device.peak(dtype, op_by_name(name)[0].unit)  # raises where there is none
    wanted = max(LEAST_SHAPES_PER_KIND, SHAPES // (len(ops) * len(dtypes)))
    drawn = [
        _shapes(name, 3 * wanted).assign(op=name, dtype=dtype) for name in ops for dtype in dtypes
    ]
    pool = pd.concat(drawn, ignore_index=True).assign(device=device.id)
    belief = Belief.about(pool, device, model)
    expected = belief.seconds()
    repeats = repeats_of(expected)
    paid = (expected <= LONGEST_OP_S) & (repeats * expected <= LARGEST_SHARE_OF_BUDGET * budget_s)
    holds = fits(pool, belief, device) & paid
    for kind in np.unique(belief.kind):
        if not holds[belief.kind == kind].any():
            raise InputError(
                f"expected a budget that pays for {kind}, got {budget_s:.3g} s: measuring a case"
                f" may take {LARGEST_SHARE_OF_BUDGET:.0%} of it and a quarter of {device.id}'s"
                " memory; give more time or leave the op out"
            )
    pool = pool.assign(expected_s=expected, repeats=repeats.astype(int))[holds]
    return pool.groupby(["op", "dtype"], sort=False).head(wanted).reset_index(drop=True)


def fits(pool: pd.DataFrame, belief: Belief, device: DeviceSpec) -> np.ndarray:
    """Whether a device's memory holds what each shape needs [R].

    Compulsory traffic touches each tensor at least once; of a lookup's table most may never be
    touched.
    """
    footprint = belief.table.work.bytes
    for rows, cols in (("vocab", "cols"), ("rows", "dim")):
        if {rows, cols} <= {*pool.columns}:
            tables = pool[rows] * pool[cols] * pool["dtype"].map(DTYPE_BYTES)
            footprint = footprint + tables.fillna(0.0).to_numpy()
    return np.asarray(footprint <= LARGEST_SHARE_OF_MEMORY * device.memory_bytes)


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
        forms = np.array(_FORMS)[(last * len(_FORMS)).astype(int)]
        frame["transposed_a"], frame["transposed_b"] = forms.T
    if cls is convolution.Convolution:
        which = (last * len(_KERNELS) * len(_STRIDES)).astype(int)
        frame["kh"] = np.array(_KERNELS)[which % len(_KERNELS)]
        frame["stride"] = np.array(_STRIDES)[which // len(_KERNELS)]
        frame["padding"] = frame["kh"] // 2
        frame["h_out"] = -(-frame["h_in"] // frame["stride"])
    return frame.drop_duplicates()


def _aligned(size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sizes near the given ones: powers of two, multiples of 8, or odd, as kernels tell apart."""
    style = rng.random(len(size))
    eight = np.where(size >= 8, 8 * np.round(size / 8), np.round(size))
    odd = 2 * np.floor(size / 2) + 1
    return np.where(
        style < _POWER_OF_TWO,
        2 ** np.round(np.log2(size)),
        np.where(style < _POWER_OF_TWO + _MULTIPLE_OF_8, eight, odd),
    ).astype(int)
