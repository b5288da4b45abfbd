"""What is believed of shapes before they are measured, and what each tells about all others.

The log times of R shapes are a Gaussian with the covariance

    K = J S J^T + r^2 exp(-|x_i - x_j|^2 / (2 l^2))        (second term: shapes of one kind only)

J [R, T] is the slope of log t(theta) of `model/fit/knobs.py` at the centre of the knobs' prior and
S the squares of its widths: what one shape tells about another through the knobs they share. The
second term is a smooth error of r = 20 % that no knob explains, alike over l = 0.5; x are logs of
dimensions in standard deviations. A kind is one op in one dtype.

A model narrows the belief: its knobs are the centre, S shrinks by its rows, and r is the error it
had on rows it had not seen. Where it has an interval of a shape, sd, whether by rows, by the prior
over devices or by another one's share of the roofline, K_ii is sd^2: the first term keeps what it
says of one shape by another (its correlations) and has the share p = 1 / (2 + n / 5) of sd^2 at n
measured rows of the shape's kind (half of it without any: a belief), the second has the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning.inputs import inputs_of
from hybridperf.model import GROUP_KNOBS, OpTable, PerfModel, canonical
from hybridperf.model.families import by_family
from hybridperf.model.fit.knobs import KnobVector, padded_rows
from hybridperf.model.fit.rows import parse_measured
from hybridperf.model.platform import op_table
from hybridperf.ops import GROUPS

CASE_OVERHEAD_S = 1.0  # compiling, allocating and filling the tensors of one case
REPEATS_S = 0.2  # repeat an op for about that long, within the limits below, and keep the minimum
REPEATS = (5, 50)
LARGEST_SHARE_OF_MEMORY = 0.25  # other programs, workspaces and a second copy need room, too
RESIDUAL_SD = 0.2  # log error of the calibrated form that no knob explains
NOISE_SD = 0.05  # log error of one measurement
# distance, in standard deviations of log dimensions, over which that error changes
_RESIDUAL_LENGTH = 0.5
# variance of noise over that of the error so far. Of L4, A40, RTX 3090 and 4090, GB300 and MI325X
# without rows, fits to three rows and more are then 0.9 to 5.3 times narrower than was promised
# (with all of it 1.3 to 7.1), to two 0.7 to 6.2 times
_NOISE_OF_ERROR = 0.5
_ROWS_THAT_HALVE = 5.0  # twice as many halve what shapes of a kind have in common
_TINY = 1e-12


@dataclasses.dataclass(frozen=True)
class Belief:
    """Log times of R shapes as a Gaussian: by T knobs, and what these leave."""

    rows: pd.DataFrame  # [R] a table of ops
    model: PerfModel
    table: OpTable  # [R]
    seconds: np.ndarray  # [R] expected
    sizes: np.ndarray  # [R, dimensions of all kinds]; NaN where a kind has no such dimension
    slopes: np.ndarray  # [R, T] of log times by theta
    widths: np.ndarray  # [T] of theta's prior
    # rows of the model that speak of the shape's group, for each shape inside of their range [R]
    known: np.ndarray
    residual_sd: np.ndarray  # [R]
    log_sd: np.ndarray  # [R] by the model's intervals; NaN where it has none
    shared: np.ndarray  # [R] share of that variance that shapes of a kind have in common
    # of it, what another laboratory and a class of devices add without rows [R]
    stranger_sd: np.ndarray

    @staticmethod
    def about(rows: pd.DataFrame, model: PerfModel) -> Belief:
        """Of a table of ops on a model's device."""
        rows, count = rows.reset_index(drop=True), len(rows)
        parts = parse_measured(rows, model.device).parts
        place = np.argsort(np.concatenate([part.rows for part in parts]))
        tables = [op_table(part) for part in parts]
        table = jax.tree.map(lambda *leaves: np.concatenate(leaves)[place], *tables)
        sizes: dict[str, np.ndarray] = {}
        known, measured, residual_sd, stranger_sd = np.zeros((4, count))
        residual_sd[:] = RESIDUAL_SD
        for part in parts:
            for name in part.op.dimensions():
                size = sizes.setdefault(name, np.full(count, np.nan))
                size[part.rows] = getattr(part.op, name)
            for group, report in model.groups.items():
                here = part.group == GROUPS.index(group)
                inputs = inputs_of(part.op, part.work, len(part.rows))
                inside = here & (report.box.outside(inputs) == 0) & report.measured_dtype(part.op)
                known[part.rows[inside]] = report.rows
                measured[part.rows[here]] = report.rows
                if report.half_width is not None:
                    error = math.log1p(report.half_width) / NINE_OF_TEN
                    residual_sd[part.rows[here]] = max(error, RESIDUAL_SD)
                    residual_sd[part.rows[inside]] = error
            for family, here in by_family(part):  # its group's report has the same rows
                if (adapted := model.families.get(family)) is not None:
                    measured[part.rows[here]] = adapted.rows
                    if not adapted.rows:
                        stranger_sd[part.rows[here]] = adapted.prior.population.stranger_sd
        known /= np.maximum(np.bincount(table.group, known > 0), 1)[table.group]
        slopes, widths, seconds = _by_knobs(table, model)
        told = model.predict_ops(rows)
        log_sd = np.log(told["high_s"] / told["low_s"]).to_numpy() / 2 / NINE_OF_TEN
        seconds = np.where(np.isfinite(log_sd), told["predicted_s"], seconds)
        whole = np.clip(np.nan_to_num(stranger_sd / log_sd), 0.0, 1.0) ** 2
        shared = whole + (1 - whole) / (2 + measured / _ROWS_THAT_HALVE)
        return Belief(
            rows, model, table, seconds, np.stack([*sizes.values()], 1), slopes, widths, known,
            residual_sd, log_sd, shared, stranger_sd,
        )  # fmt: skip

    @property
    def kind(self) -> np.ndarray:
        """`op dtype` of each shape, object [R]."""
        return (self.rows["op"].astype(str) + " " + self.rows["dtype"].astype(str)).to_numpy(object)

    @property
    def repeats(self) -> np.ndarray:
        """How often each shape is run, int [R]."""
        return np.clip(np.ceil(REPEATS_S / self.seconds), *REPEATS).astype(int)

    @property
    def cost_s(self) -> np.ndarray:
        """Seconds that measuring each shape takes [R]."""
        return CASE_OVERHEAD_S + self.repeats * self.seconds

    @property
    def fits(self) -> np.ndarray:
        """Whether the device's memory holds what each shape needs [R].

        Compulsory traffic touches each tensor at least once; of a lookup's table most may never be
        touched.
        """
        footprint, rows = self.table.work.bytes, self.rows
        for entries, width in (("vocab", "cols"), ("rows", "dim")):
            if {entries, width} <= {*rows.columns}:
                tables = rows[entries] * rows[width] * rows["dtype"].map(DTYPE_BYTES)
                footprint = footprint + tables.fillna(0.0).to_numpy()
        return np.asarray(footprint <= LARGEST_SHARE_OF_MEMORY * self.model.device.memory_bytes)

    def covariance(self) -> np.ndarray:
        """Covariance of the logs of the rows' times [R, R]."""
        of_rows = (self.slopes.T * (self.known / self.residual_sd**2)) @ self.slopes
        precision = np.diag(self.widths**-2.0) + of_rows
        # S = precision^-1 = L^-T L^-1
        half = np.linalg.solve(np.linalg.cholesky(precision), self.slopes.T)
        covariance = half.T @ half
        by_knobs, known = np.sqrt(np.diag(covariance)), np.isfinite(self.log_sd)
        wanted = np.where(known, np.sqrt(self.shared) * self.log_sd, by_knobs)
        scale = wanted / np.maximum(by_knobs, math.sqrt(_TINY))
        covariance *= scale[:, None] * scale
        alone = np.where(known, np.sqrt(1 - self.shared) * self.log_sd, self.residual_sd)
        kinds = self.kind
        for kind in np.unique(kinds):
            at = np.flatnonzero(kinds == kind)
            x, sd = _standardised(self.sizes[at]), alone[at]
            apart = np.maximum((x**2).sum(1)[:, None] + (x**2).sum(1) - 2 * x @ x.T, 0.0)
            smooth = sd[:, None] * sd * np.exp(-0.5 * apart / _RESIDUAL_LENGTH**2)
            covariance[np.ix_(at, at)] += smooth
        return covariance

    def noise(self) -> np.ndarray:
        """Variance of one measurement's log time [R], as a fit weighs it.

        A few rows narrow a model's interval less than they tell: it keeps to the width of the
        devices before. How much less is `_NOISE_OF_ERROR`, beside what any row takes away
        (`tests/explore/test_workload_plan.py`).
        """
        error = np.nan_to_num(self.log_sd) ** 2 - self.stranger_sd**2
        return NOISE_SD**2 + _NOISE_OF_ERROR * np.maximum(error, 0.0)


def _by_knobs(table: OpTable, model: PerfModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(slopes of log times over theta [R, T], widths of its prior [T], seconds [R])."""
    vector = KnobVector.of(table, model.device)
    count = len(table.group)
    rows = np.arange(padded_rows(count)) % count
    with jax.enable_x64(True):
        found = _slopes_and_log_seconds(
            vector, jnp.asarray(centre(vector, model)),
            canonical(jax.tree.map(lambda x: x[rows], table)),
            jnp.asarray(model.device.memory_bytes_per_s), jnp.asarray(model.device.level_bytes()),
        )  # fmt: skip
    slopes, log_s = (np.asarray(one)[:count] for one in found)
    return slopes, vector.prior()[1], np.exp(log_s)


@functools.partial(jax.jit, static_argnums=0)
def _slopes_and_log_seconds(
    vector: KnobVector, theta: jax.Array, table: OpTable, bytes_per_s: Any, level_bytes: Any
) -> tuple[Any, Any]:
    def log_seconds(theta: jax.Array) -> tuple[Any, Any]:
        found = vector.log_seconds(theta, table, bytes_per_s, level_bytes)
        return found, found

    slopes, log_s = jax.jacfwd(log_seconds, has_aux=True)(theta)
    return slopes, log_s


def centre(vector: KnobVector, model: PerfModel) -> np.ndarray:
    """theta [T] around which times are linearised: a model's fitted knobs, else the prior's."""
    theta = vector.prior()[0]
    for at, (name, of) in enumerate(vector.places()):
        if GROUPS[of] in model.groups if name in GROUP_KNOBS else model.groups:
            knob = float(getattr(model.knobs, name)[of])
            if name == "level_speedup":  # over the level behind it
                knob = knob / model.knobs.level_speedup[vector.behind(of)] - 1
            # in the fit's coordinate; zero (no step cost, no gain of a cache) becomes tiny
            if name == "smoothing":
                share = min(max(knob, 1e-3), 1 - 1e-3)
                theta[at] = math.log(share / (1 - share))
            else:
                theta[at] = math.log(max(knob, 1e-30))
        elif name in ("step_s", "line_s"):  # the prior's steps and strided reads are one core's
            theta[at] -= math.log(model.device.multiprocessors or 1)
    return theta


def _standardised(sizes: np.ndarray) -> np.ndarray:
    """[n, d] -> logs of the sizes that vary, standardised; flags (0 or 1) are not logged."""
    columns = []
    for size in sizes.T:
        x = np.log(size) if (size > 0).all() else size
        if np.isfinite(x).all() and np.ptp(x) > 0:
            columns.append((x - x.mean()) / x.std())
    return np.stack(columns, axis=1) if columns else np.zeros((len(sizes), 1))
