"""The graph of a recorded step: nodes in issue order, and rows of seconds.

A device event is a node whose launch holds the host's seconds before it; a wait of the host is a
blocking node without a row. A collective of several ranks is a node per rank where they meet, after
a node where each arrives. In a row of several turns of the step, what was still running of the step
before is what the turn before launched last, and rows are shared between turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hybridperf.engine.graph import GraphBuilder
from hybridperf.traces import stream_order
from hybridperf.traces.events import NONE, RankTrace
from hybridperf.traces.host_thread import HostEntry, HostSequence, host_sequence
from hybridperf.traces.ranks import RecordedCollective
from hybridperf.traces.steps import RecordedStep

# what the seconds of a row are of; IDLE: of a stream, before an event launched before the step
HOST, DEVICE, WIRE, IDLE = range(4)
HOST_STREAM, MEETING = "host", "meeting"


@dataclass(frozen=True, eq=False)
class DurationRows:
    """What each row of the duration table is; its seconds are `busy_s` + `fixed_s`."""

    kind: np.ndarray  # HOST, DEVICE, WIRE or IDLE; [U]
    trace: np.ndarray  # which rank's, of a collective the first of its ranks; [U]
    # device event, of host seconds the one launched or waited for, NONE for a step's rest; [U]
    event: np.ndarray
    call: np.ndarray  # host event that launched it, NONE where the trace lacks it; [U]
    busy_s: np.ndarray
    # the gap after an event on its stream; of first host seconds, the rank's start after the first
    fixed_s: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class ReplayNodes:
    """What each node of the graph is [N]."""

    event: np.ndarray  # device event it runs, NONE for waits and other marks in time
    row: np.ndarray  # its row, NONE where it takes no time
    carried: np.ndarray  # launched before the step; bool
    turn: np.ndarray  # which of several turns of the step, from 0


@dataclass(frozen=True, eq=False)
class JointCollective:
    """A collective that several ranks of the replay took part in."""

    collective: RecordedCollective
    arrival: dict[int, int]  # by trace, the node whose end is the rank's coming
    node: dict[int, int]  # by trace, the node of the collective


class RankStep:
    """One rank's step, ready to become nodes."""

    def __init__(self, at: int, trace: RankTrace, step: RecordedStep, zero_s: float):
        device, launched_s = trace.device_events, trace.launched_s
        carried = np.flatnonzero((launched_s < step.start_s) & (device.end_s > step.start_s))
        carried = np.setdiff1d(carried, step.device)
        self.at, self.trace, self.step = at, trace, step
        self.shift_s = zero_s  # of the trace's clock, to that of all ranks
        events = np.concatenate([carried, np.asarray(step.device, np.int64)])
        self.launched = stream_order.LaunchedEvents(trace, events)
        inside = np.zeros(len(device), bool)
        inside[step.device] = True
        # an event without a recorded launch may run in this step and have been launched before it
        self.carried = ~inside[self.launched.event] | (self.launched.begin_s < step.start_s)
        last_s = float(device.end_s[step.device].max(initial=step.end_s))
        self.measured_s = max(step.end_s, last_s) - step.start_s
        before = self.launched.event[self.carried & (self.launched.start_s < step.end_s)]
        # seconds of the step in which its device still had work of the step before
        until_s = float(device.end_s[before].max(initial=step.start_s))
        self.backlog_s = max(0.0, until_s - step.start_s)

    def place_of(self, event: int) -> int:
        """Place of a device event among the launched ones."""
        return int(np.flatnonzero(self.launched.event == event)[0])

    def order(self, delays: stream_order.StreamDelays) -> list[tuple[int, float]]:
        """Decide what waits for what on the device; returns how long streams took to hand over."""
        self.latency_s, self.gap_s = delays.latency_s(self.launched), delays.gap_s(self.launched)
        self.waits = stream_order.stream_waits(self.launched, self.latency_s, self.gap_s)
        return stream_order.hand_overs(self.launched, self.waits, self.latency_s, self.gap_s)

    def order_host(self, hand_over_s: np.ndarray) -> None:
        """Decide what the host waits for; `hand_over_s` [4] is by kind of event."""
        launched, waits = self.launched, self.waits
        self.gap_s = stream_order.with_hand_overs(launched, waits, self.gap_s, hand_over_s)
        delays, span = (self.latency_s, self.gap_s), (self.step.start_s, self.step.end_s)
        self.host: HostSequence = host_sequence(self.launched, *delays, *span, self.carried)


class StepGraph:
    """Puts ranks into one graph, each until it comes to a collective that not all have reached."""

    def __init__(
        self, ranks: Sequence[RankStep], together: Sequence[RecordedCollective], turns: int = 1,
        between_s: Sequence[float] = (),
    ):  # fmt: skip
        """All of `turns` of the step, with `between_s` on each rank's host between two."""
        self.graph = GraphBuilder()
        self.meetings: list[JointCollective] = []
        self.notes: list[str] = []
        self._ranks = ranks
        self._turns, self._between_s = turns, between_s
        self._collective_of = {
            (int(trace), int(event)): at
            for at, one in enumerate(together)
            for trace, event in zip(one.trace, one.event, strict=True)
        }
        self._together = together
        self._rows: list[tuple[int, int, int, int, float, float]] = []
        self._row_of: dict[tuple, int] = {}  # what it is -> number: turns share rows
        self._nodes: list[tuple[int, int, bool, int]] = []  # event, row or 0, carried, turn
        self._turn = [0 for _ in ranks]
        # stream -> nodes of all it was given so far
        self._given: list[dict[int, list[int]]] = [{} for _ in ranks]
        # place -> node whose end is its end
        self._node_of: list[dict[int, int]] = [{} for _ in ranks]
        # stream -> node of a meeting that its next event comes after
        self._met: list[dict[int, int]] = [{} for _ in ranks]
        self._add_all()

    def _add_all(self) -> None:
        for rank in self._ranks if self._turns == 1 else ():
            self._carry(rank)
        waiting: dict[int, dict[int, int]] = {}  # collective -> trace -> arrival
        goes_on = {rank.at: self._all_turns(rank) for rank in self._ranks}
        ready = list(goes_on)
        while goes_on:
            for at in ready:
                arrived = next(goes_on[at], None)
                if arrived is None:
                    del goes_on[at]
                else:
                    waiting.setdefault(arrived[0], {})[at] = arrived[1]
            ready = []
            for number, arrivals in list(waiting.items()):
                if len(arrivals) == len(self._together[number].trace):
                    self._meet(number, arrivals)
                    ready += waiting.pop(number)
            if not ready and goes_on:  # ranks came to collectives in different orders
                number = min(waiting)
                order = "was not in the same order on all ranks"
                note = f"{self._together[number]} {order}: each goes by its own measured time"
                self.notes.append(note)
                for at, arrival in waiting[number].items():
                    self._alone(number, at, arrival)
                ready += waiting.pop(number)
                left = ((key, one) for key, one in self._collective_of.items() if one != number)
                self._collective_of = dict(left)

    def rows(self) -> DurationRows:
        """Duration rows of the nodes added so far."""
        kind, trace, event, call, *seconds = map(np.array, zip(*self._rows, strict=True))
        busy_s, fixed_s = (column.astype(np.float64) for column in seconds)
        return DurationRows(kind, trace, event, call, busy_s, fixed_s)

    def nodes(self) -> ReplayNodes:
        """For each node added so far, which event or turn it stands for."""
        event, row, carried, turn = map(np.array, zip(*self._nodes, strict=True))
        return ReplayNodes(event, row - 1, carried, turn)

    def _row(
        self, what: tuple, kind: int, rank: RankStep, event: int, call: int, busy_s: float,
        fixed_s: float = 0.0,
    ) -> int:  # fmt: skip
        """Number of the row of something, from 1; 0 for one that takes no time."""
        if busy_s <= 0 and fixed_s <= 0:
            return 0
        if (what := (rank.at, *what)) not in self._row_of:
            self._rows.append((kind, rank.at, event, call, busy_s, fixed_s))
            self._row_of[what] = len(self._rows)
        return self._row_of[what]

    def _event_row(self, rank: RankStep, place: int, carried_s: float | None = None) -> int:
        """Of an event and the gap after it, or of the seconds left of one that was carried over."""
        launched = rank.launched
        event, call = int(launched.event[place]), int(launched.call[place])
        busy_s, gap_s = launched.end_s[place] - launched.start_s[place], rank.gap_s[place]
        if carried_s is not None:
            busy_s, gap_s = carried_s, 0.0
        kind = WIRE if rank.launched.communicates[place] else DEVICE
        return self._row(("event", place), kind, rank, event, call, float(busy_s), float(gap_s))

    def _op(
        self, rank: RankStep, stream: str, row: int = 0, launch_row: int = 0, event: int = NONE,
        after: Sequence[int] = (), blocking: bool = False, carried: bool = False,
    ) -> int:  # fmt: skip
        label = rank.trace.device_name(event) if event != NONE else ""
        self._nodes.append((event, row, carried, self._turn[rank.at]))
        return self.graph.op(
            row, label=label, rank=rank.at, stream=stream, launch_row=launch_row, after=after,
            blocking=blocking,
        )  # fmt: skip

    def _carry(self, rank: RankStep) -> None:
        """Events launched before the step, back to back as they ran."""
        launched = rank.launched
        free_s: dict[int, float] = {}
        for place in np.flatnonzero(rank.carried).tolist():
            stream, event = int(launched.stream[place]), int(launched.event[place])
            call = int(launched.call[place])
            begin_s = max(free_s.get(stream, rank.step.start_s), rank.step.start_s)
            idle_s = max(0.0, float(launched.start_s[place]) - begin_s)
            busy_s = max(0.0, float(launched.end_s[place]) - begin_s - idle_s)
            if stream not in free_s:  # this rank's step begins after the first rank's
                idle_s += rank.step.start_s + rank.shift_s
            if idle := self._row(("idle", place), IDLE, rank, event, call, 0.0, idle_s):
                self._op(rank, f"stream {stream}", idle)
            row = self._event_row(rank, place, busy_s)
            carried = self._op(rank, f"stream {stream}", row, event=event, carried=True)
            self._node_of[rank.at][place] = carried
            free_s[stream] = float(launched.end_s[place])

    def _all_turns(self, rank: RankStep) -> Iterator[tuple[int, int]]:
        """Adds a rank's nodes; yields (collective, arrival) where others take part, and goes on."""
        offset_s = rank.step.start_s + rank.shift_s
        if self._turns == 1:
            yield from self._entries(rank, offset_s)
            return
        for turn in range(self._turns):
            self._turn[rank.at] = turn
            own_s, fixed_s = (0.0, offset_s) if turn == 0 else (self._between_s[rank.at], 0.0)
            row = self._row(("before", turn == 0), HOST, rank, NONE, NONE, own_s, fixed_s)
            self._op(rank, HOST_STREAM, launch_row=row)
            self._node_of[rank.at] = self._last_given(rank)
            yield from self._entries(rank, 0.0)
            given = self._given[rank.at]
            for place, node in self._node_of[rank.at].items():
                if not rank.carried[place]:
                    given.setdefault(int(rank.launched.stream[place]), []).append(node)

    def _last_given(self, rank: RankStep) -> dict[int, int]:
        """ReplayNodes of the turn before that stand for what the step before had launched."""
        found: dict[int, int] = {}
        carried = np.flatnonzero(rank.carried)
        for stream, given in self._given[rank.at].items():
            here = carried[rank.launched.stream[carried] == stream]
            here = here[np.argsort(rank.launched.start_s[here], kind="stable")].tolist()
            count = min(len(here), len(given))
            found |= dict(zip(here[len(here) - count :], given[len(given) - count :], strict=True))
        return found

    def _entries(self, rank: RankStep, offset_s: float) -> Iterator[tuple[int, int]]:
        launched, node_of = rank.launched, self._node_of[rank.at]
        for nth, entry in enumerate(rank.host.entries):
            waited = entry.launches if entry.launches != NONE else entry.waits_for
            event = int(launched.event[waited])
            own_s = entry.host_s, offset_s
            launch_row = self._row(("host", nth), HOST, rank, event, entry.call, *own_s)
            offset_s = 0.0
            if entry.launches == NONE:
                # nothing came before the first turn
                after = [node_of[waited]] if waited in node_of else []
                self._op(rank, HOST_STREAM, launch_row=launch_row, after=after, blocking=True)
                continue
            yield from self._launch(rank, entry, launch_row)
        rest = self._row(("rest",), HOST, rank, NONE, NONE, rank.host.rest_s, offset_s)
        self._op(rank, HOST_STREAM, launch_row=rest)

    def _launch(
        self, rank: RankStep, entry: HostEntry, launch_row: int
    ) -> Iterator[tuple[int, int]]:
        place, launched, node_of = entry.launches, rank.launched, self._node_of[rank.at]
        event, stream = int(launched.event[place]), int(launched.stream[place])
        after = [node_of[one] for one in rank.waits[place] if one in node_of]
        met = self._met[rank.at].pop(stream, NONE)
        after += [met] if met != NONE else []
        number = self._collective_of.get((rank.at, event))
        if number is not None:
            arrival = self._op(rank, f"stream {stream}", launch_row=launch_row, after=after)
            self._met[rank.at][stream] = NONE
            yield number, arrival
            node_of[place] = self._met[rank.at][stream]
            return
        row = self._event_row(rank, place)
        blocks = entry.waits_for != NONE
        node_of[place] = self._op(rank, f"stream {stream}", row, launch_row, event, after, blocks)

    def _meet(self, number: int, arrivals: dict[int, int]) -> None:
        one = self._together[number]
        members = one.trace.tolist()
        ranks = {trace: self._ranks[trace] for trace in members}
        events = dict(zip(members, one.event.tolist(), strict=True))
        places = {trace: rank.place_of(events[trace]) for trace, rank in ranks.items()}
        streams = {trace: int(ranks[trace].launched.stream[at]) for trace, at in places.items()}
        first = ranks[members[0]]
        call = int(first.launched.call[places[first.at]])
        gap_s = float(np.mean([rank.gap_s[places[trace]] for trace, rank in ranks.items()]))
        row = self._row(("meeting", number), WIRE, first, events[first.at], call, one.wire_s, gap_s)
        # a lane of their own: the numbers of streams need not agree between ranks
        lane = f"{MEETING} {sorted(streams.items())}"
        after = [arrivals[trace] for trace in members]
        node = self.graph.collective(row, label=str(one), ranks=members, stream=lane, after=after)
        self._nodes += [(events[trace], row, False, self._turn[trace]) for trace in members]
        for trace, stream in streams.items():
            self._met[trace][stream] = node[trace]
        self.meetings.append(JointCollective(one, dict(arrivals), node))

    def _alone(self, number: int, at: int, arrival: int) -> None:
        one, rank = self._together[number], self._ranks[at]
        event = int(one.event[one.trace.tolist().index(at)])
        place = rank.place_of(event)
        stream = int(rank.launched.stream[place])
        row = self._event_row(rank, place)
        node = self._op(rank, f"stream {stream}", row, event=event, after=[arrival])
        self._met[at][stream] = node
