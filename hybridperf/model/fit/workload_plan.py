"""Which shapes to measure for one workload: those that narrow its own interval most per second.

A step's log time moves with its ops' by the share a_j of its time that each takes, so that with the
covariance K of `measurement_plan.py`

    variance of the step's log time = a^T K a,      half of its 90 % interval = 1.645 sqrt(a^T K a)

and measuring shape i with noise s removes (K a)_i^2 / (K_ii + s^2) of it. The plan takes the
largest removal per second (greedy c-optimal design), updates K by rank one, and goes on. It chooses
among the workload's own ops and shapes of the same kinds, which may tell of several of its ops at
once, or be quicker to measure.

What is no op (messages between devices, a host's seconds, fused loops that nobody can call alone)
is not narrowed by measuring ops: its share of the step is reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec, canonical_dtype
from hybridperf.io import InputError
from hybridperf.io.tables import real_numbers
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.model import PerfModel
from hybridperf.model.fit import measurement_plan as of_ops
from hybridperf.model.fit.measurement_plan import CASE_OVERHEAD_S, NOISE_SD, Belief
from hybridperf.ops import op_by_name
from hybridperf.ops.table import parse_ops

# columns of `Prediction.ops` and of tables of ops that are no dimensions
_NOT_SIZES = frozenset({
    "label", "rank", "stream", "group", "start_s", "seconds", "roofline_s", "critical", "times",
    "device", "time_s", "predicted_s", "low_s", "high_s", "in_range", "note", "source",
})  # fmt: skip
_OTHER_SHAPES = 600  # besides the workload's own, of all kinds together
_LEAST_REMOVED = 1e-3  # of the variance that is left: less is not worth a measurement


@dataclasses.dataclass(frozen=True)
class WorkloadPlan:
    """A table to fill in, and what it promises of the workload."""

    # op, dtype, dimensions, device, expected_s, repeats, half_width (of the step's interval once
    # this row and those above are measured), time_s (empty); most informative rows first
    table: pd.DataFrame
    # op, dtype, share (of the step), cases, measuring_s, removed (share of the interval's variance)
    summary: pd.DataFrame
    # seconds of measuring, half-width of the interval after them: before, at some times, at the end
    curve: pd.DataFrame
    seconds: float
    other_share: float  # of the step: what is no op that can be measured by itself
    unread: tuple[str, ...]  # why rows of ops could not be read, each once


@dataclasses.dataclass(frozen=True)
class Picks:
    """Rows in the order to measure them. P picks, R rows."""

    picks: np.ndarray  # int [P]
    variance: np.ndarray  # [P + 1] of the step's log time, before and after each


def plan_for(
    workload: pd.DataFrame, device: DeviceSpec, budget_s: float, *, model: PerfModel | None = None
) -> WorkloadPlan:
    """The shapes to measure on a device within a budget that narrow a workload's interval most.

    Args:
        workload: its ops as `hybridperf predict --out` writes them (`seconds` and `critical` say
            what share each has), or any table of ops; `times`: how often a row runs.
        device: where to measure.
        budget_s: seconds to spend, compilation included.
        model: what is known of the device already; None: the prior over devices, and of a CPU that
            of the knobs.

    Raises:
        InputError: a table without an op that can be measured, a model of another device, or a
            budget that does not pay for one measurement.
    """
    model = of_ops.known_of(device, model)
    own, share, unread = ops_of(workload, device)
    others = _other_shapes(own, device, budget_s, model)
    pool = pd.concat([own, others], ignore_index=True)
    belief = Belief.about(pool, device, model)
    expected_s = belief.seconds()
    if share is None:
        of_rows = own["times"].to_numpy(float) * expected_s[: len(own)]
        share = of_rows / of_rows.sum()
    weight = np.concatenate([share, np.zeros(len(others))])
    repeats = of_ops.repeats_of(expected_s)
    cost_s = CASE_OVERHEAD_S + repeats * expected_s
    cost_s[~of_ops.fits(pool, belief, device)] = np.inf
    chosen = choose_for(weight, belief.covariance(), cost_s, budget_s, belief.noise())
    pool = pool.assign(device=device.id, expected_s=expected_s, repeats=repeats.astype(int))
    half_width = np.expm1(NINE_OF_TEN * np.sqrt(chosen.variance))
    table = pool.iloc[chosen.picks].reset_index(drop=True)
    table = table.assign(half_width=half_width[1:], time_s=np.nan).drop(columns="times")
    spent_s = np.concatenate([[0.0], np.cumsum(cost_s[chosen.picks])])
    return WorkloadPlan(
        table=_whole_numbers(table.dropna(axis=1, how="all").assign(time_s=np.nan)),
        summary=_summary(pool, weight, cost_s, chosen),
        curve=_curve(spent_s, half_width),
        seconds=float(spent_s[-1]),
        other_share=float(1.0 - share.sum()),
        unread=unread,
    )


def ops_of(
    workload: pd.DataFrame, device: DeviceSpec
) -> tuple[pd.DataFrame, np.ndarray | None, tuple[str, ...]]:
    """(the workload's different ops that can be measured, with `times`; the share of the step's
    seconds that each has [R], None where the table has no seconds; why other ops cannot be read).
    """
    if "op" not in workload.columns or "dtype" not in workload.columns or workload.empty:
        raise InputError(
            "expected the ops of a workload, a table with columns op and dtype; `hybridperf"
            " predict ... --out step.csv` writes one"
        )
    sizes = [name for name in workload.columns if name not in _NOT_SIZES]
    rows = workload.reset_index(drop=True)
    counts = _not_negative(rows, "times") if "times" in rows else pd.Series(1.0, rows.index)
    critical = rows["critical"].astype(bool) if "critical" in rows else pd.Series(True, rows.index)
    rows = rows[sizes].assign(times=counts * critical)
    has_seconds = "seconds" in workload.columns
    if has_seconds:
        rows["seconds"] = _not_negative(workload.reset_index(drop=True), "seconds") * rows["times"]
        if not rows["seconds"].sum() > 0:
            raise InputError("expected seconds above zero in a row of the workload, got none")
    # what is no op (messages, given seconds) has no number format
    known = rows["dtype"].notna() & (rows["times"] > 0) & rows["op"].astype(str).map(_alone)
    unread: dict[str, None] = {}
    if known.any():
        parsed = parse_ops(rows[known].drop(columns=["times"]).reset_index(drop=True), device)
        at = np.flatnonzero(known)
        for one in np.flatnonzero(parsed.problem.astype(bool)).tolist():
            unread.setdefault(f"row {at[one] + 1}: {parsed.problem[one]}")
            known[at[one]] = False
    if not known.any():
        raise InputError(
            "the workload has no op that can be measured by itself: expected rows of"
            " `hybridperf predict --out`, or of a table of ops, such as gemm, softmax"
        )
    found = rows[known]
    dtypes = found["dtype"].map(canonical_dtype)
    alike = found.assign(dtype=dtypes).groupby(sizes, sort=False, dropna=False).sum().reset_index()
    if not has_seconds:
        return alike, None, tuple(unread)
    share = (alike["seconds"] / rows["seconds"].sum()).to_numpy(float)
    return alike.drop(columns="seconds"), share, tuple(unread)


def choose_for(
    weight: np.ndarray, covariance: np.ndarray, cost_s: np.ndarray, budget_s: float,
    noise: np.ndarray | float = NOISE_SD**2,
) -> Picks:  # fmt: skip
    """Which of R rows to measure at `cost_s` [R] (infinite: not at all) for a workload of which
    they are so much: `weight` [R]. `covariance` [R, R] is of log times, `noise` [R] the variance of
    a measurement's.
    """
    of_ops.check_budget(cost_s, budget_s)
    covariance, open_, left = covariance.copy(), np.isfinite(cost_s), budget_s
    variance = [float(weight @ covariance @ weight)]
    picks: list[int] = []
    while (affordable := open_ & (cost_s <= left)).any():
        pull, own = covariance @ weight, np.diag(covariance) + noise
        per_second = np.where(affordable, pull**2 / own / cost_s, -np.inf)
        pick = int(np.argmax(per_second))
        removed = float(pull[pick] ** 2 / own[pick])
        if picks and removed < _LEAST_REMOVED * variance[-1]:
            break
        u = covariance[pick] / math.sqrt(own[pick])
        covariance -= np.outer(u, u)
        picks.append(pick)
        variance.append(max(variance[-1] - removed, 0.0))
        left -= cost_s[pick]
        open_[pick] = False
    return Picks(np.array(picks), np.array(variance))


def _not_negative(rows: pd.DataFrame, column: str) -> pd.Series:
    """A column of numbers, zero where a cell is empty."""
    values = real_numbers(rows[column].fillna(0.0))
    for at in np.flatnonzero(~((values >= 0) & np.isfinite(values)))[:1]:
        raise InputError(
            f"expected {column} of a workload's op as a number of zero or more, got"
            f" {rows[column].iloc[at]} in row {at + 1}"
        )
    return pd.Series(values, rows.index)


def _alone(name: str) -> bool:
    """Whether an op of this name is one that a framework's user can call by itself."""
    return name not in ("fused", "call", "allocation", "loop_trip") and not name.startswith("eager")


def _other_shapes(
    own: pd.DataFrame, device: DeviceSpec, budget_s: float, model: PerfModel | None
) -> pd.DataFrame:
    """Shapes of the workload's kinds that anybody may measure; none of kinds without ranges."""
    kinds = own[["op", "dtype"]].drop_duplicates().itertuples(index=False)
    drawn = []
    kinds = [kind for kind in kinds if op_by_name(kind.op)[0] in of_ops.RANGES]
    for op, dtype in kinds:
        made = of_ops.candidates(device, [op], [dtype], budget_s, model=model)
        drawn.append(made.head(max(_OTHER_SHAPES // len(kinds), 8)))
    if not drawn:
        return own.iloc[:0]
    return pd.concat(drawn).drop(columns=["expected_s", "repeats", "device"]).assign(times=0.0)


def _summary(
    pool: pd.DataFrame, weight: np.ndarray, cost_s: np.ndarray, chosen: Picks
) -> pd.DataFrame:
    taken, removed = np.zeros(len(pool), bool), np.zeros(len(pool))
    taken[chosen.picks] = True
    removed[chosen.picks] = -np.diff(chosen.variance) / max(chosen.variance[0], 1e-30)
    frame = pool[["op", "dtype"]].assign(
        share=weight, cases=taken, measuring_s=np.where(taken, cost_s, 0.0), removed=removed
    )
    made = frame.groupby(["op", "dtype"], sort=False).sum().reset_index()
    return made.sort_values("share", ascending=False, ignore_index=True)


def _curve(spent_s: np.ndarray, half_width: np.ndarray) -> pd.DataFrame:
    """Half-widths before measuring, after about each doubling of the time spent, at the end."""
    least = spent_s[1]
    marks = least * 2.0 ** np.arange(math.floor(math.log2(spent_s[-1] / least)) + 1)
    at = np.unique([0, *(np.searchsorted(spent_s, marks, "right") - 1), len(spent_s) - 1])
    return pd.DataFrame({"measuring_s": spent_s[at], "half_width": half_width[at]})


def _whole_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of whole numbers as such; columns in the order of a plan."""
    for name in table.columns:
        values = table[name].dropna()
        if name != "time_s" and values.dtype.kind == "f" and (values == values.round()).all():
            table[name] = table[name].astype("Int64")
    last = ("device", "expected_s", "repeats", "half_width", "time_s")
    sizes: Sequence[str] = [c for c in table.columns if c not in ("op", "dtype", *last)]
    return table[["op", "dtype", *sizes, *last]]
