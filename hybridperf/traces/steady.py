"""A recorded step several times in a row: its own time where hosts run ahead of devices.

When the host launches a step while the device still works on the one before, the time from the
step's first call to its last kernel holds both. What a step costs, and what a change saves, is how
much later a row of such steps ends for each one more: the work of the step before is then that of
the same step, changed like it. The row begins with idle devices, so nothing in it keeps times of
before a change.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hybridperf.engine.lower import lower
from hybridperf.traces.events import RankTrace
from hybridperf.traces.replay import Replay, of_graph
from hybridperf.traces.replay_graph import StepGraph
from hybridperf.traces.steps import RecordedStep, periods_s, steps

TURNS = 4  # so many until what fills and empties between host and device repeats
OFF = 0.05  # a replay that misses the recorded time by more is told
MATTERS = 0.01  # share of the step that work of the step before must take to be told apart


def has_backlog(replay: Replay) -> bool:
    """Whether work of the step before takes up a part of the measured step of any rank."""
    return bool((replay.backlog_s > MATTERS * replay.measured_s).any())


def backlog_note(replay: Replay) -> str:
    """For people: how long the measured step works on the step before."""
    at = int(replay.backlog_s.argmax())
    trace, step = replay.traces[at], replay.steps[at]
    of = f" of rank {trace.rank}" if len(replay.traces) > 1 else ""
    before_ms, all_ms = 1e3 * replay.backlog_s[at], 1e3 * replay.measured_s[at]
    works = f"in {step.name}{of} the device works off the step before for"
    times = f"times of a step, speed-ups and savings are of one in a row of {TURNS} such steps"
    return f"{works} {before_ms:.3g} of {all_ms:.3g} ms: {times}"


def off_notes(measured: Replay, row: Replay) -> list[str]:
    """For people, a sentence for each rank whose replay misses what was measured by more than
    `OFF`: `measured` its step, `row` (the same, or several of it in a row) what follows the last.
    """
    notes = []
    for at, (trace, step) in enumerate(zip(measured.traces, measured.steps, strict=True)):
        of = f"{step.name} of rank {trace.rank}" if len(measured.traces) > 1 else step.name
        found = [(measured.replayed_s[at], measured.measured_s[at], f"the replay of {of} takes")]
        period_s = np.array(list(periods_s(trace).values()))
        if row.shorter is not None and np.isfinite(period_s).any():
            period_s = np.nanmedian(period_s)
            found.append((row.step_s[at], period_s, f"{of} in a row of its like takes"))
        for replayed_s, recorded_s, takes in found:
            if abs(replayed_s / recorded_s - 1) > OFF:
                by = f"{100 * (replayed_s / recorded_s - 1):+.1f} %"
                times = f"{1e3 * replayed_s:.3g} ms where {1e3 * recorded_s:.3g} ms were recorded"
                means = "what limits it is not in the picture, and no what-if is surer than that"
                notes.append(f"{takes} {times} ({by}): {means}")
    return notes


def in_a_row(replay: Replay) -> Replay:
    """`TURNS` of a replayed step, one after the other; `step_s` is that of the last."""
    ranks = replay.ranks
    together = [meeting.collective for meeting in replay.meetings]
    between_s = [_between_s(rank.trace, rank.step) for rank in ranks]
    builder = StepGraph(ranks, together, TURNS, between_s)
    shorter = StepGraph(ranks, together, TURNS - 1, between_s)
    one_less = lower(shorter.graph.build(), fold_ranks=False)
    return replace(replay, **of_graph(builder), shorter=one_less)


def _between_s(trace: RankTrace, step: RecordedStep) -> float:
    """Median host seconds from the end of a step's mark to the next, without long pauses."""
    found = steps(trace)
    gaps_s = np.array([after.start_s - before.end_s for before, after in pairwise(found)])
    gaps_s = gaps_s[gaps_s < step.end_s - step.start_s]
    return max(0.0, float(np.median(gaps_s))) if len(gaps_s) else 0.0
