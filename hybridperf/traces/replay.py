"""A recorded step as a graph: its measured durations, sent through our own evaluator, give the measured step again.

What the evaluator adds to durations is the order of things, and that is what a what-if changes times within:

    host of a rank     its line of launches and waits (`host_line`), with the host's own seconds between them
    device event       starts when launched, when its stream is free, and when what it waits for on other streams has ended (`stream_order`)
    collective         of several ranks: all start when the last has come, and take the wire time, the least duration over the ranks;
                       of one rank of many: its measured duration, waiting included
    step before        events launched before the step that still ran in it come first on their streams

Two constants are taken from each trace, launch latency and the gap between events of a stream; no event has slack of its own, so what is
left over between measured and replayed step is how well this picture holds. Times are seconds from the earliest start of the step on any
rank. Axes: N nodes, U rows of the duration table, R ranks (traces).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hybridperf.evaluate import CriticalPath, Timeline, critical_path, timeline
from hybridperf.graph import Graph, GraphBuilder
from hybridperf.io import InputError
from hybridperf.lower import Lowered, lower
from hybridperf.traces.events import NONE, RankTrace
from hybridperf.traces.host_line import Entry, HostLine, host_line
from hybridperf.traces.ranks import Collective, kind_of, match
from hybridperf.traces.steps import Step, common_steps, typical
from hybridperf.traces.stream_order import Delays, LaunchedEvents, stream_waits

HOST, DEVICE, WIRE, IDLE = range(4)  # what the seconds of a row are of; IDLE: of a stream, before an event launched before the step
HOST_STREAM, MEETING = "host", "meeting"
_CLOCKS_S = 20e-6  # clocks further apart are worth a note


@dataclass(frozen=True, eq=False)
class Rows:
    """What each row of the duration table is. Seconds of a row = `busy_s` + `fixed_s`; only the first is what a kernel takes."""

    kind: np.ndarray  # HOST, DEVICE, WIRE or IDLE; [U]
    trace: np.ndarray  # which rank's, of a collective the first of its ranks; [U]
    event: np.ndarray  # device event; of host seconds the event launched or waited for, NONE for the rest of the step; [U]
    call: np.ndarray  # host event that launched it, NONE where the trace lacks it; [U]
    busy_s: np.ndarray
    fixed_s: np.ndarray  # the gap after an event on its stream

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Nodes:
    """What each node of the graph is [N]."""

    event: np.ndarray  # device event it runs, NONE for waits and other marks in time
    row: np.ndarray  # its row, NONE where it takes no time
    carried: np.ndarray  # launched before the step; bool


@dataclass(frozen=True, eq=False)
class Meeting:
    """A collective that several ranks of the replay took part in."""

    collective: Collective
    arrival: dict[int, int]  # by trace, the node whose end is the rank's coming
    node: dict[int, int]  # by trace, the node of the collective


@dataclass(frozen=True, eq=False)
class Replay:
    """One step of one or several ranks as a graph with its measured durations, or, after a what-if, others."""

    traces: tuple[RankTrace, ...]
    steps: tuple[Step, ...]
    graph: Graph
    lowered: Lowered
    rows: Rows
    nodes: Nodes
    meetings: tuple[Meeting, ...]
    seconds: np.ndarray  # of each row [U]
    start_s: np.ndarray  # of each rank's step on its host, from the earliest [R]
    measured_s: np.ndarray  # from there to the later end of host and device [R]
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def timeline(self) -> Timeline:
        """When each node runs."""
        return timeline(self.lowered, self.seconds)

    @cached_property
    def critical(self) -> CriticalPath:
        """The longest path."""
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
    def error(self) -> np.ndarray:
        """How far the replay is off, as a share of the measured step [R]."""
        return self.replayed_s / self.measured_s - 1

    def waits_s(self) -> list[tuple[Collective, np.ndarray, np.ndarray]]:
        """Each collective of several ranks with measured and replayed waits of its ranks."""
        found = []
        for meeting in self.meetings:
            of = meeting.collective.trace.tolist()
            came_s = np.array([self.timeline.end_s[meeting.arrival[trace]] for trace in of])
            start_s = np.array([self.timeline.start_s[meeting.node[trace]] for trace in of])
            found.append((meeting.collective, meeting.collective.wait_s, start_s - came_s))
        return found

    def op_of_row(self, row: int) -> str:
        """The framework's op that a row belongs to; of an event launched outside of any, its own name.

        "host" for what the host adds, "nccl:..." for collectives.
        """
        trace = self.traces[self.rows.trace[row]]
        call, event = int(self.rows.call[row]), int(self.rows.event[row])
        if self.rows.kind[row] == HOST:
            return "host"
        if self.rows.kind[row] == WIRE and (kind := kind_of(trace, np.array([event]))[0]) is not None:
            return f"nccl:{kind}"
        op = trace.op_of_call(call) if call != NONE else NONE
        return trace.host_name(op) if op != NONE else trace.device_name(event)

    def with_seconds(self, seconds: np.ndarray) -> Replay:
        """The same step with other seconds for its rows [U]."""
        return replace(self, seconds=np.asarray(seconds, np.float64))


def replay(traces: Sequence[RankTrace], step: str | None = None) -> Replay:
    """Replay of a step that all traces have, by its name; without one the typical step. `InputError` where there is none of that name."""
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
        raise InputError(f"expected one of the steps {', '.join(list(by_name)[:8])}, got {step!r}; give one of these names to --step")
    notes.append(chosen.note)
    return replay_step(traces, chosen.steps, notes)


def replay_step(traces: Sequence[RankTrace], steps: Sequence[Step], notes: Sequence[str] = ()) -> Replay:
    """Replay of the given step of each trace."""
    if not any(len(step.device) for step in steps):
        raise InputError(f"expected work on a device in {steps[0].name} of {traces[0].source}, found none; there is nothing to replay")
    matched = match(traces, steps)
    together = [one for one in matched.collectives if len(one.trace) > 1]
    # one clock for all ranks, in seconds from the first start of the step
    zero_s = np.array([(trace.origin_us - traces[0].origin_us) * 1e-6 for trace in traces])
    late_s = _clocks_late_s(zero_s, together)
    zero_s = zero_s - late_s
    begin_s = zero_s + np.array([step.start_s for step in steps])
    zero_s, start_s = zero_s - begin_s.min(), begin_s - begin_s.min()
    ranks = [_Rank(at, trace, step, float(zero_s[at])) for at, (trace, step) in enumerate(zip(traces, steps, strict=True))]
    for device in dict.fromkeys(trace.device for trace in traces):
        alike = [rank for rank in ranks if rank.trace.device == device]
        delays = Delays.of([rank.launched for rank in alike])
        for rank in alike:
            rank.order(delays)
    builder = _Builder(ranks, together)
    builder.run()
    graph = builder.graph.build()
    measured_s = np.array([rank.measured_s for rank in ranks])
    rows = builder.rows()
    return Replay(
        traces=tuple(traces),
        steps=tuple(steps),
        graph=graph,
        lowered=lower(graph, fold_ranks=False),  # no two measured ranks are the same
        rows=rows,
        nodes=builder.nodes(graph),
        meetings=tuple(builder.meetings),
        seconds=rows.busy_s + rows.fixed_s,
        start_s=start_s,
        measured_s=measured_s,
        notes=tuple(dict.fromkeys(note for note in (*notes, *matched.notes, *_said_late(late_s), *builder.notes) if note)),
    )


def _clocks_late_s(zero_s: np.ndarray, together: Sequence[Collective]) -> np.ndarray:
    """How late each rank's clock is [R], the median over its collectives: all ranks leave a collective at once."""
    apart: list[list[float]] = [[0.0] if not together else [] for _ in zero_s]
    for one in together:
        end_s = one.end_s + zero_s[one.trace]
        for trace, off_s in zip(one.trace.tolist(), end_s - np.median(end_s), strict=True):
            apart[trace].append(float(off_s))
    return np.array([np.median(those) if those else 0.0 for those in apart])


def _said_late(late_s: np.ndarray) -> list[str]:
    widest_s = float(np.ptp(late_s))
    return [f"clocks of ranks up to {1e6 * widest_s:.0f} us apart, set by the ends of their collectives"] if widest_s > _CLOCKS_S else []


class _Rank:
    """One rank's step, ready to become nodes."""

    def __init__(self, at: int, trace: RankTrace, step: Step, zero_s: float):
        device = trace.device_events
        call = device.call
        launched_s = np.where(call == NONE, device.start_s, trace.host.start_s[call]) if len(trace.host) else device.start_s
        carried = np.flatnonzero((launched_s < step.start_s) & (device.end_s > step.start_s))
        carried = np.setdiff1d(carried, step.device)
        self.at, self.trace, self.step = at, trace, step
        self.shift_s = zero_s  # of the trace's clock, to that of all ranks
        self.launched = LaunchedEvents(trace, np.concatenate([carried, np.asarray(step.device, np.int64)]))
        inside = np.zeros(len(device), bool)
        inside[step.device] = True
        # an event launched before the step cannot come after one of it
        self.carried = ~inside[self.launched.event]
        self.first = int(self.carried.sum())
        last_s = float(device.end_s[step.device].max(initial=step.end_s))
        self.measured_s = max(step.end_s, last_s) - step.start_s

    def order(self, delays: Delays) -> None:
        """Decide what waits for what."""
        latency_s, self.gap_s = delays.latency_s(self.launched), delays.gap_s(self.launched)
        self.waits = stream_waits(self.launched, latency_s, self.gap_s)
        self.line: HostLine = host_line(self.launched, latency_s, self.gap_s, self.step.start_s, self.step.end_s, self.first)


class _Builder:
    """Puts ranks into one graph. Ranks go on in turn, each until it comes to a collective that not all have come to."""

    def __init__(self, ranks: Sequence[_Rank], together: Sequence[Collective]):
        self.graph = GraphBuilder()
        self.meetings: list[Meeting] = []
        self.notes: list[str] = []
        self._ranks = ranks
        self._collective_of = {
            (int(trace), int(event)): at for at, one in enumerate(together) for trace, event in zip(one.trace, one.event, strict=True)
        }
        self._together = together
        self._rows: list[tuple[int, int, int, int, float, float]] = []
        self._nodes: list[tuple[int, int, bool]] = []  # event, row or 0, carried
        self._node_of: list[dict[int, int]] = [{} for _ in ranks]  # place -> node whose end is its end
        self._met: list[dict[int, int]] = [{} for _ in ranks]  # stream -> node of a meeting that its next event comes after

    def run(self) -> None:
        for rank in self._ranks:
            self._carry(rank)
        waiting: dict[int, dict[int, int]] = {}  # collective -> trace -> arrival
        goes_on = {rank.at: self._entries(rank) for rank in self._ranks}
        ready = list(goes_on)
        while goes_on:
            for at in ready:
                arrived = next(goes_on[at], None)
                if arrived is None:
                    del goes_on[at]
                else:
                    waiting.setdefault(arrived[0], {})[at] = arrived[1]
            ready = []
            for number in [number for number, arrivals in waiting.items() if len(arrivals) == len(self._together[number].trace)]:
                self._meet(number, waiting[number])
                ready += waiting.pop(number)
            if not ready and goes_on:  # ranks came to collectives in different orders: none can be the first
                number = min(waiting)
                self.notes.append(f"{self._together[number]} was not in the same order on all ranks: each goes by its own measured time")
                for at, arrival in waiting[number].items():
                    self._alone(number, at, arrival)
                ready += waiting.pop(number)
                self._collective_of = {key: one for key, one in self._collective_of.items() if one != number}

    def rows(self) -> Rows:
        kind, trace, event, call, busy_s, fixed_s = map(np.array, zip(*self._rows, strict=True))
        return Rows(kind, trace, event, call, busy_s.astype(np.float64), fixed_s.astype(np.float64))

    def nodes(self, graph: Graph) -> Nodes:
        event, row, carried = map(np.array, zip(*self._nodes, strict=True))
        return Nodes(event, row - 1, carried)

    def _row(self, kind: int, rank: _Rank, event: int, call: int, busy_s: float, fixed_s: float = 0.0) -> int:
        """Number of a new row, from 1; 0 for one that takes no time."""
        if busy_s <= 0 and fixed_s <= 0:
            return 0
        self._rows.append((kind, rank.at, event, call, busy_s, fixed_s))
        return len(self._rows)

    def _op(self, rank: _Rank, stream: str, row: int = 0, launch_row: int = 0, event: int = NONE, **more) -> int:
        label = rank.trace.device_name(event) if event != NONE else ""
        self._nodes.append((event, row, bool(more.pop("carried", False))))
        return self.graph.op(row, label=label, rank=rank.at, stream=stream, launch_row=launch_row, **more)

    def _carry(self, rank: _Rank) -> None:
        """Events launched before the step, back to back as they ran."""
        launched, free_s = rank.launched, {}
        for place in range(rank.first):
            stream, event, call = int(launched.stream[place]), int(launched.event[place]), int(launched.call[place])
            begin_s = max(free_s.get(stream, rank.step.start_s), rank.step.start_s)
            idle_s = max(0.0, float(launched.start_s[place]) - begin_s)
            busy_s = max(0.0, float(launched.end_s[place]) - begin_s - idle_s)
            if stream not in free_s:
                idle_s += rank.step.start_s + rank.shift_s  # this rank's step begins after the first rank's
            if idle := self._row(IDLE, rank, event, call, 0.0, idle_s):
                self._op(rank, f"stream {stream}", idle)
            row = self._row(WIRE if launched.communicates[place] else DEVICE, rank, event, call, busy_s)
            self._node_of[rank.at][place] = self._op(rank, f"stream {stream}", row, event=event, carried=True)
            free_s[stream] = float(launched.end_s[place])

    def _entries(self, rank: _Rank):
        """Adds a rank's nodes; yields (collective, arrival) at each that others take part in and goes on when it has been added."""
        launched, node_of = rank.launched, self._node_of[rank.at]
        offset_s = rank.step.start_s + rank.shift_s
        for entry in rank.line.entries:
            waited = entry.launches if entry.launches != NONE else entry.waits_for
            event = int(launched.event[waited])
            launch_row = self._row(HOST, rank, event, entry.call, entry.host_s + offset_s)
            offset_s = 0.0
            if entry.launches == NONE:
                self._op(rank, HOST_STREAM, launch_row=launch_row, after=[node_of[waited]], blocking=True)
                continue
            yield from self._launch(rank, entry, launch_row)
        rest = self._row(HOST, rank, NONE, NONE, rank.line.rest_s + offset_s)
        self._op(rank, HOST_STREAM, launch_row=rest)

    def _launch(self, rank: _Rank, entry: Entry, launch_row: int):
        place, launched = entry.launches, rank.launched
        event, stream = int(launched.event[place]), int(launched.stream[place])
        after = [self._node_of[rank.at][one] for one in rank.waits[place]]
        met = self._met[rank.at].pop(stream, NONE)
        after += [met] if met != NONE else []
        number = self._collective_of.get((rank.at, event))
        if number is not None:
            arrival = self._op(rank, f"stream {stream}", launch_row=launch_row, after=after)
            self._met[rank.at][stream] = NONE
            yield number, arrival
            self._node_of[rank.at][place] = self._met[rank.at][stream]
            return
        busy_s = float(launched.end_s[place] - launched.start_s[place])
        kind = WIRE if launched.communicates[place] else DEVICE
        row = self._row(kind, rank, event, int(launched.call[place]), busy_s, float(rank.gap_s[place]))
        blocking = entry.waits_for != NONE
        node = self._op(rank, f"stream {stream}", row, launch_row, event, after=after, blocking=blocking)
        self._node_of[rank.at][place] = node

    def _meet(self, number: int, arrivals: dict[int, int]) -> None:
        one = self._together[number]
        members = one.trace.tolist()
        ranks = {trace: self._ranks[trace] for trace in members}
        events = dict(zip(members, one.event.tolist(), strict=True))
        places = {trace: int(np.flatnonzero(rank.launched.event == events[trace])[0]) for trace, rank in ranks.items()}
        first = ranks[members[0]]
        call = int(first.launched.call[places[first.at]])
        gap_s = float(np.mean([rank.gap_s[places[trace]] for trace, rank in ranks.items()]))
        row = self._row(WIRE, first, events[first.at], call, one.wire_s, gap_s)
        # a lane of their own: the numbers of streams need not agree between ranks
        lane = f"{MEETING} {sorted((trace, int(rank.launched.stream[places[trace]])) for trace, rank in ranks.items())}"
        after = [arrivals[trace] for trace in members]
        node = self.graph.collective(row, label=str(one), ranks=members, stream=lane, after=after)
        self._nodes += [(events[trace], row, False) for trace in members]
        for trace, rank in ranks.items():
            self._met[trace][int(rank.launched.stream[places[trace]])] = node[trace]
        self.meetings.append(Meeting(one, dict(arrivals), node))

    def _alone(self, number: int, at: int, arrival: int) -> None:
        one, rank = self._together[number], self._ranks[at]
        event = int(one.event[one.trace.tolist().index(at)])
        place = int(np.flatnonzero(rank.launched.event == event)[0])
        stream, call = int(rank.launched.stream[place]), int(rank.launched.call[place])
        busy_s = float(rank.launched.end_s[place] - rank.launched.start_s[place])
        row = self._row(WIRE, rank, event, call, busy_s, float(rank.gap_s[place]))
        self._met[at][stream] = self._op(rank, f"stream {stream}", row, event=event, after=[arrival])
