"""Which shapes to measure on a machine: those that tell most per second about all others, or
about one workload.

By the covariance K of the log times of R shapes (`belief.py`), measuring shape i with noise s
removes

    sum_j w_j K_ij^2 / (K_ii + s^2)    of the variances of all shapes; w_j = 1 / (shapes of j's
                                       kind): kinds count equally (`plan`)
    (K a)_i^2 / (K_ii + s^2)           of that of a step's log time, a^T K a: it moves with its ops'
                                       by the share a_j of its time that each takes (`plan_for`)

A plan takes the largest removal per second (greedy I- and c-optimal design), updates K by rank one,
and goes on until the budget is spent. Any first part of its rows is a plan, too. A workload's takes
its own ops and shapes of the same kinds, which may tell of several of its ops at once, or be
quicker to measure. What is no op (messages, a host's seconds, fused loops that nobody can call
alone) is not narrowed by measuring ops: its share of the step is reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.explore.measurements.belief import Belief
from hybridperf.explore.measurements.shapes import RANGES, candidates
from hybridperf.fields.columns import read_whole
from hybridperf.hardware import DeviceSpec, canonical_dtype
from hybridperf.io import InputError
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.io.tables import Numbers, number_columns
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import fit
from hybridperf.ops import op_by_name
from hybridperf.ops.base import fields_of_table, op_fields
from hybridperf.ops.table import parse_ops

DEFAULT_OPS = (
    "gemm", "bmm", "conv", "add", "gelu", "softmax", "layernorm", "reduction", "transpose", "copy",
    "gather", "scatter_add", "adam", "random", "sort", "cumsum",
)  # fmt: skip
# columns of `Prediction.ops` and of tables of ops that are no dimensions
_OTHER_SHAPES = 600  # besides the workload's own, of all kinds together
_LEAST_REMOVED = 1e-3  # of the variance that is left: less is not worth a workload's measurement


@dataclasses.dataclass(frozen=True)
class MeasurementPlan:
    """A table to fill in, and what it promises."""

    # op, dtype, dimensions, device, expected_s, repeats, time_s (empty); most informative rows
    # first. And gain (share of all variance that the row removes), or for a workload half_width (of
    # the step's interval once this row and those above are measured)
    table: pd.DataFrame
    # op, dtype, cases, measuring_s, removed (share of the variance of the kind's log times, or of
    # the step's), of a workload share (of the step)
    summary: pd.DataFrame
    seconds: float  # expected cost of it all
    # of a workload: seconds of measuring, half-width of the interval after them: before, at some
    # times, at the end
    curve: pd.DataFrame | None = None
    other_share: float = 0.0  # of the step: what is no op that can be measured by itself
    unread: tuple[str, ...] = ()  # why rows of ops could not be read, each once


@dataclasses.dataclass(frozen=True)
class Choice:
    """Rows in the order to measure them. P picks, R rows to choose from."""

    picks: np.ndarray  # int [P]
    removed: np.ndarray  # [P] variance that each removes of what is asked for
    variance: np.ndarray  # [R] of the rows' log times after all of them


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
    known = _known_of(device, model)
    pool = candidates(known, ops, dtypes, budget_s)
    belief = Belief.about(pool, known)
    _, kind = np.unique(belief.kind, return_inverse=True)
    weight, covariance = 1.0 / np.bincount(kind)[kind], belief.covariance()
    before, cost_s = np.diag(covariance), belief.cost_s
    chosen = choose(covariance, belief.noise(), cost_s, budget_s, weight, kind)
    summary = _by_kind(belief, chosen, before=before, after=chosen.variance)
    removed = 1 - summary.pop("after") / summary.pop("before")
    return MeasurementPlan(
        _to_fill_in(belief, chosen, gain=chosen.removed / (weight @ before)),
        summary.assign(removed=removed),
        float(cost_s[chosen.picks].sum()),
    )


def plan_for(
    workload: pd.DataFrame, device: DeviceSpec, budget_s: float, *, model: PerfModel | None = None
) -> MeasurementPlan:
    """The shapes to measure on a device within a budget that narrow a workload's interval most.

    Args:
        workload: its ops as `hybridperf predict --out` writes them (`seconds` and `critical` say
            what share each has), or any table of ops; `times`: how often a row runs.
        device, budget_s, model: as of `plan`.

    Raises:
        InputError: as `plan` does, and for a table without an op that can be measured.
    """
    known = _known_of(device, model)
    own, share, unread = ops_of(workload, device)
    others = _other_shapes(own, known, budget_s)
    belief = Belief.about(pd.concat([own.drop(columns="times"), others], ignore_index=True), known)
    if share is None:
        share = own["times"].to_numpy(float) * belief.seconds[: len(own)]
        share /= share.sum()
    weight = np.concatenate([share, np.zeros(len(others))])
    cost_s = np.where(belief.fits, belief.cost_s, np.inf)
    covariance = belief.covariance()
    chosen = choose(covariance, belief.noise(), cost_s, budget_s, weight)
    before = weight @ covariance @ weight
    left = np.maximum(before - np.cumsum([0.0, *chosen.removed]), 0.0)
    half_width = np.expm1(NINE_OF_TEN * np.sqrt(left))
    removed = np.zeros(len(weight))
    removed[chosen.picks] = chosen.removed / max(before, 1e-30)
    summary = _by_kind(belief, chosen, share=weight, removed=removed)
    summary = summary.assign(removed=summary.pop("removed"))
    spent_s = np.cumsum([0.0, *cost_s[chosen.picks]])
    # half-widths before measuring, after about each doubling of the time spent, at the end
    least = spent_s[1]
    marks = least * 2.0 ** np.arange(math.floor(math.log2(spent_s[-1] / least)) + 1)
    at = np.unique([0, *(np.searchsorted(spent_s, marks, "right") - 1), len(spent_s) - 1])
    return MeasurementPlan(
        table=_to_fill_in(belief, chosen, half_width=half_width[1:]),
        summary=summary.sort_values("share", ascending=False, ignore_index=True),
        seconds=float(spent_s[-1]),
        curve=pd.DataFrame({"measuring_s": spent_s[at], "half_width": half_width[at]}),
        other_share=float(1.0 - share.sum()),
        unread=unread,
    )


def _known_of(device: DeviceSpec, model: PerfModel | None) -> PerfModel:
    """A device's model, or without one what a fit to no rows gives: the prior over devices, or the
    datasheet; `InputError` for a model of another device.
    """
    if model is not None and model.device.id != device.id:
        raise InputError(
            f"expected a model of {device.id}, got one of {model.device.id}; give the --device the"
            " model was fitted for"
        )
    return model or fit(None, device)[0]


def choose(
    covariance: np.ndarray, noise: np.ndarray, cost_s: np.ndarray, budget_s: float,
    weight: np.ndarray, kind: np.ndarray | None = None,
) -> Choice:  # fmt: skip
    """Which rows to measure within a budget.

    Args:
        covariance: of log times [R, R].
        noise: variance of one measurement's log time [R].
        cost_s: seconds that measuring each takes [R]; infinite: not at all.
        budget_s: seconds to spend.
        weight: of each row in the sum of log times whose variance is to fall [R]; with `kind` of
            its own variance among all that are.
        kind: of each row, int [R]; each gets one row before any gets its second.

    Raises:
        InputError: no row is within the budget.
    """
    if not np.min(cost_s) <= budget_s:
        raise InputError(
            f"expected a budget that pays for a measurement, got {budget_s:.3g} s; the cheapest"
            f" takes {np.min(cost_s):.3g} s"
        )
    open_, left_s = np.isfinite(cost_s), budget_s
    variance = np.diag(covariance).copy()
    told = covariance @ weight if kind is None else covariance**2 @ weight
    left, seen = float(weight @ told), np.zeros(0 if kind is None else kind.max() + 1, bool)
    # after n picks K is covariance - us[:n]^T us[:n], which is cheaper than subtracting
    us = np.empty((min(int(open_.sum()), int(budget_s / np.min(cost_s)) + 1), len(cost_s)))
    picks: list[int] = []
    removed: list[float] = []
    while (wanted := open_ & (cost_s <= left_s)).any():
        if kind is not None and (unseen := wanted & ~seen[kind]).any():
            wanted = unseen
        gain = (told**2 if kind is None else told) / (variance + noise)
        pick, n = int(np.argmax(np.where(wanted, gain / cost_s, -np.inf))), len(picks)
        if kind is None and picks and gain[pick] < _LEAST_REMOVED * (left - sum(removed)):
            break
        noisy_sd = math.sqrt(variance[pick] + noise[pick])
        u = (covariance[pick] - us[:n, pick] @ us[:n]) / noisy_sd
        wu = weight * u
        if kind is None:
            told = told - u * wu.sum()
        else:
            # K' = K - u u^T gives  sum_j w_j K'_ij^2 = sum_j w_j K_ij^2 - 2 u_i (K (w u))_i
            # + u_i^2 (w . u^2)
            seen[kind[pick]] = True
            slope = covariance @ wu - (us[:n] @ wu) @ us[:n]
            told = np.maximum(told - 2 * u * slope + u**2 * (wu @ u), 0.0)
        variance = np.maximum(variance - u**2, 0.0)
        us[n], open_[pick], left_s = u, False, left_s - cost_s[pick]
        picks.append(pick)
        removed.append(float(gain[pick]))
    return Choice(np.array(picks), np.array(removed), variance)


def ops_of(
    workload: pd.DataFrame, device: DeviceSpec
) -> tuple[pd.DataFrame, np.ndarray | None, tuple[str, ...]]:
    """(the workload's different ops that can be measured, with `times`; the share of the step's
    seconds that each has [R], None where the table has no seconds; why other ops cannot be read).
    """
    given = workload.reset_index(drop=True)
    given = read_whole(given, fields_of_table(given))
    limits = Numbers(needed=False)
    numbers = number_columns(given, {"times": limits, "seconds": limits}, "op", ("op", "dtype"))
    sizes = [name for name in given if name in op_fields() and op_fields()[name].priced]
    rows = given[sizes].assign(times=1.0).assign(**numbers.fillna(0.0))
    if "critical" in given:
        rows["times"] *= given["critical"].astype(bool)
    if "seconds" in rows:
        rows["seconds"] *= rows["times"]
        if not rows["seconds"].sum() > 0:
            raise InputError("expected seconds above zero in a row of the workload, got none")
    # what is no op (messages, given seconds) has no number format
    known = rows["dtype"].notna() & (rows["times"] > 0) & rows["op"].astype(str).map(_alone)
    unread: dict[str, None] = {}
    if known.any():
        problems = parse_ops(rows.loc[known, sizes].reset_index(drop=True), device).problem
        for at, problem in zip(np.flatnonzero(known), problems, strict=True):
            if problem:
                unread.setdefault(f"row {at + 1}: {problem}")
                known[at] = False
    if not known.any():
        raise InputError(
            "the workload has no op that can be measured by itself: expected rows of"
            " `hybridperf predict --out`, or of a table of ops, such as gemm, softmax"
        )
    found = rows[known]
    dtypes = found["dtype"].map(canonical_dtype)
    alike = found.assign(dtype=dtypes).groupby(sizes, sort=False, dropna=False).sum().reset_index()
    share = None
    if "seconds" in rows:
        share = (alike.pop("seconds") / rows["seconds"].sum()).to_numpy(float)
    return alike, share, tuple(unread)


def _alone(name: str) -> bool:
    """Whether an op of this name is one that a framework's user can call by itself."""
    return name not in ("fused", "call", "allocation", "loop_trip") and not name.startswith("eager")


def _other_shapes(own: pd.DataFrame, model: PerfModel, budget_s: float) -> pd.DataFrame:
    """Shapes of the workload's kinds that anybody may measure; none of kinds without ranges."""
    kinds = own[["op", "dtype"]].drop_duplicates().itertuples(index=False)
    kinds = [kind for kind in kinds if op_by_name(kind.op)[0] in RANGES]
    most = max(_OTHER_SHAPES // max(len(kinds), 1), 8)
    drawn = [candidates(model, [op], [dtype], budget_s).head(most) for op, dtype in kinds]
    others = pd.concat(drawn) if drawn else own.iloc[:0]
    return others.drop(columns=["expected_s", "repeats", "times"], errors="ignore")


def _by_kind(belief: Belief, chosen: Choice, **of_rows: np.ndarray) -> pd.DataFrame:
    """How many cases of each op and dtype are measured, for how long, and sums of other columns."""
    taken = np.zeros(len(belief.rows), bool)
    taken[chosen.picks] = True
    seconds = np.where(taken, belief.cost_s, 0.0)
    frame = belief.rows[["op", "dtype"]].assign(**of_rows, cases=taken, measuring_s=seconds)
    return frame.groupby(["op", "dtype"], sort=False).sum().reset_index()


def _to_fill_in(belief: Belief, chosen: Choice, **promised: np.ndarray) -> pd.DataFrame:
    """The chosen rows with their whole numbers as such, what each costs and promises."""
    picks = chosen.picks
    rows = belief.rows.iloc[picks].drop(columns=["expected_s", "repeats"], errors="ignore")
    rows = rows.dropna(axis=1, how="all").reset_index(drop=True)
    for name in rows.columns:
        values = rows[name].dropna()
        if values.dtype.kind in "fi" and (values == values.round()).all():
            rows[name] = rows[name].astype("Int64")
    rows = rows[["op", "dtype", *rows.columns.difference(["op", "dtype"], sort=False)]]
    return rows.assign(
        device=belief.model.device.id, expected_s=belief.seconds[picks],
        repeats=belief.repeats[picks], **promised, time_s=np.nan,
    )  # fmt: skip
