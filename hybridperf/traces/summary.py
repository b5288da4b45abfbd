"""What each rank's time went into, step by step, and why its device stood idle.

Three times of a step differ where hosts run ahead and steps overlap on the device:

    period_s     from the end of the step before on the device to its own: what a step costs
    gpu_span_s   first start to last end of what the step launched
                 = gpu_busy_s + other_step_s + idle_s
    gpu_busy_s   in which the device runs events of this step = compute_s + exposed_comm_s

Times of a device are unions over its streams:

    computation_s   kernels that compute             comm_s     kernels of collectives
    copy_s          copies and fills                 compute_s  all but collectives
                                                     = computation_s + exposed_copy_s
    exposed_copy_s  copies while nothing is computed
    exposed_comm_s  communication while nothing is computed or copied
    other_step_s    only events of other steps, or of none
    idle_s          nothing at all = launch_bound_s + synchronisation_s + host_copy_s +
                    dependency_s + unrecorded_s (`idle.py` says what those mean)

`waiting_s` is the part of exposed communication in which this rank waited for a later one, known
where there are traces of the ranks that it ran collectives with (else NaN, as is the period where
the step before was not recorded). `n_kernels` counts copies and fills, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.traces import idle
from hybridperf.traces.events import CALL, KERNEL, OP, RankTrace
from hybridperf.traces.idle import REASONS, Gaps
from hybridperf.traces.ranks import MatchedCollectives, match, rank_numbers
from hybridperf.traces.steps import RecordedStep, periods_s

_TOP = 10  # ops, kernels and reasons listed
LOST = ["rank", "reason", "detail", "seconds", "times"]


@dataclass(frozen=True, eq=False)
class StepSummary:
    """One step of the given ranks."""

    rows: pd.DataFrame  # a row per rank
    losses: pd.DataFrame  # `LOST`, most seconds first; reason: one of `idle.REASONS`, or `waiting`
    matched: MatchedCollectives


def summaries(
    traces: Sequence[RankTrace], steps: Sequence[Sequence[RecordedStep]]
) -> list[StepSummary]:
    """Several steps of several ranks, `steps` giving each trace's of each step."""
    gaps_of = [idle.gaps(trace) for trace in traces]
    periods_of = [periods_s(trace) for trace in traces]
    return [_summary(traces, one, gaps_of, periods_of) for one in steps]


def _summary(
    traces: Sequence[RankTrace],
    steps: Sequence[RecordedStep],
    gaps_of: Sequence[Gaps],
    periods_of: Sequence[Mapping[str, float]],
) -> StepSummary:
    matched = match(traces, steps)
    ranks = rank_numbers(traces)
    waiting = _waiting(traces, steps, matched)
    rows, losses = [], []
    for at, (trace, step) in enumerate(zip(traces, steps, strict=True)):
        waits = [loss for loss in waiting if loss[0] == ranks[at]]
        known = _waits_known(traces, at, matched)
        waiting_s = float(sum(loss[3] for loss in waits)) if known else float("nan")
        row, found = _row(trace, step, gaps_of[at], waiting_s, periods_of[at][step.name])
        rows.append(row)
        losses += [*waits, *((int(ranks[at]), *cause) for cause in idle.by_cause(found))]
    losses.sort(key=lambda loss: -loss[3])
    return StepSummary(pd.DataFrame(rows), pd.DataFrame(losses, columns=LOST), matched)


def table(summaries: Sequence[StepSummary]) -> pd.DataFrame:
    """Summaries of steps as a frame, one row each."""
    return pd.concat([one.rows for one in summaries], ignore_index=True)


def worst(summaries: Sequence[StepSummary]) -> pd.DataFrame:
    """Losses of all steps: those of one rank with the same cause as one, most seconds first."""
    losses = pd.concat([one.losses for one in summaries])
    summed = losses.groupby(LOST[:3], sort=False, as_index=False).sum()
    return summed.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)


def top_ops(
    traces: Sequence[RankTrace], steps: Sequence[RecordedStep], most: int = _TOP
) -> pd.DataFrame:
    """`name, device_s, share, events` of the ops that launched most device time."""
    return _by_name(traces, steps, most, lambda trace, step: idle.launching_op(trace, step.device))


def top_kernels(
    traces: Sequence[RankTrace], steps: Sequence[RecordedStep], most: int = _TOP
) -> pd.DataFrame:
    """`name, device_s, share, events` of the device events that took most time."""
    return _by_name(traces, steps, most, lambda one, step: map(one.device_name, step.device))


def _row(
    trace: RankTrace, step: RecordedStep, every_gap: Gaps, waiting_s: float, period_s: float
) -> tuple[dict[str, Any], Gaps]:
    """The row, and its gaps."""
    device, of = trace.device_events, np.asarray(step.device, int)
    start_s, end_s, communicates = device.start_s[of], device.end_s[of], device.communicates[of]
    copies = device.kind[of] != KERNEL
    parts = np.ones(len(of), bool), ~communicates, communicates, copies, ~(communicates | copies)
    busy, compute, comm, copy, computation = (
        idle.length_s(idle.merged(start_s[part], end_s[part])) for part in parts
    )
    first_s, last_s = (float(start_s.min()), float(end_s.max())) if len(of) else (0.0, 0.0)
    found = every_gap.between(first_s, last_s)
    totals_s = found.reasons.sum(axis=1).tolist()
    by_reason = {f"{reason}_s": total for reason, total in zip(REASONS, totals_s, strict=True)}
    idle_s = sum(totals_s)
    kind, rest_s = trace.host.kind[step.host], last_s - first_s - busy - idle_s
    row: dict[str, Any] = {
        "trace": trace.source, "rank": trace.rank, "world": trace.world, "gpu": trace.device,
        "step": step.name, "step_cpu_s": step.end_s - step.start_s, "period_s": period_s,
        "gpu_span_s": last_s - first_s, "gpu_busy_s": busy, "computation_s": computation,
        "copy_s": copy, "exposed_copy_s": compute - computation, "compute_s": compute,
        "comm_s": comm, "exposed_comm_s": busy - compute, "waiting_s": waiting_s,
        "other_step_s": rest_s if rest_s > 1e-9 else 0.0,  # rounding of sums of times
        "idle_s": idle_s, **by_reason, "n_kernels": len(of), "n_comm": int(communicates.sum()),
        "n_cpu_ops": int((kind == OP).sum()), "n_runtime": int((kind == CALL).sum()),
        "streams": len(np.unique(device.stream[of])),
    }  # fmt: skip
    if not len(device):  # nobody recorded what it did
        of_device = (name for name in row if name.endswith("_s") and "cpu" not in name)
        row |= dict.fromkeys(of_device, float("nan"))
    return row, found


def _waits_known(traces: Sequence[RankTrace], at: int, matched: MatchedCollectives) -> bool:
    """Whether all collectives of one rank have known waits."""
    mine = [one for one in matched.collectives if at in one.trace]
    if not mine:
        return len(traces) > 1 or traces[at].world == 1
    return not any(np.isnan(one.wait_s).any() for one in mine)


def _waiting(
    traces: Sequence[RankTrace], steps: Sequence[RecordedStep], matched: MatchedCollectives
) -> list[tuple[int, str, str, float, int]]:
    """Exposed waits of each rank for later ones at each collective, while nothing computes."""
    computing = []
    for trace, step in zip(traces, steps, strict=True):
        device, of = trace.device_events, np.asarray(step.device, int)
        of = of[~device.communicates[of]]
        computing.append(idle.merged(device.start_s[of], device.end_s[of]))
    losses = []
    for one in matched.collectives:
        if np.isnan(one.wait_s).any():
            continue
        until_s = one.start_s + one.wait_s
        for at, rank, start_s, end_s in zip(one.trace, one.rank, one.start_s, until_s, strict=True):
            exposed_s = float(end_s - start_s - idle.covered_s(computing[at], start_s, end_s))
            if exposed_s > 0:
                detail = f"for rank {one.late_rank} at {one}"
                losses.append((int(rank), "waiting", detail, exposed_s, 1))
    return losses


def _by_name(
    traces: Sequence[RankTrace],
    steps: Sequence[RecordedStep],
    most: int,
    names: Callable[[RankTrace, RecordedStep], Iterable[str]],
) -> pd.DataFrame:
    named, took_s = list[str](), list[float]()
    for trace, step in zip(traces, steps, strict=True):
        device, of = trace.device_events, step.device
        took_s += (device.end_s[of] - device.start_s[of]).tolist()
        named += names(trace, step)
    found = dict(idle.summed_by(named, took_s))
    total_s = sum(found[name][0] for name in dict.fromkeys(named)) or 1.0
    longest = list(found.items())[:most]
    rows = [(name, seconds, seconds / total_s, times) for name, (seconds, times) in longest]
    return pd.DataFrame(rows, columns=["name", "device_s", "share", "events"])
