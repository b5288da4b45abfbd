"""A recorded step as a graph: its measured durations, sent through our own evaluator, give the
measured step again.

What the evaluator adds to durations is the order of things, and that is what a what-if changes
times within:

    host of a rank     its launches and waits in order (`host_sequence`), with the host's own
                       seconds between them
    device event       starts when launched, when its stream is free, and when what it waits for on
                       other streams has ended (`stream_order`)
    collective         of several ranks: all start when the last has come, and take the wire time,
                       the least duration over the ranks; of one rank of many: its measured
                       duration, waiting included
    step before        events launched before the step that still ran in it come first on their
                       streams

Two constants are taken from each trace, launch latency and the gap between events of a stream; no
event has slack of its own, so what is left over between measured and replayed step is how well this
picture holds. Times are seconds from the earliest start of the step on any rank; ranks that no
collective ties to each other begin together. Axes: N nodes, U rows of the duration table, R ranks
(traces).

Several in a row (`in_a_row`): when the host launches a step while the device still works on the
one before, the time from the step's first call to its last kernel holds both. What a step costs,
and what a change saves, is how much later a row of such steps ends for each one more: the work of
the step before is then that of the same step, changed like it. The row begins with idle devices,
so nothing in it keeps times of before a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hybridperf.engine.evaluate import CriticalPath, Timeline, critical_path, timeline
from hybridperf.engine.graph import Graph
from hybridperf.engine.lower import Lowered, lower
from hybridperf.io import InputError
from hybridperf.traces import replay_graph
from hybridperf.traces.events import NONE, RankTrace
from hybridperf.traces.ranks import RecordedCollective, kind_of, match
from hybridperf.traces.replay_graph import DEVICE, HOST, WIRE, RankStep, StepGraph
from hybridperf.traces.steps import RecordedStep, common_steps, periods_s, steps, typical
from hybridperf.traces.stream_order import StreamDelays, usual_hand_overs_s

UNRECORDED = "launch not recorded"
_PAIR_WEIGHT = 1e-6  # of a message against a collective in telling clocks
_CLOCKS_S = 20e-6  # clocks further apart are worth a note


@dataclass(frozen=True, eq=False)
class Replay:
    """One step of one or several ranks as a graph, with measured or changed durations."""

    traces: tuple[RankTrace, ...]
    steps: tuple[RecordedStep, ...]
    graph: Graph
    lowered: Lowered
    rows: replay_graph.DurationRows
    nodes: replay_graph.ReplayNodes
    meetings: tuple[replay_graph.JointCollective, ...]
    seconds: np.ndarray  # of each row [U]
    start_s: np.ndarray  # of each rank's step on its host, from the earliest [R]
    measured_s: np.ndarray  # from there to the later end of host and device [R]
    notes: tuple[str, ...] = field(default=())
    ranks: tuple[RankStep, ...] = field(default=(), repr=False)  # what the graph was made of
    shorter: Lowered | None = None  # of several turns in a row: all but the last

    @cached_property
    def timeline(self) -> Timeline:
        """Start and end of each node when the step is replayed."""
        return timeline(self.lowered, self.seconds)

    @cached_property
    def critical(self) -> CriticalPath:
        """The longest path through the replayed step."""
        return critical_path(self.lowered, self.seconds)

    @cached_property
    def end_s(self) -> np.ndarray:
        """When each node's event ends, without the gap after it on its stream [N]."""
        gap_s = np.where(self.nodes.row == NONE, 0.0, self.rows.fixed_s[self.nodes.row])
        return np.asarray(self.timeline.end_s - gap_s)

    @property
    def replayed_s(self) -> np.ndarray:
        """Seconds of each rank's step [R]."""
        last_s = np.zeros(len(self.traces))
        np.maximum.at(last_s, self.graph.rank, self.end_s)
        return last_s - self.start_s

    @property
    def launched(self) -> bool:
        """Whether any launch was recorded; without one, events keep their measured starts."""
        return bool((self.rows.call[self._runs] != NONE).any())

    @property
    def device_s(self) -> float:
        """Seconds of all that devices ran, collectives of several ranks once."""
        return float(self.rows.busy_s[self._runs].sum())

    @property
    def _runs(self) -> np.ndarray:
        return (self.rows.kind == DEVICE) | (self.rows.kind == WIRE)

    @property
    def backlog_s(self) -> np.ndarray:
        """Seconds of each rank's step in which its device still worked on the step before [R]."""
        return np.array([rank.backlog_s for rank in self.ranks])

    @property
    def step_s(self) -> np.ndarray:
        """Seconds of each rank's step [R]; of several turns in a row, what the last one adds."""
        if self.shorter is None:
            return self.replayed_s
        last_s = np.zeros((2, len(self.traces)))
        turns = int(self.nodes.turn.max())
        for at, until in enumerate((turns - 1, turns)):
            upto = self.nodes.turn <= until
            np.maximum.at(last_s[at], self.graph.rank[upto], self.end_s[upto])
        return last_s[1] - last_s[0]

    @property
    def error(self) -> np.ndarray:
        """How far the replay is off, as a share of the measured step [R]."""
        return self.replayed_s / self.measured_s - 1

    def waits_s(self) -> list[tuple[RecordedCollective, np.ndarray, np.ndarray]]:
        """Each collective of several ranks with measured and replayed waits of its ranks."""
        found = []
        for meeting in self.meetings:
            of = meeting.collective.trace.tolist()
            came_s = np.array([self.timeline.end_s[meeting.arrival[trace]] for trace in of])
            start_s = np.array([self.timeline.start_s[meeting.node[trace]] for trace in of])
            found.append((meeting.collective, meeting.collective.wait_s, start_s - came_s))
        return found

    def op_of_row(self, row: int) -> str:
        """Name of the framework op that launched a row's event, else of the event itself.

        "host" is what the host adds, `UNRECORDED` when events start whose launches the trace lacks,
        "nccl:..." a collective.
        """
        trace = self.traces[self.rows.trace[row]]
        call, event = int(self.rows.call[row]), int(self.rows.event[row])
        if self.rows.kind[row] == HOST:
            return "host" if call != NONE or event == NONE else UNRECORDED
        if self.rows.kind[row] == WIRE:
            kind = kind_of(trace, np.array([event]))[0]
            if kind is not None:
                return f"nccl:{kind}"
        op = trace.op_of_call(call) if call != NONE else NONE
        return trace.host_name(op) if op != NONE else trace.device_name(event)

    def with_seconds(self, seconds: np.ndarray) -> Replay:
        """The same step with other seconds for its rows [U]."""
        return replace(self, seconds=np.asarray(seconds, np.float64))


def replay(traces: Sequence[RankTrace], step: str | None = None) -> Replay:
    """Replay of a step that all traces have: the one named `step`, else the typical one.

    Raises: InputError: no step has that name.
    """
    traces = tuple(traces)
    common = common_steps(traces)
    by_name = {one.name: one for one in common}
    notes = [note for trace in traces for note in trace.notes]
    if step is None:
        chosen_step = typical(traces[0], [one.steps[0] for one in common])
        chosen = by_name[chosen_step.name]
        notes.append(chosen_step.note)
    elif step in by_name:
        chosen = by_name[step]
    else:
        expected = f"expected one of the steps {', '.join(list(by_name)[:8])}"
        raise InputError(f"{expected}, got {step!r}; give one of these names to --step")
    notes.append(chosen.note)
    return replay_step(traces, chosen.steps, notes)


def replay_step(
    traces: Sequence[RankTrace], steps: Sequence[RecordedStep], notes: Sequence[str] = ()
) -> Replay:
    """Replay of the given step of each trace."""
    if not any(len(step.device) for step in steps):
        expected = f"expected work on a device in {steps[0].name} of {traces[0].source}"
        raise InputError(f"{expected}, found none; there is nothing to replay")
    matched = match(traces, steps)
    together = [one for one in matched.collectives if len(one.trace) > 1]
    # one clock for all ranks, in seconds from the first start of the step
    zero_s = np.array([(trace.origin_us - traces[0].origin_us) * 1e-6 for trace in traces])
    late_s = _clocks_late_s(zero_s, together)
    zero_s = zero_s - late_s
    begin_s = zero_s + np.array([step.start_s for step in steps])
    # first start [R] among the ranks that each rank meets, directly or by way of others
    meets = np.arange(len(begin_s))
    for one in together:
        joined = np.isin(meets, meets[one.trace])
        meets[joined] = meets[joined].min()
    first_s = np.array([begin_s[meets == those].min() for those in meets])
    zero_s, start_s = zero_s - first_s, begin_s - first_s
    both = enumerate(zip(traces, steps, strict=True))
    ranks = [RankStep(at, trace, step, float(zero_s[at])) for at, (trace, step) in both]
    for device in dict.fromkeys(trace.device for trace in traces):
        alike = [rank for rank in ranks if rank.trace.device == device]
        delays = StreamDelays.of([rank.launched for rank in alike])
        taken = [one for rank in alike for one in rank.order(delays)]
        for rank in alike:
            rank.order_host(usual_hand_overs_s(taken))
    builder = StepGraph(ranks, together)
    apart_s = float(np.ptp(late_s))
    clocks = f"clocks of ranks up to {1e6 * apart_s:.0f} µs apart, set by the ends of their"
    clock_note = f"{clocks} collectives" if apart_s > _CLOCKS_S else ""
    every_note = (*notes, *matched.notes, clock_note, *builder.notes)
    return Replay(
        traces=tuple(traces),
        steps=tuple(steps),
        **of_graph(builder),
        start_s=start_s,
        measured_s=np.array([rank.measured_s for rank in ranks]),
        notes=tuple(dict.fromkeys(filter(None, every_note))),
        ranks=tuple(ranks),
    )


def of_graph(builder: StepGraph) -> dict[str, Any]:
    """Fields of a `Replay` that its graph settles."""
    graph, rows = builder.graph.build(), builder.rows()
    return {
        "graph": graph,
        "lowered": lower(graph, fold_ranks=False),  # no two measured ranks are the same
        "rows": rows,
        "nodes": builder.nodes(),
        "meetings": tuple(builder.meetings),
        "seconds": rows.busy_s + rows.fixed_s,
    }


def _clocks_late_s(zero_s: np.ndarray, together: Sequence[RecordedCollective]) -> np.ndarray:
    """How late each rank's clock is [R]: all ranks leave a collective at once.

    In each set of ranks that meet, the median over their collectives; where sets overlap, least
    squares over all of them. Ranks that meet nowhere, not even by way of others, keep their clocks.
    A sender may leave before its message is received, so pairs count where nothing else ties two
    ranks.
    """
    sets: dict[tuple[bool | int, ...], list[np.ndarray]] = {}
    for one in together:
        end_s = one.end_s + zero_s[one.trace]
        order = np.argsort(one.trace)
        members = (one.kind.startswith("send "), *one.trace[order].tolist())
        sets.setdefault(members, []).append((end_s - np.median(end_s))[order])
    coefficients, off_s = np.zeros((len(zero_s), len(zero_s))), np.zeros(len(zero_s))
    for (pair, *at), apart_s in sets.items():
        weight = len(apart_s) * (_PAIR_WEIGHT if pair else 1)
        centred = (np.eye(len(at)) - 1 / len(at)) * weight  # a set knows its own differences only
        coefficients[np.ix_(at, at)] += centred
        off_s[at] += centred @ np.median(apart_s, axis=0)
    return np.asarray(np.linalg.lstsq(coefficients, off_s, rcond=1e-9)[0])


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
