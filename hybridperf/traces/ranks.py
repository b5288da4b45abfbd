"""Collectives of several ranks, matched: what the wire took and which rank the others waited for.

A kernel of a collective starts when its own rank has come to it and ends when all ranks are done, so its measured duration is mostly
waiting. The shortest duration over the ranks is the wire time: the last rank to arrive waits for nobody. All that compares durations, so
the clocks of the ranks need not agree.

Ranks issue the collectives of a group in the same order. A framework gives each group a stream of its own: the n-th communication stream
of one rank (in order of first launch) goes with the n-th of the others where both ran the same kinds of collectives in the same order.
Several groups that run the same collectives (rows of a grid of ranks) cannot be told apart by that: a note says so where their ends differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridperf.traces.events import NONE, RankTrace
from hybridperf.traces.idle import call_start_s, op_around
from hybridperf.traces.steps import Step

# what the names of collectives' kernels have in them; nccl's `SendRecv` carries an all-to-all as well as single messages
_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "sendrecv": "all_to_all",
    "alltoall": "all_to_all", "broadcast": "broadcast", "crossdevicereduce": "all_reduce", "reduce": "reduce",
}  # fmt: skip
_NAMED = 8  # ranks that a sentence names
_KERNEL = re.compile("|".join(_KINDS))
_UNNAMED = "collective"  # what its kernel's name does not tell
_APART_S = 1e-3  # ranks of one group end a collective within microseconds of each other


@dataclass(frozen=True, eq=False)
class Collective:
    """One collective as the given ranks ran it. R ranks took part of which there are traces."""

    kind: str  # all_reduce, all_to_all, ...
    order: int  # among the collectives of its ranks, from 0
    trace: np.ndarray  # index into the traces [R]
    rank: np.ndarray  # [R]
    event: np.ndarray  # device event of each [R]
    start_s: np.ndarray  # on each rank's own clock [R]
    end_s: np.ndarray
    input_dims: str  # of the first rank, as JSON; "" where not recorded

    @property
    def wire_s(self) -> float:
        """Seconds without waiting."""
        return float((self.end_s - self.start_s).min())

    @property
    def wait_s(self) -> np.ndarray:
        """Seconds each rank waited [R]."""
        return self.end_s - self.start_s - self.wire_s

    @property
    def late_rank(self) -> int:
        """The rank that came last, for which the others waited."""
        return int(self.rank[np.argmin(self.end_s - self.start_s)])

    def __str__(self) -> str:
        return f"{self.kind} #{self.order}"


@dataclass(frozen=True)
class Matched:
    """Collectives of several ranks, and what could not be matched."""

    collectives: tuple[Collective, ...]
    notes: tuple[str, ...]


def collectives(traces: Sequence[RankTrace], steps: Sequence[Step]) -> list[Collective]:
    """Collectives of one step, `steps` giving each trace's, in order of launch; those of a single rank have no waits."""
    return list(match(traces, steps).collectives)


def match(traces: Sequence[RankTrace], steps: Sequence[Step]) -> Matched:
    """The same with what is missing, in sentences."""
    ranks = rank_numbers(traces)
    streams = [_streams(trace, step) for trace, step in zip(traces, steps, strict=True)]
    found: list[tuple[float, Collective]] = []
    notes = list(_missing(traces, ranks))
    for nth in range(max(map(len, streams), default=0)):
        alike: dict[tuple[str, ...], list[int]] = {}
        for at, of_trace in enumerate(streams):
            if nth < len(of_trace):
                alike.setdefault(of_trace[nth][0], []).append(at)
        if len(alike) > 1:
            parts = "; ".join(f"{_ranks([int(ranks[at]) for at in members])}: {len(kinds)}" for kinds, members in alike.items())
            notes.append(
                f"ranks ran different collectives on communication stream {nth + 1} ({parts}) and are matched only where they agree"
            )
        for kinds, members in alike.items():
            events = np.array([streams[at][nth][1] for at in members])
            matched = [_collective(traces, ranks, members, kind, events[:, i]) for i, kind in enumerate(kinds)]
            apart_s = float(np.median([_end_spread_s(traces, one) for _, one in matched]))
            if apart_s > _APART_S:
                notes.append(
                    f"{_ranks(ranks[members].tolist())} end their collectives {1e3 * apart_s:.3g} ms apart: their clocks disagree, which"
                    " does no harm, or they are of several groups, which must be given one by one"
                )
            found += matched
    found.sort(key=lambda one: one[0])
    return Matched(tuple(_numbered(one for _, one in found)), tuple(notes))


def rank_numbers(traces: Sequence[RankTrace]) -> np.ndarray:
    """Each trace's rank; its place where the trace does not say [R]."""
    return np.array([at if trace.rank is None else trace.rank for at, trace in enumerate(traces)], int)


def kind_of(trace: RankTrace, event: np.ndarray) -> list[str | None]:
    """Which collective device events run [N], by the mark the framework sets around the launch or by the kernel's name; None: none."""
    mark = _marks(trace, event)
    kinds: list[str | None] = []
    for one, at in zip(event, mark, strict=True):
        if at != NONE:
            kinds.append(trace.host_name(at).removeprefix("nccl:").strip("_").removesuffix("_base"))
        else:
            named = _KERNEL.search(trace.device_name(one).lower().replace("_", ""))
            kind = _KINDS[named[0]] if named else _UNNAMED
            kinds.append(kind if trace.device_events.communicates[one] else None)
    return kinds


def _marks(trace: RankTrace, event: np.ndarray) -> np.ndarray:
    """The `nccl:...` mark around the launch of device events that communicate [N], NONE where there is none."""
    device = trace.device_events
    mark = np.full(len(event), NONE)
    known = (device.call[event] != NONE) & device.communicates[event]
    around = op_around(trace, device.call[event[known]])
    mark[known] = [at if at != NONE and trace.host_name(at).startswith("nccl:") else NONE for at in around]
    return mark


def _streams(trace: RankTrace, step: Step) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """(kinds, device events) of each communication stream in order of launch; streams in order of their first launch."""
    device = trace.device_events
    event = np.asarray(step.device)[device.communicates[step.device]]
    kinds = kind_of(trace, event)
    keep = [at for at, kind in enumerate(kinds) if kind is not None]
    called_s = call_start_s(trace, event)
    order = sorted(keep, key=lambda at: float(device.start_s[event[at]] if np.isnan(called_s[at]) else called_s[at]))
    by_stream: dict[int, list[int]] = {}
    for at in order:
        by_stream.setdefault(int(device.stream[event[at]]), []).append(at)
    return [(tuple(str(kinds[at]) for at in members), event[members]) for members in by_stream.values()]


def _collective(
    traces: Sequence[RankTrace], ranks: np.ndarray, members: Sequence[int], kind: str, event: np.ndarray
) -> tuple[float, Collective]:
    of = [traces[at] for at in members]
    start_s, end_s = (
        np.array([getattr(trace.device_events, side)[one] for trace, one in zip(of, event, strict=True)]) for side in ("start_s", "end_s")
    )
    called_s = float(call_start_s(of[0], event[:1])[0])
    mark = int(_marks(of[0], event[:1])[0])
    shape = of[0].host.shapes[mark] if mark != NONE else NONE
    dims = of[0].shapes[shape] if shape != NONE else ""
    when = start_s[0] if np.isnan(called_s) else called_s
    return of[0].origin_us * 1e-6 + float(when), Collective(kind, 0, np.array(members), ranks[list(members)], event, start_s, end_s, dims)


def _end_spread_s(traces: Sequence[RankTrace], one: Collective) -> float:
    """How far apart the ranks end it by their clocks."""
    origin_us = np.array([traces[at].origin_us for at in one.trace])
    return float(np.ptp(one.end_s + (origin_us - origin_us[0]) * 1e-6))


def _numbered(found: Iterable[Collective]) -> list[Collective]:
    count: dict[tuple[int, ...], int] = {}
    out = []
    for one in found:
        members = tuple(one.trace.tolist())
        out.append(replace(one, order=count.setdefault(members, 0)))
        count[members] += 1
    return out


def _missing(traces: Sequence[RankTrace], ranks: np.ndarray) -> list[str]:
    world = max((trace.world or 0 for trace in traces), default=0)
    absent = sorted(set(range(min(world, 1 << 20))) - set(ranks.tolist()))
    if not absent or world == 1:
        return []
    if len(traces) == 1:
        return [f"one rank of {world} is given: its collectives are wire time and waiting together"]
    return [f"{_ranks(absent)} of {world} not among the traces: waiting for {'it' if len(absent) == 1 else 'them'} counts as wire time"]


def _ranks(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:_NAMED])) + (f", ... ({len(numbers)} in all)" if len(numbers) > _NAMED else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {listed}"
