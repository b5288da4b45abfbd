"""What a trace shows, its replay and what a change makes of it, as tables for a terminal."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.report.slices import Track, slices_frame
from hybridperf.report.text import frame_table, seconds
from hybridperf.traces.events import COPY, FILL, RankTrace
from hybridperf.traces.overheads import outermost_op
from hybridperf.traces.replay import Replay
from hybridperf.traces.steps import CommonStep
from hybridperf.traces.what_if import Change, WhatIf

_KERNEL, _COMMUNICATION, _COPY, _HOST = range(4)
_KINDS = ("computation", "communication", "copies and fills", "host: ops")
_MOST = 12  # rows of a table
REASONS = {
    "launch_bound": "launch not called yet",
    "synchronisation": "host waits for the device",
    "host_copy": "host copies",
    "dependency": "held back in its stream",
    "unrecorded": "launch not recorded",
    "waiting": "waiting",
}


_STEP = (
    "step", "rank", "step_cpu_s", "period_s", "gpu_span_s", "gpu_busy_s", "computation_s",
    "exposed_copy_s", "comm_s", "exposed_comm_s", "waiting_s", "other_step_s", "idle_s",
    "idle_share", "n_kernels",
)  # fmt: skip


def steps(rows: pd.DataFrame) -> str:
    """A row per step and rank; the span is busy, other steps and idle."""
    if rows.empty:
        return ""
    frame = rows.assign(idle_share=rows["idle_s"] / rows["gpu_span_s"].replace(0.0, math.inf))
    rare = ("exposed_copy_s", "waiting_s", "other_step_s")
    empty = [name for name in rare if not frame[name].fillna(0.0).any()]
    return titled(rows["gpu"].iloc[0] or "unnamed device", frame[[*_STEP]].drop(columns=empty))


def idle(rows: pd.DataFrame) -> str:
    """Why devices were idle, seconds by reason, of those for which some device was."""
    known = [name for name in REASONS if name != "waiting" and (rows[f"{name}_s"] > 0).any()]
    frame = rows[["step", "rank", "idle_s", *(f"{name}_s" for name in known)]]
    words = {f"{name}_s": f"{said}_s" for name, said in REASONS.items()}
    return titled("why idle", frame.rename(columns=words))


def losses(found: pd.DataFrame, ranks_known: bool = True) -> str:
    """Where devices did nothing useful (`summary.worst`), the longest first."""
    shown = pd.DataFrame([
        {"why": f"{REASONS[one.reason]}{' ' if one.reason == 'waiting' else ': '}{one.detail}",
         "rank": rank_words(one.rank if ranks_known else None),
         "time_s": one.seconds, "times": one.times}
        for one in found.head(_MOST).itertuples()
    ])  # fmt: skip
    return titled("most time lost", shown)


def host(found: Host) -> str:
    """The overheads of a host over all ops, and of how many kinds they were seen."""
    overheads: dict[str, Spread | Overhead | None] = {
        "between ops": found.between_ops_s,
        "before the first launch": found.before_launch_s,
        "the launch call": found.launch_call_s,
        "between launches": found.between_launches_s,
        "after the last launch": found.after_launch_s,
        "op without launch": found.without_launch_s,
    }
    rows = []
    for name, one in overheads.items():
        spread = one.shared if isinstance(one, Overhead) else one
        kinds = str(len(one.by_kind)) if isinstance(one, Overhead) else "-"
        if spread is not None:
            rows.append({
                "overhead": name, "mean_s": spread.mean_s, "standard_deviation_s": spread.std_s,
                "median_s": spread.median_s, "times": spread.count, "kinds": kinds,
            })  # fmt: skip
    return titled("host overheads", pd.DataFrame(rows))


def rank_words(rank: int | None) -> str:
    """The number of a rank, where it is known."""
    return "-" if rank is None else str(rank)


def titled(title: str, frame: pd.DataFrame) -> str:
    """A table under its title; nothing where it has no rows."""
    return f"\n{title}\n{frame_table(frame)}" if len(frame) else ""


def replayed(results: Sequence[WhatIf], changed: str, measured: Sequence[Replay]) -> str:
    """A row per step and rank: measured, replayed, error, and after `changed`, if anything is.

    `results` are of the steps `measured`, or of several repetitions of them in a row.
    """
    in_a_row = any(result.before.shorter is not None for result in results)
    headers = ["step", "rank", "measured", "replayed", "error"]
    headers += ["a step in a row"] if in_a_row else []
    headers += [changed, "speed-up"] if changed else []
    headers += ["from", "to"] if any(result.ends for result in results) else []
    rows = []
    for result, one in zip(results, measured, strict=True):
        before_s, after_s = result.before.step_s, result.after.step_s
        for at, trace in enumerate(one.traces):
            cells = [seconds(one.measured_s[at]), seconds(one.replayed_s[at])]
            cells.append(f"{100 * one.error[at]:+.2f} %")
            cells += [seconds(before_s[at])] if in_a_row else []
            if changed:
                cells += [seconds(after_s[at]), f"x{before_s[at] / after_s[at]:.3f}"]
            cells += [seconds(end.step_s[at]) for end in result.ends or ()]
            rows.append([one.steps[at].name, rank_words(trace.rank), *cells])
    return titled("replay", pd.DataFrame(rows, columns=headers))


def waits(replay: Replay, of: str = "") -> str:
    """Waiting at collectives over all ranks, measured and replayed, and the largest difference."""
    headers = ["collective", "wire_s", "waiting, measured_s", "replayed_s", "largest difference_s"]
    rows = []
    for one, measured_s, replayed_s in replay.waits_s():
        apart_s = np.round(np.abs(replayed_s - measured_s), 10)  # less than that is rounding
        times = (one.wire_s, measured_s.sum(), replayed_s.sum(), apart_s.max())
        rows.append([one, *times])
    return titled(f"waiting at collectives{of}", pd.DataFrame(rows, columns=headers))


def critical(before: pd.DataFrame, after: pd.DataFrame | None, of: str = "") -> str:
    """The critical path by op, before and after a change."""
    merged = before.set_index("op")[["seconds", "share"]]
    if after is not None:
        changed = after.set_index("op")[["seconds", "share"]].add_suffix("_after")
        merged = merged.join(changed, how="outer").fillna(0.0)
        longer = merged[["seconds", "seconds_after"]].max(axis=1)
        merged = merged.loc[longer.sort_values(ascending=False).index]
    shown = merged.head(_MOST).rename(columns={"share_after": "after_share"}).reset_index()
    return titled(f"critical path{of}", shown.rename(columns={"seconds_after": "after_s"}))


def savings(frame: pd.DataFrame, of: str = "") -> str:
    """Ops that would help if they took no time, and those with most time that would not."""
    helps = frame[frame["helps"]].head(_MOST)
    others = frame[~frame["helps"]].nlargest(_MOST, "seconds")
    no_help = f"would not help{of}: less than 1 % of the step even at no time"
    by_title = {f"would help{of}": helps, no_help: others}
    shown = ["op", "seconds", "critical_s", "saves_s"]
    found = (titled(title, some[shown]) for title, some in by_title.items())
    return "\n".join(filter(None, found))


def unknown(changes: Sequence[Change], total_s: float, of: str = "") -> str:
    """Ops that keep their measured time, why, and their share of all that devices ran."""
    found: dict[str, float] = {}
    why: dict[str, str] = {}
    for change in changes:
        for op, busy_s in change.unknown.items():
            found[op] = found.get(op, 0.0) + busy_s
            why[op] = change.why.get(op, "kind or size not recorded")
    rows = [
        {
            "op or kernel": name,
            "why": why[name],
            "time_s": busy_s,
            "device_share": busy_s / (total_s or math.inf),
        }
        for name, busy_s in sorted(found.items(), key=lambda one: -one[1])[:_MOST]
    ]
    return titled(f"keep their measured time{of}", pd.DataFrame(rows))


def slices(traces: Sequence[RankTrace], chosen: Sequence[CommonStep], most: int) -> pd.DataFrame:
    """Host threads (their outermost ops) and streams of every rank, on one clock."""
    names: dict[str, int] = {}
    tracks = []
    first_us = min(trace.origin_us for trace in traces)
    for at, trace in enumerate(traces):
        zero_s = (trace.origin_us - first_us) * 1e-6
        label = np.array([names.setdefault(name, len(names)) for name in trace.names], int)
        before = f"rank {trace.rank if trace.rank is not None else at} " if len(traces) > 1 else ""
        host, device = trace.host, trace.device_events
        calls = _together([step.steps[at].host for step in chosen])
        calls = calls[outermost_op(trace)[calls] == calls]
        events = _together([step.steps[at].device for step in chosen])
        copies = np.where(np.isin(device.kind, (COPY, FILL)), _COPY, _KERNEL)
        kinds = np.where(device.communicates, _COMMUNICATION, copies)
        sides = (
            ("thread", host, host.thread, trace.threads, np.full(len(host), _HOST), calls),
            ("stream", device, device.stream, None, kinds, events),
        )
        for what, recorded, row, row_names, kind, these in sides:
            for number in np.unique(row[these]).tolist():
                some = these[row[these] == number]
                name = f"{before}{what} {row_names[number] if row_names is not None else number}"
                edges = (zero_s + recorded.start_s[some], zero_s + recorded.end_s[some])
                unmarked = np.zeros(len(some), bool)
                tracks.append(Track(name, *edges, label[recorded.name[some]], kind[some], unmarked))
    return slices_frame(tracks, list(names), _KINDS, most)


def _together(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *parts]).astype(int)
